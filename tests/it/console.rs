//! The console of `skein serve` on the wire: who gets in, what a request must show, and whose data it reaches.

use serde_json::Value;

use crate::serve_acp::store_session;
use crate::support::Sandbox;
use crate::support::model::{Answer, ScriptedModel, asked, has_result};
use crate::support::serve::{HttpAnswer, Server, eventually, token};

pub(crate) const SAME_SITE: (&str, &str) = ("sec-fetch-site", "same-origin");
const SCRIPT: (&str, &str) = ("x-console-script", "1");

/// A browser that is logged in.
pub(crate) struct Browser<'a> {
    server: &'a Server,
    pub(crate) cookie: String,
    csrf: String,
}

impl<'a> Browser<'a> {
    pub(crate) fn log_in(server: &'a Server, token: &str) -> Self {
        let answer = post_login(server, token);
        assert_eq!(answer.status, 303, "{answer:?}");
        Self::with_cookie(server, &answer)
    }

    /// Logs in as `local`, with the line that `skein console --no-browser` prints.
    pub(crate) fn log_in_with_code(server: &'a Server, line: &str) -> Self {
        let code = line.rsplit('#').next().expect("a code");
        let answer = server.request("POST", "/console/login/code", &[SAME_SITE], &form(&[("code", code)]));
        assert_eq!(answer.status, 204, "{answer:?}");
        Self::with_cookie(server, &answer)
    }

    fn with_cookie(server: &'a Server, answer: &HttpAnswer) -> Self {
        let cookie = answer.header("set-cookie").expect("a cookie").split(';').next().unwrap().to_owned();
        let mut browser = Self { server, cookie, csrf: String::new() };
        let page = browser.get("/console/sessions");
        assert_eq!(page.status, 200, "{page:?}");
        let csrf = page.body.split("name=\"csrf-token\" content=\"").nth(1).and_then(|rest| rest.split('"').next());
        csrf.expect("a CSRF token").clone_into(&mut browser.csrf);
        browser
    }

    pub(crate) fn get(&self, path: &str) -> HttpAnswer {
        self.server.request("GET", path, &[("cookie", &self.cookie)], "")
    }

    /// Posts a form as a script of a page does.
    pub(crate) fn post(&self, path: &str, fields: &[(&str, &str)]) -> HttpAnswer {
        let form = form(&[fields, &[("csrf", self.csrf.as_str())]].concat());
        self.server.request("POST", path, &[("cookie", &self.cookie), SAME_SITE, SCRIPT], &form)
    }

    /// Opens a session; its path.
    fn open_session(&self, sandbox: &Sandbox, prompt: &str) -> String {
        let folder = sandbox.path("project").to_string_lossy().into_owned();
        let fields = [("mode", "goose/assistant"), ("folder", folder.as_str()), ("prompt", prompt)];
        let answer = self.post("/console/sessions", &fields);
        assert_eq!(answer.status, 204, "{answer:?}");
        answer.header("x-console-next").expect("the page of the session").to_owned()
    }
}

