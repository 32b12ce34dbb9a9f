//! Slash commands: Skein's own, and the prompts of bound services.

use std::sync::Arc;

use clap::ValueEnum as _;
use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

use super::super::models::check_model;
use super::super::output::{BOLD, CommandError, QUIET, cut, display_line, verbatim};
use super::super::runtime::{bind_failure, session_failure};
use super::super::session_flags::SessionSelector;
use super::super::wrap::{Margin, Wrap, screen_width as width};
use super::super::{services, session_flags};
use super::Chat;
use super::input::CompletionWords;
use crate::broker::Binding;
use crate::conversation::Content;
use crate::ids::{ModelRef, nearest};
use crate::manifest::ApprovalLevel;
use crate::project::ModeRequest;
use crate::session::PromptError;
use crate::session::slash;
use crate::session::tutorial::{TUTORIAL, TUTORIAL_HINT};
use crate::tool::ask::Asker;

/// Action that a line of input leads to.
pub(super) enum LineAction {
    /// A prompt for the model.
    Prompt(Vec<Content>),
    /// A service prompt with its arguments filled in.
    Said(Vec<Content>),
    /// A command that has already run.
    Done,
    /// Start the next line with this text.
    Begin(String),
    Leave,
}

/// A slash command as `/help` shows it.
pub(super) struct CommandHelp {
    pub(super) usage: String,
    pub(super) description: String,
}

/// Skein's own commands: name, arguments, description.
const COMMANDS: [(&str, &str, &str); 15] = [
    ("mode", "[AGENT/]MODE", "go on in another mode, or list them"),
    ("model", "NAME", "switch to another model, or list them"),
    ("approval", "LEVEL", "set when calls need your consent, or list the levels"),
    ("tools", "", "what this mode can call"),
    ("services", "", "the services behind it, and how they are"),
    ("resources", "", "what its services have to read; @URI attaches it"),
    ("show", "N", "unfold call N, or the last one"),
    ("compact", "", "replace the older part of this session by a summary for the model"),
    ("undo", "", "undo the last prompt, its answer, and optionally its file changes"),
    ("redo", "", "reverse the last undo"),
    ("new", "", "begin another session"),
    (TUTORIAL, TUTORIAL_HINT, "learn Skein step by step; each step is checked"),
    ("help", "", "this"),
    ("quit", "", "leave; the session is kept"),
    ("exit", "", "the same"),
];

/// Returns the names of Skein's own commands.
pub(super) fn ours() -> [&'static str; COMMANDS.len()] {
    COMMANDS.map(|(name, ..)| name)
}

