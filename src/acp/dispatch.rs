//! Dispatches requests to their handlers. No handler waits: a request that needs time is answered by a spawned task.

use std::sync::Arc;

use agent_client_protocol::v1::schema as acp;
use agent_client_protocol::v1::{ConnectionTo, Responder};
use agent_client_protocol::{Agent, Client, DynConnectTo, on_receive_notification, on_receive_request};

use super::connection::{ClientConnection, ClientSession};
use super::{errors, initialize, limits, options, prompt, sessions};

/// Creates a handler that answers a request in its own task.
macro_rules! answered {
    ($connection:expr, $request:ty => $response:ty, |$c:ident, $r:ident, $client:ident| $work:expr) => {{
        let connection = Arc::clone($connection);
        async move |$r: $request, responder: Responder<$response>, $client: ConnectionTo<Client>| {
            let $c = Arc::clone(&connection);
            connection.spawn(async move {
                let answer: Result<$response, acp::Error> = async { $work }.await;
                // Fails only if the client has disconnected.
                drop(responder.respond_with_result(answer.map_err(Into::into)));
            });
            Ok(())
        }
    }};
}

/// Creates a handler for a request that opens a session. Sends the response first, then commands, options and notices.
macro_rules! set_up {
    ($connection:expr, $request:ty => $response:ty, $work:path, |$open:ident| $answer:expr) => {{
        let connection = Arc::clone($connection);
        async move |request: $request, responder: Responder<$response>, client: ConnectionTo<Client>| {
            let c = Arc::clone(&connection);
            connection.spawn(async move {
                let $open = match $work(&c, &client, request).await {
                    Ok(open) => open,
                    Err(error) => return drop(responder.respond_with_error(error.into())),
                };
                let answer: $response = $answer;
                if responder.respond(answer).is_ok() {
                    sessions::finish_setup(&c, &client, &$open).await;
                }
            });
            Ok(())
        }
    }};
}

