//! `skein services add`: shows what a new service runs, starts it once, suggests tool groups, and writes its manifest.
//!
//! Invariant: nothing starts and nothing is written before the user agrees.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::IsTerminal as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};

use super::super::folders::Folders;
use super::super::new::{check_name, project_root, trust, was_trusted};
use super::super::output::{CommandError, CommandOutput, display_line};
use super::super::runtime::CommandRuntime;
use super::super::sandbox::FilesFlag;
use super::super::trust::{access_lines, confirm};
use super::super::whole_file::{create, replace};
use super::super::{Global, runtime, workspace};
use super::{dependents, find, login};
use crate::diagnostic::Severity;
use crate::graph::{self, Plan, ProcessKind, profile_json, profile_text};
use crate::ids::ServiceName;
use crate::manifest::{
    self, HttpTransport, Layer, Root, ServiceEntry, ServiceManifest, StdioTransport, Transport, service_manifest,
    service_text, suggest_sandbox,
};
use crate::services::suggest_groups;
use crate::tool::Catalog;

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    /// Name the service; models see its tools as NAME__TOOL
    name: String,
    /// Connect to this address instead of starting a program
    #[arg(long, value_name = "URL", required_unless_present = "program", conflicts_with = "program")]
    url: Option<String>,
    /// Send this header with each request, as "NAME: VALUE"
    ///
    /// May be repeated. Keep secrets in your environment: 'Authorization: Bearer ${env:TOKEN}'.
    #[arg(long, value_name = "HEADER", requires = "url")]
    header: Vec<String>,
    /// Pass this variable of your environment to the program
    ///
    /// May be repeated. The manifest contains the name, never the value.
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    env: Vec<String>,
    /// Let the program reach this host
    ///
    /// May be repeated. A program that downloads a package always reaches the package registries.
    #[arg(long, value_name = "HOST", conflicts_with = "url")]
    host: Vec<String>,
    /// Set which files the program may write; default: read-only
    #[arg(long, value_enum, value_name = "ACCESS", conflicts_with = "url")]
    files: Option<FilesFlag>,
    /// Start the program with all your rights
    #[arg(long, conflicts_with_all = ["url", "host", "files"])]
    no_sandbox: bool,
    /// Describe in one sentence what the service offers
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Write to the project's .skein/ instead of your settings
    #[arg(long)]
    project: bool,
    /// Replace a service of the same name
    #[arg(long)]
    replace: bool,
    /// Write the manifest without starting the service
    #[arg(long)]
    no_probe: bool,
    /// Add without asking
    #[arg(long, short)]
    yes: bool,
    /// The program and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

pub(super) fn run(
    args: &AddArgs,
    json: bool,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    check_name(&args.name)?;
    let target = ManifestTarget::new(args, folders);
    let replaces = target.check_free(args.replace, global, folders)?;
    let program = absolute_program(&args.program, &folders.cwd);
    for (given, used) in args.program.iter().zip(&program).filter(|(given, used)| given != used) {
        output.note(&format!("`{given}` is written as `{used}`, because a service does not start in this folder"));
    }
    let mut manifest = args.manifest(&program)?;
    target.check_valid(&manifest, output)?;
    let text = service_text(&manifest, COMMENT);
    let plan = workspace::plan_with(global, folders, output, (target.inside().as_str(), text))?;
    let entry = find(&plan, &args.name)?.clone();
    show_what_runs(&plan, &entry, &target, args, folders, output);
    if !args.yes {
        ask(args, output)?;
    }
    let modes = dependents(&plan, &entry);
    let profile = plan.service_sandbox(&entry.manifest.name).cloned();
    let catalog = match args.no_probe {
        true => None,
        false => Some(match probe(plan, &entry, global, folders, output) {
            Err(error) if login::is_wanted(&entry, folders) => {
                log_in(args, &entry, error, folders, output)?;
                let text = service_text(&manifest, COMMENT);
                let plan = workspace::plan_with(global, folders, output, (target.inside().as_str(), text))?;
                let probed = probe(plan, &entry, global, folders, output);
                probed.inspect_err(|_| login::discard(&entry.manifest.name, folders))?
            }
            probed => probed?,
        }),
    };
    if let Some(catalog) = &catalog {
        manifest.groups = suggest_groups(&catalog.tools);
        if target.find_errors(&manifest).is_some() {
            // A service may have the name of a suggested group. Groups are only a suggestion.
            output.note("no groups were written, because a service has the name of a suggested one");
            manifest.groups = BTreeMap::new();
        }
    }
    let trusted_before = if args.project { Some(was_trusted(folders)?) } else { None };
    target.write(&service_text(&manifest, COMMENT))?;
    if trusted_before == Some(true) {
        trust(folders)?;
    }
    let file = folders.display_path(&target.file);
    if json {
        let tools = catalog.as_ref().map(|catalog| tools_json(catalog, &manifest));
        output.json(&json!({
            "name": args.name, "file": file, "replaced": replaces, "tools": tools, "groups": manifest.groups,
            "sandbox": profile_json(profile.as_ref()), "modes": modes, "trusted": trusted_before,
        }));
    } else {
        print_result(&manifest, catalog.as_deref(), &file, &modes, output);
    }
    if trusted_before == Some(false) {
        output.note("the project is not trusted: look at its .skein/, then run `skein trust`");
    }
    note_disabled(&args.name, global, folders, output)
}

