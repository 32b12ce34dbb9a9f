//! Reads the user's "top of mind" text from the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::folders::Folders;
use crate::orchestrator::tom::TopOfMind;

/// Skein's variables, and goose's, which apply if Skein's are not set.
const TEXT: [&str; 2] = ["SKEIN_TOM_TEXT", "GOOSE_MOIM_MESSAGE_TEXT"];
const FILE: [&str; 2] = ["SKEIN_TOM_FILE", "GOOSE_MOIM_MESSAGE_FILE"];

pub(super) fn from_environment(folders: &Folders) -> TopOfMind {
    let (text, file) = read_variables(|name| std::env::var_os(name), &folders.home, &folders.cwd);
    TopOfMind::new(text, file)
}

fn read_variables(
    variable: impl Fn(&str) -> Option<OsString>,
    home: &Path,
    cwd: &Path,
) -> (Option<String>, Option<PathBuf>) {
    let first = |names: [&str; 2]| names.into_iter().filter_map(&variable).find(|value| !value.is_empty());
    let text = first(TEXT).map(|text| text.to_string_lossy().into_owned());
    let file = first(FILE).map(PathBuf::from).map(|file| match file.strip_prefix("~") {
        Ok(rest) => home.join(rest),
        Err(_) => cwd.join(file),
    });
    (text, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skein_variables_win_over_goose_and_paths_resolve() {
        let told = |set: &[(&str, &str)]| {
            let variable =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
            read_variables(variable, Path::new("/home/ann"), Path::new("/here"))
        };
        let both =
            [("SKEIN_TOM_TEXT", "a"), ("GOOSE_MOIM_MESSAGE_TEXT", "b"), ("GOOSE_MOIM_MESSAGE_FILE", "~/mind.md")];
        assert_eq!(told(&both), (Some("a".to_owned()), Some("/home/ann/mind.md".into())));
        assert_eq!(told(&[("SKEIN_TOM_TEXT", ""), ("GOOSE_MOIM_MESSAGE_TEXT", "b")]), (Some("b".to_owned()), None));
        assert_eq!(told(&[("SKEIN_TOM_FILE", "mind.md")]), (None, Some("/here/mind.md".into())));
        assert_eq!(told(&[("SKEIN_TOM_FILE", "/x")]), (None, Some("/x".into())));
        assert_eq!(told(&[]), (None, None));
    }
}
