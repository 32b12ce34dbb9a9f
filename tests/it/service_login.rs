//! Logins at HTTP services, with an authorization server on loopback that checks PKCE and rotates refresh tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::support::http::{HttpServer, Reply, Request, good_server, greeting};
use crate::support::{Run, Sandbox, files_below, read};

/// All tokens of the authorization server begin like this.
const TOKEN: &str = "tok-";

/// The memory of the authorization server, and how it misbehaves.
#[derive(Default)]
struct Grants {
    /// Redirect addresses by client id.
    clients: BTreeMap<String, String>,
    /// The parameters of the authorization request by code.
    codes: BTreeMap<String, BTreeMap<String, String>>,
    access: BTreeSet<String>,
    refresh: BTreeSet<String>,
    /// The access tokens with the right `write`.
    writing: BTreeSet<String>,
    /// The service wants the right `write` for each request.
    wants_writing: bool,
    /// Refresh tokens that were used. A second use ends all logins.
    spent: BTreeSet<String>,
    count: usize,
    refreshes: usize,
    /// Requests to the service with a token that is not valid.
    refused_tokens: usize,
    /// Seconds.
    lifetime: u64,
    /// The issuer in the metadata, if it is a wrong one.
    metadata_issuer: Option<String>,
    /// The issuer in the answer of the browser, if it is a wrong one.
    answer_issuer: Option<String>,
    registers_no_clients: bool,
}

/// An MCP server that wants a token, and the authorization server that issues it.
struct Protected {
    service: HttpServer,
    issuer: String,
    grants: Arc<Mutex<Grants>>,
    _authorization: HttpServer,
}

impl Protected {
    async fn start() -> Self {
        let grants = Arc::new(Mutex::new(Grants { lifetime: 3600, ..Grants::default() }));
        let known = Arc::clone(&grants);
        let authorization = HttpServer::start(move |request| authorize(request, &mut known.lock().unwrap())).await;
        let issuer = authorization.url.trim_end_matches("/mcp").to_owned();
        let (known, named) = (Arc::clone(&grants), issuer.clone());
        let service = HttpServer::start(move |request| serve(request, &named, &mut known.lock().unwrap())).await;
        Self { service, issuer, grants, _authorization: authorization }
    }

    fn grants(&self) -> MutexGuard<'_, Grants> {
        self.grants.lock().unwrap()
    }

    /// How often a refresh token was used, and how often the service refused a token.
    fn counts(&self) -> (usize, usize) {
        let grants = self.grants();
        (grants.refreshes, grants.refused_tokens)
    }

    fn valid_tokens(&self) -> usize {
        let grants = self.grants();
        grants.access.len() + grants.refresh.len()
    }

    /// A machine on which the service is added and not logged in to.
    fn sandbox(&self) -> Sandbox {
        let sandbox = Sandbox::new();
        let run = sandbox.skein(&["services", "add", "web", "--yes", "--no-probe", "--url", &self.service.url]);
        assert_eq!(run.code, 0, "{}", run.whole());
        sandbox
    }
}

/// The origin under which a server was asked.
fn origin(request: &Request) -> String {
    format!("http://{}", request.header("host").unwrap_or_default())
}

