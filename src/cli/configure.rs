//! `skein configure`: sets the provider, key, model and default agent, sends a test request, and prints an editor's
//! settings. Asks in a terminal, unless flags give the answers.

mod changes;
mod questions;

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures::StreamExt as _;
use serde_json::json;

use super::environment::variable;
use super::folders::Folders;
use super::keys::{KeyLocation, Keys};
use super::output::{CommandError, CommandOutput, display_line};
use super::settings_file::{ConfigEdit, SettingsFile, UnsafeEditError};
use super::{Global, workspace};
use crate::agents::models;
use crate::conversation::{Content, Message};
use crate::graph::Plan;
use crate::ids::{AgentName, ModeId, ModelRef};
use crate::llm::{ModelRegistry, ModelRequest, ProviderInfo, StreamEvent};
use crate::manifest::Settings;
use crate::project::{ModeRequest, default_mode};
use changes::{EditedProfile, check_text};
use questions::{question, read_hidden_line, read_key, yes};

/// Time limit of the test request.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of the provider that needs no model.
const OFFLINE: &str = "offline";

#[derive(Debug, Default, Args)]
pub(super) struct ConfigureArgs {
    /// Choose a provider: openai, anthropic, ollama, …
    ///
    /// Providers of your own config can be named, too.
    #[arg(long)]
    provider: Option<String>,
    /// Choose a model, as MODEL or PROVIDER:MODEL
    #[arg(long)]
    model: Option<String>,
    /// Name the environment variable that holds the key
    #[arg(long, value_name = "NAME", conflicts_with = "key_stdin")]
    key_env: Option<String>,
    /// Read the key from stdin and store it
    #[arg(long)]
    key_stdin: bool,
    /// Only remove this provider's key from keyring and file
    #[arg(long, value_name = "PROVIDER", conflicts_with_all = ["provider", "model", "key_env", "key_stdin", "agent"])]
    forget_key: Option<String>,
    /// Set the default agent of sessions, or agent/mode
    #[arg(long)]
    agent: Option<String>,
    /// Set the default mode of sessions
    #[arg(long)]
    mode: Option<String>,
    /// Do not send a test request to the model
    #[arg(long)]
    no_test: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl ConfigureArgs {
    fn is_interactive(&self) -> bool {
        let ConfigureArgs { provider, model, key_env, key_stdin, forget_key: _, agent, mode, no_test: _, json } = self;
        !(*key_stdin || *json || [provider, model, key_env, agent, mode].into_iter().any(Option::is_some))
    }
}

/// The user's choices, before anything is written.
struct ConfigureAnswers {
    facts: ProviderInfo,
    model: ModelRef,
    /// The variable of the key. `None` if the provider needs no key.
    key_name: Option<String>,
    /// A new key to store.
    key: Option<String>,
    agent: Option<(String, Option<String>)>,
}

pub(super) fn run(
    args: &ConfigureArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let plan = workspace::plan(global, folders, output)?;
    let settings = Settings::of(plan.manifests());
    let models = models(&settings, Arc::default());
    let keys = Keys::of(folders);
    if let Some(provider) = &args.forget_key {
        return forget(&provider_facts(provider, &models)?, &keys, args.json, output);
    }
    let profile = EditedProfile::of(global, plan.manifests())?;
    let asks = args.is_interactive();
    let chosen = if asks {
        ask(&plan, &settings, &models, &keys, output)?
    } else {
        answers_from_flags(args, &plan, &settings, &models, &keys)?
    };
    let Some(mut chosen) = chosen else {
        output.line("Nothing was changed.");
        return Ok(());
    };
    if let Some((agent, mode)) = &mut chosen.agent {
        let id = find_mode(&plan, agent, mode.as_deref())?;
        // The mode in the file may belong to another agent.
        if mode.is_none() && profile.has_mode() {
            *mode = Some(id.mode.to_string());
        }
    }
    let is_named = asks || args.provider.is_some() || args.model.is_some();
    let keeps_model = !is_named && settings.processor.as_ref().unwrap_or(&ModelRef::Offline) == &chosen.model;
    let changes = profile.changes(&chosen, keeps_model, args.key_env.as_deref(), &models);
    let changes: Vec<ConfigEdit<'_>> =
        changes.iter().map(|(path, value)| (path.iter().map(String::as_str).collect(), value.clone())).collect();
    let file = SettingsFile::of(&folders.config)?;
    let file = file.with(&changes).map_err(|UnsafeEditError { file, text }| {
        let problem = format!("{} cannot be edited without losing something in it", file.display());
        CommandError::work(problem, format!("write into it:\n\n{text}"))
    })?;
    check_text(&file, global, folders, output)?;
    if let (Some(name), Some(key)) = (&chosen.key_name, &chosen.key)
        && variable(name).is_some_and(|held| held != *key)
    {
        output.note(&format!(
            "the variable {name} is set and takes precedence: sessions use its value, not the key from stdin, until you \
             unset it"
        ));
    }
    // The offline provider needs no test: it is part of Skein.
    let can_test = !chosen.model.is_offline();
    let test = !args.no_test && can_test && (!asks || yes("Ask the model once, to see that it answers?", output)?);
    if test {
        try_out(&chosen, &models, &keys, output)?;
    }
    let kept = match (&chosen.key_name, &chosen.key) {
        (Some(name), Some(key)) => Some(keys.keep(name, key).map_err(unkept)?),
        (Some(name), None) => Some(keys.find(name).0),
        (None, _) => None,
    };
    file.write()?;
    print_result(&chosen, kept, &keys, file.file(), test, args.json, output);
    Ok(())
}

fn find_mode(plan: &Plan, agent: &str, mode: Option<&str>) -> Result<ModeId, CommandError> {
    Ok(ModeRequest::new(Some(agent), mode).select(plan)?)
}

fn unkept(error: anyhow::Error) -> CommandError {
    CommandError::work(format!("{error:#}"), "correct this, and run it again")
}

/// Removes a key from the keyring and the file.
fn forget(facts: &ProviderInfo, keys: &Keys, as_json: bool, output: &mut CommandOutput) -> Result<(), CommandError> {
    let Some(name) = &facts.key else {
        return Err(CommandError::usage(format!("{} needs no key", facts.name), "there is nothing to remove"));
    };
    let places = keys.forget(name).map_err(unkept)?;
    let places: Vec<_> = places.into_iter().map(KeyLocation::as_str).collect();
    if as_json {
        output.json(&json!({"key": name, "removed_from": places}));
    } else if places.is_empty() {
        output.line(&format!("No key {name} was kept."));
    } else {
        output.line(&format!("The key {name} is no longer in: {}.", places.join(", ")));
    }
    Ok(())
}

/// Takes the choices from the flags.
fn answers_from_flags(
    args: &ConfigureArgs,
    plan: &Plan,
    settings: &Settings,
    models: &ModelRegistry,
    keys: &Keys,
) -> Result<Option<ConfigureAnswers>, CommandError> {
    // With an agent alone, the model stays as it is, also if none is configured.
    let only_agent = (args.agent.is_some() || args.mode.is_some())
        && args.provider.is_none()
        && args.model.is_none()
        && args.key_env.is_none()
        && !args.key_stdin;
    let fallback = only_agent.then_some(ModelRef::Offline);
    let Some(model) = model_from_flags(args, settings.processor.as_ref()).or(fallback) else {
        return Err(missing_model(args.provider.as_deref(), models));
    };
    let (model, facts) = facts(model, models)?;
    if model.is_offline() && args.key_env.is_some() {
        return Err(CommandError::usage(format!("{OFFLINE} needs no key"), "leave out --key-env"));
    }
    let key_name = args.key_env.clone().or(facts.key.clone());
    if let Some(name) = args.key_env.as_ref().filter(|name| !args.no_test && keys.find(name).0 == KeyLocation::Nowhere)
    {
        let problem =
            format!("the variable {} is not set, and the model cannot be tried without its key", display_line(name));
        return Err(CommandError::usage(problem, "set it, or leave the test out with --no-test"));
    }
    let mut key = None;
    if args.key_stdin {
        if key_name.is_none() {
            return Err(CommandError::usage(format!("{} needs no key", facts.name), "leave out --key-stdin"));
        }
        key = Some(read_key(&facts.name)?).filter(|key| !key.is_empty());
        if key.is_none() {
            return Err(CommandError::usage(
                "no key came from stdin",
                "send it, as in `skein configure --key-stdin < FILE`",
            ));
        }
    }
    let request = ModeRequest::new(args.agent.as_deref(), args.mode.as_deref());
    let agent = match (request.agent(), request.mode()) {
        (None, None) => None,
        (None, Some(_)) => Some(request.select(plan).map(|id| (id.agent.to_string(), Some(id.mode.to_string())))?),
        (Some(agent), mode) => Some((agent.to_owned(), mode.map(str::to_owned))),
    };
    Ok(Some(ConfigureAnswers { facts, model, key_name, key, agent }))
}

/// Asks the user at the terminal. `None` if the user chooses nothing.
fn ask(
    plan: &Plan,
    settings: &Settings,
    models: &ModelRegistry,
    keys: &Keys,
    output: &mut CommandOutput,
) -> Result<Option<ConfigureAnswers>, CommandError> {
    if !std::io::stdin().is_terminal() {
        let help = "say it with flags: --provider or --model, --key-env or --key-stdin, --agent; `--help` lists them";
        return Err(CommandError::usage("there is no terminal to ask on", help));
    }
    let current = settings.processor.clone();
    match &current {
        Some(model) => output.line(&format!("Your profile names the model {}.", display_line(&model.to_string()))),
        None => output.line("No model is configured. Sessions work all the same: tools are called by name."),
    }
    let names: Vec<_> = models.providers().into_iter().map(|facts| facts.name).collect();
    output.line(&format!("Providers: {}; {OFFLINE} for none", names.join(", ")));
    let Some((facts, named)) = ask_provider(current.as_ref().and_then(ModelRef::provider), models, output)? else {
        return Ok(None);
    };
    let held = match &current {
        Some(ModelRef::Hosted { provider, model }) if *provider == facts.name => Some(model.as_str()),
        _ => None,
    };
    let model = if facts.name == OFFLINE {
        ModelRef::Offline
    } else {
        let model = named.map_or_else(|| question("Model", held, output), Ok)?;
        if model.is_empty() {
            return Ok(None);
        }
        ModelRef::Hosted { provider: facts.name.clone(), model }
    };
    let key_name = facts.key.clone();
    let key = match &key_name {
        None => None,
        Some(name) => ask_key(&facts, name, keys, output)?,
    };
    let agent = ask_agent(plan, settings, &default_mode(&model).agent, output)?;
    Ok(Some(ConfigureAnswers { facts, model, key_name, key, agent }))
}

/// Asks for the provider, and takes the model if the answer names it. `None` if the answer is empty.
fn ask_provider(
    held: Option<&str>,
    models: &ModelRegistry,
    output: &mut CommandOutput,
) -> Result<Option<(ProviderInfo, Option<String>)>, CommandError> {
    loop {
        let answer = question("Provider", held, output)?;
        if answer.is_empty() {
            return Ok(None);
        }
        let (provider, named) = answer.split_once(':').map_or((answer.as_str(), ""), |parts| parts);
        match provider_facts(provider, models) {
            Ok(facts) => return Ok(Some((facts, Some(named.to_owned()).filter(|named| !named.is_empty())))),
            Err(wrong) => wrong.print(output),
        }
    }
}

/// Asks for a key to store. `None` if the environment has one, or the stored one is to stay.
fn ask_key(
    facts: &ProviderInfo,
    name: &str,
    keys: &Keys,
    output: &mut CommandOutput,
) -> Result<Option<String>, CommandError> {
    let leaves = match keys.find(name).0 {
        KeyLocation::Environment => {
            output.line(&format!("{name} is set in the environment, and is used."));
            return Ok(None);
        }
        KeyLocation::Nowhere => "not shown",
        KeyLocation::Keyring | KeyLocation::File => "Enter alone leaves the one that is kept",
    };
    let key = read_hidden_line(&format!("Key for {} ({leaves}): ", facts.name), output)?;
    Ok(Some(key).filter(|key| !key.is_empty()))
}

/// Asks for agent and mode. `None` if they need not be written, because `default` is chosen.
fn ask_agent(
    plan: &Plan,
    settings: &Settings,
    default: &AgentName,
    output: &mut CommandOutput,
) -> Result<Option<(String, Option<String>)>, CommandError> {
    let held = settings.agent.as_ref().map(|agent| match &settings.mode {
        Some(mode) => format!("{agent}/{mode}"),
        None => agent.to_string(),
    });
    let agent = loop {
        let text = "Agent to begin with, as agent or agent/mode";
        let answer = question(text, Some(held.as_deref().unwrap_or(default.as_str())), output)?;
        let (agent, mode) = answer.split_once('/').map_or((answer.as_str(), None), |(a, m)| (a, Some(m)));
        match find_mode(plan, agent, mode) {
            Ok(_) => break (agent.to_owned(), mode.map(str::to_owned)),
            Err(wrong) => wrong.print(output),
        }
    };
    // The default need not be written.
    Ok(Some(agent).filter(|(agent, mode)| held.is_some() || agent != default.as_str() || mode.is_some()))
}

/// Returns the model that the flags name. A flag that is left out keeps that part of `current`.
fn model_from_flags(args: &ConfigureArgs, current: Option<&ModelRef>) -> Option<ModelRef> {
    if args.provider.as_deref() == Some(OFFLINE) {
        return Some(ModelRef::Offline);
    }
    let Some(provider) = args.provider.clone() else {
        return args.model.as_deref().map(ModelRef::from).or_else(|| current.cloned());
    };
    let named = args.model.as_deref().map(ModelRef::from);
    match named.or_else(|| current.cloned().filter(|current| current.provider() == Some(&provider)))? {
        named if named.provider() == Some(&provider) => Some(named),
        named => Some(ModelRef::from(format!("{provider}:{named}"))),
    }
}

/// Returns the error for flags without a model. A provider that does not exist is the first problem.
fn missing_model(provider: Option<&str>, models: &ModelRegistry) -> CommandError {
    let unknown = provider.and_then(|provider| provider_facts(provider, models).err());
    let help = "give --provider and --model, or --model provider:model";
    unknown.unwrap_or_else(|| CommandError::usage("no model is named", help))
}

/// Returns the error for a model without a provider. `text` may be the name of a provider.
fn missing_provider(text: &str, models: &ModelRegistry) -> CommandError {
    let shown = display_line(text);
    if provider_facts(text, models).is_ok() {
        let problem = format!("`{shown}` is a provider, and no model is named");
        return CommandError::usage(problem, format!("write {shown}:MODEL"));
    }
    CommandError::usage(format!("`{shown}` has no provider"), format!("write PROVIDER:{shown}, or add --provider"))
}

/// Returns a model with its provider. Fails if no known provider answers for it.
fn facts(model: ModelRef, models: &ModelRegistry) -> Result<(ModelRef, ProviderInfo), CommandError> {
    let provider = match &model {
        ModelRef::Hosted { provider, .. } => provider,
        ModelRef::Replay(_) => "replay",
        ModelRef::External(_) => "acp",
        ModelRef::Offline => OFFLINE,
        ModelRef::Malformed(text) => return Err(missing_provider(text, models)),
    };
    let facts = provider_facts(provider, models)?;
    Ok((model, facts))
}

fn provider_facts(provider: &str, models: &ModelRegistry) -> Result<ProviderInfo, CommandError> {
    if provider == OFFLINE {
        return Ok(ProviderInfo { name: OFFLINE.to_owned(), base: String::new(), key: None });
    }
    let known = models.providers();
    let names = || known.iter().map(|facts| facts.name.clone()).collect::<Vec<_>>().join(", ");
    known.iter().find(|facts| facts.name == provider).cloned().ok_or_else(|| {
        CommandError::usage(
            format!("there is no provider `{}`", display_line(provider)),
            format!("there are: {}", names()),
        )
    })
}

/// Sends the model one test request.
fn try_out(
    chosen: &ConfigureAnswers,
    models: &ModelRegistry,
    keys: &Keys,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let failed = |problem: String| {
        CommandError::work(
            format!("{}; nothing was changed", display_line(&problem)),
            "correct it, or leave the test out with --no-test",
        )
    };
    let mut models = models.clone();
    if let (Some(name), Some(address)) = (&chosen.key_name, models.providers.get_mut(&chosen.facts.name)) {
        address.key = Some(name.clone());
    }
    let own = chosen.facts.key.clone();
    let lookup = |name: &str| {
        // The provider looks up its own variable; the chosen variable replaces it.
        let wanted = if Some(name) == own.as_deref() { chosen.key_name.as_deref().unwrap_or(name) } else { name };
        if Some(wanted) == chosen.key_name.as_deref() {
            return chosen.key.clone().or_else(|| keys.find(wanted).1);
        }
        variable(wanted)
    };
    let provider = models.provider(&chosen.model, lookup).map_err(|error| failed(error.to_string()))?;
    output.aside(&format!("asking {} once …\n", display_line(&chosen.model.to_string())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(error.to_string()))?;
    let request = ModelRequest {
        system: "Answer with one word.".into(),
        tools: Arc::from([]),
        messages: vec![Arc::new(Message::user(vec![Content::text("Say hello.")]))],
    };
    let asked = async {
        let mut events = provider.stream(request);
        while let Some(event) = events.next().await {
            if let StreamEvent::Done { .. } = event.map_err(|error| error.to_string())? {
                return Ok(());
            }
        }
        Err("its answer broke off".to_owned())
    };
    let answered = runtime.block_on(async { tokio::time::timeout(PATIENCE, asked).await });
    answered.unwrap_or_else(|_| Err("it did not answer within a minute".to_owned())).map_err(failed)
}

fn print_result(
    chosen: &ConfigureAnswers,
    kept: Option<KeyLocation>,
    keys: &Keys,
    file: &std::path::Path,
    tested: bool,
    as_json: bool,
    output: &mut CommandOutput,
) {
    let program = std::env::current_exe().map_or_else(|_| "skein".to_owned(), |path| path.display().to_string());
    let editor = json!({"agent_servers": {"Skein": {"type": "custom", "command": program, "args": ["acp"]}}});
    let kept = chosen.key_name.as_deref().zip(kept);
    if as_json {
        let key = kept.map(|(name, kept)| json!({"name": name, "in": kept.as_str()}));
        let (agent, mode) = chosen.agent.clone().unzip();
        output.json(&json!({
            "model": chosen.model, "key": key, "agent": agent, "mode": mode.flatten(), "tested": tested,
            "file": file.display().to_string(), "editor": editor,
        }));
        return;
    }
    let (file, model) = (display_line(&file.display().to_string()), display_line(&chosen.model.to_string()));
    output.line(&format!("{file}: sessions begin with {model}."));
    match kept {
        Some((name, KeyLocation::Environment)) => output.line(&format!("Its key is in the variable {name}.")),
        Some((_, KeyLocation::Keyring)) => output.line("Its key is kept in your keyring."),
        Some((_, KeyLocation::File)) => {
            let instead = keys.trouble().map(|trouble| format!("; your keyring {trouble}")).unwrap_or_default();
            let file = display_line(&keys.file().display().to_string());
            output.line(&format!("Its key is kept in {file}, which only you can read{instead}."));
        }
        Some((name, KeyLocation::Nowhere)) => {
            output.line(&format!("Its key is missing: set {name}, or run this again."))
        }
        None => {}
    }
    output.line(&format!("For Zed, in settings.json (docs/editors.md has others):\n{editor:#}"));
    output.line("New to Skein? `skein tutorial` teaches it step by step.");
}
