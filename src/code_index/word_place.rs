//! What a word may be, and what is around it.

/// The word may be the name of a function, method or macro that is defined here.
pub(super) const MAY_DEFINE_CALLABLE: u32 = 1;
/// The word may be the name of a type, module or variable that is defined here.
pub(super) const MAY_DEFINE_OTHER: u32 = 1 << 1;
/// The word may be the name of a function that is called without a type before it.
pub(super) const MAY_CALL: u32 = 1 << 2;
/// The word may be the name of a function that is called with a type before it.
pub(super) const MAY_CALL_OF_TYPE: u32 = 1 << 5;
/// The word is probably defined here. Only ranks depend on it.
pub(super) const DEFINES: u32 = 1 << 3;
/// The word is probably the name of a function that is called, or of a type. Only ranks depend on it.
pub(super) const USES: u32 = 1 << 4;
pub(super) const FLAGS: u32 = (1 << 6) - 1;

pub(super) fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// What is before a word. Comments are skipped.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeftContext<'a> {
    /// The word directly before, and the one before that; empty if something else than space is between.
    pub(super) word: &'a [u8],
    pub(super) second_word: &'a [u8],
    /// The last word, even if other signs are between.
    pub(super) last_word: &'a [u8],
    /// The last byte that is not a space, or 0 at the begin.
    pub(super) byte: u8,
    /// The first word of the line, if the line begins with it.
    pub(super) line_word: &'a [u8],
    /// Only space is between the begin of the line and the word.
    pub(super) is_line_start: bool,
    /// A comment or directive ends before the word, so that the other fields may be wrong.
    pub(super) is_unsure: bool,
    /// Inside the head of a Rust `impl`.
    pub(super) is_in_impl: bool,
}

/// A word and what is around it.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordPlace<'a> {
    pub(super) source: &'a [u8],
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) before: LeftContext<'a>,
    /// The next two bytes after space, or 0 at the end.
    pub(super) next: [u8; 2],
}

impl<'a> WordPlace<'a> {
    pub(super) fn word(&self) -> &'a [u8] {
        self.source.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns true if a comment may follow, which hides what comes next.
    pub(super) fn is_before_comment(&self) -> bool {
        matches!(self.next, [b'/', b'/' | b'*'] | [b'#' | b'\\', _])
    }
}
