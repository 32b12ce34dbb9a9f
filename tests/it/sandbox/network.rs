//! The network of a session's sandbox: questions, rules and names. A company proxy stands for all hosts, because it gets
//! their names and the sandbox resolves none.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::needs_tool;
use super::session::{SandboxedSession, structured, titles};
use crate::support::Sandbox;

/// A proxy that answers every request for a page itself.
struct Company {
    address: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Company {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let first = lines.next().unwrap_or_default();
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                kept.lock().unwrap().push(first.rsplit_once(' ').unwrap_or_default().0.to_owned());
                let answer = if first.starts_with("CONNECT") {
                    "HTTP/1.1 200 OK\r\n\r\n"
                } else {
                    "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached"
                };
                // The client may be gone.
                drop((&stream).write_all(answer.as_bytes()));
            }
        });
        Self { address, seen }
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

/// A session whose Skein reaches all hosts through the company.
fn session(company: &Company, config: &Value) -> SandboxedSession {
    let proxy = format!("http://{}", company.address);
    let variables = [("HTTPS_PROXY", proxy.as_str()), ("HTTP_PROXY", proxy.as_str())];
    SandboxedSession::start_with(Sandbox::outside_tmp(), config, &variables, &[])
}

/// Commands whose hosts the user does not see in the command line.
fn hide(session: &SandboxedSession, name: &str, script: &str) {
    session.machine.write(&format!("project/{name}"), script);
}

#[test]
fn equal_questions_become_one_and_once_lasts_one_command() {
    if !needs_tool("curl") {
        return;
    }
    let company = Company::start();
    let mut session = session(&company, &json!({}));
    hide(&session, "both", "curl -s http://one.test/ & curl -s http://one.test/ & wait");
    let (result, questions) = session.shell("sh both");
    assert_eq!(structured(&result)["stdout"], "reachedreached", "{result}");
    assert_eq!(questions.len(), 1, "{questions:?}");
    assert_eq!(questions[0]["rawInput"], json!({"host": "one.test:80", "command": "sh both"}));
    assert_eq!(company.seen(), ["GET http://one.test/", "GET http://one.test/"]);

    session.will_answer("reject_once");
    let (result, questions) = session.shell("sh both");
    assert_eq!(questions.len(), 1, "a consent ends with its command");
    assert!(result.to_string().contains("refused by the sandbox: one.test:80 (the user refused)"), "{result}");
    assert_eq!(company.seen(), [""; 0]);

    session.will_answer("allow_always");
    assert_eq!(session.shell("sh both").1.len(), 1);
    assert_eq!(session.shell("sh both").1.len(), 0, "this consent lasts until the session ends");
}

#[test]
fn consented_command_lines_and_registries_ask_nothing() {
    if !needs_tool("curl") {
        return;
    }
    let company = Company::start();
    let mut session = session(&company, &json!({}));
    let (result, questions) = session.shell("curl -s http://one.test/");
    assert_eq!((structured(&result)["stdout"].as_str(), questions), (Some("reached"), Vec::new()), "{result}");
    hide(
        &session,
        "registries",
        "curl -s https://index.crates.io/ https://registry.npmjs.org/ https://pypi.org/; true",
    );
    let (_, questions) = session.shell("sh registries");
    assert_eq!(titles(&questions), [""; 0]);
    let seen = company.seen();
    for host in ["index.crates.io", "registry.npmjs.org", "pypi.org"] {
        assert!(seen.contains(&format!("CONNECT {host}:443")), "{host}: {seen:?}");
    }
}

#[test]
fn host_rules_apply_to_the_proxy() {
    if !needs_tool("curl") {
        return;
    }
    let company = Company::start();
    let rules = json!([
        {"host": "denied.test", "then": "deny"},
        {"host": "*.allowed.test", "then": "allow"},
        {"host": "asked.test", "then": "ask"},
    ]);
    let allow = json!({"network": {"allow": ["asked.test"], "otherwise": "ask"}});
    let mut session = session(&company, &json!({"permissions": rules, "sandbox": allow}));
    hide(&session, "denied", "curl -s http://denied.test/");
    hide(&session, "allowed", "curl -s http://a.allowed.test/");
    hide(&session, "asked", "curl -s http://asked.test/");
    let (result, questions) = session.shell("sh denied");
    assert!(questions.is_empty() && result.to_string().contains("refused by the sandbox: denied.test:80"), "{result}");
    assert!(result.to_string().contains("the rule"), "{result}");
    let (result, questions) = session.shell("sh allowed");
    assert_eq!((structured(&result)["stdout"].as_str(), questions.len()), (Some("reached"), 0), "{result}");
    let (result, questions) = session.shell("sh asked");
    assert_eq!((structured(&result)["stdout"].as_str(), questions.len()), (Some("reached"), 1), "{result}");
    assert_eq!(company.seen(), ["GET http://a.allowed.test/", "GET http://asked.test/"]);
}

#[test]
fn another_name_in_tls_is_refused() {
    if !needs_tool("curl") {
        return;
    }
    let company = Company::start();
    let mut session = session(&company, &json!({"sandbox": {"network": ["one.test"]}}));
    let command = "curl -s --connect-to two.test:443:one.test:443 https://two.test/";
    let (result, _) = session.shell(command);
    assert!(result.to_string().contains("TLS names another server, `two.test`"), "{result}");
    assert_eq!(company.seen(), ["CONNECT one.test:443"]);
}