pub(crate) fn form(fields: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

fn post_login(server: &Server, token: &str) -> HttpAnswer {
    server.request("POST", "/console/login", &[SAME_SITE], &form(&[("token", token), ("next", "/console/graph")]))
}

pub(crate) fn start(sandbox: &Sandbox, model: &ScriptedModel) -> Server {
    Server::launch(model.offered_to(sandbox.command(&["serve", "--listen", "127.0.0.1:0"])))
}

pub(crate) fn echo() -> ScriptedModel {
    ScriptedModel::new(|request| Answer::Says(vec!["You said ".to_owned(), asked(request)]))
}

/// Asks to write a file, and then says so.
fn writer() -> ScriptedModel {
    ScriptedModel::new(|request| match has_result(request) {
        true => Answer::Says(vec!["done".to_owned()]),
        false => {
            let arguments = serde_json::json!({"path": "new.txt", "content": "new\n"});
            Answer::Calls { id: "c1", tool: "developer__write_file", arguments }
        }
    })
}

fn token_for(sandbox: &Sandbox, name: &str) -> String {
    token(sandbox, name, &["--root", &sandbox.path("project").to_string_lossy(), "--approval", "ask"])
}

#[test]
fn the_first_page_leads_to_the_login_and_back() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let redirect = |path: &str| {
        let answer = server.request("GET", path, &[], "");
        (answer.status, answer.header("location").unwrap_or_default().to_owned())
    };
    assert_eq!(redirect("/"), (303, "/console".to_owned()));
    assert_eq!(
        redirect("/console/sessions?q=a"),
        (303, "/console/login?next=%2Fconsole%2Fsessions%3Fq%3Da".to_owned())
    );
    let login = server.request("GET", "/console/login?next=https://evil.test", &[], "");
    assert!(login.status == 200 && login.body.contains("value=\"/console/sessions\""), "{login:?}");
    let policy = login.header("content-security-policy").unwrap();
    assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
    let referrer = login.header("referrer-policy");
    assert_eq!(referrer, Some("same-origin"), "browsers send the form with this `Origin`, and no address elsewhere");
    assert_eq!(server.request("GET", "/console/alive", &[SCRIPT], "").status, 401);
    let referer = ("referer", "http://127.0.0.1/console/manifests/edit?file=config.yaml");
    let sent = server.request("POST", "/console/manifests/preview", &[SAME_SITE, referer], "text=x");
    let page = "/console/login?next=%2Fconsole%2Fmanifests%2Fedit%3Ffile%3Dconfig.yaml";
    assert_eq!((sent.status, sent.header("location")), (303, Some(page)), "back to the form: {sent:?}");
    assert_eq!(server.request("POST", "/console/manifests/preview", &[referer], "text=x").status, 401);
    assert_eq!(server.request("GET", "/console/assets/console.js", &[], "").status, 200, "an asset is public");
    assert_eq!(server.request("GET", "/console/assets/none.js", &[], "").status, 404);
}

#[test]
fn a_cookie_is_of_the_console_alone() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token_for(&sandbox, "ana");
    let answer = post_login(&server, &token);
    assert_eq!((answer.status, answer.header("location")), (303, Some("/console/graph")), "{answer:?}");
    let cookie = answer.header("set-cookie").unwrap();
    for word in ["; Path=/console;", "HttpOnly", "SameSite=Strict"] {
        assert!(cookie.contains(word), "{word} in {cookie}");
    }
    assert!(!cookie.contains("Secure"), "without TLS a browser would not send it");
    let browser = Browser::log_in(&server, &token);
    for path in ["/agents", "/acp", "/metrics", "/sessions/x", "/mcp/agents"] {
        assert_eq!(browser.get(path).status, 401, "{path}");
    }
    for path in ["/console/sessions", "/console/approvals", "/console/graph", "/console/graph.svg", "/console/apps"] {
        assert_eq!(browser.get(path).status, 200, "{path}");
    }
    assert_eq!(browser.get("/console/modes/goose/assistant").status, 200);
    assert_eq!(browser.get("/console/modes/goose/judge").status, 404, "an internal mode");
    // A token in the header is no login.
    assert_eq!(server.get("/console/sessions", &token).status, 303);
}

#[test]
fn a_post_needs_the_csrf_token_and_this_site() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let browser = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    let send = |headers: &[(&str, &str)], csrf: &str| {
        let headers = [headers, &[("cookie", browser.cookie.as_str())]].concat();
        server.request("POST", "/console/logout", &headers, &form(&[("csrf", csrf)])).status
    };
    assert_eq!(send(&[SAME_SITE], ""), 403);
    assert_eq!(send(&[SAME_SITE], "0000"), 403);
    for site in ["cross-site", "same-site", "none"] {
        assert_eq!(send(&[("sec-fetch-site", site)], &browser.csrf), 403, "{site}");
    }
    assert_eq!(send(&[], &browser.csrf), 403, "no browser leaves the header out");
    let other = server.request("POST", "/console/login", &[("sec-fetch-site", "cross-site")], "token=x");
    assert_eq!(other.status, 403);
    assert_eq!(browser.get("/console/sessions").status, 200, "nothing has changed");
    assert_eq!(send(&[SAME_SITE], &browser.csrf), 303);
    assert_eq!(browser.get("/console/sessions").status, 303, "the cookie has ended");
}

