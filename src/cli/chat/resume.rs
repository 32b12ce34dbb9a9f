//! Resumes a stored session: lets the user choose one, and shows its last turns.

use super::super::output::{BOLD, CommandError, CommandOutput, QUIET, cut, display_line};
use super::super::session_flags::{LaunchSettings, SessionSelector};
use super::super::wrap::screen_width as width;
use super::input::{CompletionWords, Input, LineInput, editor_failure};
use super::screen::Screen;
use crate::agents::{Event, active_events};
use crate::clock;
use crate::conversation::Role;

/// Maximum number of sessions to offer.
const MAX_OFFERED: usize = 20;
/// Number of turns to show again.
const RECALLED: usize = 3;

/// Asks which session of this folder to resume. `None` if the user leaves.
pub(super) async fn pick(
    opening: &LaunchSettings<'_>,
    input: &Input,
    output: &mut CommandOutput,
) -> Result<Option<SessionSelector>, CommandError> {
    let found = opening.folder_sessions(MAX_OFFERED).await?;
    if found.is_empty() {
        return Err(CommandError::NoSession {
            problem: "no session was held in this folder yet".to_owned(),
            help: "leave out --resume; `skein sessions list --all` shows those of other folders".to_owned(),
        });
    }
    for (at, session) in found.iter().enumerate() {
        let about = format!(
            "{}/{} · {}",
            display_line(&session.agent),
            display_line(&session.mode),
            clock::ago(session.updated_at)
        );
        let room = width().saturating_sub(8 + about.chars().count());
        let title = cut(&session.title.as_deref().map_or_else(|| "(no title)".to_owned(), display_line), room.max(12));
        output.line(&format!("{BOLD}{:>3}{BOLD:#}  {title}  {QUIET}{about}{QUIET:#}", at + 1));
    }
    loop {
        match input.line("Which one? [1] ", "", CompletionWords::default()).await {
            LineInput::Ended | LineInput::Interrupted { .. } => return Ok(None),
            LineInput::Broken(why) => return Err(editor_failure(&why)),
            LineInput::Line(line) => {
                let number = if line.trim().is_empty() { Ok(1) } else { line.trim().parse::<usize>() };
                match number.ok().and_then(|number| found.get(number.checked_sub(1)?)) {
                    Some(session) => return Ok(Some(SessionSelector::Id(session.id.clone()))),
                    None => output.note(&format!("write a number from 1 to {}, or leave with Ctrl-D", found.len())),
                }
            }
        }
    }
}

/// A prompt, its last answer and its number of calls.
#[derive(Default)]
struct PastTurn {
    prompt: String,
    answer: String,
    calls: usize,
}

/// Shows the last turns again, for orientation.
pub(super) fn recall(events: &[Event], screen: &Screen) {
    let mut exchanges: Vec<PastTurn> = Vec::new();
    for event in active_events(events).into_iter().flat_map(|(_, event)| event.native_events()) {
        match event {
            Event::Message { message } if message.is_prompt() => {
                exchanges.push(PastTurn { prompt: message.text(), ..PastTurn::default() });
            }
            Event::Message { message } if message.role == Role::Assistant => {
                if let (Some(last), false) = (exchanges.last_mut(), message.text().trim().is_empty()) {
                    last.answer = message.text();
                }
            }
            Event::ToolEnded { .. } => exchanges.last_mut().into_iter().for_each(|last| last.calls += 1),
            _ => {}
        }
    }
    let skipped = exchanges.len().saturating_sub(RECALLED);
    if skipped > 0 {
        screen.remark(&format!("… {skipped} earlier"));
    }
    let last = exchanges.len().saturating_sub(1);
    for (at, exchange) in exchanges.iter().enumerate().skip(skipped) {
        let mut lines = exchange.prompt.lines();
        let first = cut(&display_line(lines.next().unwrap_or_default()), width().saturating_sub(4));
        let more = if lines.next().is_some() { " …" } else { "" };
        screen.print_text(&format!("\n{BOLD}› {first}{more}{BOLD:#}\n"));
        if exchange.calls > 0 {
            screen.remark(&format!("{} {}", exchange.calls, if exchange.calls == 1 { "call" } else { "calls" }));
        }
        // Show the last answer in full, and one line of each earlier one.
        match at == last {
            true => screen.markdown(&exchange.answer),
            false => {
                let line = exchange.answer.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
                screen.remark(&cut(&display_line(line.trim_start_matches(['#', ' '])), width()));
            }
        }
    }
}
