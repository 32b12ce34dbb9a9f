//! The console for administrators on the wire: manifests, services and health. Also what limited tokens see, the
//! evaluation of routes, the WebSocket, and how `skein console` opens the browser.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;

use crate::console::{Browser, SAME_SITE, echo, form, start};
use crate::support::Sandbox;
use crate::support::serve::{HttpAnswer, Server, eventually, token};

const FILE: &str = "services/web.yaml";
const SERVICE: &str = "version: 1\nkind: service\nname: web\ndescription: Reads pages.\ntransport:\n  http:\n    \
                       url: http://127.0.0.1:9/\n";

fn administrator(sandbox: &Sandbox) -> String {
    token(sandbox, "chief", &["--admin", "--root", &sandbox.path("project").to_string_lossy()])
}

/// The version of a file that an open page has.
fn version(page: &HttpAnswer) -> String {
    let rest = page.body.split("name=\"base\" value=\"").nth(1).expect("a version");
    rest.split('"').next().unwrap().to_owned()
}

fn edit_path(file: &str) -> String {
    format!("/console/manifests/edit?{}", form(&[("file", file)]))
}

/// Sends a text to one of the actions of the editor.
fn send(browser: &Browser<'_>, action: &str, base: &str, text: &str) -> HttpAnswer {
    browser.post(&format!("/console/manifests/{action}"), &[("file", FILE), ("base", base), ("text", text)])
}

#[test]
fn manifests_and_health_need_an_admin_token() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let ana = Browser::log_in(&server, &token(&sandbox, "ana", &[]));
    for path in ["/console/manifests", &edit_path(FILE), "/console/health", "/console/rules"] {
        assert_eq!(ana.get(path).status, 403, "{path}");
    }
    for action in ["preview", "form", "save"] {
        assert_eq!(send(&ana, action, "", SERVICE).status, 403, "{action}");
    }
    assert!(!sandbox.path("config").join(FILE).exists());
    let page = ana.get("/console/sessions").body;
    for section in ["manifests", "rules", "health"] {
        assert!(!page.contains(&format!("href=\"/console/{section}\"")), "{section}");
    }
}

#[test]
fn a_manifest_is_checked_compared_and_saved() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let chief = Browser::log_in(&server, &administrator(&sandbox));
    let new = chief.get(&edit_path(FILE));
    assert!(new.status == 200 && new.body.contains("This file does not exist yet."), "{new:?}");
    let wrong = SERVICE.replace("transport", "transprt");
    for action in ["preview", "save"] {
        let page = send(&chief, action, "", &wrong);
        assert_eq!(page.status, 422, "{action}: {page:?}");
        let (_, after) = page.body.split_once("<code>transprt:</code>").expect("the line of the mistake");
        assert!(after.contains("unknown field `transprt`") && after.contains("did you mean `transport`?"), "{after}");
        assert!(!page.body.contains("action=\"/console/manifests/save?file="), "it cannot be saved");
    }
    assert!(!sandbox.path("config").join(FILE).exists());
    let preview = send(&chief, "preview", "", &SERVICE.replace('\n', "\r\n"));
    assert_eq!(preview.status, 200, "{preview:?}");
    assert!(preview.body.contains("+name: web") && preview.body.contains("action=\"/console/manifests/save?file="));
    assert!(!sandbox.path("config").join(FILE).exists(), "a preview saves nothing");
    let saved = send(&chief, "save", "", SERVICE);
    assert_eq!((saved.status, saved.header("location")), (303, Some(&*format!("{}&saved=1", edit_path(FILE)))));
    assert_eq!(fs::read_to_string(sandbox.path("config").join(FILE)).unwrap(), SERVICE);
    assert!(chief.get(&format!("{}&saved=1", edit_path(FILE))).body.contains("Saved."));
    assert!(chief.get("/console/manifests").body.contains(FILE));
    assert!(chief.get("/console/graph").body.contains("data-service=\"web\""), "it applies at once");
}

