//! Finds the skills, recipes and agent files for a folder: those of the project, nearest first, then those of the
//! user. The first item of a name is used, and the others are reported.
//!
//! Invariant: a project item is read only if its path, with links resolved, is in the project.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::file::{MAX_FILE, contents};
use super::item::{self, Item, ItemDocument, ItemKind, ItemOrigin, Problem};
use super::source_text::{Wrong, display_name};
use crate::services::UserFolders;
use crate::store::project_root;

/// Maximum number of entries read in one folder.
const MAX_ENTRIES: usize = 500;
/// Maximum bytes of metadata from all files of a project, because every listing reads them. Each file counts at
/// least `LEAST` bytes, which also limits their number.
const MAX_PROJECT: usize = 512 * 1024;
const LEAST: usize = 512;

/// The result of one search.
#[derive(Debug, Default)]
pub(super) struct KnowledgeItems {
    /// Sorted by name; each name occurs once.
    pub(super) items: Vec<Item>,
    pub(super) problems: Vec<Problem>,
    pub(super) shadowed: Vec<ShadowedItem>,
}

/// An item that is not used because another has its name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ShadowedItem {
    pub(super) name: String,
    pub(super) kind: ItemKind,
    pub(super) file: String,
    pub(super) by: String,
}

impl KnowledgeItems {
    pub(super) fn get(&self, name: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.name == name)
    }

    /// Returns the unusable files whose name no usable item has, each name once.
    pub(super) fn unusable(&self) -> impl Iterator<Item = &Problem> {
        let mut seen = HashSet::new();
        let own = |of: &&Problem| item::check_name(&of.name, None).is_ok() && self.get(&of.name).is_none();
        self.problems.iter().filter(own).filter(move |of| seen.insert(of.name.as_str()))
    }
}

