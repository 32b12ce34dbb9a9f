//! Describes a sandbox profile in words, for people.

use super::{
    ByteSize, CacheAccess, Enforcement, FileAccess, GitAccess, NetworkAccess, OtherHosts, PortAccess, ProfileOwner,
    SandboxDevice, SandboxLimits, SandboxProfile, WritePath,
};

/// One line: files first, then network, then what differs from the usual, and how strictly it is enforced.
impl std::fmt::Display for SandboxProfile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = vec![self.writes()];
        if self.files == FileAccess::None {
            parts.push("reads system folders".to_owned());
        }
        let reads = self.read.iter().map(|entry| match entry.ask.as_slice() {
            [] => entry.path.clone(),
            programs => format!("{} (asks for {})", entry.path, programs.join(", ")),
        });
        parts.extend(join("reads", reads));
        parts.extend(join("hides", self.hide.iter().cloned()));
        parts.push(self.network.to_string());
        parts.extend(join("sockets", self.sockets.iter().cloned()));
        parts.extend(join("devices", self.devices.iter().map(SandboxDevice::to_string)));
        match self.caches {
            CacheAccess::Private => {}
            CacheAccess::Shared => parts.push("writes your caches".to_owned()),
            CacheAccess::Off => parts.push("caches are read-only".to_owned()),
        }
        if self.git == GitAccess::Ask {
            parts.push("git asks".to_owned());
        }
        match &self.ports {
            PortAccess::Off => {}
            PortAccess::Ask => parts.push("ports ask".to_owned()),
            PortAccess::List(ports) => parts.extend(join("ports", ports.iter().map(u16::to_string))),
        }
        parts.extend(self.limits.words());
        parts.push(self.enforce.to_string());
        f.write_str(&parts.join("; "))
    }
}

impl SandboxProfile {
    /// Describes the profile briefly: what it writes and reaches, how much it opens, and how strictly it is enforced.
    pub fn summary(&self) -> String {
        let count = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {what}")),
            _ => Some(format!("{count} {what}s")),
        };
        let reads = count(self.read.len(), "more path").map(|paths| format!("reads {paths}"));
        let mut parts = vec![self.writes()];
        parts.extend(reads);
        parts.push(self.network.to_string());
        parts.extend(count(self.sockets.len(), "socket"));
        parts.extend(count(self.devices.len(), "device"));
        parts.push(self.enforce.to_string());
        parts.join("; ")
    }

    /// Describes what a process may write.
    pub fn writes(&self) -> String {
        let paths: Vec<_> = self.write.iter().map(WritePath::as_str).collect();
        let paths = paths.join(", ");
        match (self.files, paths.is_empty()) {
            (FileAccess::None | FileAccess::ReadOnly, true) => "writes nothing".to_owned(),
            (FileAccess::None | FileAccess::ReadOnly, false) => format!("writes only {paths}"),
            (FileAccess::Workspace, true) => "writes the workspace".to_owned(),
            (FileAccess::Workspace, false) => format!("writes the workspace, {paths}"),
            (FileAccess::Full, _) => "writes all but protected and hidden paths".to_owned(),
        }
    }
}

impl std::fmt::Display for NetworkAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let except = join(" except", self.deny.iter().cloned()).unwrap_or_default();
        match (self.otherwise, self.allow.is_empty()) {
            (OtherHosts::Off, true) => f.write_str("no network"),
            (OtherHosts::Off, false) => write!(f, "network: {}{except}", self.allow.join(", ")),
            (OtherHosts::Ask, true) => write!(f, "network: ask{except}"),
            (OtherHosts::Ask, false) => write!(f, "network: {}, else ask{except}", self.allow.join(", ")),
            (OtherHosts::On, _) => write!(f, "network: all hosts{except}"),
        }
    }
}

impl std::fmt::Display for Enforcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Enforcement::Required => "required",
            Enforcement::Preferred => "preferred",
            Enforcement::Off => "off",
        })
    }
}

impl std::fmt::Display for SandboxDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SandboxDevice::Gpu => "gpu",
            SandboxDevice::Kvm => "kvm",
            SandboxDevice::Fuse => "fuse",
        })
    }
}

impl SandboxLimits {
    /// Names the limits that differ from the default.
    fn words(&self) -> Option<String> {
        let default = SandboxProfile::narrowest(ProfileOwner::Mode).limits.processes;
        let processes = self.processes.filter(|_| self.processes != default).map(|count| format!("{count} processes"));
        let memory = self.memory.map(|bytes| format!("{} memory", ByteSize(bytes)));
        let file_size = self.file_size.map(|bytes| format!("{} per file", ByteSize(bytes)));
        join("at most", [processes, memory, file_size].into_iter().flatten())
    }
}

fn join(label: &str, words: impl Iterator<Item = String>) -> Option<String> {
    let words: Vec<_> = words.collect();
    (!words.is_empty()).then(|| format!("{label} {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::SandboxSettings;
    use super::*;

    fn words(owner: ProfileOwner, yaml: &str) -> String {
        let settings: SandboxSettings =
            serde_json::from_value(serde_yaml::from_str(yaml).expect("YAML")).expect("settings");
        settings.apply_to(&SandboxProfile::narrowest(owner)).to_string()
    }

    #[test]
    fn a_profile_is_described_in_one_line() {
        for (yaml, expected) in [
            ("{}", "writes nothing; reads system folders; no network; preferred"),
            ("{files: workspace, network: on}", "writes the workspace; network: all hosts; preferred"),
            (
                "{files: read-only, write: [git-ignored, tests], network: {allow: [registries], otherwise: ask}}",
                "writes only git-ignored, tests; network: registries, else ask; preferred",
            ),
            (
                "{files: read-only, read: [{path: ~/.kube, ask: [kubectl, helm]}], enforce: required}",
                "writes nothing; reads ~/.kube (asks for kubectl, helm); no network; required",
            ),
            (
                "{files: full, network: {deny: [evil.example], otherwise: on}, limits: {memory: 4GiB}, ports: [80]}",
                "writes all but protected and hidden paths; network: all hosts except evil.example; ports 80; \
                 at most 4GiB memory; preferred",
            ),
        ] {
            assert_eq!(words(ProfileOwner::Program, yaml), expected);
        }
        assert!(words(ProfileOwner::Mode, "{}").contains("git asks; ports ask"));
    }

    #[test]
    fn a_summary_counts_what_is_opened() {
        let yaml = "{files: read-only, read: [~/.kube, ~/.aws], sockets: [/run/x], network: ask}";
        let settings: SandboxSettings =
            serde_json::from_value(serde_yaml::from_str(yaml).expect("YAML")).expect("settings");
        let profile = settings.apply_to(&SandboxProfile::narrowest(ProfileOwner::Mode));
        assert_eq!(profile.summary(), "writes nothing; reads 2 more paths; network: ask; 1 socket; preferred");
    }
}
