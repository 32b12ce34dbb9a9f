//! Arranges the characters of a page: into lines, columns of prose, and tables.

use super::content::PlacedGlyph;
use crate::document::render::cell_text;

/// Distances in units of the font size. A gap of this width is a space, or the edge of a column.
const SPACE_GAP: f32 = 0.16;
const COLUMN_GAP: f32 = 1.2;
/// Baselines that differ by less are one line.
const LINE_HEIGHT: f32 = 0.45;
/// A larger distance between lines starts a paragraph.
const PARAGRAPH_GAP: f32 = 1.75;
/// What makes two columns of prose: their lines, and the letters of an average line.
const MIN_COLUMN_LINES: usize = 6;
const MIN_COLUMN_LETTERS: usize = 20;

/// Text without a wide gap.
#[derive(Debug, Clone)]
struct TextSegment {
    text: String,
    left: f32,
    right: f32,
}

#[derive(Debug, Clone)]
struct TextLine {
    y: f32,
    size: f32,
    segments: Vec<TextSegment>,
}

/// Returns the text of a page. Text in other directions follows at the end.
pub(super) fn arrange(glyphs: Vec<PlacedGlyph>) -> String {
    let mut out = String::new();
    for turn in 0..4 {
        let turned: Vec<PlacedGlyph> = glyphs.iter().filter(|glyph| glyph.turn == turn).map(upright).collect();
        if turned.is_empty() {
            continue;
        }
        if !out.is_empty() {
            out.push('\n');
        }
        let lines = find_lines(turned);
        match find_gutter(&lines) {
            Some(gutter) => arrange_columns(&lines, gutter, &mut out),
            None => arrange_lines(&lines, &mut out),
        }
    }
    out
}

/// Turns a glyph so that its text runs from left to right.
fn upright(glyph: &PlacedGlyph) -> PlacedGlyph {
    let (x, y) = match glyph.turn {
        0 => (glyph.x, glyph.y),
        1 => (glyph.y, -glyph.x),
        2 => (-glyph.x, -glyph.y),
        _ => (-glyph.y, glyph.x),
    };
    PlacedGlyph { x, y, ..glyph.clone() }
}

fn find_lines(mut glyphs: Vec<PlacedGlyph>) -> Vec<TextLine> {
    glyphs.sort_by(|a, b| b.y.total_cmp(&a.y));
    let mut lines = Vec::new();
    let mut current: Vec<PlacedGlyph> = Vec::new();
    let mut baseline = 0.0;
    for glyph in glyphs {
        let is_same = !current.is_empty() && baseline - glyph.y <= LINE_HEIGHT * glyph.size.min(largest(&current));
        if !is_same && !current.is_empty() {
            lines.push(std::mem::take(&mut current));
        }
        if current.is_empty() {
            baseline = glyph.y;
        }
        current.push(glyph);
    }
    if !current.is_empty() {
        lines.push(current);
    }
    lines.into_iter().map(segments).filter(|line| !line.segments.is_empty()).collect()
}

/// Returns the size of the first glyph. A line mostly has one size.
fn largest(glyphs: &[PlacedGlyph]) -> f32 {
    glyphs.first().map_or(1.0, |glyph| glyph.size)
}

/// Splits a line at wide gaps, and puts spaces where glyphs are apart.
fn segments(mut glyphs: Vec<PlacedGlyph>) -> TextLine {
    glyphs.sort_by(|a, b| a.x.total_cmp(&b.x));
    let y = glyphs.first().map_or(0.0, |glyph| glyph.y);
    let size = glyphs.iter().map(|glyph| glyph.size).fold(0.0, f32::max);
    let mut segments: Vec<TextSegment> = Vec::new();
    let mut last: Option<(String, f32)> = None;
    for glyph in &glyphs {
        // Bold text is sometimes drawn twice, a little apart.
        let is_twin =
            last.as_ref().is_some_and(|(text, x)| *text == glyph.text && (glyph.x - x).abs() < 0.08 * glyph.size);
        if is_twin {
            continue;
        }
        last = Some((glyph.text.clone(), glyph.x));
        let right = glyph.x + glyph.width;
        let is_blank = glyph.text.trim().is_empty();
        match segments.last_mut() {
            Some(segment) if glyph.x - segment.right < COLUMN_GAP * glyph.size => {
                let gap = glyph.x - segment.right;
                // Blanks do not widen a segment, so that several of them are a gap.
                if (is_blank || gap > SPACE_GAP * glyph.size) && !segment.text.ends_with(' ') {
                    segment.text.push(' ');
                }
                if !is_blank {
                    segment.text.push_str(&glyph.text);
                    segment.right = segment.right.max(right);
                }
            }
            _ if is_blank => {}
            _ => segments.push(TextSegment { text: glyph.text.clone(), left: glyph.x, right }),
        }
    }
    segments.iter_mut().for_each(|segment| segment.text = segment.text.trim_end().to_owned());
    TextLine { y, size, segments }
}