/// Finds everything that a session in `cwd` can load.
pub(super) fn find(cwd: &Path, user: &UserFolders) -> KnowledgeItems {
    let root = project_root(cwd);
    let real = fs::canonicalize(cwd).unwrap_or_else(|_| cwd.to_owned());
    let mut search = ItemSearch {
        root: root.clone(),
        home: user.home.clone(),
        seen: HashSet::new(),
        left: Some(MAX_PROJECT),
        found: KnowledgeItems::default(),
    };
    let of_user = user_folders(user);
    // Every prompt searches, and most projects have none of these folders. So links are resolved only for one that exists.
    let own: LazyCell<HashSet<_>, _> =
        LazyCell::new(|| of_user.iter().filter_map(|(_, folder)| fs::canonicalize(folder).ok()).collect());
    for place in real.ancestors().take_while(|place| place.starts_with(&root)) {
        for (kind, folder) in PROJECT {
            let folder = place.join(folder);
            // The project may be the user's home, whose folders are searched as the user's.
            if folder.exists() && !fs::canonicalize(&folder).is_ok_and(|real| own.contains(&real)) {
                search.folder(kind, ItemOrigin::Project, &folder);
            }
        }
    }
    for (kind, folder) in &of_user {
        search.folder(*kind, ItemOrigin::User, folder);
    }
    let mut found = search.found;
    found.items.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

const PROJECT: [(ItemKind, &str); 7] = [
    (ItemKind::Skill, ".agents/skills"),
    (ItemKind::Skill, ".claude/skills"),
    (ItemKind::Skill, ".goose/skills"),
    (ItemKind::Recipe, ".goose/recipes"),
    (ItemKind::Agent, ".agents/agents"),
    (ItemKind::Agent, ".claude/agents"),
    (ItemKind::Agent, ".goose/agents"),
];

fn user_folders(user: &UserFolders) -> Vec<(ItemKind, PathBuf)> {
    let UserFolders { home, config_home, config } = user;
    let folders = [
        (ItemKind::Skill, config, "skills"),
        (ItemKind::Skill, home, ".agents/skills"),
        (ItemKind::Skill, home, ".claude/skills"),
        (ItemKind::Skill, config_home, "goose/skills"),
        (ItemKind::Recipe, config, "recipes"),
        (ItemKind::Recipe, config_home, "goose/recipes"),
        (ItemKind::Agent, home, ".agents/agents"),
        (ItemKind::Agent, home, ".claude/agents"),
        (ItemKind::Agent, config_home, "goose/agents"),
    ];
    let known = folders.into_iter().filter(|(_, base, _)| !base.as_os_str().is_empty());
    known.map(|(kind, base, folder)| (kind, base.join(folder))).collect()
}

struct ItemSearch {
    root: PathBuf,
    home: PathBuf,
    /// Resolved paths of the files read, so that a file reachable by two paths counts once.
    seen: HashSet<PathBuf>,
    /// Rest of [`MAX_PROJECT`]; `None` once the limit was exceeded and reported.
    left: Option<usize>,
    found: KnowledgeItems,
}

impl ItemSearch {
    fn folder(&mut self, kind: ItemKind, origin: ItemOrigin, folder: &Path) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        // Names of entries outside the project are not revealed.
        if origin == ItemOrigin::Project && !fs::canonicalize(folder).is_ok_and(|real| real.starts_with(&self.root)) {
            return self.add_problem(String::new(), folder, leads_out());
        }
        let mut entries: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        entries.sort();
        if entries.len() > MAX_ENTRIES {
            let problem = format!("it holds {} entries, of which {MAX_ENTRIES} are looked at", entries.len());
            self.add_problem(String::new(), folder, Wrong::new(problem, "move what is not used elsewhere"));
            entries.truncate(MAX_ENTRIES);
        }
        for entry in entries {
            if let Some((name, file)) = candidate(kind, &entry) {
                self.file(kind, origin, name, &file);
            }
        }
    }

    fn file(&mut self, kind: ItemKind, origin: ItemOrigin, name: String, file: &Path) {
        if origin == ItemOrigin::Project && self.left.is_none() {
            return;
        }
        match self.read(kind, origin, &name, file) {
            Ok(None) => {}
            Ok(Some(item)) => match self.found.get(&item.name) {
                Some(used) => {
                    let by = used.shown.clone();
                    self.found.shadowed.push(ShadowedItem { name: item.name, kind, file: item.shown, by });
                }
                None => self.found.items.push(item),
            },
            Err(wrong) => self.add_problem(name, file, wrong),
        }
    }

    fn add_problem(&mut self, name: String, file: &Path, Wrong { at, problem, help }: Wrong) {
        let file = self.display_path(file);
        self.found.problems.push(Problem { name, file, at, problem, help });
    }

    /// Reads an item from a file. `None` if it was read before or exceeds the project's limit.
    fn read(&mut self, kind: ItemKind, origin: ItemOrigin, name: &str, file: &Path) -> Result<Option<Item>, Wrong> {
        let (real, folder) = self.locate(kind, origin, file)?;
        if !self.seen.insert(real.clone()) {
            return Ok(None);
        }
        let text = text(&real)?;
        if origin == ItemOrigin::Project && !self.spend(item::weight(kind, &text).max(LEAST)) {
            return Ok(None);
        }
        let ItemDocument { name, description, recipe, .. } = item::read(kind, name, &real, &text)?;
        Ok(Some(Item { kind, name, description, origin, shown: self.display_path(file), file: real, folder, recipe }))
    }

    /// Takes `bytes` from the project's limit. Returns `false` if it is exceeded, and reports that once.
    fn spend(&mut self, bytes: usize) -> bool {
        self.left = self.left.and_then(|left| left.checked_sub(bytes));
        if self.left.is_none() {
            let problem = format!("what its files say of themselves takes more than {} kB", MAX_PROJECT / 1024);
            let wrong = Wrong::new(problem, "the rest is ignored; remove unused files");
            self.found.problems.push(Problem {
                name: String::new(),
                file: "the project".to_owned(),
                at: wrong.at,
                problem: wrong.problem,
                help: wrong.help,
            });
        }
        self.left.is_some()
    }

    /// Returns the resolved path of a file and, for a skill, the folder that its files must be in.
    fn locate(&self, kind: ItemKind, origin: ItemOrigin, file: &Path) -> Result<(PathBuf, Option<PathBuf>), Wrong> {
        let real = fs::canonicalize(file)
            .map_err(|error| Wrong::new(format!("it cannot be read: {error}"), "correct the link or remove it"))?;
        // A link in a cloned project may point to a private key. The user chose the links in the user's folders.
        if origin == ItemOrigin::Project && !real.starts_with(&self.root) {
            return Err(leads_out());
        }
        let folder = match kind {
            ItemKind::Skill => file.parent().and_then(|folder| fs::canonicalize(folder).ok()),
            ItemKind::Recipe | ItemKind::Agent => None,
        };
        if folder.as_ref().is_some_and(|folder| !real.starts_with(folder)) {
            return Err(Wrong::new("it is a link that leads out of the skill's folder", "put the text itself there"));
        }
        Ok((real, folder))
    }

    /// Formats a path relative to the project or the home folder.
    fn display_path(&self, path: &Path) -> String {
        display_name(&match (path.strip_prefix(&self.root), path.strip_prefix(&self.home)) {
            (Ok(below), _) => below.to_string_lossy(),
            (_, Ok(below)) if !self.home.as_os_str().is_empty() => format!("~/{}", below.display()).into(),
            _ => path.to_string_lossy(),
        })
    }
}

/// Returns the name of a folder entry and the file to read; `None` if it is not an item.
fn candidate(kind: ItemKind, entry: &Path) -> Option<(String, PathBuf)> {
    let name = entry.file_name()?.to_string_lossy().into_owned();
    if name.starts_with('.') {
        return None;
    }
    let extension = entry.extension().map(|extension| extension.to_string_lossy()).unwrap_or_default();
    let stem = entry.file_stem()?.to_string_lossy().into_owned();
    match kind {
        ItemKind::Skill => {
            let file = entry.join("SKILL.md");
            // A dangling link is reported later; a folder without the file is not a skill.
            fs::symlink_metadata(&file).is_ok().then_some((name, file))
        }
        ItemKind::Recipe => ["yaml", "yml", "json"].contains(&&*extension).then(|| (stem, entry.to_owned())),
        ItemKind::Agent => (extension == "md" && stem != "README").then(|| (stem, entry.to_owned())),
    }
}

fn leads_out() -> Wrong {
    let help = "copy it into the project, or into a folder of your own such as ~/.agents";
    Wrong::new("it is a link that leads out of the project", help)
}

/// Reads a text file. The caller has resolved and checked the path.
pub(super) fn text(real: &Path) -> Result<String, Wrong> {
    let bytes =
        contents(real).map_err(|problem| Wrong::new(problem.to_string(), "make it a text file that can be read"))?;
    if bytes.len() as u64 > MAX_FILE {
        let help = "keep what is always needed, and put the rest into files next to it";
        return Err(Wrong::new(format!("it has more than {} kB", MAX_FILE / 1024), help));
    }
    String::from_utf8(bytes).map_err(|_| Wrong::new("it is not UTF-8 text", "save it as UTF-8"))
}
