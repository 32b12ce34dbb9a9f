//! Intersects sandbox profiles: the result allows only what both sides allow.
//!
//! Invariant: `SandboxProfile::tighten` and `SandboxSettings::tighten` never return a profile that is wider than the
//! given one.

use super::named_paths::{covers, is_below_root, is_same};
use super::{
    FileAccess, NetworkAccess, OtherHosts, PortAccess, ReadPath, SandboxLimits, SandboxProfile, WritePath, hosts,
};

impl SandboxProfile {
    /// Narrows the profile to what `limit` also allows: the profile of a parent session or a principal.
    #[must_use]
    pub fn tighten(&self, limit: &SandboxProfile) -> SandboxProfile {
        let mut hide = self.hide.clone();
        hide.extend(limit.hide.iter().filter(|path| !self.hide.contains(path)).cloned());
        SandboxProfile {
            files: self.files.min(limit.files),
            write: intersect_write((self.files, &self.write), (limit.files, &limit.write)),
            read: intersect_read(&self.read, &limit.read),
            hide,
            network: self.network.tighten(&limit.network),
            caches: self.caches.min(limit.caches),
            git: self.git.min(limit.git),
            ports: intersect_ports(&self.ports, &limit.ports),
            sockets: intersect_sockets(&self.sockets, &limit.sockets),
            devices: self.devices.iter().filter(|device| limit.devices.contains(device)).copied().collect(),
            limits: smaller_limits(&self.limits, &limit.limits),
            enforce: self.enforce.min(limit.enforce),
        }
    }
}

impl NetworkAccess {
    /// Returns the access that both sides give. A side with `on` also reaches the names that the other side lists.
    fn tighten(&self, limit: &NetworkAccess) -> NetworkAccess {
        let mut allow = hosts::intersect(&self.allow, &limit.allow);
        let mut add_named = |side: &NetworkAccess, other: &NetworkAccess| {
            if other.otherwise == OtherHosts::On {
                let named: Vec<_> =
                    hosts::name_entries(&side.allow).filter(|host| !allow.contains(host)).cloned().collect();
                allow.extend(named);
            }
        };
        add_named(self, limit);
        add_named(limit, self);
        let mut deny = self.deny.clone();
        deny.extend(limit.deny.iter().filter(|host| !self.deny.contains(host)).cloned());
        NetworkAccess { allow, deny, otherwise: self.otherwise.min(limit.otherwise) }
    }
}

/// Returns the entries of either side that the other side can also write, through `files` or `write`.
pub(super) fn intersect_write(
    (files, write): (FileAccess, &[WritePath]),
    (limit_files, limit_write): (FileAccess, &[WritePath]),
) -> Vec<WritePath> {
    let mut both: Vec<WritePath> = Vec::new();
    let sides = [(write, limit_files, limit_write), (limit_write, files, write)];
    for (entries, other_files, other) in sides {
        for entry in entries.iter().filter(|entry| can_write(other_files, other, entry)) {
            let is_there = both.iter().any(|there| match (there, entry) {
                (WritePath::Path(there), WritePath::Path(path)) => is_same(there, path),
                (there, entry) => there == entry,
            });
            if !is_there {
                both.push(entry.clone());
            }
        }
    }
    both
}

fn can_write(files: FileAccess, write: &[WritePath], entry: &WritePath) -> bool {
    let in_roots = match entry {
        WritePath::GitIgnored => true,
        WritePath::Path(path) => is_below_root(path),
    };
    match files {
        FileAccess::Full => true,
        FileAccess::Workspace if in_roots => true,
        FileAccess::None | FileAccess::ReadOnly | FileAccess::Workspace => {
            write.iter().any(|outer| match (outer, entry) {
                (WritePath::GitIgnored, WritePath::GitIgnored) => true,
                (WritePath::Path(outer), WritePath::Path(inner)) => covers(outer, inner),
                (WritePath::Path(outer), WritePath::GitIgnored) => covers(outer, "."),
                (WritePath::GitIgnored, WritePath::Path(_)) => false,
            })
        }
    }
}

/// Returns the narrower path of each pair that overlaps, for the programs that both sides name.
pub(super) fn intersect_read(one: &[ReadPath], other: &[ReadPath]) -> Vec<ReadPath> {
    let mut both = Vec::new();
    for left in one {
        for right in other {
            let path = if covers(&left.path, &right.path) {
                &right.path
            } else if covers(&right.path, &left.path) {
                &left.path
            } else {
                continue;
            };
            let ask = match (left.ask.as_slice(), right.ask.as_slice()) {
                ([], ask) | (ask, []) => ask.to_vec(),
                (left, right) => left.iter().filter(|program| right.contains(program)).cloned().collect(),
            };
            // An empty list would mean that the path is always open.
            let is_open = left.ask.is_empty() && right.ask.is_empty();
            let entry = ReadPath { path: path.clone(), ask };
            if (is_open || !entry.ask.is_empty()) && !both.contains(&entry) {
                both.push(entry);
            }
        }
    }
    both
}

/// Returns the ports that both sides forward. A list and `ask` have none in common: one side asks about every port, the
/// other forwards only its own.
pub(super) fn intersect_ports(one: &PortAccess, other: &PortAccess) -> PortAccess {
    match (one, other) {
        (PortAccess::Ask, PortAccess::Ask) => PortAccess::Ask,
        (PortAccess::List(one), PortAccess::List(other)) => {
            PortAccess::List(one.iter().filter(|port| other.contains(port)).copied().collect())
        }
        (PortAccess::Off | PortAccess::Ask | PortAccess::List(_), _) => PortAccess::Off,
    }
}

pub(super) fn intersect_sockets(one: &[String], other: &[String]) -> Vec<String> {
    one.iter().filter(|socket| other.iter().any(|there| is_same(socket, there))).cloned().collect()
}

pub(super) fn smaller_limits(one: &SandboxLimits, other: &SandboxLimits) -> SandboxLimits {
    fn smaller<T: Ord + Copy>(one: Option<T>, other: Option<T>) -> Option<T> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
    SandboxLimits {
        processes: smaller(one.processes, other.processes),
        memory: smaller(one.memory, other.memory),
        file_size: smaller(one.file_size, other.file_size),
    }
}

#[cfg(test)]
#[path = "tighten_tests.rs"]
mod tests;
