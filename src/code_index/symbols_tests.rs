//! Specifies what is found in each language, and that no input is too strange.

use proptest::prelude::*;

use super::*;

fn parse(language: SourceLanguage, source: &str) -> FileSymbols {
    SymbolParser::default().parse(language, source.as_bytes(), &|| false).unwrap()
}

/// Returns `first-last depth kind name` for each definition.
fn outline(language: SourceLanguage, source: &str) -> Vec<String> {
    let symbols = parse(language, source);
    let line = |known: &Definition| {
        format!("{}-{} {} {:?} {}", known.first_line, known.last_line, symbols.depth(known), known.kind, known.name)
    };
    symbols.definitions.iter().map(line).collect()
}

fn calls(language: SourceLanguage, source: &str) -> Vec<String> {
    let symbols = parse(language, source);
    let caller = |call: &CallSite| {
        let caller = call.caller.map(|caller| symbols.definitions[caller as usize].name.to_string());
        let qualifier = call.qualifier.as_ref().map(|qualifier| format!("{qualifier}::")).unwrap_or_default();
        format!("{} -> {qualifier}{} {}", caller.unwrap_or_default(), call.callee, call.line)
    };
    symbols.calls.iter().map(caller).collect()
}

#[test]
fn every_grammar_fits_the_library() {
    for language in SourceLanguage::ALL {
        assert!(SymbolParser::default().parser(*language).is_some(), "{language:?}");
    }
}

#[test]
fn rust_definitions() {
    let source = "\
pub struct Server { port: u16 }
impl Server {
    /// Starts it.
    pub fn start(&self) -> u16 { helper(self.port) }
}
impl<T> Display for Wrapper<T> { fn fmt(&self) {} }
trait Run { fn run(&self); }
enum Kind { A }
mod inner { const LIMIT: u8 = 1; static NAME: &str = \"\"; type Short = u8; }
mod elsewhere;
macro_rules! twice { () => {} }
fn helper(x: u16) -> u16 { x }
";
    assert_eq!(
        outline(SourceLanguage::Rust, source),
        [
            "1-1 0 Struct Server",
            "2-5 0 Impl Server",
            "4-4 1 Method start",
            "6-6 0 Impl Wrapper",
            "6-6 1 Method fmt",
            "7-7 0 Interface Run",
            "7-7 1 Prototype run",
            "8-8 0 Enum Kind",
            "9-9 0 Module inner",
            "9-9 1 Constant LIMIT",
            "9-9 1 Variable NAME",
            "9-9 1 TypeAlias Short",
            "11-11 0 Macro twice",
            "12-12 0 Function helper",
        ]
    );
    assert_eq!(parse(SourceLanguage::Rust, source).definitions[2].signature, "pub fn start(&self) -> u16");
}

#[test]
fn a_signature_keeps_type_parameters_but_no_arrow() {
    let signature = |source| parse(SourceLanguage::TypeScript, source).definitions[0].signature.clone();

    assert_eq!(signature("class Cache<K, V> { size = 0 }"), "class Cache<K, V>");
    assert_eq!(signature("const twice = (x: number) => { return x * 2 }"), "twice = (x: number)");
}

#[test]
fn rust_calls() {
    let source =
        "fn a() {\n  b();\n  Server::new();\n  x.send(1);\n  m::n::go::<u8>(c());\n  println!(\"\");\n  (|| 1)();\n}\n";
    assert_eq!(
        calls(SourceLanguage::Rust, source),
        ["a -> b 2", "a -> Server::new 3", "a -> send 4", "a -> go 5", "a -> c 5", "a -> println 6"]
    );
}

#[test]
fn python_definitions_and_calls() {
    let source = "\
LIMIT = 3
class Shape(Base):
    side = 1
    def area(self, *, unit=None):
        return math.sqrt(area_of(self))
async def main():
    Shape().area()
";
    assert_eq!(
        outline(SourceLanguage::Python, source),
        ["1-1 0 Variable LIMIT", "2-5 0 Class Shape", "4-5 1 Method area", "6-7 0 Function main"]
    );
    assert_eq!(parse(SourceLanguage::Python, source).definitions[2].signature, "def area(self, *, unit=None)");
    assert_eq!(
        calls(SourceLanguage::Python, source),
        ["area -> sqrt 5", "area -> area_of 5", "main -> area 7", "main -> Shape 7"]
    );
}

#[test]
fn javascript_and_typescript_definitions() {
    let source = "\
export function plain(a) { return other(a) }
const arrow = async (x) => x.y()
class Box extends Base { constructor() { super() } open() {} handler = () => 1 }
module.exports.late = function () {}
const table = { key: () => 2 }
const value = 3
";
    let common = [
        "1-1 0 Function plain",
        "2-2 0 Function arrow",
        "3-3 0 Class Box",
        "3-3 1 Method constructor",
        "3-3 1 Method open",
        "3-3 1 Method handler",
        "4-4 0 Function late",
        "5-5 0 Function key",
    ];
    for language in [SourceLanguage::JavaScript, SourceLanguage::TypeScript, SourceLanguage::Tsx] {
        assert_eq!(outline(language, source), common, "{language:?}");
    }
    let source = "interface Shape { area(): number }\ntype Id = string\nenum Kind { A }\nabstract class Base { abstract run(): void }\nnamespace Deep { export const f = () => 1 }\n";
    assert_eq!(
        outline(SourceLanguage::TypeScript, source),
        [
            "1-1 0 Interface Shape",
            "1-1 1 Method area",
            "2-2 0 TypeAlias Id",
            "3-3 0 Enum Kind",
            "4-4 0 Class Base",
            "4-4 1 Method run",
            "5-5 0 Module Deep",
            "5-5 1 Function f",
        ]
    );
}

#[test]
fn go_definitions_and_calls() {
    let source = "\
package main
const Limit = 3
type Server struct { port int }
type Runner interface { Run() error }
func (s *Server) Start() error { return listen(s.port) }
func main() { var local int; fmt.Println(local) }
";
    assert_eq!(
        outline(SourceLanguage::Go, source),
        [
            "2-2 0 Constant Limit",
            "3-3 0 Struct Server",
            "4-4 0 Struct Runner",
            "4-4 1 Method Run",
            "5-5 0 Method Start",
            "6-6 0 Function main",
        ]
    );
    assert_eq!(calls(SourceLanguage::Go, source), ["Start -> listen 5", "main -> Println 6"]);
}

#[test]
fn java_definitions_and_calls() {
    let source = "\
class Shop<T> {
  Shop(int size) { super(); }
  int total() { return Prices.sum(list) + new Cart().size(); }
  interface Item { void show(); }
  enum Kind { A }
}
";
    assert_eq!(
        outline(SourceLanguage::Java, source),
        [
            "1-6 0 Class Shop",
            "2-2 1 Constructor Shop",
            "3-3 1 Method total",
            "4-4 1 Interface Item",
            "4-4 2 Method show",
            "5-5 1 Enum Kind",
        ]
    );
    assert_eq!(
        calls(SourceLanguage::Java, source),
        ["total -> Prices::sum 3", "total -> Cart::size 3", "total -> Cart 3"]
    );
}

