//! Builds the import graph between the files of `src/`, and finds cycles in it.
//!
//! An import is a `use` or a path in the code that leads to an item of another file, through re-exports. A re-export
//! itself is no import. A file may use what the file above it in the module tree defines: `a/b.rs` may use `a.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

/// The path of a file in the module tree: `["broker", "binding"]`.
type Module = Vec<String>;

pub(crate) struct ImportGraph {
    code: BTreeMap<Module, String>,
    /// The target of each re-exported name.
    reexports: BTreeMap<(Module, String), Vec<String>>,
    edges: BTreeMap<Module, BTreeSet<Module>>,
}

/// One name that a `use` declaration brings into scope.
struct ImportedName {
    path: Vec<String>,
    name: String,
    reexport: bool,
}

impl ImportGraph {
    /// Builds the graph from the code of each file, without comments and tests, keyed by `broker/binding.rs`.
    pub(crate) fn new(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let module = |path: &str| path.trim_end_matches(".rs").split('/').map(str::to_owned).collect::<Module>();
        let code = files.into_iter().map(|(path, code)| (module(&path), code)).collect();
        let mut graph = Self { code, reexports: BTreeMap::new(), edges: BTreeMap::new() };
        let mut imports: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (module, code) in &graph.code {
            let of_file = imported_names(code).into_iter();
            let of_file = of_file.filter_map(|import| Some((graph.absolute(module, &import.path)?, import)));
            imports.insert(module.clone(), of_file.collect());
        }
        for (module, of_file) in &imports {
            for (target, import) in of_file.iter().filter(|(_, import)| import.reexport) {
                graph.reexports.insert((module.clone(), import.name.clone()), target.clone());
            }
        }
        for (module, of_file) in &imports {
            let used = of_file.iter().filter(|(_, import)| !import.reexport).map(|(target, _)| target.clone());
            let aliases = of_file.iter().map(|(target, import)| (import.name.as_str(), target)).collect();
            let targets: Vec<_> = used.chain(graph.paths_in_body(module, &aliases)).collect();
            let edges =
                targets.iter().filter_map(|target| graph.file_of(target)).filter(|file| !module.starts_with(file));
            graph.edges.insert(module.clone(), edges.collect());
        }
        graph
    }

    /// Returns the files of a cycle, the first one again at the end. `None` if there is no cycle.
    pub(crate) fn cycle(&self) -> Option<Vec<String>> {
        let mut done = BTreeSet::new();
        let found = self.edges.keys().find_map(|module| self.cycle_from(module, &mut Vec::new(), &mut done))?;
        Some(found.iter().map(|module| format!("src/{}.rs", module.join("/"))).collect())
    }

    fn cycle_from(&self, module: &Module, path: &mut Vec<Module>, done: &mut BTreeSet<Module>) -> Option<Vec<Module>> {
        if let Some(start) = path.iter().position(|before| before == module) {
            return Some(path[start..].iter().chain([module]).cloned().collect());
        }
        if done.contains(module) {
            return None;
        }
        path.push(module.clone());
        let used = self.edges.get(module).into_iter().flatten();
        let found = used.into_iter().find_map(|next| self.cycle_from(next, path, done));
        path.pop();
        done.insert(module.clone());
        found
    }

    /// Returns a path from the root of the crate. `None` for a path into another crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Vec<String>> {
        let supers = path.iter().take_while(|segment| *segment == "super").count();
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([module, &path[1..]].concat()),
            "super" => Some([&module[..module.len().checked_sub(supers)?], &path[supers..]].concat()),
            child => {
                let below = [module.as_slice(), &[child.to_owned()]].concat();
                self.code.contains_key(&below).then(|| [module, path].concat())
            }
        }
    }

    /// Returns the file that defines the item of a path, behind re-exports. `None` if the path names only a module, whose
    /// items are then used by further paths.
    fn file_of(&self, path: &[String]) -> Option<Module> {
        let mut path = path.to_vec();
        // More re-exports in a row than this do not occur.
        for _ in 0..10 {
            let depth = (1..=path.len()).rev().find(|depth| self.code.contains_key(&path[..*depth]))?;
            let (file, item) = (path[..depth].to_vec(), path.get(depth)?.clone());
            match self.reexports.get(&(file.clone(), item)) {
                Some(target) => path = [target.as_slice(), &path[depth + 1..]].concat(),
                None => return Some(file),
            }
        }
        None
    }

    /// Returns the paths in the code of a file, outside its `use` declarations.
    fn paths_in_body(&self, module: &Module, aliases: &BTreeMap<&str, &Vec<String>>) -> Vec<Vec<String>> {
        let code = &self.code[module];
        let body = USE.replace_all(code, "");
        let mut paths = Vec::new();
        for found in PATH.find_iter(&body) {
            let path: Vec<_> = found.as_str().split("::").map(str::to_owned).collect();
            let declared = || code.contains(&format!("mod {};", path[0]));
            let target = match (path[0].as_str(), aliases.get(path[0].as_str())) {
                ("crate" | "super" | "self", _) => self.absolute(module, &path),
                (_, Some(alias)) => Some([alias.as_slice(), &path[1..]].concat()),
                (_, None) if declared() => self.absolute(module, &path),
                (_, None) => None,
            };
            paths.extend(target);
        }
        paths
    }
}

static USE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m-u)^[ \t]*(pub(?:\([\w: ]*\))? )?use ([\w:{},*\s]+);").expect("a pattern"));
static PATH: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?-u)\b[a-z_]\w*(?:::\w+)+").expect("a pattern"));

fn imported_names(code: &str) -> Vec<ImportedName> {
    let mut names = Vec::new();
    for found in USE.captures_iter(code) {
        expand(&found[2], &[], found.get(1).is_some(), &mut names);
    }
    names
}

/// Adds the names of a use tree: `a::{b, c::{self, d as e}}`.
fn expand(tree: &str, prefix: &[String], reexport: bool, names: &mut Vec<ImportedName>) {
    let tree = tree.trim();
    if let Some((head, list)) = tree.split_once('{') {
        let head = head.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned);
        let prefix: Vec<_> = prefix.iter().cloned().chain(head).collect();
        let Some(list) = list.strip_suffix('}') else { return };
        let (mut depth, mut start) = (0_i32, 0);
        for (at, c) in list.char_indices() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == ',' && depth == 0 {
                expand(&list[start..at], &prefix, reexport, names);
                start = at + 1;
            }
        }
        return expand(&list[start..], &prefix, reexport, names);
    }
    if tree.is_empty() {
        return;
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
    let mut path: Vec<_> = prefix.iter().cloned().chain(path.split("::").map(|name| name.trim().to_owned())).collect();
    if path.len() > 1 {
        path.pop_if(|last| last == "self");
    }
    let name = alias.map(str::to_owned).or_else(|| path.last().cloned()).unwrap_or_default();
    names.push(ImportedName { path, name, reexport });
}
