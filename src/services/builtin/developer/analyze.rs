//! Implements `analyze`: the outline of a file, an overview of a folder, or who calls a symbol and what it calls.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::code_index::{
    CallDirection, CallGraph, CallTree, CodeFile, CodeIndex, Definition, DefinitionId, FileRank, IndexedFile,
    MAX_FILE_SIZE, SourceLanguage, SymbolCache, SymbolName, rank,
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
    let sources = SourceList::collect(call, &place)?;
    let roots = paths::roots(&call.session);
    let read = |path: &Path| read_source(&roots, path);
    let is_cancelled = || call.cancel.is_cancelled();
    let index = CodeIndex::build(cache, &sources.files, &read, &is_cancelled)
        .ok_or_else(|| ToolRefusal::new("the call was cancelled"))?;
    let view = CodeView { call, index: &index, sources: &sources, shown: &shown };
    let listing = match &request.focus {
        Some(focus) => view.symbol(focus, request.depth.unwrap_or(DEFAULT_DEPTH).clamp(1, MAX_DEPTH), &read)?,
        None if metadata.is_file() => view.outline(),
        None => view.overview(request.budget.unwrap_or(DEFAULT_BUDGET).min(MAX_BUDGET) * BYTES_PER_TOKEN),
    };
    Ok(text(output::excerpt(&listing)))
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
}

