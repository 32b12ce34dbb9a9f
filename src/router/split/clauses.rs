//! Finds the clauses of a prompt. A prompt splits at `and`, `then`, commas and sentence ends that a request follows,
//! and at the items of a numbered or bulleted list. Text in quotes, code or brackets is never split.

/// The length in bytes above which a prompt is considered pasted and is not split.
const LONGEST: usize = 2_000;

/// How a clause follows the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClauseJoin {
    /// `and`, `also`, a comma: in any order.
    Beside,
    /// `then`, `;`, the next number: in this order.
    After,
    /// The next bullet of a list: a separate request, in any order.
    Item,
}

/// A part of a prompt, as a byte range.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Clause {
    start: usize,
    end: usize,
    pub(super) join: ClauseJoin,
    /// The text above a list, which applies to each of its items.
    heading: String,
}

impl Clause {
    pub(super) fn text(&self, prompt: &str) -> String {
        let own = prompt[self.start..self.end].trim().trim_end_matches([',', ';']).trim_end();
        if self.heading.is_empty() { own.to_owned() } else { format!("{} {own}", self.heading) }
    }

    /// Joins this clause and the next one.
    pub(super) fn with(&self, next: &Clause) -> Clause {
        Clause { end: next.end, ..self.clone() }
    }
}

/// Verbs that begin a request.
const VERBS: &str = "add adjust allow analyse analyze apply archive arrange ask assess audit back benchmark bring build bump bundle \
    calculate call change check choose clean clear clone collect commit compare compile compress compute configure \
    connect convert copy count create cut debug decide delete deploy describe design detect determine disable \
    diagnose discuss display document download draft draw drop edit email enable encrypt estimate evaluate examine \
    execute explain explore export extend extract fetch figure fill find fix format generate get give go group \
    harden help hide identify implement import improve include increase inspect install integrate introduce \
    investigate join launch lint list load look make map mark measure merge migrate mock model modify monitor move \
    open optimise optimize order organise organize outline package parse patch pick plan plot polish post predict \
    prepare print prioritise prioritize probe produce profile propose provision publish pull push put query read \
    rebuild recommend record redesign reduce refactor release reload remember remind remove rename render reorganise \
    reorganize repair replace report reproduce research reset resize resolve restart restore restructure restyle \
    review revert rewrite roll rotate run save scaffold scan schedule scrape search secure send set setup share show \
    simplify sketch solve sort specify split start stop store style suggest sum summarise summarize switch take tell \
    test tidy trace track train transform translate tune turn uninstall unzip update upgrade upload use validate \
    verify visualise visualize watch wire wrap write zip";

/// Polite and other words before the verb; longer phrases come before their prefixes.
const OPENERS: &[&str] = &[
    "i would like you to",
    "i'd like you to",
    "i want you to",
    "i need you to",
    "i would like to",
    "i'd like to",
    "i want to",
    "i need to",
    "we need to",
    "we have to",
    "we should",
    "you should",
    "can you",
    "could you",
    "would you",
    "will you",
    "can we",
    "let us",
    "let's",
    "please",
    "kindly",
    "just",
    "first",
    "firstly",
    "now",
    "also",
];

/// Words that order a clause after the previous one.
const ORDERING: &[&str] = &[
    "once that is done",
    "once that's done",
    "once this is done",
    "once it works",
    "when that is done",
    "when that's done",
    "when you're done",
    "when you are done",
    "once done",
    "when done",
    "after that",
    "after this",
    "afterwards",
    "afterward",
    "then",
    "finally",
    "lastly",
    "next",
];

const JOINING: &[&str] = &["and", "also", "plus", "additionally", "furthermore", "besides"];
/// In `since then` and `if … then`, the word does not express an order.
const BEFORE_THEN: &[&str] = &["since", "back", "by", "until", "till", "even", "only", "but", "or"];
/// After these words, an `and` may continue the sentence instead of starting a new request.
const SUBORDINATE: &[&str] = &[
    "that", "which", "who", "how", "why", "whether", "if", "because", "so", "while", "when", "where", "what", "unless",
    "before", "until",
];
const REFERRING: &[&str] = &["it", "them", "its", "their", "they", "result", "results"];

/// Returns true if a text refers to something before it.
pub(super) fn refers_back(text: &str) -> bool {
    words(text).iter().any(|word| REFERRING.contains(&word.lower.as_str()))
}

/// Returns the clauses of a prompt in order; together they cover all of it. Returns none if the prompt is too long.
pub(super) fn clauses(prompt: &str) -> Vec<Clause> {
    if prompt.len() > LONGEST {
        return Vec::new();
    }
    let listed = list_clauses(prompt);
    if listed.len() > 1 { listed } else { sentences(prompt) }
}

