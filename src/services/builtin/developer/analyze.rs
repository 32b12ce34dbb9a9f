//! Implements `analyze`: the outline of a file, an overview of a folder, or who calls a symbol and what it calls.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::code_index::{
    CallDirection, CallGraph, CallTree, CodeFile, CodeIndex, CodeRank, Definition, DefinitionId, FileSymbols,
    IndexedFile, MAX_DEFINERS, MAX_FILE_SIZE, SourceAccess, SourceLanguage, SymbolCache, SymbolName,
};
use crate::tool::CallContext;

use super::{output, paths, report, walk};
use crate::services::builtin::answer::{ToolRefusal, ToolReply, count, text};

/// Maximum number of source files of one call.
const MAX_FILES: usize = 20_000;
const DEFAULT_BUDGET: usize = 2_000;
const MAX_BUDGET: usize = 10_000;
/// Bytes of text that a model reads as one token, roughly.
const BYTES_PER_TOKEN: usize = 4;
const DEFAULT_DEPTH: usize = 2;
const MAX_DEPTH: usize = 5;
/// Maximum number of definitions of one file in an overview that does not show all.
const MAX_PER_FILE: usize = 8;
/// Maximum number of definitions of one symbol whose calls are shown.
const MAX_DEFINITIONS: usize = 10;
/// Maximum number of lines with uses of a symbol.
const MAX_USES: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AnalyzeCode {
    /// File or folder
    path: Option<String>,
    /// Symbol, e.g. `Server::start`
    #[schemars(length(min = 1))]
    focus: Option<String>,
    /// Steps of calls, default 2
    #[schemars(range(min = 1, max = 5))]
    depth: Option<usize>,
    /// Tokens of an overview, default 2000
    #[schemars(range(min = 100, max = 10000))]
    budget: Option<usize>,
}

pub(super) fn analyze(call: &CallContext, cache: &SymbolCache, request: &AnalyzeCode) -> ToolReply {
    let place = paths::target(call, request.path.as_deref().unwrap_or("."))?;
    let shown = paths::display_path(&call.session, &place);
    let metadata = place.symlink_metadata().map_err(|error| ToolRefusal::io("analyse", &shown, &error))?;
    report::place(call, &place, None);
    if metadata.is_file() {
        check_file(&place, &shown, metadata.len())?;
    }
    let roots = paths::roots(&call.session);
    if metadata.is_file() {
        paths::open(&roots, &place).map_err(|error| ToolRefusal::io("analyse", &shown, &error))?;
    } else if metadata.is_dir() {
        walk::check_folder(&place, "analyse", &shown)?;
    }
    let mut sources = SourceList::collect(call, &place)?;
    let read = |path: &Path| read_source(&roots, path);
    let is_cancelled = || call.cancel.is_cancelled();
    let access = SourceAccess { cache, read: &read, is_cancelled: &is_cancelled };
    let name = request.focus.as_deref().map(SymbolName::parse);
    let index = CodeIndex::scan(access, &sources.files, name.as_ref().map(|name| name.name.as_str()))
        .ok_or_else(|| ToolRefusal::new("the call was cancelled"))?;
    sources.unreadable.add_number(index.unreadable.len());
    let view = CodeView { call, index: &index, sources: &sources, shown: &shown };
    let listing = match (&request.focus, &name) {
        (Some(focus), Some(name)) => {
            view.symbol(focus, name, request.depth.unwrap_or(DEFAULT_DEPTH).clamp(1, MAX_DEPTH))
        }
        _ if metadata.is_file() => view.outline(usize::MAX).unwrap_or_default(),
        _ => view.overview(request.budget.unwrap_or(DEFAULT_BUDGET).min(MAX_BUDGET) * BYTES_PER_TOKEN),
    };
    // After a cancellation, files that were not parsed look empty.
    if is_cancelled() {
        return Err(ToolRefusal::new("the call was cancelled"));
    }
    Ok(text(output::excerpt(&(listing + &sources.unreadable.line()))))
}

