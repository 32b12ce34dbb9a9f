//! Finds out whether a port of this machine belongs to a process of a scope.

use std::collections::HashSet;

use super::proc_files::{list_proc, read_proc};
use super::scope::ProcessScope;
use super::table::{Process, ProcessTable};

/// The state of a socket that listens.
const LISTEN: &str = "0A";

impl ProcessScope {
    /// Returns whether a process of this scope listens at a TCP port of this machine. Processes that cleared their
    /// environment do not count. Reads `/proc`, so it may block for some milliseconds. Always false on systems other
    /// than Linux.
    pub fn listens_at(&self, port: u16) -> bool {
        let mut sockets = HashSet::new();
        for table in ["self/net/tcp", "self/net/tcp6"] {
            // A machine without IPv6 has no such table.
            let text = read_proc(table).unwrap_or_default();
            sockets.extend(String::from_utf8_lossy(&text).lines().filter_map(|line| listening_socket(line, port)));
        }
        if sockets.is_empty() {
            return false;
        }
        let table = ProcessTable::read();
        let mut own = table.all().filter(|process| process.marker().as_deref() == Some(self.marker()));
        own.any(|process| has_socket(process, &sockets))
    }
}

/// Returns the number of the socket if the line of a table of TCP sockets is about one that listens at this port.
fn listening_socket(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, local) = fields.get(1)?.rsplit_once(':')?;
    let is_wanted = *fields.get(3)? == LISTEN && u16::from_str_radix(local, 16) == Ok(port);
    is_wanted.then(|| fields.get(9).map(|number| (*number).to_owned())).flatten()
}

fn has_socket(process: &Process, sockets: &HashSet<String>) -> bool {
    let files = list_proc(&format!("{}/fd", process.pid.as_raw_nonzero())).unwrap_or_default();
    let mut links = files.iter().filter_map(|file| std::fs::read_link(file).ok());
    links.any(|link| {
        let number = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
        number.is_some_and(|number| sockets.contains(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_its_socket_if_it_listens_at_the_port() {
        let line = |state: &str| {
            format!(
                "   1: 0100007F:1435 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 48213 1"
            )
        };
        assert_eq!(listening_socket(&line("0A"), 5173).as_deref(), Some("48213"));
        assert_eq!(listening_socket(&line("0A"), 5174), None);
        assert_eq!(listening_socket(&line("01"), 5173), None);
        assert_eq!(listening_socket("  sl  local_address rem_address   st", 5173), None);
    }

    #[test]
    fn a_port_of_another_process_is_not_of_the_scope() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!ProcessScope::default().listens_at(port), "the test itself has no scope");
    }
}