impl Chat<'_> {
    /// Returns the words that can currently be completed.
    pub(super) async fn words(&mut self) -> CompletionWords {
        let mut commands: Vec<_> = ours().map(str::to_owned).into();
        commands.extend(self.further_commands().await.into_keys());
        if let Ok(binding) = self.session.binding().await {
            let reading = binding.tools().iter().filter(|(_, tool)| tool.read_only);
            self.reading.extend(reading.map(|(name, _)| name.clone()));
        }
        CompletionWords {
            commands,
            modes: self.modes(),
            models: self.models().iter().map(ModelRef::to_string).collect(),
            cwd: self.folders.cwd.clone(),
        }
    }

    fn modes(&self) -> Vec<String> {
        let of_agent = |(agent, modes): (&crate::manifest::AgentEntry, Vec<&crate::manifest::ModeEntry>)| {
            modes.into_iter().map(|entry| format!("{}/{}", agent.manifest.name, entry.mode.slug)).collect::<Vec<_>>()
        };
        self.session.plan().selectable_modes().flat_map(of_agent).collect()
    }

    /// Returns the models in the settings, the models in use, and `offline`, without duplicates.
    fn models(&self) -> Vec<ModelRef> {
        let mut names = self.project.current().others;
        names.extend([self.opening.choice.model.clone(), self.session.choice().model, ModelRef::Offline]);
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }

    /// Runs the line as a command, or returns it as a prompt if it does not start with `/`.
    pub(super) async fn understand(&mut self, line: &str) -> Result<LineAction, CommandError> {
        // A user who wants to send text that starts with `/` puts a space before it.
        let Some(command) = line.strip_prefix('/') else { return self.prompt(line).await.map(LineAction::Prompt) };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "mode" if rest.is_empty() => self.list_modes(),
            "mode" => self.set_mode(rest).await?,
            "model" if rest.is_empty() => self.list_models(),
            "model" => self.set_model(rest).await?,
            "approval" if rest.is_empty() => self.list_approvals().await?,
            "approval" => self.set_approval(rest).await?,
            "resources" => self.resources().await?,
            "tools" => {
                let binding = self.session.binding().await.map_err(|error| bind_failure(&error))?;
                self.screen.markdown(&slash::tools(&binding));
            }
            "services" => self.services().await?,
            "show" => self.show(rest)?,
            "compact" => self.compact().await?,
            "undo" => return self.undo().await,
            "redo" => self.redo().await?,
            "new" => self.begin_anew().await?,
            TUTORIAL => self.tutorial(rest).await?,
            "help" => self.help().await,
            "quit" | "exit" => return Ok(LineAction::Leave),
            _ => return self.further_command(line, name, rest).await,
        }
        Ok(LineAction::Done)
    }

    fn list_modes(&self) {
        let now = self.session.choice().mode.to_string();
        let plan = self.session.plan();
        let mut text = String::new();
        for (agent, modes) in plan.selectable_modes() {
            for entry in modes {
                let id = format!("{}/{}", agent.manifest.name, entry.mode.slug);
                let mark = if id == now { "●" } else { " " };
                let what = cut(&display_line(&entry.mode.description), width().saturating_sub(26));
                text.push_str(&render_entry(&format!("{mark} {id}"), 25, &what));
            }
        }
        self.screen.print_text(&text);
    }

    async fn set_mode(&self, wanted: &str) -> Result<(), CommandError> {
        let plan = &self.session.plan();
        let now = self.session.choice().mode;
        let selected = match wanted.split_once('/') {
            Some((agent, mode)) => ModeRequest::new(Some(agent), Some(mode)).select(plan),
            // A name alone is a mode of the current agent, or else an agent.
            None => {
                let is_agent = plan.agent(wanted).is_some() || plan.agent_refusal(wanted).is_some();
                match ModeRequest::new(Some(now.agent.as_str()), Some(wanted)).select(plan) {
                    Err(_) if is_agent => ModeRequest::new(Some(wanted), None).select(plan),
                    found => found,
                }
            }
        };
        let mode = match selected {
            Ok(mode) => mode,
            Err(error) => {
                let is_clear = error.exclusion().is_some() || wanted.contains('/');
                return Err(if is_clear { error.into() } else { self.no_mode(wanted) });
            }
        };
        self.session.set_mode(mode.clone()).await.map_err(|error| session_failure(&error))?;
        self.screen.remark(&format!("{mode} continues this session"));
        let binding = self.session.binding().await.map_err(|error| bind_failure(&error))?;
        binding.missing_service_notices().for_each(|notice| self.screen.remark(&notice));
        Ok(())
    }

    fn no_mode(&self, wanted: &str) -> CommandError {
        let modes = self.modes();
        let slug = |mode: &String| mode.split_once('/').is_some_and(|(_, slug)| slug == wanted);
        let near = modes.iter().find(|mode| slug(mode)).map(String::as_str);
        let help = match near.or_else(|| nearest(wanted, modes.iter().map(String::as_str))) {
            Some(near) => format!("did you mean /mode {near}?"),
            None => "/mode lists them".to_owned(),
        };
        CommandError::usage(
            format!("{} has no mode `{wanted}`, and there is no such agent", self.session.choice().mode.agent),
            help,
        )
    }

    fn list_models(&self) {
        let now = self.session.choice().model;
        let line = |name: &ModelRef| match *name == now {
            true => format!("● {BOLD}{}{BOLD:#}\n", display_line(&name.to_string())),
            false => format!("  {}\n", display_line(&name.to_string())),
        };
        let known: String = self.models().iter().map(line).collect();
        self.screen.print_text(&format!("{known}{QUIET}or any other, as provider:model{QUIET:#}\n"));
    }

    async fn set_model(&self, wanted: &str) -> Result<(), CommandError> {
        let model = ModelRef::from(wanted);
        check_model(&*self.project.current().models, &model, &self.session.plan())?;
        self.session.set_model(model).await.map_err(|error| session_failure(&error))?;
        self.screen.remark(&format!("{wanted} continues this session"));
        Ok(())
    }

    async fn list_approvals(&self) -> Result<(), CommandError> {
        let binding = self.session.binding().await.map_err(|error| bind_failure(&error))?;
        let now = binding.approval();
        let mut text = String::new();
        for level in ApprovalLevel::ALL {
            let mark = if level == now { "●" } else { " " };
            let about = level.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
            text.push_str(&render_entry(&format!("{mark} {}", level.as_str()), 14, &about.unwrap_or_default()));
        }
        self.screen.print_text(&text);
        Ok(())
    }

    async fn set_approval(&self, wanted: &str) -> Result<(), CommandError> {
        let names = || ApprovalLevel::ALL.map(ApprovalLevel::as_str);
        let Some(level) = ApprovalLevel::ALL.into_iter().find(|level| level.as_str() == wanted) else {
            let help = match nearest(wanted, names()) {
                Some(near) => format!("did you mean /approval {near}?"),
                None => format!("the levels are {}", names().join(", ")),
            };
            return Err(CommandError::usage(format!("there is no approval level `{wanted}`"), help));
        };
        self.session.set_approval(level).await.map_err(|error| session_failure(&error))?;
        let binding = self.session.binding().await.map_err(|error| bind_failure(&error))?;
        // A project's config can keep the level stricter than wanted.
        self.screen.remark(&format!("the approval level of this session is {}", binding.approval().as_str()));
        Ok(())
    }

    async fn services(&self) -> Result<(), CommandError> {
        let binding = self.session.binding().await.map_err(|error| bind_failure(&error))?;
        let mut names: Vec<_> = binding.tools().values().map(|tool| tool.service.clone()).collect();
        names.dedup();
        let all = self.started.runtime.pool().status();
        let mut text = String::new();
        for name in names {
            let states =
                all.iter().filter(|(known, _)| *known == name).map(|(_, status)| services::state(&json!(status)));
            let states = states.collect::<Vec<_>>().join("; ");
            text.push_str(&render_entry(name.as_str(), 14, &states));
        }
        for absent in binding.missing_services() {
            text.push_str(&render_entry(absent.service.as_str(), 14, &absent.reason));
        }
        self.screen.print_text(if text.is_empty() { "this mode has no services\n" } else { &text });
        Ok(())
    }

    fn show(&self, which: &str) -> Result<(), CommandError> {
        let number = match which {
            "" => None,
            number => Some(number.parse().map_err(|_| {
                CommandError::usage(format!("`{number}` is no number of a call"), "/show 2, or /show for the last one")
            })?),
        };
        let none = || CommandError::usage("there is no such call here", "each call shows the number that unfolds it");
        self.screen.print_text(&self.screen.render_unfolded(number).ok_or_else(none)?);
        Ok(())
    }

    async fn compact(&mut self) -> Result<(), CommandError> {
        let session = Arc::clone(&self.session);
        let shortened = self.interruptible(async |front, cancel| session.compact(front, cancel).await).await;
        match shortened {
            Ok(count) => {
                self.screen.remark(&format!("the model is shown the first {count} messages in short from now on"));
                Ok(())
            }
            Err(PromptError::NotCompacted(why)) => {
                self.screen.remark(&format!("nothing was changed: {why}"));
                Ok(())
            }
            Err(error) => Err(session_flags::prompt_failure(&error)),
        }
    }

    /// Starts a new session with the mode and model of the current one.
    async fn begin_anew(&mut self) -> Result<(), CommandError> {
        let choice = self.session.choice();
        let asker = Arc::clone(&self.asker) as Arc<dyn Asker>;
        let project = self.project.current();
        let session = self.opening.open_in(project, &SessionSelector::New, asker).await?.session;
        session.set_mode(choice.mode.clone()).await.map_err(|error| session_failure(&error))?;
        session.set_model(choice.model.clone()).await.map_err(|error| session_failure(&error))?;
        let before = std::mem::replace(&mut self.session, session);
        let before = match self.is_kept(&before).await? {
            true => format!("{} is kept", before.id()),
            false => "the previous session has no messages".to_owned(),
        };
        self.screen.remark(&format!("a new session; {before}"));
        Ok(())
    }

    async fn help(&self) {
        let mut text = String::new();
        for (name, behind, what) in COMMANDS {
            text.push_str(&render_entry(&format!("/{name} {behind}"), 20, what));
        }
        for CommandHelp { usage, description } in self.further_commands().await.into_values() {
            text.push_str(&render_entry(&usage, 20, &description));
        }
        for (key, what) in [
            ("@path", "takes a file along"),
            ("Tab", "completes commands, modes, models and paths"),
            ("Alt-Enter, Ctrl-J", "a new line; so does a backslash at the end"),
            ("@agent/mode …", "this prompt there; alone, in orchestrator/auto: the one before"),
            ("Ctrl-C", "cancels the turn, or clears the line"),
            ("Ctrl-D", "leaves"),
        ] {
            text.push_str(&render_entry(key, 20, what));
        }
        self.screen.print_text(&text);
    }
}

/// Returns true if `name` is a tool's name: in full, with a dot, or without its service.
pub(super) fn names_tool(binding: &Binding, name: &str) -> bool {
    let full = name.replacen('.', "__", 1);
    let is_short = |tool: &String| tool.split_once("__").is_some_and(|(_, short)| short == name);
    binding.tools().contains_key(&full) || binding.tools().keys().any(is_short)
}

/// Renders a name and its description, with a hanging indent.
pub(super) fn render_entry(name: &str, columns: usize, what: &str) -> String {
    let name = verbatim(name.trim_end());
    let mut wrap = Wrap::default();
    let width = width();
    // A narrow screen has no room for two columns; a long name leaves none for its description.
    if width < 3 * columns || name.width() > columns {
        wrap.begin(Margin { first: format!("{BOLD}{name}{BOLD:#}\n    "), next: " ".repeat(4), width: 4 });
    } else {
        let room = " ".repeat(columns + 1 - name.width());
        let first = format!("{BOLD}{name}{BOLD:#}{room}");
        wrap.begin(Margin { first, next: " ".repeat(columns + 1), width: columns + 1 });
    }
    wrap.push(&display_line(what), QUIET, width);
    wrap.end(width);
    wrap.take()
}
