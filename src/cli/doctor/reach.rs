//! Checks what services need from this machine: programs, variables, addresses. Connects only to addresses of this
//! machine.

use std::convert::Infallible;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

use super::super::environment::{find_in_path, is_executable, variable};
use super::super::folders::Folders;
use super::Findings;
use crate::manifest::{AgentProgram, AgentRuntime, Layer, Manifests, Placeholder, Transport};

/// A server on this machine answers at once.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn services(manifests: &Manifests, folders: &Folders, found: &mut Findings) {
    for service in manifests.services.values().filter(|service| service.layer != Layer::Builtin && service.enabled) {
        let who = format!("the service {}", service.manifest.name);
        let place = service.source.file.as_str();
        match &service.manifest.transport {
            Transport::Builtin(_) => {}
            Transport::Stdio(stdio) => {
                let texts = [&stdio.command].into_iter().chain(&stdio.args).chain(stdio.env.values()).chain(&stdio.cwd);
                variables(&who, place, texts, found);
                let needed = RequiredProgram { who: &who, command: &stdio.command, cwd: stdio.cwd.as_deref(), place };
                let fix = format!(
                    "install {0}, put it on the PATH, or write its whole path into the manifest",
                    stdio.command
                );
                program(&needed, &fix, folders, found);
            }
            Transport::Http(http) => {
                variables(&who, place, [&http.url].into_iter().chain(http.headers.values()), found);
                address(&who, &fill_placeholders(&http.url), place, found);
            }
        }
    }
    for agent in manifests.agents.values() {
        let who = format!("the agent {}", agent.manifest.name);
        let place = agent.source.file.as_str();
        match &agent.manifest.runtime {
            Some(AgentRuntime::Acp(acp)) => {
                let AgentProgram { command, args, env } = acp.program();
                variables(&who, place, [&command].into_iter().chain(&args).chain(env.values()).chain(&acp.cwd), found);
                let needed = RequiredProgram { who: &who, command: &command, cwd: acp.cwd.as_deref(), place };
                program(&needed, &acp.missing_help(), folders, found);
            }
            Some(AgentRuntime::A2a(a2a)) => {
                variables(&who, place, [&a2a.url].into_iter().chain(a2a.headers.values()), found);
                address(&who, &fill_placeholders(&a2a.url), place, found);
            }
            None => {}
        }
    }
}

fn variables<'a>(who: &str, place: &str, texts: impl Iterator<Item = &'a String>, found: &mut Findings) {
    let needed = texts.flat_map(|text| Placeholder::all_in(text)).filter(|placeholder| placeholder.default.is_none());
    let mut names: Vec<&str> = needed.map(|placeholder| placeholder.name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names.into_iter().filter(|name| std::env::var_os(name).is_none()) {
        let fix = format!("export {name} where skein is started, or take it out of the manifest");
        found.error(format!("{who} needs the variable {name}, which is not set"), place, fix);
    }
}

/// Fills in the variables that are set. Missing ones are already reported.
fn fill_placeholders(text: &str) -> String {
    let value = |Placeholder { name, default }: Placeholder<'_>| {
        Ok::<_, Infallible>(variable(name).unwrap_or_else(|| default.unwrap_or_default().to_owned()))
    };
    let Ok(filled) = Placeholder::fill_in(text, value);
    filled
}

/// A program and the manifest that starts it. Findings show the command as written, because a variable's value may be a
/// secret.
struct RequiredProgram<'a> {
    who: &'a str,
    command: &'a str,
    cwd: Option<&'a str>,
    place: &'a str,
}

/// Checks that the program exists and is executable. `missing` is the fix if it is not on the PATH.
fn program(needed: &RequiredProgram<'_>, missing: &str, folders: &Folders, found: &mut Findings) {
    let RequiredProgram { who, command, cwd, place } = *needed;
    let program = fill_placeholders(command);
    if program.is_empty() {
        return;
    }
    if !program.contains('/') {
        if find_in_path(&program).is_none() {
            found.error(format!("{who} runs `{command}`, which is not on the PATH"), place, missing);
        }
        return;
    }
    let file = folders.cwd.join(cwd.map(fill_placeholders).unwrap_or_default()).join(&program);
    if !file.is_file() {
        found.error(format!("{who} runs `{command}`, which does not exist"), place, "correct the path in the manifest");
    } else if !is_executable(&file) {
        let fix = if is_program(&file) {
            format!("chmod +x {command}")
        } else {
            "it is no program: correct the command in the manifest".to_owned()
        };
        found.error(format!("{who} runs `{command}`, which cannot be executed"), place, fix);
    }
}

/// Returns true if the file starts like a script or an executable.
fn is_program(file: &Path) -> bool {
    let mut start = [0; 4];
    let read = std::fs::File::open(file).and_then(|mut file| file.read(&mut start));
    read.is_ok() && (start.starts_with(b"#!") || start == *b"\x7fELF" || start == *b"\xcf\xfa\xed\xfe")
}

/// Checks that an address is well-formed and, if it is on this machine, that a server listens.
pub(super) fn address(who: &str, url: &str, place: &str, found: &mut Findings) {
    let Some((host, port)) = host_and_port(url) else {
        let fix = "write it as http://HOST:PORT/PATH or https://HOST/PATH, with a port below 65536";
        return found.error(format!("the address of {who} is malformed"), place, fix);
    };
    let loopback = host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    if !loopback {
        return;
    }
    let targets: Vec<SocketAddr> = (host.as_str(), port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if !targets.iter().any(|target| TcpStream::connect_timeout(target, PATIENCE).is_ok()) {
        let what = format!("nothing listens on port {port} of this machine, where {who} is asked");
        found.error(what, place, "start that server, or correct the address");
    }
}

fn host_and_port(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let default = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']')?;
            (host, behind.strip_prefix(':'))
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(default), |port| port.parse().ok().filter(|port| *port > 0))?;
    let sound = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == ':') || host.contains("::");
    sound.then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_or_refused() {
        let taken = |url| host_and_port(url).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(taken("http://localhost:1234/v1").as_deref(), Some("localhost 1234"));
        assert_eq!(taken("https://me:x@host.example/a?b").as_deref(), Some("host.example 443"));
        assert_eq!(taken("http://[::1]:80/").as_deref(), Some("::1 80"));
        for wrong in ["localhost:1234", "http://", "http://host:70000/", "http://host:0/", "ftp://host/", "http://a b/"]
        {
            assert_eq!(taken(wrong), None, "{wrong}");
        }
    }
}
