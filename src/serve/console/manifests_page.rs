//! Manifests for administrators: a list with the findings of `check`, an editor, a form, and the changes before they are
//! saved.
//!
//! Invariant: only a token with `--admin` reaches these pages. A file is written only if `check` accepts it and if it is
//! still the version that the page was made from.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;

use super::super::ServerState;
use super::assets::checksum;
use super::findings::{count_text, finding_list, findings_in_place};
use super::form::{FormFields, query};
use super::layout::{ConsoleProblem, Section, csrf_field, page};
use super::login_page::see_other;
use super::logins::Login;
use super::manifest_form::SchemaForm;
use super::setup::{
    ManifestCheck, ManifestListing, ManifestPath, SaveOutcome, StoredManifest, require_admin, use_setup,
};
use super::transcript::{DiffBudget, diff, display_text};
use crate::manifest::{SourceFile, parse};

/// Lists the manifests.
pub(super) async fn list(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
) -> Result<Response, ConsoleProblem> {
    require_admin(&login, "Manifests")?;
    let listing = use_setup(&state, |setup| setup.list_manifests()).await?;
    let body = html! {
        h1 { "Manifests" }
        p class="hint" {
            "These agents, services and settings apply to all principals of this server. A change that "
            code { "skein check" } " rejects is not saved. A saved change applies from the next turn on."
        }
        h2 { "Your files in " code { (display_text(&listing.folder)) } }
        (file_table(&listing))
        (new_file_form())
        h2 { "Findings in other files" }
        (other_findings(&listing))
        h2 { "From elsewhere" }
        p class="hint" { "A file of yours with the same name overrides one that is built in." }
        (other_table(&listing))
    };
    Ok(page(&login, Section::Manifests, "Manifests", &body))
}