#[test]
fn wrong_logins_say_why_and_are_limited() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let long = post_login(&server, &"x".repeat(70_000));
    assert!(long.status == 413 && long.body.contains("too long for a token"), "{long:?}");
    for _ in 0..5 {
        let wrong = post_login(&server, "skein_000000000000_0000");
        assert!(wrong.status == 401 && wrong.body.contains("unknown, revoked or expired"), "{wrong:?}");
        assert_eq!(wrong.header("set-cookie"), None);
    }
    let refused = post_login(&server, &token_for(&sandbox, "ana"));
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some() && refused.body.contains("Too many attempts"), "{refused:?}");
    let code = server.request("POST", "/console/login/code", &[SAME_SITE], "code=x");
    assert_eq!(code.status, 429, "codes are counted with tokens");
}

/// All requests come from the proxy, which adds the address of its client to the header.
#[test]
fn failed_logins_behind_a_proxy_count_per_client() {
    let sandbox = Sandbox::new();
    let attempt = |server: &Server, forwarded: &str| {
        let headers = [SAME_SITE, ("x-forwarded-for", forwarded)];
        server.request("POST", "/console/login", &headers, &form(&[("token", "skein_000000000000_0000")])).status
    };
    let server = Server::start(&sandbox, &["--behind-proxy", "--public-url", "https://skein.example.com"]);
    for number in 0..5 {
        assert_eq!(attempt(&server, &format!("198.51.100.{number}, 203.0.113.1")), 401, "a client lies about others");
    }
    assert_eq!(attempt(&server, "203.0.113.1"), 429);
    assert_eq!(attempt(&server, "203.0.113.2"), 401, "another client need not wait");
    drop(server);
    // Without the flag, a client that invents addresses gains nothing.
    let server = Server::start(&sandbox, &[]);
    let answers: Vec<_> = (0..6).map(|number| attempt(&server, &format!("203.0.113.{number}"))).collect();
    assert_eq!(answers, [401, 401, 401, 401, 401, 429]);
}

#[test]
fn a_code_logs_in_once_as_local() {
    let sandbox = Sandbox::new();
    let mut server = Server::launch(sandbox.command(&["console", "--no-browser"]));
    let line = server.line();
    let code = line.rsplit('#').next().unwrap().to_owned();
    let exchange = || server.request("POST", "/console/login/code", &[SAME_SITE], &form(&[("code", &code)]));
    let first = exchange();
    assert_eq!(first.status, 204, "{first:?}");
    let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let page = server.request("GET", "/console/sessions", &[("cookie", &cookie)], "");
    assert!(page.status == 200 && page.body.contains("<span>local</span>"), "{page:?}");
    let second = exchange();
    assert!(second.status == 401 && second.body.contains("used already"), "{second:?}");
}

#[test]
fn a_revoked_token_ends_its_logins() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let token = token_for(&sandbox, "ana");
    let browser = Browser::log_in(&server, &token);
    let id = token.split('_').nth(1).unwrap().to_owned();
    assert_eq!(sandbox.skein(&["token", "revoke", &id]).code, 0);
    eventually("the login has ended", || browser.get("/console/sessions").status == 303);
}

#[test]
fn a_session_is_opened_prompted_listed_and_exported() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let browser = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    let path = browser.open_session(&sandbox, "good morning");
    let news = || browser.get(&format!("{path}/entries?after=0")).json();
    eventually("the turn has ended", || news()["running"] == false && news()["html"].to_string().contains("You said"));
    let first = news();
    let last = first["last"].as_u64().unwrap();
    assert_eq!(browser.post(&format!("{path}/prompt"), &[("prompt", "second")]).status, 204);
    eventually("the second turn has ended", || {
        let later = browser.get(&format!("{path}/entries?after={last}")).json();
        later["running"] == false && later["html"].to_string().contains("second")
    });
    let later = browser.get(&format!("{path}/entries?after={last}")).json();
    assert!(!later["html"].to_string().contains(">good morning<"), "only what is new: {later}");
    let listed = browser.get("/console/sessions?mode=goose%2Fassistant&state=idle").body;
    assert!(listed.contains(&format!("href=\"{path}\"")), "{listed}");
    let is_listed = |query: &str| browser.get(&format!("/console/sessions?{query}")).body.contains(&path);
    assert!(is_listed("mode=goose%2F*"), "all modes of an agent");
    assert!(!is_listed("mode=coding%2Fqa") && !is_listed("mode=coding%2F*") && !is_listed("state=running"));
    assert!(browser.get("/console/sessions?q=second").body.contains(&format!("{path}?before=")));
    assert!(is_listed("q=second&mode=goose%2F*&state=idle"), "filters apply to a search");
    assert!(!is_listed("q=second&mode=coding%2F*") && !is_listed("q=second&state=waiting"));
    let export = browser.get(&format!("{path}/export?format=markdown"));
    assert!(export.header("content-disposition").unwrap().contains("attachment") && export.body.contains("second"));
    assert!(browser.get(&format!("{path}/export?format=json")).json()["events"].is_array());
    assert_eq!(browser.get(&format!("{path}/export?format=odd")).status, 422);
    assert_eq!(browser.post(&format!("{path}/cancel"), &[]).status, 409, "no turn runs");
    assert_eq!(browser.post(&format!("{path}/prompt"), &[("prompt", " ")]).status, 422);
    assert_eq!(browser.post(&format!("{path}/settings"), &[("mode", "no/mode")]).status, 422);
    assert_eq!(browser.post(&format!("{path}/settings"), &[("approval", "auto")]).status, 403, "looser than the token");
    assert_eq!(browser.post(&format!("{path}/settings"), &[("approval", "deny")]).status, 204);
    assert!(browser.get(&path).body.contains("value=\"deny\" selected"));
}

