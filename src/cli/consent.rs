//! Asks the user at the terminal for consent: shows the call in full and reads one key as the answer.
//!
//! Invariant: no text of a model or tool controls the terminal while the user is asked, and nothing is printed into a
//! question.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use futures::future::BoxFuture;

use super::folders::Folders;
use super::keyboard::{Key, Keyboard};
use super::output::{BOLD, QUIET, clear_line, display_line, verbatim};
use super::rule_store::UserConfig;
use super::wrap::{Margin, Wrap, paragraph, screen_width};
use super::{diff, elicit};
use crate::broker::RuleStore as _;
use crate::diagnostic::printable;
use crate::manifest::PermissionRule;
use crate::text::escape_json;
use crate::tool;
use crate::tool::ask::{Asker, ExternalPermissionRequest, PermissionRequest, PermissionResponse};
use crate::tool::elicit::{Elicitation, ElicitationResponse};

/// Lines that are shown before the rest is folded.
const MAX_LINES: usize = 40;

/// Longest time to wait until a cancelled question leaves the screen.
const PATIENCE: Duration = Duration::from_secs(2);

/// Lock on the screen: while a question is shown, no other task prints.
#[derive(Debug, Default)]
pub(super) struct ScreenLock {
    taken: Mutex<bool>,
    /// Notified whenever `taken` changes; `wait` waits for it.
    free: Condvar,
}

impl ScreenLock {
    /// Runs `work` if no question is shown, and keeps questions off until it returns. `None` if one is shown.
    pub(super) fn if_free<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let taken = self.lock();
        (!*taken).then(work)
    }

    /// Waits until a cancelled question is off the screen, for at most `PATIENCE`.
    pub(super) fn wait(&self) {
        drop(self.free.wait_timeout_while(self.lock(), PATIENCE, |taken| *taken));
    }

    fn set(&self, taken: bool) {
        *self.lock() = taken;
        self.free.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks at the terminal, one question at a time.
pub(super) struct TerminalAsker {
    keyboard: Arc<Keyboard>,
    floor: Arc<ScreenLock>,
    rules: UserConfig,
    turn: tokio::sync::Mutex<()>,
}

/// Sets the flag when dropped, so that the reader stops waiting for an answer.
struct AnswerGuard(Arc<AtomicBool>);

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl TerminalAsker {
    pub(super) fn new(keyboard: Arc<Keyboard>, floor: Arc<ScreenLock>, folders: &Folders) -> Self {
        let rules = UserConfig { folder: folders.config.clone() };
        Self { keyboard, floor, rules, turn: tokio::sync::Mutex::default() }
    }
}

impl Asker for TerminalAsker {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        Box::pin(async move {
            let rule = question.rule.clone();
            let put = move |keyboard: &Keyboard, given_up: &AtomicBool| answer(&question, keyboard, given_up);
            match self.ask_exclusively(put).await {
                Some(ConsentAnswer::Yes) => PermissionResponse::Allow,
                Some(ConsentAnswer::Always) => PermissionResponse::AllowAlways,
                Some(ConsentAnswer::InProject) => rule.map_or(PermissionResponse::Allow, |rule| self.keep(&rule)),
                Some(ConsentAnswer::No) => PermissionResponse::Refuse,
                None => PermissionResponse::Unavailable,
            }
        })
    }

    fn choose(&self, choosing: ExternalPermissionRequest) -> BoxFuture<'_, Option<String>> {
        Box::pin(async move {
            let put = move |keyboard: &Keyboard, given_up: &AtomicBool| choice(&choosing, keyboard, given_up);
            self.ask_exclusively(put).await.flatten()
        })
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        Box::pin(async move {
            let put = move |keyboard: &Keyboard, given_up: &AtomicBool| elicit::put(&question, keyboard, given_up);
            self.ask_exclusively(put).await.unwrap_or(ElicitationResponse::Unavailable)
        })
    }
}

/// Asks for the parameters of a command that the user typed.
pub(super) struct ParameterAsker(pub(super) Arc<TerminalAsker>);

