//! `skein import`: imports goose's `config.yaml` and memories, JSON files with MCP servers, and agents of the ACP
//! registry. Only reads the files of the other tool, and only adds to the user's files.

mod registry;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::environment::variable;
use super::folders::Folders;
use super::output::{CommandError, CommandOutput, cut, display_line};
use super::settings_file::{SettingsFile, UnsafeEditError};
use super::whole_file::create;
use super::{Global, workspace};
use crate::diagnostic::Severity;
use crate::graph;
use crate::manifest::{
    self, ImportedConfig, Layer, Manifests, Root, ServiceManifest, Settings, SkippedItem, Transport, read_foreign,
    service_text,
};
use crate::services::builtin::memory::{self, ImportError};
use crate::store::{MemoryOwner, project_root};

/// Size limit. `~/.claude.json` also keeps the history of its projects, so that it may have several megabytes.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct ImportArgs {
    #[command(subcommand)]
    what: Option<ImportCommand>,
    /// Read this goose config, JSON file or memory folder
    ///
    /// goose's config.yaml, a JSON file with MCP servers (Claude, .mcp.json, Zed, VS Code), or the folder with goose's
    /// memories. The file is not changed.
    #[arg(required = true)]
    file: Option<PathBuf>,
    /// Import memories for this project only
    #[arg(long)]
    project: bool,
    /// Show the files that would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ImportCommand {
    /// Import an agent of the ACP registry
    Registry(registry::RegistryArgs),
}

pub(super) fn run(
    args: &ImportArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    if let Some(ImportCommand::Registry(args)) = &args.what {
        return registry::run(args, folders, output);
    }
    let file = args.file.as_deref().unwrap_or(Path::new(""));
    if file.is_dir() {
        return memories(file, args, folders, output);
    }
    if args.project && file.exists() {
        let problem = format!("--project is for memories, and {} is not a folder", file.display());
        let help = "name the folder with goose's memories, or leave out --project; put servers of a project into its \
                    .mcp.json";
        return Err(CommandError::usage(problem, help));
    }
    let moved = read(file)?;
    if moved.processor.is_some() || moved.approval.is_some() {
        // Nothing of a config with an error is read, so its settings would be replaced.
        workspace::manifests_for_change(global, folders, output)?;
    }
    let result = Import::plan(moved, folders)?;
    if !args.dry_run {
        result.write()?;
    }
    if args.json {
        output.json(&result.to_json(args.dry_run, folders));
    } else {
        result.print_result(args.dry_run, folders, output);
    }
    Ok(())
}

fn read(file: &Path) -> Result<ImportedConfig, CommandError> {
    let name = file.display();
    let help = "name goose's config.yaml, a JSON file with MCP servers, or the folder with goose's memories";
    read_foreign(&name.to_string(), &text_of(file, help)?).map_err(|problem| {
        CommandError::usage(format!("{name} cannot be taken over: {}", display_line(&problem.to_string())), help)
    })
}

fn text_of(file: &Path, help: &str) -> Result<String, CommandError> {
    let name = file.display();
    let unreadable = |error: std::io::Error| CommandError::usage(format!("{name} cannot be read: {error}"), help);
    let opened = File::open(file).map_err(unreadable)?;
    let size = opened.metadata().map_err(unreadable)?.len();
    let mut bytes = Vec::new();
    // A device has no size, so the bytes are counted as well.
    let read = match size > MAX_BYTES {
        true => size,
        false => opened.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)? as u64,
    };
    if read > MAX_BYTES {
        let problem = format!("{name} has {} MiB or more, and at most {} MiB are read", read >> 20, MAX_BYTES >> 20);
        return Err(CommandError::usage(problem, "copy the part that you need to another file, and import that"));
    }
    String::from_utf8(bytes).map_err(|error| unreadable(std::io::Error::other(error)))
}

/// The planned changes, decided before anything is written.
struct Import {
    moved: ImportedConfig,
    /// Service manifests to write: path, text, manifest.
    services: Vec<(PathBuf, String, ServiceManifest)>,
    /// Services that already exist and are skipped.
    there: Vec<String>,
    settings: Option<SettingsFile>,
    /// Descriptions of the settings to write to the config.
    settled: Vec<String>,
    notes: Vec<String>,
}

impl Import {
    fn plan(moved: ImportedConfig, folders: &Folders) -> Result<Self, CommandError> {
        let user = Root::Disk { path: folders.config.clone(), shown: folders.display_path(&folders.config) };
        let (known, _) = manifest::load(&[(Layer::Builtin, Root::Builtin), (Layer::User, user)]);
        let mut import = Self {
            moved,
            services: Vec::new(),
            there: Vec::new(),
            settings: None,
            settled: Vec::new(),
            notes: Vec::new(),
        };
        for service in std::mem::take(&mut import.moved.services) {
            import.place(service, &known, folders);
        }
        import.settle(&known, folders)?;
        if !Settings::of(&known).service_lists.is_empty() && !import.services.is_empty() {
            import.notes.push("your profile lists its `services`: add the new ones there to use them".to_owned());
        }
        Ok(import)
    }

