//! What is asked before a call runs: scope and arguments, whether the tool is still the one that was offered, rules,
//! level, and a person where they leave it to one.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::super::consent::{Consents, Subject};
use super::super::gate::{self, Answer, Because, Question, Verdict};
use super::super::{files, foreign};
use super::{Binding, BoundTool};
use crate::manifest::Approval;
use crate::tool::{CallContext, ServiceError, Session, ToolOutcome, ToolService};

impl Binding {
    /// Whether somebody who does by other means what the tool does may do it: scope, arguments, rules and consent are
    /// those of a call.
    pub async fn permit(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        context: &CallContext,
    ) -> Result<(), String> {
        match self.permitted(name, arguments, context).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(outcome)) => Err(outcome.all_text()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// All that is asked before a call runs. The inner `Err` is what the caller is told instead.
    pub(super) async fn permitted(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        context: &CallContext,
    ) -> Result<Result<(&BoundTool, &Arc<dyn ToolService>), ToolOutcome>, ServiceError> {
        let admitted = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(ServiceError::Cancelled),
            admitted = self.admit(name, arguments) => admitted,
        };
        let (tool, service) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => return Ok(Err(ToolOutcome::error(error.to_string()))),
        };
        if let Some(reason) = self.changed(tool, service, context).await? {
            return Ok(Err(ToolOutcome::error(reason)));
        }
        // Before it is judged: who waits for a file waits long, and what holds then counts.
        if let Some(turnstile) = self.policy.bounds.turnstile.as_ref().filter(|_| !tool.read_only) {
            let files = files::named(arguments, &self.terms.session);
            let passed = tokio::select! {
                biased;
                () = context.cancel.cancelled() => return Err(ServiceError::Cancelled),
                passed = turnstile.pass(files) => passed,
            };
            if let Err(reason) = passed {
                return Ok(Err(ToolOutcome::error(format!("`{name}` was not called: {reason}"))));
            }
        }
        let subject = match tool.host(arguments) {
            Some(host) => Subject::of_host(name, &host),
            None => Subject::of(name, arguments, tool.builtin, &context.session.cwd),
        };
        // A level that asks no more and a rule that allows do not take back what a person said.
        if self.consents(context).about(&subject) == Some(false) {
            return Ok(Err(refused(name, "the user refused such calls for this session")));
        }
        match self.judged(name, tool, arguments) {
            Verdict::Run(_) => {}
            Verdict::Refuse(because) => return Ok(Err(refused(name, &because.to_string()))),
            Verdict::Ask(because) => {
                let title = tool.spec.title.as_deref();
                if let Some(reason) = self.asked(name, title, arguments, subject, &because, context).await? {
                    return Ok(Err(refused(name, &reason)));
                }
                // People take their time. What they consented to may have changed meanwhile, and so may the level, and
                // where a path leads.
                if let Verdict::Refuse(because) = self.judged(name, tool, arguments) {
                    return Ok(Err(refused(name, &because.to_string())));
                }
                if let Some(reason) = self.changed(tool, service, context).await? {
                    return Ok(Err(ToolOutcome::error(reason)));
                }
            }
        }
        Ok(Ok((tool, service)))
    }

    /// What the user said for the session. Those who work for another ask in its name, so what is said to one of them
    /// counts for all.
    pub(super) fn consents(&self, context: &CallContext) -> Arc<Consents> {
        let mut above = &self.policy.bounds.parent;
        let mut session = &context.session;
        while let Some(parent) = above {
            (session, above) = (&parent.terms.session, &parent.policy.bounds.parent);
        }
        session.state()
    }

    /// The session that the user has: this one, or the one that it works for in the end.
    pub(super) fn user_session(&self) -> &Arc<Session> {
        let mut binding = self;
        while let Some(parent) = &binding.policy.bounds.parent {
            binding = parent;
        }
        &binding.terms.session
    }

    /// A tool that was described one way and then another is not called: what was consented to is gone.
    async fn changed(
        &self,
        tool: &BoundTool,
        service: &Arc<dyn ToolService>,
        context: &CallContext,
    ) -> Result<Option<String>, ServiceError> {
        let catalog = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(ServiceError::Cancelled),
            catalog = service.catalog() => catalog,
        };
        let catalog = match catalog {
            Ok(catalog) => catalog,
            Err(error) => return Ok(Some(error.to_string())),
        };
        if Arc::ptr_eq(&catalog, &tool.seen) {
            return Ok(None);
        }
        let now =
            catalog.tools.iter().find(|spec| spec.name == tool.spec.name).map(|spec| foreign::clean(spec.clone()));
        Ok(match now {
            Some(Ok(spec)) if spec == tool.spec => None,
            Some(_) => {
                tracing::warn!(service = %tool.service, tool = %tool.spec.name, "a tool changed its description or schema after it was offered");
                Some(format!(
                    "the service `{}` has changed what `{}` says about itself since this session was offered it, so it was not \
                     called; tell the user, who can start a new session after looking at it",
                    tool.service, tool.spec.name
                ))
            }
            None => Some(format!("the service `{}` no longer has a tool `{}`", tool.service, tool.spec.name)),
        })
    }

    /// `Some` with the reason if whoever was asked did not consent.
    pub(super) async fn asked(
        &self,
        name: &str,
        title: Option<&str>,
        arguments: &Map<String, Value>,
        subject: Subject,
        because: &Because,
        context: &CallContext,
    ) -> Result<Option<String>, ServiceError> {
        let consents = self.consents(context);
        if consents.about(&subject) == Some(true) {
            return Ok(None);
        }
        let question = Question {
            call: context.id.clone(),
            by: None,
            apart: None,
            tool: name.to_owned(),
            title: title.map(str::to_owned),
            arguments: arguments.clone(),
            rule: subject.rule(&self.terms.session),
            always: subject.clone(),
        };
        let answer = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return Err(ServiceError::Cancelled),
            answer = self.answer(question, because) => answer,
        };
        Ok(match answer {
            Answer::Allow => None,
            Answer::AllowAlways => {
                consents.remember(subject, true);
                None
            }
            Answer::Refuse => Some("the user refused".to_owned()),
            Answer::RefuseAlways => {
                consents.remember(subject, false);
                Some("the user refused, and refuses such calls for this session".to_owned())
            }
            Answer::Unheard => Some(gate::unheard(because)),
        })
    }

    /// The judge's, if the level leaves it to one and it is certain; otherwise that of a person.
    async fn answer(&self, question: Question, because: &Because) -> Answer {
        let judge = self.policy.judge.as_ref().filter(|_| *because == Because::Level(Approval::Smart));
        if let Some(judge) = judge
            && judge.finds_read_only(&question).await
            && self.approval() == Approval::Smart
        {
            return Answer::Allow;
        }
        self.terms.asker.ask(question).await
    }
}

fn refused(name: &str, reason: &str) -> ToolOutcome {
    ToolOutcome { refused: true, ..ToolOutcome::error(format!("`{name}` was not called: {reason}")) }
}
