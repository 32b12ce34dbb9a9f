//! Reports each tool call as a span.

use futures::FutureExt as _;
use serde_json::{Map, Value};

use super::Binding;
use crate::ids::call_label;
use crate::telemetry::{WorkSpan, fit_value};
use crate::tool::{CallContext, ServiceError, ToolOutcome};

impl Binding {
    /// Calls the tool and follows its redirects, inside a span.
    pub(super) async fn call_in_span(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        mut context: CallContext,
    ) -> Result<ToolOutcome, ServiceError> {
        // A model may call a tool that does not exist, with a name of any text.
        let known = if self.tools.contains_key(name) { name } else { "unknown" };
        // Calls inside this one get it as their parent.
        let turn = context.turn_span.take();
        let id = context.id.as_deref().map(call_label);
        let span = WorkSpan::tool_call(known, id.as_deref(), &context.session.id, turn.as_ref());
        span.content("gen_ai.tool.call.arguments", || fit_value(&Value::Object(arguments.clone())));
        let work = async {
            let outcome = self.call_once(name, arguments.clone(), context.clone()).await?;
            self.follow(name, arguments, context, outcome).await
        };
        // Boxed without its type, which contains the start of services and sandboxes: too deep for the compiler.
        let called = span.run(work.boxed()).await;
        match &called {
            Ok(outcome) => {
                span.content("gen_ai.tool.call.result", || outcome.all_text());
                if outcome.refused {
                    span.fail("call_refused");
                } else if outcome.is_error {
                    span.fail("tool_error");
                }
            }
            Err(ServiceError::Cancelled) => span.fail("cancelled"),
            Err(_) => span.fail("service_error"),
        }
        called
    }
}