/// The first line of a manifest that this command writes.
const COMMENT: &str = "Written by `skein services add`. Correct the groups and the sandbox if they do not fit.";

impl AddArgs {
    /// Returns the manifest of this program without groups. Fails if a flag has a wrong form.
    fn manifest(&self, program: &[String]) -> Result<ServiceManifest, CommandError> {
        let transport = match (&self.url, program.split_first()) {
            (Some(url), _) => Transport::Http(HttpTransport { url: url.clone(), headers: self.headers()? }),
            (None, Some((command, args))) => Transport::Stdio(StdioTransport {
                command: command.clone(),
                args: args.to_vec(),
                env: self.variables()?,
                cwd: None,
            }),
            (None, None) => {
                let help = "write it after two dashes: `skein services add NAME -- PROGRAM ARGS`, or use --url";
                return Err(CommandError::usage("no program is named", help));
            }
        };
        let sandbox = match &transport {
            Transport::Stdio(stdio) if !self.no_sandbox => {
                let mut settings = suggest_sandbox(&stdio.command, &self.host);
                settings.files = self.files.map(Into::into).or(settings.files);
                Some(settings)
            }
            Transport::Stdio(_) | Transport::Http(_) | Transport::Builtin(_) => None,
        };
        let description = self.description.clone().unwrap_or_else(|| format!("MCP server {}", self.name));
        let mut manifest = service_manifest(ServiceName::new(self.name.as_str()), None, description, transport);
        manifest.sandbox = sandbox;
        Ok(manifest)
    }

    fn headers(&self) -> Result<BTreeMap<String, String>, CommandError> {
        let header = |text: &String| {
            let (name, value) = text.split_once(':')?;
            Some((name.trim().to_owned(), value.trim().to_owned())).filter(|(name, _)| !name.is_empty())
        };
        let wrong = |_: &String| {
            // The value may be a secret, so it is not repeated.
            CommandError::usage("a --header has no name", "write it as --header 'Authorization: Bearer ${env:TOKEN}'")
        };
        self.header.iter().map(|text| header(text).ok_or_else(|| wrong(text))).collect()
    }

    fn variables(&self) -> Result<BTreeMap<String, String>, CommandError> {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        let variable = |name: &String| match is_name(name) {
            true => Ok((name.clone(), format!("${{env:{name}}}"))),
            // The text may be NAME=SECRET, so it is not repeated.
            false => Err(CommandError::usage(
                "a value of --env is not the name of a variable",
                "write only the name, as in `--env GITHUB_TOKEN`, and set the variable where you start skein",
            )),
        };
        self.env.iter().map(variable).collect()
    }
}

/// Returns a program and its arguments with absolute paths of the files that they name. The paths keep their links,
/// because `python` finds its packages by the path of its link.
fn absolute_program(program: &[String], cwd: &Path) -> Vec<String> {
    let absolute = |(at, text): (usize, &String)| {
        let path = Path::new(text);
        let is_below_here = ["./", "../"].iter().any(|start| text.starts_with(start)) || text == "." || text == "..";
        // A program without a slash is found on the PATH, and an argument such as `run` may be a command.
        let names_file = text.contains('/') || (at > 0 && text.contains('.'));
        let file = cwd.join(path);
        if path.is_absolute() || !(is_below_here && file.exists() || names_file && file.is_file()) {
            return text.clone();
        }
        let full = std::path::absolute(&file).ok().and_then(|file| file.to_str().map(str::to_owned));
        full.unwrap_or_else(|| text.clone())
    };
    program.iter().enumerate().map(absolute).collect()
}

/// The file that the command writes, and its layer.
struct ManifestTarget {
    name: ServiceName,
    file: PathBuf,
    layer: Layer,
}

