//! `skein apps`: lists the stored apps, opens one in a browser, and exports one as a file.

mod browser;

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use super::environment::variable;
use super::folders::Folders;
use super::output::{BOLD, CommandError, CommandOutput, QUIET, display_line};
use super::whole_file;
use crate::services::builtin::apps::{AppLibrary, AppLibraryError, AppListing, AppSummary};
use browser::OpenBrowserError;

#[derive(Debug, Args)]
pub(super) struct AppsArgs {
    #[command(subcommand)]
    command: AppsCommand,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum AppsCommand {
    /// List the apps
    List,
    /// Open an app in your browser, and print its file
    Open {
        /// Name of the app
        name: String,
    },
    /// Write an app to a file that needs nothing else
    Export {
        /// Name of the app
        name: String,
        /// The HTML file to write
        file: PathBuf,
        /// Replace the file if it exists
        #[arg(long)]
        force: bool,
    },
}

pub(super) fn run(args: &AppsArgs, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let library = AppLibrary::new(&folders.data);
    match &args.command {
        AppsCommand::List => list(&library, args.json, output),
        AppsCommand::Open { name } => open(&library, name, args.json, output),
        AppsCommand::Export { name, file, force } => {
            let target = ExportTarget { file: folders.cwd.join(file), force: *force };
            export(&library, name, &target, args.json, output)
        }
    }
}

fn list(library: &AppLibrary, json: bool, output: &mut CommandOutput) -> Result<(), CommandError> {
    let AppListing { apps, deleted, unreadable } = library.list().map_err(|error| failure(&error))?;
    if json {
        let apps: Vec<_> = apps.iter().map(summary).collect();
        let deleted: Vec<_> = deleted.iter().map(|app| json!({"name": app.name, "version": app.version})).collect();
        let unreadable: Vec<_> = unreadable
            .iter()
            .map(|app| json!({"name": app.name, "file": app.file, "reason": app.error.to_string()}))
            .collect();
        output.json(&json!({"apps": apps, "deleted": deleted, "unreadable": unreadable}));
        return Ok(());
    }
    for app in &apps {
        let day = app.saved.split('T').next().unwrap_or_default();
        let (title, note) = (display_line(&app.title), display_line(&app.note));
        output.line(&format!("{BOLD}{}{BOLD:#}  {title}, version {} of {day}: {note}", app.name, app.version));
    }
    for app in &deleted {
        output.line(&format!("{QUIET}{}  deleted; the last version is {}{QUIET:#}", app.name, app.version));
    }
    for app in &unreadable {
        output.line(&format!("{}  cannot be read: {}", app.name, display_line(&app.error.to_string())));
    }
    if apps.is_empty() && deleted.is_empty() && unreadable.is_empty() {
        output.note("there are no apps; `skein run -a goose/app_maker PROMPT` makes one");
    }
    Ok(())
}

fn summary(app: &AppSummary) -> serde_json::Value {
    json!({
        "name": app.name, "title": app.title, "version": app.version, "saved": app.saved, "note": app.note,
        "network": app.network, "file": app.file,
    })
}

/// Opens the stored file: the browser keeps the data of an app by the path of its file.
fn open(library: &AppLibrary, name: &str, json: bool, output: &mut CommandOutput) -> Result<(), CommandError> {
    let (app, _) = library.read(name).map_err(|error| failure(&error))?;
    let opened = browser::open(&app.file, &|name| variable(name), cfg!(target_os = "macos"));
    let shown = display_line(&app.file.to_string_lossy());
    if json {
        output.json(&json!({"name": app.name, "file": app.file, "opened": opened.is_ok()}));
    } else {
        output.line(&shown);
    }
    match opened {
        Ok(program) => {
            output.note(&format!("opened with {}", display_line(&program)));
            Ok(())
        }
        // The path is the answer here.
        Err(OpenBrowserError::NoDisplay) => {
            output.note(&format!(
                "there is no display and BROWSER is not set, so nothing was opened; open the file in a browser, or copy it \
                 to a machine that has one with `skein apps export {} FILE`",
                app.name
            ));
            Ok(())
        }
        Err(error) => Err(CommandError::work(error.to_string(), format!("open {shown} in a browser yourself"))),
    }
}

/// The file to write.
struct ExportTarget {
    file: PathBuf,
    /// Replaces an existing file.
    force: bool,
}

fn export(
    library: &AppLibrary,
    name: &str,
    target: &ExportTarget,
    json: bool,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let (app, text) = library.read(name).map_err(|error| failure(&error))?;
    let file = &target.file;
    write(target, &text).map_err(|error| export_failure(file, &error))?;
    if json {
        output.json(&json!({"name": app.name, "version": app.version, "file": file, "bytes": text.len()}));
    } else {
        output.note(&format!("wrote {}", display_line(&file.to_string_lossy())));
    }
    Ok(())
}

/// Writes the whole file or nothing. The app is not secret, so the file gets the usual permissions.
fn write(target: &ExportTarget, text: &str) -> std::io::Result<()> {
    const MODE: u32 = 0o644;
    match whole_file::create(&target.file, text, MODE) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && target.force && !target.file.is_dir() => {
            whole_file::replace(&target.file, text, Permissions::from_mode(MODE))
        }
        written => written,
    }
}

fn export_failure(file: &Path, error: &std::io::Error) -> CommandError {
    let shown = display_line(&file.to_string_lossy());
    match error.kind() {
        ErrorKind::AlreadyExists if file.is_dir() => {
            CommandError::usage(format!("{shown} is a folder"), "name a file in it, such as app.html")
        }
        ErrorKind::AlreadyExists => {
            CommandError::usage(format!("{shown} exists already"), "name another file, or pass --force to replace it")
        }
        _ => CommandError::work(format!("{shown} cannot be written: {error}"), "name another file"),
    }
}

fn failure(error: &AppLibraryError) -> CommandError {
    let problem = display_line(&error.to_string());
    match error {
        AppLibraryError::Unknown { nearest: Some(near), .. } => {
            CommandError::usage(problem, format!("did you mean `{near}`? `skein apps list` shows all"))
        }
        AppLibraryError::Unknown { nearest: None, .. } => CommandError::usage(problem, "`skein apps list` shows all"),
        AppLibraryError::Deleted { version, .. } => {
            CommandError::usage(problem, format!("ask `goose/app_iterator` to restore version {version}"))
        }
        AppLibraryError::Unreadable { .. } => {
            CommandError::work(problem, "ask `goose/app_iterator` to restore an earlier version")
        }
        AppLibraryError::Folder { folder, .. } => {
            CommandError::work(problem, format!("check the permissions of {}", display_line(&folder.to_string_lossy())))
        }
    }
}
