//! Opens a session in the terminal: selects agent, mode, model and stored session, and connects the asker.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::folders::Folders;
use super::keys::Keys;
use super::models::KnownModels;
use super::output::{CommandError, CommandOutput, display_line};
use super::permissions::RuleFlags;
use super::runtime::{self, CommandRuntime, LISTED, session_failure, store_failure};
use super::settings_file::SettingsFile;
use super::{Global, agents, top_of_mind, workspace};
use crate::agents::{Event, TurnLimits};
use crate::broker::Broker;
use crate::graph::Plan;
use crate::ids::{ModeId, ModelRef};
use crate::manifest::{ServiceEntry, Settings, goose_provider};
use crate::orchestrator::Orchestrator;
use crate::session::{PromptError, Session, SessionPorts, SessionRoots, SessionSettings, Sessions};
use crate::store::{self, FolderFilter, ListFilter, StoredSession};
use crate::tool::ask::Asker;

/// Flags that choose agent, mode and model.
#[derive(Debug, Clone, Args)]
pub(super) struct AgentFlags {
    /// Choose an agent; default: the profile's, or goose
    #[arg(long, short)]
    pub(super) agent: Option<String>,
    /// Choose a mode; default: the agent's default mode
    #[arg(long, short)]
    pub(super) mode: Option<String>,
    /// Choose a model, as provider:model or replay:FILE
    ///
    /// The default is the profile's model, or else `offline`, which calls tools by name.
    #[arg(long, env = "SKEIN_MODEL")]
    model: Option<String>,
}

impl AgentFlags {
    /// Returns the model. An empty value counts as unset.
    pub(super) fn model(&self) -> Option<ModelRef> {
        self.model.as_deref().filter(|model| !model.is_empty()).map(ModelRef::from)
    }

    fn names_mode(&self) -> bool {
        self.agent.is_some() || self.mode.is_some()
    }
}

/// Flags of every command that runs a session in the terminal.
#[derive(Debug, Args)]
pub(super) struct SessionFlags {
    #[command(flatten)]
    pub(super) speaker: AgentFlags,
    /// Record the model's answers for --model replay:FILE
    #[arg(long, value_name = "FILE")]
    record_model: Option<PathBuf>,
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

/// Opens sessions. Holds everything that is known before services run.
pub(super) struct SessionLauncher<'a> {
    args: &'a SessionFlags,
    folders: &'a Folders,
    pub(super) sessions: Sessions,
    pub(super) models: Arc<KnownModels>,
    pub(super) orchestrator: Orchestrator,
    pub(super) choice: SessionSettings,
    /// The models in the settings.
    pub(super) named: Vec<ModelRef>,
    /// Services added to the session.
    pub(super) client_services: Vec<Arc<ServiceEntry>>,
}

