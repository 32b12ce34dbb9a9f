//! Finds the definitions and calls of source files with tree-sitter.
//!
//! Names are compared as text, without imports: functions of the same name are separated only by the type that contains
//! them, and only if a call names that type.
//!
//! Parsing is slow, so that a fast pass over the words of all files comes first. It ranks the files, and rules out those
//! that cannot contain what an answer needs.

mod call_graph;
mod definition_kind;
mod index;
mod language;
mod overview;
mod rules;
mod symbol_cache;
mod symbols;
mod word_place;
mod word_rules;
mod word_scan;
mod words;

pub use call_graph::{CallDirection, CallGraph, CallTree, DefinitionId, MAX_DEFINERS, SymbolName};
pub use definition_kind::DefinitionKind;
pub use index::{CodeIndex, IndexedFile, MAX_FILE_SIZE, SourceAccess};
pub use language::SourceLanguage;
pub use overview::CodeRank;
pub use symbol_cache::{CodeFile, SymbolCache};
pub use symbols::{Definition, FileSymbols, SymbolParser};

#[cfg(test)]
mod comparison_tests;
#[cfg(test)]
mod testing;
