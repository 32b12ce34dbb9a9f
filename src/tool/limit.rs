//! Limits the total size of a tool's result: text, resources, links, images and structured content.
//!
//! Invariant: a note replaces each omitted part, and small parts stay complete even if others are large.

use serde_json::Value;

use super::ToolOutcome;
use crate::conversation::Content;

/// Bytes of text in all parts, without the notes about omitted parts.
const MAX_TEXT: usize = 400_000;
/// Bytes of images, audio and files in all parts, as base64.
const MAX_BINARY: usize = 5_000_000;
/// Bytes of structured content as JSON. It often repeats the text.
const MAX_STRUCTURED: usize = 400_000;
const MAX_PARTS: usize = 500;
/// Bytes of a link, and of a resource without its text, as JSON.
const MAX_AROUND: usize = 16_000;
/// Bytes of `_meta` and of annotations, as JSON.
const MAX_META: usize = 64_000;

impl ToolOutcome {
    /// Removes everything above the limits and adds notes about it.
    #[must_use]
    pub fn limit(mut self) -> Self {
        let parts = self.content.len();
        self.content.truncate(MAX_PARTS);
        let mut binary_left = MAX_BINARY;
        for content in &mut self.content {
            limit_binary(content, &mut binary_left);
            limit_around(content);
        }
        self.limit_text();
        if parts > MAX_PARTS {
            self.content.push(Content::Text(format!("[… {} more parts left out …]", parts - MAX_PARTS)));
        }
        if let Some(size) = self.structured.as_ref().map(json_size).filter(|size| *size > MAX_STRUCTURED) {
            self.structured = None;
            let note = format!("[… structured content of {size} bytes left out; at most {MAX_STRUCTURED} are taken …]");
            self.content.push(Content::Text(note));
        }
        self.meta = self.meta.filter(|meta| json_size(meta) <= MAX_META);
        let mut annotations_left = MAX_META;
        self.annotations.retain(|part, annotation| {
            let fits = json_size(annotation) <= annotations_left && *part < MAX_PARTS;
            annotations_left = annotations_left.saturating_sub(json_size(annotation));
            fits
        });
        self
    }

    fn limit_text(&mut self) {
        let mut sizes: Vec<_> = self.content.iter_mut().filter_map(text_of).map(|text| text.len()).collect();
        if sizes.iter().sum::<usize>() <= MAX_TEXT {
            return;
        }
        let share = fair_share(&mut sizes);
        self.content.iter_mut().filter_map(text_of).for_each(|text| cut(text, share));
    }
}

/// Returns the maximum bytes per text such that all fit into [`MAX_TEXT`] and short texts stay complete.
fn fair_share(sizes: &mut [usize]) -> usize {
    sizes.sort_unstable();
    let mut left = MAX_TEXT;
    for (nth, size) in sizes.iter().enumerate() {
        let share = left / (sizes.len() - nth);
        if *size > share {
            return share;
        }
        left -= size;
    }
    MAX_TEXT
}