impl<'a> SessionLauncher<'a> {
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
        let mode = match suggested.mode.filter(|_| !args.speaker.names_mode()) {
            Some((agent, mode)) => mode_named(&plan, agent, Some(mode))?,
            None => select_mode(&args.speaker, &settings, &plan)?,
        };
        if let Some((provider, model)) = suggested.model.as_ref().filter(|_| args.speaker.model().is_none()) {
            let model = model_of(provider, model, &settings)?;
            settings.processor = Some(model);
        }
        let models =
            KnownModels::of(&settings, args.speaker.model().as_ref(), args.record_model.clone(), Keys::of(folders));
        let named = settings.processor.iter().chain(settings.models.keys()).cloned().collect();
        let model = args.speaker.model().or(settings.processor).unwrap_or(ModelRef::Offline);
        models.check(&model, &plan)?;
        let store = store::SessionStore::open(&folders.data).map_err(|error| store_failure(&error))?;
        let sessions = runtime::sessions(store, limits, folders);
        let choice = SessionSettings { mode, model, approval: global.approval.map(Into::into) };
        let orchestrator = Orchestrator::new(folders.data.clone(), top_of_mind::from_environment(folders));
        Ok((Self { args, folders, sessions, models, orchestrator, choice, named, client_services: Vec::new() }, plan))
    }

    /// Opens a new session, or a stored one with its events. Flags take precedence over the stored settings.
    pub(super) async fn open(
        &self,
        which: &SessionSelector,
        asker: Arc<dyn Asker>,
        started: &CommandRuntime,
    ) -> Result<(Arc<Session>, Vec<Event>), CommandError> {
        let broker = self.broker(started);
        let models = Arc::clone(&self.models) as Arc<_>;
        let outside = started.runtime.external_agents();
        let host = SessionPorts {
            broker,
            models,
            external_agents: outside,
            asker,
            editor: None,
            client_services: self.client_services.clone(),
        };
        let id = match which {
            SessionSelector::New => {
                let place = SessionRoots { cwd: self.folders.cwd.clone(), roots: Vec::new() };
                let created = self.sessions.create(place, self.choice.clone(), |_| host).await;
                return Ok((created.map_err(|error| session_failure(&error))?, Vec::new()));
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
        let opened = self.sessions.open(&id, Vec::new(), self.choice.clone(), |_| host).await;
        let opened = opened.map_err(|error| session_failure(&error))?;
        let entered = match self.args.speaker.names_mode() {
            true => opened.session.set_mode(self.choice.mode.clone()).await,
            false => opened.session.reopen_external_session().await,
        };
        entered.map_err(|error| session_failure(&error))?;
        if self.args.speaker.model().is_some() {
            opened.session.set_model(self.choice.model.clone()).await.map_err(|error| session_failure(&error))?;
        }
        Ok((opened.session, opened.events))
    }

    /// Returns the broker with the rules of this run.
    pub(super) fn broker(&self, started: &CommandRuntime) -> Broker {
        started.runtime.broker().with_rules(self.args.rules.rules())
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

/// Returns the mode from the flags, else from the profile, else goose's default mode.
fn select_mode(args: &AgentFlags, settings: &Settings, plan: &Plan) -> Result<ModeId, CommandError> {
    let (agent, mode) = if args.names_mode() {
        (args.agent.as_deref(), args.mode.as_deref())
    } else {
        (settings.agent.as_ref().map(|agent| agent.as_str()), settings.mode.as_ref().map(|mode| mode.as_str()))
    };
    mode_named(plan, agent.unwrap_or("goose"), mode)
}

/// Returns a selectable mode. Fails if it does not exist or is internal.
pub(super) fn mode_named(plan: &Plan, agent: &str, mode: Option<&str>) -> Result<ModeId, CommandError> {
    let agent = agents::find(plan, agent)?;
    let id = agents::mode_of(agent, mode)?;
    agents::check_selectable(plan, &id)?;
    Ok(id)
}

/// Notes the services that the mode lacks.
pub(super) async fn report_missing_services(live: &Session, output: &mut CommandOutput) -> Result<(), CommandError> {
    let binding = live.binding().await.map_err(|error| runtime::bind_failure(&error))?;
    for absent in binding.missing_services().iter().filter(|absent| absent.is_expected()) {
        output.note(&format!("service `{}` is unavailable: {}", absent.service, absent.reason));
    }
    Ok(())
}

/// Prints the active mode and model and the next steps, for a user without a config. `words` gives examples of tool
/// calls.
pub(super) async fn welcome(live: &Session, words: &str, output: &mut CommandOutput) -> Result<(), CommandError> {
    let binding = live.binding().await.map_err(|error| runtime::bind_failure(&error))?;
    let mut services: Vec<_> = binding.tools().values().map(|tool| tool.service.to_string()).collect();
    services.dedup();
    let choice = live.choice();
    if live.is_external() {
        output.aside(&format!("{}, an external agent, with its own model and tools\n", choice.mode));
        return Ok(());
    }
    let services = if services.is_empty() { "no services".to_owned() } else { services.join(", ") };
    output.aside(&format!("{} with {services}; model: {}\n", choice.mode, choice.model));
    output.aside(&format!("Without a model, name a tool: {words}.\n"));
    output.aside("Next: `skein configure` for a model, `skein import FILE`, `skein agents`.\n");
    Ok(())
}

fn none_here() -> CommandError {
    CommandError::NoSession {
        problem: "no session was held in this folder yet".to_owned(),
        help: "leave out --continue".to_owned(),
    }
}

/// Returns the help for a failed model request.
pub(super) fn help(why: &str) -> &'static str {
    if why.contains("it answered 401") || why.contains("it answered 403") {
        return "the provider refused the key: check the variable it is in (docs/models.md)";
    }
    if why.contains("it answered 4") {
        return "check the model's name and its address (docs/models.md)";
    }
    "continue with -c when it works again; see the log"
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
        PromptError::Misdirected(_) => CommandError::usage(error.to_string(), "`skein agents` lists who there is"),
        PromptError::Busy | PromptError::NotCompacted(_) => CommandError::work(error.to_string(), "wait for its end"),
    }
}