#[test]
fn a_file_that_changed_on_disk_is_not_overwritten() {
    let sandbox = Sandbox::new();
    let file = format!("config/{FILE}");
    sandbox.write(&file, SERVICE);
    let server = Server::start(&sandbox, &[]);
    let chief = Browser::log_in(&server, &administrator(&sandbox));
    let base = version(&chief.get(&edit_path(FILE)));
    let theirs = SERVICE.replace("Reads pages.", "Theirs.");
    sandbox.write(&file, &theirs);
    let ours = SERVICE.replace("Reads pages.", "Ours.");
    let refused = send(&chief, "save", &base, &ours);
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.body.contains("-description: Theirs.") && refused.body.contains("+description: Ours."));
    assert_eq!(fs::read_to_string(sandbox.path(&file)).unwrap(), theirs);
    assert_eq!(send(&chief, "save", &version(&refused), &ours).status, 303, "the person has seen the changes");
    assert_eq!(fs::read_to_string(sandbox.path(&file)).unwrap(), ours);
    assert_eq!(send(&chief, "save", "", &theirs).status, 409, "it is no new file");
}

#[test]
fn the_form_changes_only_its_fields() {
    let sandbox = Sandbox::new();
    let text = format!("# mine\n{SERVICE}");
    sandbox.write(&format!("config/{FILE}"), &text);
    let server = Server::start(&sandbox, &[]);
    let chief = Browser::log_in(&server, &administrator(&sandbox));
    let page = chief.get(&edit_path(FILE));
    for field in ["field.description", "field.transport.http.url", "field.timeouts.call", "field.status"] {
        assert!(page.body.contains(&format!("name=\"{field}\"")), "{field} of the schema");
    }
    let base = version(&page);
    let fill_in = |description: &str| {
        let fields = [("file", FILE), ("base", base.as_str()), ("text", text.as_str()), ("field.restart.max", "2")];
        chief.post("/console/manifests/form", &[&fields[..], &[("field.description", description)]].concat())
    };
    let filled = fill_in("New.");
    assert_eq!(filled.status, 200, "{filled:?}");
    assert!(filled.body.contains("+description: &quot;New.&quot;") && filled.body.contains("+  max: 2"), "{filled:?}");
    assert!(!filled.body.contains("-# mine"), "comments stay");
    assert!(fill_in("").body.contains("-description: Reads pages."), "an empty field removes its entry");
    assert_eq!(fs::read_to_string(sandbox.path("config").join(FILE)).unwrap(), text, "nothing is saved");
}

#[test]
fn the_form_has_the_items_of_lists() {
    let sandbox = Sandbox::new();
    let text =
        "version: 1\ndelegates:\n  # tests\n  - coding/* # all\n  - to: goose/assistant\n    workspace: worktree\n";
    sandbox.write("config/config.yaml", text);
    let server = Server::start(&sandbox, &[]);
    let chief = Browser::log_in(&server, &administrator(&sandbox));
    let page = chief.get(&edit_path("config.yaml"));
    for field in ["delegates.0.to", "delegates.1.workspace", "hooks.Stop.~0~.hooks.~1~.command", "models.~0~.window"] {
        assert!(page.body.contains(&format!("name=\"field.{field}\"")), "{field} of the schema");
    }
    let base = version(&page);
    let fill_in = |items: &[(&str, &str)]| {
        let fields = [("file", "config.yaml"), ("base", base.as_str()), ("text", text), ("list.delegates", "1")];
        chief.post("/console/manifests/form", &[&fields[..], items].concat())
    };
    let moved = [("item.delegates", "1"), ("item.delegates", "0")];
    let new = [("item.delegates", "n1"), ("field.delegates.n1.to", "coding/pm")];
    let filled = fill_in(&[moved, new].concat());
    assert_eq!(filled.status, 200, "{filled:?}");
    let order = ["to: goose/assistant", "# tests", "- coding/* # all", "- &quot;coding/pm&quot;"];
    let places: Vec<_> = order.iter().map(|line| filled.body.rfind(line).expect(line)).collect();
    assert!(places.is_sorted(), "{places:?} in {filled:?}");
    let refused = fill_in(&[("item.delegates", "7")]);
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.body.contains("no item") && refused.body.contains("load the page again"), "{refused:?}");
    assert_eq!(fs::read_to_string(sandbox.path("config/config.yaml")).unwrap(), text, "nothing is saved");
}

#[test]
fn paths_outside_the_manifests_do_not_exist() {
    let sandbox = Sandbox::new();
    sandbox.write("config/keys.json", "{}");
    let server = Server::start(&sandbox, &[]);
    let chief = Browser::log_in(&server, &administrator(&sandbox));
    for file in ["../data/tokens.db", "keys.json", "services/../keys.json", "/etc/passwd", "services/.x.yaml", ""] {
        assert_eq!(chief.get(&edit_path(file)).status, 404, "{file}");
        let fields = [("file", file), ("base", ""), ("text", "x")];
        assert_eq!(chief.post("/console/manifests/save", &fields).status, 404, "{file}");
    }
    assert!(!chief.get("/console/manifests").body.contains("keys.json"));
}

