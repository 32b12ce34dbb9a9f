//! Builds with cargo, npm and pip inside a sandbox. The registries listen on loopback.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;

use serde_json::json;

use super::{Place, has_tool, text, users};
use crate::support::full_tests;

/// Serves files by path over http.
struct Registry {
    address: String,
}

impl Registry {
    /// `files` gets the address of the registry.
    fn start(files: impl FnOnce(&str) -> BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let files = files(&address);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let first = lines.next().unwrap_or_default();
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let path = first.split(' ').nth(1).unwrap_or_default().trim_end_matches('/');
                let (status, body) = match files.get(path) {
                    Some(body) => ("200 OK", body.as_slice()),
                    None => ("404 Not Found", &b""[..]),
                };
                let kind = if path.starts_with("/simple") { "text/html" } else { "application/octet-stream" };
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                // The client may be gone.
                drop((&stream).write_all(&[head.as_bytes(), body].concat()));
            }
        });
        Self { address }
    }
}

/// Runs a script outside of the sandbox, in the project.
fn outside(place: &Place, script: &str) {
    let output = place.program("sh", &["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", text(&output));
}

#[test]
fn cargo_builds_and_tests() {
    if !full_tests() {
        return;
    }
    // The toolchain of this user, which others may be unable to read.
    let place = Place::new(users()[0]);
    let tools = Path::new(env!("CARGO")).parent().unwrap();
    let path = format!("{}:{}", tools.display(), super::tool_path());
    let script = "cargo init -q --vcs none --lib --name demo . && cargo build -q --offline && \
                  cargo test -q --offline 2>&1 | grep -o '1 passed' | head -1";
    let output = place.sandbox("", &["--", "sh", "-c", script]).env("PATH", path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1 passed\n", "{}", text(&output));
    assert!(place.path("project/target").is_dir());
}

#[test]
fn npm_installs_from_a_registry() {
    if !full_tests() || !has_tool("npm") {
        return;
    }
    for user in users() {
        let place = Place::new(user);
        place.write("project/package/package.json", &json!({"name": "demo", "version": "1.0.0"}).to_string());
        place.write("project/package/index.js", "module.exports = 'installed';\n");
        outside(&place, "tar czf demo.tgz package && rm -r package");
        let archive = std::fs::read(place.path("project/demo.tgz")).unwrap();
        let registry = Registry::start(|address| {
            let dist = json!({"tarball": format!("http://{address}/demo.tgz")});
            let version = json!({"name": "demo", "version": "1.0.0", "dist": dist});
            let about =
                json!({"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}).to_string();
            BTreeMap::from([("/demo".to_owned(), about.into_bytes()), ("/demo.tgz".to_owned(), archive)])
        });
        let script = format!(
            "npm install --no-audit --no-fund --silent --registry http://{} demo && node -p 'require(\"demo\")'",
            registry.address
        );
        assert_eq!(place.works(&["--network", &registry.address], &script), "installed\n", "{user:?}");
        assert!(!place.path("home/.npm").exists(), "the cache of the user changed");
    }
}

#[test]
fn pip_installs_from_a_registry() {
    if !full_tests() || !has_tool("pip3") {
        return;
    }
    for user in users() {
        let place = Place::new(user);
        let wheel = "import zipfile\nw = zipfile.ZipFile('demo-1.0-py3-none-any.whl', 'w')\n\
                     w.writestr('demo.py', 'text = \"installed\"')\n\
                     w.writestr('demo-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n')\n\
                     w.writestr('demo-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
                     w.writestr('demo-1.0.dist-info/RECORD', '')\nw.close()\n";
        place.write("project/wheel.py", wheel);
        outside(&place, "/usr/bin/python3 wheel.py");
        let archive = std::fs::read(place.path("project/demo-1.0-py3-none-any.whl")).unwrap();
        let registry = Registry::start(|_| {
            let page = b"<a href=\"/demo-1.0-py3-none-any.whl\">demo-1.0-py3-none-any.whl</a>".to_vec();
            BTreeMap::from([("/simple/demo".to_owned(), page), ("/demo-1.0-py3-none-any.whl".to_owned(), archive)])
        });
        let script = format!(
            "/usr/bin/python3 -m pip install -q --disable-pip-version-check --target out \
             --index-url http://{}/simple demo && PYTHONPATH=out /usr/bin/python3 -c 'import demo; print(demo.text)'",
            registry.address
        );
        assert_eq!(place.works(&["--network", &registry.address], &script), "installed\n", "{user:?}");
    }
}
