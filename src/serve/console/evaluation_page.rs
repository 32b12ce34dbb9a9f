//! How well the router knows the modes of labelled prompts, with its confusion matrix, as `skein route --eval`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use super::super::ServerState;
use super::form::FormFields;
use super::layout::{ConsoleProblem, Section, csrf_field, page};
use super::logins::Login;
use super::open_session::home_project;
use super::transcript::display_text;
use crate::graph::Plan;
use crate::ids::ModeId;
use crate::orchestrator::evaluation::{
    CaseError, EvaluatedAgents, EvaluationCase, RouteEvaluation, evaluate, read_cases,
};

/// The path of the page.
pub(super) const PATH: &str = "/console/routing/evaluation";
/// Bytes of the form.
pub(super) const MAX_FORM: usize = 1 << 20;
/// Cases of one evaluation.
const MAX_CASES: usize = 5_000;

/// Shows the form.
pub(super) async fn show(Extension(login): Extension<Arc<Login>>) -> Response {
    evaluation_page(&login, StatusCode::OK, &FormFields::default(), &html! {})
}

/// Evaluates the router on the cases of the form.
pub(super) async fn run(
    State(state): State<Arc<ServerState>>,
    Extension(login): Extension<Arc<Login>>,
    Extension(form): Extension<FormFields>,
) -> Result<Response, ConsoleProblem> {
    let text = form.get("cases").unwrap_or_default().replace("\r\n", "\n");
    let refused = |status: StatusCode, problem: &str| {
        let markup = html! { p class="problem" role="alert" { (display_text(problem)) } };
        Ok(evaluation_page(&login, status, &form, &markup))
    };
    let project = home_project(&state, &login.token).await?;
    let plan = Arc::clone(project.broker.plan());
    let cases = match read_form_cases(&text, &plan) {
        Ok(cases) => cases,
        Err(error) => return refused(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string()),
    };
    let agents = if form.get("all").is_some() { EvaluatedAgents::All } else { EvaluatedAgents::OfCases };
    let Some(measured) = run_alone(&state.evaluation, move || evaluate(&plan, &cases, agents)).await else {
        return refused(
            StatusCode::TOO_MANY_REQUESTS,
            "Another evaluation runs on this server. Try again in a moment.",
        );
    };
    let measured = measured.map_err(|error| {
        tracing::error!(%error, "the router cannot be evaluated");
        ConsoleProblem::new(StatusCode::INTERNAL_SERVER_ERROR, "The router cannot be evaluated at the moment.")
    })?;
    Ok(evaluation_page(&login, StatusCode::OK, &form, &result(&measured)))
}

/// Runs work that computes for a while, on another thread. `None` if the place is taken. The work has the place until it
/// ends, even if its client has left.
async fn run_alone<T: Send + 'static>(
    place: &Arc<Semaphore>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<Result<T, JoinError>> {
    let permit = Arc::clone(place).try_acquire_owned().ok()?;
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    Some(done.await)
}

/// The reason why the cases of a form are not evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum CaseFormError {
    #[error("Line {line}: {}", case_problem(.error))]
    Line { line: usize, error: CaseError },
    #[error("Write between 1 and {MAX_CASES} cases, one on each line.")]
    Count,
}

/// Reads the cases of a form. Fails if a line is no case, or there are none or too many.
fn read_form_cases(text: &str, plan: &Plan) -> Result<Vec<EvaluationCase>, CaseFormError> {
    let cases = read_cases(text, plan).map_err(|(line, error)| CaseFormError::Line { line, error })?;
    match cases.len() {
        1..=MAX_CASES => Ok(cases),
        _ => Err(CaseFormError::Count),
    }
}

fn case_problem(error: &CaseError) -> String {
    match error {
        CaseError::NoTab => format!("{error}. Write the mode, a tab and the prompt."),
        CaseError::UnknownMode(unknown) => format!("{}. {}.", unknown.problem, unknown.help.replace('@', "")),
    }
}

/// Returns the page with what was sent, so that the browser keeps no draft of it.
fn evaluation_page(login: &Login, status: StatusCode, sent: &FormFields, result: &Markup) -> Response {
    let body = html! {
        p { a href="/console/routing" { "Routing" } }
        h1 { "Evaluation of the router" }
        form method="post" action=(PATH) class="stack" data-draft="evaluation" {
            (csrf_field(login))
            label { "Cases"
                // A parser of HTML drops the first line break.
                textarea name="cases" class="mono" spellcheck="false" aria-describedby="cases-hint" required { "\n" (sent.get("cases").unwrap_or_default().replace("\r\n", "\n")) }
            }
            p class="hint" id="cases-hint" {
                "Each line is a mode, a tab and a prompt, with - as the mode of prompts that belong nowhere. "
                "Nothing runs and nothing is stored."
            }
            label class="choice" {
                input type="checkbox" name="all" value="1" checked[sent.get("all").is_some()];
                " Include the modes of all agents"
            }
            button type="submit" { "Evaluate" }
        }
        (result)
    };
    let mut response = page(login, Section::Routing, "Evaluation of the router", &body);
    *response.status_mut() = status;
    response
}

