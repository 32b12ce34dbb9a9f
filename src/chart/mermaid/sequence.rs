//! Reads and draws sequence diagrams.

use super::syntax::label_text;
use super::{Line, fail};
use crate::chart::canvas::{Anchor, FONT, Label, PathData, Rect, fit, measure, wrap};
use crate::chart::error::ChartError;
use crate::chart::{ChartSheet, axes, color};

const MAX_PARTICIPANTS: usize = 40;
const MAX_EVENTS: usize = 1_000;
const MAX_LABEL: f64 = 260.0;
const LINE: f64 = 16.0;
/// Longest first, so that a prefix of an arrow is not taken for it.
const ARROWS: [(&str, bool, bool); 10] = [
    ("<<-->>", true, true),
    ("<<->>", false, true),
    ("-->>", true, true),
    ("->>", false, true),
    ("--x", true, true),
    ("--)", true, true),
    ("-->", true, false),
    ("-x", false, true),
    ("-)", false, true),
    ("->", false, false),
];

#[derive(Debug)]
enum SequenceEvent {
    Message {
        from: usize,
        to: usize,
        text: String,
        dotted: bool,
        head: bool,
    },
    Note {
        from: usize,
        to: usize,
        side: NoteSide,
        text: String,
    },
    Open {
        kind: String,
        text: String,
    },
    /// `else`, `and` or `option` inside a block.
    Divide {
        text: String,
    },
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoteSide {
    Over,
    Left,
    Right,
}

#[derive(Debug, Default)]
struct Sequence {
    ids: Vec<String>,
    names: Vec<String>,
    events: Vec<SequenceEvent>,
}

impl Sequence {
    fn participant(&mut self, id: &str) -> usize {
        let id = id.trim().trim_start_matches(['+', '-']).trim();
        self.ids.iter().position(|known| known == id).unwrap_or_else(|| {
            self.ids.push(id.to_owned());
            self.names.push(label_text(id));
            self.ids.len() - 1
        })
    }
}

pub(super) fn draw(lines: &[Line<'_>], title: &str) -> Result<ChartSheet, ChartError> {
    let sequence = read(lines)?;
    if sequence.ids.is_empty() {
        return Ok(axes::empty(title));
    }
    Ok(SequenceDrawing::new(&sequence, title).draw(&sequence))
}

fn read(lines: &[Line<'_>]) -> Result<Sequence, ChartError> {
    let mut sequence = Sequence::default();
    let mut depth = 0;
    let mut number = None;
    for &(line, text) in lines {
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match word {
            "participant" | "actor" | "create" => {
                let rest = rest.trim_start_matches("participant ").trim_start_matches("actor ");
                let (id, name) = rest.split_once(" as ").unwrap_or((rest, rest));
                let index = sequence.participant(id);
                sequence.names[index] = label_text(name);
            }
            "autonumber" => number = Some(0),
            "activate" | "deactivate" | "destroy" | "box" | "title" | "title:" | "links" | "link" => {}
            "loop" | "alt" | "opt" | "par" | "critical" | "break" | "rect" => {
                depth += 1;
                let text = if word == "rect" { String::new() } else { label_text(rest) };
                sequence.events.push(SequenceEvent::Open { kind: word.to_owned(), text });
            }
            "else" | "and" | "option" => {
                if depth == 0 {
                    return fail(line, format!("`{word}` outside of a block such as `alt` or `par`"));
                }
                sequence.events.push(SequenceEvent::Divide { text: label_text(rest) });
            }
            "end" => {
                // A `box` of participants also ends here, and has no frame.
                if depth > 0 {
                    depth -= 1;
                    sequence.events.push(SequenceEvent::Close);
                }
            }
            "Note" | "note" => read_note(&mut sequence, line, rest)?,
            _ => read_message(&mut sequence, line, text, &mut number)?,
        }
        if sequence.ids.len() > MAX_PARTICIPANTS || sequence.events.len() > MAX_EVENTS {
            return fail(
                line,
                format!("more than {MAX_PARTICIPANTS} participants or {MAX_EVENTS} events; split the diagram"),
            );
        }
    }
    if depth > 0 {
        return fail(lines.last().map_or(1, |line| line.0), "a block has no `end`");
    }
    Ok(sequence)
}

fn read_note(sequence: &mut Sequence, line: usize, rest: &str) -> Result<(), ChartError> {
    let sides = [("over ", NoteSide::Over), ("left of ", NoteSide::Left), ("right of ", NoteSide::Right)];
    let found = sides.into_iter().find_map(|(word, side)| Some((side, rest.strip_prefix(word)?)));
    let Some((side, (who, text))) = found.and_then(|(side, rest)| Some((side, rest.split_once(':')?))) else {
        return fail(line, "a note is `Note over A,B: text`, `Note left of A: text` or `Note right of A: text`");
    };
    let (from, to) = who.split_once(',').unwrap_or((who, who));
    let (from, to) = (sequence.participant(from), sequence.participant(to));
    sequence.events.push(SequenceEvent::Note { from: from.min(to), to: from.max(to), side, text: label_text(text) });
    Ok(())
}

fn read_message(
    sequence: &mut Sequence,
    line: usize,
    text: &str,
    number: &mut Option<usize>,
) -> Result<(), ChartError> {
    let (head, label) = text.split_once(':').unwrap_or((text, ""));
    let places = ARROWS.iter().filter_map(|arrow| Some((head.find(arrow.0)?, arrow)));
    let first = places.min_by_key(|(at, arrow)| (*at, std::cmp::Reverse(arrow.0.len())));
    let Some((at, (arrow, dotted, has_head))) = first else {
        let near: String = text.chars().take(30).collect();
        return fail(line, format!("cannot read `{near}`; a message is `Alice->>Bob: text`"));
    };
    let (from, to) = (&head[..at], &head[at + arrow.len()..]);
    if from.trim().is_empty() || to.trim().trim_start_matches(['+', '-']).is_empty() {
        return fail(line, format!("`{arrow}` needs a participant on both sides"));
    }
    let (from, to) = (sequence.participant(from), sequence.participant(to));
    let mut text = label_text(label);
    if let Some(number) = number {
        *number += 1;
        text = format!("{number}. {text}");
    }
    sequence.events.push(SequenceEvent::Message { from, to, text, dotted: *dotted, head: *has_head });
    Ok(())
}

/// The drawing with the places of the participants.
struct SequenceDrawing {
    drawing: ChartSheet,
    columns: Vec<f64>,
    y: f64,
    top: f64,
}

impl SequenceDrawing {
    fn new(sequence: &Sequence, title: &str) -> Self {
        let count = sequence.ids.len();
        let half = |index: usize| (measure(&sequence.names[index], FONT).min(150.0) + 28.0).max(90.0) / 2.0;
        let mut gaps: Vec<f64> = (1..count).map(|index| half(index - 1) + half(index) + 24.0).collect();
        let (mut left, mut right) = (half(0) + 24.0, half(count - 1) + 24.0);
        for event in &sequence.events {
            let (from, to, need) = match event {
                SequenceEvent::Message { from, to, text, .. } => {
                    (*from, *to, measure(text, FONT).min(MAX_LABEL) + 34.0)
                }
                SequenceEvent::Note { from, to, side, text } => {
                    let need = measure(text, 11.0).min(MAX_LABEL) + 40.0;
                    match side {
                        NoteSide::Right => (*from, *from, need),
                        NoteSide::Left if *from == 0 => {
                            left = left.max(need + 10.0);
                            continue;
                        }
                        NoteSide::Left => (*from - 1, *from, need + 20.0),
                        NoteSide::Over => {
                            // A note over one participant reaches to both sides.
                            left = if *from == 0 { left.max(need / 2.0 + 16.0) } else { left };
                            right = if *to + 1 == count { right.max(need / 2.0 + 16.0) } else { right };
                            (*from, *to, if from == to { need / 2.0 } else { need })
                        }
                    }
                }
                SequenceEvent::Open { .. } | SequenceEvent::Divide { .. } | SequenceEvent::Close => continue,
            };
            let (from, to) = (from.min(to), from.max(to));
            if from == to {
                match gaps.get_mut(from) {
                    Some(gap) => *gap = gap.max(need + 34.0),
                    None => right = right.max(need + 44.0),
                }
                continue;
            }
            let have: f64 = gaps[from..to].iter().sum();
            if have < need {
                let more = (need - have) / (to - from) as f64;
                gaps[from..to].iter_mut().for_each(|gap| *gap += more);
            }
        }
        let mut columns = vec![left];
        for gap in &gaps {
            columns.push(columns[columns.len() - 1] + gap);
        }
        let width = (columns[count - 1] + right).max(360.0);
        let mut probe = ChartSheet::new(width, 4_000.0);
        let top = axes::header(&mut probe, title, &[]) + 30.0;
        let height = top + 60.0 + sequence.events.iter().map(event_height).sum::<f64>() + 40.0;
        let mut drawing = ChartSheet::new(width, height);
        axes::header(&mut drawing, title, &[]);
        Self { drawing, columns, y: top + 34.0, top }
    }

    fn draw(mut self, sequence: &Sequence) -> ChartSheet {
        let bottom = self.drawing.canvas.height - 36.0;
        for index in 0..sequence.ids.len() {
            let x = self.columns[index];
            self.drawing.canvas.line((x, self.top), (x, bottom), "class=\"grid\" stroke-dasharray=\"4 4\"");
        }
        // Frames come first, so that they are below the messages.
        self.draw_frames(&sequence.events);
        for event in &sequence.events {
            self.draw_event(event);
        }
        for (index, name) in sequence.names.iter().enumerate() {
            self.draw_participant(index, name, self.top);
            self.draw_participant(index, name, bottom);
        }
        self.drawing
    }

    fn draw_participant(&mut self, index: usize, name: &str, y: f64) {
        let text = fit(name, FONT, 150.0);
        let width = (measure(&text, FONT) + 24.0).max(80.0);
        let rect = Rect { x: self.columns[index] - width / 2.0, y: y - 15.0, w: width, h: 30.0 };
        self.drawing.canvas.rect(rect, "rx=\"4\" class=\"node\"", name);
        self.drawing.canvas.label(Label::new(&text, self.columns[index], y, Anchor::Middle));
    }

    fn draw_frames(&mut self, events: &[SequenceEvent]) {
        let mut open: Vec<f64> = Vec::new();
        let mut y = self.y;
        for event in events {
            let depth = open.len() as f64;
            let inset = 8.0 + depth * 6.0;
            let width = self.drawing.canvas.width - 2.0 * inset;
            match event {
                SequenceEvent::Open { .. } => open.push(y + 4.0),
                SequenceEvent::Divide { .. } => {
                    let at = y + 6.0;
                    let style = "class=\"axis\" stroke-dasharray=\"5 4\" stroke-opacity=\"0.7\"";
                    self.drawing.canvas.line((inset - 6.0, at), (inset - 6.0 + width + 12.0, at), style);
                }
                SequenceEvent::Close => {
                    if let Some(start) = open.pop() {
                        let inset = inset - 6.0;
                        let w = self.drawing.canvas.width - 2.0 * inset;
                        let rect = Rect { x: inset, y: start, w, h: y + event_height(event) - 6.0 - start };
                        self.drawing.canvas.rect(
                            rect,
                            "fill=\"none\" class=\"axis\" stroke-opacity=\"0.7\" rx=\"3\"",
                            "",
                        );
                    }
                }
                SequenceEvent::Message { .. } | SequenceEvent::Note { .. } => {}
            }
            y += event_height(event);
        }
    }

    fn draw_event(&mut self, event: &SequenceEvent) {
        let y = self.y;
        self.y += event_height(event);
        match event {
            SequenceEvent::Message { from, to, text, dotted, head } => {
                self.draw_message(self.columns[*from], self.columns[*to], text, *dotted, *head, y);
            }
            SequenceEvent::Note { from, to, side, text } => {
                let lines = wrap(text, 11.0, MAX_LABEL, 4);
                let w = lines.iter().map(|line| measure(line, 11.0)).fold(40.0, f64::max) + 20.0;
                let (a, b) = (self.columns[*from], self.columns[*to]);
                let (x, w) = match side {
                    NoteSide::Right => (a + 8.0, w),
                    NoteSide::Left => (a - 8.0 - w, w),
                    NoteSide::Over => {
                        let w = w.max(b - a + 40.0);
                        ((a + b - w) / 2.0, w)
                    }
                };
                let x = x.clamp(2.0, (self.drawing.canvas.width - w - 2.0).max(2.0));
                let rect = Rect { x, y: y + 2.0, w, h: lines.len() as f64 * LINE + 8.0 };
                self.drawing.canvas.rect(rect, "class=\"bg\"", "");
                let style = format!("fill=\"{0}\" fill-opacity=\"0.2\" stroke=\"{0}\"", color::series(4));
                self.drawing.canvas.rect(rect, &style, "");
                for (index, line) in lines.iter().enumerate() {
                    let at = rect.y + 4.0 + (index as f64 + 0.5) * LINE;
                    self.drawing.canvas.label(Label::new(line, x + w / 2.0, at, Anchor::Middle).size(11.0));
                }
            }
            SequenceEvent::Open { kind, text } => {
                let text = if text.is_empty() { kind.clone() } else { format!("{kind} [{text}]") };
                let text = fit(&text, 11.0, self.drawing.canvas.width * 0.7);
                self.frame_label(&text, y + 14.0);
            }
            SequenceEvent::Divide { text } if !text.is_empty() => {
                let text = fit(&format!("[{text}]"), 11.0, self.drawing.canvas.width * 0.7);
                self.frame_label(&text, y + 16.0);
            }
            SequenceEvent::Divide { .. } | SequenceEvent::Close => {}
        }
    }

    fn frame_label(&mut self, text: &str, y: f64) {
        let label = Label::new(text, 30.0, y, Anchor::Start).size(11.0).class("b");
        self.drawing.canvas.rect(label.bounds(), "class=\"bg\" fill-opacity=\"0.9\"", "");
        self.drawing.canvas.label(label);
    }

    fn draw_message(&mut self, from: f64, to: f64, text: &str, dotted: bool, head: bool, y: f64) {
        let lines = wrap(text, FONT, MAX_LABEL, 3);
        let at = y + lines.len() as f64 * LINE + 6.0;
        let dash = if dotted { " stroke-dasharray=\"5 4\"" } else { "" };
        let style = format!("fill=\"none\" class=\"axis\" stroke-width=\"1.4\"{dash}");
        let (middle, anchor, tip, back) = if from == to {
            let points = [(from + 34.0, at), (from + 34.0, at + 16.0), (from + 4.0, at + 16.0)];
            let path = PathData::default().to('M', &[(from, at)]).to('L', &points).end();
            self.drawing.canvas.path(&path, &style, "");
            (from + 10.0, Anchor::Start, (from + 1.0, at + 16.0), 1.0)
        } else {
            let path = PathData::default().to('M', &[(from, at), (to, at)]).end();
            self.drawing.canvas.path(&path, &style, "");
            ((from + to) / 2.0, Anchor::Middle, (to, at), (from - to).signum())
        };
        if head {
            let points = [tip, (tip.0 + 9.0 * back, tip.1 - 4.5), (tip.0 + 9.0 * back, tip.1 + 4.5)];
            self.drawing.canvas.path(&PathData::default().to('M', &points).close(), "class=\"solid\"", "");
        }
        for (index, line) in lines.iter().enumerate() {
            let label = Label::new(line, middle, y + 2.0 + (index as f64 + 0.5) * LINE, anchor);
            // The background keeps the lines of other participants out of the text.
            self.drawing.canvas.rect(label.bounds(), "class=\"bg\" fill-opacity=\"0.85\"", "");
            self.drawing.canvas.label(label);
        }
    }
}

fn event_height(event: &SequenceEvent) -> f64 {
    match event {
        SequenceEvent::Message { from, to, text, .. } => {
            let lines = wrap(text, FONT, MAX_LABEL, 3).len() as f64;
            lines * LINE + if from == to { 34.0 } else { 18.0 }
        }
        SequenceEvent::Note { text, .. } => wrap(text, 11.0, MAX_LABEL, 4).len() as f64 * LINE + 18.0,
        SequenceEvent::Open { .. } => 28.0,
        SequenceEvent::Divide { .. } => 26.0,
        SequenceEvent::Close => 14.0,
    }
}
