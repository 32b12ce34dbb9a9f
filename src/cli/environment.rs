//! Reads environment variables.

/// Returns the variable's value. An empty variable counts as unset.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
