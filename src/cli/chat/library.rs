//! Finds the slash commands that Skein does not define itself: prompts of bound services, skills and recipes, and the
//! commands of an external agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt as _;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::consent::ParameterAsker;
use super::super::output::{CommandError, display_line};
use super::super::runtime::bind_failure;
use super::super::tutorial;
use super::Chat;
use super::commands::{CommandHelp, LineAction, names_tool, ours, render_entry};
use crate::conversation::Content;
use crate::ids::nearest;
use crate::session::attachments;
use crate::session::slash::{self, ServicePrompt, SlashCommandError};

impl Chat<'_> {
    /// Returns the commands beyond Skein's own. A mode that fails to bind has no service prompts; the next prompt
    /// reports the error.
    pub(super) async fn further_commands(&self) -> BTreeMap<String, CommandHelp> {
        let prompts = match self.session.binding().await {
            Ok(binding) => slash::prompts(&self.session, &binding, &ours()).await,
            Err(_) => BTreeMap::new(),
        };
        let mut commands = BTreeMap::new();
        for command in self.agent_commands() {
            let text = |value: &Value| value.as_str().map(display_line).unwrap_or_default();
            let name = text(&command["name"]);
            let usage = format!("/{name} {}", text(&command["input"]["hint"]));
            let description = format!("{} ({})", text(&command["description"]), self.session.choice().mode.agent);
            commands.insert(name, CommandHelp { usage, description });
        }
        for (name, ServicePrompt { service, prompt, .. }) in prompts {
            let usage = format!("/{name} {}", slash::hint(&prompt).unwrap_or_default());
            let what = prompt["description"].as_str().or(prompt["title"].as_str()).unwrap_or("a prompt");
            commands.insert(name, CommandHelp { usage, description: format!("{what} ({service})") });
        }
        commands
    }

    /// Returns the commands of the external agent in ACP's form, except those that Skein's own commands hide.
    fn agent_commands(&self) -> Vec<Value> {
        let mut commands = self.session.external_session().map(|external| external.commands()).unwrap_or_default();
        commands.retain(|command| command["name"].as_str().is_some_and(|name| !ours().contains(&name)));
        commands
    }

    /// Resolves a service prompt, a skill, a recipe, a tool name for the `offline` model, or a command of the external
    /// agent. Fails for any other name.
    pub(super) async fn further_command(
        &mut self,
        line: &str,
        name: &str,
        rest: &str,
    ) -> Result<LineAction, CommandError> {
        let binding = self.session.binding().await.map_err(|error| bind_failure(&error))?;
        let (session, cancel) = (Arc::clone(&self.session), CancellationToken::new());
        let (asker, taken) = (ParameterAsker(Arc::clone(&self.asker)), ours());
        let said = slash::prompt(&session, &binding, &taken, (name, rest), &asker, &cancel);
        let Some(said) = self.until_interrupted(said).await else { return Ok(LineAction::Done) };
        match said {
            Ok(Some(prompt)) => Ok(LineAction::Said(prompt)),
            // The `offline` model calls tools by this syntax.
            Ok(None) if self.session.choice().model.is_offline() && names_tool(&binding, name) => {
                self.prompt(line).await.map(LineAction::Prompt)
            }
            // The external agent defines this command.
            Ok(None) if self.session.external_session().is_some_and(|external| external.has_command(name)) => {
                self.prompt(line).await.map(LineAction::Prompt)
            }
            Ok(None) => {
                let further = self.further_commands().await;
                let help = match nearest(name, ours().into_iter().chain(further.keys().map(String::as_str))) {
                    Some(near) => format!("did you mean /{near}? With a space before it, it goes to the model"),
                    None => "/help lists the commands; with a space before it, it goes to the model".to_owned(),
                };
                Err(CommandError::usage(format!("there is no /{name}"), help))
            }
            Err(error) => Err(slash_failure(&error)),
        }
    }

    /// Shows the lessons, or a step of one after the check of the step before.
    pub(super) async fn tutorial(&mut self, rest: &str) -> Result<(), CommandError> {
        let (session, variables) = (Arc::clone(&self.session), tutorial::check_variables(self.folders));
        let Some(answer) = self.until_interrupted(session.tutorial(rest, &variables)).await else { return Ok(()) };
        match answer {
            Ok(text) => {
                self.screen.markdown(&text);
                Ok(())
            }
            Err(error) if error.is_misuse() => Err(CommandError::usage(error.to_string(), "/tutorial lists them")),
            Err(error) => Err(CommandError::work(error.to_string(), "try again, or use `skein tutorial`")),
        }
    }

    /// Waits for `work`, which may ask the user. `None` if Ctrl-C cancels it.
    async fn until_interrupted<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        // Discard a Ctrl-C that came before.
        while self.interrupts.recv().now_or_never().is_some() {}
        let done = tokio::select! {
            biased;
            done = work => Some(done),
            _ = self.interrupts.recv() => None,
        };
        // A cancelled question must first leave the screen and release the keyboard.
        self.screen.settle();
        if done.is_none() {
            self.screen.remark("cancelled");
        }
        done
    }

    /// Lists what the services of the mode have to read.
    pub(super) async fn resources(&self) -> Result<(), CommandError> {
        let binding = self.session.binding().await.map_err(|error| bind_failure(&error))?;
        let mut text = String::new();
        for link in attachments::links(&binding).await {
            let Content::Link(link) = link else { continue };
            let of = |key: &str| link[key].as_str().unwrap_or_default();
            let about = [of("name"), of("description")].into_iter().filter(|text| !text.is_empty());
            text.push_str(&render_entry(of("uri"), 24, &about.collect::<Vec<_>>().join(" · ")));
        }
        if text.is_empty() {
            self.screen.remark("the services of this mode list nothing to attach");
        } else {
            self.screen.print_text(&text);
            self.screen.remark("@URI in a prompt attaches one");
        }
        Ok(())
    }

    /// Adds the resources that the line names as `@URI` to the prompt. A URI that no service lists stays text.
    pub(super) async fn attach_named_resources(
        &self,
        line: &str,
        mut prompt: Vec<Content>,
    ) -> Result<Vec<Content>, CommandError> {
        let named = line.split_whitespace().filter_map(|word| word.strip_prefix('@'));
        let uris: Vec<_> = named.filter(|name| name.contains("://")).collect();
        if uris.is_empty() {
            return Ok(prompt);
        }
        let binding = self.session.binding().await.map_err(|error| bind_failure(&error))?;
        prompt.extend(uris.iter().map(|uri| Content::Link(json!({"uri": uri, "name": uri}))));
        let attached =
            attachments::attach_resources(&binding, self.session.context(), prompt, &CancellationToken::new()).await;
        let mut attached = attached.map_err(|error| slash_failure(&error))?;
        // What is still a link belongs to no service, and its text is in the prompt already.
        attached.retain(|content| {
            let Content::Link(link) = content else { return true };
            let uri = link["uri"].as_str().unwrap_or_default();
            self.screen.remark(&format!("@{uri} is listed by no service and stays a word; /resources lists them"));
            false
        });
        Ok(attached)
    }
}

fn slash_failure(error: &SlashCommandError) -> CommandError {
    if error.is_misuse() {
        CommandError::usage(error.to_string(), "/help lists the commands")
    } else {
        CommandError::work(error.to_string(), "try again, or ask in your own words")
    }
}
