//! Proves the statements of an assertion file on a plan, or finds a counter-example.
//!
//! Invariant: an assertion about nothing is an error. A name that matches nothing is a mistake, not a success.

mod reach;
mod sandbox;
mod selection;

use crate::diagnostic::{Diagnostic, SourceLocation};
use crate::ids::NamePattern;
use crate::manifest::{AllowedNames, ApprovalLevel, Assertion, AssertionFile, DocumentPath, SourceFile};

use super::plan::Plan;
use reach::{ReachTarget, TargetKind};
use selection::Selection;

/// The result of one assertion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssertionReport {
    /// The name of the assertion, else what it says.
    pub title: String,
    pub at: SourceLocation,
    /// Counter-examples and mistakes; empty if the assertion holds.
    pub diagnostics: Vec<Diagnostic>,
}

/// Checks every assertion of a file.
pub fn check_assertions(plan: &Plan, file: &AssertionFile, source: &SourceFile) -> Vec<AssertionReport> {
    let approvals = file.approval.clone().unwrap_or_else(|| ApprovalLevel::ALL.to_vec());
    let check = |(index, assertion): (usize, &Assertion)| {
        let path = DocumentPath::root().key("assert").index(index);
        let mut check = AssertionCheck { plan, assertion, approvals: &approvals, source, path, found: Vec::new() };
        check.run();
        AssertionReport { title: title(index, assertion), at: source.place(&check.path), diagnostics: check.found }
    };
    file.assert.iter().enumerate().map(check).collect()
}

fn title(index: usize, assertion: &Assertion) -> String {
    assertion.name.clone().unwrap_or_else(|| format!("assertion {}", index + 1))
}

/// The check of one assertion.
struct AssertionCheck<'a> {
    plan: &'a Plan,
    assertion: &'a Assertion,
    /// The levels that sessions may use.
    approvals: &'a [ApprovalLevel],
    source: &'a SourceFile,
    path: DocumentPath,
    found: Vec<Diagnostic>,
}

