//! The git configs that git inside a sandbox gets instead of the real ones, so that submodules work without writing one.
//!
//! A git config is protected, and `git submodule update` writes two: it registers URLs in the config of the project, and
//! it stores `core.worktree` in the config of each submodule. Git writes neither if the URLs are there and the place is
//! not. So the sandbox shows read-only copies with this difference; the real files stay as they are.

use std::fs;
use std::path::{Path, PathBuf};

/// Larger files are shown as they are.
const MAX_BYTES: u64 = 1 << 20;
const MODULES: &str = "modules";
/// Ways to update a submodule that name no program.
const UPDATES: [&str; 4] = ["checkout", "rebase", "merge", "none"];

/// Returns the text of a git config as git inside gets it. `roots` are folders that may contain `.gitmodules`. `None` if
/// the file is shown as it is.
pub(super) fn config_inside(config: &Path, roots: &[PathBuf]) -> Option<String> {
    let folder = config.parent().filter(|_| config.file_name().is_some_and(|name| name == "config"))?;
    let text = read(config)?;
    let entries = entries(&text)?;
    let place = entries.iter().find(|entry| entry.is("core", None, "worktree"));
    let is_module = folder.ancestors().skip(1).any(|above| above.file_name().is_some_and(|name| name == MODULES));
    let work_trees = match place.filter(|_| is_module) {
        Some(place) => vec![folder.join(&place.value)],
        // The git folder of a worktree is outside of it, and one of the folders that the sandbox may write.
        None if roots.iter().any(|root| root == folder) => roots.to_vec(),
        None => folder.parent().map(Path::to_owned).into_iter().collect(),
    };
    let mut copy = match place.filter(|_| is_module) {
        Some(_) => without_work_tree(&text),
        None => text.clone(),
    };
    for folder in &work_trees {
        let listed = read(&folder.join(".gitmodules")).unwrap_or_default();
        copy.push_str(&registrations(&listed, &entries, folder));
    }
    (copy != text).then_some(copy)
}