/// Finds the gap between two columns of prose. `None` if the page has one column.
fn find_gutter(lines: &[TextLine]) -> Option<f32> {
    let all = || lines.iter().flat_map(|line| &line.segments);
    let left = all().map(|segment| segment.left).fold(f32::INFINITY, f32::min);
    let right = all().map(|segment| segment.right).fold(f32::NEG_INFINITY, f32::max);
    let width = right - left;
    if !width.is_finite() || width <= 0.0 {
        return None;
    }
    let candidates = (30u8..=70).map(|percent| left + width * f32::from(percent) / 100.0);
    let crossing = |x: f32| all().filter(|segment| segment.left < x && segment.right > x).count();
    let gutter = candidates.min_by_key(|x| crossing(*x))?;
    let sides = [
        all().filter(|segment| segment.right <= gutter).collect::<Vec<_>>(),
        all().filter(|segment| segment.left >= gutter).collect::<Vec<_>>(),
    ];
    let is_prose = sides.iter().all(|side| {
        let letters: usize = side.iter().map(|segment| segment.text.chars().count()).sum();
        side.len() >= MIN_COLUMN_LINES && letters / side.len() >= MIN_COLUMN_LETTERS
    });
    (is_prose && crossing(gutter) * 4 <= lines.len()).then_some(gutter)
}

/// Adds both columns of each part of the page that no line crosses.
fn arrange_columns(lines: &[TextLine], gutter: f32, out: &mut String) {
    let crosses = |line: &TextLine| line.segments.iter().any(|segment| segment.left < gutter && segment.right > gutter);
    for band in lines.chunk_by(|a, b| crosses(a) == crosses(b)) {
        if band.first().is_some_and(crosses) {
            arrange_lines(band, out);
            continue;
        }
        for is_left in [true, false] {
            let side: Vec<TextLine> = band
                .iter()
                .map(|line| TextLine {
                    segments: line
                        .segments
                        .iter()
                        .filter(|segment| (segment.right <= gutter) == is_left)
                        .cloned()
                        .collect(),
                    ..line.clone()
                })
                .filter(|line| !line.segments.is_empty())
                .collect();
            arrange_lines(&side, out);
            out.push('\n');
        }
    }
}

/// Adds lines, and tables where lines have several segments below each other.
fn arrange_lines(lines: &[TextLine], out: &mut String) {
    let mut at = 0;
    while at < lines.len() {
        let length = table_length(&lines[at..]);
        if length > 1
            && let Some(rows) = table_rows(&lines[at..at + length])
        {
            push_rows(&rows, out);
            at += length;
            continue;
        }
        let Some(line) = lines.get(at) else { return };
        let is_apart = at > 0 && lines[at - 1].y - line.y > PARAGRAPH_GAP * line.size.max(lines[at - 1].size);
        if is_apart && !out.ends_with("\n\n") {
            out.push('\n');
        }
        let texts: Vec<&str> = line.segments.iter().map(|segment| segment.text.as_str()).collect();
        out.push_str(&texts.join("   "));
        out.push('\n');
        at += 1;
    }
}