impl AssertionCheck<'_> {
    fn run(&mut self) {
        let Some(selection) = self.select() else { return };
        let Assertion { reach, groups, tools, sandbox, approval, delegates, only, .. } = self.assertion;
        let has_predicate = reach.is_some()
            || groups.is_some()
            || tools.is_some()
            || sandbox.is_some()
            || approval.is_some()
            || delegates.is_some();
        if !has_predicate {
            let help = "add `reach`, `groups`, `tools`, `sandbox`, `approval` or `delegates`";
            self.mistake(self.source.place(&self.path), "the assertion states nothing", help);
            return;
        }
        if only.is_some() && (reach.is_none() || groups.is_some() || tools.is_some() || sandbox.is_some()) {
            let help = "write `only: [MODE], reach: {service: NAME}`";
            self.mistake(self.source.place(&self.path), "`only` needs `reach` and no other statement", help);
            return;
        }
        if let Some(reach) = reach {
            self.check_reach(&selection, reach);
        }
        if let Some(groups) = groups {
            self.check_names(&selection, "groups", groups);
        }
        if let Some(tools) = tools {
            self.check_names(&selection, "tools", tools);
        }
        if let Some(delegates) = delegates {
            self.check_names(&selection, "delegates", delegates);
        }
        if let Some(sandbox) = sandbox {
            self.check_sandbox(&selection, sandbox);
        }
        if let Some(approval) = approval {
            self.check_approval(&selection, approval);
        }
    }

    /// Reports that the file itself is wrong.
    fn mistake(&mut self, at: SourceLocation, problem: &str, help: &str) {
        self.found.push(Diagnostic::error("E140", at, problem, help));
    }

    /// Reports a counter-example.
    fn counter_example(&mut self, field: &str, problem: String) {
        let at = self.source.key_place(&self.path.key(field));
        let help = "change the manifest that this names, or the assertion";
        self.found.push(Diagnostic::error("E142", at, problem, help));
    }

    /// Compares the groups, tools or delegates of the selected modes with a list.
    fn check_names(&mut self, selection: &Selection, field: &'static str, names: &AllowedNames) {
        let path = self.path.key(field);
        let (written, path, is_allowed_list) = match names {
            AllowedNames::Only(names) => (names, path, true),
            AllowedNames::Not(excluded) => (&excluded.not, path.key("not"), false),
        };
        if self.has_unknown_names(field, written, &path) {
            return;
        }
        let patterns: Vec<_> = written.iter().map(|name| NamePattern::new(name)).collect();
        for mode in &selection.modes {
            for name in self.names_of(mode, field) {
                let is_listed = patterns.iter().any(|pattern| pattern.matches(&name));
                if is_listed != is_allowed_list {
                    let problem = match field {
                        "delegates" => format!("{} may delegate to {name}", mode.agent),
                        "tools" => format!("{mode} has the tool {name}"),
                        _ => format!("{mode} has the group {name}"),
                    };
                    self.counter_example(field, problem);
                }
            }
        }
    }

    /// Reports each name that matches nothing. Returns true if there is one.
    fn has_unknown_names(&mut self, field: &str, written: &[String], path: &DocumentPath) -> bool {
        let (noun, known) = match field {
            "delegates" => ("mode", reach::all_modes(self.plan).iter().map(ToString::to_string).collect()),
            "tools" => ("tool", reach::names_in_plan(self.plan, TargetKind::Tool)),
            _ => ("group", reach::group_names(self.plan)),
        };
        let is_unknown = |name: &str| {
            let pattern = NamePattern::new(name);
            let may_exist = field == "tools" && reach::may_be_undeclared(self.plan, name);
            !may_exist && !known.iter().any(|known| pattern.matches(known))
        };
        let unknown: Vec<_> = written.iter().enumerate().filter(|(_, name)| is_unknown(name)).collect();
        for (index, name) in &unknown {
            self.report_unknown_at(self.source.place(&path.index(*index)), noun, name, &known);
        }
        !unknown.is_empty()
    }

    fn names_of(&self, mode: &crate::ids::ModeId, field: &str) -> Vec<String> {
        let Some((_, scope)) = self.plan.mode(mode) else { return Vec::new() };
        match field {
            "delegates" => self.plan.delegates(&mode.agent).iter().map(ToString::to_string).collect(),
            "tools" => reach::tools_of(self.plan, scope),
            _ => scope.rules().iter().map(|rule| rule.group.to_string()).collect(),
        }
    }

    fn check_approval(&mut self, selection: &Selection, allowed: &[ApprovalLevel]) {
        for id in &selection.modes {
            let Some((entry, _)) = self.plan.mode(id) else { continue };
            let level = self.plan.approval(entry);
            if !allowed.contains(&level) {
                self.counter_example("approval", format!("{id} has the approval level {}", level.as_str()));
            }
        }
    }

    fn check_reach(&mut self, selection: &Selection, reach: &crate::manifest::ReachAssertion) {
        let target = match ReachTarget::new(self.plan, reach) {
            Ok(target) => target,
            Err(problem) => {
                let at = self.source.place(&self.path.key("reach"));
                self.found.push(Diagnostic::error("E141", at, problem.text, problem.help));
                return;
            }
        };
        let must_not = reach.never || self.assertion.only.is_some();
        if reach.never && self.assertion.only.is_some() {
            let at = self.source.place(&self.path.key("reach").key("never"));
            self.mistake(at, "`never` says the same as `only`", "remove `never`, or select modes with `modes`");
            return;
        }
        // `only` names the modes that may; all others must not.
        let checked: Vec<_> = match self.assertion.only {
            Some(_) => reach::all_modes(self.plan).into_iter().filter(|mode| !selection.modes.contains(mode)).collect(),
            None => selection.modes.clone(),
        };
        for mode in checked {
            match (target.path_from(self.plan, &mode), must_not) {
                (Some(path), true) => {
                    self.counter_example("reach", format!("{mode} reaches {target}: {}", path.join(" → ")));
                }
                (None, false) => self.counter_example("reach", format!("{mode} does not reach {target}")),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "assertions/assertions_tests.rs"]
mod tests;