#[test]
fn a_relay_passes_servers_that_speak_first() {
    if !needs_tool("bash") {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(|mut peer| drop(peer.write_all(b"HELLO"))));
    let settings = json!({"network": {"allow": [address.to_string()], "otherwise": "off"}});
    let mut session = SandboxedSession::start(Sandbox::outside_tmp(), &settings, &[]);
    let read = format!("exec 3<>/dev/tcp/127.0.0.1/{} && head -c 5 <&3", address.port());
    assert_eq!(session.works(&read), "HELLO");
    let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (result, _) = session.shell(&format!("exec 3<>/dev/tcp/127.0.0.1/{other}"));
    assert_ne!(structured(&result)["exit_code"], 0, "{result}");
}

#[test]
fn a_company_proxy_that_is_no_http_proxy_is_named() {
    let settings = json!({"network": "on"});
    let variables = [("HTTPS_PROXY", "socks5://127.0.0.1:1")];
    let mut session = SandboxedSession::start(Sandbox::outside_tmp(), &settings, &variables);
    let (result, _) = session.shell("true");
    assert!(result.to_string().contains("`HTTPS_PROXY` is not an http proxy"), "{result}");
}

/// Subject, decision, source and rule of the entries about hosts. Each names the principal and the mode of the shell.
fn decisions(machine: &Sandbox) -> Vec<[String; 4]> {
    let entries = machine.skein(&["audit", "list", "--json"]).json();
    let entries = entries.as_array().unwrap();
    let shell = entries.iter().find(|entry| entry["subject"] == "developer__shell").expect("a call of the shell");
    let mut hosts: Vec<_> = entries.iter().filter(|entry| entry["kind"] == "host").collect();
    hosts.sort_by_key(|entry| entry["sequence"].as_u64());
    for entry in &hosts {
        assert_eq!((&entry["actor"], &entry["pseudonym"]), (&shell["actor"], &shell["pseudonym"]), "{entry}");
        assert!(entry["time"].as_u64() >= shell["time"].as_u64(), "{entry}");
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    hosts.iter().map(|entry| ["subject", "decision", "source", "rule"].map(|field| text(&entry[field]))).collect()
}

#[test]
fn decisions_about_hosts_are_audit_entries() {
    if !needs_tool("curl") {
        return;
    }
    let company = Company::start();
    let rules = json!([{"host": "denied.test", "then": "deny"}, {"host": "*.allowed.test", "then": "allow"}]);
    let network = json!({"network": {"allow": ["listed.test"], "otherwise": "ask"}});
    let mut session = session(&company, &json!({"permissions": rules, "sandbox": network}));
    for (name, host) in
        [("denied", "denied.test"), ("allowed", "a.allowed.test"), ("listed", "listed.test"), ("other", "other.test")]
    {
        hide(&session, name, &format!("curl -s http://{host}/"));
    }
    ["denied", "allowed", "listed", "other"].iter().for_each(|name| drop(session.shell(&format!("sh {name}"))));
    session.will_answer("reject_once");
    session.shell("sh other");
    session.will_answer("allow_always");
    session.shell("sh other");
    session.shell("sh other");
    let machine = session.end();
    let mut found = decisions(&machine);
    assert_eq!(found.len(), 7, "{found:?}");
    for (entry, rule) in found.iter_mut().zip(["denied.test", "*.allowed.test"]) {
        assert!(entry[3].contains(rule) && entry[3].contains("config.yaml:1"), "the rule and its place: {entry:?}");
        entry[3] = "rule".to_owned();
    }
    let row = |subject: &str, decision: &str, source: &str, rule: &str| {
        [format!("{subject}:80"), decision.to_owned(), source.to_owned(), rule.to_owned()]
    };
    assert_eq!(found[0], row("denied.test", "refuse", "rule", "rule"));
    assert_eq!(found[1], row("a.allowed.test", "allow", "rule", "rule"));
    assert_eq!(found[2], row("listed.test", "allow", "sandbox", "profile"));
    assert_eq!(found[3], row("other.test", "allow", "user", "ask"));
    assert_eq!(found[4], row("other.test", "refuse", "user", "ask"));
    assert_eq!(found[6], row("other.test", "allow", "consent", ""), "the answer before holds for the session");
    let verified = machine.skein(&["audit", "verify"]);
    assert_eq!(verified.code, 0, "{}", verified.whole());
}

#[test]
fn a_host_that_no_user_is_asked_about_is_an_audit_entry() {
    if !needs_tool("curl") {
        return;
    }
    let company = Company::start();
    for (otherwise, source, rule) in [("ask", "no-user", "ask"), ("off", "sandbox", "profile")] {
        let machine = Sandbox::outside_tmp();
        let network = json!({"allow": ["listed.test"], "otherwise": otherwise});
        machine.write("config/config.yaml", &json!({"version": 1, "sandbox": {"network": network}}).to_string());
        machine.write("project/fetch", "curl -s http://other.test/");
        let prompt = format!("/developer.shell {}", json!({"command": "sh fetch"}));
        let flags = ["--sandbox", "required", "--approval", "ask", "run", "-a", "coding", "-m", "backend"];
        let mut command = machine.command(&[&flags[..], &["--allow", "developer__shell", &prompt]].concat());
        let proxy = format!("http://{}", company.address);
        let output = command.env("HTTPS_PROXY", &proxy).env("HTTP_PROXY", &proxy).output().unwrap();
        let expected = ["other.test:80", "refuse", source, rule].map(str::to_owned);
        assert_eq!(decisions(&machine), [expected], "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(company.seen(), [""; 0]);
    }
}
