//! Visits the words of a file, with what is before and after each.

use super::language::SourceLanguage;
use super::word_place::{LeftContext, MAY_CALL, MAY_DEFINE_CALLABLE, MAY_DEFINE_OTHER, WordPlace, is_word_byte};
use super::word_rules::meaning_of;

const MAY_BE_ANYTHING: u32 = MAY_DEFINE_CALLABLE | MAY_DEFINE_OTHER | MAY_CALL;

/// Calls `visit` for each word in the order of the text, with its flags. Returns flags that all words have: in a text that
/// calls the result of an expression, as in `(a.b)(c)`, any word can be the name of a function.
pub(super) fn visit_words<'a>(language: SourceLanguage, source: &'a [u8], mut visit: impl FnMut(&'a [u8], u32)) -> u32 {
    let before = LeftContext { is_line_start: true, ..LeftContext::default() };
    let mut scan = WordScan { source, marks: LanguageMarks::of(language), before, ..WordScan::default() };
    let mut at = 0;
    while let Some(byte) = source.get(at) {
        if !is_word_byte(*byte) {
            scan.pass(at, *byte);
            at += 1;
            continue;
        }
        let start = at;
        while source.get(at).is_some_and(|byte| is_word_byte(*byte)) {
            at += 1;
        }
        let place = WordPlace { source, start, end: at, before: scan.before, next: next_bytes(source, at) };
        visit(place.word(), meaning_of(language, &place));
        // `1else` are a number and a word.
        let digits = place.word().iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0
            && let Some(rest) = place.word().get(digits..).filter(|rest| !rest.is_empty())
        {
            visit(rest, MAY_BE_ANYTHING);
        }
        if language == SourceLanguage::C && is_other_language(&place) {
            scan.shared_flags |= MAY_BE_ANYTHING;
        }
        scan.pass_word(place.word(), start);
    }
    scan.shared_flags
}

/// Returns true if a word shows that a C header is written in C++, which the parser of C does not understand.
fn is_other_language(place: &WordPlace<'_>) -> bool {
    place.before.is_line_start && matches!(place.word(), b"template" | b"namespace" | b"class" | b"using")
}

fn next_bytes(source: &[u8], at: usize) -> [u8; 2] {
    let rest = source.get(at..).unwrap_or_default().trim_ascii_start();
    [rest.first().copied().unwrap_or_default(), rest.get(1).copied().unwrap_or_default()]
}

/// How the text calls the result of an expression.
#[derive(Debug, Clone, Copy, Default)]
enum IndirectCalls {
    #[default]
    Never,
    /// The parenthesis follows at once. After a space, it contains results.
    Adjacent,
    /// Space may be before the parenthesis.
    Spaced,
}

/// What begins a comment that ends with the line, and other marks.
#[derive(Debug, Clone, Copy, Default)]
struct LanguageMarks {
    indirect_calls: IndirectCalls,
    has_slashes: bool,
    has_hash: bool,
    /// A line that begins with `#` is not part of the code around it.
    has_directives: bool,
}

impl LanguageMarks {
    fn of(language: SourceLanguage) -> Self {
        let indirect_calls = match language {
            SourceLanguage::Java | SourceLanguage::Bash => IndirectCalls::Never,
            SourceLanguage::Go => IndirectCalls::Adjacent,
            _ => IndirectCalls::Spaced,
        };
        let (has_slashes, has_hash, has_directives) = match language {
            SourceLanguage::Bash | SourceLanguage::Python => (false, true, false),
            SourceLanguage::C => (true, false, true),
            _ => (true, false, false),
        };
        Self { indirect_calls, has_slashes, has_hash, has_directives }
    }
}

/// Remembers what was before a place in the text.
#[derive(Debug, Default)]
struct WordScan<'a> {
    source: &'a [u8],
    marks: LanguageMarks,
    before: LeftContext<'a>,
    /// What was before the comment of this line.
    line_comment: Option<LeftContext<'a>>,
    /// What was before the block comment.
    block_comment: Option<LeftContext<'a>>,
    is_directive: bool,
    shared_flags: u32,
}

impl<'a> WordScan<'a> {
    /// Passes a byte that belongs to no word.
    fn pass(&mut self, at: usize, byte: u8) {
        let last = at.checked_sub(1).and_then(|last| self.source.get(last)).copied().unwrap_or_default();
        match byte {
            b'\n' => {
                let is_directive = std::mem::take(&mut self.is_directive) && last != b'\\';
                if let Some(before) = self.line_comment.take() {
                    self.before = LeftContext { is_unsure: true, ..before };
                }
                self.before.is_unsure |= is_directive;
                self.before.is_line_start = true;
                self.before.line_word = &[];
                return;
            }
            b' ' | b'\t' | b'\r' | 0x0b | 0x0c => return,
            b'/' if self.marks.has_slashes && last == b'/' && self.line_comment.is_none() => {
                self.line_comment = Some(self.before);
            }
            b'#' if self.marks.has_hash && self.line_comment.is_none() => self.line_comment = Some(self.before),
            b'#' if self.marks.has_directives && self.before.is_line_start => self.is_directive = true,
            b'*' if self.marks.has_slashes && last == b'/' => self.block_comment = Some(self.before),
            b'/' if last == b'*' => {
                if let Some(before) = self.block_comment.take() {
                    self.before = LeftContext { is_unsure: true, is_line_start: self.before.is_line_start, ..before };
                    return;
                }
            }
            // `impl A<{ N }> for B {`: only the second brace ends the head.
            b'{' if !matches!(self.before.byte, b'<' | b',' | b'=') => self.before.is_in_impl = false,
            b';' => self.before.is_in_impl = false,
            b'(' if self.line_comment.is_none() && self.is_indirect_call(last) => self.shared_flags |= MAY_CALL,
            _ => {}
        }
        // The first byte of a mark is not yet known as a comment.
        let begins_comment =
            byte == b'/' && self.marks.has_slashes && matches!(self.source.get(at + 1), Some(b'/' | b'*'));
        if !begins_comment {
            self.before.word = &[];
            self.before.second_word = &[];
            self.before.byte = byte;
            self.before.is_line_start = false;
            self.before.is_unsure = false;
        }
    }

    /// Returns true if a parenthesis after `last` may contain the arguments of a call whose function has no plain name.
    fn is_indirect_call(&self, last: u8) -> bool {
        match self.marks.indirect_calls {
            IndirectCalls::Never => false,
            IndirectCalls::Adjacent => matches!(last, b')' | b']' | b'}'),
            IndirectCalls::Spaced => {
                last == b'}' || (self.before.word.is_empty() && matches!(self.before.byte, b')' | b']'))
            }
        }
    }

    fn pass_word(&mut self, word: &'a [u8], start: usize) {
        let before = &mut self.before;
        // As a type, `impl` follows another sign or word.
        let is_item = matches!(before.word, b"" | b"unsafe" | b"default" | b"const")
            && !matches!(before.byte, b':' | b'(' | b'<' | b'>' | b',' | b'&' | b'=' | b'+' | b'|');
        before.is_in_impl |= word == b"impl" && (is_item || before.is_unsure);
        before.second_word = before.word;
        before.word = word;
        before.last_word = word;
        before.byte = word.last().copied().unwrap_or_default();
        if start == 0 || self.source.get(start - 1) == Some(&b'\n') {
            before.line_word = word;
        }
        before.is_line_start = false;
        before.is_unsure = false;
    }
}
