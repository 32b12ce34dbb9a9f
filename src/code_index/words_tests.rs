//! Specifies that the words of a file never hide what a parser would find.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::code_index::SymbolParser;
use crate::code_index::word_place::{MAY_CALL, MAY_CALL_OF_TYPE, MAY_DEFINE_CALLABLE, MAY_DEFINE_OTHER};

/// Small programs with every kind of definition, as tokens. Between two tokens, space and comments may stand.
const PROGRAMS: &[(SourceLanguage, &str)] = &[
    (
        SourceLanguage::Rust,
        "pub struct Ab < T > { x : T } enum Cd { A } union Ef { a : u8 } trait Gh { fn ij ( & self ) ; }",
    ),
    (
        SourceLanguage::Rust,
        "impl < T > Ab < T > for Kl { async unsafe fn mn ( ) { op ( ) } } impl Qr < { 3 } > for & St { }",
    ),
    (SourceLanguage::Rust, "mod uv { static mut WX : u8 = 1 ; const YZ : u8 = 2 ; type Ba = u8 ; } fn r#type ( ) { }"),
    (SourceLanguage::Python, "async def ab ( x ) : pass"),
    (SourceLanguage::Python, "class Cd ( Ef ) : pass"),
    (
        SourceLanguage::JavaScript,
        "function ab ( ) { } async function cd ( ) { } function * ef ( ) { } class Gh { ij ( ) { } }",
    ),
    (
        SourceLanguage::JavaScript,
        "const kl = ( ) => 1 ; x . mn = function ( ) { } ; y = { op : ( ) => 2 , qr ( ) { } , 'st' : ( ) => 3 }",
    ),
    (
        SourceLanguage::JavaScript,
        "class Uv extends Wx { static async yz ( ) { } get ba ( ) { return 1 } dc = ( ) => 1 ; * fe ( ) { } }",
    ),
    (
        SourceLanguage::TypeScript,
        "interface Ab { cd ( ) : number ; ef ? ( ) : void ; gh < T > ( x : T ) : T } type Ij = string ; enum Kl { A }",
    ),
    (
        SourceLanguage::TypeScript,
        "abstract class Mn { abstract op ( ) : void ; private qr : X = ( ) => 1 } namespace St { const uv : Y = ( ) => 1 }",
    ),
    (SourceLanguage::Go, "package p ; func Ab ( ) { } ; func ( r * R ) Cd ( ) { } ; func Ef [ T any ] ( x T ) { }"),
    (
        SourceLanguage::Go,
        "package p ; type ( Gh struct { } ; Ij = int ) ; const ( Kl = 1 ; Mn = 2 ) ; type Op interface { Qr ( ) error ; St ( ) }",
    ),
    (
        SourceLanguage::Java,
        "class Ab < T > { Ab ( int x ) { } public List < T > cd ( ) { } int [ ] ef ( ) { } < U > U gh ( ) { } @ A ( 1 ) void ij ( ) { } }",
    ),
    (
        SourceLanguage::Java,
        "interface Kl { void mn ( ) ; } enum Op { A } record Qr ( int x ) { Qr { } } @ interface St { int uv ( ) ; }",
    ),
    (
        SourceLanguage::C,
        "struct ab { int x ; } ; typedef struct { int y ; } cd ; typedef int ( * ef ) ( int ) ; static char * gh ( void ) ;",
    ),
    (
        SourceLanguage::C,
        "enum ij { A } ; union kl { int a ; } ; typedef unsigned long mn ; int op ( int x ) { return qr ( x ) ; } int ( st ) ( int ) ;",
    ),
    (SourceLanguage::Bash, "ab ( ) { echo ; }"),
    (SourceLanguage::Bash, "function cd { echo ; }"),
];

fn flags(language: SourceLanguage, source: &str, word: &str) -> u32 {
    FileWords::new(language, source.as_bytes()).flags(hash_of(word.as_bytes())).unwrap()
}

/// Returns the definitions of a text that lack the flag that says so.
fn hidden(language: SourceLanguage, source: &str) -> Vec<String> {
    let words = FileWords::new(language, source.as_bytes());
    let symbols = SymbolParser::default().parse(language, source.as_bytes(), &|| false).unwrap();
    let is_hidden = |name: &str, is_callable: bool| {
        let flag = match language {
            // Their calls name no type, so that the kind of a definition does not matter.
            SourceLanguage::Bash | SourceLanguage::C => MAY_DEFINE_CALLABLE | MAY_DEFINE_OTHER,
            _ if is_callable => MAY_DEFINE_CALLABLE,
            _ => MAY_DEFINE_OTHER,
        };
        !NameWords::new(name).may_be(&words, flag)
    };
    let hidden = symbols.definitions.iter().filter(|known| is_hidden(&known.name, known.kind.is_callable()));
    hidden.map(|known| format!("{known:?}")).collect()
}

#[test]
fn definitions_are_noticed_where_their_grammar_allows_them() {
    for (language, program) in PROGRAMS {
        assert_eq!(hidden(*language, program), [""; 0], "{language:?}: {program}");
        let symbols = SymbolParser::default().parse(*language, program.as_bytes(), &|| false).unwrap();
        assert!(!symbols.definitions.is_empty(), "{program}");
    }
}

