//! User ids and capabilities of a sandbox.
//!
//! For root, ids map to themselves. Another user is root of the first namespace, because the kernel mounts terminals
//! only for a mapped root. Commands run in a second namespace, as the user.

use std::fs;
use std::io;

use rustix::process::{Pid, getegid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, remove_capability_from_bounding_set, set_capabilities,
};

use super::kernel::unshare;

/// The user and group that Skein runs as.
#[derive(Debug, Clone, Copy)]
pub(super) struct UserIds {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl UserIds {
    pub(super) fn current() -> Self {
        Self { uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }

    pub(super) fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Maps the ids of a process in a new user namespace. Call it from the parent namespace.
    pub(super) fn map(self, process: Pid) -> io::Result<()> {
        let folder = format!("/proc/{}", process.as_raw_nonzero());
        if self.is_root() {
            let mapped = ["uid_map", "gid_map"].iter().try_for_each(|name| {
                let own = fs::read_to_string(format!("/proc/self/{name}"))?;
                fs::write(format!("{folder}/{name}"), identity_map(&own))
            });
            // A container may withhold the capability to map more than one id.
            if mapped.is_ok() {
                return Ok(());
            }
        }
        fs::write(format!("{folder}/setgroups"), "deny")?;
        fs::write(format!("{folder}/uid_map"), format!("0 {} 1", self.uid))?;
        fs::write(format!("{folder}/gid_map"), format!("0 {} 1", self.gid))
    }

    /// Enters the namespace in which the user has the usual id. Does nothing for root.
    pub(super) fn enter_user_namespace(self) -> io::Result<()> {
        if self.is_root() {
            return Ok(());
        }
        unshare(UnshareFlags::NEWUSER)?;
        fs::write("/proc/self/uid_map", format!("{} 0 1", self.uid))?;
        fs::write("/proc/self/gid_map", format!("{} 0 1", self.gid))
    }

    /// Gives up all capabilities. Root keeps those that concern only files.
    pub(super) fn drop_capabilities(self) -> io::Result<()> {
        let kept = if self.is_root() {
            CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER | CapabilitySet::FSETID
        } else {
            CapabilitySet::empty()
        };
        for bit in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << bit);
            if kept.contains(capability) {
                continue;
            }
            match remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                // The kernel has no more capabilities.
                Err(rustix::io::Errno::INVAL) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        Ok(set_capabilities(None, sets)?)
    }
}

/// Returns a map of all ids that this process has to themselves.
fn identity_map(own: &str) -> String {
    let ranges = own.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (first, _, count) = (fields.next()?, fields.next()?, fields.next()?);
        Some(format!("{first} {first} {count}\n"))
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use super::identity_map;

    #[test]
    fn every_id_maps_to_itself() {
        assert_eq!(identity_map("         0          0 4294967295\n"), "0 0 4294967295\n");
        assert_eq!(identity_map("0 1000 1\n1 100000 65535\n"), "0 0 1\n1 1 65535\n");
    }
}
