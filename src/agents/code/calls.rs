//! Answers calls of the three code functions, and makes the calls of running code as calls of the turn.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::engine::{CodeLimits, CodeProgram, FunctionCall};
use super::run;
use super::{Code, DETAILS, EXECUTE, LIST, replies};
use crate::agents::exchange::CallResult;
use crate::agents::{Event, Exchange};
use crate::conversation::ToolUse;
use crate::tool::{ExchangeView, ToolOutcome};

impl Exchange {
    /// Answers a call of one of the three functions.
    pub(in crate::agents) async fn call_code(
        &self,
        code: &Code,
        call: &ToolUse,
        view: &ExchangeView,
        cancel: &CancellationToken,
    ) -> CallResult {
        let arguments = &call.arguments;
        let outcome = match call.name.as_str() {
            LIST => ToolOutcome::text(replies::function_list(
                &code.functions,
                &self.binding,
                arguments["query"].as_str().unwrap_or(""),
            )),
            DETAILS => self.details(code, arguments),
            EXECUTE => match arguments["code"].as_str() {
                Some(source) => return self.execute(code, source, call, view, cancel).await,
                None => ToolOutcome::error("`code` is missing: the body of an async function, as text"),
            },
            other => ToolOutcome::error(format!("there is no function `{other}`")),
        };
        CallResult { outcome, refused: None }
    }

    fn details(&self, code: &Code, arguments: &Value) -> ToolOutcome {
        let names = match &arguments["names"] {
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            Value::String(name) => vec![name.as_str()],
            _ => Vec::new(),
        };
        if names.is_empty() {
            return ToolOutcome::error(
                "`names` is missing: the functions to tell about, such as [\"developer.search\"]",
            );
        }
        replies::function_details(&code.functions, &self.binding, &names)
    }

    async fn execute(
        &self,
        code: &Code,
        source: &str,
        call: &ToolUse,
        view: &ExchangeView,
        cancel: &CancellationToken,
    ) -> CallResult {
        let abandoned = &self.abandoned;
        if abandoned.too_many() {
            let problem = "no more code is run in this session: what was run before could not be stopped. Call the \
                           tools one by one by their full names, such as `developer__search`, or ask the user to restart \
                           skein";
            return CallResult { outcome: ToolOutcome::error(problem), refused: None };
        }
        let limits = CodeLimits::default();
        let functions = code.functions.iter().map(|of| (of.object.clone(), of.name.clone())).collect();
        let program = CodeProgram { code: source.to_owned(), functions, limits };
        let tool = |function: usize| code.functions.get(function).map(|function| function.tool.as_str()).unwrap_or("");
        let reads_only = |function: usize| self.binding.tools().get(tool(function)).is_some_and(|tool| tool.read_only);
        let refused: Mutex<Option<String>> = Mutex::default();
        let refused_now = &refused;
        let inner = async |request: FunctionCall| {
            let id = format!("{}.{}", call.id, request.number);
            let name = tool(request.function).to_owned();
            let inner = ToolUse::new(id, name, Value::Object(request.arguments));
            let outcome = self.call_inner(&inner, view, cancel).await;
            if let Ok(mut last) = refused_now.lock() {
                *last = outcome.refused.then_some(inner.name);
            }
            outcome
        };
        let report = run::run(program, abandoned, cancel, reads_only, inner).await;
        let outcome = if cancel.is_cancelled() { self.cancel_outcome() } else { replies::outcome(&report, &limits) };
        let refused = refused.into_inner().unwrap_or_default();
        CallResult { outcome, refused }
    }

    /// Makes a call for running code. Logs it like any other call, and returns the complete result to the code. Its id
    /// contains a dot, which the id of a model's own call never does.
    async fn call_inner(&self, call: &ToolUse, view: &ExchangeView, cancel: &CancellationToken) -> ToolOutcome {
        self.notifier.log(Event::ToolStarted { call: call.clone(), by: None });
        let seen = Arc::default();
        let outcome =
            if cancel.is_cancelled() { self.cancel_outcome() } else { self.dispatch(call, view, &seen, cancel).await };
        self.log_call_end(call, self.shorten_outcome(outcome.clone(), &call.id), &seen);
        outcome
    }
}