#[test]
fn health_has_findings_charts_and_errors() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let chief = Browser::log_in(&server, &administrator(&sandbox));
    sandbox.write("config/services/odd.yaml", "version: 1\nkind: service\nnam: odd\n");
    let page = chief.get("/console/health");
    assert_eq!(page.status, 200, "{page:?}");
    assert!(page.body.contains("unknown field `nam`") && page.body.contains("Fix: "), "{}", page.body);
    assert_eq!(page.body.matches("<polyline points=").count(), 6);
    assert!(page.body.contains("Open sessions: now 0") && page.body.contains("skein_http_requests_total"));
    assert!(page.body.contains("<h2>Recent errors</h2>"));
    let list = chief.get("/console/manifests");
    assert!(list.status == 200 && list.body.contains("errors"), "broken manifests can be corrected: {list:?}");
}

#[test]
fn a_limited_token_sees_the_services_of_its_modes() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let maker = Browser::log_in(&server, &token(&sandbox, "ana", &["--modes", "goose/app_maker"]));
    let graph = maker.get("/console/graph").body;
    assert!(graph.contains("data-service=\"apps\"") && !graph.contains("data-service=\"developer\""), "{graph}");
    assert!(graph.contains("/console/modes/goose/app_maker") && !graph.contains("/console/modes/coding"));
    let drawing = maker.get("/console/graph.svg");
    assert_eq!(drawing.status, 200);
    assert!(drawing.body.contains(">apps<") && !drawing.body.contains(">developer<"), "{}", drawing.body);
    assert!(!maker.get("/console/modes/goose/app_maker").body.contains("developer__"));
    assert_eq!(
        (maker.get("/console/services/apps").status, maker.get("/console/services/developer").status),
        (200, 404)
    );
    let all = Browser::log_in(&server, &token(&sandbox, "ben", &[]));
    assert!(all.get("/console/graph").body.contains("data-service=\"developer\""));
    assert_eq!(all.get("/console/services/developer").status, 200);
}

#[test]
fn a_service_shows_status_log_and_users() {
    let sandbox = Sandbox::new();
    sandbox.write(&format!("config/{FILE}"), SERVICE);
    let server = Server::start(&sandbox, &[]);
    let line = serde_json::json!({
        "timestamp": "2026-11-16T09:00:00Z", "level": "INFO", "fields": {"service": "web", "stderr": "<b>hello</b>"},
    });
    let chief = Browser::log_in(&server, &administrator(&sandbox));
    let log = files_named(&sandbox, "skein.log");
    let mut log = fs::OpenOptions::new().append(true).open(&log).unwrap();
    // In one write, because the server writes to the log too.
    log.write_all(format!("{line}\n").as_bytes()).unwrap();
    let page = chief.get("/console/services/web");
    assert_eq!(page.status, 200, "{page:?}");
    assert!(page.body.contains("2026-11-16T09:00:00Z &lt;b&gt;hello&lt;/b&gt;"), "{}", page.body);
    assert!(page.body.contains(FILE), "the file: {}", page.body);
    assert!(page.body.contains("It was not started yet.") && page.body.contains("/console/modes/goose/assistant"));
    let ana = Browser::log_in(&server, &token(&sandbox, "ana", &[]));
    let page = ana.get("/console/services/web").body;
    assert!(!page.contains("hello") && page.contains("/console/modes/goose/assistant"), "logs are for administrators");
    assert!(!page.contains(FILE), "so are the folders of the server: {page}");
    assert!(page.contains("<dt>Layer</dt>"), "{page}");
    assert_eq!(chief.get("/console/services/none").status, 404);
}

#[test]
fn the_path_of_a_prompt_is_for_administrators() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let size_line = |token: &str| {
        let page = Browser::log_in(&server, token).get("/console/modes/goose/assistant").body;
        let (before, _) = page.split_once(" bytes</p>").expect("the size of the prompt");
        before.rsplit("<p class=\"meta\">").next().unwrap_or_default().to_owned()
    };
    let (chief, ana) = (size_line(&administrator(&sandbox)), size_line(&token(&sandbox, "ana", &[])));
    assert_eq!(chief.split_once(" · ").map(|(_, size)| size), Some(ana.as_str()));
    assert!(ana.parse::<u64>().is_ok(), "{ana}");
}