/// Returns the sections that register the submodules of `listed`, the text of `.gitmodules`, if the config does not.
fn registrations(listed: &str, config: &[GitVariable<'_>], work_tree: &Path) -> String {
    let mut added = String::new();
    let listed = entries(listed).unwrap_or_default();
    for entry in listed.iter().filter(|entry| entry.section == "submodule" && entry.key == "url") {
        let Some(name) = entry.name.filter(|_| !config.iter().any(|known| known.is("submodule", entry.name, "url")))
        else {
            continue;
        };
        let Some(url) = absolute_url(&entry.value, config, work_tree).and_then(|url| quote(&url)) else { continue };
        added.push_str(&format!("\n[submodule \"{name}\"]\n\turl = {url}\n"));
        let update = listed.iter().find(|other| other.is("submodule", Some(name), "update"));
        if let Some(update) = update.filter(|update| UPDATES.contains(&update.value.as_str())) {
            added.push_str(&format!("\tupdate = {}\n", update.value));
        }
    }
    added
}

/// Resolves the URL of a submodule like git: relative to the URL of the project, or to its folder if it has none.
fn absolute_url(url: &str, config: &[GitVariable<'_>], work_tree: &Path) -> Option<String> {
    let is_relative = |url: &str| url.starts_with("./") || url.starts_with("../");
    if !is_relative(url) {
        return Some(url.to_owned());
    }
    let mut remotes = config.iter().filter(|entry| entry.section == "remote" && entry.key == "url");
    let origin = remotes.clone().find(|entry| entry.name == Some("origin")).or_else(|| remotes.next());
    let base = origin.map_or_else(|| work_tree.to_str().map(str::to_owned), |entry| Some(entry.value.clone()))?;
    // Git reads a relative URL of the project relative to the folder in which it runs.
    let is_absolute = base.starts_with('/') || base.contains(':');
    let mut base = base.trim_end_matches('/');
    let (mut rest, mut separator) = (url, '/');
    if !is_absolute {
        return None;
    }
    loop {
        if let Some(shorter) = rest.strip_prefix("../") {
            let end = base.rfind('/').or_else(|| base.rfind(':'))?;
            separator = if base[end..].starts_with(':') { ':' } else { '/' };
            (base, rest) = (&base[..end], shorter);
        } else if let Some(shorter) = rest.strip_prefix("./") {
            rest = shorter;
        } else {
            return Some(format!("{base}{separator}{}", rest.trim_end_matches('/')));
        }
    }
}

/// Quotes a value of a config. `None` if it has characters that no URL has.
fn quote(value: &str) -> Option<String> {
    let is_plain = !value.chars().any(char::is_control);
    is_plain.then(|| format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")))
}

/// Returns the text without the line that names the folder of a submodule. Git finds the folder by its `.git` file.
fn without_work_tree(text: &str) -> String {
    let mut section = None;
    let lines = text.lines().filter(|line| {
        let line = line.trim();
        if let Some(header) = header(line) {
            section = Some(header);
        }
        let key = line.split('=').next().unwrap_or_default().trim();
        !(section == Some(("core".to_owned(), None)) && key.eq_ignore_ascii_case("worktree"))
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// A variable of a config.
struct GitVariable<'a> {
    /// In lower case.
    section: String,
    /// The part in quotes, such as the name of a remote.
    name: Option<&'a str>,
    /// In lower case.
    key: String,
    value: String,
}

impl GitVariable<'_> {
    fn is(&self, section: &str, name: Option<&str>, key: &str) -> bool {
        self.section == section && self.name == name && self.key == key
    }
}

/// Returns the variables of a config. `None` if it has a form that this parser does not know: then it is left alone.
fn entries(text: &str) -> Option<Vec<GitVariable<'_>>> {
    let mut found = Vec::new();
    let mut section: Option<(String, Option<&str>)> = None;
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with('[') {
            section = Some(header(line)?);
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, "true"));
        // The value continues on the next line.
        if value.ends_with('\\') {
            return None;
        }
        let (section, name) = section.clone()?;
        found.push(GitVariable { section, name, key: key.trim().to_ascii_lowercase(), value: plain(value)? });
    }
    Some(found)
}

/// Reads the head of a section, alone on its line.
fn header(line: &str) -> Option<(String, Option<&str>)> {
    let inner = line.strip_prefix('[')?.strip_suffix(']')?;
    match inner.split_once([' ', '\t']) {
        None if !inner.contains(['"', '.', ']']) => Some((inner.to_ascii_lowercase(), None)),
        None => None,
        Some((section, name)) => {
            let name = name.trim().strip_prefix('"')?.strip_suffix('"')?;
            (!name.contains(['"', '\\'])).then(|| (section.to_ascii_lowercase(), Some(name)))
        }
    }
}

/// Returns a value without quotes and comments. `None` if only a part of it is quoted.
fn plain(value: &str) -> Option<String> {
    let value = value.trim();
    match value.strip_prefix('"') {
        Some(quoted) => {
            let inner = quoted.strip_suffix('"')?;
            (!inner.contains(['"', '\\'])).then(|| inner.to_owned())
        }
        None if value.contains(['"', '\\']) => None,
        None => Some(value.split(['#', ';']).next().unwrap_or_default().trim().to_owned()),
    }
}

fn read(path: &Path) -> Option<String> {
    let data = fs::symlink_metadata(path).ok()?;
    if !data.is_file() || data.len() > MAX_BYTES {
        return None;
    }
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "[core]\n\tbare = false\n\tworktree = ../../../lib\n[remote \"origin\"]\n\turl = /srv/lib\n";

    fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn the_config_of_a_submodule_names_no_folder() {
        let project = project(&[(".git/modules/lib/config", MODULE), (".git/config", MODULE)]);
        let copy = config_inside(&project.path().join(".git/modules/lib/config"), &[]);
        assert_eq!(copy.unwrap(), "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = /srv/lib\n");
        assert_eq!(config_inside(&project.path().join(".git/config"), &[]), None, "a project may be elsewhere");
    }

    #[test]
    fn submodules_that_are_not_registered_are() {
        let listed = "[submodule \"a\"]\n\tpath = a\n\turl = ../a.git\n[submodule \"b\"]\n\tpath = b\n\turl = ./b/\n\
                      \tupdate = rebase\n[submodule \"c\"]\n\turl = https://example.com/c\n\tupdate = !run\n\
                      [submodule \"known\"]\n\turl = https://example.com/other\n";
        let config =
            "[remote \"origin\"]\n\turl = https://example.com/x/project\n[submodule \"known\"]\n\turl = /srv/k\n";
        let project = project(&[(".gitmodules", listed), (".git/config", config)]);
        let copy = config_inside(&project.path().join(".git/config"), &[]).unwrap();
        let added = "\n[submodule \"a\"]\n\turl = \"https://example.com/x/a.git\"\n\
                     \n[submodule \"b\"]\n\turl = \"https://example.com/x/project/b\"\n\tupdate = rebase\n\
                     \n[submodule \"c\"]\n\turl = \"https://example.com/c\"\n";
        assert_eq!(copy.strip_prefix(config).unwrap(), added);
    }

    #[test]
    fn urls_are_relative_to_the_project() {
        let resolve = |base: &str, url: &str| {
            let config = format!("[remote \"origin\"]\n\turl = {base}\n");
            absolute_url(url, &entries(&config).unwrap(), Path::new("/srv/project"))
        };
        assert_eq!(resolve("git@example.com:me/project.git", "../lib.git").unwrap(), "git@example.com:me/lib.git");
        assert_eq!(resolve("git@example.com:project.git", "../lib.git").unwrap(), "git@example.com:lib.git");
        assert_eq!(resolve("/srv/git/project/", "../../lib").unwrap(), "/srv/lib");
        assert_eq!(resolve("../project", "../lib"), None);
        assert_eq!(absolute_url("../lib", &[], Path::new("/srv/project")).unwrap(), "/srv/lib");
    }

    #[test]
    fn a_config_of_unknown_form_is_left_alone() {
        for text in
            ["[core] bare = false\n", "[core]\n\ta = b\\\n\tworktree = x\n", "key = value\n", "[a \"b\\\"c\"]\n"]
        {
            assert!(entries(text).is_none(), "{text}");
        }
        let value = |line: &str| entries(&format!("[a]\n\tb = {line}\n")).map(|found| found[0].value.clone());
        assert_eq!(value("x ; a comment"), Some("x".to_owned()));
        assert_eq!(value("\"x # y\""), Some("x # y".to_owned()));
        assert_eq!(value("x \"y\""), None);
    }
}
