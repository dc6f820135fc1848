//! Environment variables.
//!
//! The variable of a key is its name in capitals, with two underscores for every dot and `POSTRIDER__` before it:
//! `common.messaging.default_batch_size` is `POSTRIDER__COMMON__MESSAGING__DEFAULT_BATCH_SIZE`. Names of keys have
//! single underscores only, so a variable means one key or none. The two underscores after the first word distinguish
//! these variables from others that begin with `POSTRIDER_`, which are ignored unless one more underscore would make them
//! a key.

use std::ffi::OsString;

use super::draft::Given;
use super::error::Problem;
use super::keys::{self, Key};
use super::origin::Origin;
use super::suggestion;
use super::value::Written;

const PREFIX: &str = "POSTRIDER__";

/// The short name of `common.messaging.url`.
pub(super) const URL_VARIABLE: &str = "POSTRIDER_URL";
/// The short name of `common.messaging.http.token`.
pub(super) const TOKEN_VARIABLE: &str = "POSTRIDER_TOKEN";

/// Short names of keys.
const SHORT: &[(&str, &str)] = &[(URL_VARIABLE, keys::URL), (TOKEN_VARIABLE, keys::HTTP_TOKEN)];

/// The variable of a key.
pub(super) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace('.', "__"))
}

/// The values of the variables. An empty one counts as not set, because scripts and containers unset variables that way.
pub(super) fn read(variables: &[(OsString, OsString)], problems: &mut Vec<Problem>) -> Vec<Given> {
    let mut given = Vec::new();
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| is_ours(name)) else { continue };
        let origin = Origin::Environment { variable: name.into() };
        match (key_of(name), value.to_str()) {
            (_, Some("")) => {}
            (Some(key), Some(value)) => given.push(Given { key, value: Written::untyped(value), origin }),
            (Some(key), None) => problems.push(Problem::Refused {
                key: key.name.into(),
                value: "something".into(),
                origin,
                why: "it is not UTF-8 text; write it as UTF-8".into(),
            }),
            (None, _) => {
                let (key, advice) = match misspelled(name) {
                    Some(meant) => (name.to_owned(), format!("did you mean {meant}?")),
                    None => (path_of(name), advice(&path_of(name))),
                };
                problems.push(Problem::Unknown { advice, key, origin });
            }
        }
    }
    given
}

fn is_ours(name: &str) -> bool {
    short(name).is_some() || name.starts_with(PREFIX) || misspelled(name).is_some()
}

/// The variable meant by one that lacks the second of its first two underscores.
fn misspelled(name: &str) -> Option<String> {
    let meant = format!("{PREFIX}{}", name.strip_prefix("POSTRIDER_")?);
    key_of(&meant).map(|_| meant)
}

/// The key of a short name.
fn short(name: &str) -> Option<&'static str> {
    SHORT.iter().find(|(short, _)| *short == name).map(|(_, key)| *key)
}

fn key_of(name: &str) -> Option<&'static Key> {
    if let Some(key) = short(name) {
        return keys::find(key);
    }
    keys::all().find(|key| variable(key.name) == name)
}

/// The key path that a variable would mean.
fn path_of(name: &str) -> String {
    name.strip_prefix(PREFIX).unwrap_or(name).replace("__", ".").to_lowercase()
}

fn advice(path: &str) -> String {
    let known: Vec<_> = keys::all().map(|key| key.name).collect();
    match suggestion::nearest_path(path, &known) {
        Some(meant) => format!("did you mean {}?", variable(meant)),
        None => format!("unset it; what begins with {PREFIX} must be a key"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_has_its_own_variable() {
        let variables: BTreeSet<_> = keys::all().map(|key| variable(key.name)).collect();
        assert_eq!(variables.len(), keys::all().count());
        for key in keys::all() {
            assert_eq!(key_of(&variable(key.name)).unwrap().name, key.name);
            let short = variable(key.name).replacen("__", "_", 1);
            assert_eq!(misspelled(&short), Some(variable(key.name)));
            assert!(!key.name.contains("__"), "{} would look like a section", key.name);
        }
    }
}
