//! Checks that a page is one complete document that needs nothing from elsewhere.
//!
//! The check reads text: it finds the mistakes that models make and reports their lines. The content security
//! policy in `page.rs` enforces the limits, so a page that passes here by mistake still reaches nothing.

mod words;

use html5gum::{DefaultEmitter, EndTag, StartTag, Token, Tokenizer};

use super::network::{LinkTarget, NetworkOrigin, address};
use crate::services::builtin::answer::{ToolRefusal, truncate};

/// Maximum page size in bytes; a model writes and reads a page in one call.
pub(super) const MAX_HTML: usize = 200_000;
/// Maximum number of problems in one report.
const MAX_PROBLEMS: usize = 8;
const MAX_TITLE: usize = 100;

const VOID: [&str; 14] =
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"];
/// Elements whose end tag is optional or added by the parser; they are not checked.
const OPTIONAL_END: [&str; 20] = [
    "html", "head", "body", "p", "li", "dt", "dd", "option", "optgroup", "rt", "rp", "colgroup", "caption", "thead",
    "tbody", "tfoot", "tr", "td", "th", "noscript",
];
const ONCE: [&str; 3] = ["html", "head", "body"];
/// Elements that embed or refer to other documents.
const FOREIGN: [&str; 8] = ["frame", "frameset", "object", "embed", "applet", "portal", "fencedframe", "base"];
const ADDRESSES: [&str; 8] = ["src", "href", "xlink:href", "action", "formaction", "poster", "background", "ping"];

const INSTEAD: &str = "write it into the page, or, if the user wants the network, name the origin in `network`";

/// Returns the page's title. Fails with a list of the problems.
pub(super) fn check(html: &str, network: &[NetworkOrigin]) -> Result<String, ToolRefusal> {
    if html.len() > MAX_HTML {
        return Err(ToolRefusal::new(format!(
            "the page has {} bytes, and an app at most {MAX_HTML}; leave out what it can do without, and draw instead of \
             embedding pictures",
            html.len()
        )));
    }
    // The characters that HTML treats as white space. A browser starts the body at any other text before the
    // doctype.
    let start = html.trim_start_matches(['\t', '\n', '\u{c}', '\r', ' ']);
    if !start.get(..15).is_some_and(|start| start.eq_ignore_ascii_case("<!doctype html>")) {
        return Err(ToolRefusal::new("the page must be one whole document that begins with `<!doctype html>`"));
    }
    let mut page = PageChecker { html, network, ..PageChecker::default() };
    // Searched in the whole text: browsers and this tokenizer parse drawings differently, and no script may write
    // an iframe.
    if let Some(at) = html.to_ascii_lowercase().find("<iframe") {
        page.problem(at, "`<iframe>` is not allowed: an app is one document without others in it".to_owned());
    }
    let mut emitter = DefaultEmitter::<usize>::new_with_span();
    emitter.naively_switch_states(true);
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) => page.start(&tag),
            Token::EndTag(tag) => page.end(&tag),
            Token::String(text) => page.text(&String::from_utf8_lossy(&text.value), text.span.start),
            Token::Comment(_) => {}
            Token::Doctype(doctype) => page.doctype(doctype.span.start),
            Token::Error(error) => page.problem(error.span.start, format!("HTML error `{}`", error.value.as_str())),
        }
        if page.problems.len() >= MAX_PROBLEMS {
            break;
        }
    }
    page.finish()
}

#[derive(Default)]
struct PageChecker<'a> {
    html: &'a str,
    network: &'a [NetworkOrigin],
    problems: Vec<(usize, String)>,
    /// Open elements that must be closed, with their positions.
    open: Vec<(String, usize)>,
    /// How many of the open elements are SVG or MathML, where other rules apply.
    drawings: usize,
    seen: Vec<String>,
    doctypes: usize,
    ended: bool,
    title: Option<String>,
    /// Kind of the text in the element that was opened last.
    within: TextContext,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum TextContext {
    #[default]
    Plain,
    Title,
    Script,
    Style,
}

