//! Decides what a word may be from the words and signs around it, for each language.
//!
//! The grammars of tree-sitter say where the name of a definition can stand. A rule here must allow every such place.

use super::language::SourceLanguage;
use super::word_place::{
    DEFINES, MAY_CALL, MAY_CALL_OF_TYPE, MAY_DEFINE_CALLABLE, MAY_DEFINE_OTHER, USES, WordPlace, is_word_byte,
};

/// Bytes of names and dots before a word that are searched for `new`.
const MAX_PATH: usize = 256;

/// Returns the flags of a word at this place.
pub(super) fn meaning_of(language: SourceLanguage, place: &WordPlace<'_>) -> u32 {
    let guess = match language {
        SourceLanguage::Bash => bash(place),
        SourceLanguage::C => c(place),
        SourceLanguage::Go => go(place),
        SourceLanguage::Java => java(place),
        SourceLanguage::JavaScript | SourceLanguage::Tsx | SourceLanguage::TypeScript => javascript(place),
        SourceLanguage::Python => python(place),
        SourceLanguage::Rust => rust(place),
        #[cfg(feature = "all-languages")]
        _ => other_language(place),
    };
    let is_qualified = has_type_before(language, place);
    let mut flags = 0;
    for (is_set, flag) in [
        (guess.may_define_callable, MAY_DEFINE_CALLABLE),
        (guess.may_define_other, MAY_DEFINE_OTHER),
        (guess.may_call && !is_qualified, MAY_CALL),
        (guess.may_call && is_qualified, MAY_CALL_OF_TYPE),
        (guess.defines, DEFINES),
        (guess.uses && !guess.defines, USES),
    ] {
        if is_set {
            flags |= flag;
        }
    }
    flags
}

/// What a word at a place may be.
#[derive(Debug, Clone, Copy, Default)]
struct WordGuess {
    may_define_callable: bool,
    may_define_other: bool,
    /// A call may follow. A call whose function is in parentheses counts elsewhere.
    may_call: bool,
    /// For ranks.
    defines: bool,
    /// For ranks.
    uses: bool,
}

/// Returns true if the word follows the name of a type and is called as its function, as `start` in `Server::start()`.
/// The syntax trees of the other languages do not tell the type.
fn has_type_before(language: SourceLanguage, place: &WordPlace<'_>) -> bool {
    let has_qualifiers = !matches!(language, SourceLanguage::Bash | SourceLanguage::C);
    #[cfg(feature = "all-languages")]
    let has_qualifiers = has_qualifiers
        && !matches!(
            language,
            SourceLanguage::CSharp
                | SourceLanguage::Cpp
                | SourceLanguage::Kotlin
                | SourceLanguage::Php
                | SourceLanguage::Ruby
                | SourceLanguage::Swift
        );
    let last = place.before.last_word;
    // `Self` stands for any type.
    if !has_qualifiers || !last.first().is_some_and(u8::is_ascii_uppercase) || last == b"Self" {
        return false;
    }
    let text = place.source.get(..place.start).unwrap_or_default();
    if let Some(text) = text.strip_suffix(b"::") {
        return text.ends_with(last);
    }
    // In `a.B.c()`, the part before `c` is no name.
    let rest = text.strip_suffix(b".").and_then(|text| text.strip_suffix(last));
    rest.is_some_and(|rest| !matches!(rest.trim_ascii_end().last(), Some(b'.' | b'/' | b'\\')))
}

/// Returns true if the word is the name of a function that is called, or of a type, as far as its form shows.
fn looks_used(place: &WordPlace<'_>) -> bool {
    place.next[0] == b'(' || place.word().first().is_some_and(u8::is_ascii_uppercase)
}

/// Returns true if the word may be followed by one of these bytes.
fn is_followed_by(place: &WordPlace<'_>, bytes: &[u8]) -> bool {
    bytes.contains(&place.next[0]) || place.is_before_comment()
}

/// Returns true if an equals sign of an assignment follows.
fn is_assigned(place: &WordPlace<'_>) -> bool {
    place.next[0] == b'=' && !matches!(place.next[1], b'=' | b'>') || place.is_before_comment()
}

/// Returns true if the word may stand where a function is declared without a keyword: after its type, or where a
/// statement or a member begins. `calls` are keywords before a call.
fn is_declared(place: &WordPlace<'_>, calls: &[&[u8]], bytes: &[u8]) -> bool {
    let before = &place.before;
    match before.word {
        [] => before.byte == 0 || bytes.contains(&before.byte) || before.is_unsure,
        word => !calls.contains(&word) || before.is_unsure,
    }
}

