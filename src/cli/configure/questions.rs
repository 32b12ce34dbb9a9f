//! Asks questions at the terminal and reads the answers line by line.

use std::io::{BufRead as _, Write as _};

use super::super::output::{CommandError, CommandOutput, display_line};

/// Asks for a text. Enter alone keeps `held`.
pub(super) fn question(text: &str, held: Option<&str>, output: &mut CommandOutput) -> Result<String, CommandError> {
    let held = held.unwrap_or_default();
    let shown_held = if held.is_empty() { String::new() } else { format!(" [{}]", display_line(held)) };
    output.text(&format!("{text}{shown_held}: "));
    let line = line()?;
    Ok(if line.is_empty() { held.to_owned() } else { line })
}

/// Asks a question that Enter alone answers with yes.
pub(super) fn yes(text: &str, output: &mut CommandOutput) -> Result<bool, CommandError> {
    output.text(&format!("{text} [Y/n] "));
    Ok(!line()?.to_lowercase().starts_with('n'))
}

fn line() -> Result<String, CommandError> {
    std::io::stdout().flush().map_err(|error| no_terminal_error(&error))?;
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line).map_err(|error| no_terminal_error(&error))? == 0 {
        return Err(CommandError::usage(
            "the answers ended here; nothing was changed",
            "Enter alone keeps what is shown",
        ));
    }
    Ok(line.trim().to_owned())
}

/// Reads a line without echo.
pub(super) fn read_hidden_line(text: &str, output: &mut CommandOutput) -> Result<String, CommandError> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let stdin = std::io::stdin();
    let failed = |error: rustix::io::Errno| no_terminal_error(&error.into());
    let before = tcgetattr(&stdin).map_err(failed)?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Flush, &quiet).map_err(failed)?;
    // Print the question only after echo is off: the user may type at once.
    output.text(text);
    let read = line();
    tcsetattr(&stdin, OptionalActions::Flush, &before).map_err(failed)?;
    output.text("\n");
    read
}

pub(super) fn no_terminal_error(error: &std::io::Error) -> CommandError {
    CommandError::usage(
        format!("no terminal to ask: {error}"),
        "say it with flags; `skein configure --help` lists them",
    )
}