fn file_table(listing: &ManifestListing) -> Markup {
    html! {
        @if listing.files.is_empty() { p class="empty" { "No file yet." } }
        @else {
            div class="scroll" tabindex="0" role="region" aria-label="Your files" {
                table {
                    thead { tr { th { "File" } th { "Findings" } } }
                    tbody {
                        @for (path, shown) in &listing.files {
                            @let found = listing.diagnostics.iter().filter(|found| found.at.file == *shown);
                            tr {
                                td { a href=(edit_address(path)) { (display_text(path.as_str())) } }
                                td { (count_text(found).unwrap_or_else(|| "none".to_owned())) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn new_file_form() -> Markup {
    html! {
        form method="get" action="/console/manifests/edit" class="row" {
            label class="grow" { "New file"
                input name="file" placeholder="services/my-service.yaml" required spellcheck="false";
            }
            button type="submit" class="quiet" { "Open" }
        }
        p class="hint" {
            "A manifest is below " code { "agents" } " or " code { "services" } ", and so are the prompts that it names. "
            "Settings are in " code { "config.yaml" } "."
        }
    }
}

fn other_findings(listing: &ManifestListing) -> Markup {
    let is_listed = |file: &str| listing.files.iter().any(|(_, shown)| shown == file);
    let found: Vec<_> = listing.diagnostics.iter().filter(|found| !is_listed(&found.at.file)).collect();
    html! {
        @if found.is_empty() { p class="empty" { "None." } }
        (finding_list(&found))
    }
}

fn other_table(listing: &ManifestListing) -> Markup {
    html! {
        div class="scroll" tabindex="0" role="region" aria-label="Manifests from elsewhere" {
            table {
                thead { tr { th { "Name" } th { "Kind" } th { "From" } th { "File" } } }
                tbody {
                    @for other in &listing.others {
                        tr {
                            td { (display_text(&other.name)) }
                            td { (other.kind) }
                            td { (other.layer.to_string()) }
                            td { (display_text(&other.file)) }
                        }
                    }
                }
            }
        }
    }
}

/// Shows the editor of a file, which need not exist yet.
pub(super) async fn edit(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    RawQuery(text): RawQuery,
) -> Result<Response, ConsoleProblem> {
    require_admin(&login, "Manifests")?;
    let fields = FormFields::of_query(text.as_deref());
    let path = path_of(&fields)?;
    let stored = read(&state, &path).await?;
    let text = stored.as_ref().map_or_else(|| path.template(), |stored| stored.text.replace("\r\n", "\n"));
    let base = stored.as_ref().map(|stored| stored.version.clone());
    let draft = ManifestDraft { path, base, text, applied: None };
    let check = check(&state, &draft).await?;
    let notice = fields.get("saved").filter(|_| stored.is_some()).map(|_| EditorNotice::Saved);
    Ok(EditorView { draft: &draft, stored: stored.as_ref(), check: &check, notice }.page(&login, StatusCode::OK))
}

/// Shows the changes of a text, and what `check` says about it.
pub(super) async fn preview(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Extension(form): Extension<FormFields>,
) -> Result<Response, ConsoleProblem> {
    require_admin(&login, "Manifests")?;
    show_draft(&state, &login, ManifestDraft::of(&form)?).await
}

/// Applies the form to the text, then shows the changes.
pub(super) async fn fill_in(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Extension(form): Extension<FormFields>,
) -> Result<Response, ConsoleProblem> {
    require_admin(&login, "Manifests")?;
    let draft = ManifestDraft::of(&form)?;
    let invalid = |text: String| ConsoleProblem::new(StatusCode::UNPROCESSABLE_ENTITY, text);
    let schema_form =
        draft.form().ok_or_else(|| invalid("This text has no form. Correct it in the editor.".to_owned()))?;
    let text =
        schema_form.apply(&draft.text, &form).map_err(|error| invalid(format!("Nothing was changed: {error}.")))?;
    show_draft(&state, &login, ManifestDraft { text, ..draft }).await
}

/// Saves a text. If `check` rejects it, or the file has changed on disk, saves nothing and shows why.
pub(super) async fn save(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Extension(form): Extension<FormFields>,
) -> Result<Response, ConsoleProblem> {
    require_admin(&login, "Manifests")?;
    let draft = ManifestDraft::of(&form)?;
    let sent = draft.clone();
    let outcome = use_setup(&state, move |setup| setup.save_manifest(&sent.path, &sent.text, sent.base.as_deref()));
    match outcome.await? {
        SaveOutcome::Saved => {
            let (file, principal) = (draft.path.as_str(), login.token.grant.principal());
            tracing::info!(file, %principal, "a manifest was saved in the console");
            Ok(see_other(&format!("{}&saved=1", edit_address(&draft.path))))
        }
        SaveOutcome::Rejected(check) => {
            let stored = read(&state, &draft.path).await?;
            let notice = Some(EditorNotice::Rejected);
            let view = EditorView { draft: &draft, stored: stored.as_ref(), check: &check, notice };
            Ok(view.page(&login, StatusCode::UNPROCESSABLE_ENTITY))
        }
        SaveOutcome::Changed => show_draft(&state, &login, draft).await,
    }
}

/// Shows a draft with its changes. If the file is no longer the one that the draft was made from, the answer has the
/// status 409 and compares with the new one.
async fn show_draft(state: &ServerState, login: &Login, mut draft: ManifestDraft) -> Result<Response, ConsoleProblem> {
    let stored = read(state, &draft.path).await?;
    let version = stored.as_ref().map(|stored| stored.version.clone());
    let is_changed = version != draft.base;
    // The person sees the changes against the new file, so the next attempt is about that file.
    draft.base = version;
    let check = check(state, &draft).await?;
    let (status, notice) = match (is_changed, check.is_accepted) {
        (true, _) => (StatusCode::CONFLICT, Some(EditorNotice::Changed)),
        (false, false) => (StatusCode::UNPROCESSABLE_ENTITY, Some(EditorNotice::Rejected)),
        (false, true) => (StatusCode::OK, None),
    };
    Ok(EditorView { draft: &draft, stored: stored.as_ref(), check: &check, notice }.page(login, status))
}

async fn read(state: &ServerState, path: &ManifestPath) -> Result<Option<StoredManifest>, ConsoleProblem> {
    let path = path.clone();
    use_setup(state, move |setup| setup.read_manifest(&path)).await
}

async fn check(state: &ServerState, draft: &ManifestDraft) -> Result<ManifestCheck, ConsoleProblem> {
    let draft = draft.clone();
    use_setup(state, move |setup| setup.check_manifest(&draft.path, &draft.text)).await
}

fn path_of(fields: &FormFields) -> Result<ManifestPath, ConsoleProblem> {
    let path = fields.text("file").and_then(ManifestPath::parse);
    path.ok_or_else(|| {
        let text = "There is no such file. Name a manifest below agents or services, or config.yaml.";
        ConsoleProblem::new(StatusCode::NOT_FOUND, text)
    })
}

fn edit_address(path: &ManifestPath) -> String {
    format!("/console/manifests/edit?{}", query(&[("file", path.as_str())]))
}

/// The text of a file that is not saved yet.
#[derive(Debug, Clone)]
struct ManifestDraft {
    path: ManifestPath,
    /// The version of the file that the text was made from. `None` if there was no file.
    base: Option<String>,
    text: String,
    /// Identifies the fields that were applied to the text, among the drafts that the browser keeps.
    applied: Option<String>,
}

impl ManifestDraft {
    /// Reads the draft of a form. Browsers send line breaks as CR LF.
    fn of(form: &FormFields) -> Result<Self, ConsoleProblem> {
        let mut text = form.get("text").unwrap_or_default().replace("\r\n", "\n");
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let [base, applied] = ["base", "draft"].map(|name| form.text(name).map(str::to_owned));
        Ok(Self { path: path_of(form)?, base, text, applied })
    }

    /// Returns the form of the text. `None` if the text has no schema, or cannot be read.
    fn form(&self) -> Option<SchemaForm> {
        if self.path.is_json() {
            return None;
        }
        let document = parse(&SourceFile::new(self.path.as_str(), self.text.as_str())).ok().filter(Value::is_object)?;
        Some(SchemaForm::of(self.path.kind(&document)?, &document))
    }

    /// Identifies the text in the drafts that the browser keeps.
    fn key(&self) -> String {
        format!("manifest {} {:x}", self.path.as_str(), checksum(&self.text))
    }
}

/// What the editor says about the last attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EditorNotice {
    Saved,
    Rejected,
    Changed,
}

/// The page of the editor.
struct EditorView<'a> {
    draft: &'a ManifestDraft,
    /// The file on disk.
    stored: Option<&'a StoredManifest>,
    check: &'a ManifestCheck,
    notice: Option<EditorNotice>,
}

impl EditorView<'_> {
    fn page(&self, login: &Login, status: StatusCode) -> Response {
        let path = display_text(self.draft.path.as_str());
        let body = html! {
            p { a href="/console/manifests" { "All manifests" } }
            h1 { (path) }
            (self.notice())
            (self.older_fields(login))
            (self.changes(login))
            h2 { "Findings of check" }
            div id="findings" { (findings_in_place(&self.check.file, &self.draft.text, &self.check.diagnostics)) }
            h2 { "Text" }
            form method="post" action=(self.action("preview")) class="stack" {
                (self.common_fields(login))
                label { "Content of the file"
                    // A parser of HTML drops the first line break.
                    textarea name="text" class="mono tall" spellcheck="false" data-draft=(self.draft.key())
                        data-file-draft=[self.file_key()] {
                        "\n" (self.draft.text)
                    }
                }
                div class="row" { button type="submit" { "Check and compare" } span class="hint" { "Nothing is saved yet." } }
            }
            (self.schema_form(login))
        };
        let mut response = page(login, Section::Manifests, &path, &body);
        *response.status_mut() = status;
        response
    }

    fn notice(&self) -> Markup {
        html! {
            @match self.notice {
                Some(EditorNotice::Saved) => { p class="done" role="status" { "Saved. It applies from the next turn on." } }
                Some(EditorNotice::Rejected) => {
                    p class="problem" role="alert" { "Nothing was saved: check finds errors. They are shown below." }
                }
                Some(EditorNotice::Changed) => {
                    p class="problem" role="alert" {
                        "Nothing was saved: the file has changed on disk since you opened it. The changes below compare "
                        "your text with the file as it is now."
                    }
                }
                None => {
                    @if self.stored.is_none() { p class="meta" { "This file does not exist yet." } }
                }
            }
        }
    }

    /// Shows the changes against the file on disk, and the button that saves them if `check` accepts them.
    fn changes(&self, login: &Login) -> Markup {
        let before = self.stored.map(|stored| stored.text.replace("\r\n", "\n")).unwrap_or_default();
        if before == self.draft.text {
            return html! {};
        }
        html! {
            h2 { "Changes" }
            (diff(self.draft.path.as_str(), &before, &self.draft.text, &DiffBudget::default()))
            @if self.check.is_accepted {
                form method="post" action=(self.action("save")) class="stack" {
                    (self.common_fields(login))
                    input type="hidden" name="text" value=(self.draft.text);
                    button type="submit" { "Save" }
                }
            } @else {
                p class="hint" { "Correct the errors in the text, then check again. Only a text without errors can be saved." }
            }
        }
    }

    /// Returns the address of an action. It names the file, so that a login leads back to it.
    fn action(&self, name: &str) -> String {
        format!("/console/manifests/{name}?{}", query(&[("file", self.draft.path.as_str())]))
    }

    /// Identifies the text of the file in the drafts that the browser keeps. `None` if the draft has no changes.
    fn file_key(&self) -> Option<String> {
        let stored = self.stored.map(|stored| stored.text.replace("\r\n", "\n"));
        let text = stored.unwrap_or_else(|| self.draft.path.template());
        let file = ManifestDraft { text, ..self.draft.clone() };
        (file.text != self.draft.text).then(|| file.key())
    }

    fn common_fields(&self, login: &Login) -> Markup {
        html! {
            (csrf_field(login))
            input type="hidden" name="file" value=(self.draft.path.as_str());
            input type="hidden" name="base" value=(self.draft.base.as_deref().unwrap_or_default());
        }
    }

    /// Identifies what was filled in among the drafts that the browser keeps. A page with changes has another key, so
    /// that fields for the text of the file stay for its page.
    fn fields_key(&self) -> String {
        let suffix = if self.file_key().is_some() { " changes" } else { "" };
        format!("fields {}{suffix}", self.draft.path.as_str())
    }

    /// Sends what was filled in for another text than the one on the page. The script shows it if there is such a draft.
    fn older_fields(&self, login: &Login) -> Markup {
        html! {
            form method="post" action=(self.action("form")) class="stack panel" id="older-fields"
                data-of={ "fields " (self.draft.path.as_str()) } data-sent=[self.draft.applied.as_deref()] hidden {
                (csrf_field(login))
                p { "You filled in the form for another version of this text, and it was not sent." }
                p class="problem" role="alert" hidden {}
                div class="row" {
                    button type="submit" { "Compare it with the file" }
                    button type="button" class="quiet" { "Discard it" }
                }
            }
        }
    }

    fn schema_form(&self, login: &Login) -> Markup {
        let Some(form) = self.draft.form() else { return html! {} };
        html! {
            h2 { "Form" }
            details {
                summary { "Fields of the schema" }
                form method="post" action=(self.action("form")) class="stack" data-fill data-draft=(self.fields_key()) {
                    (self.common_fields(login))
                    input type="hidden" name="text" value=(self.draft.text);
                    input type="hidden" name="draft" value=(self.fields_key());
                    p class="hint" {
                        "The form changes the text as this page was loaded with it. An empty field removes its entry. Lists "
                        "have buttons that add, remove and move their items."
                    }
                    (form.markup())
                    @if !form.others.is_empty() {
                        p class="hint" { "Only in the text: " (form.others.join(", ")) "." }
                    }
                    div class="row" {
                        button type="submit" { "Fill in and compare" } span class="hint" { "Nothing is saved yet." }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_has_unix_line_ends_and_one_at_the_end() {
        let draft = |form: &str| ManifestDraft::of(&FormFields::parse(form.as_bytes()));
        let read = draft("file=services/a.yaml&base=&text=a:%0D%0A++b: 1").unwrap();
        assert_eq!((read.text.as_str(), read.base), ("a:\n  b: 1\n", None));
        assert_eq!(draft("file=../a.yaml&text=x").unwrap_err().status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn only_yaml_with_a_schema_has_a_form() {
        let form = |file: &str, text: &str| {
            let path = ManifestPath::parse(file).unwrap();
            ManifestDraft { path, base: None, text: text.to_owned(), applied: None }.form()
        };
        assert!(form("services/a.yaml", "name: a\n").is_some());
        assert!(form("config.yaml", "version: 1\n").is_some());
        for (file, text) in [("services/a.json", "{}"), ("agents/a.md", "# A\n"), ("services/a.yaml", "a: [b\n")] {
            assert_eq!(form(file, text), None, "{file}");
        }
    }
}