impl SourceList {
    fn collect(call: &CallContext, place: &Path) -> Result<Self, ToolRefusal> {
        let mut list = Self { files: Vec::new(), too_large: 0, has_more: false };
        for entry in walk::walk_folder(&call.session, place).build() {
            if call.cancel.is_cancelled() {
                return Err(ToolRefusal::new("the call was cancelled"));
            }
            // Entries that cannot be read are omitted.
            let Ok(entry) = entry else { continue };
            let Some(language) = SourceLanguage::of_path(entry.path()) else { continue };
            if !entry.file_type().is_some_and(|kind| kind.is_file()) {
                continue;
            }
            let Ok(metadata) = entry.metadata() else { continue };
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
    index: &'a CodeIndex,
    sources: &'a SourceList,
    shown: &'a str,
}

impl CodeView<'_> {
    /// Lists all definitions of the files.
    fn outline(&self) -> String {
        let mut listing = String::new();
        for file in &self.index.files {
            listing.push_str(&self.heading(file));
            if file.symbols.definitions.is_empty() {
                listing.push_str("  (no definitions)\n");
            }
            for definition in &file.symbols.definitions {
                listing.push_str(&line_of(file, definition));
            }
        }
        listing
    }

    /// Lists the most used files and definitions, in at most about `budget` bytes.
    fn overview(&self, budget: usize) -> String {
        if self.index.files.is_empty() {
            return format!(
                "no source files in `{}`; `analyze` knows {} (ignored files are left out)",
                self.shown,
                languages()
            );
        }
        let summary = self.summary();
        let whole = self.outline();
        if summary.len() + whole.len() <= budget {
            return summary + "\n" + &whole;
        }
        let mut listing = summary + "Most used first:\n\n";
        let mut files = 0;
        for ranked in rank(self.index) {
            let Some(file) = self.index.files.get(ranked.file) else { continue };
            let block = self.most_used(file, &ranked);
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
            *languages.entry(file.language.title()).or_default() += 1;
        }
        let mut languages: Vec<_> = languages.into_iter().collect();
        languages.sort_by_key(|(_, files)| std::cmp::Reverse(*files));
        let languages: Vec<_> = languages.iter().map(|(title, files)| format!("{files} {title}")).collect();
        let definitions = self.index.files.iter().map(|file| file.symbols.definitions.len()).sum();
        let mut summary = format!(
            "{}: {} ({}), {}\n",
            self.shown,
            count(self.index.files.len(), "source file"),
            languages.join(", "),
            count(definitions, "definition"),
        );
        let mut remark = |number: usize, text: &str| {
            if number > 0 {
                summary.push_str(&format!("[{} {text}]\n", count(number, "file")));
            }
        };
        remark(self.sources.too_large, "over 1 MiB left out");
        remark(self.index.unreadable.len(), "could not be read");
        if self.sources.has_more {
            summary.push_str(&format!("[stopped after {MAX_FILES} files; analyse a folder below]\n"));
        }
        summary
    }

    /// Lists the most used definitions of a file, in the order of the text.
    fn most_used(&self, file: &IndexedFile, ranked: &FileRank) -> String {
        let mut chosen: Vec<usize> = (0..file.symbols.definitions.len()).collect();
        chosen.sort_by(|left, right| ranked.definitions[*right].total_cmp(&ranked.definitions[*left]));
        chosen.truncate(MAX_PER_FILE);
        chosen.sort_unstable();
        let mut block = self.heading(file);
        block.extend(chosen.iter().map(|index| line_of(file, &file.symbols.definitions[*index])));
        let left = file.symbols.definitions.len() - chosen.len();
        if left > 0 {
            block.push_str(&format!("  [{left} more]\n"));
        }
        block
    }

    fn heading(&self, file: &IndexedFile) -> String {
        let lines = count(usize::try_from(file.symbols.lines).unwrap_or(usize::MAX), "line");
        format!("{} ({}, {lines})\n", paths::display_path(&self.call.session, &file.path), file.language.title())
    }

    /// Describes a symbol: definitions, callers, callees and uses.
    fn symbol(
        &self,
        focus: &str,
        depth: usize,
        read: &(dyn Fn(&Path) -> io::Result<Vec<u8>> + Sync),
    ) -> Result<String, ToolRefusal> {
        let name = SymbolName::parse(focus);
        let graph = CallGraph::new(self.index);
        let found = graph.find(&name);
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
        for id in found.iter().take(MAX_DEFINITIONS) {
            let (Some(file), Some(definition)) = (self.index.files.get(id.file), graph.definition(*id)) else {
                continue;
            };
            report::place(self.call, &file.path, usize::try_from(definition.first_line).ok());
            listing.push_str(&format!("{}\n", self.place(&graph, *id)));
            for (title, direction) in [("called by", CallDirection::Callers), ("calls", CallDirection::Callees)] {
                let tree = graph.tree(*id, direction, depth);
                if !tree.is_empty() {
                    listing.push_str(&format!("  {title}\n"));
                    self.draw(&graph, &tree, direction, 2, &mut listing);
                }
            }
        }
        if found.len() > MAX_DEFINITIONS {
            let left = count(found.len() - MAX_DEFINITIONS, "more definition");
            listing.push_str(&format!("[{left}; narrow `path`, or write `Type::name`]\n"));
        }
        listing.push_str(&self.uses(&name.name, read));
        Ok(listing)
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
        let parent =
            file.symbols.parent_of(definition).map(|parent| format!(" in {}", parent.name)).unwrap_or_default();
        let path = paths::display_path(&self.call.session, &file.path);
        format!("{path}:{} {}{parent}", definition.first_line, definition.signature)
    }

    /// Lists the lines with this identifier. Only files that contain the text are parsed again.
    fn uses(&self, name: &str, read: &(dyn Fn(&Path) -> io::Result<Vec<u8>> + Sync)) -> String {
        let mut listing = String::new();
        let (mut lines, mut files) = (0, 0);
        let is_cancelled = || self.call.cancel.is_cancelled();
        for (index, found) in self.index.lines_with_name(name, read, &is_cancelled) {
            let Some(file) = self.index.files.get(index) else { continue };
            files += 1;
            let shown: Vec<_> = found.iter().take(MAX_USES.saturating_sub(lines)).map(u32::to_string).collect();
            lines += found.len();
            if !shown.is_empty() {
                let path = paths::display_path(&self.call.session, &file.path);
                listing.push_str(&format!("  {path}: {}\n", shown.join(", ")));
            }
        }
        if lines == 0 {
            return "no uses of this name\n".to_owned();
        }
        let more = if lines > MAX_USES { format!("; the first {MAX_USES} are shown") } else { String::new() };
        format!("uses by name, on {} of {}{more}\n{listing}", count(lines, "line"), count(files, "file"))
    }
}

fn line_of(file: &IndexedFile, definition: &Definition) -> String {
    let indent = "  ".repeat(file.symbols.depth(definition) + 1);
    format!("{indent}{}-{} {}\n", definition.first_line, definition.last_line, definition.signature)
}

#[cfg(test)]
#[path = "analyze_tests.rs"]
mod tests;