    /// Plans one service: to write, already present, or left out.
    fn place(&mut self, service: ServiceManifest, known: &Manifests, folders: &Folders) {
        let name = service.name.to_string();
        let file = folders.config.join("services").join(format!("{name}.yaml"));
        let known = known.services.get(&service.name).map(|entry| entry.layer);
        if known == Some(Layer::Builtin) {
            return self.skip(&name, "Skein has a built-in service of that name; rename it to use both");
        }
        if known.is_some() || file.exists() {
            return self.there.push(name);
        }
        if let Some((_, _, other)) = self.services.iter().find(|(_, _, other)| other.name == service.name) {
            // The title is the name in the file of the other tool.
            let title = service.title.as_deref().unwrap_or(&name);
            let other = other.title.as_deref().unwrap_or(&name);
            return self.skip(title, &format!("`{title}` becomes the same name as `{other}`; rename one"));
        }
        let text = service_text(&service, &format!("Taken over from {} by `skein import`.", self.moved.from));
        match problem(Path::new("services"), &file, &text) {
            Some(problem) => self.skip(&name, &problem),
            None => self.services.push((file, text, service)),
        }
    }

    fn skip(&mut self, what: &str, reason: &str) {
        self.moved.left_out.push(SkippedItem { what: what.to_owned(), reason: reason.to_owned() });
    }

    /// Plans model and approval level, unless the user's config already sets them.
    fn settle(&mut self, known: &Manifests, folders: &Folders) -> Result<(), CommandError> {
        let user = known.configs.iter().find(|entry| entry.layer == Layer::User).map(|entry| &entry.config);
        let profile = user.and_then(|config| config.profile.clone()).unwrap_or_else(|| "default".to_owned());
        let mut changes = Vec::new();
        if let Some(model) = self.moved.processor.clone() {
            let has =
                user.and_then(|config| config.profiles.get(&profile)?.processor.as_ref()?.models().first().cloned());
            match has {
                Some(has) if has == model => {}
                Some(has) => self.skip(&format!("the model {model}"), &format!("your profile names {has} already")),
                None => {
                    self.settled.push(format!("model {model}"));
                    changes.push((vec!["profiles", &profile, "processor"], Value::from(model.to_string())));
                }
            }
        }
        if let Some(approval) = self.moved.approval {
            match user.and_then(|config| config.approval) {
                Some(has) if has == approval => {}
                Some(has) => {
                    let reason = format!("your config says {} already", has.as_str());
                    self.skip(&format!("the approval {}", approval.as_str()), &reason);
                }
                None => {
                    self.settled.push(format!("approval {}", approval.as_str()));
                    changes.push((vec!["approval"], Value::from(approval.as_str())));
                }
            }
        }
        if changes.is_empty() {
            return Ok(());
        }
        match SettingsFile::of(&folders.config)?.with(&changes) {
            Ok(settings) => self.settings = Some(settings),
            Err(UnsafeEditError { text, .. }) => {
                for what in std::mem::take(&mut self.settled) {
                    self.skip(&what, &format!("your config.yaml cannot be edited safely; write into it:\n{text}"));
                }
            }
        }
        Ok(())
    }

    fn write(&self) -> Result<(), CommandError> {
        for (file, text, _) in &self.services {
            // Readable only by the user: the file may contain secrets that were not recognized.
            create(file, text, 0o600).map_err(|error| {
                let problem = format!("{} cannot be written: {error}", file.display());
                CommandError::work(problem, "correct this and run it again; what was written before it stays")
            })?;
        }
        self.settings.as_ref().map_or(Ok(()), SettingsFile::write)
    }

    /// Returns the variables of the imported services, the services that use each, and whether it is set.
    fn variables(&self) -> Vec<(&str, Vec<&str>, bool)> {
        let used = |name: &String| {
            self.there.contains(name) || self.services.iter().any(|(_, _, service)| service.name.as_str() == name)
        };
        let mut variables = Vec::new();
        for (name, services) in &self.moved.variables {
            let services: Vec<_> = services.iter().filter(|name| used(name)).map(String::as_str).collect();
            if !services.is_empty() {
                variables.push((name.as_str(), services, variable(name).is_some()));
            }
        }
        variables
    }

