//! Compares paths as manifests write them: with `~`, globs and relative to the session's root. Looks at text only.
//!
//! Invariant: `covers` never claims that one path contains another unless it does for every home and root. This relies
//! on the sandbox process not to follow links out of a named path.

use std::path::Path;

use crate::sandbox::paths;

/// The folder where a path starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathStart {
    FileSystem,
    Home,
    Root,
}

fn start_of(path: &str) -> PathStart {
    if path.starts_with('/') {
        PathStart::FileSystem
    } else if path == "~" || path.starts_with("~/") {
        PathStart::Home
    } else {
        PathStart::Root
    }
}

/// Returns true if the path starts at the session's root.
pub fn is_relative(path: &str) -> bool {
    start_of(path) == PathStart::Root
}

/// Returns true if the path starts at the session's root and stays below it.
pub fn is_below_root(path: &str) -> bool {
    // `~user` is no folder below the root for a reader of the manifest.
    is_relative(path) && !path.starts_with('~') && !has_parent(path)
}

fn has_parent(path: &str) -> bool {
    path.split('/').any(|name| name == "..")
}

fn has_glob(name: &str) -> bool {
    name.contains(['*', '?', '[', '{'])
}

fn names(path: &str) -> Vec<&str> {
    let below = match start_of(path) {
        PathStart::Home => &path[1..],
        PathStart::FileSystem | PathStart::Root => path,
    };
    below.split('/').filter(|name| !name.is_empty() && *name != ".").collect()
}

/// Returns true if both texts name the same path or glob.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    start_of(one) == start_of(other) && names(one) == names(other)
}

/// Returns true if `outer` contains every path that `inner` names. A glob contains only itself.
pub(super) fn covers(outer: &str, inner: &str) -> bool {
    if is_same(outer, inner) {
        return true;
    }
    if start_of(outer) != start_of(inner) || has_parent(outer) || has_parent(inner) {
        return false;
    }
    let (outer, inner) = (names(outer), names(inner));
    !outer.iter().any(|name| has_glob(name)) && inner.starts_with(&outer)
}

/// System folders that contain no user's files.
const SYSTEM_FOLDERS: [&str; 8] = ["/usr/", "/opt/", "/etc/", "/nix/", "/srv/", "/lib/", "/lib64/", "/var/lib/"];

/// Returns true if reading `path` could open a hidden path: it is in one, contains one, or cannot be judged by its
/// text. Paths below the session's root are not judged.
pub fn overlaps_hidden(path: &str) -> bool {
    if has_parent(path) {
        return true;
    }
    match start_of(path) {
        PathStart::Root => path.starts_with('~'),
        PathStart::Home => {
            let names = names(path);
            names.is_empty() || names.iter().any(|name| has_glob(name)) || paths::overlaps_hidden_name(&names)
        }
        PathStart::FileSystem => {
            let plain = format!("/{}", names(path).join("/"));
            let in_system = SYSTEM_FOLDERS.iter().any(|folder| plain.starts_with(folder));
            !in_system || has_glob(&plain) || paths::is_hidden_of_system(Path::new(&plain))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_covers_itself_and_what_is_below_it() {
        for (outer, inner) in [
            ("dist", "dist/"),
            ("dist/", "./dist/js"),
            ("dist", "dist/*.js"),
            (".", "anything"),
            ("~", "~/notes"),
            ("~/a", "~/a/b"),
            ("/srv", "/srv/data"),
            ("target/*", "target/*"),
        ] {
            assert!(covers(outer, inner), "{outer} {inner}");
        }
        for (outer, inner) in [
            ("dist", "distribution"),
            ("dist/js", "dist"),
            ("dist", "dist/../src"),
            ("dist/*", "dist/a"),
            ("~/a", "/home/me/a"),
            ("/", "relative"),
            ("a", "~/a"),
        ] {
            assert!(!covers(outer, inner), "{outer} {inner}");
        }
    }

    #[test]
    fn hidden_paths_are_found_from_both_sides() {
        for path in [
            "~",
            "~/",
            "~/.ssh",
            "~/.ssh/id_rsa",
            "~/.config",
            "~/.SSH/x",
            "~/.config/gh",
            "~/*",
            "~/.claude.json",
            "/",
            "/home/me/.ssh",
            "/home",
            "/root/.aws",
            "/etc/shadow",
            "/etc/*",
            "../x",
            "~other/.ssh",
            "/etc/../root",
        ] {
            assert!(overlaps_hidden(path), "{path}");
        }
        for path in ["~/.config/acme", "~/data", "data", "./data/*", "/usr/share/dict", "/opt/acme", "/etc/acme.conf"] {
            assert!(!overlaps_hidden(path), "{path}");
        }
    }

    #[test]
    fn only_paths_that_stay_below_the_root_are_below_it() {
        assert!(["dist", "./dist", "a/b/*", "."].into_iter().all(is_below_root));
        assert!(!["../dist", "a/../../b", "/dist", "~/dist", "~me/x"].into_iter().any(is_below_root));
    }
}