/// Fails if the file cannot be analysed.
fn check_file(place: &Path, shown: &str, size: u64) -> Result<(), ToolRefusal> {
    if SourceLanguage::of_path(place).is_none() {
        return Err(ToolRefusal::new(format!(
            "`{shown}` is not in a language that `analyze` knows ({}); use `read_file` or `search`",
            languages()
        )));
    }
    if size > MAX_FILE_SIZE {
        return Err(ToolRefusal::new(format!("`{shown}` is over 1 MiB; use `search`, or `read_file` with `line`")));
    }
    Ok(())
}

fn languages() -> String {
    let mut titles: Vec<_> = SourceLanguage::ALL.iter().map(|language| language.title()).collect();
    titles.dedup();
    titles.join(", ")
}

fn read_source(roots: &[PathBuf], path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // A file may have grown since it was listed.
    paths::open(roots, path)?.take(MAX_FILE_SIZE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The source files of a folder, or one file.
struct SourceList {
    files: Vec<CodeFile>,
    too_large: usize,
    has_more: bool,
    unreadable: walk::UnreadableEntries,
}

impl SourceList {
    fn collect(call: &CallContext, place: &Path) -> Result<Self, ToolRefusal> {
        let mut list =
            Self { files: Vec::new(), too_large: 0, has_more: false, unreadable: walk::UnreadableEntries::default() };
        for entry in walk::walk_folder(&call.session, place).build() {
            if call.cancel.is_cancelled() {
                return Err(ToolRefusal::new("the call was cancelled"));
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    list.unreadable.add(&error);
                    continue;
                }
            };
            let Some(language) = SourceLanguage::of_path(entry.path()) else { continue };
            if !entry.file_type().is_some_and(|kind| kind.is_file()) {
                continue;
            }
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) => {
                    list.unreadable.add(&error);
                    continue;
                }
            };
            if metadata.len() > MAX_FILE_SIZE {
                list.too_large += 1;
            } else if list.files.len() == MAX_FILES {
                list.has_more = true;
                break;
            } else {
                let (size, modified) = (metadata.len(), metadata.modified().ok());
                list.files.push(CodeFile { path: entry.into_path(), language, size, modified });
            }
        }
        Ok(list)
    }
}

/// Writes the answers.
struct CodeView<'a> {
    call: &'a CallContext,
    index: &'a CodeIndex<'a>,
    sources: &'a SourceList,
    shown: &'a str,
}