/// The page of a session lists the sessions that work for it, and their pages lead back.
#[test]
fn delegated_tasks_are_a_tree() {
    let sandbox = Sandbox::new();
    let model = ScriptedModel::new(|request| {
        let is_orchestrator = request["messages"][0].to_string().contains("You are orchestrator in mode auto");
        match (is_orchestrator, has_result(request)) {
            (true, false) => {
                let task = serde_json::json!({"task": "say hello", "agent": "coding", "mode": "pm"});
                Answer::Calls { id: "d1", tool: "summon__delegate", arguments: task }
            }
            (true, true) => Answer::Says(vec!["joined".to_owned()]),
            (false, _) => Answer::Says(vec!["Report.".to_owned()]),
        }
    });
    let server = start(&sandbox, &model);
    let browser = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    let folder = sandbox.path("project").to_string_lossy().into_owned();
    let prompt = "@orchestrator have someone say hello";
    let fields = [("mode", "orchestrator/auto"), ("folder", folder.as_str()), ("prompt", prompt)];
    let opened = browser.post("/console/sessions", &fields);
    let parent = opened.header("x-console-next").unwrap_or_else(|| panic!("{opened:?}")).to_owned();
    let entries = || browser.get(&format!("{parent}/entries?after=0")).json();
    eventually("the turn has ended", || entries()["running"] == false);
    let tree = entries()["tasks"].as_str().unwrap().to_owned();
    assert!(tree.contains("coding/pm") && tree.contains("state idle"), "{tree}");
    let child = tree.split("href=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let page = browser.get(child);
    assert!(page.body.contains("Report.") && page.body.contains(&format!("href=\"{parent}\"")), "{page:?}");
    let refused = browser.post(&format!("{child}/prompt"), &[("prompt", "and now?")]);
    assert_eq!(refused.status, 409, "its parent is prompted instead: {refused:?}");
    let list = browser.get("/console/sessions").body;
    assert!(list.contains(&parent) && !list.contains(child), "the list has sessions of the person");
}

#[test]
fn a_folder_outside_the_token_is_refused() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let browser = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    for (folder, status) in [("/etc", 403), ("/no/such/folder", 403), ("relative", 422), ("", 422)] {
        let fields = [("mode", "goose/assistant"), ("folder", folder), ("prompt", "x")];
        assert_eq!(browser.post("/console/sessions", &fields).status, status, "{folder}");
    }
    let bare = Browser::log_in(&server, &token(&sandbox, "ben", &[]));
    assert!(
        bare.get("/console/sessions").body.contains("Your token has no folder. The session works in an empty one.")
    );
}

