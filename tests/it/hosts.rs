//! Which hosts `fetch_url` reaches without a question: a loopback server stands for each host, and counts its requests.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::acp::{Acp, selected};
use crate::support::model::{Answer, ScriptedModel, has_result};
use crate::support::{Run, Sandbox, read, repository};

/// A web server that answers every path; `/moved` redirects.
struct Site {
    host: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Site {
    fn new(moved_to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (kept, moved_to) = (Arc::clone(&seen), moved_to.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let first = lines.next().unwrap_or_default();
                let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
                for line in lines {
                    if line.is_empty() {
                        break;
                    }
                }
                kept.lock().unwrap().push(path.clone());
                let reply = if path == "/moved" {
                    format!("HTTP/1.1 302 Found\r\nLocation: {moved_to}\r\nContent-Length: 0\r\n\r\n")
                } else {
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 8\r\n\r\nthe page".to_owned()
                };
                // The client may have seen enough.
                drop((&stream).write_all(reply.as_bytes()));
            }
        });
        Self { host, seen }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.host)
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

/// Loopback is no public address: the manifest lists the sites, which is another matter than consent.
fn sandbox(sites: &[&Site]) -> Sandbox {
    let sandbox = Sandbox::new();
    let manifest = read(repository("manifests/services/fetch.yaml"));
    let hosts: Vec<_> = sites.iter().map(|site| json!(site.host)).collect();
    sandbox.write("config/services/fetch.yaml", &format!("{manifest}\nsettings: {}\n", json!({"allow_hosts": hosts})));
    sandbox
}

/// Fetches a URL, and says what came of it.
fn fetcher(url: String) -> ScriptedModel {
    ScriptedModel::new(move |request| {
        if has_result(request) {
            let messages = request["messages"].as_array().unwrap();
            return Answer::Says(vec![format!("it came out as: {}", messages.last().unwrap()["content"])]);
        }
        Answer::Calls { id: "c1", tool: "fetch__fetch_url", arguments: json!({"url": url}) }
    })
}