/// A word of the masked text, its position, and the gap before it.
struct ClauseWord {
    start: usize,
    lower: String,
    gap: WordGap,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum WordGap {
    /// Inside a path or a name; no clause starts here.
    None,
    Space,
    Comma,
    Semicolon,
    Sentence,
}

fn sentences(prompt: &str) -> Vec<Clause> {
    let masked = mask(prompt);
    let words = words(&masked);
    let mut clauses: Vec<Clause> = Vec::new();
    let mut start = 0;
    // The word at which the request of the current clause begins.
    let mut request = skip_openers(&words, 0);
    let mut join = ClauseJoin::Beside;
    let mut at = 1;
    while at < words.len() {
        let Some(joint) = joint(&words, request, at) else {
            at += 1;
            continue;
        };
        // Text before the first request belongs to that request.
        if is_request(&words, request) {
            clauses.push(Clause { start, end: words[at].start, join, heading: String::new() });
            (start, join) = (words[joint.begin].start, joint.join);
        }
        request = joint.verb;
        at = joint.verb + 1;
    }
    clauses.push(Clause { start, end: prompt.len(), join, heading: String::new() });
    clauses
}

struct Joint {
    join: ClauseJoin,
    /// The first word of the new clause, and its verb.
    begin: usize,
    verb: usize,
}

/// Returns the joint at this word if a new request begins there. `request` is the word where the current one began.
fn joint(words: &[ClauseWord], request: usize, at: usize) -> Option<Joint> {
    let gap = words[at].gap;
    let mut join = match gap {
        WordGap::None => return None,
        WordGap::Space => None,
        WordGap::Comma | WordGap::Sentence => Some(ClauseJoin::Beside),
        WordGap::Semicolon => Some(ClauseJoin::After),
    };
    let mut begin = at;
    loop {
        let word = words.get(begin)?;
        // `next` and `finally` express an order only at the start of a clause.
        if let Some(length) = phrase(words, begin, ORDERING) {
            let alone = word.lower == "then" || gap > WordGap::Space || begin > at;
            let before = at.checked_sub(1).map(|before| words[before].lower.as_str()).unwrap_or_default();
            let conditional = words[request.min(at)..at].iter().any(|word| word.lower == "if");
            if !alone || BEFORE_THEN.contains(&before) || (conditional && gap < WordGap::Semicolon) {
                return None;
            }
            join = Some(ClauseJoin::After);
            begin += length;
        } else if JOINING.contains(&word.lower.as_str()) {
            join = join.or(Some(ClauseJoin::Beside));
            begin += 1;
        } else {
            break;
        }
    }
    let verb = skip_openers(words, begin);
    // A lone verb shares its object with the other verb, as in `search and replace`.
    let both = verb + 1 < words.len() && at >= request + 2 && words[verb + 1].gap == WordGap::Space;
    let open = gap < WordGap::Semicolon && !(join == Some(ClauseJoin::After) && gap == WordGap::Comma);
    let torn = open && is_subordinate(&words[request.min(at)..at]);
    (is_request(words, verb) && both && !torn && words[verb].gap != WordGap::None)
        .then(|| join.map(|join| Joint { join, begin, verb }))
        .flatten()
}

/// Returns true if what follows may belong to a subordinate part, as in `write a script to fetch and store it`.
fn is_subordinate(words: &[ClauseWord]) -> bool {
    let inner = words.iter().any(|word| SUBORDINATE.contains(&word.lower.as_str()));
    inner || words.windows(2).any(|pair| pair[0].lower == "to" && is_verb(&pair[1].lower))
}

/// Returns the position of the verb after words such as `please` and `can you`.
fn skip_openers(words: &[ClauseWord], mut at: usize) -> usize {
    while let Some(length) = phrase(words, at, OPENERS) {
        at += length;
    }
    at
}

fn is_request(words: &[ClauseWord], at: usize) -> bool {
    words.get(at).is_some_and(|word| is_verb(&word.lower))
}

fn phrase(words: &[ClauseWord], at: usize, phrases: &[&str]) -> Option<usize> {
    let rest = words.get(at..).unwrap_or_default();
    let here = |phrase: &&&str| {
        let mut said = rest.iter();
        phrase.split(' ').all(|wanted| said.next().is_some_and(|word| word.lower == wanted))
    };
    phrases.iter().find(here).map(|phrase| phrase.split(' ').count())
}

fn is_verb(word: &str) -> bool {
    VERBS.split(' ').any(|verb| verb == word)
}

fn words(text: &str) -> Vec<ClauseWord> {
    let mut found: Vec<ClauseWord> = Vec::new();
    let mut last = 0;
    let mut start = None;
    let ends = text.char_indices().chain([(text.len(), ' ')]);
    for (at, c) in ends {
        match (c.is_alphanumeric() || matches!(c, '_' | '\'' | '’' | '-'), start) {
            (true, None) => start = Some(at),
            (false, Some(begin)) => {
                let lower = text[begin..at].to_lowercase().replace('’', "'");
                found.push(ClauseWord { start: begin, lower, gap: gap(&text[last..begin]) });
                (last, start) = (at, None);
            }
            _ => {}
        }
    }
    found
}

fn gap(between: &str) -> WordGap {
    let ends_sentence = |text: &str| text.trim_start().starts_with(['.', '!', '?']);
    if !between.contains(char::is_whitespace) {
        WordGap::None
    } else if between.contains('\n') || (ends_sentence(between) && between.ends_with(char::is_whitespace)) {
        WordGap::Sentence
    } else if between.contains(';') {
        WordGap::Semicolon
    } else if between.contains(',') {
        WordGap::Comma
    } else {
        WordGap::Space
    }
}

/// Finds two or more lines `1. …` or `- …` that each begin with a request. An item reaches to the next one; lines that
/// are indented further belong to it.
fn list_clauses(prompt: &str) -> Vec<Clause> {
    let masked = mask(prompt);
    let mut items: Vec<(usize, ListMarker)> = Vec::new();
    let mut clauses: Vec<Clause> = Vec::new();
    let mut at = 0;
    for line in masked.split_inclusive('\n') {
        let next = match items.first() {
            None => numbered(line, 1).or_else(|| bullet(line)),
            Some((_, ListMarker::Number { .. })) => numbered(line, items.len() + 1),
            Some((_, ListMarker::Bullet { .. })) => bullet(line),
        };
        let first = items.first().map_or(0, |(_, first)| first.indent());
        if let Some(marker) = next.filter(|marker| items.is_empty() || marker.indent() <= first) {
            items.push((at, marker));
            let join = marker.join();
            clauses.push(Clause { start: at + marker.length(), end: 0, join, heading: String::new() });
        }
        at += line.len();
    }
    let Some((first, _)) = items.first() else { return Vec::new() };
    let heading = prompt[..*first].split_whitespace().collect::<Vec<_>>().join(" ");
    let ends = items.iter().skip(1).map(|(start, _)| *start).chain([prompt.len()]);
    for (clause, end) in clauses.iter_mut().zip(ends) {
        (clause.end, clause.heading) = (end, heading.clone());
    }
    let requests = clauses.iter().all(|clause| {
        let words = words(&masked[clause.start..clause.end]);
        is_request(&words, skip_openers(&words, 0)) && words.len() > 1
    });
    if requests { clauses } else { Vec::new() }
}

/// The start of a list item.
#[derive(Clone, Copy)]
enum ListMarker {
    Number { indent: usize, length: usize },
    Bullet { indent: usize, length: usize },
}

impl ListMarker {
    fn indent(self) -> usize {
        let (Self::Number { indent, .. } | Self::Bullet { indent, .. }) = self;
        indent
    }

