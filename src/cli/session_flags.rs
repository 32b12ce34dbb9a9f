//! Opens a session in the terminal: selects agent, mode, model and stored session, and connects the asker.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::agent_flags::AgentFlags;
use super::folders::Folders;
use super::keys::Keys;
use super::models::{KnownModels, check_model};
use super::output::{CommandError, CommandOutput, display_line};
use super::permissions::RuleFlags;
use super::rule_store::UserConfig;
use super::runtime::{self, CommandRuntime, LISTED, session_failure};
use super::settings_file::SettingsFile;
use super::store_failure::store_failure;
use super::workspace_loader::{FileTraces, WorkspaceLoader};
use super::{Global, workspace};
use crate::agents::TurnLimits;
use crate::graph::Plan;
use crate::ids::ModelRef;
use crate::manifest::{ServiceEntry, Settings, goose_provider};
use crate::orchestrator::Orchestrator;
use crate::project::{
    ClientPorts, ExplicitSettings, LaunchedSession, ModeRequest, Project, ProjectUse, SessionLauncher,
};
use crate::session::{ModelSource, PromptError, Session, SessionRoots, SessionSettings, Sessions};
use crate::store::{FolderFilter, ListFilter, StoredSession};
use crate::tool::ask::Asker;

/// Flags of every command that runs a session in the terminal.
#[derive(Debug, Args)]
pub(super) struct SessionFlags {
    #[command(flatten)]
    pub(super) speaker: AgentFlags,
    /// Record the model's answers for --model replay:FILE
    #[arg(long, value_name = "FILE")]
    record_model: Option<PathBuf>,
    /// Also let the session work below this folder
    #[arg(long, value_name = "DIR")]
    add_dir: Vec<PathBuf>,
    /// Continue the newest session in this folder
    #[arg(long = "continue", short, conflicts_with = "resume")]
    pub(super) continues: bool,
    #[command(flatten)]
    rules: RuleFlags,
}

/// Defaults that apply without a flag and take precedence over the profile.
#[derive(Debug, Default)]
pub(super) struct SessionDefaults {
    pub(super) mode: Option<(&'static str, &'static str)>,
    /// A provider, by goose's name, and its model.
    pub(super) model: Option<(String, String)>,
}

/// Selects the session to open.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SessionSelector {
    New,
    Newest,
    /// An id or a prefix of one.
    Id(String),
}

/// Agent, mode, model and store of a command's sessions, checked before services run.
pub(super) struct LaunchSettings<'a> {
    args: &'a SessionFlags,
    folders: &'a Folders,
    pub(super) sessions: Sessions,
    models: Arc<KnownModels>,
    pub(super) orchestrator: Orchestrator,
    pub(super) choice: SessionSettings,
    /// The folders of `--add-dir`, with links resolved.
    roots: Vec<PathBuf>,
    /// The models in the settings.
    named: Vec<ModelRef>,
    /// Services added to the session.
    pub(super) client_services: Vec<Arc<ServiceEntry>>,
}

impl<'a> LaunchSettings<'a> {
    /// Reads manifests and settings, and checks the agent, mode and model on the command line.
    pub(super) fn prepare(
        args: &'a SessionFlags,
        limits: TurnLimits,
        suggested: &SessionDefaults,
        global: &Global,
        folders: &'a Folders,
        output: &mut CommandOutput,
    ) -> Result<(Self, Plan), CommandError> {
        let plan = workspace::plan(global, folders, output)?;
        let mut settings = Settings::of(plan.manifests());
        if let Some((provider, model)) = suggested.model.as_ref().filter(|_| args.speaker.model().is_none()) {
            settings.processor = Some(model_of(provider, model, &settings)?);
            settings.fallbacks.clear();
        }
        let request = match suggested.mode.filter(|_| args.speaker.mode_of_flags().is_empty()) {
            Some((agent, mode)) => ModeRequest::new(Some(agent), Some(mode)),
            None => args.speaker.mode_request(&settings),
        };
        let mode = request.select(&plan)?;
        let model = args.speaker.model_or_default(&settings);
        let explicit = args.speaker.model();
        let models =
            KnownModels::of(&settings, explicit.as_ref(), args.record_model.clone(), Keys::of(folders), Arc::default());
        check_model(&*models, &model, &plan)?;
        let roots = args.add_dir.iter().map(|folder| resolve_folder(folder, folders)).collect::<Result<_, _>>()?;
        let named =
            settings.processor.iter().chain(&settings.fallbacks).chain(settings.models.keys()).cloned().collect();
        let store = folders.store.sessions().map_err(|error| store_failure(&error))?;
        let sessions = runtime::sessions(store, limits, folders);
        let choice = SessionSettings { mode, model, approval: global.approval };
        let orchestrator = runtime::orchestrator(folders, folders.paths_to_hide());
        let client_services = Vec::new();
        Ok((Self { args, folders, sessions, models, orchestrator, choice, roots, named, client_services }, plan))
    }

