//! `skein tutorial`: walks through a lesson in the terminal and checks each step.
//!
//! Invariant: a check runs only after the user has seen it and pressed Enter, or with `--check`.

use std::io::{BufRead as _, IsTerminal as _, Write as _, stdin, stdout};

use clap::Args;
use serde_json::{Value, json};

use super::folders::Folders;
use super::output::{BOLD, CommandError, CommandOutput, display_line, display_lines};
use super::runtime;
use crate::lesson::{self, CheckOutcome, CheckVariables, Lesson, LessonError};
use crate::process::{Reaper, minimal_environment};

/// The variables that decide where Skein's files are. A check needs them besides the minimal environment.
const FOLDER_VARIABLES: [&str; 7] = [
    "SKEIN_CONFIG_DIR",
    "SKEIN_DATA_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
];

#[derive(Debug, Args)]
pub(super) struct TutorialArgs {
    /// Walk through this tutorial; without it, list them
    name: Option<String>,
    /// Begin with this step
    #[arg(long, value_name = "N", requires = "name")]
    step: Option<usize>,
    /// Run the checks at once, or that of --step
    ///
    /// Exits with 1 if a check fails.
    #[arg(long, requires = "name")]
    check: bool,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "name")]
    json: bool,
}

pub(super) fn run(args: &TutorialArgs, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let Some(name) = &args.name else {
        list(args.json, output);
        return Ok(());
    };
    let lesson = lesson::find(name).map_err(|error| lesson_failure(&error))?;
    let first = args.step.unwrap_or(1);
    lesson.step(first).map_err(|error| lesson_failure(&error))?;
    if args.check {
        let numbers = args.step.map_or(1..=lesson.steps.len(), |step| step..=step);
        return check_steps(&lesson, numbers, folders, output);
    }
    if stdin().is_terminal() && stdout().is_terminal() {
        return walk(&lesson, first, folders, output);
    }
    output.text(&lesson.render_step(first).map_err(|error| lesson_failure(&error))?);
    output.line(&format!("\nCheck it with `skein tutorial {name} --step {first} --check`."));
    if first < lesson.steps.len() {
        output.line(&format!("Continue with `skein tutorial {name} --step {}`.", first + 1));
    }
    Ok(())
}

/// Returns the environment of a check. Its `skein` is this program, and its model is `offline`, for which the lessons
/// are written. Keys of the user are not in it.
pub(super) fn check_variables(folders: &Folders) -> CheckVariables {
    let is_folder = |name: &std::ffi::OsString| FOLDER_VARIABLES.iter().any(|known| name == *known);
    let mut variables: CheckVariables = folders.environment().filter(|(name, _)| is_folder(name)).collect();
    variables.extend(minimal_environment(folders.environment()));
    let program = std::env::current_exe().ok();
    if let Some(folder) = program.as_deref().and_then(std::path::Path::parent) {
        let path = variables.get(std::ffi::OsStr::new("PATH")).cloned().unwrap_or_default();
        let places = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(places) {
            variables.insert("PATH".into(), path);
        }
    }
    variables.insert("SKEIN_MODEL".into(), "offline".into());
    variables
}

fn list(as_json: bool, output: &mut CommandOutput) {
    if as_json {
        let entry = |lesson: &Lesson| {
            let steps: Vec<_> = lesson.steps.iter().map(|step| step.title.as_str()).collect();
            json!({"name": lesson.name, "title": lesson.title, "about": lesson.about, "steps": steps})
        };
        let entries: Value = lesson::lessons().iter().map(entry).collect();
        output.json(&entries);
        return;
    }
    for lesson in lesson::lessons() {
        let steps = if lesson.steps.len() == 1 { "step" } else { "steps" };
        output.line(&format!("{BOLD}{}{BOLD:#}  {} ({} {steps})", lesson.name, lesson.title, lesson.steps.len()));
        output.line(&format!("  {}", lesson.about));
    }
    output.line("\n`skein tutorial NAME` begins one. Use an empty folder.");
}