/// Serves the connection until it ends. Fails if the transport fails. All transports have one type, because the compiler
/// would copy every handler for each.
pub(super) async fn speak(
    connection: &Arc<ClientConnection>,
    transport: DynConnectTo<Agent>,
) -> Result<(), agent_client_protocol::Error> {
    let (c, greeting, prompting, cancelling) =
        (connection, Arc::clone(connection), Arc::clone(connection), Arc::clone(connection));
    // The SDK asks one handler after the other, each in a new future. So the frequent requests come first, and the others
    // are one handler behind them.
    let frequent = Agent
        .v1()
        .name("skein")
        .on_receive_request(
            async move |request: acp::PromptRequest,
                        responder: Responder<acp::PromptResponse>,
                        _: ConnectionTo<Client>| {
                let open = prompting.session(&request.session_id)?;
                limits::check_draining(&prompting.server.draining).map_err(|error| errors::usage(&error))?;
                let shared = Arc::clone(&open.shared);
                let running = shared.begin(&prompting.server.grant)?;
                let (place, connection) = (shared.ticket(), Arc::clone(&prompting));
                shared.spawn(async move {
                    let cancelled = responder.cancellation();
                    let both = async {
                        cancelled.cancelled().await;
                        running.cancel().cancel();
                        std::future::pending().await
                    };
                    let answer = tokio::select! {
                        answer = prompt::prompt(&connection, &open, &running, place, request.prompt) => answer,
                        answer = both => answer,
                    };
                    // Free the session before the response: the client may send the next prompt at once. A close waits
                    // for `ended`, so it is answered after this prompt.
                    let ended = running.end();
                    drop(responder.respond_with_result(answer.map_err(Into::into)));
                    drop(ended);
                });
                Ok(())
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |cancel: acp::CancelNotification, _: ConnectionTo<Client>| {
                // A session that is unknown or idle has nothing to cancel.
                if let Ok(open) = cancelling.session(&cancel.session_id) {
                    open.shared.cancel();
                }
                Ok(())
            },
            on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: acp::InitializeRequest,
                        responder: Responder<acp::InitializeResponse>,
                        _: ConnectionTo<Client>| {
                responder.respond(initialize::initialize(&greeting, request))?;
                let connection = Arc::clone(&greeting);
                greeting.spawn(async move { initialize::make_ready(&connection).await });
                Ok(())
            },
            on_receive_request!(),
        );
    let (changing, choosing) = (Arc::clone(c), Arc::clone(c));
    let others = Agent
        .v1()
        .on_receive_request(
            answered!(c, acp::AuthenticateRequest => acp::AuthenticateResponse, |c, request, _client| {
                initialize::authenticate(&c, &request).await
            }),
            on_receive_request!(),
        )
        .on_receive_request(
            // Keys come from the environment and no session needs a login, so there is nothing to forget.
            answered!(c, acp::LogoutRequest => acp::LogoutResponse, |_c, _request, _client| Ok(acp::LogoutResponse::new())),
            on_receive_request!(),
        )
        .on_receive_request(
            set_up!(c, acp::NewSessionRequest => acp::NewSessionResponse, sessions::new, |open| {
                acp::NewSessionResponse::new(open.session.id().to_owned())
                    .modes(options::modes(&open))
                    .config_options(options::options(&open))
            }),
            on_receive_request!(),
        )
        .on_receive_request(
            set_up!(c, acp::LoadSessionRequest => acp::LoadSessionResponse, sessions::load, |open| {
                acp::LoadSessionResponse::new()
                    .modes(options::modes(&open))
                    .config_options(options::options(&open))
                    .meta(sessions::turn_state(&open))
            }),
            on_receive_request!(),
        )
        .on_receive_request(
            set_up!(c, acp::ResumeSessionRequest => acp::ResumeSessionResponse, sessions::resume, |open| {
                acp::ResumeSessionResponse::new().modes(options::modes(&open)).config_options(options::options(&open))
            }),
            on_receive_request!(),
        )
        .on_receive_request(
            answered!(c, acp::ListSessionsRequest => acp::ListSessionsResponse, |c, request, _client| {
                sessions::list(&c, request).await
            }),
            on_receive_request!(),
        )
        .on_receive_request(
            answered!(c, acp::DeleteSessionRequest => acp::DeleteSessionResponse, |c, request, _client| {
                sessions::delete(&c, &request).await.map(|()| acp::DeleteSessionResponse::new())
            }),
            on_receive_request!(),
        )
        .on_receive_request(
            answered!(c, acp::CloseSessionRequest => acp::CloseSessionResponse, |c, request, _client| {
                let _alone = c.server.open_sessions.lock_session(&request.session_id.0).await;
                let closed = c.close(&request.session_id).await;
                closed.map(|_| acp::CloseSessionResponse::new()).ok_or_else(|| errors::session_not_open(&request.session_id.0))
            }),
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: acp::SetSessionModeRequest,
                        responder: Responder<acp::SetSessionModeResponse>,
                        client: ConnectionTo<Client>| {
                let open = changing.session(&request.session_id)?;
                let (place, connection) = (open.shared.ticket(), Arc::clone(&changing));
                changing.spawn(async move {
                    let _order = place.wait().await;
                    let set = options::set_mode(&open, &request).await;
                    let answer = set.map(|()| acp::SetSessionModeResponse::new());
                    respond_to_change(&connection, &client, &open, responder, answer).await;
                });
                Ok(())
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: acp::SetSessionConfigOptionRequest,
                        responder: Responder<acp::SetSessionConfigOptionResponse>,
                        client: ConnectionTo<Client>| {
                let open = choosing.session(&request.session_id)?;
                let (place, connection) = (open.shared.ticket(), Arc::clone(&choosing));
                choosing.spawn(async move {
                    let _order = place.wait().await;
                    let set = options::set_option(&open, &request).await;
                    let answer = set.map(|()| acp::SetSessionConfigOptionResponse::new(options::options(&open)));
                    respond_to_change(&connection, &client, &open, responder, answer).await;
                });
                Ok(())
            },
            on_receive_request!(),
        );
    if !connection.server.fork {
        return frequent.with_connection_builder(others).connect_to(transport).await;
    }
    let others = others.on_receive_request(
        set_up!(c, acp::ForkSessionRequest => acp::ForkSessionResponse, sessions::fork, |open| {
            acp::ForkSessionResponse::new(open.session.id().to_owned())
                .modes(options::modes(&open))
                .config_options(options::options(&open))
        }),
        on_receive_request!(),
    );
    frequent.with_connection_builder(others).connect_to(transport).await
}

/// Responds to a change of mode or option. Then sends everything else that the change affected.
async fn respond_to_change<T: agent_client_protocol::JsonRpcResponse>(
    connection: &ClientConnection,
    client: &ConnectionTo<Client>,
    open: &Arc<ClientSession>,
    responder: Responder<T>,
    answer: Result<T, acp::Error>,
) {
    let done = answer.is_ok();
    if responder.respond_with_result(answer.map_err(Into::into)).is_err() || !done {
        return;
    }
    let updates = tokio::select! {
        biased;
        () = open.closed.cancelled() => return,
        updates = options::refresh_updates(open) => updates,
    };
    for update in updates {
        let id = acp::SessionId::new(open.session.id());
        drop(client.send_notification(acp::SessionNotification::new(id, update)));
    }
    options::watch_external(connection, open);
    connection.send_pending_notices(client, open);
}
