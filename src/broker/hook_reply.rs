//! Reads the result of a hook: its exit code, or the JSON that it prints.
//!
//! Invariant: no result of a hook allows what the rules and the approval level do not allow.

use serde::Deserialize;
use serde_json::Value;

use crate::manifest::HookEvent;
use crate::services::HookOutput;
use crate::tool::{strip_invisible, strip_to_line, truncate};

/// The exit code of a hook that refuses. Its error output is the reason.
const REFUSAL: i32 = 2;
/// Maximum bytes of a text that a hook adds for the model.
const MAX_CONTEXT: usize = 10_000;
/// Maximum bytes of a text in one line.
const MAX_LINE: usize = 500;
const NO_REASON: &str = "it gives no reason";
const CHANGED_INPUT: &str = "it changes the arguments, which Skein does not support";

/// The decision of a hook that allows less than Skein would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HookDecision {
    /// The reason, for the model. At the end of a turn: why the model must continue.
    Refuse(String),
    /// The user decides about the call.
    Ask(String),
}

/// What a hook says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HookReply {
    /// `None` if it has nothing against what is about to happen.
    pub(super) decision: Option<HookDecision>,
    /// Text for the model.
    pub(super) context: Option<String>,
    /// Text for the user.
    pub(super) message: Option<String>,
}

