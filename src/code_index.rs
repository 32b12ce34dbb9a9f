//! Finds the definitions and calls of source files with tree-sitter.
//!
//! Names are compared as text, without imports: functions of the same name are separated only by the type that contains
//! them, and only if a call names that type.

mod call_graph;
mod definition_kind;
mod index;
mod language;
mod overview;
mod rules;
mod symbols;

pub use call_graph::{CallDirection, CallGraph, CallTree, DefinitionId, SymbolName};
pub use definition_kind::DefinitionKind;
pub use index::{CodeFile, CodeIndex, IndexedFile, MAX_FILE_SIZE, SymbolCache};
pub use language::SourceLanguage;
pub use overview::{FileRank, rank};
pub use symbols::{Definition, FileSymbols, SymbolParser};
