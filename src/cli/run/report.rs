//! Reports the end of `skein run`: prints what is left to print, and chooses the error and with it the exit code.

use serde_json::json;

use super::super::output::{CommandError, CommandOutput, cut, display_line, display_lines, refusal_text};
use super::super::progress::{LastCall, RefusedCall};
use super::super::recipe::RecipeOutcome;
use super::super::session_flags::rejection_help;
use super::RunOutput;
use crate::agents::StopReason;
use crate::manifest::ApprovalLevel;
use crate::orchestrator::{Verification, VerificationError, VerificationResult};
use crate::session::Session;
use crate::tool::delegate::{TaskReport, TaskState};

/// Maximum columns of the reason why a command failed. The answer has all of it.
const MAX_REASON: usize = 300;

/// The end of a turn, with what happened in it.
pub(super) struct TurnReport {
    done: RecipeOutcome,
    refused: Vec<RefusedCall>,
    /// The tasks that the session delegated.
    parts: Vec<TaskReport>,
    verdict: Option<Result<Verification, VerificationError>>,
    /// Why the command in the prompt failed. `None` if a model read its result.
    command: Option<String>,
}

impl TurnReport {
    pub(super) fn new(
        mut done: RecipeOutcome,
        mut refused: Vec<RefusedCall>,
        verdict: Option<Result<Verification, VerificationError>>,
        command: Option<String>,
    ) -> Self {
        refused.extend(done.refused.take());
        let delegator = done.session.context().delegator.get();
        // Without an id, the list of tasks is never an error.
        let parts = delegator.and_then(|delegator| delegator.tasks(None).ok()).unwrap_or_default();
        Self { done, refused, parts, verdict, command }
    }

    /// Prints the rest of the output in the given format. `late` is true if the answer was not printed as it arrived,
    /// `is_ended` if the line break after it was.
    pub(super) fn print(&self, format: RunOutput, late: bool, is_ended: bool, output: &mut CommandOutput) {
        let RecipeOutcome { session, end, structured, is_rejected, .. } = &self.done;
        match format {
            RunOutput::Text if late => match structured {
                // An answer that fails the schema or the checks is not printed.
                _ if *is_rejected => {}
                Some(value) => output.json(value),
                None => output.line(&display_lines(&session.last_answer())),
            },
            RunOutput::Text if !is_ended => output.text("\n"),
            RunOutput::Text | RunOutput::StreamJson => {}
            RunOutput::Json => {
                let (reason, error) = self.reason_and_error();
                let mode = session.choice().mode;
                let mut answer = json!({
                    "session": session.id(), "agent": mode.agent, "mode": mode.mode, "stop_reason": reason,
                    "text": session.last_answer(), "usage": end.usage, "error": error,
                    "refused_calls": self.refused, "parts": self.parts,
                });
                if let Some(value) = structured {
                    answer["structured"] = value.clone();
                }
                if let Some(verdict) = &self.verdict {
                    answer["verdict"] =
                        verdict.as_ref().map_or_else(|error| json!({"error": error.to_string()}), |said| json!(said));
                }
                output.json(&answer);
            }
        }
    }

    fn reason_and_error(&self) -> (&'static str, Option<String>) {
        let failed = || self.done.failed.as_ref().map(CommandError::problem);
        // A check of a recipe can reach the limit after the turn.
        let late = || (!self.done.in_time).then(|| "the time limit was reached".to_owned());
        let work = || self.refusal().or_else(|| self.part_failures()).or_else(|| self.command.clone());
        let incomplete = || late().or_else(failed).or_else(work);
        match &self.done.end.ending {
            StopReason::EndTurn | StopReason::CallRefused { .. } => ("end_turn", incomplete()),
            StopReason::MaxTokens => ("max_tokens", incomplete()),
            StopReason::Refusal => ("refusal", incomplete()),
            StopReason::Exhausted { why } => ("max_turn_requests", Some(why.clone())),
            StopReason::Cancelled => ("cancelled", late()),
            StopReason::Failed { why, .. } => ("error", Some(why.clone())),
        }
    }

    /// Returns the refused calls on one line. `None` if there is none.
    fn refusal(&self) -> Option<String> {
        (!self.refused.is_empty()).then(|| refusal_text(&self.refusal_lines(), " "))
    }

    fn refusal_lines(&self) -> Vec<String> {
        self.refused.iter().map(ToString::to_string).collect()
    }