impl ManifestTarget {
    fn new(args: &AddArgs, folders: &Folders) -> Self {
        let (base, layer) = match args.project {
            true => (project_root(folders).join(".skein"), Layer::Project),
            false => (folders.config.clone(), Layer::User),
        };
        let file = base.join("services").join(format!("{}.yaml", args.name));
        Self { name: ServiceName::new(args.name.as_str()), file, layer }
    }

    /// Returns the path of the manifest below a root, as the loader sees it.
    fn inside(&self) -> String {
        format!("services/{}.yaml", self.name)
    }

    /// Returns whether a manifest is replaced. Fails if the name is taken.
    fn check_free(&self, may_replace: bool, global: &Global, folders: &Folders) -> Result<bool, CommandError> {
        let known = workspace::manifests_quietly(global, folders)?;
        let shown = folders.display_path(&self.file);
        if let Some(entry) = known.services.get(&self.name) {
            let place = display_line(&entry.source.file);
            if entry.layer == Layer::Builtin {
                let problem = format!("`{}` is a built-in service", self.name);
                return Err(CommandError::usage(problem, "choose another name"));
            }
            if entry.layer == self.layer && entry.source.file != shown {
                let problem = format!("the service `{}` is defined in {place}", self.name);
                return Err(CommandError::usage(problem, "remove it there, or choose another name"));
            }
            if !may_replace {
                let problem = format!("there is a service `{}` already, in {place}", self.name);
                return Err(CommandError::usage(problem, "choose another name, or pass --replace"));
            }
        } else if self.file.exists() && !may_replace {
            let problem = format!("{shown} exists already");
            return Err(CommandError::usage(problem, "choose another name, or pass --replace"));
        }
        Ok(self.file.exists())
    }

    /// Returns what the loader and the resolver report as errors about the manifest. `None` if there is no error.
    fn find_errors(&self, manifest: &ServiceManifest) -> Option<Vec<crate::diagnostic::Diagnostic>> {
        let text = service_text(manifest, COMMENT).into_bytes();
        let path = match self.layer {
            Layer::Project => Path::new(".skein").join(self.inside()),
            Layer::Builtin | Layer::User | Layer::Extra | Layer::Editor => PathBuf::from(self.inside()),
        };
        let root = Root::Snapshot { files: [(path, text)].into(), shown: String::new() };
        let (manifests, found) = manifest::load(&[(Layer::Builtin, Root::Builtin), (self.layer, root)]);
        let mut found = graph::resolve_without_notes(manifests, found).diagnostics;
        found.retain(|diagnostic| diagnostic.severity == Severity::Error);
        (!found.is_empty()).then_some(found)
    }

    fn check_valid(&self, manifest: &ServiceManifest, output: &mut CommandOutput) -> Result<(), CommandError> {
        let Some(errors) = self.find_errors(manifest) else { return Ok(()) };
        output.diagnostics(&errors);
        Err(CommandError::usage("the manifest would not be valid", "correct the command line as said above"))
    }

    fn write(&self, text: &str) -> Result<(), CommandError> {
        let mode = if self.layer == Layer::Project { 0o644 } else { 0o600 };
        let written = match self.file.exists() {
            true => replace(&self.file, text, Permissions::from_mode(mode)),
            false => create(&self.file, text, mode),
        };
        written.map_err(|error| {
            let problem = format!("{} cannot be written: {error}", self.file.display());
            CommandError::work(problem, "check the folder's permissions")
        })
    }
}

/// Prints the program or address, the variables, the sandbox and the file, before anything happens.
fn show_what_runs(
    plan: &Plan,
    entry: &ServiceEntry,
    target: &ManifestTarget,
    args: &AddArgs,
    folders: &Folders,
    output: &mut CommandOutput,
) {
    let mut lines = access_lines(entry);
    if let Transport::Stdio(_) = entry.manifest.transport {
        let sandbox = profile_text(ProcessKind::Service, plan.service_sandbox(&entry.manifest.name));
        lines.push(format!("sandbox: {sandbox}"));
    }
    lines.push(format!("file: {}", folders.display_path(&target.file)));
    if args.no_sandbox {
        lines.push("without a sandbox, the program has all your rights".to_owned());
    }
    for line in lines {
        output.aside(&format!("{}\n", display_line(&line)));
    }
}

