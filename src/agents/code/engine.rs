//! Runs one piece of code in a new QuickJS runtime on a separate thread.
//!
//! Invariant: code reaches the host only through the two functions that `prelude.js` receives. One sends a call to
//! `EngineChannels::calls`, the other adds a line to the report. Code has no module, no file, no clock but `Date` and
//! no network.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rquickjs::context::intrinsic;
use rquickjs::{Context, Ctx, Exception, Function, Object, Promise, Runtime, Value, promise::PromiseState};
use serde_json::Map;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

const PRELUDE: &str = include_str!("prelude.js");

/// Lines that the function constructor adds before the code.
const LINES_ABOVE: usize = 2;
/// Maximum number of unhandled promise rejections in a report; `MAX_REASON` is the maximum characters of each reason.
const MAX_UNHANDLED: usize = 20;
const MAX_REASON: usize = 400;

/// The built-in objects of JavaScript, without those that only browsers have.
type Intrinsics = (
    intrinsic::Date,
    intrinsic::Eval,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::Proxy,
    intrinsic::MapSet,
    intrinsic::TypedArrays,
    intrinsic::Promise,
    intrinsic::WeakRef,
);

/// Limits of one piece of code.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodeLimits {
    /// Run time of the code itself, without the time it waits for calls.
    pub(super) time: Duration,
    pub(super) memory: usize,
    pub(super) stack: usize,
    /// Maximum bytes of printed output.
    pub(super) output: usize,
    pub(super) calls: usize,
}

impl Default for CodeLimits {
    fn default() -> Self {
        Self { time: Duration::from_secs(60), memory: 64 << 20, stack: 1 << 20, output: 50_000, calls: 200 }
    }
}

/// A piece of code with its functions and limits.
#[derive(Debug)]
pub(super) struct CodeProgram {
    pub(super) code: String,
    /// Object and name of every function. Calls refer to a function by its index.
    pub(super) functions: Vec<(String, String)>,
    pub(super) limits: CodeLimits,
}

/// Connects the engine's thread with the task that makes the calls, which has the other ends.
pub(super) struct EngineChannels {
    pub(super) calls: UnboundedSender<FunctionCall>,
    pub(super) replies: Receiver<FunctionReply>,
    pub(super) clock: Arc<RunClock>,
    pub(super) cancel: CancellationToken,
}

/// A call that the code requests.
#[derive(Debug)]
pub(super) struct FunctionCall {
    /// Number of the call, from 1.
    pub(super) number: usize,
    /// Index of the function in [`CodeProgram::functions`].
    pub(super) function: usize,
    pub(super) arguments: Map<String, serde_json::Value>,
}

#[derive(Debug)]
pub(super) struct FunctionReply {
    pub(super) number: usize,
    pub(super) answer: Result<FunctionValue, FunctionError>,
}

/// The result of a successful call.
#[derive(Debug)]
pub(super) enum FunctionValue {
    Text(String),
    Json(String),
}

/// The error that a failed call throws.
#[derive(Debug)]
pub(super) struct FunctionError {
    pub(super) message: String,
    pub(super) refused: bool,
}

/// The end, the output and the calls of a piece of code.
#[derive(Debug)]
pub(super) struct CodeReport {
    pub(super) end: CodeEnd,
    pub(super) printed: String,
    /// Reasons of promise rejections that the code did not handle.
    pub(super) unhandled: Vec<String>,
    pub(super) calls: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum CodeEnd {
    /// The returned text, or another value as JSON. `None` if the code returned nothing.
    Returned(Option<String>),
    /// The code finished, but the returned value cannot be serialized.
    Unwritable(String),
    Threw(String),
    /// The code failed because its memory limit was reached.
    OutOfMemory(String),
    Stopped(CodeStop),
}

/// The reason why code was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CodeStop {
    Cancelled,
    Time,
    Output,
    /// The code waits for a promise that will never settle.
    Waiting,
    /// The code did not stop within the grace period.
    Stuck,
}

/// Measures how long the code itself has run, without the time it waited for calls.
#[derive(Debug)]
pub(super) struct RunClock {
    state: Mutex<(Duration, Option<Instant>)>,
}

impl RunClock {
    pub(super) fn start() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((Duration::ZERO, Some(Instant::now()))) })
    }

    pub(super) fn elapsed(&self) -> Duration {
        let (before, since) = *self.state();
        before + since.map(|since| since.elapsed()).unwrap_or_default()
    }

    fn pause_while<T>(&self, wait: impl FnOnce() -> T) -> T {
        let ran = self.elapsed();
        *self.state() = (ran, None);
        let waited = wait();
        *self.state() = (ran, Some(Instant::now()));
        waited
    }

    fn state(&self) -> MutexGuard<'_, (Duration, Option<Instant>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State that the host functions share with the engine's loop.
struct State {
    limits: CodeLimits,
    stop: Cell<Option<CodeStop>>,
    printed: RefCell<String>,
    unhandled: RefCell<HashMap<u64, String>>,
    calls: Cell<usize>,
    /// Bytes of the arguments of all calls.
    given: Cell<usize>,
    /// Number of calls without a reply.
    open: Cell<usize>,
}