/// Returns how many lines from the first on may be rows of one table. A line with one segment belongs to it if it is
/// between two rows.
fn table_length(lines: &[TextLine]) -> usize {
    let mut length = 0;
    for (index, line) in lines.iter().enumerate() {
        let is_far = index > 0 && lines[index - 1].y - line.y > 4.0 * line.size;
        if is_far {
            break;
        }
        if line.segments.len() > 1 {
            length = index + 1;
        } else if index == 0 || index > length {
            break;
        }
    }
    length
}

/// Sorts the segments of lines into columns. `None` if they do not stand below each other.
fn table_rows(lines: &[TextLine]) -> Option<Vec<Vec<String>>> {
    // Segments that overlap from above belong to one column.
    let mut columns: Vec<(f32, f32)> = Vec::new();
    let mut spans: Vec<(f32, f32)> = lines
        .iter()
        .filter(|line| line.segments.len() > 1)
        .flat_map(|line| &line.segments)
        .map(|segment| (segment.left, segment.right))
        .collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (left, right) in spans {
        match columns.last_mut() {
            Some(column) if left < column.1 => column.1 = column.1.max(right),
            _ => columns.push((left, right)),
        }
    }
    if columns.len() < 2 || columns.len() > 40 {
        return None;
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut filled = 0;
    for line in lines {
        let mut row = vec![String::new(); columns.len()];
        for segment in &line.segments {
            let middle = (segment.left + segment.right) / 2.0;
            let at = columns.iter().position(|column| segment.left < column.1 && segment.right > column.0);
            let at = at.or_else(|| columns.iter().position(|column| middle < column.1))?;
            if !row[at].is_empty() {
                row[at].push(' ');
            } else {
                filled += 1;
            }
            row[at].push_str(&segment.text);
        }
        rows.push(row);
    }
    // Lines that happen to have gaps fill few cells.
    (filled * 2 >= rows.len() * columns.len()).then_some(rows)
}

fn push_rows(rows: &[Vec<String>], out: &mut String) {
    if !out.is_empty() && !out.ends_with("\n\n") {
        out.push('\n');
    }
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| cell_text(cell)).collect();
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
        if index == 0 {
            out.push_str(&format!("|{}\n", " --- |".repeat(row.len())));
        }
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glyphs(x: f32, y: f32, text: &str) -> Vec<PlacedGlyph> {
        let place = |(index, letter): (usize, char)| PlacedGlyph {
            text: letter.to_string(),
            x: x + index as f32 * 5.0,
            y,
            width: 5.0,
            size: 10.0,
            turn: 0,
        };
        text.chars().enumerate().map(place).collect()
    }

    #[test]
    fn lines_below_each_other_become_a_table() {
        let mut page = glyphs(50.0, 700.0, "Prices of fruit");
        for (row, (name, price)) in [("Fruit", "Price"), ("Apple", "1.20"), ("Pear", "13.00")].iter().enumerate() {
            let y = 660.0 - row as f32 * 14.0;
            page.extend(glyphs(50.0, y, name));
            page.extend(glyphs(250.0 - price.len() as f32 * 5.0, y, price));
        }
        page.extend(glyphs(50.0, 560.0, "That is all."));
        assert_eq!(
            arrange(page),
            "Prices of fruit\n\n| Fruit | Price |\n| --- | --- |\n| Apple | 1.20 |\n| Pear | 13.00 |\n\n\nThat is all.\n"
                .replace("\n\n\nThat", "\n\nThat")
        );
    }

    #[test]
    fn two_columns_of_prose_are_read_one_after_the_other() {
        let mut page = Vec::new();
        for line in 0..8 {
            let y = 700.0 - line as f32 * 12.0;
            page.extend(glyphs(50.0, y, &format!("left column sentence number {line}")));
            page.extend(glyphs(300.0, y - 1.0, &format!("right column sentence number {line}")));
        }
        let text = arrange(page);
        let (left, right) = (text.find("left column sentence number 7"), text.find("right column sentence number 0"));
        assert!(left < right, "{text}");
    }

    #[test]
    fn gaps_become_spaces_and_drawn_twice_is_read_once() {
        let mut page = glyphs(50.0, 700.0, "ab");
        page.extend(glyphs(62.0, 700.0, "cd"));
        page.extend(glyphs(50.3, 700.0, "a"));
        assert_eq!(arrange(page), "ab cd\n");
    }
}
