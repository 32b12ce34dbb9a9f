//! Applies Landlock rules to this process and all its descendants.

use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, NetPort, PathBeneath, PathFd,
    RestrictionStatus, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

use crate::sandbox::plan::{FileGrants, LandlockRules};

/// Errors of [`apply`].
#[derive(Debug, thiserror::Error)]
pub(super) enum LandlockError {
    #[error(transparent)]
    Ruleset(#[from] RulesetError),
    #[error("cannot open `{path}`: {source}")]
    Path { path: String, source: landlock::PathFdError },
    #[error("the kernel applied only a part of the rules")]
    Incomplete,
}

/// Restricts this process. Also sets `no_new_privs`.
pub(super) fn apply(rules: &LandlockRules) -> Result<(), LandlockError> {
    let version = ABI::from(i32::from(rules.version));
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let mut is_empty = true;
    if rules.files.is_some() {
        ruleset = ruleset.handle_access(AccessFs::from_all(version))?;
        is_empty = false;
    }
    if rules.connect_ports.is_some() && version >= ABI::V4 {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
        is_empty = false;
    }
    if version >= ABI::V6 {
        ruleset = ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket)?;
        is_empty = false;
    }
    if is_empty {
        return Ok(());
    }
    let mut created = ruleset.create()?;
    if let Some(files) = &rules.files {
        created = grant(created, files, version)?;
    }
    if let Some(ports) = rules.connect_ports.as_ref().filter(|_| version >= ABI::V4) {
        for port in ports {
            created = created.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
    }
    let RestrictionStatus { ruleset, no_new_privs, .. } = created.restrict_self()?;
    if ruleset == RulesetStatus::FullyEnforced && no_new_privs { Ok(()) } else { Err(LandlockError::Incomplete) }
}

fn grant(
    mut created: landlock::RulesetCreated,
    files: &FileGrants,
    version: ABI,
) -> Result<landlock::RulesetCreated, LandlockError> {
    let list = AccessFs::ReadDir.into();
    let read = AccessFs::from_read(version);
    let all = AccessFs::from_all(version);
    for (paths, access) in [(&files.list, list), (&files.read, read), (&files.write, all)] {
        for path in paths {
            created = add(created, path.as_path(), access, version)?;
        }
    }
    Ok(created)
}

/// Adds a rule. A path that is gone needs none.
fn add(
    created: landlock::RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    version: ABI,
) -> Result<landlock::RulesetCreated, LandlockError> {
    let Ok(data) = std::fs::metadata(path) else { return Ok(created) };
    let access = if data.is_dir() { access } else { access & AccessFs::from_file(version) };
    if access.is_empty() {
        return Ok(created);
    }
    let folder =
        PathFd::new(path).map_err(|source| LandlockError::Path { path: path.display().to_string(), source })?;
    Ok(created.add_rule(PathBeneath::new(folder, access))?)
}