impl PageChecker<'_> {
    fn problem(&mut self, at: usize, what: String) {
        let before = self.html.as_bytes().iter().take(at);
        let line = before.filter(|byte| **byte == b'\n').count() + 1;
        self.problems.push((line, what));
    }

    fn doctype(&mut self, at: usize) {
        self.doctypes += 1;
        if self.doctypes > 1 {
            self.problem(at, "a second document begins".to_owned());
        }
    }

    fn start(&mut self, tag: &StartTag<usize>) {
        let name = String::from_utf8_lossy(&tag.name).into_owned();
        let at = tag.span.start;
        if self.ended {
            self.problem(at, format!("`<{name}>` comes after `</html>`"));
        }
        if ONCE.contains(&name.as_str()) {
            if self.seen.contains(&name) {
                self.problem(at, format!("a second `<{name}>` begins"));
            }
            self.seen.push(name.clone());
        }
        match forbidden(&name, tag) {
            Some(why) => self.problem(at, why),
            None => {
                for (attribute, value) in &tag.attributes {
                    let (attribute, value) =
                        (String::from_utf8_lossy(attribute), String::from_utf8_lossy(&value.value));
                    self.attribute(&name, &attribute, &value, at);
                }
            }
        }
        let in_drawing = self.drawings > 0;
        self.within = match name.as_str() {
            "script" if is_code(tag) => TextContext::Script,
            "style" => TextContext::Style,
            "title" if !in_drawing && self.title.is_none() => TextContext::Title,
            _ => TextContext::Plain,
        };
        let closed = VOID.contains(&name.as_str()) || (tag.self_closing && (in_drawing || name == "svg"));
        if !closed && !OPTIONAL_END.contains(&name.as_str()) {
            self.drawings += usize::from(is_drawing(&name));
            self.open.push((name, at));
        }
    }

    fn attribute(&mut self, element: &str, name: &str, value: &str, at: usize) {
        if name == "style" || value.contains("url(") {
            self.style(value, at);
        }
        if name.starts_with("on") {
            self.script(value, at);
        } else if matches!(name, "srcset" | "imagesrcset" | "manifest") {
            self.problem(at, format!("`{name}` is not allowed: an app has no other files; use `src` with a data URI"));
        } else if ADDRESSES.contains(&name) {
            let link = matches!(element, "a" | "area" | "form" | "button") || name == "formaction" || name == "ping";
            let network = if link || element == "link" { &[] } else { self.network };
            let what = format!("{element} {name}");
            let problem = match address(value, network) {
                LinkTarget::Within | LinkTarget::Allowed => return,
                LinkTarget::Beside => {
                    format!("`{what}` names another file or page, and an app has none: write it into the page")
                }
                LinkTarget::Remote(origin) if link => {
                    format!("`{what}` leads to {origin}, and an app cannot leave its page; show the address as text")
                }
                LinkTarget::Remote(origin) => format!("`{what}` needs {origin}: {INSTEAD}"),
            };
            self.problem(at, problem);
        }
    }

    fn text(&mut self, text: &str, at: usize) {
        match self.within {
            TextContext::Script => self.script(text, at),
            TextContext::Style => self.style(text, at),
            TextContext::Title => self.title = Some(text.split_whitespace().collect::<Vec<_>>().join(" ")),
            TextContext::Plain if self.ended && !text.trim().is_empty() => {
                self.problem(at, "text comes after `</html>`".to_owned());
            }
            TextContext::Plain => {}
        }
    }

    fn script(&mut self, code: &str, at: usize) {
        for found in words::check_script(code, self.network) {
            self.problem(at + found.at, found.problem);
        }
    }

    fn style(&mut self, rules: &str, at: usize) {
        for found in words::check_style(rules, self.network) {
            self.problem(at + found.at, found.problem);
        }
    }

    fn end(&mut self, tag: &EndTag<usize>) {
        let name = String::from_utf8_lossy(&tag.name).into_owned();
        self.within = TextContext::Plain;
        if name == "html" {
            self.ended = true;
        }
        if OPTIONAL_END.contains(&name.as_str()) {
            return;
        }
        match self.open.iter().rposition(|(open, _)| *open == name) {
            Some(place) => {
                let closed = self.open.split_off(place);
                self.drawings -= closed.iter().filter(|(name, _)| is_drawing(name)).count();
                for (inner, at) in closed.into_iter().skip(1).take(MAX_PROBLEMS) {
                    self.problem(at, format!("`<{inner}>` is not closed before `</{name}>`"));
                }
            }
            None => self.problem(tag.span.start, format!("`</{name}>` closes nothing that is open")),
        }
    }

    fn finish(mut self) -> Result<String, ToolRefusal> {
        for (name, at) in std::mem::take(&mut self.open).into_iter().take(MAX_PROBLEMS) {
            self.problem(at, format!("`<{name}>` is never closed"));
        }
        let title = self.title.as_deref().unwrap_or_default();
        if title.is_empty() && self.problems.is_empty() {
            self.problems.push((1, "the page has no `<title>`; give it the app's name".to_owned()));
        }
        if self.problems.is_empty() {
            return Ok(truncate(title, MAX_TITLE).to_owned());
        }
        self.problems.sort();
        self.problems.dedup();
        let lines: Vec<_> =
            self.problems.iter().take(MAX_PROBLEMS).map(|(line, what)| format!("line {line}: {what}")).collect();
        Err(ToolRefusal::new(format!("the page was not kept; correct {}", lines.join("\n"))))
    }
}

/// Returns why the element is not allowed in an app; `None` if it is.
fn forbidden(name: &str, tag: &StartTag<usize>) -> Option<String> {
    let value = |key: &str| attribute(tag, key).unwrap_or_default();
    match name {
        _ if FOREIGN.contains(&name) => {
            Some(format!("`<{name}>` is not allowed: an app is one document without others in it"))
        }
        "script" if attribute(tag, "src").is_some() => {
            Some("`<script src>` is not allowed: write the script into the page".to_owned())
        }
        "script" if matches!(value("type").as_str(), "importmap" | "speculationrules") => {
            Some("a script that makes the browser load something is not allowed".to_owned())
        }
        "link" if !value("rel").split_whitespace().any(|word| word == "icon") => {
            let rel = value("rel");
            Some(format!("`<link rel=\"{}\">` is not allowed: styles and fonts stand in the page", truncate(&rel, 40)))
        }
        "meta" if !matches!(value("http-equiv").as_str(), "" | "content-type" | "x-ua-compatible") => {
            let equiv = value("http-equiv");
            Some(format!("`<meta http-equiv=\"{}\">` is not allowed; leave it out", truncate(&equiv, 40)))
        }
        _ => None,
    }
}

fn attribute(tag: &StartTag<usize>, key: &str) -> Option<String> {
    let value = tag.attributes.get(key.as_bytes())?;
    Some(String::from_utf8_lossy(&value.value).trim().to_ascii_lowercase())
}

fn is_drawing(name: &str) -> bool {
    matches!(name, "svg" | "math")
}

/// Returns whether the script element contains code and not data. The names are those in all JavaScript MIME types
/// that browsers accept.
fn is_code(tag: &StartTag<usize>) -> bool {
    let names = ["javascript", "ecmascript", "jscript", "livescript"];
    attribute(tag, "type")
        .is_none_or(|kind| kind.is_empty() || kind == "module" || names.iter().any(|name| kind.contains(name)))
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