#[test]
fn c_definitions_and_calls() {
    let source = "\
#define LIMIT 3
#define MAX(a, b) ((a) > (b) ? (a) : (b))
struct node { struct node *next; };
typedef struct { int x; } point;
enum kind { A };
static char *name_of(const struct node *n);
int (*handler)(int);
int *find(struct node *n) { return look(n->next)->go(); }
";
    assert_eq!(
        outline(SourceLanguage::C, source),
        [
            "1-2 0 Macro LIMIT",
            "2-3 0 Macro MAX",
            "3-3 0 Struct node",
            "4-4 0 TypeAlias point",
            "5-5 0 Enum kind",
            "6-6 0 Prototype name_of",
            "8-8 0 Function find",
        ]
    );
    assert_eq!(calls(SourceLanguage::C, source), ["find -> go 8", "find -> look 8"]);
}

#[test]
fn bash_definitions_and_calls() {
    let source = "greet() { echo \"$1\"; }\nfunction main { greet you; }\nmain\n";
    assert_eq!(outline(SourceLanguage::Bash, source), ["1-1 0 Function greet", "2-2 0 Function main"]);
    assert_eq!(calls(SourceLanguage::Bash, source), ["greet -> echo 1", "main -> greet 2", " -> main 3"]);
}

#[cfg(feature = "all-languages")]
#[test]
fn more_languages() {
    let cpp = "namespace a { class Box { public: void open(); }; }\nvoid a::Box::open() { close(); }\n";
    assert_eq!(
        outline(SourceLanguage::Cpp, cpp),
        ["1-1 0 Module a", "1-1 1 Class Box", "1-1 2 Prototype open", "2-2 0 Function open"]
    );
    let sharp = "namespace A { class Box { int Open() { return Close(); } } }\n";
    assert_eq!(outline(SourceLanguage::CSharp, sharp), ["1-1 0 Module A", "1-1 1 Class Box", "1-1 2 Method Open"]);
    assert_eq!(calls(SourceLanguage::CSharp, sharp), ["Open -> Close 1"]);
    let kotlin = "class Box { fun open() { close(1) } }\n";
    assert_eq!(outline(SourceLanguage::Kotlin, kotlin), ["1-1 0 Class Box", "1-1 1 Method open"]);
    assert_eq!(calls(SourceLanguage::Kotlin, kotlin), ["open -> close 1"]);
    let php = "<?php class Box { function open() { $this->close(); } }\n";
    assert_eq!(outline(SourceLanguage::Php, php), ["1-1 0 Class Box", "1-1 1 Method open"]);
    assert_eq!(calls(SourceLanguage::Php, php), ["open -> close 1"]);
    let ruby = "class Box\n  def open\n    close(1)\n  end\nend\n";
    assert_eq!(outline(SourceLanguage::Ruby, ruby), ["1-5 0 Class Box", "2-4 1 Method open"]);
    assert_eq!(calls(SourceLanguage::Ruby, ruby), ["open -> close 3"]);
    let swift = "class Box { func open() { close(1) } }\n";
    assert_eq!(outline(SourceLanguage::Swift, swift), ["1-1 0 Class Box", "1-1 1 Method open"]);
    assert_eq!(calls(SourceLanguage::Swift, swift), ["open -> close 1"]);
}

