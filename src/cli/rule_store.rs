//! Stores rules that the user creates with "always in this project". Writes them to the user's config, never to the
//! project's, and keeps the rest of the file.

use std::path::PathBuf;

use anyhow::{anyhow, bail};

use super::settings_file::SettingsFile;
use crate::broker::{RuleStore, RuleStoreError};
use crate::manifest::PermissionRule;

/// How often to retry when other processes change the file at the same time.
const ATTEMPTS: usize = 50;

/// The user's configuration folder.
pub(super) struct UserConfig {
    pub(super) folder: PathBuf,
}

impl RuleStore for UserConfig {
    fn keep(&self, rule: &PermissionRule) -> Result<(), RuleStoreError> {
        self.add(rule).map_err(RuleStoreError::new)
    }
}

impl UserConfig {
    fn add(&self, rule: &PermissionRule) -> anyhow::Result<()> {
        let item = serde_json::to_value(rule)?;
        for _ in 0..ATTEMPTS {
            let settings = SettingsFile::of(&self.folder).map_err(|failure| anyhow!(failure.problem()))?;
            let settings = settings.with_first(&["permissions"], &item)?;
            let written = settings.try_write();
            if written.map_err(|error| anyhow!("{} cannot be written: {error}", settings.file().display()))? {
                return Ok(());
            }
        }
        bail!("{} is changed by others all the time", self.folder.display())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;
    use crate::diagnostic::has_errors;
    use crate::manifest::{self, Layer, Root, RuleEffect};

    fn rule(command: &str) -> PermissionRule {
        let text = format!("developer__shell: {{command: {}}}", serde_json::json!(command));
        let rule = PermissionRule::from_text(&text, RuleEffect::Allow).expect("a rule");
        PermissionRule { project: Some("/home/me/my project".to_owned()), ..rule }
    }

    /// As the next start reads them.
    fn rules(folder: &Path) -> Vec<PermissionRule> {
        let root = Root::Disk { path: folder.to_owned(), shown: String::new() };
        let (mut manifests, found) = manifest::load(&[(Layer::User, root)]);
        assert!(!has_errors(&found), "{found:?}");
        manifests.configs.pop().expect("a config").config.permissions
    }

    #[test]
    fn a_rule_is_kept_before_those_that_are_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("config");
        let store = UserConfig { folder: config.clone() };
        let commands = ["git status", "git commit -m 'a: b # \"c\"'"];
        commands.iter().for_each(|command| store.keep(&rule(command)).expect("kept"));
        assert_eq!(rules(&config), [rule(commands[1]), rule(commands[0])]);
    }

    #[test]
    fn those_who_keep_rules_at_the_same_time_lose_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("config");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let config = &config;
                scope.spawn(move || {
                    for number in 0..5 {
                        let store = UserConfig { folder: config.clone() };
                        store.keep(&rule(&format!("make {writer}-{number}"))).expect("kept");
                    }
                });
            }
        });
        assert_eq!(rules(&config).len(), 20);
    }

    #[test]
    fn a_link_stays_a_link_and_modes_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let (real, config) = (folder.path().join("dotfiles.yaml"), folder.path().join("config"));
        std::fs::create_dir(&config).expect("a folder");
        std::fs::write(&real, "version: 1\n").expect("written");
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o600)).expect("changed");
        std::os::unix::fs::symlink(&real, config.join("config.yaml")).expect("linked");
        UserConfig { folder: config.clone() }.keep(&rule("git status")).expect("kept");
        assert!(config.join("config.yaml").is_symlink());
        assert!(std::fs::read_to_string(&real).expect("read").contains("git status"));
        assert_eq!(real.metadata().expect("there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_cannot_be_added_to_is_left_and_it_is_said_what_to_write() {
        for (name, text, advice) in [
            ("config.json", "{\"version\": 1}", "\"permissions\": [\n"),
            ("config.yaml", "version: 1\n...\n", "permissions:\n  - {"),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::write(folder.path().join(name), text).expect("written");
            let problem = UserConfig { folder: folder.path().to_owned() }.keep(&rule("git status"));
            let problem = problem.expect_err("refused").to_string();
            assert!(problem.contains(name) && problem.contains(advice), "{problem}");
            assert_eq!(std::fs::read_to_string(folder.path().join(name)).expect("read"), text);
        }
    }
}
