//! URLs that are paths of this machine.

use super::known_forms;

/// How a store is named that is at a path.
pub(super) struct PathUrl {
    /// What stands before the colon.
    pub(super) scheme: &'static str,
    /// What is at the path.
    pub(super) what: &'static str,
    pub(super) example: &'static str,
}

impl PathUrl {
    /// The path that is meant by what stands behind the scheme. What other programs write there and would mean something
    /// else here is refused, or something with an odd name would be made without a word.
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
            // As other programs write it: no host, then the path.
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