/// Removes the middle of a text.
fn cut(text: &mut String, limit: usize) {
    if text.len() <= limit {
        return;
    }
    let head = (0..=limit * 3 / 4).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let tail = (text.len() - limit / 4..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let left_out = tail - head;
    *text = format!("{}\n[… {left_out} bytes left out: the result is too long …]\n{}", &text[..head], &text[tail..]);
}

/// Returns the text of a part, if it has one.
fn text_of(content: &mut Content) -> Option<&mut String> {
    match content {
        Content::Text(text) | Content::Injected(text) => Some(text),
        Content::Resource(value) => match resource(value).get_mut("text") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        Content::Image { .. } | Content::Audio { .. } | Content::Link(_) => None,
    }
}

fn resource(value: &mut Value) -> &mut Value {
    if value.get("resource").is_some() { &mut value["resource"] } else { value }
}

fn limit_binary(content: &mut Content, left: &mut usize) {
    let (size, kind) = match content {
        Content::Image { mime, data } | Content::Audio { mime, data } => (data.len(), mime.clone()),
        Content::Resource(value) => match resource(value).get("blob").and_then(Value::as_str) {
            Some(blob) => (blob.len(), "a file".to_owned()),
            None => return,
        },
        Content::Text(_) | Content::Injected(_) | Content::Link(_) => return,
    };
    match left.checked_sub(size) {
        Some(rest) => *left = rest,
        None => {
            let kind: String = kind.chars().take(100).collect();
            *content = Content::Text(format!(
                "[… {kind} of {size} bytes left out; images and files of a result have at most {MAX_BINARY} bytes …]"
            ));
        }
    }
}

/// Replaces a link or resource whose metadata is too large.
fn limit_around(content: &mut Content) {
    let around = match content {
        Content::Link(value) => json_size(value),
        Content::Resource(value) => {
            let inner = resource(value);
            let text = |key: &str| inner.get(key).map_or(0, json_size);
            let texts = text("text") + text("blob");
            json_size(value).saturating_sub(texts)
        }
        Content::Image { mime, .. } | Content::Audio { mime, .. } => mime.len(),
        Content::Text(_) | Content::Injected(_) => 0,
    };
    if around > MAX_AROUND {
        *content = Content::Text(format!("[… a part with {around} bytes about itself left out …]"));
    }
}

fn json_size(value: &Value) -> usize {
    value.to_string().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn size(outcome: &ToolOutcome) -> usize {
        serde_json::to_string(outcome).unwrap().len()
    }

    #[test]
    fn a_result_within_the_limits_stays_as_it_is() {
        let outcome = ToolOutcome {
            content: vec![
                Content::text("x".repeat(390_000)),
                Content::Image { mime: "image/png".into(), data: "A".repeat(4_000_000) },
                Content::Resource(json!({"type": "resource", "resource": {"uri": "file:///a", "text": "y"}})),
                Content::Link(json!({"uri": "file:///a", "name": "a"})),
            ],
            structured: Some(json!({"a": "x".repeat(390_000)})),
            annotations: [(0, json!({"audience": ["user"]}))].into(),
            meta: Some(json!({"a": 1})),
            ..ToolOutcome::default()
        };
        assert_eq!(outcome.clone().limit(), outcome);
    }

    #[test]
    fn all_parts_together_have_one_limit() {
        let resource = |key: &str| Content::Resource(json!({"resource": {"uri": "u", key: "é".repeat(1_000_000)}}));
        let image = || Content::Image { mime: "image/png".into(), data: "A".repeat(3_000_000) };
        let many = |part: &dyn Fn() -> Content, count| (0..count).map(|_| part()).collect::<Vec<_>>();
        for (content, limit) in [
            (many(&|| Content::text("x".repeat(49_000)), 200), 450_000),
            (many(&|| resource("text"), 8), 450_000),
            (many(&|| resource("blob"), 8), 5_500_000),
            (many(&image, 4), 5_500_000),
            (many(&|| Content::text(""), 1_000_000), 450_000),
            (many(&|| Content::Link(json!({"uri": "u".repeat(1_000_000)})), 8), 450_000),
        ] {
            let limited = ToolOutcome { content, ..ToolOutcome::default() }.limit();
            assert!(size(&limited) <= limit, "{}", size(&limited));
            assert!(limited.all_text().contains("left out") || size(&limited) > 300_000);
        }
        let structured =
            ToolOutcome { structured: Some(json!(vec![1; 1_000_000])), ..ToolOutcome::text("short") }.limit();
        assert_eq!(structured.structured, None);
        assert!(structured.all_text().starts_with("short\n[… structured content of 2000001 bytes left out"));
    }

    #[test]
    fn short_parts_stay_whole_if_others_are_long() {
        let content = vec![Content::text("first"), Content::text("x".repeat(1_000_000)), Content::text("last")];
        let limited = ToolOutcome { content, ..ToolOutcome::default() }.limit();
        assert_eq!((limited.content[0].as_text(), limited.content[2].as_text()), (Some("first"), Some("last")));
        let long = limited.content[1].as_text().unwrap();
        assert!(long.starts_with("xxx") && long.ends_with("xxx"), "{} bytes", long.len());
        assert!(
            long.contains("\n[… 600010 bytes left out: the result is too long …]\n"),
            "{}",
            &long[299_980..300_080]
        );
    }
}
