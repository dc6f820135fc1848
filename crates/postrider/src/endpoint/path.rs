//! URLs with a path on this machine.

use super::known_forms;

/// The URL form of a store at a path.
pub(super) struct PathUrl {
    /// The scheme.
    pub(super) scheme: &'static str,
    /// The word for the thing at the path, in errors.
    pub(super) what: &'static str,
    pub(super) example: &'static str,
}

impl PathUrl {
    /// The path after the scheme. Forms of other programs that would mean something else here are refused; otherwise they
    /// would make a file with an odd name.
    pub(super) fn path<'u>(&self, rest: &'u str) -> Result<&'u str, String> {
        let Self { scheme, what, example } = self;
        if rest == ":memory:" || rest == "//:memory:" {
            return Err(format!("is no {what}; use memory: for a store in this process"));
        }
        if rest.contains(['?', '#']) {
            return Err(format!(
                "has parameters, and there are none; name the {what} alone, like {example}, and write settings into \
                 [common.messaging.{scheme}]"
            ));
        }
        let path = match rest.strip_prefix("//") {
            // The form of other programs: an empty host, then the path.
            Some(path) if path.starts_with('/') => path,
            Some(name) => {
                let name = name.escape_debug();
                return Err(format!("has a host, and a {what} has none; use {scheme}:{name} or {scheme}:/path/{name}"));
            }
            None => rest,
        };
        if path.is_empty() {
            return Err(format!("names no {what}; {}", known_forms()));
        }
        Ok(path)
    }
}