/// The one file with this name in the sandbox.
fn files_named(sandbox: &Sandbox, name: &str) -> std::path::PathBuf {
    let mut folders = vec![sandbox.path("")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false if entry.file_name() == name => return entry.path(),
                false => {}
            }
        }
    }
    panic!("there is no {name}")
}

#[test]
fn routes_are_evaluated_with_a_confusion_matrix() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let ana = Browser::log_in(&server, &token(&sandbox, "ana", &[]));
    assert_eq!(ana.get("/console/routing/evaluation").status, 200);
    let run = |cases: &str| ana.post("/console/routing/evaluation", &[("cases", cases)]);
    let page = run(
        "goose/app_maker\tmake me an app that counts down\r\ngoose/analyst\tdraw a chart of the numbers\r\n-\thello",
    );
    assert_eq!(page.status, 200, "{page:?}");
    assert!(
        page.body.contains("<th scope=\"row\">goose/app_maker</th>") && page.body.contains("2 for "),
        "{}",
        page.body
    );
    for (cases, problem) in [("goose/app_maker no tab", "no tab"), ("no/mode\tx", "Line 1"), (" ", "between 1 and")] {
        let page = run(cases);
        assert!(page.status == 422 && page.body.contains(problem), "{cases}: {page:?}");
    }
}

#[test]
fn a_large_form_of_cases_is_refused() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &echo());
    let ana = Browser::log_in(&server, &token(&sandbox, "ana", &[]));
    let case = format!("-\t{}", "x".repeat(1 << 20));
    let answer = ana.post("/console/routing/evaluation", &[("cases", case.as_str())]);
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(answer.body.contains("larger than 1 MiB"), "{answer:?}");
}

#[test]
fn a_websocket_has_the_updates_of_a_login() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox, &[]);
    let ana = Browser::log_in(&server, &token(&sandbox, "ana", &[]));
    let shake = |headers: &str| {
        let mut stream = server.connect();
        let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        write!(stream, "GET /console/socket HTTP/1.1\r\nhost: {}\r\n{upgrade}{headers}\r\n", server.address).unwrap();
        stream
    };
    let answer = |headers: &str| {
        let mut bytes = [0; 16];
        shake(headers).read_exact(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[9..12]).into_owned()
    };
    assert_eq!(answer(""), "303", "without a login");
    let cookie = format!("cookie: {}\r\n", ana.cookie);
    assert_eq!(answer(&format!("{cookie}origin: http://evil.test\r\n")), "403", "from another site");
    let mut stream = shake(&cookie);
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("\"kind\":\"approvals\"") {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "it ended before an update: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..count]);
    }
    assert!(seen.starts_with(b"HTTP/1.1 101"));
    assert_eq!(ana.post("/console/logout", &[]).status, 303);
    stream.read_to_end(&mut seen).expect("it ends with the login");
}

#[test]
fn the_code_is_in_no_argument_of_a_program() {
    let sandbox = Sandbox::new();
    let opened = sandbox.path("opened");
    let script = format!("#!/bin/sh\nprintf %s \"$*\" > {0}.new\nmv {0}.new {0}\n", opened.display());
    sandbox.write("bin/xdg-open", &script);
    fs::set_permissions(sandbox.path("bin/xdg-open"), fs::Permissions::from_mode(0o755)).unwrap();
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let path = [sandbox.path("bin")].into_iter().chain(std::env::split_paths(&inherited));
    let mut command = sandbox.command(&["console"]);
    command.env("PATH", std::env::join_paths(path).unwrap()).env("DISPLAY", ":7");
    let mut server = Server::launch(command);
    let line = server.line();
    let url = line.split_whitespace().next_back().unwrap().to_owned();
    let code = url.rsplit('#').next().unwrap();
    eventually("the browser is opened", || opened.exists());
    let argument = fs::read_to_string(&opened).unwrap();
    assert!(!argument.contains(code) && argument.ends_with(".html"), "{argument}");
    assert_eq!(fs::metadata(&argument).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&argument).unwrap().contains(&format!("content=\"0;url={url}\"")));
    let login = server.request("POST", "/console/login/code", &[SAME_SITE], &form(&[("code", code)]));
    assert_eq!(login.status, 204, "{login:?}");
    server.interrupt();
    assert_eq!(server.wait(), 0);
    assert!(!std::path::Path::new(&argument).exists(), "the file is removed at the end");
}
