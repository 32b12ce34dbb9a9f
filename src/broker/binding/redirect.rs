//! Follows redirects to other hosts. A tool that reads URLs reports such a redirect instead of following it. Each one
//! becomes a call that passes the same checks as the first.

use serde_json::{Map, Value};

use super::Binding;
use crate::tool::{CallContext, REDIRECT, ServiceError, ToolOutcome};

/// Maximum number of host changes.
const MAX_HOSTS: usize = 5;

impl Binding {
    /// Follows the redirects of an outcome until there is a page, a refusal or too many hosts.
    pub(super) async fn follow(
        &self,
        name: &str,
        mut arguments: Map<String, Value>,
        context: CallContext,
        mut outcome: ToolOutcome,
    ) -> Result<ToolOutcome, ServiceError> {
        let argument = self.tools.get(name).and_then(|tool| tool.url_argument.as_ref());
        let Some(argument) = argument else { return Ok(outcome) };
        for _ in 0..MAX_HOSTS {
            let Some(next) = redirect(&outcome) else { return Ok(outcome) };
            arguments.insert(argument.clone(), Value::String(next.clone()));
            outcome = self.call_once(name, arguments.clone(), context.clone()).await?;
            if outcome.refused {
                let text = format!("the page redirects to `{next}`: {}", outcome.all_text());
                return Ok(ToolOutcome { refused: true, ..ToolOutcome::error(text) });
            }
        }
        match redirect(&outcome) {
            Some(next) => Ok(ToolOutcome::error(format!(
                "the page redirects over more than {MAX_HOSTS} hosts; the next URL is `{next}`"
            ))),
            None => Ok(outcome),
        }
    }
}

/// Returns the URL at another host that a tool reports instead of a page.
fn redirect(outcome: &ToolOutcome) -> Option<String> {
    outcome.meta.as_ref()?.get(REDIRECT)?.as_str().map(str::to_owned)
}
