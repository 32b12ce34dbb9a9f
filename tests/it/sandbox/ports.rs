//! Ports of servers inside a session's sandbox: after consent they are open on this machine.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use super::needs_tool;
use super::session::SandboxedSession;
use crate::support::Sandbox;

/// A port that no program chooses by itself.
fn free_port(offset: u16) -> u16 {
    let start = 20_000 + offset + u16::try_from(std::process::id() % 5_000).unwrap();
    (start..32_000).find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).unwrap()
}

/// Starts a web server in the background of a session.
fn serve(session: &mut SandboxedSession, port: u16) {
    session.machine.write("project/page", "from inside");
    let command = format!("python3 -m http.server {port} --bind 127.0.0.1");
    session.call("shell", &json!({"command": command, "background": true, "timeout": 60}));
}

/// Reads the page through the port of this machine. `None` if nothing listens.
fn read_page(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.write_all(b"GET /page HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Answers messages of the agent until the function gives a value.
fn poll<T>(session: &mut SandboxedSession, get: impl Fn(&SandboxedSession) -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        session.client.settle();
        if let Some(value) = get(session) {
            return Some(value);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    None
}

fn first_question(session: &SandboxedSession) -> Option<serde_json::Value> {
    session.questions().into_iter().next()
}

#[test]
fn a_dev_server_is_reached_after_one_question() {
    if !needs_tool("python3") {
        return;
    }
    let port = free_port(0);
    let mut session = SandboxedSession::start(Sandbox::outside_tmp(), &json!({"network": "off"}), &[]);
    serve(&mut session, port);
    let question = poll(&mut session, first_question).expect("a question");
    assert_eq!(question["rawInput"], json!({"port": port}));
    let page = poll(&mut session, |_| read_page(port)).expect("a page");
    assert!(page.ends_with("from inside"), "{page}");
    assert!(session.questions().is_empty(), "one question is enough");
    session.client.finish();
    assert_eq!(read_page(port), None, "the port closes with the session");
}

#[test]
fn a_declined_port_stays_closed_and_a_listed_one_asks_nothing() {
    if !needs_tool("python3") {
        return;
    }
    let port = free_port(6_000);
    let mut session = SandboxedSession::start(Sandbox::outside_tmp(), &json!({"network": "off"}), &[]);
    session.will_answer("reject_once");
    serve(&mut session, port);
    poll(&mut session, first_question).expect("a question");
    std::thread::sleep(Duration::from_secs(1));
    session.client.settle();
    assert_eq!((read_page(port), session.questions().len()), (None, 0));
    session.client.finish();
    let settings = json!({"network": "off", "ports": [port]});
    let mut session = SandboxedSession::start(Sandbox::outside_tmp(), &settings, &[]);
    serve(&mut session, port);
    let page = poll(&mut session, |_| read_page(port)).expect("a page");
    assert!(page.ends_with("from inside"), "{page}");
    assert!(session.questions().is_empty());
}
