//! The commands that an external agent starts in terminals, as lines of a shell. Rules judge these lines.

use std::path::Path;

use agent_client_protocol::v1::schema as acp;

/// Words that a shell does not read as a program name.
const RESERVED: [&str; 20] = [
    "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for", "in", "function",
    "select", "time", "coproc", "!", "{", "[[",
];

/// Some agents send a whole command line as the program, which needs a shell. Rules and users see the shell, too.
pub(super) fn with_shell(mut request: acp::CreateTerminalRequest) -> acp::CreateTerminalRequest {
    let is_line = request.args.is_empty() && request.command.contains(char::is_whitespace);
    if is_line && !Path::new(&request.command).is_file() {
        let line = std::mem::replace(&mut request.command, "sh".to_owned());
        request.args = vec!["-c".to_owned(), line];
    }
    request
}

/// Returns the shell command line that does the same as the request. Rules and users see this line.
pub(super) fn command_line(request: &acp::CreateTerminalRequest, cwd: Option<&Path>) -> String {
    let mut words: Vec<_> =
        request.env.iter().map(|variable| format!("{}={}", variable.name, shell_quote(&variable.value))).collect();
    // A shell would read `A=b` as an assignment, and a reserved word as syntax.
    let program = &request.command;
    let means_more = program.contains('=') || RESERVED.contains(&program.as_str());
    words.push(if means_more { in_quotes(program) } else { shell_quote(program) });
    words.extend(request.args.iter().map(|argument| shell_quote(argument)));
    let line = words.join(" ");
    cwd.map_or(line.clone(), |cwd| format!("cd {} && {line}", shell_quote(&cwd.to_string_lossy())))
}

fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { in_quotes(word) }
}

fn in_quotes(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns whether a shell reads the text as the name of a variable.
pub(super) fn is_variable(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_command_is_judged_as_the_line_that_does_the_same() {
        let request: acp::CreateTerminalRequest = serde_json::from_value(json!({
            "sessionId": "s", "command": "rm", "args": ["-rf", "it's all", "$HOME"], "env": [{"name": "A", "value": "b c"}],
        }))
        .unwrap();
        let line = r"A='b c' rm -rf 'it'\''s all' '$HOME'";
        assert_eq!(command_line(&request, None), line);
        assert_eq!(command_line(&request, Some(Path::new("/tmp/x y"))), format!("cd '/tmp/x y' && {line}"));
    }

    #[test]
    fn nothing_is_smuggled_past_the_judge() {
        for name in ["git status X", "\ngit status", "A=b", "", "1A", "A-B", "A;B"] {
            assert!(!is_variable(name), "{name:?}");
        }
        assert!(is_variable("PYTHONPATH") && is_variable("_x1"));
        let request: acp::CreateTerminalRequest =
            serde_json::from_value(json!({"sessionId": "s", "command": "A=b", "args": ["git", "status"]})).unwrap();
        assert_eq!(command_line(&request, None), "'A=b' git status");
    }
}
