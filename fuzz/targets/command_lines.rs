//! Command lines: reading gives the same parts twice, within its limit of time. Of a line that rules allow, bash runs
//! only what the rules name.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use skein::manifest::{PermissionRule, RuleEffect};
use skein::permissions::{Argument, Call, RuleDecision, RuleOrigin, SourcedRule, evaluate, read};
use tempfile::TempDir;

use super::real_bash::{is_named, programs, really_ran};
use super::text_of;

thread_local! {
    /// The end of the thread removes it, unlike a static.
    static FOLDER: TempDir = {
        let folder = tempfile::tempdir().expect("a folder");
        programs(folder.path());
        folder
    };
}

static RULES: LazyLock<Vec<SourcedRule>> = LazyLock::new(|| {
    let rule = |pattern: &str| {
        let text = format!("developer__shell: {{command: \"{pattern}\"}}");
        let rule = PermissionRule::from_text(&text, RuleEffect::Allow).expect("a rule");
        SourcedRule { rule, origin: RuleOrigin::Flag }
    };
    ["safe", "safe one", "ok *"].map(rule).to_vec()
});

pub(super) fn run(data: &[u8]) {
    let line = text_of(data);
    let start = Instant::now();
    let script = read(line);
    assert!(start.elapsed() < Duration::from_secs(5), "reading takes too long");
    assert_eq!(script, read(line));
    // A blank line has nothing to run.
    if line.trim_matches([' ', '\t', '\n']).is_empty() {
        assert!(script.parts.is_empty());
    }
    let arguments = BTreeMap::from([("command".to_owned(), Argument::Command(line.to_owned()))]);
    let call = Call { tool: "developer__shell", arguments: &arguments, brought: false };
    if matches!(evaluate(&RULES, call), RuleDecision::Allow(_)) {
        for ran in FOLDER.with(|folder| really_ran(folder.path(), line)) {
            assert!(is_named(&ran), "{line:?} is allowed and ran {ran}");
        }
    }
}
