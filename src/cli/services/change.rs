//! `skein services remove`, `enable` and `disable`: change the user's files, and say what stays.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::super::folders::Folders;
use super::super::logins::Logins;
use super::super::managed_files::ADMINISTRATOR;
use super::super::new::{project_root, trust, was_trusted};
use super::super::output::{CommandError, CommandOutput, display_line};
use super::super::settings_file::{SettingsFile, UnsafeEditError};
use super::super::{Global, workspace};
use super::name_error;
use crate::ids::ServiceName;
use crate::manifest::{Config, DisableSource, DocumentPath, Layer, Manifests, ServiceEntry};

/// The list of the user's config with the services that are off.
const DISABLED: &str = "disabled_services";

#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    name: String,
    /// Delete it from the project's .skein/
    #[arg(long)]
    project: bool,
}

#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    name: String,
}

/// Deletes the manifest of a service, if it is a file in the user's or the project's folder.
pub(super) fn remove(
    args: &RemoveArgs,
    json: bool,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let manifests = workspace::manifests_quietly(global, folders)?;
    let (base, layer) = match args.project {
        true => (project_root(folders).join(".skein"), Layer::Project),
        false => (folders.config.clone(), Layer::User),
    };
    let base = base.join("services");
    let file = match manifests.services.get(args.name.as_str()) {
        Some(entry) if entry.layer == layer => own_file(entry, &base, folders)?,
        // A manifest that is not used, because the project is not trusted or another layer overrides it.
        _ if base.join(format!("{}.yaml", args.name)).is_file() => base.join(format!("{}.yaml", args.name)),
        Some(entry) => return Err(elsewhere(entry)),
        None => return Err(name_error(&args.name, &manifests)),
    };
    let trusted_before = args.project && was_trusted(folders)?;
    std::fs::remove_file(&file).map_err(|error| {
        let problem = format!("{} cannot be deleted: {error}", file.display());
        CommandError::work(problem, "check the folder's permissions")
    })?;
    if trusted_before {
        trust(folders)?;
    }
    let user = user_config(&manifests);
    if user.is_some_and(|config| is_disabled(config, &args.name)) {
        let settings = SettingsFile::of(&folders.config)?.without_item(&[DISABLED], &args.name);
        settings.map_err(edit_failure)?.write()?;
    }
    forget_login(&args.name, global, folders, output)?;
    let file = folders.display_path(&file);
    match json {
        true => output.json(&json!({"name": args.name, "removed": file})),
        false => output.line(&format!("deleted {file}; running sessions keep the service until they end")),
    }
    Ok(())
}

/// Removes the login of a service that no manifest defines any more.
fn forget_login(
    name: &str,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    if workspace::manifests_quietly(global, folders)?.services.contains_key(name) {
        return Ok(());
    }
    match Logins::of(folders).forget(&ServiceName::new(name)) {
        Ok(places) if places.is_empty() => {}
        Ok(_) => output.note(&format!("the login of `{name}` was removed too")),
        Err(error) => output.note(&format!("a login of `{name}` may be left: {error:#}")),
    }
    Ok(())
}

/// Returns the file of a manifest. Fails if the service has no manifest file in this folder.
fn own_file(entry: &ServiceEntry, base: &Path, folders: &Folders) -> Result<PathBuf, CommandError> {
    // Displayed paths are absolute, or relative to the working directory.
    let file = folders.cwd.join(&entry.source.file);
    if entry.path != DocumentPath::root() || !file.starts_with(base) || !file.is_file() {
        return Err(elsewhere(entry));
    }
    Ok(file)
}

fn elsewhere(entry: &ServiceEntry) -> CommandError {
    let name = &entry.manifest.name;
    let place = display_line(&entry.source.file);
    match entry.layer {
        Layer::Builtin => CommandError::usage(
            format!("`{name}` is a built-in service and cannot be removed"),
            format!("`skein services disable {name}` turns it off"),
        ),
        Layer::Project if entry.path == DocumentPath::root() => {
            CommandError::usage(format!("the service `{name}` belongs to the project, in {place}"), "pass --project")
        }
        Layer::User if entry.path == DocumentPath::root() => {
            CommandError::usage(format!("the service `{name}` is one of yours, in {place}"), "leave --project out")
        }
        Layer::User | Layer::Project | Layer::Extra | Layer::Editor => CommandError::usage(
            format!("the service `{name}` comes from {place}, which this command does not change"),
            format!("remove it there, or turn it off with `skein services disable {name}`"),
        ),
    }
}

/// What a command does to a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceSwitch {
    Enable,
    Disable,
}

