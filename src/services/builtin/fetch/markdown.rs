//! Converts HTML to Markdown or plain text in one pass over its tags.
//!
//! Invariant: time and memory are proportional to the page. There is no tree and no recursion, because a hostile
//! page can make both arbitrarily deep and a tree much larger than the page.

mod inline;
mod table;
mod writer;

use html5gum::{DefaultEmitter, EndTag, StartTag, Token, Tokenizer};
use url::Url;

use inline::{Inline, InlineMark};
use table::{Row, Table};
use writer::MarkdownWriter;

/// Maximum size of the rendered text; the rest is cut.
const MAX_OUTPUT: usize = 4_000_000;
/// Maximum length of a link; a longer one is dropped and its text kept.
const MAX_LINK: usize = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Markdown,
    /// Without marks and addresses.
    Text,
}

pub(super) fn render(html: &str, url: &Url, style: Style) -> String {
    let (text, whole) = attempt(html, url, style, Noise::Dropped);
    // A skipped element that is never closed would hide the rest of the page.
    if whole { text } else { attempt(html, url, style, Noise::Kept).0 }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Noise {
    Dropped,
    Kept,
}

fn attempt(html: &str, url: &Url, style: Style, noise: Noise) -> (String, bool) {
    // With positions, which are not needed here, it is the same code as for apps.
    let mut emitter = DefaultEmitter::<usize>::new_with_span();
    emitter.naively_switch_states(true);
    let mut page = PageConverter::new(url.clone(), style, noise);
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) => page.start(&tag),
            Token::EndTag(tag) => page.end(&tag),
            Token::String(text) => page.text(&String::from_utf8_lossy(&text)),
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
        if page.writer.len() > MAX_OUTPUT {
            break;
        }
    }
    page.finish()
}

struct PageConverter {
    writer: MarkdownWriter,
    inline: Inline,
    style: Style,
    noise: Noise,
    base: Url,
    /// Name of the element being skipped, and how many elements of that name are open.
    skipped: Option<(String, usize)>,
    /// Number of open articles. The headers and footers of an article are content.
    articles: usize,
    title: Option<String>,
    in_title: bool,
    heading: Option<usize>,
    has_heading: bool,
    pre: Option<Pre>,
    tables: Vec<Table>,
}

struct Pre {
    text: String,
    language: String,
}

impl PageConverter {
    fn new(base: Url, style: Style, noise: Noise) -> Self {
        Self {
            writer: MarkdownWriter::new(MAX_OUTPUT),
            inline: Inline::new(style),
            style,
            noise,
            base,
            skipped: None,
            articles: 0,
            title: None,
            in_title: false,
            heading: None,
            has_heading: false,
            pre: None,
            tables: Vec::new(),
        }
    }