impl Asker for ParameterAsker {
    fn ask(&self, question: PermissionRequest) -> BoxFuture<'_, PermissionResponse> {
        self.0.ask(question)
    }

    fn elicit(&self, question: Elicitation) -> BoxFuture<'_, ElicitationResponse> {
        Box::pin(async move {
            let put =
                move |keyboard: &Keyboard, given_up: &AtomicBool| elicit::put_fields(&question, keyboard, given_up);
            self.0.ask_exclusively(put).await.unwrap_or(ElicitationResponse::Unavailable)
        })
    }
}

impl TerminalAsker {
    /// Asks a question while no other task prints or asks. `None` if the terminal cannot be used.
    async fn ask_exclusively<T: Send + 'static>(
        &self,
        put: impl FnOnce(&Keyboard, &AtomicBool) -> std::io::Result<T> + Send + 'static,
    ) -> Option<T> {
        let _turn = self.turn.lock().await;
        let awaited = AnswerGuard(Arc::default());
        let (keyboard, floor, given_up) = (Arc::clone(&self.keyboard), Arc::clone(&self.floor), Arc::clone(&awaited.0));
        floor.set(true);
        // The reader releases the screen, even if the caller stopped waiting: only then is the question off the screen.
        let asked = tokio::task::spawn_blocking(move || {
            let said = put(&keyboard, &given_up);
            floor.set(false);
            said
        });
        asked.await.ok().and_then(Result::ok)
    }

    /// Stores the rule in the user's config. The call is allowed even if that fails.
    fn keep(&self, rule: &PermissionRule) -> PermissionResponse {
        let told = match self.rules.keep(rule) {
            Ok(()) => format!("kept in your config: {rule}"),
            Err(problem) => format!("not kept, but allowed in this session: {problem}"),
        };
        clear_line();
        if let Err(error) = write!(anstream::stderr(), "{}", paragraph(&display_line(&told), 2, QUIET, screen_width()))
        {
            tracing::warn!(%error, "the terminal cannot be written to");
        }
        PermissionResponse::AllowAlways
    }
}

/// Shows the permission request of an external agent with its options. `None` if the user chooses none of them.
fn choice(
    choosing: &ExternalPermissionRequest,
    keyboard: &Keyboard,
    given_up: &AtomicBool,
) -> std::io::Result<Option<String>> {
    let mut stderr = anstream::stderr();
    let yellow = AnsiColor::Yellow.on_default().bold();
    clear_line();
    writeln!(
        stderr,
        "{yellow}?{yellow:#} {} asks about {BOLD}{}{BOLD:#}",
        display_line(&choosing.by),
        display_line(&choosing.title)
    )?;
    // Show the input as well, because the title alone may hide what the call does.
    let json = choosing.input.as_ref().map(|input| serde_json::to_string_pretty(input).unwrap_or_default());
    let json = escape_json(&json.unwrap_or_default());
    let lines: Vec<String> = json.lines().map(|line| format!("    {}", verbatim(line))).collect();
    let folded = print_folded(&lines, &mut stderr)?;
    // One digit per option, for at most nine options.
    let options: Vec<_> = ('1'..='9').zip(&choosing.options).collect();
    for (key, option) in &options {
        writeln!(stderr, "    {BOLD}{key}{BOLD:#} {}", display_line(&option.name))?;
    }
    if options.len() < choosing.options.len() {
        writeln!(stderr, "    {QUIET}… {} more options{QUIET:#}", choosing.options.len() - options.len())?;
    }
    let all = if folded { format!(", {BOLD}s{BOLD:#} show all") } else { String::new() };
    let offer = || {
        let last = options.len();
        write!(anstream::stderr(), "  {BOLD}1{BOLD:#} to {BOLD}{last}{BOLD:#}{all}, or {BOLD}n{BOLD:#} no ")?;
        anstream::stderr().flush()
    };
    let meaning = |key| {
        Ok(match key {
            Key::Letter('n' | 'N') | Key::Escape => Some(None),
            Key::Letter('s' | 'S') if folded => {
                let mut stderr = anstream::stderr();
                lines.iter().try_for_each(|line| write!(stderr, "\n{line}"))?;
                writeln!(stderr)?;
                None
            }
            Key::Letter(letter) => options.iter().find(|(key, _)| *key == letter).map(|(_, option)| Some(*option)),
            Key::Enter => None,
        })
    };
    let chosen = keyboard.ask(given_up, offer, meaning)?.flatten();
    writeln!(stderr, "{BOLD}→ {}{BOLD:#}", chosen.map_or("no".to_owned(), |option| display_line(&option.name)))?;
    Ok(chosen.map(|option| option.id.clone()))
}