impl CodeView<'_> {
    /// Lists all definitions of the files. Returns `None` if that takes more than `budget` bytes.
    fn outline(&self, budget: usize) -> Option<String> {
        // Often the headings alone are too long, and nothing needs to be parsed.
        let mut headings = 0;
        for file in &self.index.files {
            headings += self.heading(file).len();
            if headings > budget {
                return None;
            }
        }
        let mut listing = String::new();
        for at in self.index.parse_in_turn((0..self.index.files.len()).collect()) {
            let (Some(file), symbols) = (self.index.files.get(at), self.index.symbols(at)) else { continue };
            listing.push_str(&self.heading(file));
            if symbols.definitions.is_empty() {
                listing.push_str("  (no definitions)\n");
            }
            for definition in &symbols.definitions {
                listing.push_str(&line_of(symbols, definition));
            }
            if listing.len() > budget {
                return None;
            }
        }
        Some(listing)
    }

    /// Lists the most used files and definitions, in at most about `budget` bytes.
    fn overview(&self, budget: usize) -> String {
        if self.index.files.is_empty() {
            return format!(
                "no source files in `{}`; `analyze` knows {} (ignored files are left out)\n",
                self.shown,
                languages()
            );
        }
        let summary = self.summary();
        if let Some(whole) = self.outline(budget.saturating_sub(summary.len())) {
            return summary + "\n" + &whole;
        }
        let mut listing = summary + "Most used first:\n\n";
        let mut files = 0;
        let rank = CodeRank::new(self.index);
        for at in self.index.parse_in_turn(rank.files.clone()) {
            let Some(file) = self.index.files.get(at) else { continue };
            let block = self.most_used(at, file, &rank);
            if files > 0 && listing.len() + block.len() > budget {
                break;
            }
            listing.push_str(&block);
            files += 1;
        }
        if files < self.index.files.len() {
            let left = count(self.index.files.len() - files, "more file");
            listing.push_str(&format!("[{left}; raise `budget`, or analyse a folder or file below]\n"));
        }
        listing
    }

    fn summary(&self) -> String {
        let mut languages: BTreeMap<&str, usize> = BTreeMap::new();
        for file in &self.index.files {
            *languages.entry(file.source.language.title()).or_default() += 1;
        }
        let mut languages: Vec<_> = languages.into_iter().collect();
        languages.sort_by_key(|(_, files)| std::cmp::Reverse(*files));
        let languages: Vec<_> = languages.iter().map(|(title, files)| format!("{files} {title}")).collect();
        let lines = self.index.files.iter().map(|file| usize::try_from(file.lines()).unwrap_or(usize::MAX));
        let mut summary = format!(
            "{}: {} ({}), {}\n",
            self.shown,
            count(self.index.files.len(), "source file"),
            languages.join(", "),
            count(lines.fold(0, usize::saturating_add), "line"),
        );
        if self.sources.too_large > 0 {
            summary.push_str(&format!("[{} over 1 MiB left out]\n", count(self.sources.too_large, "file")));
        }
        if self.sources.has_more {
            summary.push_str(&format!("[stopped after {MAX_FILES} files; analyse a folder below]\n"));
        }
        summary
    }

    /// Lists the most used definitions of a file, in the order of the text.
    fn most_used(&self, at: usize, file: &IndexedFile, rank: &CodeRank) -> String {
        let symbols = self.index.symbols(at);
        let mut chosen: Vec<_> =
            symbols.definitions.iter().enumerate().map(|(order, known)| (rank.users(at, &known.name), order)).collect();
        chosen.sort_by(|left, right| right.0.total_cmp(&left.0).then(left.1.cmp(&right.1)));
        chosen.truncate(MAX_PER_FILE);
        chosen.sort_by_key(|(_, order)| *order);
        let mut block = self.heading(file);
        let known = chosen.iter().filter_map(|(_, order)| symbols.definitions.get(*order));
        block.extend(known.map(|definition| line_of(symbols, definition)));
        let left = symbols.definitions.len() - chosen.len();
        if left > 0 {
            block.push_str(&format!("  [{left} more]\n"));
        }
        block
    }

    fn heading(&self, file: &IndexedFile) -> String {
        let lines = count(usize::try_from(file.lines()).unwrap_or(usize::MAX), "line");
        let path = paths::display_path(&self.call.session, &file.source.path);
        format!("{path} ({}, {lines})\n", file.source.language.title())
    }

    /// Describes a symbol: definitions, callers, callees and uses.
    fn symbol(&self, focus: &str, name: &SymbolName, depth: usize) -> String {
        let graph = CallGraph::new(self.index);
        let found = graph.find(name, MAX_DEFINITIONS + 1);
        let mut listing = String::new();
        if found.is_empty() {
            let similar = graph.similar_names(&name.name, 10);
            listing.push_str(&format!("no definition of `{}` in `{}`", paths::printable(focus), self.shown));
            let advice = if similar.is_empty() {
                "; look with `search`".to_owned()
            } else {
                format!("; similar: {}", similar.join(", "))
            };
            listing.push_str(&advice);
            listing.push('\n');
        }
        let is_clear = found.len() <= MAX_DEFINITIONS;
        for id in found.iter().take(MAX_DEFINITIONS) {
            let (Some(file), Some(definition)) = (self.index.files.get(id.file), graph.definition(*id)) else {
                continue;
            };
            report::place(self.call, &file.source.path, usize::try_from(definition.first_line).ok());
            listing.push_str(&format!("{}\n", self.place(&graph, *id)));
            if is_clear {
                self.calls(&graph, *id, depth, &mut listing);
            }
        }
        if !is_clear {
            listing.push_str("[more definitions exist; for calls, narrow `path` or write `Type::name`]\n");
        }
        listing.push_str(&self.uses());
        listing
    }

    /// Lists the callers and callees of a definition.
    fn calls(&self, graph: &CallGraph<'_>, id: DefinitionId, depth: usize, listing: &mut String) {
        for (title, direction) in [("called by", CallDirection::Callers), ("calls", CallDirection::Callees)] {
            let tree = graph.tree(id, direction, depth);
            if !tree.is_empty() {
                listing.push_str(&format!("  {title}\n"));
                self.draw(graph, &tree, direction, 2, listing);
            }
        }
        let common = graph.common_callees(id);
        if !common.is_empty() {
            let names = common.join(", ");
            listing.push_str(&format!("  [not followed, defined in more than {MAX_DEFINERS} files: {names}]\n"));
        }
    }

    fn draw(
        &self,
        graph: &CallGraph<'_>,
        trees: &[CallTree],
        direction: CallDirection,
        depth: usize,
        listing: &mut String,
    ) {
        for tree in trees {
            let lines: Vec<_> = tree.lines.iter().map(u32::to_string).collect();
            let at = match direction {
                CallDirection::Callers => format!("calls on line {}", lines.join(", ")),
                CallDirection::Callees => format!("called on line {}", lines.join(", ")),
            };
            let again = if tree.is_repeated { "; see above" } else { "" };
            listing.push_str(&format!("{}{}  [{at}{again}]\n", "  ".repeat(depth), self.place(graph, tree.definition)));
            self.draw(graph, &tree.next, direction, depth + 1, listing);
        }
    }

    fn place(&self, graph: &CallGraph<'_>, id: DefinitionId) -> String {
        let (Some(file), Some(definition)) = (self.index.files.get(id.file), graph.definition(id)) else {
            return String::new();
        };
        let parent = self.index.symbols(id.file).parent_of(definition);
        let parent = parent.map(|parent| format!(" in {}", parent.name)).unwrap_or_default();
        let path = paths::display_path(&self.call.session, &file.source.path);
        format!("{path}:{} {}{parent}", definition.first_line, definition.signature)
    }

    /// Lists the first lines with the name of the focus. Files after them are not parsed.
    fn uses(&self) -> String {
        let mut listing = String::new();
        let (mut lines, mut files) = (0, 0);
        for (at, found) in self.index.focus_lines(MAX_USES + 1) {
            let Some(file) = self.index.files.get(at) else { continue };
            files += 1;
            let shown: Vec<_> = found.iter().take(MAX_USES.saturating_sub(lines)).map(u32::to_string).collect();
            lines += found.len();
            if !shown.is_empty() {
                let path = paths::display_path(&self.call.session, &file.source.path);
                listing.push_str(&format!("  {path}: {}\n", shown.join(", ")));
            }
        }
        match lines {
            0 => "no uses of this name\n".to_owned(),
            1..=MAX_USES => {
                format!("uses by name, on {} of {}\n{listing}", count(lines, "line"), count(files, "file"))
            }
            _ => format!("uses by name, the first {MAX_USES} lines; narrow `path` for others\n{listing}"),
        }
    }
}

fn line_of(symbols: &FileSymbols, definition: &Definition) -> String {
    let indent = "  ".repeat(symbols.depth(definition) + 1);
    format!("{indent}{}-{} {}\n", definition.first_line, definition.last_line, definition.signature)
}

#[cfg(test)]
#[path = "analyze_tests.rs"]
mod tests;