#[test]
fn sessions_and_requests_of_others_do_not_exist() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &writer());
    let ana = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    let ben = Browser::log_in(&server, &token_for(&sandbox, "ben"));
    let path = ana.open_session(&sandbox, "write it");
    eventually("the session asks", || ana.get("/console/approvals/rows").body.contains("data-state=\"open\""));
    let unknown = ben.get("/console/sessions/aaaaaaaaaaaaaaaaaaaa").timeless();
    assert_eq!(unknown.status, 404);
    assert_eq!(ben.get(&path).timeless(), unknown);
    for suffix in ["entries", "export"] {
        assert_eq!(ben.get(&format!("{path}/{suffix}")).status, 404, "{suffix}");
    }
    for suffix in ["prompt", "cancel", "settings"] {
        let fields = [("prompt", "x"), ("approval", "deny")];
        assert_eq!(ben.post(&format!("{path}/{suffix}"), &fields).status, 404, "{suffix}");
    }
    assert!(!ben.get("/console/approvals/rows").body.contains("data-request"));
    assert_eq!(ben.post("/console/approvals/0", &[("answer", "allow")]).status, 404);
    assert!(!sandbox.path("project/new.txt").exists());
    assert!(ana.get("/console/sessions?state=waiting").body.contains(&path));
    assert!(!ben.get("/console/sessions?state=waiting").body.contains(&path));
}

#[test]
fn the_first_answer_counts_and_a_second_gets_it() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &writer());
    let token = token_for(&sandbox, "ana");
    let (one, other) = (Browser::log_in(&server, &token), Browser::log_in(&server, &token));
    let path = one.open_session(&sandbox, "write it");
    let rows = || one.get("/console/approvals/rows").body;
    eventually("the session asks", || rows().contains("data-state=\"open\""));
    let shown = rows();
    assert!(shown.contains("developer__write_file") && shown.contains("new.txt") && shown.contains("+new"), "{shown}");
    let number = shown.split("data-request=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let answer =
        |browser: &Browser<'_>, word: &str| browser.post(&format!("/console/approvals/{number}"), &[("answer", word)]);
    assert_eq!(answer(&other, "perhaps").status, 422);
    assert_eq!(answer(&one, "allow").status, 204);
    let late = answer(&other, "reject");
    assert!(late.status == 409 && late.body.contains("allowed once in the console"), "{late:?}");
    eventually("the file is written", || sandbox.path("project/new.txt").exists());
    eventually("the turn has ended", || one.get(&format!("{path}/entries?after=0")).json()["running"] == false);
    assert!(rows().contains("data-state=\"closed\""));
}

/// Both tokens are of one principal. The second one may only read, in one mode.
#[test]
fn a_token_does_not_raise_the_limits_of_another_one() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &writer());
    let ana = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    let root = sandbox.path("project").to_string_lossy().into_owned();
    let limits = ["--root", root.as_str(), "--approval", "read-only", "--modes", "goose/assistant"];
    let reader = Browser::log_in(&server, &token(&sandbox, "ana", &limits));
    let path = ana.open_session(&sandbox, "write it");
    let rows = || reader.get("/console/approvals/rows").body;
    eventually("the session asks", || rows().contains("data-state=\"open\""));
    let settings = format!("{path}/settings");
    assert_eq!(reader.post(&settings, &[("approval", "ask")]).status, 403);
    assert_eq!(reader.post(&settings, &[("mode", "coding/qa")]).status, 422);
    let number = rows().split("data-request=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let answer = |browser: &Browser<'_>| browser.post(&format!("/console/approvals/{number}"), &[("answer", "allow")]);
    assert_eq!(answer(&reader).status, 403);
    assert!(!sandbox.path("project/new.txt").exists());
    assert_eq!(answer(&ana).status, 204);
    eventually("the file is written", || sandbox.path("project/new.txt").exists());
}

/// The console answers a request of a run, which the REST API opened.
#[test]
fn the_console_answers_for_other_clients() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &writer());
    let token = token_for(&sandbox, "ana");
    let browser = Browser::log_in(&server, &token);
    let body = r#"{"agent_name": "goose-assistant", "mode": "async",
        "input": [{"role": "user", "parts": [{"content": "write it"}]}]}"#;
    let authorization = crate::support::serve::bearer(&token);
    let run = server.request("POST", "/runs", &[("authorization", &authorization)], body).json();
    let run = format!("/runs/{}", run["run_id"].as_str().unwrap());
    let rows = || browser.get("/console/approvals/rows").body;
    eventually("the run asks", || rows().contains("data-state=\"open\""));
    let number = rows().split("data-request=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    assert_eq!(browser.post(&format!("/console/approvals/{number}"), &[("answer", "reject")]).status, 204);
    eventually("the run has ended", || server.get(&run, &token).json()["status"] == "completed");
    assert!(!sandbox.path("project/new.txt").exists());
}