fn pairs(text: &str) -> BTreeMap<String, String> {
    url::form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

/// The MCP server.
fn serve(request: &Request, issuer: &str, grants: &mut Grants) -> Reply {
    let own = origin(request);
    if request.line() == ("GET", "/.well-known/oauth-protected-resource/mcp") {
        return Reply::Json(json!({
            "resource": format!("{own}/mcp"), "authorization_servers": [issuer], "scopes_supported": ["read", "write"],
        }));
    }
    let token = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    match token {
        Some(token) if grants.access.contains(token) && grants.wants_writing && !grants.writing.contains(token) => {
            let challenge = "www-authenticate: Bearer error=\"insufficient_scope\", scope=\"write\"\r\n";
            Reply::Full(403, challenge.to_owned(), json!({"error": "insufficient_scope"}))
        }
        Some(token) if grants.access.contains(token) => good_server(request, || greeting(request)),
        token => {
            grants.refused_tokens += usize::from(token.is_some());
            let metadata = format!("{own}/.well-known/oauth-protected-resource/mcp");
            let challenge = format!("www-authenticate: Bearer resource_metadata=\"{metadata}\", scope=\"read\"\r\n");
            Reply::Full(401, challenge, json!({"error": "invalid_token"}))
        }
    }
}

/// The authorization server.
fn authorize(request: &Request, grants: &mut Grants) -> Reply {
    let own = origin(request);
    let (method, target) = request.line();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match (method, path) {
        ("GET", "/.well-known/oauth-authorization-server") => {
            let mut metadata = json!({
                "issuer": grants.metadata_issuer.clone().unwrap_or_else(|| own.clone()),
                "authorization_endpoint": format!("{own}/authorize"),
                "token_endpoint": format!("{own}/token"),
                "revocation_endpoint": format!("{own}/revoke"),
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": true,
            });
            if !grants.registers_no_clients {
                metadata["registration_endpoint"] = json!(format!("{own}/register"));
            }
            Reply::Json(metadata)
        }
        ("POST", "/register") => {
            let redirect = request.body["redirect_uris"][0].as_str().unwrap_or_default();
            if !redirect.starts_with("http://127.0.0.1:") || request.body["token_endpoint_auth_method"] != "none" {
                return Reply::Full(400, String::new(), json!({"error": "invalid_client_metadata"}));
            }
            let id = format!("client-{}", grants.clients.len());
            grants.clients.insert(id.clone(), redirect.to_owned());
            Reply::Full(201, String::new(), json!({"client_id": id}))
        }
        ("GET", "/authorize") => {
            let asked = pairs(query);
            let value = |name: &str| asked.get(name).cloned().unwrap_or_default();
            let redirect = grants.clients.get(&value("client_id")).cloned();
            let is_right = redirect.as_ref().is_some_and(|redirect| *redirect == value("redirect_uri"))
                && value("response_type") == "code"
                && value("code_challenge_method") == "S256"
                && ["read", "read write"].contains(&value("scope").as_str())
                && value("resource").ends_with("/mcp");
            if !is_right {
                return Reply::Status(400);
            }
            grants.count += 1;
            let code = format!("code-{}", grants.count);
            let issuer = grants.answer_issuer.clone().unwrap_or(own);
            let answer = url::form_urlencoded::Serializer::new(String::new())
                .extend_pairs([("code", &code), ("state", &value("state")), ("iss", &issuer)])
                .finish();
            grants.codes.insert(code, asked.clone());
            Reply::Redirect(format!("{}?{answer}", redirect.unwrap_or_default()))
        }
        ("POST", "/token") => issue(&pairs(&request.text), grants),
        ("POST", "/revoke") => {
            let token = pairs(&request.text).remove("token").unwrap_or_default();
            grants.access.remove(&token);
            grants.refresh.remove(&token);
            Reply::Json(json!({}))
        }
        _ => Reply::Status(404),
    }
}

/// The token endpoint.
fn issue(form: &BTreeMap<String, String>, grants: &mut Grants) -> Reply {
    let value = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
    let mut can_write = false;
    let is_granted = match value("grant_type") {
        "authorization_code" => grants.codes.remove(value("code")).is_some_and(|asked| {
            can_write = asked.get("scope").is_some_and(|scope| scope.contains("write"));
            let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(value("code_verifier")));
            let same = |name: &str| asked.get(name).map(String::as_str) == Some(value(name));
            asked.get("code_challenge") == Some(&challenge)
                && same("client_id")
                && same("redirect_uri")
                && same("resource")
        }),
        "refresh_token" => {
            grants.refreshes += 1;
            let token = value("refresh_token").to_owned();
            if grants.spent.contains(&token) {
                // The token was stolen, or two processes used it.
                grants.access.clear();
                grants.refresh.clear();
            }
            grants.spent.insert(token.clone());
            grants.refresh.remove(&token)
        }
        _ => false,
    };
    if !is_granted {
        return Reply::Full(400, String::new(), json!({"error": "invalid_grant"}));
    }
    grants.count += 1;
    let (access, refresh) = (format!("{TOKEN}a{}", grants.count), format!("{TOKEN}r{}", grants.count));
    grants.access.insert(access.clone());
    if can_write {
        grants.writing.insert(access.clone());
    }
    grants.refresh.insert(refresh.clone());
    Reply::Json(json!({
        "access_token": access, "token_type": "Bearer", "refresh_token": refresh, "expires_in": grants.lifetime,
    }))
}