/// Runs the code to its end. Blocks, so it needs a separate thread.
pub(super) fn run(program: &CodeProgram, ways: &EngineChannels) -> CodeReport {
    let state = Rc::new(State {
        limits: program.limits,
        stop: Cell::default(),
        printed: RefCell::default(),
        unhandled: RefCell::default(),
        calls: Cell::default(),
        given: Cell::default(),
        open: Cell::default(),
    });
    let end = match create_engine(&state, ways) {
        Ok((_runtime, context)) => context.with(|ctx| drive(&ctx, program, ways, &state)),
        Err(error) => CodeEnd::Threw(format!("the engine could not be started: {error}")),
    };
    let end = state.stop.get().map_or(end, CodeEnd::Stopped);
    let mut unheard: Vec<_> = state.unhandled.take().into_values().collect();
    unheard.sort();
    CodeReport { end, printed: state.printed.take(), unhandled: unheard, calls: state.calls.get() }
}

fn create_engine(state: &Rc<State>, ways: &EngineChannels) -> rquickjs::Result<(Runtime, Context)> {
    let runtime = Runtime::new()?;
    runtime.set_memory_limit(state.limits.memory);
    runtime.set_max_stack_size(state.limits.stack);
    let (shared, clock, cancel) = (Rc::clone(state), Arc::clone(&ways.clock), ways.cancel.clone());
    runtime.set_interrupt_handler(Some(Box::new(move || {
        if cancel.is_cancelled() {
            shared.stop.set(Some(CodeStop::Cancelled));
        } else if clock.elapsed() > shared.limits.time {
            shared.stop.set(shared.stop.get().or(Some(CodeStop::Time)));
        }
        shared.stop.get().is_some()
    })));
    let (shared, hasher) = (Rc::clone(state), RandomState::new());
    runtime.set_host_promise_rejection_tracker(Some(Box::new(move |_, promise, reason, handled| {
        let promise = hasher.hash_one(&promise);
        if handled {
            shared.unhandled.borrow_mut().remove(&promise);
        } else {
            let mut unheard = shared.unhandled.borrow_mut();
            // The engine's memory limit does not cover these texts.
            if unheard.len() < MAX_UNHANDLED {
                let said = reason.as_exception().and_then(Exception::message);
                let said = said.unwrap_or_else(|| "without a message".to_owned());
                unheard.insert(promise, said.chars().take(MAX_REASON).collect());
            }
        }
    })));
    let context = Context::custom::<Intrinsics>(&runtime)?;
    Ok((runtime, context))
}

fn drive(ctx: &Ctx<'_>, program: &CodeProgram, ways: &EngineChannels, state: &Rc<State>) -> CodeEnd {
    let host = match host(ctx, program, ways, state) {
        Ok(host) => host,
        Err(error) => return CodeEnd::Threw(format!("the engine could not be prepared: {error}")),
    };
    match run_to_end(ctx, &host, &program.code, ways, state) {
        Ok(value) => match host.get::<_, Function<'_>>("written").and_then(|written| written.call((value,))) {
            Ok(text) => CodeEnd::Returned(text),
            Err(error) => CodeEnd::Unwritable(exception_text(ctx, &host, error)),
        },
        Err(error) => exception_end(ctx, &host, error),
    }
}

/// Returns the object that `prelude.js` returns.
fn host<'js>(
    ctx: &Ctx<'js>,
    program: &CodeProgram,
    ways: &EngineChannels,
    state: &Rc<State>,
) -> rquickjs::Result<Object<'js>> {
    let functions: Vec<Vec<&str>> =
        program.functions.iter().map(|(object, name)| vec![object.as_str(), name.as_str()]).collect();
    let (shared, calls) = (Rc::clone(state), ways.calls.clone());
    let call = move |ctx: Ctx<'js>, function: usize, arguments: String| {
        let throw = |problem: &str| Exception::throw_message(&ctx, problem);
        let (limits, number) = (shared.limits, shared.calls.get() + 1);
        if shared.stop.get().is_some() {
            return Err(throw("the code was stopped"));
        }
        if number > limits.calls {
            return Err(throw(&format!("code may make {} calls, and this would be one more", limits.calls)));
        }
        // The engine's memory limit does not cover arguments that leave the engine.
        shared.given.set(shared.given.get() + arguments.len());
        if shared.given.get() > limits.memory {
            return Err(throw(&format!("the arguments of all calls are more than {} MiB", limits.memory >> 20)));
        }
        let arguments = serde_json::from_str(&arguments)
            .map_err(|error| throw(&format!("the arguments are no JSON object: {error}")))?;
        let request = FunctionCall { number, function, arguments };
        calls.send(request).map_err(|_| throw("no more calls can be made"))?;
        shared.calls.set(number);
        shared.open.set(shared.open.get() + 1);
        Ok(number)
    };
    let shared = Rc::clone(state);
    // Returns whether the code may print more.
    let print = move |line: String| {
        let mut printed = shared.printed.borrow_mut();
        if printed.len() + line.len() >= shared.limits.output {
            let mut room = shared.limits.output.saturating_sub(printed.len()).min(line.len());
            while !line.is_char_boundary(room) {
                room -= 1;
            }
            printed.push_str(&line[..room]);
            shared.stop.set(Some(CodeStop::Output));
            return false;
        }
        printed.push_str(&line);
        printed.push('\n');
        true
    };
    let prelude: Function<'js> = ctx.eval(PRELUDE)?;
    prelude.call((functions, Function::new(ctx.clone(), call)?, Function::new(ctx.clone(), print)?))
}