/// Asks the user to confirm. Fails if the user declines or there is no terminal.
fn ask(args: &AddArgs, output: &mut CommandOutput) -> Result<(), CommandError> {
    if !std::io::stdin().is_terminal() {
        return Err(CommandError::usage(
            "there is no terminal to ask on, and nothing was started or written",
            "look at what would run, then pass --yes",
        ));
    }
    let question = match (args.no_probe, &args.url) {
        (true, _) => "Write this manifest?",
        (false, Some(_)) => "Connect to it, list its tools, and add it?",
        (false, None) => "Start it, list its tools, and add it?",
    };
    match confirm(question, output)? {
        true => Ok(()),
        false => Err(CommandError::work("the service was not added", "answer y, or pass --yes")),
    }
}

/// Logs in to a service that refused the probe, if there is a terminal and the user agrees.
fn log_in(
    args: &AddArgs,
    entry: &ServiceEntry,
    refusal: CommandError,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let name = &entry.manifest.name;
    if !std::io::stdin().is_terminal() {
        let help = format!("add it with --no-probe, then run `skein services login {name}`");
        return Err(CommandError::work(format!("`{name}` wants a login; nothing was written"), help));
    }
    if !args.yes && !confirm("It wants a login. Log in with your browser now?", output)? {
        return Err(refusal);
    }
    login::perform(name, &login::LoginRequest::of(entry, folders)?, folders, output).map(drop)
}

/// Starts the service in its sandbox and lists its tools.
fn probe(
    plan: Plan,
    entry: &ServiceEntry,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<Arc<Catalog>, CommandError> {
    runtime::block_on(plan, global, folders, output, async |started: &CommandRuntime, _: &mut CommandOutput| {
        let lease = started.runtime.broker().lease_service(entry, &started.session);
        let catalog = lease.service().catalog().await;
        catalog.map_err(|error| {
            let help = match &entry.manifest.transport {
                Transport::Stdio(_) => format!(
                    "correct the program, or let it do more with --env, --host or --files; its sandbox shows no file \
                     of `/tmp`, and with `--files none` only system folders; `skein services logs {}` shows what it \
                     wrote",
                    entry.manifest.name
                ),
                Transport::Http(_) | Transport::Builtin(_) => {
                    "check the address, and give a --header if the server wants a key".to_owned()
                }
            };
            let problem = format!("{}; nothing was written", display_line(&error.to_string()));
            CommandError::work(problem, format!("{help}; --no-probe writes the manifest without a start"))
        })
    })
}

fn group_of<'a>(manifest: &'a ServiceManifest, tool: &str) -> Option<&'a str> {
    let listed = manifest.groups.iter().find(|(_, tools)| tools.iter().any(|name| name.as_str() == tool));
    listed.map(|(group, _)| group.as_str())
}

fn tools_json(catalog: &Catalog, manifest: &ServiceManifest) -> Vec<Value> {
    let tool = |tool: &crate::tool::ToolSpec| {
        let name = tool.name.as_str();
        json!({"name": name, "group": group_of(manifest, name), "read_only": tool.hints.read_only})
    };
    catalog.tools.iter().map(tool).collect()
}

fn print_result(
    manifest: &ServiceManifest,
    catalog: Option<&Catalog>,
    file: &str,
    modes: &[String],
    output: &mut CommandOutput,
) {
    match catalog {
        None => output.line(&format!("its tools are not known: `skein services --probe {}` lists them", manifest.name)),
        Some(catalog) if catalog.tools.is_empty() => output.line("it has no tools"),
        Some(catalog) => {
            output.line(&format!("{} tools, with suggested groups:", catalog.tools.len()));
            for (group, tools) in &manifest.groups {
                let tools: Vec<_> = tools.iter().map(|tool| display_line(tool.as_str())).collect();
                output.line(&format!("  {:<12} {}", group.as_str(), tools.join(", ")));
            }
            let names = catalog.tools.iter().map(|tool| tool.name.as_str());
            let others: Vec<_> = names.filter(|name| group_of(manifest, name).is_none()).map(display_line).collect();
            if !others.is_empty() {
                output.line(&format!("  {:<12} {}", "(no group)", others.join(", ")));
            }
        }
    }
    output.line(&format!("wrote {file}"));
    if !modes.is_empty() {
        output.line(&format!("modes that have it: {}", modes.join(", ")));
    }
}

/// Notes if the new service is off.
fn note_disabled(
    name: &str,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let known = workspace::manifests_quietly(global, folders)?;
    if let Some(reason) = known.services.get(name).and_then(|entry| entry.disabled_by.as_ref()) {
        output.note(&format!("`{name}` is off: {reason}; `skein services enable {name}` turns it on"));
    }
    Ok(())
}
