//! Tests how the words after a command, and the answers of the user, become the arguments of a prompt.

use futures::future::BoxFuture;

use super::*;
use crate::tool::ask::{NoAsker, PermissionRequest, PermissionResponse};

fn mail() -> ServicePrompt {
    let arguments = json!([
        {"name": "to", "required": true, "description": "Who gets it"},
        {"name": "tone"},
        {"name": "text", "required": true},
    ]);
    let about = json!({ARGUMENTS: {"tone": {"enum": ["dry", "warm"], "default": "dry"}}});
    ServicePrompt {
        listed: "post__mail".to_owned(),
        service: ServiceName::new("post"),
        prompt: json!({"name": "mail", "arguments": arguments, "_meta": about}),
        from_library: false,
    }
}

/// A user who fills in every form like this.
struct FormUser(Value);

impl Asker for FormUser {
    fn ask(&self, _: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(async { PermissionResponse::Unavailable })
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        assert_eq!((question.by.as_str(), question.message.as_str()), ("post", "/mail needs these values"));
        let Value::Object(answers) = self.0.clone() else { return Box::pin(async { ElicitationResponse::Declined }) };
        Box::pin(async move { ElicitationResponse::Accepted(answers) })
    }
}

async fn completed(rest: &str, user: &dyn Asker) -> Result<Value, String> {
    let of = mail();
    let filled = complete("mail", &of, fill_in(&of.prompt, rest), user).await;
    filled.map(Value::Object).map_err(|error| error.to_string())
}

#[test]
fn words_fill_arguments_and_the_last_takes_the_rest() {
    let prompt = json!({"name": "mail", "arguments": [{"name": "to", "required": true}, {"name": "text"}]});
    assert_eq!(json!(fill_in(&prompt, "ann see you at noon")), json!({"to": "ann", "text": "see you at noon"}));
    assert_eq!(json!(fill_in(&prompt, "ann")), json!({"to": "ann"}));
    assert_eq!(json!(fill_in(&prompt, r#"{"text": "x"}"#)), json!({"text": "x"}));
    assert_eq!(missing(&prompt, &fill_in(&prompt, "")), ["to"]);
    assert_eq!(hint(&prompt).as_deref(), Some("to [text]"));
}

#[test]
fn the_form_has_what_is_not_filled_in() {
    let prompt = mail().prompt;
    assert_eq!(
        Value::Object(form(&prompt, &fill_in(&prompt, "ann"))),
        json!({
            "type": "object",
            "properties": {
                "tone": {"type": "string", "title": "tone", "enum": ["dry", "warm"], "default": "dry"},
                "text": {"type": "string", "title": "text"},
            },
            "required": ["text"],
        })
    );
}

#[tokio::test]
async fn missing_arguments_are_asked_for() {
    let user = FormUser(json!({"tone": "warm", "text": "hello", "other": "x", "to": "eve"}));
    // Only what is missing and known is taken from the answers.
    assert_eq!(completed("ann", &user).await, Ok(json!({"to": "ann", "tone": "warm", "text": "hello"})));
    assert_eq!(completed(r#"{"text": "hi"}"#, &user).await, Ok(json!({"text": "hi", "to": "eve", "tone": "warm"})));
}

#[tokio::test]
async fn a_command_with_all_arguments_asks_nothing() {
    assert_eq!(
        completed("ann dry see you", &NoAsker).await,
        Ok(json!({"to": "ann", "tone": "dry", "text": "see you"}))
    );
}

#[tokio::test]
async fn without_an_answer_the_missing_arguments_are_named() {
    let needs = Err("/mail needs `to` and `text`: write it behind the command".to_owned());
    assert_eq!(completed("", &NoAsker).await, needs);
    assert_eq!(completed("", &FormUser(Value::Null)).await, needs, "declined");
    let needs = Err("/mail needs `text`: write it behind the command".to_owned());
    assert_eq!(completed("ann", &FormUser(json!({"text": " "}))).await, needs, "left empty");
}