    /// Opens a new session, or a stored one with its events. Flags take precedence over the stored settings.
    pub(super) async fn open(
        &self,
        which: &SessionSelector,
        asker: Arc<dyn Asker>,
        started: &CommandRuntime,
    ) -> Result<LaunchedSession, CommandError> {
        self.open_in(self.project(started), which, asker).await
    }

    /// Like [`Self::open`], with what applies in the folder by now.
    pub(super) async fn open_in(
        &self,
        project: Project,
        which: &SessionSelector,
        asker: Arc<dyn Asker>,
    ) -> Result<LaunchedSession, CommandError> {
        let launcher = self.launcher(project);
        let ports = ClientPorts { asker, editor: None };
        let id = match which {
            SessionSelector::New => {
                let roots = SessionRoots::here(self.folders.cwd.clone(), self.roots.clone());
                return launcher.create(roots, |_| ports).await.map_err(|error| session_failure(&error));
            }
            SessionSelector::Newest => self.folder_sessions(1).await?.into_iter().next().ok_or_else(none_here)?.id,
            SessionSelector::Id(prefix) => {
                let found = self.sessions.store().resolve(prefix).await.map_err(|error| store_failure(&error))?;
                found.ok_or_else(|| CommandError::no_session(prefix, LISTED))?
            }
        };
        let stored = self.sessions.store().find(&id).await.map_err(|error| store_failure(&error))?;
        if let Some(stored) = stored.filter(|stored| stored.cwd != self.folders.cwd) {
            // Manifests and trust belong to a folder, so a session of another folder cannot continue here.
            let cwd = stored.cwd.display();
            return Err(CommandError::usage(
                format!("the session works in {cwd}"),
                format!("continue it there: cd {cwd}"),
            ));
        }
        let launched =
            launcher.reopen(&id, self.roots.clone(), |_| ports).await.map_err(|error| session_failure(&error))?;
        launcher.resume(&launched.session).await.map_err(|error| session_failure(&error))?;
        Ok(launched)
    }

    /// Returns the folders that the user's files come from: the working directory first, then those of `--add-dir`.
    pub(super) fn work_folders(&self) -> Vec<PathBuf> {
        std::iter::once(&self.folders.cwd).chain(&self.roots).cloned().collect()
    }

    /// Returns what applied in the folder when the command began.
    pub(super) fn project(&self, started: &CommandRuntime) -> Project {
        Project {
            broker: started.runtime.broker().with_rules(self.args.rules.rules()),
            models: Arc::clone(&self.models) as Arc<_>,
            external_agents: started.runtime.external_agents(),
            mode: self.args.speaker.mode_of_flags(),
            model: self.choice.model.clone(),
            others: self.named.clone(),
            rules: Arc::new(UserConfig { folder: self.folders.config.clone() }),
            // The command has already printed the notices about the folder.
            notes: Vec::new(),
            reload_error: None,
            usage: ProjectUse::default(),
        }
    }

    /// Returns the loader that loads the project again when its files have changed. `files` are those that it was made
    /// from.
    pub(super) fn loader(&self, files: FileTraces, global: &Global, started: &CommandRuntime) -> WorkspaceLoader {
        let mut loader = WorkspaceLoader::new(global, self.folders, started);
        loader.flags = self.args.speaker.clone();
        loader.rules = self.args.rules.rules();
        // A second recorder would truncate the file.
        loader.models = self.args.record_model.as_ref().map(|_| Arc::clone(&self.models) as Arc<dyn ModelSource>);
        loader.add(files, self.project(started));
        loader
    }

    fn launcher(&self, project: Project) -> SessionLauncher {
        let explicit = ExplicitSettings {
            mode: !self.args.speaker.mode_of_flags().is_empty(),
            model: self.args.speaker.model().is_some(),
        };
        SessionLauncher::in_mode(self.choice.mode.clone(), self.sessions.clone(), project, self.choice.approval)
            .with_services(self.client_services.clone())
            .with_explicit(explicit)
    }

    /// Returns the sessions of this folder, the newest first.
    pub(super) async fn folder_sessions(&self, limit: usize) -> Result<Vec<StoredSession>, CommandError> {
        let within = FolderFilter::Folder(self.folders.cwd.clone());
        let filter = ListFilter { within, limit: Some(limit), ..ListFilter::default() };
        self.sessions.store().list(filter).await.map_err(|error| store_failure(&error))
    }

