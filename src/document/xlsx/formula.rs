//! Moves the relative references of a formula, as the format asks for formulas that cells share.

use crate::document::cells::{MAX_COLUMNS, MAX_ROWS, cell_name, column_name, parse_cell};

/// Returns the formula of a cell that is `down` rows and `right` columns from the cell with `formula`.
pub(super) fn shift_formula(formula: &str, down: i64, right: i64) -> String {
    let mut out = String::with_capacity(formula.len());
    let letters: Vec<char> = formula.chars().collect();
    let mut at = 0;
    while let Some(letter) = letters.get(at).copied() {
        // Text and the names of sheets stay.
        if letter == '"' || letter == '\'' {
            let end =
                letters[at + 1..].iter().position(|next| *next == letter).map_or(letters.len(), |end| at + end + 2);
            out.extend(&letters[at..end]);
            at = end;
            continue;
        }
        if is_word(letter) {
            let end = letters[at..].iter().position(|next| !is_word(*next)).map_or(letters.len(), |end| at + end);
            let word: String = letters[at..end].iter().collect();
            // A function has a parenthesis, and a sheet an exclamation mark.
            let is_name = matches!(letters.get(end), Some('(' | '!' | '['));
            match shift_reference(&word, down, right).filter(|_| !is_name) {
                Some(shifted) => out.push_str(&shifted),
                None => out.push_str(&word),
            }
            at = end;
            continue;
        }
        out.push(letter);
        at += 1;
    }
    out
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '$' | '_' | '.')
}

/// Moves a reference to one cell. `None` if the word is something else.
fn shift_reference(word: &str, down: i64, right: i64) -> Option<String> {
    let digits = word.find(|letter: char| letter.is_ascii_digit())?;
    let (column_part, row_part) = word.split_at(digits);
    let is_row_fixed = column_part.ends_with('$') && column_part.len() > 1;
    let is_column_fixed = column_part.starts_with('$');
    let column_letters = column_part.trim_matches('$');
    let is_reference = column_letters.chars().all(|letter| letter.is_ascii_uppercase()) && !column_letters.is_empty();
    if !is_reference || !row_part.chars().all(|letter| letter.is_ascii_digit()) {
        return None;
    }
    let (row, column) = parse_cell(&format!("{column_letters}{row_part}"))?;
    let row = if is_row_fixed { row as i64 } else { row as i64 + down };
    let column = if is_column_fixed { column as i64 } else { column as i64 + right };
    let row = usize::try_from(row).ok().filter(|row| *row < MAX_ROWS);
    let column = usize::try_from(column).ok().filter(|column| *column < MAX_COLUMNS);
    let (Some(row), Some(column)) = (row, column) else { return Some("#REF!".to_owned()) };
    if !is_row_fixed && !is_column_fixed {
        return Some(cell_name(row, column));
    }
    let dollar = |is_fixed: bool| if is_fixed { "$" } else { "" };
    Some(format!("{}{}{}{}", dollar(is_column_fixed), column_name(column), dollar(is_row_fixed), row + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_formulas_move_their_relative_references() {
        for (formula, expected) in [
            ("A1+B$2*$C3", "B3+C$2*$C5"),
            ("SUM(A1:A10)", "SUM(B3:B12)"),
            ("'A1 b'!A1&\"A1\"", "'A1 b'!B3&\"A1\""),
            ("LOG10(Sheet2!A1)", "LOG10(Sheet2!B3)"),
            ("Tax_2020*1.5E3", "Tax_2020*1.5E3"),
        ] {
            assert_eq!(shift_formula(formula, 2, 1), expected, "{formula}");
        }
        assert_eq!(shift_formula("A1", -1, 0), "#REF!");
    }
}