#[test]
fn a_cancelled_parse_does_not_affect_the_next() {
    let mut parser = SymbolParser::default();
    let long = "fn a() { b(); }\n".repeat(100_000);
    assert_eq!(parser.parse(SourceLanguage::Rust, long.as_bytes(), &|| true), None);
    let symbols = parser.parse(SourceLanguage::Rust, b"fn next() {}", &|| false).unwrap();
    assert_eq!(symbols.definitions.len(), 1);
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let deep = "f(".repeat(50_000);
    for language in SourceLanguage::ALL {
        parse(*language, &deep);
    }
}

#[test]
fn names_are_found_outside_of_strings_and_comments() {
    let source = "// go\nfn go() { go(); \"go\"; }\nfn other() { x.go() }\n";
    let mut parser = SymbolParser::default();
    let parsed = parser.parse_with_focus(SourceLanguage::Rust, source.as_bytes(), Some("go"), &|| false);
    assert_eq!(parsed.unwrap().1, [2, 3]);
}

proptest! {
    #[test]
    fn any_bytes_give_an_ordered_tree(
        source in proptest::collection::vec(any::<u8>(), 0..400),
        language in proptest::sample::select(SourceLanguage::ALL),
    ) {
        check(language, &source)?;
    }

    #[test]
    fn any_tokens_give_an_ordered_tree(
        words in proptest::collection::vec(
            proptest::sample::select(&["fn", "class", "def", "(", ")", "{", "}", "a", "b", "::", ".", "=", "=>", "\n", "struct", "#define", "func", "[", "*", "<", "type"][..]),
            0..80,
        ),
        language in proptest::sample::select(SourceLanguage::ALL),
    ) {
        check(language, words.join(" ").as_bytes())?;
    }
}

/// Lines are inside the file, and a parent contains its children.
fn check(language: SourceLanguage, source: &[u8]) -> Result<(), TestCaseError> {
    let symbols = SymbolParser::default().parse(language, source, &|| false).unwrap();
    let end = u32::try_from(source.iter().filter(|byte| **byte == b'\n').count() + 1).unwrap();
    for (index, known) in symbols.definitions.iter().enumerate() {
        prop_assert!(known.first_line >= 1 && known.first_line <= known.last_line && known.last_line <= end);
        prop_assert!(!known.signature.contains(char::is_control));
        if let Some(parent) = known.parent {
            let parent_index = parent as usize;
            prop_assert!(parent_index < index);
            let parent = &symbols.definitions[parent_index];
            prop_assert!(parent.first_line <= known.first_line && known.last_line <= parent.last_line);
        }
    }
    Ok(())
}