    fn start(&mut self, tag: &StartTag<usize>) {
        let name = String::from_utf8_lossy(&tag.name).into_owned();
        let name = name.as_str();
        if let Some((skipped, depth)) = &mut self.skipped {
            *depth += usize::from(skipped == name);
            return;
        }
        if self.noise(name, tag) {
            self.skipped = Some((name.to_owned(), 1));
            return;
        }
        match name {
            "title" => self.in_title = self.title.is_none(),
            "base" => {
                self.base =
                    attribute(tag, "href").and_then(|href| self.base.join(&href).ok()).unwrap_or(self.base.clone());
            }
            "article" | "main" => {
                self.articles += 1;
                self.boundary();
            }
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.not_in_a_cell();
                self.boundary();
                self.heading = name[1..].parse().ok();
                self.has_heading |= name == "h1";
            }
            "pre" | "xmp" | "listing" => {
                self.not_in_a_cell();
                self.boundary();
                self.pre = Some(Pre { text: String::new(), language: language(tag) });
            }
            "ul" | "ol" | "menu" => {
                self.not_in_a_cell();
                self.boundary();
                let first = attribute(tag, "start").and_then(|start| start.parse().ok()).unwrap_or(1);
                self.writer.open_list((name == "ol").then_some(first));
            }
            "li" => {
                self.boundary();
                self.writer.open_item();
            }
            "blockquote" => {
                self.not_in_a_cell();
                self.boundary();
                self.writer.open_quote();
            }
            "table" => self.open_table(),
            "tr" => self.close_cell(Row::Next),
            "td" | "th" => self.open_cell(tag),
            "hr" => {
                self.boundary();
                self.writer.block("---");
            }
            "br" => match &mut self.pre {
                Some(pre) => pre.text.push('\n'),
                None => self.inline.line_break(),
            },
            "img" => self.image(tag),
            "a" => {
                self.inline.close(&InlineMark::Link(String::new()));
                let mark = attribute(tag, "href").and_then(|href| self.link(&href));
                self.inline.open(mark.map_or(InlineMark::Plain, InlineMark::Link));
            }
            "code" if self.pre.is_some() => {
                let language = language(tag);
                if let Some(pre) = self.pre.as_mut().filter(|_| !language.is_empty()) {
                    pre.language = language;
                }
            }
            "q" => self.inline.push_collapsed("\""),
            "dt" => {
                self.boundary();
                self.inline.open(InlineMark::Strong);
            }
            "dd" => {
                self.inline.close(&InlineMark::Strong);
                self.boundary();
            }
            _ => match mark(name) {
                Some(mark) if self.pre.is_none() => self.inline.open(mark),
                Some(_) => {}
                None if is_block(name) => self.boundary(),
                None => {}
            },
        }
    }

    fn end(&mut self, tag: &EndTag<usize>) {
        let name = String::from_utf8_lossy(&tag.name).into_owned();
        let name = name.as_str();
        if let Some((skipped, depth)) = &mut self.skipped {
            *depth -= usize::from(skipped == name);
            if *depth == 0 {
                self.skipped = None;
            }
            return;
        }
        match name {
            "title" => self.in_title = false,
            "article" | "main" => {
                self.articles = self.articles.saturating_sub(1);
                self.boundary();
            }
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => self.boundary(),
            "pre" | "xmp" | "listing" => self.close_pre(),
            "ul" | "ol" | "menu" => {
                self.boundary();
                self.writer.close_list();
            }
            "li" => {
                self.boundary();
                self.writer.close_item();
            }
            "blockquote" => {
                self.boundary();
                self.writer.close_quote();
            }
            "table" => self.close_table(),
            "tr" => self.close_cell(Row::Next),
            "td" | "th" => self.close_cell(Row::Same),
            "a" => self.inline.close(&InlineMark::Link(String::new())),
            "q" => self.inline.push_collapsed("\""),
            "dt" => {
                self.inline.close(&InlineMark::Strong);
                self.boundary();
            }
            // Browsers treat `</br>` as a line break.
            "br" => self.inline.line_break(),
            _ => match mark(name) {
                Some(mark) => self.inline.close(&mark),
                None if is_block(name) => self.boundary(),
                None => {}
            },
        }
    }

    fn text(&mut self, text: &str) {
        if self.skipped.is_some() {
            return;
        }
        if self.in_title {
            let title = self.title.get_or_insert_default();
            if title.len() < 1_000 {
                title.push_str(text);
            }
        } else if let Some(pre) = &mut self.pre {
            pre.text.extend(text.chars().filter(|c| *c == '\n' || *c == '\t' || !inline::is_hidden(*c)));
        } else {
            self.inline.push_collapsed(text);
        }
    }

    /// Ends a paragraph or another block.
    fn boundary(&mut self) {
        if let Some(pre) = &mut self.pre {
            if !pre.text.is_empty() && !pre.text.ends_with('\n') {
                pre.text.push('\n');
            }
            return;
        }
        if self.tables.last().is_some_and(|table| table.in_cell && !table.layout) {
            self.inline.push_collapsed(" ");
            return;
        }
        let text = self.inline.take();
        match self.heading.take() {
            _ if text.is_empty() => {}
            Some(level) if self.style == Style::Markdown => {
                self.writer.block(&format!("{} {}", "#".repeat(level), text.replace('\n', " ")));
            }
            Some(_) | None => self.writer.block(&text),
        }
    }

    fn close_pre(&mut self) {
        let Some(pre) = self.pre.take() else { return };
        let text = pre.text.strip_prefix('\n').unwrap_or(&pre.text).trim_end();
        if text.is_empty() {
            return;
        }
        match self.style {
            Style::Markdown => {
                self.writer.block(&crate::text::code_block(&pre.language, text));
            }
            Style::Text => self.writer.block(text),
        }
    }

    fn image(&mut self, tag: &StartTag<usize>) {
        let alt = attribute(tag, "alt").unwrap_or_default();
        let alt = alt.split_whitespace().collect::<Vec<_>>().join(" ");
        if alt.is_empty() || self.pre.is_some() {
            return;
        }
        match attribute(tag, "src").and_then(|source| self.link(&source)).filter(|_| self.style == Style::Markdown) {
            Some(source) => self.inline.push_collapsed(&format!("![{alt}]({source})")),
            None => self.inline.push_collapsed(&alt),
        }
    }

    /// Returns the absolute URL of an http, https or mailto link; `None` for any other.
    fn link(&self, href: &str) -> Option<String> {
        let href = href.trim();
        if href.starts_with('#') || href.len() > MAX_LINK {
            return None;
        }
        let url = self.base.join(href).ok().filter(|url| ["http", "https", "mailto"].contains(&url.scheme()))?;
        let url = url.as_str().replace('(', "%28").replace(')', "%29");
        (url.len() <= MAX_LINK).then_some(url)
    }

    fn noise(&self, name: &str, tag: &StartTag<usize>) -> bool {
        const NEVER_TEXT: [&str; 13] = [
            "script", "style", "template", "noscript", "svg", "math", "iframe", "object", "canvas", "audio", "video",
            "select", "textarea",
        ];
        const BLOCKS: [&str; 9] = ["div", "section", "span", "ul", "nav", "aside", "header", "footer", "form"];
        if NEVER_TEXT.contains(&name) {
            return !tag.self_closing || name != "svg";
        }
        if self.noise == Noise::Kept || self.pre.is_some() {
            return false;
        }
        let is = |attribute_name: &str, value: &str| attribute(tag, attribute_name).is_some_and(|found| found == value);
        let hidden = || {
            tag.attributes.contains_key(b"hidden".as_slice()) || is("aria-hidden", "true") || is("role", "navigation")
        };
        match name {
            "nav" | "button" | "dialog" => true,
            "footer" => self.articles == 0,
            _ => BLOCKS.contains(&name) && hidden(),
        }
    }

    fn finish(mut self) -> (String, bool) {
        let whole = self.skipped.is_none();
        self.close_pre();
        while !self.tables.is_empty() {
            self.close_table();
        }
        self.boundary();
        let title = self.title.as_deref().map(|title| title.split_whitespace().collect::<Vec<_>>().join(" "));
        let body = self.writer.finish();
        let text = match title.filter(|title| !title.is_empty() && !self.has_heading) {
            Some(title) if self.style == Style::Markdown => format!("# {title}\n\n{body}"),
            Some(title) => format!("{title}\n\n{body}"),
            None => body,
        };
        (text.trim_end().to_owned(), whole)
    }
}

