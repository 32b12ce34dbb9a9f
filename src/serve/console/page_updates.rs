//! Sends news of the graph or of a service to the browsers that show it, over their event streams. The server looks for
//! changes, because requests of the pages would count for the limit of their token.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::ServerState;
use super::form::FormFields;
use super::graph_page::KnownShape;
use super::layout::ConsoleProblem;
use super::logins::Login;
use super::{graph_page, service_page};

/// Pages that one stream may follow.
const MAX_PAGES: usize = 8;
/// The pause between two looks at a page, so that a change shows within a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(800);
/// Begins the name of a page about a service.
const SERVICES: &str = "services/";

/// A page that an event stream follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LivePage {
    Graph,
    /// The page of the service with this name.
    Service(String),
}

impl LivePage {
    /// Returns the pages that a query names as `page=graph` or `page=services/NAME`. Leaves out others, and those over
    /// the limit.
    pub(super) fn all_of(query: &FormFields) -> Vec<Self> {
        let mut pages = Vec::new();
        let named = query.all("page").filter_map(|name| match name {
            "graph" => Some(Self::Graph),
            name => name.strip_prefix(SERVICES).map(|service| Self::Service(service.to_owned())),
        });
        for page in named {
            if pages.len() < MAX_PAGES && !pages.contains(&page) {
                pages.push(page);
            }
        }
        pages
    }

    /// Returns what the page shows now. Fails if the login may not see it, or it cannot be read at the moment.
    async fn news(&self, state: &ServerState, login: &Login, shape: &mut KnownShape) -> Result<Value, ConsoleProblem> {
        match self {
            Self::Graph => graph_page::news(state, login, shape).await,
            Self::Service(name) => service_page::news(state, login, name).await,
        }
    }
}

/// Sends what a page shows, first and after each change, until the stream ends or `ended` is cancelled. Ends at once
/// if the login may not see the page. Waits for a stream that is behind, and then sends the newest state only.
pub(super) async fn send_news(
    state: Arc<ServerState>,
    login: Arc<Login>,
    page: LivePage,
    updates: mpsc::Sender<Value>,
    ended: CancellationToken,
) {
    let mut known: Option<Value> = None;
    let mut shape = KnownShape::default();
    let follow = async {
        // Ends when the stream has ended.
        while let Ok(place) = updates.reserve().await {
            match page.news(&state, &login, &mut shape).await {
                Ok(news) if known.as_ref() != Some(&news) => {
                    known = Some(news.clone());
                    place.send(news);
                }
                Ok(_) => drop(place),
                // The rights of a login do not change.
                Err(problem) if problem.status == StatusCode::FORBIDDEN => break,
                Err(problem) => {
                    tracing::debug!(?page, problem = problem.text, "a page has no news");
                    drop(place);
                }
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        () = ended.cancelled() => {}
        () = follow => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_follows_a_limited_number_of_pages() {
        let pages = |query: &str| LivePage::all_of(&FormFields::of_query(Some(query)));
        let service = |name: &str| LivePage::Service(name.to_owned());
        let named = "page=graph&page=services%2Fweb&page=graph&page=other&watch=graph";
        assert_eq!(pages(named), [LivePage::Graph, service("web")]);
        let many: String = (0..2 * MAX_PAGES).map(|number| format!("page=services/{number}&")).collect();
        let first: Vec<_> = (0..MAX_PAGES).map(|number| service(&number.to_string())).collect();
        assert_eq!(pages(&many), first);
    }
}
