//! Implements `code_execution` of a mode. The model gets three functions instead of the mode's tools, and writes code
//! that calls the tools. Many calls then need one answer of the model, and it reads only the result of the code.
//!
//! Invariant: code reaches only what the binding admits. Every call it makes is a `Binding::call`, with its own
//! arguments and its own consent.

mod calls;
mod engine;
mod functions;
mod run;
mod replies;
mod typescript;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::broker::Binding;
use crate::llm::OfferedTool;
use crate::manifest::CodeExecution;
use functions::Function;
pub use run::AbandonedThreads;

const LIST: &str = "code_execution__list_functions";
const DETAILS: &str = "code_execution__get_function_details";
/// The function that runs code.
pub const EXECUTE: &str = "code_execution__execute";

/// For `auto`: code execution is used if the tools add more bytes than this to every request.
const MIN_TOOL_BYTES: usize = 9_200;

/// Maximum bytes of function names in the description of `execute`. The model gets the others from the list function.
const MAX_NAMES: usize = 1_500;

/// Instructions that follow the mode prompt.
const INSTRUCTIONS: &str = "\n\n<code-execution>\nYour tools are called from JavaScript: write code and give it to \
    `code_execution__execute`. Do in one piece of code what belongs together: loops, filters and several calls, side by \
    side with `Promise.all` if they only read. Return only what you need to read yourself. If you do not know the \
    arguments of a function, ask `code_execution__get_function_details` first, for several functions at once.\n</code-execution>";

/// The functions and tools of a mode with code execution.
#[derive(Debug)]
pub struct Code {
    functions: Vec<Function>,
    tools: Arc<[OfferedTool]>,
}

impl Code {
    /// Returns `None` if the mode has no tools or does not use code execution.
    pub fn of(binding: &Binding) -> Option<Self> {
        let bytes = || binding.tools().iter().map(|(name, tool)| tool.request_bytes(name)).sum::<usize>();
        let wanted = match binding.code_execution() {
            CodeExecution::Off => false,
            CodeExecution::On => true,
            CodeExecution::Auto => bytes() > MIN_TOOL_BYTES,
        };
        if !wanted || binding.tools().is_empty() {
            return None;
        }
        let functions = functions::of(binding);
        let tools = code_tools(&functions);
        Some(Self { functions, tools })
    }

    /// Returns the bytes that the three functions and the instructions add to a request.
    pub fn request_bytes(&self) -> usize {
        let bytes = |tool: &OfferedTool| {
            json!({"name": tool.name, "description": tool.description, "input_schema": tool.schema}).to_string().len()
        };
        self.tools.iter().map(bytes).sum::<usize>() + INSTRUCTIONS.len()
    }

    /// Returns the names of the three functions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| tool.name.as_str())
    }

    pub(super) fn tools(&self) -> Arc<[OfferedTool]> {
        Arc::clone(&self.tools)
    }

    /// Appends the instructions for code execution to a system prompt.
    pub(super) fn with_instructions(system: &str) -> Arc<str> {
        format!("{system}{INSTRUCTIONS}").into()
    }

    pub(super) fn reads_only(name: &str) -> bool {
        matches!(name, LIST | DETAILS)
    }
}

/// Returns whether `name` is one of the three functions, which call no service themselves.
pub fn is_own(name: &str) -> bool {
    matches!(name, LIST | DETAILS | EXECUTE)
}

fn code_tools(functions: &[Function]) -> Arc<[OfferedTool]> {
    let tool = |name: &str, description: String, schema: Value| {
        let schema = match schema {
            Value::Object(schema) => schema,
            _ => Map::new(),
        };
        OfferedTool::new(name.to_owned(), description, Arc::new(schema))
    };
    let list = "List the functions that code can call, with a line about each.";
    let words = "Only functions whose name or description holds all these words";
    let query = json!({"type": "string", "maxLength": 1000, "description": words});
    let details = "Tell the arguments and results of functions, as TypeScript. Ask about several at once.";
    let names =
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "description": "Such as developer.search"});
    let code = json!({"type": "string", "minLength": 1, "description": "The body of an async function"});
    [
        tool(LIST, list.to_owned(), json!({"type": "object", "properties": {"query": query}})),
        tool(
            DETAILS,
            details.to_owned(),
            json!({"type": "object", "required": ["names"], "properties": {"names": names}}),
        ),
        tool(
            EXECUTE,
            execute(functions),
            json!({"type": "object", "required": ["code"], "properties": {"code": code}}),
        ),
    ]
    .into()
}

/// Returns the description of `execute`, with as many function names as [`MAX_NAMES`] allows.
fn execute(functions: &[Function]) -> String {
    let mut text =
        "Run JavaScript that calls functions. The code is the body of an async function: `await` works at the \
        top, `return` gives the result. Each function takes one object with its arguments and returns a promise of its \
        result, which is text unless its details say otherwise; a call that fails or is refused throws an Error. There \
        is `console.log`, but no import, no timer, no file and no network beyond these functions:"
            .to_owned();
    let (mut used, mut left) = (0, 0);
    for of_one in functions.chunk_by(|a, b| a.object == b.object) {
        let names: Vec<_> = of_one.iter().map(|function| function.name.as_str()).collect();
        let object = of_one.first().map(|function| function.object.as_str()).unwrap_or_default();
        let line = format!("\n{object}: {}", names.join(", "));
        if used + line.len() > MAX_NAMES {
            left += of_one.len();
            continue;
        }
        used += line.len();
        text.push_str(&line);
    }
    if left > 0 {
        text.push_str(&format!("\nand {left} more; {LIST} lists them"));
    }
    text
}
