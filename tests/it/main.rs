//! The only integration-test binary. Each line says what belongs in the module.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what a test cannot go on without ends it")]

/// `skein acp`: the editor lends its files and terminals.
mod acp_editor;
/// `skein acp`: what a user chooses.
mod acp_options;
/// `skein acp`: turns, consent, cancelling.
mod acp_prompt;
mod acp_replays;
/// `skein acp`: sessions, and the servers a client brings.
mod acp_sessions;
/// `skein acp`: commands in terminals of the editor, inside their sandbox.
mod acp_terminals;
/// `skein acp`: lines, envelopes, greetings, ends.
mod acp_wire;
/// `skein acp` with real clients: the TypeScript SDK, the Python SDK, acpx.
mod acp_clients;
/// Everything an MCP service can say, as an editor hears it.
mod adapter;
/// The examples of docs/api.md.
mod api_doc;
/// Apps made and changed by a model over ACP, and served as resources.
mod apps;
/// Apps in a real browser: what they do, and what they cannot do.
mod apps_browser;
/// The arrows between modules, the files nobody may forget, the size of files.
mod architecture;
mod assertions;
/// `skein mcp --agents`: agents asked by MCP clients.
mod ask;
/// Programs that attach to a process that runs.
mod attach;
/// Decisions in the audit log, and changes of the log behind Skein's back.
mod audit;
/// What a session in a mode may use: lists and calls, files, consent, text of foreign servers.
mod broker;
/// `browse` with a real Chromium: pages, forms, downloads, dev servers, and pages that attack.
mod browser;
/// Limits of cost, tokens, requests and time, over real HTTP.
mod budgets;
/// The built-in wiring: the table in the docs against the manifests, prompts, examples.
mod builtin;
/// `skein chat` on a real screen.
mod chat;
/// Files and history come back, and go forward again.
mod checkpoints;
/// Models that answer when another one fails.
mod fallback_models;
/// Tools that a model calls from code.
mod code;
mod code_index;
/// Commands as a user runs them: what they print, where, and with which exit code.
mod cli;
/// `skein configure`: a model, its key, an agent.
mod configure;
/// The console on the wire: logins, CSRF tokens, sessions, approvals.
mod console;
/// The console of administrators on the wire: manifests, services, health. Also its WebSocket and its browser.
mod console_admin;
/// The console in a real browser: flows, injections, tabs, restarts, accessibility.
mod console_browser;
/// The steps of packaging/Containerfile in a folder with Debian, and the server that they make.
mod container;
/// An MCP client that works on the lines of the wire.
mod client;
/// Manifests that are wrong, and exactly what is said about them.
mod diagnostics;
/// `computercontroller`: documents through the sandboxed parser, and compared with LibreOffice.
mod documents;
/// A permission request that stays open: the webhook, the desktop, the bell.
mod notifications;
/// Managed settings: every way to loosen each of them.
mod managed;
/// `skein doctor`: what is wrong with a set-up.
mod doctor;
/// A session that is shown in an editor.
mod editor;
/// docs/editors.md against the program; the entry for the ACP registry against the registry's rules.
mod editors_doc;
/// Servers of both eras of MCP.
mod eras;
/// Memory, todo and fetch through the program.
mod everyday;
/// A person at a terminal for the first time.
mod first_run;
/// The gallery of pictures in the docs.
mod gallery;
/// What a model is shown when the talk outgrows its window.
mod compaction;
/// The loop between a model and its tools.
mod exchange;
/// Services that break, each as a real process: what the session hears, and what is left.
mod external;
/// Remote agents behind `runtime: {a2a: …}`: another Skein, and the Python SDK.
mod external_a2a;
mod external_fence;
mod external_hostile;
mod external_life;
mod external_peers;
mod external_routes;
mod faults;
/// `skein services add` and its siblings, `skein agents add`.
mod add_services;
/// What other users, the project folder and child processes cannot reach: home, memory, files, limits.
#[cfg(target_os = "linux")]
mod hardening;
/// Services that a session enables and disables for those who work for it.
mod managing;
/// What is not there is not promised: planned services, replaced agents, tools that need a session.
mod honest_wiring;
/// Hooks of a config: real commands before and after calls, prompts, turns and sessions.
mod hooks;
/// Hosts that `fetch_url` reaches, and who is asked about them.
mod hosts;
/// Resources and prompts of services: rules, level and consent.
mod resources;
/// `skein import`: set-ups of other tools move in.
mod import;
/// What a session keeps when it is opened again, what ends with it, and its name.
mod session_life;
/// `skein run` keeps its sessions.
mod kept;
/// Keys in the keyring of the desktop.
mod keyring;
/// What was acknowledged survives `kill -9`.
mod kill;
/// Models over real HTTP that are slow, cut, wrong and hostile, in each dialect.
mod hostile;
/// The screen tools with Xvfb and a real window.
mod screen;
/// External agents that run in their sandboxes.
#[cfg(target_os = "linux")]
mod sandboxed_agents;
/// Services that run in their sandboxes.
#[cfg(target_os = "linux")]
mod sandboxed_services;
/// Skills, recipes and agent files: through the program, a binding and an editor.
mod knowledge;
/// Names, comments and docs are in plain technical English.
mod language;
/// Large inputs: memory stays bounded, and other sessions work.
mod large_cases;
/// `skein mcp` on the wire: malformed messages, annotations.
mod mcp_wire;
/// A scripted model behind HTTP.
mod model;
/// Who works on a prompt, and what they know.
mod orchestrator;
/// Files of calls: what is shown and written; protected and hidden paths.
mod paths;
/// Agents of others, each by itself: what they say before Skein is between.
mod peers;
/// Rules about calls, and what bash really runs.
mod permissions;
/// Parts that only Linux has.
mod portable;
/// `skein principal delete`, with both kinds of stores.
mod principal_deletion;
/// Principals: what one of them never sees of another, and the limits of their tokens.
mod principals;
/// Profiles: models, agent, mode and services, from the config or a file.
mod profiles;
/// Sessions that share the limits of a provider.
mod provider_queue;
/// Nothing panics: arbitrary text and arbitrary graphs.
mod properties;
/// Clients that attach to a running turn.
mod reattach;
/// Skein between real servers and real clients, those that npm has.
mod real_servers;
/// Manifests that change while Skein runs.
mod reload;
/// Packages of `scripts/release`, man pages, the bill of materials.
mod release;
/// The limits that docs/reliability.md lists.
mod reliability_doc;
/// Recipes: parameters, services, the form of an answer, checks, sub-recipes.
mod recipe;
/// What was recorded is what is played.
mod recordings;
/// docs/reference.md against the source.
mod reference;
/// `skein report`: activity of a period.
mod report;
/// Services that call the services they require.
mod requires;
/// `skein route`: who takes a prompt on, and how well that is known.
mod route;
/// Skein while it runs: processes, signals, sockets, probes.
mod running;
/// `skein run`, without a model and with one over HTTP.
mod routing;
mod run;
/// How `skein run` ends: exit codes, refused calls, failed tasks, token totals.
mod run_outcome;
/// `skein sandbox`: attempts to leave it, everyday uses, machines with fewer layers, survivors.
#[cfg(target_os = "linux")]
mod sandbox;
/// JSON Schemas against the types.
mod schemas;
/// Steps that migrate a shared store, and releases that share it.
mod schema_steps;
/// Scripts of `run_script`: rules, questions, the files that keep them, the sandbox.
mod scripts;
/// Keys in every source, searched for in every place that is written.
mod secret_canaries;
/// Keys of clients, stored keys and keys in requests; console pages and environments of children.
mod secret_places;
/// Keys of the config and of servers that clients bring, searched for in every place of `skein serve`.
mod secret_served;
/// The threat model in docs/security.md: every line names a test.
mod security_doc;
/// Modes served to an MCP client, against the wiring table.
mod served_modes;
/// Logins at HTTP services: a real authorization server, its tokens, and servers that misbehave.
mod service_login;
/// docs/services.md against the services.
mod services_doc;
/// Shell commands of agents in their sandbox: levels, arguments, results, new protected paths.
#[cfg(target_os = "linux")]
mod shell_sandbox;
/// `skein serve`: checks of requests, tokens, operations.
mod serve;
/// A2A endpoints of `skein serve`: cards, tasks, questions, two principals.
mod serve_a2a;
/// ACP connections of `skein serve`: limits, binding to the token, shutdown.
mod serve_acp;
/// The conformance suite of MCP against a service behind `skein serve`.
mod serve_conformance;
/// `skein serve`: files and processes of remote sessions, here and at the client.
mod serve_files;
/// MCP endpoints of `skein serve`: modes, services, agents.
mod serve_mcp;
/// MCP endpoints on the wire: progress, cut streams, cancelled calls, malformed messages.
mod serve_mcp_streams;
/// `skein acp --connect`: cuts at every message, wrong tokens, URLs and certificates.
mod serve_connect;
/// Metrics of `skein serve`, checked by promtool.
mod serve_metrics;
/// JWTs of an OpenID Connect issuer as tokens of `skein serve`.
mod serve_oidc;
/// `skein serve` behind nginx.
mod serve_proxy;
/// A client of `skein serve` that is cut off at any message of a turn, and connects again.
mod serve_reconnect;
/// The REST API of `skein serve`: agents, runs, questions, sessions, two principals.
mod serve_rest;
/// schemathesis against the REST API of `skein serve`.
mod serve_schemathesis;
/// `skein serve` with TLS: HTTP/2, a changed certificate.
mod serve_tls;
/// Two tokens of one principal in one session, and what ends with a token.
mod serve_tokens;
/// Units for systemd, and its sockets.
mod serve_units;
/// Every endpoint of `skein serve` with two principals.
mod serve_walk;
/// The wire suite of `skein acp` over WebSocket and HTTP.
mod serve_wire;
/// The pool: what is started, shared and stopped, and what a child process gets to see.
mod services;
/// `skein sessions`: what is listed, shown, exported, deleted and found.
mod sessions;
/// One owner per session: real replicas through random schedules.
mod ownership;
/// One owner per session: all states of a model.
mod ownership_model;
/// Several servers with one store: clients on any of them, take-over, and what refuses to start.
mod replicas;
/// Rules that principals keep, on servers with one store.
mod shared_rules;
/// One suite for the stores in SQLite and PostgreSQL, and `--store`.
mod shared_store;
/// `skein store`: moves between stores, encryption, retention.
mod store_move;
/// Crates: their reasons, their registry, their second versions.
mod supply_chain;
/// Spans at a real receiver of OpenTelemetry, and the figures of stored sessions.
mod telemetry;
/// `skein token`: created, listed, revoked.
mod tokens;
/// `scripts/soak` for one minute.
mod soak;
/// The tutorials, performed, and the examples that they show.
mod tutorials;
/// Files of earlier and of newer versions.
mod upgrade;
/// Delegated tasks in git worktrees, their merges and their end.
mod worktrees;
/// The test vocabulary.
mod support;
