//! The units for systemd in packaging/ and deploy/, and a server that gets its socket from systemd.

use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::support::serve::{Server, eventually};
use crate::support::{Sandbox, free_address, full_tests, read, repository};

/// `systemd-analyze` succeeds in spite of most mistakes, and only prints them.
#[expect(clippy::disallowed_methods, reason = "another program, which reads files of the repository")]
#[test]
fn systemd_accepts_the_units() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let verify = |service: &str| {
        // The program must exist.
        let service = service.replace("/usr/local/bin/skein", env!("CARGO_BIN_EXE_skein"));
        sandbox.write("units/skein.service", &service);
        sandbox.write("units/skein.socket", &read(repository("packaging/skein.socket")));
        let mut command = Command::new("systemd-analyze");
        command.arg("verify").args([sandbox.path("units/skein.service"), sandbox.path("units/skein.socket")]);
        let output = command.output().expect("systemd-analyze starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let service = read(repository("packaging/skein.service"));
    assert_eq!(verify(&service), (true, String::new()));
    let (_, said) = verify(&service.replace("ProtectSystem=strict", "ProtectSystem=stric"));
    assert!(said.contains("stric"), "a mistake is found: {said}");
}

/// The template of several replicas, as its first instance.
#[expect(clippy::disallowed_methods, reason = "another program, which reads files of the repository")]
#[test]
fn systemd_accepts_the_template_of_replicas() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let template = read(repository("deploy/systemd/skein@.service"));
    let template = template.replace("/usr/local/bin/skein", env!("CARGO_BIN_EXE_skein"));
    sandbox.write("units/skein@.service", &template);
    // Verification needs an instance.
    sandbox.write("units/skein@1.service", &template);
    let output = Command::new("systemd-analyze").arg("verify").arg(sandbox.path("units/skein@1.service")).output();
    let output = output.expect("systemd-analyze starts");
    assert_eq!((output.status.success(), String::from_utf8_lossy(&output.stderr).as_ref()), (true, ""));
}

#[expect(clippy::disallowed_methods, reason = "another program, which reads files of the repository")]
#[test]
fn kubernetes_accepts_the_manifests() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let validate = |name: &str, manifest: &str| {
        sandbox.write(name, manifest);
        let mut command = Command::new(repository("tests/python/venv/bin/python"));
        command.args(["-B", "-m", "kubernetes_validate", "--strict", "--quiet"]).arg(sandbox.path(name));
        let output = command.output().expect("Python starts");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for name in ["skein.yaml", "haproxy.yaml"] {
        let manifest = read(repository("deploy/kubernetes").join(name));
        let (is_valid, said) = validate(name, &manifest);
        assert!(is_valid, "{name}: {said}");
        let (is_valid, _) = validate(name, &manifest.replace("containerPort", "containersPort"));
        assert!(!is_valid, "{name}: a mistake is found");
    }
}

/// `systemd-socket-activate` opens the socket, and starts the server at the first connection.
#[expect(clippy::disallowed_methods, reason = "another program, which starts the one under test")]
#[test]
fn a_server_takes_the_socket_that_systemd_passes() {
    if !full_tests() {
        return;
    }
    let sandbox = Sandbox::new();
    let address = free_address();
    let skein = sandbox.command(&["serve", "--listen", "systemd"]);
    let mut command = Command::new("systemd-socket-activate");
    command.args(["-l", &address.to_string()]);
    for (name, value) in skein.get_envs() {
        let value = value.expect("a value");
        command.arg("-E").arg(format!("{}={}", name.display(), value.display()));
    }
    command.arg(skein.get_program()).args(skein.get_args());
    command.current_dir(sandbox.path("project")).stdin(Stdio::null()).stderr(Stdio::null());
    // The first connection starts the server, which then says where it listens.
    let waking = std::thread::spawn(move || eventually("it listens", || TcpStream::connect(address).is_ok()));
    let server = Server::launch(command);
    waking.join().expect("a connection");
    assert_eq!(server.address, address);
    let answer = server.request("GET", "/healthz", &[], "");
    assert_eq!((answer.status, answer.body.trim()), (200, "ok"), "{answer:?}");
}

#[test]
fn without_a_socket_of_systemd_the_server_says_so() {
    let refused = Sandbox::new().skein(&["serve", "--listen", "systemd"]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("no socket") && refused.stderr.contains("HOST:PORT"), "{}", refused.stderr);
}

/// Flags and paths in the packages exist.
#[test]
fn packages_use_the_flags_of_the_server() {
    let help = Sandbox::new().skein(&["serve", "--help"]).stdout;
    let (service, container) =
        (read(repository("packaging/skein.service")), read(repository("packaging/Containerfile")));
    let started = service.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let entry = container.lines().find_map(|line| line.strip_prefix("ENTRYPOINT ")).expect("a command");
    let entry: Vec<String> = serde_json::from_str(entry).expect("a list");
    let words = started.split(' ').map(str::to_owned).chain(entry);
    for flag in words.filter(|word| word.starts_with("--")) {
        assert!(help.contains(&flag), "{flag} in {help}");
    }
}