fn attribute(tag: &StartTag<usize>, name: &str) -> Option<String> {
    tag.attributes.get(name.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned())
}

/// Returns the language from a class such as `language-rust`, `lang-rust` or `highlight-source-rust`.
fn language(tag: &StartTag<usize>) -> String {
    let classes = attribute(tag, "class").unwrap_or_default();
    let prefixes = ["language-", "lang-", "highlight-source-"];
    let found =
        classes.split_whitespace().find_map(|class| prefixes.iter().find_map(|prefix| class.strip_prefix(prefix)));
    let plain = |language: &&str| {
        language.len() < 20 && language.chars().all(|c| c.is_ascii_alphanumeric() || "+-#".contains(c))
    };
    found.filter(plain).unwrap_or_default().to_owned()
}

fn mark(name: &str) -> Option<InlineMark> {
    match name {
        "b" | "strong" => Some(InlineMark::Strong),
        "i" | "em" | "cite" | "dfn" | "var" => Some(InlineMark::Emphasis),
        "s" | "del" | "strike" => Some(InlineMark::Struck),
        "code" | "kbd" | "samp" | "tt" => Some(InlineMark::Code),
        _ => None,
    }
}

fn is_block(name: &str) -> bool {
    const BLOCKS: [&str; 29] = [
        "p",
        "div",
        "section",
        "header",
        "footer",
        "aside",
        "address",
        "figure",
        "figcaption",
        "form",
        "fieldset",
        "legend",
        "dl",
        "dd",
        "details",
        "summary",
        "hgroup",
        "center",
        "body",
        "head",
        "html",
        "caption",
        "thead",
        "tbody",
        "tfoot",
        "option",
        "nav",
        "search",
        "dir",
    ];
    BLOCKS.contains(&name)
}

#[cfg(test)]
#[path = "markdown_tests.rs"]
mod tests;
