//! The rules of ignore files at the time of a snapshot.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::snapshot::{IGNORE_FILES, Snapshot};

/// What was ignored at the time of a snapshot.
pub(super) struct IgnoreRules<'a> {
    roots: &'a [PathBuf],
    /// By kind of file, then by folder.
    rules: [BTreeMap<&'a Path, Gitignore>; 2],
}

impl<'a> IgnoreRules<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let rules = IGNORE_FILES.map(|name| {
            let files = snapshot.ignore_files.iter();
            let folders = files.filter_map(|(file, text)| Some((file.strip_suffix(name)?, text)));
            folders.filter_map(|(folder, text)| Some((Path::new(folder), parse(Path::new(folder), text)?))).collect()
        });
        Self { roots: &snapshot.roots, rules }
    }

    /// Returns true if the path was ignored, or a folder above it.
    pub(super) fn ignores(&self, path: &Path, is_folder: bool) -> bool {
        let is_in_root = |part: &&Path| self.roots.iter().any(|root| part.starts_with(root) && *part != root);
        path.ancestors().take_while(is_in_root).any(|part| self.matches(part, is_folder || part != path))
    }

    /// The rules of an inner folder have precedence over those of outer ones.
    fn matches(&self, path: &Path, is_folder: bool) -> bool {
        let outwards = self.rules.iter().flat_map(|rules| path.ancestors().skip(1).map(|folder| rules.get(folder)));
        let mut matched = outwards.flatten().map(|rules| rules.matched(path, is_folder));
        matched.find(|matched| !matched.is_none()).is_some_and(|matched| matches!(matched, Match::Ignore(_)))
    }
}

/// Returns the rules of one file. As in git, lines that are not valid do not count.
fn parse(folder: &Path, text: &str) -> Option<Gitignore> {
    let mut builder = GitignoreBuilder::new(folder);
    for line in text.lines() {
        if let Err(error) = builder.add_line(None, line) {
            tracing::debug!(%error, "a rule of an ignore file is not valid");
        }
    }
    builder.build().ok()
}
