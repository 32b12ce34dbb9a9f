//! Asks questions at the terminal and reads the answers line by line.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use super::super::keyboard::words;
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
        return Err(answers_ended());
    }
    Ok(line.trim().to_owned())
}

fn answers_ended() -> CommandError {
    CommandError::usage("the answers ended here; nothing was changed", "Enter alone keeps what is shown")
}

/// Asks for a text and reads it without echo.
pub(super) fn read_hidden_line(text: &str, output: &mut CommandOutput) -> Result<String, CommandError> {
    let ask = || {
        output.text(text);
        Ok(())
    };
    let typed = read_hidden(ask);
    output.text("\n");
    typed?.ok_or_else(answers_ended)
}

/// Reads the key of `provider` from stdin; empty if there is none. At a terminal, asks for it on stderr, because stdout
/// may carry JSON, and hides it.
pub(super) fn read_key(provider: &str) -> Result<String, CommandError> {
    if !std::io::stdin().is_terminal() {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(|error| no_terminal_error(&error))?;
        return Ok(line.trim().to_owned());
    }
    let mut stderr = std::io::stderr();
    let typed = read_hidden(|| write!(stderr, "Key for {} (not shown): ", display_line(provider)));
    writeln!(std::io::stderr()).map_err(|error| no_terminal_error(&error))?;
    Ok(typed?.unwrap_or_default())
}

/// Asks, and reads a line that the terminal does not show. `None` if the input ends before the line.
fn read_hidden(ask: impl FnOnce() -> std::io::Result<()>) -> Result<Option<String>, CommandError> {
    use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
    let stdin = std::io::stdin();
    let failed = |error: rustix::io::Errno| no_terminal_error(&error.into());
    let before = tcgetattr(&stdin).map_err(failed)?;
    let mut quiet = before.clone();
    // A signal of the keyboard would end or stop the program before it restores the echo. Without these modes, Ctrl-C
    // is a byte, and no byte waits for the end of a line.
    quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
    quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
    tcsetattr(&stdin, OptionalActions::Flush, &quiet).map_err(failed)?;
    // Print the question only after echo is off: the user may type at once.
    let typed = ask().and_then(|()| Ok(read_keys()?));
    tcsetattr(&stdin, OptionalActions::Flush, &before).map_err(failed)?;
    match typed.map_err(|error| no_terminal_error(&error))? {
        HiddenInput::Line(line) => Ok(Some(line)),
        HiddenInput::Ended => Ok(None),
        HiddenInput::Interrupted => Err(CommandError::Interrupted),
    }
}

/// The end of a hidden input.
enum HiddenInput {
    Line(String),
    /// Ctrl-D before any text, or a closed terminal.
    Ended,
    /// Ctrl-C.
    Interrupted,
}

fn read_keys() -> rustix::io::Result<HiddenInput> {
    let mut typed = Vec::new();
    loop {
        let mut byte = [0; 1];
        // One byte at a time: what follows the line stays in the terminal and is dropped with the old modes.
        let count = match rustix::io::read(std::io::stdin(), &mut byte) {
            Err(rustix::io::Errno::INTR) => continue,
            read => read?,
        };
        match byte[0] {
            _ if count == 0 => return Ok(HiddenInput::Ended),
            0x03 => return Ok(HiddenInput::Interrupted),
            0x04 if typed.is_empty() => return Ok(HiddenInput::Ended),
            b'\r' | b'\n' | 0x04 => return Ok(HiddenInput::Line(words(&typed).trim().to_owned())),
            // Ctrl-U and Ctrl-W: a key is one word.
            0x15 | 0x17 => typed.clear(),
            other => typed.push(other),
        }
    }
}

fn no_terminal_error(error: &std::io::Error) -> CommandError {
    CommandError::usage(
        format!("no terminal to ask: {error}"),
        "say it with flags; `skein configure --help` lists them",
    )
}