#[test]
fn the_stream_of_a_browser_ends_with_its_login() {
    use std::io::{Read as _, Write as _};
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let browser = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    let path = browser.open_session(&sandbox, "good morning");
    let id = path.rsplit('/').next().unwrap();
    eventually("the turn has ended", || browser.get(&format!("{path}/entries?after=0")).json()["running"] == false);
    let mut stream = server.connect();
    let head = format!("GET /console/events?watch={id}&watch=none HTTP/1.1\r\nhost: {}\r\n", server.address);
    write!(stream, "{head}cookie: {}\r\nconnection: close\r\n\r\n", browser.cookie).unwrap();
    let mut seen = String::new();
    let mut read_until = |word: &str| {
        while !seen.contains(word) {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the stream ended before {word}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    read_until("\"kind\":\"approvals\"");
    read_until("\"kind\":\"snapshot\"");
    assert_eq!(browser.post(&format!("{path}/prompt"), &[("prompt", "again")]).status, 204);
    read_until("\"kind\":\"text\"");
    read_until("\"kind\":\"ended\"");
    assert_eq!(browser.post("/console/logout", &[]).status, 303);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the stream ends");
}

/// An event stream of the console.
struct StreamText {
    stream: std::net::TcpStream,
}

impl StreamText {
    fn open(browser: &Browser<'_>, query: &str) -> Self {
        use std::io::Write as _;
        let mut stream = browser.server.connect();
        let head = format!("GET /console/events?{query} HTTP/1.1\r\nhost: {}\r\n", browser.server.address);
        write!(stream, "{head}cookie: {}\r\nconnection: close\r\n\r\n", browser.cookie).unwrap();
        Self { stream }
    }

    /// Reads until all words have come, in any order. Returns what was read.
    fn read_until(&mut self, words: &[&str]) -> String {
        use std::io::Read as _;
        let mut seen = String::new();
        while !words.iter().all(|word| seen.contains(word)) {
            let mut buffer = [0; 4096];
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the stream ended before {words:?}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        seen
    }
}

/// A stream begins with a snapshot of each session that it watches.
#[tokio::test]
async fn a_stream_watches_a_limited_number_of_sessions() {
    const MAX_WATCHED: usize = 64;
    let sandbox = Sandbox::new();
    let mut ids = Vec::new();
    for _ in 0..MAX_WATCHED {
        ids.push(store_session(&sandbox, "ana", 1, 1).await);
    }
    let server = start(&sandbox, &echo());
    let browser = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    let path = browser.open_session(&sandbox, "good morning");
    eventually("the turn has ended", || browser.get(&format!("{path}/entries?after=0")).json()["running"] == false);
    ids.insert(0, path.rsplit('/').next().unwrap().to_owned());
    let query: Vec<_> = ids.iter().map(|id| format!("watch={id}")).collect();
    let mut stream = StreamText::open(&browser, &query.join("&"));
    let mut seen = stream.read_until(&["\"kind\":\"snapshot\""]);
    // The end of a turn comes after all snapshots.
    assert_eq!(browser.post(&format!("{path}/prompt"), &[("prompt", "again")]).status, 204);
    seen.push_str(&stream.read_until(&["\"kind\":\"ended\""]));
    let updates = seen.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let snapshots = updates.filter(|update| update["kind"] == "snapshot");
    let watched: Vec<_> = snapshots.map(|update| update["session"].as_str().unwrap().to_owned()).collect();
    assert_eq!(watched, ids[..MAX_WATCHED]);
}

/// A page that asked again and again would use up the limit of its token.
#[test]
fn open_pages_get_changes_without_requests() {
    let sandbox = Sandbox::new();
    let manifest = |description: &str| {
        let http = "transport: {http: {url: 'http://127.0.0.1:9/'}}";
        format!("version: 1\nkind: service\nname: web\ndescription: {description}\n{http}\n")
    };
    sandbox.write("config/services/web.yaml", &manifest("Reads pages."));
    let server = start(&sandbox, &echo());
    let root = sandbox.path("project").to_string_lossy().into_owned();
    let token = token(&sandbox, "chief", &["--admin", "--root", &root, "--requests", "4/m"]);
    let start_time = std::time::Instant::now();
    // The first of four requests.
    let browser = Browser::log_in(&server, &token);
    let shape = |text: &str, before: &str| text.split(before).nth(1).unwrap().split('"').next().unwrap().to_owned();
    let before = shape(&browser.get("/console/graph").body, "data-shape=\"");
    let mut stream = StreamText::open(&browser, "page=graph&page=services%2Fweb");
    let shown = format!("\"shape\":\"{before}\"");
    stream.read_until(&[&shown, "\"kind\":\"service\"", "It was not started yet.", "service-log"]);
    // At once, so that no half of the file is read.
    sandbox.write("web.yaml", &manifest("Reads more pages."));
    std::fs::rename(sandbox.path("web.yaml"), sandbox.path("config/services/web.yaml")).unwrap();
    let after = shape(&stream.read_until(&["\"kind\":\"graph\"", "\"services\":"]), "\"shape\":\"");
    assert_ne!(before, after);
    let news = browser.get(&format!("/console/graph/states?known={before}"));
    assert!(news.status == 200 && news.body.contains("Reads more pages."), "the fourth request: {news:?}");
    // The limit counts the requests of one minute.
    let last = browser.get("/console/graph").status;
    if start_time.elapsed().as_secs() < 50 {
        assert_eq!(last, 429);
    }
}

/// Other principals use the processes of services, so only an administrator follows them.
#[test]
fn a_stream_leaves_out_pages_that_a_token_may_not_see() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let browser = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    let mut stream = StreamText::open(&browser, "page=services%2Fdeveloper&page=graph");
    let mut seen = stream.read_until(&["\"kind\":\"graph\"", "\"services\":[]"]);
    // News of the service could also come after the graph, within the next looks.
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(browser.post("/console/logout", &[]).status, 303);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut stream.stream, &mut rest).expect("the stream ends");
    seen.push_str(&String::from_utf8_lossy(&rest));
    assert!(!seen.contains("\"kind\":\"service\""), "{seen}");
}

#[test]
fn an_administrator_tests_rules_and_sees_tokens() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let ana = Browser::log_in(&server, &token_for(&sandbox, "ana"));
    assert_eq!(ana.get("/console/rules").status, 403);
    assert!(!ana.get("/console/sessions").body.contains("/console/rules"));
    let root = sandbox.path("project").to_string_lossy().into_owned();
    let chief = Browser::log_in(&server, &token(&sandbox, "chief", &["--admin", "--root", &root]));
    let test = |arguments: &str| {
        let fields = [("mode", "goose/assistant"), ("tool", "developer__shell"), ("arguments", arguments)];
        chief.get(&format!("/console/rules?{}", form(&fields))).body
    };
    let asked = test(r#"{"command": "rm -r x"}"#);
    assert!(asked.contains("id=\"decision\"") && asked.contains("The call "), "{asked}");
    assert!(asked.contains("<td>ana</td>"), "the tokens of all principals");
    assert!(test("[1]").contains("no JSON object"));
}

#[test]
fn a_login_with_a_token_outlasts_a_restart() {
    let sandbox = Sandbox::new();
    let token = token_for(&sandbox, "ana");
    let server = start(&sandbox, &echo());
    let cookies = [0, 1].map(|_| Browser::log_in(&server, &token).cookie);
    let gone = Browser::log_in(&server, &token);
    assert_eq!(gone.post("/console/logout", &[]).status, 303);
    let gone = gone.cookie;
    drop(server);
    let server = start(&sandbox, &echo());
    let status = |cookie: &str| server.request("GET", "/console/sessions", &[("cookie", cookie)], "").status;
    assert_eq!((status(&cookies[0]), status(&cookies[1])), (200, 200));
    assert_eq!(status(&gone), 303, "it was logged out");
    let store = std::fs::read(sandbox.path("data/tokens.db")).unwrap();
    let secret = cookies[0].split('=').nth(1).unwrap();
    assert!(!store.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()), "only its hash is stored");
}

#[test]
fn a_used_port_is_named_with_the_flag_of_the_console() {
    let sandbox = Sandbox::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let run = sandbox.skein(&["console", "--no-browser", "--port", &port]);
    assert_eq!(run.code, 1, "{}", run.whole());
    assert!(run.stderr.contains("choose another --port") && !run.stderr.contains("--listen"), "{}", run.stderr);
}
