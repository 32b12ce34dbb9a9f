//! Combines the sources of a sandbox profile in order of precedence: the built-in default, the manifest, the user's
//! config, the flag, and the project's config, which only tightens.

use super::settings::SandboxSettings;
use super::{Enforcement, FileAccess, NetworkAccess, OtherHosts, ProfileOwner, SandboxProfile};

/// What a mode with a shell may also do with file tools. It decides the built-in default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandPower {
    /// It edits all files, so its commands write the workspace.
    EditsAll,
    /// It edits some files or none.
    EditsLess,
}

impl SandboxProfile {
    /// Returns the built-in default of a mode that runs commands.
    pub fn of_commands(power: CommandPower) -> Self {
        let (files, allow) = match power {
            CommandPower::EditsAll => (FileAccess::Workspace, vec!["registries".to_owned()]),
            CommandPower::EditsLess => (FileAccess::ReadOnly, Vec::new()),
        };
        Self {
            files,
            network: NetworkAccess { allow, deny: Vec::new(), otherwise: OtherHosts::Ask },
            ..Self::narrowest(ProfileOwner::Mode)
        }
    }
}

/// The settings that decide the profile of one process.
#[derive(Debug, Clone)]
pub struct ProfileSources<'a> {
    pub owner: ProfileOwner,
    /// The built-in default. `None` if there is none.
    pub default: Option<SandboxProfile>,
    /// The settings of a built-in manifest. They belong to the default, so they do not make the profile `required`.
    pub builtin: Option<&'a SandboxSettings>,
    /// The settings of a manifest that is not built in.
    pub manifest: Option<&'a SandboxSettings>,
    /// The settings of the user's config, in order.
    pub user: Vec<&'a SandboxSettings>,
    /// The value of `--sandbox`.
    pub flag: Option<Enforcement>,
    /// The settings of the project's config, in order.
    pub project: Vec<&'a SandboxSettings>,
}

impl ProfileSources<'_> {
    /// Returns the effective profile. `None` if there is neither a default nor a manifest that states one.
    pub fn resolve(&self) -> Option<SandboxProfile> {
        let stated = [self.builtin, self.manifest].into_iter().flatten();
        let mut profile = match &self.default {
            Some(default) => default.clone(),
            None if self.builtin.is_none() && self.manifest.is_none() => return None,
            None => SandboxProfile::narrowest(self.owner),
        };
        for settings in stated {
            profile = settings.apply_to(&profile);
        }
        let mut users = self.user.iter().filter(|settings| !settings.is_empty()).peekable();
        let by_user = users.peek().is_some();
        for settings in users {
            profile = settings.extend(&profile);
        }
        let named = self.manifest.into_iter().chain(self.user.iter().copied()).any(|stated| stated.enforce.is_some());
        if !named && (self.manifest.is_some() || by_user) {
            profile.enforce = Enforcement::Required;
        }
        profile.enforce = self.flag.unwrap_or(profile.enforce);
        Some(self.project.iter().fold(profile, |profile, settings| settings.tighten(&profile)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::{ReadPath, WritePath};

    fn settings(yaml: &str) -> SandboxSettings {
        serde_json::from_value(serde_yaml::from_str(yaml).expect("YAML")).expect("settings")
    }

    fn backend() -> ProfileSources<'static> {
        ProfileSources {
            owner: ProfileOwner::Mode,
            default: Some(SandboxProfile::of_commands(CommandPower::EditsAll)),
            builtin: None,
            manifest: None,
            user: Vec::new(),
            flag: None,
            project: Vec::new(),
        }
    }

    #[test]
    fn a_default_is_preferred_and_a_stated_profile_required() {
        let manifest = settings("network: off");
        let hosts = settings("network: {allow: [git.example.com]}");
        let preferred = settings("enforce: preferred");
        let enforce = |sources: ProfileSources<'_>| sources.resolve().expect("a profile").enforce;
        assert_eq!(enforce(backend()), Enforcement::Preferred);
        assert_eq!(enforce(ProfileSources { builtin: Some(&manifest), ..backend() }), Enforcement::Preferred);
        let stated = ProfileSources { manifest: Some(&manifest), ..backend() };
        assert_eq!(enforce(stated.clone()), Enforcement::Required);
        assert_eq!(enforce(ProfileSources { user: vec![&hosts], ..backend() }), Enforcement::Required);
        assert_eq!(enforce(ProfileSources { user: vec![&preferred], ..stated.clone() }), Enforcement::Preferred);
        assert_eq!(enforce(ProfileSources { flag: Some(Enforcement::Off), ..stated }), Enforcement::Off);
    }

    #[test]
    fn a_manifest_replaces_fields_and_the_user_adds_to_lists() {
        let manifest = settings("{network: [crates.io], write: [dist]}");
        let general = settings("{write: [dist, ~/.cache/bazel], network: {allow: [git.example.com], otherwise: ask}}");
        let of_mode = settings("{files: read-only, read: [~/.kube]}");
        let sources = ProfileSources { manifest: Some(&manifest), user: vec![&general, &of_mode], ..backend() };
        let profile = sources.resolve().expect("a profile");
        assert_eq!(profile.files, FileAccess::ReadOnly);
        assert_eq!(profile.write, ["dist", "~/.cache/bazel"].map(|path| WritePath::Path(path.to_owned())));
        assert_eq!(profile.read, [ReadPath { path: "~/.kube".to_owned(), ask: Vec::new() }]);
        assert_eq!(profile.network.allow, ["crates.io", "git.example.com"]);
        assert_eq!(profile.network.otherwise, OtherHosts::Ask);
    }

    #[test]
    fn network_off_of_the_user_closes_the_hosts_of_the_manifest() {
        let off = settings("network: off");
        let profile = ProfileSources { user: vec![&off], ..backend() }.resolve().expect("a profile");
        assert_eq!(profile.network.allow, [""; 0]);
        assert_eq!(profile.network.otherwise, OtherHosts::Off);
    }

    #[test]
    fn a_project_only_tightens() {
        let wider = settings("{files: full, write: [/], network: on, caches: shared, enforce: preferred}");
        let manifest = settings("{files: read-only, write: [dist], network: [crates.io], enforce: required}");
        let sources = ProfileSources { manifest: Some(&manifest), ..backend() };
        let before = sources.resolve().expect("a profile");
        let after = ProfileSources { project: vec![&wider], ..sources }.resolve().expect("a profile");
        assert_eq!(after.files, before.files);
        assert_eq!(after.enforce, before.enforce);
        assert_eq!(after.caches, before.caches);
        assert_eq!(after.network.otherwise, before.network.otherwise);
    }

    #[test]
    fn a_process_without_default_and_statement_has_no_profile() {
        let general = settings("hide: [~/notes]");
        let sources = ProfileSources { owner: ProfileOwner::Program, default: None, user: vec![&general], ..backend() };
        assert_eq!(sources.resolve(), None);
        let stated = settings("files: read-only");
        let profile = ProfileSources { manifest: Some(&stated), ..sources }.resolve().expect("a profile");
        assert_eq!(profile.network.otherwise, OtherHosts::Off, "omitted fields are narrow");
        assert_eq!(profile.hide, ["~/notes"]);
    }
}