/// Why the result of a hook cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookReplyError {
    #[error("it ended with exit code {code}: {stderr}")]
    Exit { code: i32, stderr: String },
    #[error("a signal ended it")]
    Signal,
    #[error("its output is not the JSON of a hook: {0}")]
    Json(#[from] serde_json::Error),
    #[error("`{decision}` is not a decision of `{event}`")]
    Decision { decision: String, event: &'static str },
    #[error("nothing can be refused at `{event}`: {reason}")]
    NotRefusable { event: &'static str, reason: String },
}

/// The JSON of a hook. Other fields have no effect.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReplyJson {
    decision: Option<String>,
    reason: Option<String>,
    #[serde(rename = "continue")]
    continues: Option<bool>,
    stop_reason: Option<String>,
    system_message: Option<String>,
    additional_context: Option<String>,
    hook_specific_output: Option<EventJson>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventJson {
    permission_decision: Option<String>,
    permission_decision_reason: Option<String>,
    additional_context: Option<String>,
    updated_input: Option<Value>,
}

/// Reads the result of a hook at `event`. Fails if the hook failed, or says what it cannot say at this event.
pub(super) fn read(event: HookEvent, output: &HookOutput) -> Result<HookReply, HookReplyError> {
    match output.code {
        Some(0) => read_output(event, output.stdout.trim()),
        Some(REFUSAL) => refuse(event, output.stderr.trim(), HookReply::default()),
        Some(code) => {
            let stderr = line(&output.stderr);
            Err(HookReplyError::Exit { code, stderr: if stderr.is_empty() { NO_REASON.to_owned() } else { stderr } })
        }
        None => Err(HookReplyError::Signal),
    }
}

fn read_output(event: HookEvent, text: &str) -> Result<HookReply, HookReplyError> {
    if text.starts_with('{') {
        return read_json(event, serde_json::from_str(text)?);
    }
    let is_context = matches!(event, HookEvent::SessionStart | HookEvent::UserPromptSubmit) && !text.is_empty();
    Ok(HookReply { context: is_context.then(|| context(text)), ..HookReply::default() })
}

fn read_json(event: HookEvent, json: ReplyJson) -> Result<HookReply, HookReplyError> {
    let specific = json.hook_specific_output.unwrap_or_default();
    let added = specific.additional_context.or(json.additional_context).filter(|text| !text.trim().is_empty());
    let reply = HookReply {
        decision: None,
        context: added.map(|text| context(&text)),
        message: json.system_message.map(|text| line(&text)).filter(|text| !text.is_empty()),
    };
    if json.continues == Some(false) {
        let reason = json.stop_reason.or(json.reason).unwrap_or_default();
        // At other events there is nothing left to stop.
        return if event.is_refusable() { refuse(event, &reason, reply) } else { Ok(reply) };
    }
    let is_call = event == HookEvent::PreToolUse;
    if is_call && specific.updated_input.is_some() {
        return refuse(event, CHANGED_INPUT, reply);
    }
    let (decision, reason) = match specific.permission_decision.filter(|_| is_call) {
        Some(decision) => (decision, specific.permission_decision_reason.or(json.reason)),
        None => match json.decision {
            Some(decision) => (decision, json.reason),
            None => return Ok(reply),
        },
    };
    let reason = reason.unwrap_or_default();
    match decision.as_str() {
        "deny" | "block" => refuse(event, &reason, reply),
        "ask" if is_call => Ok(HookReply { decision: Some(HookDecision::Ask(reason_text(&reason))), ..reply }),
        // The rules and the approval level decide as without the hook.
        "allow" | "approve" => Ok(reply),
        _ => Err(HookReplyError::Decision { decision: line(&decision), event: event.as_str() }),
    }
}

/// Adds a refusal to a reply. After a call, the reason is text for the model.
fn refuse(event: HookEvent, reason: &str, reply: HookReply) -> Result<HookReply, HookReplyError> {
    let reason = reason_text(reason);
    match event {
        HookEvent::PreToolUse | HookEvent::UserPromptSubmit | HookEvent::Stop => {
            Ok(HookReply { decision: Some(HookDecision::Refuse(reason)), ..reply })
        }
        HookEvent::PostToolUse => {
            let context = reply.context.map_or_else(|| reason.clone(), |context| format!("{reason}\n{context}"));
            Ok(HookReply { context: Some(context), ..reply })
        }
        HookEvent::SessionStart | HookEvent::SessionEnd => {
            Err(HookReplyError::NotRefusable { event: event.as_str(), reason: line(&reason) })
        }
    }
}

fn reason_text(text: &str) -> String {
    let text = context(text.trim());
    if text.is_empty() { NO_REASON.to_owned() } else { text }
}

/// Returns text for the model, without invisible characters.
fn context(text: &str) -> String {
    truncate(&strip_invisible(text), MAX_CONTEXT).to_owned()
}

fn line(text: &str) -> String {
    truncate(&strip_to_line(text), MAX_LINE).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(event: HookEvent, code: i32, stdout: &str, stderr: &str) -> Result<HookReply, String> {
        let output = HookOutput { code: Some(code), stdout: stdout.to_owned(), stderr: stderr.to_owned() };
        read(event, &output).map_err(|error| error.to_string())
    }

    fn decision(event: HookEvent, stdout: &str) -> Option<HookDecision> {
        read_text(event, 0, stdout, "").unwrap().decision
    }

    #[test]
    fn exit_code_two_refuses_and_other_codes_are_failures() {
        let refused = Some(HookDecision::Refuse("not today".to_owned()));
        for event in [HookEvent::PreToolUse, HookEvent::UserPromptSubmit, HookEvent::Stop] {
            assert_eq!(read_text(event, 2, "", "not today\n").unwrap().decision, refused, "{event:?}");
        }
        let after = read_text(HookEvent::PostToolUse, 2, "", "format it").unwrap();
        assert_eq!((after.decision, after.context.as_deref()), (None, Some("format it")), "the call has run");
        assert!(read_text(HookEvent::SessionEnd, 2, "", "stay").unwrap_err().contains("nothing can be refused"));
        assert_eq!(
            read_text(HookEvent::PreToolUse, 127, "", "no such file\nat all").unwrap_err(),
            "it ended with exit code 127: no such file at all"
        );
    }

    #[test]
    fn decisions_in_json_refuse_and_ask_but_never_allow() {
        let specific = |decision: &str| {
            format!(
                r#"{{"hookSpecificOutput": {{"hookEventName": "PreToolUse", "permissionDecision": "{decision}",
                    "permissionDecisionReason": "why"}}}}"#
            )
        };
        let refused = Some(HookDecision::Refuse("why".to_owned()));
        assert_eq!(decision(HookEvent::PreToolUse, &specific("deny")), refused);
        assert_eq!(decision(HookEvent::PreToolUse, &specific("ask")), Some(HookDecision::Ask("why".to_owned())));
        assert_eq!(decision(HookEvent::PreToolUse, &specific("allow")), None);
        assert_eq!(decision(HookEvent::PreToolUse, r#"{"decision": "block", "reason": "why"}"#), refused);
        assert_eq!(decision(HookEvent::PreToolUse, r#"{"decision": "approve"}"#), None);
        assert_eq!(decision(HookEvent::UserPromptSubmit, r#"{"continue": false, "stopReason": "why"}"#), refused);
        assert_eq!(decision(HookEvent::Stop, r#"{"continue": false, "decision": "block"}"#), None, "the turn ends");
        let changed = r#"{"hookSpecificOutput": {"permissionDecision": "allow", "updatedInput": {"command": "true"}}}"#;
        assert_eq!(decision(HookEvent::PreToolUse, changed), Some(HookDecision::Refuse(CHANGED_INPUT.to_owned())));
        let unknown = read_text(HookEvent::PreToolUse, 0, &specific("defer"), "").unwrap_err();
        assert_eq!(unknown, "`defer` is not a decision of `PreToolUse`");
        assert!(read_text(HookEvent::PreToolUse, 0, "{oops", "").is_err());
    }

    #[test]
    fn context_is_json_or_the_plain_output_before_a_prompt() {
        let json = r#"{"systemMessage": "hi", "hookSpecificOutput": {"additionalContext": "the branch is main"}}"#;
        let reply = read_text(HookEvent::PostToolUse, 0, json, "").unwrap();
        assert_eq!((reply.context.as_deref(), reply.message.as_deref()), (Some("the branch is main"), Some("hi")));
        for (event, context) in [
            (HookEvent::UserPromptSubmit, Some("plain")),
            (HookEvent::SessionStart, Some("plain")),
            (HookEvent::Stop, None),
        ] {
            assert_eq!(read_text(event, 0, "plain\n", "").unwrap().context.as_deref(), context, "{event:?}");
        }
    }
}