    /// Returns the bytes from the start of the line to the item's text.
    fn length(self) -> usize {
        let (Self::Number { length, .. } | Self::Bullet { length, .. }) = self;
        length
    }

    fn join(self) -> ClauseJoin {
        match self {
            Self::Number { .. } => ClauseJoin::After,
            Self::Bullet { .. } => ClauseJoin::Item,
        }
    }
}

/// Returns the `1. ` or `1) ` at the start of a line, if it has this number.
fn numbered(line: &str, number: usize) -> Option<ListMarker> {
    let trimmed = line.trim_start();
    let rest = trimmed.strip_prefix(&number.to_string())?.strip_prefix(['.', ')'])?;
    let marker = ListMarker::Number { indent: line.len() - trimmed.len(), length: line.len() - rest.len() };
    rest.starts_with(' ').then_some(marker)
}

/// Returns the `- `, `* ` or `• ` at the start of a line, with the box of a task list.
fn bullet(line: &str) -> Option<ListMarker> {
    let trimmed = line.trim_start();
    let rest = trimmed.strip_prefix(['-', '*', '+', '•'])?;
    if !rest.starts_with(' ') {
        return None;
    }
    // The mask replaces the three bytes of `[ ]`.
    let rest = rest.strip_prefix(" ___").filter(|rest| rest.starts_with(' ')).unwrap_or(rest);
    Some(ListMarker::Bullet { indent: line.len() - trimmed.len(), length: line.len() - rest.len() })
}

/// Replaces quotes, code and bracketed text with `_`, keeping the length in bytes.
fn mask(prompt: &str) -> String {
    let mut masked = String::with_capacity(prompt.len());
    let mut rest = prompt;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let length = opaque_length(rest, before).unwrap_or(0);
        if length > 0 {
            masked.push_str(&"_".repeat(length));
            rest = &rest[length..];
            before = '_';
        } else {
            masked.push(c);
            rest = &rest[c.len_utf8()..];
            before = c;
        }
    }
    masked
}

/// Returns the length in bytes of the quote, code or bracketed text that starts here.
fn opaque_length(rest: &str, before: char) -> Option<usize> {
    let until = |open: usize, close: &str| rest[open..].find(close).map(|at| open + at + close.len());
    if rest.starts_with("```") {
        return Some(until(3, "```").unwrap_or(rest.len()));
    }
    let apart = !before.is_alphanumeric();
    match rest.chars().next()? {
        '`' => until(1, "`"),
        '"' if apart => until(1, "\""),
        '“' => until(3, "”"),
        // An apostrophe is not a quote; neither is a quote that never ends.
        '\'' if apart => until(1, "'").filter(|length| !rest[..*length].contains('\n')),
        '(' => until(1, ")"),
        '[' => until(1, "]"),
        '{' => until(1, "}"),
        _ => None,
    }
}