/// Opens a page of an HTTP server. Returns the status, and the address of a redirect.
fn visit(address: &str) -> (u16, Option<String>) {
    let url = url::Url::parse(address).unwrap();
    let (host, port) = (url.host_str().unwrap(), url.port().unwrap());
    let mut stream = TcpStream::connect((host, port)).unwrap();
    let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
    write!(stream, "GET {target} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer.lines().find_map(|line| line.strip_prefix("location: ")).map(str::to_owned))
}

/// Opens the page of a login. Returns the address to which the authorization server sends the browser back.
fn agree(page: &str) -> String {
    let (status, back) = visit(page);
    back.unwrap_or_else(|| panic!("the authorization server answered with {status}: {page}"))
}

/// The browser of a user who agrees.
fn agree_and_return(page: &str) {
    assert_eq!(visit(&agree(page)).0, 200);
}

/// Runs `skein services login web`, with this browser.
fn log_in(sandbox: &Sandbox, flags: &[&str], browser: impl FnOnce(&str)) -> Run {
    let args = [&["services", "login", "web", "--no-browser"][..], flags].concat();
    let mut command = sandbox.command(&args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut stderr = String::new();
    let page = loop {
        let mut line = String::new();
        if lines.read_line(&mut line).unwrap() == 0 {
            break None;
        }
        stderr.push_str(&line);
        if line.starts_with("http://") {
            break Some(line.trim().to_owned());
        }
    };
    if let Some(page) = page {
        browser(&page);
    }
    lines.read_to_string(&mut stderr).unwrap();
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let run = Run { code: output.status.code().unwrap_or(-1), stdout, stderr };
    assert!(!run.whole().contains(TOKEN), "{}", run.whole());
    run
}

fn probe(sandbox: &Sandbox) -> Run {
    let run = sandbox.skein(&["services", "--probe", "web"]);
    assert!(!run.whole().contains(TOKEN), "{}", run.whole());
    run
}

/// Fails if the probe does not list the tool of the server.
fn assert_works(sandbox: &Sandbox) {
    let run = probe(sandbox);
    assert!(run.code == 0 && run.stdout.contains("greet"), "{}", run.whole());
}

fn login_state(sandbox: &Sandbox) -> Value {
    let services = sandbox.skein(&["services", "--json"]).json();
    let all = services.as_array().expect("a list");
    all.iter().find(|service| service["name"] == "web").map(|service| service["login"].clone()).unwrap_or_default()
}

/// The files of Skein that contain a token.
fn files_with_tokens(sandbox: &Sandbox) -> Vec<String> {
    let files = ["config", "data"].map(|folder| files_below(&sandbox.path(folder)));
    let has_token =
        |file: &std::path::PathBuf| fs::read(file).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(TOKEN));
    let found = files.into_iter().flatten().filter(has_token);
    found.map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

/// Runs a test that blocks, while the servers answer on other threads.
async fn blocking(test: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(test).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn login_is_stored_used_and_revoked() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        let before = probe(&sandbox);
        assert_eq!(before.code, 1, "{}", before.whole());
        assert!(before.stderr.contains("it wants a login: run `skein services login web`"), "{}", before.stderr);
        assert_eq!(login_state(&sandbox), Value::Null);

        let run = log_in(&sandbox, &[], agree_and_return);
        assert_eq!(run.code, 0, "{}", run.whole());
        assert!(run.stdout.starts_with(&format!("logged in to `web` at {}", server.issuer)), "{}", run.stdout);
        assert_eq!(files_with_tokens(&sandbox), ["keys.json"]);
        let mode = fs::metadata(sandbox.path("config/keys.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_works(&sandbox);
        let state = login_state(&sandbox);
        assert_eq!((&state["state"], &state["stored_in"]), (&json!("valid"), &json!("file")), "{state:#}");
        let shown = sandbox.skein(&["services"]).stdout;
        assert!(shown.contains(&format!("login: at {}, in the file", server.issuer)), "{shown}");

        let run = sandbox.skein(&["services", "logout", "web"]);
        assert_eq!(run.stdout, "logged out of `web` and revoked its tokens\n", "{}", run.whole());
        assert_eq!(server.valid_tokens(), 0);
        assert!(files_with_tokens(&sandbox).is_empty());
        assert_eq!(probe(&sandbox).code, 1);
        let again = sandbox.skein(&["services", "logout", "web"]);
        assert_eq!((again.code, again.stdout.as_str()), (0, "there was no login of `web`\n"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_token_is_renewed_once_and_stored() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        assert_eq!(log_in(&sandbox, &[], agree_and_return).code, 0);
        server.grants().access.clear();
        assert_works(&sandbox);
        assert_eq!(server.counts(), (1, 1));
        // The renewed login is stored, so the next process uses it as it is.
        assert_works(&sandbox);
        assert_eq!(server.counts(), (1, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn token_is_renewed_before_it_expires() {
    let server = Protected::start().await;
    server.grants().lifetime = 0;
    blocking(move || {
        let sandbox = server.sandbox();
        assert_eq!(log_in(&sandbox, &[], agree_and_return).code, 0);
        server.grants().lifetime = 3600;
        assert_works(&sandbox);
        assert_eq!(server.counts(), (1, 0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_do_not_use_a_refresh_token_twice() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        assert_eq!(log_in(&sandbox, &[], agree_and_return).code, 0);
        server.grants().access.clear();
        std::thread::scope(|scope| {
            let probes: Vec<_> = (0..4).map(|_| scope.spawn(|| assert_works(&sandbox))).collect();
            probes.into_iter().for_each(|probe| probe.join().unwrap());
        });
        assert_eq!(server.grants().refreshes, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_login_asks_for_a_new_one() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        assert_eq!(log_in(&sandbox, &[], agree_and_return).code, 0);
        server.grants().access.clear();
        server.grants().refresh.clear();
        let run = probe(&sandbox);
        assert_eq!(run.code, 1, "{}", run.whole());
        let expected = "its login is no longer valid: run `skein services login web`";
        assert!(run.stderr.contains(expected), "{}", run.stderr);
        assert_eq!(log_in(&sandbox, &[], agree_and_return).code, 0);
        assert_works(&sandbox);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_without_enough_rights_asks_for_a_wider_one() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        assert_eq!(log_in(&sandbox, &[], agree_and_return).code, 0);
        assert_works(&sandbox);
        server.grants().wants_writing = true;
        for _ in 0..2 {
            let run = probe(&sandbox);
            assert_eq!(run.code, 1, "{}", run.whole());
            let expected =
                "its login lacks the rights `write`, which this request needs: run `skein services login web`";
            assert!(run.stderr.contains(expected), "{}", run.stderr);
        }
        assert_eq!(server.counts(), (0, 0), "a token that lacks rights is not renewed");
        let run = log_in(&sandbox, &[], |page| {
            assert!(page.contains("scope=read+write"), "it keeps its rights and gets the new one: {page}");
            agree_and_return(page);
        });
        assert_eq!(run.code, 0, "{}", run.whole());
        assert_works(&sandbox);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_with_a_wrong_state_is_ignored() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        let run = log_in(&sandbox, &[], |page| {
            let right = agree(page);
            let (address, query) = right.split_once('?').unwrap();
            for wrong in [format!("{address}?code=code-1&state=guess"), address.to_owned()] {
                assert_eq!(visit(&wrong).0, 400, "{wrong}");
            }
            assert_eq!(visit(&address.replace("/callback", "/other")).0, 404);
            assert_eq!(visit(&format!("{address}?{query}")).0, 200);
        });
        assert_eq!(run.code, 0, "{}", run.whole());
        assert_works(&sandbox);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_issuer_is_refused_and_nothing_stored() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        server.grants().metadata_issuer = Some("https://other.example".to_owned());
        let run = log_in(&sandbox, &[], |page| panic!("no page is shown: {page}"));
        assert_eq!(run.code, 1, "{}", run.whole());
        assert!(run.stderr.contains("the issuer is `https://other.example`"), "{}", run.stderr);
        server.grants().metadata_issuer = None;
        server.grants().answer_issuer = Some("https://other.example".to_owned());
        let run = log_in(&sandbox, &[], agree_and_return);
        assert_eq!(run.code, 1, "{}", run.whole());
        assert!(run.stderr.contains("the issuer is `https://other.example`"), "{}", run.stderr);
        assert!(files_with_tokens(&sandbox).is_empty());
        assert!(server.grants().access.is_empty(), "the code went to no token endpoint");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn declined_or_missing_answer_stores_nothing() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        let run = log_in(&sandbox, &[], |page| {
            let back = agree(page).replace("code=", "error=access_denied&other=");
            assert_eq!(visit(&back).0, 200);
        });
        assert_eq!(run.code, 1, "{}", run.whole());
        assert!(run.stderr.contains("the login was refused: access_denied"), "{}", run.stderr);
        let run = log_in(&sandbox, &["--time-limit", "1s"], |_| {});
        assert_eq!(run.code, 1, "{}", run.whole());
        assert!(run.stderr.contains("no answer from the browser within 1 s"), "{}", run.stderr);
        assert!(files_with_tokens(&sandbox).is_empty());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn login_token_goes_to_no_other_origin() {
    let server = Protected::start().await;
    let other = HttpServer::start(|request| good_server(request, || greeting(request))).await;
    let to = other.url.clone();
    let elsewhere = HttpServer::start(move |_| Reply::Redirect(to.clone())).await;
    blocking(move || {
        let sandbox = server.sandbox();
        assert_eq!(log_in(&sandbox, &[], agree_and_return).code, 0);
        let manifest = read(sandbox.path("config/services/web.yaml"));
        for address in [&other.url, &elsewhere.url] {
            sandbox.write("config/services/web.yaml", &manifest.replace(&server.service.url, address));
            drop(probe(&sandbox));
            assert_eq!(login_state(&sandbox)["state"], json!("other-address"));
        }
        // A login for the redirecting origin itself does not follow the redirect either.
        let text = read(sandbox.path("config/keys.json"));
        sandbox.write("config/keys.json", &text.replace(&server.service.url, &elsewhere.url));
        drop(probe(&sandbox));
        let asked = |server: &HttpServer| server.requests().iter().any(|request| request.head.contains(TOKEN));
        assert!(!other.requests().is_empty() && !asked(&other));
        assert!(asked(&elsewhere), "the last probe sent the token to its own origin");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn added_service_that_wants_a_login_says_so() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = Sandbox::new();
        let run = sandbox.skein(&["services", "add", "web", "--yes", "--url", &server.service.url]);
        assert_eq!(run.code, 1, "{}", run.whole());
        let expected = "add it with --no-probe, then run `skein services login web`";
        assert!(run.stderr.contains("`web` wants a login") && run.stderr.contains(expected), "{}", run.stderr);
        assert!(!sandbox.path("config/services/web.yaml").exists());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_registration_needs_a_client_id() {
    let server = Protected::start().await;
    server.grants().registers_no_clients = true;
    blocking(move || {
        let sandbox = server.sandbox();
        let run = log_in(&sandbox, &[], |page| panic!("no page is shown: {page}"));
        assert_eq!(run.code, 1, "{}", run.whole());
        assert!(run.stderr.contains("--client-id"), "{}", run.stderr);
        let run = log_in(&sandbox, &["--client-id", "mine"], |page| {
            let back = pairs(page.split_once('?').unwrap().1).remove("redirect_uri").unwrap();
            server.grants().clients.insert("mine".to_owned(), back);
            agree_and_return(page);
        });
        assert_eq!(run.code, 0, "{}", run.whole());
        assert_works(&sandbox);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_is_opened_without_keys_in_its_environment() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        let (page, variables) = (sandbox.path("page"), sandbox.path("variables"));
        let script = format!(
            "#!/bin/sh\nenv > {}\nprintf %s \"$1\" > {}.new\nmv {}.new {}\n",
            variables.display(),
            page.display(),
            page.display(),
            page.display()
        );
        sandbox.write("bin/xdg-open", &script);
        fs::set_permissions(sandbox.path("bin/xdg-open"), fs::Permissions::from_mode(0o755)).unwrap();
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = [sandbox.path("bin")].into_iter().chain(std::env::split_paths(&inherited));
        let mut command = sandbox.command(&["services", "login", "web", "--json"]);
        command.env("PATH", std::env::join_paths(path).unwrap()).env("DISPLAY", ":7").env("OPENAI_API_KEY", "s3cret");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = std::time::Instant::now();
        while !page.exists() {
            assert!(begun.elapsed().as_secs() < 60, "no browser was opened");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        agree_and_return(&read(&page));
        let output = child.wait_with_output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&answer["name"], &answer["issuer"]), (&json!("web"), &json!(server.issuer)), "{answer:#}");
        let variables = read(&variables);
        assert!(variables.contains("DISPLAY=:7") && !variables.contains("s3cret"), "{variables}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_service_loses_its_login() {
    let server = Protected::start().await;
    blocking(move || {
        let sandbox = server.sandbox();
        assert_eq!(log_in(&sandbox, &[], agree_and_return).code, 0);
        let run = sandbox.skein(&["services", "remove", "web"]);
        assert!(run.stderr.contains("the login of `web` was removed too"), "{}", run.whole());
        assert!(files_with_tokens(&sandbox).is_empty());
    })
    .await;
}

#[test]
fn services_that_have_no_login_say_why() {
    let sandbox = Sandbox::new();
    let url = "http://api.example.invalid/mcp";
    let header = ["--header", "Authorization: Bearer ${env:TOKEN}"];
    for (name, flags) in [("plain", &[][..]), ("own", &header[..])] {
        let args = [&["services", "add", name, "--yes", "--no-probe", "--url", url][..], flags].concat();
        assert_eq!(sandbox.skein(&args).code, 0);
    }
    for (name, code, expected) in [
        ("memory", 2, "is not an HTTP service"),
        ("own", 2, "has its own `Authorization` header"),
        ("plain", 1, "it must begin with https://"),
        ("nowhere", 2, "there is no service `nowhere`"),
    ] {
        let run = sandbox.skein(&["services", "login", name, "--no-browser"]);
        assert_eq!(run.code, code, "{}", run.whole());
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}
