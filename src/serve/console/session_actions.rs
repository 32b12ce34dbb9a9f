//! Changes sessions for a person: opens, prompts, cancels, switches mode and approval.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};

use super::super::ServerState;
use super::SCRIPT;
use super::form::FormFields;
use super::layout::ConsoleProblem;
use super::login_page::see_other;
use super::logins::Login;
use super::open_session::{ConsoleSessions, OpenedSession, home_folder};
use super::transcript::{IMAGE_TYPES, is_base64};
use crate::conversation::Content;
use crate::ids::ModeId;
use crate::principal::ApprovalLevel;

/// Names the page that a script opens after its form was sent.
const NEXT: &str = "x-console-next";

/// Opens a session and sends its first prompt.
pub(super) async fn create(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Extension(form): Extension<FormFields>,
    headers: HeaderMap,
) -> Result<Response, ConsoleProblem> {
    let prompt = prompt_of(&form)?;
    let mode = mode_of(&form)?.ok_or_else(|| invalid("Choose a mode."))?;
    let folder = match home_folder(&state, &login.token) {
        Some(_) => Some(folder_of(&form, &login)?),
        None => None,
    };
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    let opened = sessions.create(&mode, folder).await?;
    let page = page_of(&opened);
    sessions.prompt(opened, prompt).await?;
    Ok(form_response(&headers, &page, true))
}

/// Returns the folder of a form. Fails if it does not exist, or the token does not admit it.
fn folder_of(form: &FormFields, login: &Login) -> Result<PathBuf, ConsoleProblem> {
    let folder = PathBuf::from(form.text("folder").ok_or_else(|| invalid("Name a folder."))?);
    if !folder.is_absolute() {
        return Err(invalid("The folder must be an absolute path."));
    }
    // A token learns nothing about folders outside its own, not even that they exist.
    login.token.grant.check_folder(&folder)?;
    if folder.is_dir() { Ok(folder) } else { Err(invalid("The folder does not exist.")) }
}

/// Sends a prompt.
pub(super) async fn prompt(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Extension(form): Extension<FormFields>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ConsoleProblem> {
    let prompt = prompt_of(&form)?;
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    let opened = sessions.open(&id).await?;
    let page = page_of(&opened);
    sessions.prompt(opened, prompt).await?;
    Ok(form_response(&headers, &page, false))
}

/// Cancels the running turn.
pub(super) async fn cancel(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ConsoleProblem> {
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    sessions.cancel(&id).await?;
    Ok(form_response(&headers, &format!("/console/sessions/{id}"), false))
}

/// Switches mode and approval level from the next turn on. A stricter level applies at once.
pub(super) async fn switch(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Extension(form): Extension<FormFields>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ConsoleProblem> {
    let mode = mode_of(&form)?;
    let approval = form.text("approval").map(|name| {
        ApprovalLevel::from_name(name).ok_or_else(|| invalid(format!("There is no approval level `{name}`.")))
    });
    let approval = approval.transpose()?;
    // The session may be open with another token, which admits more.
    let grant = &login.token.grant;
    if let Some(mode) = mode.as_ref().filter(|mode| !grant.limits().admits_mode(mode)) {
        return Err(no_mode(&mode.to_string()));
    }
    if let Some(level) = approval {
        grant.check_approval(level)?;
    }
    let sessions = ConsoleSessions::of(&state, &login.token).await?;
    let opened = sessions.open(&id).await?;
    let page = page_of(&opened);
    let changed = change(&opened, mode, approval).await;
    opened.release(&state).await;
    changed?;
    Ok(form_response(&headers, &page, true))
}

async fn change(
    opened: &OpenedSession,
    mode: Option<ModeId>,
    approval: Option<ApprovalLevel>,
) -> Result<(), ConsoleProblem> {
    let session = &opened.open.session;
    if let Some(mode) = mode {
        if !session.plan().is_selectable(&mode) {
            return Err(no_mode(&mode.to_string()));
        }
        session.set_mode(mode).await?;
    }
    if let Some(approval) = approval {
        session.set_approval(approval).await?;
    }
    Ok(())
}

fn page_of(opened: &OpenedSession) -> String {
    format!("/console/sessions/{}", opened.open.session.id())
}

/// Answers a form. A script gets the page to open, if it is another one or has changed.
fn form_response(headers: &HeaderMap, page: &str, is_new_page: bool) -> Response {
    if !headers.contains_key(SCRIPT) {
        return see_other(page);
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let (true, Ok(page)) = (is_new_page, HeaderValue::from_str(page)) {
        response.headers_mut().insert(NEXT, page);
    }
    response
}

fn invalid(text: impl Into<String>) -> ConsoleProblem {
    ConsoleProblem::new(StatusCode::UNPROCESSABLE_ENTITY, text)
}

fn no_mode(name: &str) -> ConsoleProblem {
    invalid(format!("There is no mode `{name}`."))
}

/// Returns the mode of a form. `None` if it names none.
fn mode_of(form: &FormFields) -> Result<Option<ModeId>, ConsoleProblem> {
    let mode = form.text("mode").map(|name| name.parse::<ModeId>().map_err(|_| no_mode(name)));
    mode.transpose()
}

/// Returns text and pictures of a form. Fails if there is neither, or a picture cannot be shown.
fn prompt_of(form: &FormFields) -> Result<Vec<Content>, ConsoleProblem> {
    let mut prompt: Vec<Content> = form.text("prompt").map(Content::text).into_iter().collect();
    for image in form.all("image").filter(|image| !image.is_empty()) {
        prompt.push(image_of(image).ok_or_else(|| invalid("A picture must be PNG, JPEG, GIF or WebP."))?);
    }
    if prompt.is_empty() { Err(invalid("Write a prompt first.")) } else { Ok(prompt) }
}

/// Reads `TYPE;base64,DATA`, as a browser encodes a file. `None` if it is no picture.
fn image_of(text: &str) -> Option<Content> {
    let (mime, data) = text.split_once(";base64,")?;
    let is_image = IMAGE_TYPES.contains(&mime) && is_base64(data);
    is_image.then(|| Content::Image { mime: mime.to_owned(), data: data.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(form: &str) -> Result<Vec<Content>, StatusCode> {
        prompt_of(&FormFields::parse(form.as_bytes())).map_err(|problem| problem.status)
    }

    #[test]
    fn a_prompt_has_text_or_pictures() {
        assert_eq!(prompt("prompt=+hi+"), Ok(vec![Content::text("hi")]));
        let image = Content::Image { mime: "image/png".to_owned(), data: "aGk=".to_owned() };
        assert_eq!(prompt("image=image/png;base64,aGk%3D"), Ok(vec![image]));
        for wrong in
            ["", "prompt=+", "image=image/svg%2Bxml;base64,aGk%3D", "image=image/png;base64,%3Cx%3E", "image=x"]
        {
            assert_eq!(prompt(wrong), Err(StatusCode::UNPROCESSABLE_ENTITY), "{wrong}");
        }
    }
}