fn run(sandbox: &Sandbox, model: &ScriptedModel, args: &[&str]) -> Run {
    let mut command = model.offered_to(sandbox.command(&[&["run", "-a", "coding", "-m", "pm"], args].concat()));
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Run { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// A mode with `read` and `fetch` sent what it read anywhere, without a question.
#[test]
fn a_host_that_no_rule_and_no_prompt_names_is_not_reached() {
    let site = Site::new("/");
    let sandbox = sandbox(&[&site]);
    let host = &site.host;
    let (leak, allow) = (site.url("/?leak=secret"), format!("host: {host}"));
    let named = format!("read {leak} please");
    sandbox.write("project/notes.txt", &format!("see {leak}\n"));
    let cases: [(&[&str], &str, bool); 12] = [
        (&[], "go", false),
        (&["--approval", "smart"], "go", false),
        (&["--approval", "read-only"], "go", false),
        (&["--approval", "deny"], "go", false),
        (&["--approval", "auto"], "go", true),
        (&[], &named, true),
        // What a file says is not what the user says.
        (&[], "go by @notes.txt", false),
        (&["--allow", &allow], "go", true),
        (&["--approval", "read-only", "--allow", &allow], "go", true),
        (&["--approval", "read-only"], &named, false),
        (&["--approval", "auto", "--deny", &allow], &named, false),
        (&["--allow", "host: *.0.0.1"], "go", false),
    ];
    for (flags, prompt, reached) in cases {
        let model = fetcher(leak.clone());
        let run = run(&sandbox, &model, &[flags, &[prompt]].concat());
        let case = format!("{flags:?} {prompt}: {}", run.whole());
        if flags.contains(&"host: *.0.0.1") {
            assert_eq!(run.code, 2, "{case}");
        }
        assert_eq!(site.seen() == ["/?leak=secret"], reached, "{case}");
        assert_eq!(run.code == 0, reached, "{case}");
        if flags.is_empty() && !reached {
            assert!(run.whole().contains(&format!("--allow 'host: {host}'")), "{case}");
        }
        let judged = model.requests().iter().any(|request| request.to_string().contains("an internal check"));
        assert!(!judged, "no judge decides about a host: {case}");
    }
}

#[test]
fn rules_of_configs_deny_and_ask_and_a_project_only_tightens() {
    let site = Site::new("/");
    let sandbox = sandbox(&[&site]);
    let named = format!("read {}", site.url("/a"));
    let config = |file: &str, then: &str| {
        let text = format!("version: 1\npermissions:\n  - {{host: \"{}\", then: {then}}}\n", site.host);
        sandbox.write(file, &text);
    };
    for (then, reached) in [("ask", false), ("deny", false), ("allow", true)] {
        config("config/config.yaml", then);
        let run = run(&sandbox, &fetcher(site.url("/a")), &["--approval", "auto", &named]);
        assert_eq!(site.seen().len() == 1, reached, "{then}: {}", run.whole());
    }
    config("project/.skein/config.yaml", "deny");
    assert_eq!(sandbox.skein(&["trust", "--yes"]).code, 0);
    let run_denied = run(&sandbox, &fetcher(site.url("/a")), &[&named]);
    assert!(site.seen().is_empty() && run_denied.whole().contains("required by a rule"), "{}", run_denied.whole());
    let list = sandbox.skein(&["permissions", "list", "--json"]).json();
    assert_eq!((&list[0]["host"], &list[0]["tool"]), (&json!(site.host), &Value::Null), "{list}");
    config("project/.skein/config.yaml", "allow");
    let check = sandbox.skein(&["check"]);
    assert!(check.code == 6 && check.whole().contains("cannot allow the host"), "{}", check.whole());
}

#[test]
fn the_question_names_the_host_and_covers_it_for_the_session() {
    let other = Site::new("/");
    let site = Site::new(&other.url("/there?from=here"));
    let sandbox = sandbox(&[&site, &other]);
    let moved = site.url("/moved");
    let model = ScriptedModel::new({
        let page = site.url("/page");
        move |request| {
            let messages = request["messages"].as_array().unwrap();
            if messages.last().unwrap()["role"] == "tool" {
                return Answer::Says(vec!["done".to_owned()]);
            }
            let asked = messages.iter().rev().find(|message| message["role"] == "user").unwrap()["content"].to_string();
            let url = if asked.contains("moved") { &moved } else { &page };
            Answer::Calls { id: "c1", tool: "fetch__fetch_url", arguments: json!({"url": url}) }
        }
    });
    let mut client = Acp::launch(&sandbox, model.offered_to(sandbox.command(&["acp", "-a", "goose"])));
    client.introduce(&json!({}));
    let session = client.session();
    client.set_mode(&session, "coding/pm");
    let questions: Rc<RefCell<Vec<Value>>> = Rc::default();
    let (heard, refused) = (Rc::clone(&questions), other.host.clone());
    client.on("session/request_permission", move |params| {
        heard.borrow_mut().push(params.clone());
        let option = if params["toolCall"]["title"].as_str().unwrap().contains(&refused) {
            "reject_once"
        } else {
            "allow_always"
        };
        Some(selected(option))
    });
    client.prompt(&session, "read the page");
    assert_eq!(site.seen(), ["/page"]);
    {
        let asked = questions.borrow();
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert_eq!(asked[0]["toolCall"]["title"], json!(format!("Fetch from {}", site.host)));
        assert_eq!(asked[0]["toolCall"]["rawInput"]["url"], json!(site.url("/page")));
        let names: Vec<_> = asked[0]["options"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
        assert!(names.contains(&json!(format!("Allow requests to {} in this session", site.host))), "{names:?}");
        assert!(!names.iter().any(|name| name.as_str().unwrap().contains("in this project")), "{names:?}");
    }
    // The host was allowed for the session; the one it redirects to was not.
    client.prompt(&session, "read what has moved");
    assert_eq!((site.seen(), other.seen()), (vec!["/moved".to_owned()], Vec::new()));
    let asked = questions.borrow();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(asked[1]["toolCall"]["title"], json!(format!("Fetch from {}", other.host)));
    assert_eq!(asked[1]["toolCall"]["rawInput"]["url"], json!(other.url("/there?from=here")));
    let told = model.requests().last().unwrap().to_string();
    assert!(told.contains("the page redirects to") && told.contains("the user refused"), "{told}");
}

#[test]
fn a_redirect_is_followed_unless_a_rule_denies_the_host() {
    let other = Site::new("/");
    let site = Site::new(&other.url("/there"));
    let sandbox = sandbox(&[&site, &other]);
    let deny = format!("host: {}", other.host);
    for (flags, seen) in [(&[][..], 1), (&["--deny", &deny], 0)] {
        let command = sandbox.command(&[&["mcp", "-a", "coding", "-m", "pm"], flags].concat());
        let (mut client, _) = crate::client::Client::connect(command);
        let page = client.call("fetch__fetch_url", json!({"url": site.url("/moved")}));
        assert_eq!((site.seen().len(), other.seen().len()), (1, seen), "{page}");
        assert_eq!(page["isError"] == json!(true), seen == 0, "{page}");
        assert_eq!(page.to_string().contains("the page"), seen == 1 || page.to_string().contains("the page redirects"));
        client.hang_up();
    }
}