/// Prints lines, and how many more there are if they do not fit. Returns whether some are left out.
fn print_folded(lines: &[String], output: &mut impl Write) -> std::io::Result<bool> {
    let folded = lines.len() > MAX_LINES;
    let few = if folded { MAX_LINES - 1 } else { lines.len() };
    lines[..few].iter().try_for_each(|line| writeln!(output, "{line}"))?;
    if folded {
        writeln!(output, "    {QUIET}… {} more lines{QUIET:#}", lines.len() - few)?;
    }
    Ok(folded)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ConsentAnswer {
    Yes,
    Always,
    InProject,
    No,
}

/// How long consent can last beyond one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ConsentPeriod {
    Never,
    Session,
    Project,
}

/// Shows the call and waits for a valid key.
fn answer(question: &PermissionRequest, keyboard: &Keyboard, given_up: &AtomicBool) -> std::io::Result<ConsentAnswer> {
    let mut stderr = anstream::stderr();
    let lines = describe(question);
    let yellow = AnsiColor::Yellow.on_default().bold();
    clear_line();
    let by = question.by.as_ref().map(|by| format!("{}: ", display_line(by))).unwrap_or_default();
    let tool = format!("{BOLD}{}{BOLD:#}", display_line(&question.tool));
    let services = question.calling_services();
    let wish = match (question.own_title(), services, question.always.host()) {
        (Some(title), _, _) => {
            let asks = question.sandbox_title().map_or("", |_| "the sandbox asks: ");
            format!("{asks}{BOLD}{}{BOLD:#}", display_line(title))
        }
        (None, Some(services), Some(host)) => {
            format!("{services} asks to call {tool}, which fetches from {BOLD}{}{BOLD:#}:", display_line(host))
        }
        (None, Some(services), None) => format!("{services} asks to call {tool}:"),
        (None, None, Some(host)) => format!("{tool} wants to fetch from {BOLD}{}{BOLD:#}:", display_line(host)),
        (None, None, None) => format!("{tool} wants to run:"),
    };
    writeln!(stderr, "{yellow}?{yellow:#} {by}{wish}")?;
    let folded = print_folded(&lines, &mut stderr)?;
    let once_reason = question.once_reason();
    let once = once_reason.is_some();
    let note = match once_reason {
        Some(reason) => display_line(&reason),
        None => format!("always would cover {}", display_line(&question.always.to_string())),
    };
    write!(stderr, "{}", paragraph(&note, 2, if once { yellow } else { QUIET }, screen_width()))?;
    let period = match (once, question.rule.is_some()) {
        (true, _) => ConsentPeriod::Never,
        (false, false) => ConsentPeriod::Session,
        (false, true) => ConsentPeriod::Project,
    };
    let keys = keys(period, folded);
    let mut again = false;
    let offer = || {
        // Start a new line when the keys are offered again.
        let gap = if std::mem::replace(&mut again, true) { "\n" } else { "" };
        write!(anstream::stderr(), "{gap}{keys}").and_then(|()| anstream::stderr().flush())
    };
    let meaning = |key| {
        Ok(match key {
            Key::Letter('y' | 'Y') => Some((ConsentAnswer::Yes, "yes")),
            Key::Letter('a' | 'A') if period >= ConsentPeriod::Session => Some((ConsentAnswer::Always, "always")),
            Key::Letter('p' | 'P') if period == ConsentPeriod::Project => Some((ConsentAnswer::InProject, "always")),
            Key::Letter('s' | 'S') if folded => {
                let mut stderr = anstream::stderr();
                lines.iter().try_for_each(|line| write!(stderr, "\n{line}"))?;
                None
            }
            Key::Letter('n' | 'N') | Key::Escape => Some((ConsentAnswer::No, "no")),
            // A key without a meaning is neither consent nor refusal.
            Key::Letter(_) | Key::Enter => None,
        })
    };
    let Some((said, word)) = keyboard.ask(given_up, offer, meaning)? else {
        writeln!(stderr)?;
        return Ok(ConsentAnswer::No);
    };
    writeln!(stderr, "{BOLD}→ {word}{BOLD:#}")?;
    Ok(said)
}