#[test]
fn calls_of_other_names_are_no_definitions() {
    let callable = |language, source, word| flags(language, source, word) & MAY_DEFINE_CALLABLE != 0;
    assert!(!callable(SourceLanguage::Rust, "fn a() {\n    go();\n    x.go(go)\n}", "go"));
    assert!(!callable(SourceLanguage::Python, "def a():\n    go()\n    x.go(go)\n", "go"));
    assert!(!callable(SourceLanguage::JavaScript, "const x = a.go() + go();", "go"));
    assert!(!callable(SourceLanguage::Java, "class A { int a() { return go() + x.go(); } }", "go"));
    assert!(!callable(SourceLanguage::C, "int a() { return go() + x->y.go(); }", "go"));
    assert!(!callable(SourceLanguage::Go, "func a() int { return x.go() + go() }", "go"));
}

#[test]
fn a_type_before_a_name_rules_out_other_functions() {
    let may_call = |source| flags(SourceLanguage::Rust, source, "new") & MAY_CALL != 0;
    assert!(!may_call("fn a() { Cat::new() }"));
    assert!(!may_call("fn new() {}"));
    assert!(may_call("fn a() { cat::new() }"));
    assert!(may_call("fn a() { Self::new() }"), "`Self` can be any type");
    assert!(may_call("fn a() { Cat::new(); cat.new() }"));
    let may_call = |source| flags(SourceLanguage::Java, source, "make") & MAY_CALL != 0;
    assert!(!may_call("class A { int a() { return Cat.make(); } }"));
    assert!(may_call("class A { int a() { return x.Cat.make(); } }"), "the part before the name is no type");
}

#[test]
fn a_call_of_an_expression_may_call_any_name() {
    let may_call = |source| flags(SourceLanguage::Rust, source, "go") & MAY_CALL != 0;
    assert!(!may_call("fn a() { x.go + 1 }"));
    assert!(may_call("fn a() { (x.go)(1) }"));
    assert!(!may_call("fn a() { x.go + 1 } // [b](c)"), "a comment calls nothing");
}

#[test]
fn a_header_of_another_language_may_define_anything() {
    let may_define = |source| flags(SourceLanguage::C, source, "go") & MAY_DEFINE_CALLABLE != 0;
    assert!(!may_define("int a = b + go + 1;\n"));
    assert!(may_define("template <class T>\nint a = b + go + 1;\n"));
}

#[test]
fn names_of_several_words_are_looked_for_by_their_words() {
    let words = FileWords::new(SourceLanguage::Bash, b"my-name() { 1else; }\n\xc3\xa9t\xc3\xa9\n");
    assert!(NameWords::new("my-name").may_be(&words, MAY_DEFINE_CALLABLE));
    assert!(!NameWords::new("my-other").may_occur(&words));
    assert!(NameWords::new("\u{e9}t\u{e9}").may_occur(&words));
    assert!(NameWords::new("$").may_occur(&words), "a name without words may be anywhere");
    assert!(NameWords::new("else").may_occur(&words));
    assert_eq!(words.lines, 2);
}

/// A bundle of scripts is one long line.
#[test]
fn the_words_of_a_long_line_are_read_in_one_pass() {
    for part in ["f(1),", ";a(", "a.", "a$"] {
        let start = Instant::now();
        let words = FileWords::new(SourceLanguage::JavaScript, part.repeat((1 << 18) / part.len()).as_bytes());
        assert_eq!(words.lines, 1);
        assert!(start.elapsed() < Duration::from_secs(10), "{part}: {:?}", start.elapsed());
    }
}

#[test]
fn a_path_that_is_too_long_may_be_created() {
    let source = format!("x = new {}Last;", "part.".repeat(200));
    let words = FileWords::new(SourceLanguage::JavaScript, source.as_bytes());
    assert!(NameWords::new("Last").may_be(&words, MAY_CALL | MAY_CALL_OF_TYPE));
}

proptest! {
    #[test]
    fn comments_between_tokens_hide_nothing(
        program in proptest::sample::select(PROGRAMS),
        between in proptest::collection::vec(proptest::sample::select(&[" ", "  ", " /* fn a; */ ", " // b ( =\n", "\n"][..]), 80),
    ) {
        let (language, text) = program;
        // In these languages, a new line or a comment ends a statement or is none.
        let is_plain = matches!(language, SourceLanguage::Bash | SourceLanguage::Python | SourceLanguage::Go);
        let mut source = String::new();
        for (token, between) in text.split(' ').zip(between.iter().cycle()) {
            source.push_str(token);
            source.push_str(if is_plain { " " } else { between });
        }
        prop_assert_eq!(hidden(language, &source), Vec::<String>::new(), "{}", source);
    }

    #[test]
    fn every_name_of_any_tokens_is_a_word(
        tokens in proptest::collection::vec(
            proptest::sample::select(&["fn", "class", "def", "(", ")", "{", "}", "a", "b", "$c", "d-e", "::", ".", "=", "=>", "\n", "struct", "#define", "func", "[", "*", "<", "type", "'f'", "\u{e9}"][..]),
            0..80,
        ),
        language in proptest::sample::select(SourceLanguage::ALL),
    ) {
        let source = tokens.join(" ");
        let words = FileWords::new(language, source.as_bytes());
        let symbols = SymbolParser::default().parse(language, source.as_bytes(), &|| false).unwrap();
        let defined = symbols.definitions.iter().map(|known| &known.name);
        for name in defined.chain(symbols.calls.iter().map(|call| &call.callee)) {
            prop_assert!(NameWords::new(name).may_occur(&words), "{} in {}", name, source);
        }
    }
}