fn result(measured: &RouteEvaluation) -> Markup {
    html! {
        h2 { "Result" }
        dl class="panel" id="evaluation" {
            dt { "Cases" } dd { (measured.within) " for " (measured.modes) " modes, " (measured.outside) " that belong nowhere" }
            dt { "Right" } dd { (percent(measured.right, measured.within)) }
            dt { "Among the first three" } dd { (percent(measured.among_three, measured.within)) }
            dt { "Sure" }
            dd { (percent(measured.sure, measured.within)) ", of which " (percent(measured.right_and_sure, measured.sure)) " are right" }
            @if measured.outside > 0 {
                dt { "Sure although it belongs nowhere" } dd { (percent(measured.wrongly_sure, measured.outside)) }
            }
            @if let Some(error) = measured.calibration_error {
                dt { "Expected calibration error" } dd { (format!("{error:.3}")) }
            }
        }
        h2 { "Confusion matrix" }
        (matrix(measured))
    }
}

fn percent(part: usize, whole: usize) -> String {
    match whole {
        0 => "–".to_owned(),
        whole => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

/// Returns the table of expected and chosen modes. Modes that occur nowhere are left out.
fn matrix(measured: &RouteEvaluation) -> Markup {
    let mut counts: BTreeMap<(&ModeId, &ModeId), usize> = BTreeMap::new();
    counts.extend(measured.right_by_mode.iter().map(|(mode, count)| ((mode, mode), *count)));
    counts.extend(measured.confusion.iter().map(|((wanted, got), count)| ((wanted, got), *count)));
    let rows: BTreeSet<&ModeId> = counts.keys().map(|(wanted, _)| *wanted).collect();
    let columns: BTreeSet<&ModeId> = counts.keys().map(|(_, got)| *got).collect();
    html! {
        @if counts.is_empty() { p class="empty" { "No case has a mode." } }
        @else {
            div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix" {
                table class="matrix" {
                    caption { "Rows are the expected modes, columns the chosen ones." }
                    thead { tr { th scope="col" { "Expected" } @for mode in &columns { th scope="col" { (mode) } } } }
                    tbody {
                        @for wanted in &rows {
                            tr {
                                th scope="row" { (wanted) }
                                @for got in &columns { (cell(wanted, got, counts.get(&(*wanted, *got)).copied())) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn cell(wanted: &ModeId, got: &ModeId, count: Option<usize>) -> Markup {
    let class = match count {
        None => "none",
        Some(_) if wanted == got => "right",
        Some(_) => "wrong",
    };
    html! { td class=(class) { (count.unwrap_or_default()) } }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::graph::resolve;
    use crate::manifest::{Layer, Root, load};

    #[test]
    fn more_cases_than_the_maximum_are_not_evaluated() {
        let (manifests, found) = load(&[(Layer::Builtin, Root::Builtin)]);
        let plan = resolve(manifests, found).plan.unwrap();
        let read = |count: usize| read_form_cases(&"-\thello\n".repeat(count), &plan).map(|cases| cases.len());
        assert_eq!(read(MAX_CASES), Ok(MAX_CASES));
        assert_eq!(read(MAX_CASES + 1), Err(CaseFormError::Count));
        assert_eq!(read(0), Err(CaseFormError::Count));
    }

    #[tokio::test]
    async fn a_second_evaluation_waits_for_the_end_of_the_first() {
        let place = Arc::new(Semaphore::new(1));
        let (started, begin) = channel();
        let (end, ended) = channel::<()>();
        let first = run_alone(&place, move || {
            started.send(()).unwrap();
            ended.recv()
        });
        // The client disconnects while the first one runs.
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), first).await.is_err());
        begin.recv().unwrap();
        assert!(run_alone(&place, || ()).await.is_none());
        end.send(()).unwrap();
        drop(place.acquire().await.unwrap());
        run_alone(&place, || ()).await.expect("a free place").unwrap();
    }

    #[test]
    fn the_matrix_has_a_row_for_each_expected_mode() {
        let mode = |name: &str| name.parse::<ModeId>().unwrap();
        let measured = RouteEvaluation {
            right_by_mode: [(mode("a/x"), 3)].into(),
            confusion: vec![((mode("a/y"), mode("a/x")), 2)],
            ..RouteEvaluation::default()
        };
        let table = matrix(&measured).into_string();
        let row = |name: &str, cell: &str| format!("<tr><th scope=\"row\">{name}</th>{cell}</tr>");
        assert!(table.contains(&row("a/x", "<td class=\"right\">3</td>")), "{table}");
        assert!(table.contains(&row("a/y", "<td class=\"wrong\">2</td>")), "{table}");
        assert!(matrix(&RouteEvaluation::default()).into_string().contains("No case has a mode."));
    }
}