/// Returns true if `new` is before the word, or before the names and dots that lead to it. A longer path may have it.
fn is_created(place: &WordPlace<'_>) -> bool {
    let before = place.source.get(..place.start).unwrap_or_default();
    let is_path = |byte: &u8| is_word_byte(*byte) || matches!(byte, b'.' | b'$');
    let path = before.iter().rev().take(MAX_PATH).take_while(|byte| is_path(byte)).count();
    if path == MAX_PATH {
        return true;
    }
    let rest = before.get(..before.len() - path).unwrap_or_default();
    place.before.last_word == b"new" || rest.trim_ascii_end().ends_with(b"new")
}

fn bash(place: &WordPlace<'_>) -> WordGuess {
    let is_function = place.before.word == b"function" || is_followed_by(place, b"(");
    WordGuess {
        may_define_callable: is_function,
        may_define_other: false,
        may_call: true,
        defines: is_function,
        uses: true,
    }
}

fn rust(place: &WordPlace<'_>) -> WordGuess {
    let before = &place.before;
    let is_function = before.word == b"fn" || (before.byte == b'!' && before.last_word == b"macro_rules");
    let is_macro = place.next[0] == b'!' && place.next[1] != b'=';
    let is_item =
        matches!(before.word, b"struct" | b"enum" | b"union" | b"trait" | b"mod" | b"type" | b"const" | b"static")
            || (before.word == b"mut" && before.second_word == b"static");
    WordGuess {
        may_define_callable: is_function,
        may_define_other: is_item || before.is_in_impl,
        may_call: !is_function && !is_item && (is_followed_by(place, b"({[?") || is_macro || place.next == *b"::"),
        defines: is_function || is_item,
        uses: looks_used(place) || is_macro,
    }
}

fn python(place: &WordPlace<'_>) -> WordGuess {
    let (is_function, is_class) = (place.before.word == b"def", place.before.word == b"class");
    let is_variable = place.next[0] == b':' || is_assigned(place);
    WordGuess {
        may_define_callable: is_function,
        may_define_other: is_class || is_variable,
        may_call: !is_function && !is_class && is_followed_by(place, b"("),
        defines: is_function || is_class || (place.before.is_line_start && is_at_margin(place) && is_assigned(place)),
        uses: looks_used(place),
    }
}

fn go(place: &WordPlace<'_>) -> WordGuess {
    let before = &place.before;
    let is_function = before.word == b"func";
    let is_named = matches!(before.word, b"type" | b"const" | b"var");
    let is_method = before.byte == b')' && before.word.is_empty() && is_followed_by(place, b"([");
    // In a group or an interface, a name begins the line.
    let is_first = before.is_line_start || before.is_unsure || matches!(before.byte, b'(' | b'{' | b';' | 0);
    WordGuess {
        may_define_callable: is_function || is_method || (is_first && is_followed_by(place, b"(")),
        may_define_other: is_named || (is_first && !matches!(place.next[0], b'.' | b':')),
        may_call: !is_function && !is_named && is_followed_by(place, b"(["),
        defines: is_function || is_named || (is_method && before.line_word == b"func" && place.next[0] == b'('),
        uses: looks_used(place),
    }
}

fn java(place: &WordPlace<'_>) -> WordGuess {
    const CALLS: [&[u8]; 9] =
        [b"new", b"return", b"throw", b"else", b"assert", b"case", b"yield", b"instanceof", b"do"];
    let is_type = matches!(place.before.word, b"class" | b"interface" | b"enum" | b"record");
    let is_member = is_declared(place, &CALLS, b">]};{)") && is_followed_by(place, b"({");
    let has_result = !place.before.word.is_empty() || matches!(place.before.byte, b'>' | b']');
    WordGuess {
        may_define_callable: is_member,
        may_define_other: is_type,
        may_call: !is_type && (is_followed_by(place, b"(<") || place.before.byte == b'@' || is_created(place)),
        defines: is_type || (is_member && has_result && place.next[0] == b'('),
        uses: looks_used(place),
    }
}