    /// Returns true if the session had the approval level `auto`.
    fn is_auto(&self) -> bool {
        let (session, choice) = (&self.done.session, self.done.session.choice());
        let of_mode = || session.plan().mode(&choice.mode).map(|(entry, _)| session.broker().approval(entry));
        choice.approval.or_else(of_mode) == Some(ApprovalLevel::Auto)
    }

    /// Returns the tasks that failed on one line. `None` if all are done or still run.
    fn part_failures(&self) -> Option<String> {
        let failed: Vec<_> = self.parts.iter().filter(|part| part.state == TaskState::Failed).collect();
        if failed.is_empty() {
            return None;
        }
        let reason = |part: &TaskReport| display_line(part.result.lines().next().unwrap_or_default());
        let lines: Vec<_> =
            failed.iter().map(|part| format!("`{}` ({}): {}", part.id, part.mode, reason(part))).collect();
        Some(format!("{} of {} tasks failed: {}", failed.len(), self.parts.len(), lines.join("; ")))
    }

    /// Returns the error of the turn. Refused calls come last, because the turn ended in spite of them.
    pub(super) fn into_result(self, output: &mut CommandOutput) -> Result<(), CommandError> {
        if !self.done.in_time {
            return Err(CommandError::TimeLimit);
        }
        let part_failures = self.part_failures();
        let (calls, is_auto) = (self.refusal_lines(), self.is_auto());
        if let Some(failure) = self.done.failed {
            return Err(failure);
        }
        match self.done.end.ending {
            StopReason::EndTurn | StopReason::CallRefused { .. } => {}
            StopReason::MaxTokens => {
                output.note("the answer was cut at the longest that the model may say; ask it to continue with -c");
            }
            StopReason::Refusal => output.note("the model declined to answer, or its provider did"),
            StopReason::Cancelled => return Err(CommandError::Interrupted),
            StopReason::Exhausted { why } => {
                return Err(CommandError::work(why, "ask for less at once, or continue with -c"));
            }
            StopReason::Failed { why, status } => {
                let help = rejection_help(status).unwrap_or("continue with -c when it works again; see the log");
                return Err(CommandError::work(why, help));
            }
        }
        self.verdict.map_or(Ok(()), |verdict| report_verification(verdict, output))?;
        match (calls.is_empty(), part_failures) {
            (true, None) => self.command.map_or(Ok(()), |problem| {
                Err(CommandError::work(problem, "see the answer; `skein tools` lists the tools of a mode"))
            }),
            (true, Some(failed)) => Err(CommandError::work(failed, "ask for the rest with -c; `--json` has each task")),
            (false, failed) => {
                failed.iter().for_each(|failed| output.note(failed));
                Err(CommandError::Refused { calls, is_auto })
            }
        }
    }
}

/// Returns why the command in the prompt failed, by the last call of its turn. `None` if it succeeded, or if a model or
/// an external agent read its result.
pub(super) fn command_failure(session: &Session, call: &LastCall) -> Option<String> {
    if !session.choice().model.is_offline() || session.is_external() {
        return None;
    }
    match call {
        LastCall::Missing => {
            let answer = session.last_answer();
            let reason = display_line(answer.lines().next().unwrap_or_default());
            Some(format!("the command was not run: {reason}"))
        }
        LastCall::Failed { tool, reason } => {
            let reason = display_line(reason);
            Some(format!("the command failed: {}: {}", display_line(tool), cut(&reason, MAX_REASON)))
        }
        LastCall::Answered | LastCall::External => None,
    }
}

/// Prints the judge's verdict. Fails if the answer is incomplete, inconsistent or unchecked.
fn report_verification(
    verdict: Result<Verification, VerificationError>,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let unchecked =
        |problem: String| CommandError::work(format!("the answer was not checked: {problem}"), "look at it yourself");
    let Verification { verdict, reason, missing } = verdict.map_err(|error| unchecked(error.to_string()))?;
    let reason = display_line(&reason);
    let missing: Vec<_> = missing.iter().map(|missing| display_line(missing)).collect();
    match verdict {
        VerificationResult::Complete => {
            output.note(&format!("checked: {reason}"));
            Ok(())
        }
        VerificationResult::Incomplete | VerificationResult::Conflict => {
            let what =
                if verdict == VerificationResult::Conflict { "results disagree" } else { "something is missing" };
            let missing = if missing.is_empty() { String::new() } else { format!(" ({})", missing.join("; ")) };
            Err(CommandError::work(format!("{what}: {reason}{missing}"), "ask for it with -c"))
        }
        VerificationResult::Unsure => Err(unchecked(format!("the judge is unsure: {reason}"))),
    }
}