    /// Returns true if the user has no config and names no model.
    pub(super) fn is_first(&self) -> bool {
        let configured = SettingsFile::of(&self.folders.config).is_ok_and(|file| file.is_there());
        self.args.speaker.model().is_none() && !configured
    }
}

/// Returns a folder of `--add-dir` with links resolved. Fails if there is no such folder.
fn resolve_folder(folder: &Path, folders: &Folders) -> Result<PathBuf, CommandError> {
    let real = folders.cwd.join(folder).canonicalize().ok().filter(|real| real.is_dir());
    real.ok_or_else(|| {
        let problem = format!("there is no folder `{}`", display_line(&folder.display().to_string()));
        CommandError::usage(problem, "name an existing folder with --add-dir")
    })
}

/// Converts a model of goose's settings to Skein's name. Accepts only built-in providers and the user's own: a recipe
/// must not choose where requests are sent.
fn model_of(provider: &str, model: &str, settings: &Settings) -> Result<ModelRef, CommandError> {
    let theirs = settings.providers.contains_key(provider).then_some(provider);
    let ours = theirs.or_else(|| goose_provider(provider)).ok_or_else(|| {
        let problem =
            format!("the recipe wants a model of the provider `{}`, which is not known", display_line(provider));
        CommandError::usage(problem, "choose another with --model, or add it to `providers` (docs/models.md)")
    })?;
    Ok(ModelRef::Hosted { provider: ours.to_owned(), model: model.to_owned() })
}

/// Prints the notices about a session, its missing services, and rules of the command line that match nothing.
pub(super) async fn print_notices(session: &Session, output: &mut CommandOutput) -> Result<(), CommandError> {
    session.take_notices().iter().for_each(|notice| output.note(&notice.text));
    let binding = session.binding().await.map_err(|error| runtime::bind_failure(&error))?;
    binding.missing_service_notices().for_each(|notice| output.note(&notice));
    binding.flag_rules_without_match().iter().for_each(|problem| output.note(&display_line(problem)));
    Ok(())
}

/// Prints the active mode and model and the next steps, for a user without a config. `words` gives examples of tool
/// calls.
pub(super) async fn welcome(session: &Session, words: &str, output: &mut CommandOutput) -> Result<(), CommandError> {
    let binding = session.binding().await.map_err(|error| runtime::bind_failure(&error))?;
    let mut services: Vec<_> = binding.tools().values().map(|tool| tool.service.to_string()).collect();
    services.dedup();
    let choice = session.choice();
    if session.is_external() {
        output.aside(&format!("{}, an external agent, with its own model and tools\n", choice.mode));
        return Ok(());
    }
    let services = if services.is_empty() { "no services".to_owned() } else { services.join(", ") };
    output.aside(&format!("{} with {services}; model: {}\n", choice.mode, choice.model));
    output.aside(&format!("Without a model, name a tool: {words}.\n"));
    output.aside("Next: `skein configure` for a model, `skein import FILE`, `skein agents`, `skein tutorial`.\n");
    Ok(())
}

fn none_here() -> CommandError {
    CommandError::NoSession {
        problem: "no session was held in this folder yet".to_owned(),
        help: "leave out --continue".to_owned(),
    }
}

/// Returns the help for a model request that the provider rejected with this HTTP status. `None` if it failed in another
/// way.
pub(super) fn rejection_help(status: Option<u16>) -> Option<&'static str> {
    match status? {
        401 | 403 => Some("the provider refused the key: check the variable it is in (docs/models.md)"),
        400..500 => Some("check the model's name and its address (docs/models.md)"),
        _ => None,
    }
}

pub(super) fn prompt_failure(error: &PromptError) -> CommandError {
    match error {
        PromptError::Bind(error) => runtime::bind_failure(error),
        PromptError::Store(error) => store_failure(error),
        PromptError::Record(error) => session_failure(error),
        PromptError::Model(_) => CommandError::usage(error.to_string(), "choose another --model or SKEIN_MODEL"),
        PromptError::Prompt(_) => {
            CommandError::work(error.to_string(), "correct the mode's prompt; `skein check` shows details")
        }
        PromptError::HookRefusal { .. } => {
            CommandError::work(error.to_string(), "change the prompt, or the hook in config.yaml")
        }
        PromptError::Misdirected(_) => CommandError::usage(error.to_string(), "`skein agents` lists who there is"),
        PromptError::Grant(_) => CommandError::usage(error.to_string(), "use a token with other limits"),
        PromptError::Busy | PromptError::BusyElsewhere | PromptError::NotCompacted(_) => {
            CommandError::work(error.to_string(), "wait for its end")
        }
    }
}
