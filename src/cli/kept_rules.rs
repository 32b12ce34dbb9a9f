//! Rules that a person keeps by answering "always in this project": written into their own config, never into the
//! project's, and without touching what else stands there.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::broker::RuleStore;
use crate::diagnostic::has_errors;
use crate::manifest::{self, Config, Layer, PermissionRule, Root};

/// The user's configuration folder.
pub(super) struct UserConfig {
    pub(super) folder: PathBuf,
}

impl RuleStore for UserConfig {
    fn keep(&self, rule: &PermissionRule) -> Result<(), String> {
        let file = self.file()?;
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{} cannot be read: {error}", file.display())),
        };
        let changed = with_rule(&text, rule).ok_or_else(|| {
            format!("{} is written in a way that cannot be added to; add the rule by hand", file.display())
        })?;
        replace(&file, &changed).map_err(|error| format!("{} cannot be written: {error}", file.display()))
    }
}

impl UserConfig {
    /// Where a link leads, so that the link stays one.
    fn file(&self) -> Result<PathBuf, String> {
        for other in ["config.yml", "config.json"] {
            if self.folder.join(other).exists() {
                return Err(format!("rules are added to config.yaml, and there is a {other}; add the rule by hand"));
            }
        }
        let file = self.folder.join("config.yaml");
        Ok(std::fs::canonicalize(&file).unwrap_or(file))
    }
}

/// Whole or not at all: someone else may be reading it.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let folder = file.parent().ok_or_else(|| std::io::Error::other("it has no folder"))?;
    std::fs::create_dir_all(folder)?;
    let new = folder.join(format!("config.yaml.{}.new", std::process::id()));
    let mut written = std::fs::File::create(&new)?;
    written.write_all(text.as_bytes())?;
    written.sync_all()?;
    if let Ok(metadata) = file.metadata() {
        std::fs::set_permissions(&new, metadata.permissions())?;
    }
    std::fs::rename(&new, file)
}

/// The text with one more rule, or nothing if that would change anything else.
fn with_rule(text: &str, rule: &PermissionRule) -> Option<String> {
    let before = if text.is_empty() { read("version: 1\n")? } else { read(text)? };
    // JSON is YAML, on one line and with every quote where it belongs.
    let item = serde_json::to_string(rule).ok()?;
    let changed = insert(text, &item)?;
    let after = read(&changed)?;
    let mut expected = before;
    expected.permissions.insert(0, rule.clone());
    (after == expected).then_some(changed)
}

fn insert(text: &str, item: &str) -> Option<String> {
    if text.is_empty() {
        return Some(format!("version: 1\npermissions:\n  - {item}\n"));
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let is_key = |line: &String| line.split('#').next().unwrap_or_default().trim_end() == "permissions:";
    match lines.iter().position(is_key) {
        Some(at) => {
            let first = lines[at + 1..].iter().find(|line| line.trim_start().starts_with("- "))?;
            let indent = first.len() - first.trim_start().len();
            lines.insert(at + 1, format!("{}- {item}", " ".repeat(indent)));
        }
        None if text.lines().any(|line| line.starts_with("permissions")) => return None,
        None => lines.extend(["permissions:".to_owned(), format!("  - {item}")]),
    }
    Some(lines.join("\n") + "\n")
}

/// As it would be read at the next start; nothing if it has an error.
fn read(text: &str) -> Option<Config> {
    let files = [(PathBuf::from("config.yaml"), text.as_bytes().to_vec())].into();
    let (mut manifests, found) = manifest::load(&[(Layer::User, Root::Snapshot { files, shown: String::new() })]);
    if has_errors(&found) {
        return None;
    }
    manifests.configs.pop().map(|entry| entry.config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Then;

    fn rule() -> PermissionRule {
        let text = r#"developer__shell: {command: "git commit -m 'a: b # \"c\"'"}"#;
        let rule = PermissionRule::from_text(text, Then::Allow).expect("a rule");
        PermissionRule { project: Some("/home/me/my project".to_owned()), ..rule }
    }

    #[test]
    fn a_rule_is_added_and_everything_else_stays_as_it_was() {
        for text in [
            "",
            "version: 1\n",
            "# mine\nversion: 1   # one\n\napproval: ask\n",
            "version: 1\npermissions:   # what I allow\n  # reading\n  - {tool: a, then: allow}\nprofile: x\nprofiles: {x: {}}\n",
            "version: 1\npermissions:\n- tool: a\n  then: deny\n",
            "version: 1\napproval: ask",
        ] {
            let changed = with_rule(text, &rule()).expect(text);
            let config = read(&changed).expect("it can be read");
            assert_eq!(config.permissions[0], rule(), "{changed}");
            for line in text.lines() {
                assert!(changed.lines().any(|kept| kept == line), "{line} is gone from {changed}");
            }
            let twice = with_rule(&changed, &rule()).expect("again");
            assert_eq!(read(&twice).expect("it can be read").permissions.len(), config.permissions.len() + 1);
        }
    }

    #[test]
    fn what_cannot_be_added_to_is_left_alone() {
        for text in [
            "version: 1\npermissions: [{tool: a, then: allow}]\n",
            "version: 1\npermissions: []\n",
            "{version: 1}\n",
            "version: 1\nunknown: field\n",
            "version: 1\n...\n",
            "not: [yaml\n",
        ] {
            assert_eq!(with_rule(text, &rule()), None, "{text}");
        }
    }

    #[test]
    fn a_link_stays_a_link_and_modes_stay() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let (real, config) = (folder.path().join("dotfiles.yaml"), folder.path().join("config"));
        std::fs::create_dir(&config).expect("a folder");
        std::fs::write(&real, "version: 1\n").expect("written");
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o600)).expect("changed");
        std::os::unix::fs::symlink(&real, config.join("config.yaml")).expect("linked");
        let store = UserConfig { folder: config.clone() };
        store.keep(&rule()).expect("kept");
        assert!(config.join("config.yaml").is_symlink());
        assert!(std::fs::read_to_string(&real).expect("read").contains("git commit"));
        assert_eq!(real.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        std::fs::write(config.join("config.json"), "{}").expect("written");
        assert!(store.keep(&rule()).expect_err("refused").contains("config.json"));
    }
}