/// Turns a service on or off in the user's config. Fails if that file has an error, or if something else still turns the
/// service off.
pub(super) fn switch(
    args: &ChangeArgs,
    change: ServiceSwitch,
    json: bool,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let manifests = workspace::manifests_for_change(global, folders, output)?;
    let entry = changeable(&args.name, &manifests)?;
    let settings = SettingsFile::of(&folders.config)?;
    let file = folders.display_path(settings.file());
    let changed = match change {
        ServiceSwitch::Enable => enable(entry, &manifests, settings)?,
        ServiceSwitch::Disable => disable(entry, &manifests, settings)?,
    };
    let enabled = change == ServiceSwitch::Enable;
    if enabled {
        check_enabled(&args.name, global, folders)?;
    }
    report(&args.name, &file, SwitchResult { enabled, changed }, json, output);
    Ok(())
}

/// Adds the service to the list of the user's config. Returns false if it is in the list.
fn disable(entry: &ServiceEntry, manifests: &Manifests, settings: SettingsFile) -> Result<bool, CommandError> {
    let name = &entry.manifest.name;
    if user_config(manifests).is_some_and(|config| is_disabled(config, name.as_str())) {
        return Ok(false);
    }
    settings.with_first(&[DISABLED], &json!(name)).map_err(edit_failure)?.write()?;
    Ok(true)
}

/// Removes the service from the list of the user's config, and adds it to the list of the user's profile. Returns false
/// if there was nothing to change.
fn enable(entry: &ServiceEntry, manifests: &Manifests, mut settings: SettingsFile) -> Result<bool, CommandError> {
    let name = &entry.manifest.name;
    let user = user_config(manifests);
    let mut changed = false;
    if user.is_some_and(|config| is_disabled(config, name.as_str())) {
        settings = settings.without_item(&[DISABLED], name.as_str()).map_err(edit_failure)?;
        changed = true;
    }
    let profile = manifests.leaving_profile(entry);
    let listed = profile.as_deref().and_then(|profile| Some((profile, user?.profiles.get(profile)?)));
    if let Some((profile, lists)) = listed {
        let list = if lists.services.is_some() { "services" } else { "extensions" };
        settings = settings.with_first(&["profiles", profile, list], &json!(name)).map_err(edit_failure)?;
        changed = true;
    }
    if changed {
        settings.write()?;
    }
    Ok(changed)
}

/// Fails if a service that was turned on is still off.
fn check_enabled(name: &str, global: &Global, folders: &Folders) -> Result<(), CommandError> {
    let now = workspace::manifests_quietly(global, folders)?;
    let Some(reason) = now.services.get(name).and_then(|entry| entry.disabled_by.as_ref()) else { return Ok(()) };
    let problem = format!("`{name}` is still off: {reason}");
    let help = match reason {
        DisableSource::Config(file) => format!("remove it from `{DISABLED}` in {}", display_line(file)),
        DisableSource::Managed(exclusion) => {
            let (subject, setting) = (name.to_owned(), exclusion.setting.to_string());
            return Err(CommandError::Managed { problem, help: ADMINISTRATOR.to_owned(), subject, setting });
        }
        DisableSource::Profile(profile) => {
            format!("add it to `services` of the profile `{}`, or use another profile", display_line(profile))
        }
    };
    Err(CommandError::work(problem, help))
}

/// The result of a switch.
struct SwitchResult {
    enabled: bool,
    /// False if the service was like this before.
    changed: bool,
}

fn report(name: &str, file: &str, change: SwitchResult, json: bool, output: &mut CommandOutput) {
    let SwitchResult { enabled, changed } = change;
    if json {
        return output.json(&json!({"name": name, "enabled": enabled, "changed": changed, "file": file}));
    }
    output.line(&match (enabled, changed) {
        (true, false) => format!("`{name}` is on already"),
        (false, false) => format!("`{name}` is off already, in {file}"),
        (true, true) => format!("turned on `{name}` in {file}; new sessions use it"),
        (false, true) => format!("turned off `{name}` in {file}; running sessions keep it until they end"),
    });
}

/// Returns the service if the user can turn it on and off.
fn changeable<'a>(name: &str, manifests: &'a Manifests) -> Result<&'a ServiceEntry, CommandError> {
    let entry = manifests.services.get(name).ok_or_else(|| name_error(name, manifests))?;
    match &entry.manifest.owner {
        Some(owner) => {
            let problem = format!("the service `{name}` belongs to the {owner} and stays on");
            Err(CommandError::usage(problem, "name another service; `skein services` lists them"))
        }
        None => Ok(entry),
    }
}

fn user_config(manifests: &Manifests) -> Option<&Config> {
    manifests.configs.iter().find(|entry| entry.layer == Layer::User).map(|entry| &entry.config)
}

fn is_disabled(config: &Config, name: &str) -> bool {
    config.disabled_services.iter().any(|disabled| disabled.as_str() == name)
}

fn edit_failure(UnsafeEditError { file, text }: UnsafeEditError) -> CommandError {
    let problem = format!("{} cannot be changed without risk for the rest of it", file.display());
    CommandError::work(problem, format!("change it yourself:\n{text}"))
}