fn javascript(place: &WordPlace<'_>) -> WordGuess {
    const CALLS: [&[u8]; 14] = [
        b"return",
        b"new",
        b"await",
        b"typeof",
        b"throw",
        b"else",
        b"case",
        b"void",
        b"delete",
        b"in",
        b"of",
        b"yield",
        b"do",
        b"instanceof",
    ];
    const CONTROL: [&[u8]; 6] = [b"if", b"for", b"while", b"switch", b"catch", b"function"];
    let before = &place.before;
    let is_type = matches!(before.word, b"class" | b"interface" | b"type" | b"enum" | b"namespace" | b"module");
    let is_function = before.word == b"function" || (before.byte == b'*' && before.last_word == b"function");
    let is_quoted = matches!(before.byte, b'"' | b'\'' | b'`') && place.next[0] == before.byte;
    let is_place = before.is_line_start || is_declared(place, &CALLS, b"{};,*])\"'`");
    let is_member = is_place && is_followed_by(place, b"(<?!");
    let is_key = matches!(place.next, [b':', _] | [b'?' | b'!', b':']) || is_assigned(place);
    let rest = || place.source.get(place.end..).unwrap_or_default();
    // The order matters: with the line first, a file that is one long line would be read once for each word.
    let is_method = || {
        if !before.is_line_start || CONTROL.contains(&place.word()) {
            return false;
        }
        let line = rest().split(|byte| *byte == b'\n').next().unwrap_or_default();
        line.trim_ascii_end().ends_with(b"{")
    };
    let is_function_value = || {
        let value = rest().trim_ascii_start().get(1..).unwrap_or_default().trim_ascii_start();
        [&b"async"[..], b"function", b"("].iter().any(|begin| value.starts_with(begin))
    };
    let is_constant = matches!(before.word, b"const" | b"let" | b"var") && place.next[0] == b'=';
    WordGuess {
        may_define_callable: is_function || is_quoted || is_member || is_key,
        may_define_other: is_type || is_quoted,
        may_call: !is_function && (is_followed_by(place, b"(<?!`[") || is_created(place)),
        defines: is_type
            || is_function
            || (is_constant && is_function_value())
            || (place.next[0] == b'(' && is_member && is_method()),
        uses: looks_used(place) || place.next[0] == b'`',
    }
}

fn c(place: &WordPlace<'_>) -> WordGuess {
    const CALLS: [&[u8]; 8] = [b"return", b"else", b"case", b"do", b"goto", b"sizeof", b"throw", b"new"];
    let before = &place.before;
    let is_macro = before.word == b"define";
    let is_type = matches!(before.word, b"struct" | b"union" | b"enum" | b"class" | b"namespace");
    let is_member = is_declared(place, &CALLS, b"*&>};{):~\"]") && is_followed_by(place, b"(");
    // `FUNCTION(name) {` looks like the parameter of a type.
    let is_wrapped = matches!(before.byte, b'(' | b'*' | b'&') && is_followed_by(place, b")");
    let is_alias = before.byte == b'}' || before.is_unsure || is_followed_by(place, b";[),{:");
    let is_top = !before.line_word.is_empty() || is_at_margin(place);
    WordGuess {
        may_define_callable: is_macro || is_member || is_wrapped,
        may_define_other: is_type || is_alias || before.line_word == b"typedef",
        may_call: !is_macro && is_followed_by(place, b"(["),
        defines: is_macro
            || (is_type && place.next[0] == b'{')
            || (before.byte == b'}' && place.next[0] == b';' && is_top)
            || (is_member && is_top && (!before.word.is_empty() || before.byte == b'*')),
        uses: looks_used(place) || is_type || place.word().ends_with(b"_t"),
    }
}

/// Every word may be anything. Ranks use the keywords that most languages have.
#[cfg(feature = "all-languages")]
fn other_language(place: &WordPlace<'_>) -> WordGuess {
    let is_defined = matches!(
        place.before.word,
        b"class"
            | b"struct"
            | b"interface"
            | b"enum"
            | b"union"
            | b"func"
            | b"fun"
            | b"function"
            | b"def"
            | b"module"
            | b"namespace"
            | b"trait"
            | b"protocol"
            | b"object"
            | b"record"
            | b"typealias"
    );
    let calls: [&[u8]; 8] = [b"return", b"else", b"case", b"do", b"throw", b"new", b"await", b"yield"];
    let has_result = place.next[0] == b'(' && !place.before.word.is_empty() && !calls.contains(&place.before.word);
    WordGuess {
        may_define_callable: true,
        may_define_other: true,
        may_call: true,
        defines: is_defined || has_result,
        uses: looks_used(place),
    }
}

/// Returns true if the word begins in the first column.
fn is_at_margin(place: &WordPlace<'_>) -> bool {
    place.start == 0 || place.source.get(place.start - 1) == Some(&b'\n')
}