    fn to_json(&self, dry_run: bool, folders: &Folders) -> Value {
        let services = self.services.iter().map(|(file, text, service)| {
            let text = dry_run.then_some(text);
            json!({"name": service.name, "file": folders.display_path(file), "text": text})
        });
        let variables = self.variables();
        let variables =
            variables.iter().map(|(name, services, set)| json!({"name": name, "services": services, "set": set}));
        let left_out = self.moved.left_out.iter().map(|left| json!({"what": left.what, "reason": left.reason}));
        json!({
            "from": self.moved.from, "dry_run": dry_run,
            "services": services.collect::<Vec<_>>(), "there": self.there, "settings": self.settled,
            "variables": variables.collect::<Vec<_>>(), "left_out": left_out.collect::<Vec<_>>(), "notes": self.notes,
        })
    }

    fn print_result(&self, dry_run: bool, folders: &Folders, output: &mut CommandOutput) {
        let wrote = if dry_run { "would write" } else { "wrote" };
        output.line(&format!("{}:", self.moved.from));
        for (file, text, service) in &self.services {
            output.line(&format!("  {wrote} {}: {}", folders.display_path(file), display_line(&target_text(service))));
            if dry_run {
                text.lines().for_each(|line| output.line(&format!("    {}", display_text(line))));
            }
        }
        if let Some(settings) = &self.settings {
            output.line(&format!(
                "  {wrote} {}: {}",
                folders.display_path(settings.file()),
                display_line(&self.settled.join(", "))
            ));
        }
        for name in &self.there {
            output.line(&format!("  {name} is there already and was left as it is"));
        }
        if self.services.is_empty() && self.settings.is_none() {
            output.line("  nothing to write");
        }
        for (name, services, set) in self.variables() {
            let what = match set {
                true => "is set",
                false if self.moved.optional.contains(name) => "is not set, and need not be",
                false => "is not set: export it before you use it",
            };
            output.line(&format!("variable {name} ({}) {what}", services.join(", ")));
        }
        for SkippedItem { what, reason } in &self.moved.left_out {
            output.line(&format!("left out: {}: {}", display_line(what), super::output::display_lines(reason)));
        }
        self.notes.iter().for_each(|note| output.note(note));
    }
}

fn display_text(line: &str) -> String {
    super::output::display_lines(line)
}

/// Returns the command or URL of a service.
fn target_text(service: &ServiceManifest) -> String {
    match &service.transport {
        Transport::Builtin(name) => name.to_string(),
        Transport::Stdio(stdio) => [std::slice::from_ref(&stdio.command), &stdio.args].concat().join(" "),
        Transport::Http(http) => http.url.clone(),
    }
}

/// Returns why a manifest in this folder would fail `skein check` next to the built-in ones. `None` if it passes.
fn problem(folder: &Path, file: &Path, text: &str) -> Option<String> {
    let name = folder.join(file.file_name().unwrap_or_default());
    let root = Root::Snapshot { files: [(name, text.as_bytes().to_vec())].into(), shown: String::new() };
    let (manifests, found) = manifest::load(&[(Layer::Builtin, Root::Builtin), (Layer::User, root)]);
    let found = graph::resolve_without_notes(manifests, found).diagnostics;
    // Only the code, because the message may quote a value, which may be a secret.
    let error = found.into_iter().find(|found| found.severity == Severity::Error)?;
    Some(format!("what it would become is not valid ({} in docs/diagnostics.md)", error.code))
}

/// Columns of a memory to show.
const FIRST_WORDS: usize = 72;

/// Imports goose's memories.
fn memories(
    folder: &Path,
    args: &ImportArgs,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let scope = if args.project { MemoryOwner::Project } else { MemoryOwner::User };
    let project = project_root(&folders.cwd);
    let imported = memory::import(folder, &folders.store, &project, scope, !args.dry_run);
    let imported = imported.map_err(|error| match error {
        ImportError::Foreign { .. } => CommandError::usage(
            display_line(&error.to_string()),
            "name the folder itself: `.goose/memory` of a project, or `memory` next to goose's config.yaml",
        ),
        error => CommandError::work(error.to_string(), "nothing of goose's was changed; correct this and run it again"),
    })?;
    let kept: Vec<_> = imported
        .kept
        .iter()
        .map(|(category, text)| (display_line(category), cut(&display_line(text), FIRST_WORDS)))
        .collect();
    if args.json {
        let left_out: Vec<_> =
            imported.left_out.iter().map(|(file, reason)| json!({"file": file, "reason": reason})).collect();
        let memories: Vec<_> =
            kept.iter().map(|(category, text)| json!({"category": category, "text": text})).collect();
        let count = kept.len();
        output.json(&json!({"dry_run": args.dry_run, "kept": count, "memories": memories, "left_out": left_out}));
        return Ok(());
    }
    let what = if args.dry_run { "memories would be kept" } else { "memories kept" };
    output.line(&format!("{} {what}", kept.len()));
    for (category, text) in &kept {
        output.line(&format!("  {category}: {text}"));
    }
    for (file, reason) in &imported.left_out {
        output.line(&format!("left out of {}: {}", display_line(file), display_line(reason)));
    }
    Ok(())
}