/// Returns the result of the code, after the code and every call that it made have ended.
fn run_to_end<'js>(
    ctx: &Ctx<'js>,
    host: &Object<'js>,
    code: &str,
    ways: &EngineChannels,
    state: &State,
) -> rquickjs::Result<Value<'js>> {
    let EngineChannels { replies, clock, cancel, .. } = ways;
    let settle: Function<'js> = host.get("settle")?;
    let promise: Promise<'js> = host.get::<_, Function<'js>>("start")?.call((code,))?;
    loop {
        while state.stop.get().is_none() && ctx.execute_pending_job() {
            // A very short job ends before the engine calls the interrupt handler.
            if clock.elapsed() > state.limits.time {
                state.stop.set(Some(CodeStop::Time));
            }
        }
        let ended = match promise.state() {
            PromiseState::Pending => false,
            PromiseState::Resolved => state.open.get() == 0,
            PromiseState::Rejected => true,
        };
        if ended && let Some(result) = promise.result() {
            return result;
        }
        if state.stop.get().is_some() {
            return Err(rquickjs::Error::WouldBlock);
        }
        if state.open.get() == 0 {
            state.stop.set(Some(CodeStop::Waiting));
            return Err(rquickjs::Error::WouldBlock);
        }
        let reply = clock.pause_while(|| replies.recv()).ok().filter(|_| !cancel.is_cancelled());
        let Some(FunctionReply { number, answer }) = reply else {
            state.stop.set(Some(CodeStop::Cancelled));
            return Err(rquickjs::Error::WouldBlock);
        };
        state.open.set(state.open.get() - 1);
        let (failure, refused, value) = match answer {
            Ok(answer) => match value(ctx, answer) {
                Ok(value) => (None, false, Some(value)),
                Err(error) => {
                    (Some(format!("the answer cannot be taken in: {}", exception_text(ctx, host, error))), false, None)
                }
            },
            Err(FunctionError { message, refused }) => (Some(message), refused, None),
        };
        settle.call::<_, ()>((number, failure, refused, value))?;
    }
}

fn value<'js>(ctx: &Ctx<'js>, answer: FunctionValue) -> rquickjs::Result<Value<'js>> {
    match answer {
        FunctionValue::Text(text) => Ok(rquickjs::String::from_str(ctx.clone(), &text)?.into_value()),
        FunctionValue::Json(json) => ctx.json_parse(json),
    }
}

/// The message of QuickJS's error for the memory limit.
const OUT_OF_MEMORY: &str = "out of memory";

/// Describes an error, with its line in the code.
fn exception_text<'js>(ctx: &Ctx<'js>, host: &Object<'js>, error: rquickjs::Error) -> String {
    match exception_end(ctx, host, error) {
        CodeEnd::Threw(text) | CodeEnd::OutOfMemory(text) | CodeEnd::Unwritable(text) => text,
        CodeEnd::Returned(_) | CodeEnd::Stopped(_) => String::new(),
    }
}

/// Describes an error, with its line in the code, and says whether it is about memory.
fn exception_end<'js>(ctx: &Ctx<'js>, host: &Object<'js>, error: rquickjs::Error) -> CodeEnd {
    if !error.is_exception() {
        return CodeEnd::Threw(error.to_string());
    }
    let value = ctx.catch();
    // The engine throws null if there is no memory for an error.
    let out_of_memory = value.is_null()
        || value.as_exception().and_then(Exception::message).is_some_and(|message| message == OUT_OF_MEMORY);
    // Reading the message may have run code that threw.
    ctx.catch();
    let said = host.get::<_, Function<'js>>("thrown").and_then(|thrown| thrown.call::<_, Vec<String>>((value,)));
    let Ok([about, stack]) = said.as_deref() else {
        ctx.catch();
        return CodeEnd::OutOfMemory("the code failed, and there was no memory left for the reason".to_owned());
    };
    let text = match line(stack) {
        Some(line) => format!("{about} (line {line})"),
        None => about.clone(),
    };
    if out_of_memory { CodeEnd::OutOfMemory(text) } else { CodeEnd::Threw(text) }
}

/// Returns the innermost line of the code in a stack trace.
fn line(stack: &str) -> Option<usize> {
    let places = stack.split("<input>:").skip(1);
    let lines = places.filter_map(|place| place.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok());
    lines.map(|line| line.saturating_sub(LINES_ABOVE)).find(|line| *line > 0)
}