/// Shows each step from `first` on, and runs its check when the user presses Enter.
fn walk(lesson: &Lesson, first: usize, folders: &Folders, output: &mut CommandOutput) -> Result<(), CommandError> {
    let checks = CheckRunner::new(folders)?;
    let (name, count) = (&lesson.name, lesson.steps.len());
    for number in first..=count {
        output.text(&format!("{}\n", lesson.render_step(number).map_err(|error| lesson_failure(&error))?));
        loop {
            match ask("Do it in another terminal, in this folder. Enter checks it · n next step · q leave")? {
                StepAnswer::Check => {}
                StepAnswer::Next => break,
                StepAnswer::Leave => {
                    output.line(&format!("`skein tutorial {name} --step {number}` continues here."));
                    return Ok(());
                }
            }
            let outcome = checks.run(lesson, number)?;
            output.line(&display_lines(&outcome.render()));
            if outcome.is_passed() {
                break;
            }
        }
    }
    output.line("This was the last step. `skein tutorial` lists the others.");
    Ok(())
}

/// Runs the checks of these steps and prints each outcome. Fails if a check fails.
fn check_steps(
    lesson: &Lesson,
    numbers: std::ops::RangeInclusive<usize>,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let checks = CheckRunner::new(folders)?;
    let mut failed = Vec::new();
    for number in numbers {
        let title = &lesson.step(number).map_err(|error| lesson_failure(&error))?.title;
        let outcome = checks.run(lesson, number)?;
        if outcome.is_passed() {
            output.line(&format!("step {number}, {title}: done"));
        } else {
            output.line(&format!("step {number}, {title}: not done\n{}", display_lines(&outcome.render())));
            failed.push(number);
        }
    }
    let Some(first) = failed.first() else { return Ok(()) };
    let problem = match failed.len() {
        1 => format!("step {first} of `{}` is not done", lesson.name),
        count => format!("{count} steps of `{}` are not done", lesson.name),
    };
    Err(CommandError::work(problem, format!("`skein tutorial {} --step {first}` shows what to do", lesson.name)))
}

/// Runs checks in the working directory.
struct CheckRunner<'a> {
    folders: &'a Folders,
    variables: CheckVariables,
    reaper: Reaper,
    runtime: tokio::runtime::Runtime,
}

impl<'a> CheckRunner<'a> {
    fn new(folders: &'a Folders) -> Result<Self, CommandError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| start_failure(&error))?;
        Ok(Self { folders, variables: check_variables(folders), reaper: runtime::reaper()?, runtime })
    }

    fn run(&self, lesson: &Lesson, number: usize) -> Result<CheckOutcome, CommandError> {
        let step = lesson.step(number).map_err(|error| lesson_failure(&error))?;
        let check = lesson::run_check(step, &self.folders.cwd, &self.variables, Some(&self.reaper));
        self.runtime.block_on(check).map_err(|error| start_failure(&error))
    }
}

fn start_failure(error: &std::io::Error) -> CommandError {
    let help = "check that `sh` can be started, and the limits on processes";
    CommandError::work(format!("the check cannot be started: {error}"), help)
}

enum StepAnswer {
    Check,
    Next,
    Leave,
}

/// Reads a line as the answer. The end of the input leaves.
fn ask(question: &str) -> Result<StepAnswer, CommandError> {
    let mut stderr = anstream::stderr();
    loop {
        let shown = write!(stderr, "{BOLD}{question}{BOLD:#} › ").and_then(|()| stderr.flush());
        let mut line = String::new();
        let read = shown.and_then(|()| stdin().lock().read_line(&mut line));
        let read = read.map_err(|error| {
            CommandError::work(format!("the terminal cannot be read: {error}"), "use --step and --check instead")
        })?;
        match line.trim() {
            _ if read == 0 => return Ok(StepAnswer::Leave),
            "" => return Ok(StepAnswer::Check),
            "n" | "N" => return Ok(StepAnswer::Next),
            "q" | "Q" => return Ok(StepAnswer::Leave),
            _ => {}
        }
    }
}

fn lesson_failure(error: &LessonError) -> CommandError {
    CommandError::usage(display_line(&error.to_string()), "`skein tutorial` lists the tutorials")
}