/// Renders the valid keys.
fn keys(period: ConsentPeriod, folded: bool) -> String {
    let (mut wrap, width, plain) = (Wrap::default(), screen_width(), Style::new());
    wrap.begin(Margin { first: "  ".to_owned(), next: "  ".to_owned(), width: 2 });
    let all = [
        ("y", "yes", true),
        ("n", "no", true),
        ("a", "always in session", period >= ConsentPeriod::Session),
        ("p", "always in project", period == ConsentPeriod::Project),
        ("s", "show all", folded),
    ];
    for (at, (key, meaning, _)) in all.iter().filter(|(_, _, offered)| *offered).enumerate() {
        if at > 0 {
            wrap.push(" · ", plain, width);
        }
        wrap.push(key, BOLD, width);
        // Non-breaking spaces keep the meaning next to its key.
        wrap.push(&format!("\u{a0}{}", meaning.replace(' ', "\u{a0}")), plain, width);
    }
    wrap.flush(width);
    wrap.take().replace('\u{a0}', " ") + " "
}

/// Describes the call: its command or script, the diff of an edit, or its arguments.
fn describe(question: &PermissionRequest) -> Vec<String> {
    let mut rest = question.arguments.clone();
    let target = question.target.as_ref().filter(|_| rest.contains_key("path"));
    let mut lines: Vec<String> = target.map(|target| format!("    {target}")).into_iter().collect();
    let command = tool::command(&question.arguments).map(|command| ("command", command));
    let script = || tool::script(&question.arguments).map(|script| ("script", script.text));
    if let Some((name, code)) = command.or_else(script) {
        rest.remove(name);
        let cyan = AnsiColor::Cyan.on_default();
        lines.extend(code.lines().map(|line| format!("    {cyan}{}{cyan:#}", printable(&verbatim(line)))));
    } else if let Some(change) = &question.change {
        // The diff shows all of these.
        ["path", "content", "edits"].iter().for_each(|key| drop(rest.remove(*key)));
        let diff = diff::lines(change.before.as_deref(), &change.after, usize::MAX);
        lines.extend(diff.into_iter().map(|line| format!("    {line}")));
    }
    if !rest.is_empty() {
        let json = escape_json(&serde_json::to_string_pretty(&rest).unwrap_or_default());
        lines.extend(json.lines().map(|line| format!("    {}", verbatim(line))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_says_how_many_lines_it_leaves_out() {
        let lines = |count: usize| (0..count).map(|line| line.to_string()).collect::<Vec<_>>();
        let printed = |count: usize| {
            let mut output = Vec::new();
            let folded = print_folded(&lines(count), &mut output).unwrap();
            (folded, String::from_utf8(output).unwrap())
        };
        let (folded, text) = printed(MAX_LINES);
        assert!(!folded && text.lines().count() == MAX_LINES && !text.contains("more lines"));
        let (folded, text) = printed(MAX_LINES + 5);
        assert!(folded && text.lines().count() == MAX_LINES && text.contains("… 6 more lines"), "{text}");
    }
}
