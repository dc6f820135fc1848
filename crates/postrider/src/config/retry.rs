//! The retry strategy. Its fields are read one by one and checked together.

use postrider_core::RetryStrategy;
use serde_json::{Map, Value};

use super::draft::Draft;
use super::error::Problem;

/// The key that names the strategy.
pub(super) const STRATEGY: &str = "common.retry.strategy";
const SECTION: &str = "common.retry.";

/// The value for no limit.
pub(super) const FOREVER: &str = "forever";
const LIMITS: &str = "limits";
const MAX_ATTEMPTS: &str = "max_attempts";

/// The names of the strategies.
pub(super) const STRATEGIES: &[&str] =
    &["no_retry", "constant", "linear", "exponential", "exponential_with_jitter", "constant_with_jitter"];

/// The required and the optional fields of a strategy.
fn fields_of(strategy: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match strategy {
        "constant" => (&["delay"], &[LIMITS]),
        "linear" => (&["increment"], &["initial_delay", "max_delay", LIMITS]),
        "constant_with_jitter" => (&["delay", "jitter"], &[LIMITS]),
        "exponential" | "exponential_with_jitter" => (&[], &["initial_delay", "multiplier", "max_delay", LIMITS]),
        _ => (&[], &[]),
    }
}

/// Whether the key belongs to the strategy.
pub(super) fn is_field(key: &str) -> bool {
    key.starts_with(SECTION)
}

/// Sets a field of the strategy.
pub(super) fn put(draft: &mut Draft, key: &str, value: Value) {
    let path = key.strip_prefix(SECTION).unwrap_or(key);
    match path.split_once('.') {
        None => drop(draft.retry.insert(path.into(), value)),
        Some((table, field)) => {
            let table = draft.retry.entry(table).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(fields) = table {
                fields.insert(field.into(), value);
            }
        }
    }
}

/// A field of a strategy; `None` when the strategy has no such field or value.
pub(super) fn get(strategy: &RetryStrategy, key: &str) -> Option<Value> {
    let fields = serde_json::to_value(strategy).ok()?;
    let path = key.strip_prefix(SECTION)?;
    if path == format!("{LIMITS}.{MAX_ATTEMPTS}")
        && strategy.limits().is_some_and(|limits| limits.max_attempts.is_none())
    {
        return Some(FOREVER.into());
    }
    path.split('.').try_fold(&fields, |at, name| at.get(name)).cloned()
}

/// Makes the strategy from its fields, with the checks of its deserialization.
pub(super) fn strategy(draft: &Draft) -> Result<RetryStrategy, Vec<Problem>> {
    let fields = completed(&draft.retry);
    let problems = misplaced(draft, &fields);
    if !problems.is_empty() {
        return Err(problems);
    }
    read(&fields).map_err(|why| {
        let names = ["initial_delay", "max_delay", "delay", "jitter", "increment", "multiplier", "max_total_delay"];
        let field_error = names.iter().find_map(|name| Some((*name, why.strip_prefix(&format!("invalid {name}: "))?)));
        let (name, why) = field_error.unwrap_or(("strategy", &why));
        let table = if name == "max_total_delay" { "limits." } else { "" };
        let key = format!("{SECTION}{table}{name}");
        // Of a pair that does not fit together, blame the field that the user wrote.
        let key = Some(key.clone())
            .filter(|key| draft.given(key).is_some())
            .or_else(|| offending_field(&fields))
            .unwrap_or(key);
        vec![draft.refuse(&key, why)]
    })
}

/// Problems of fields that the strategy does not have or lacks.
fn misplaced(draft: &Draft, fields: &Map<String, Value>) -> Vec<Problem> {
    let Some(name) = fields.get("strategy").and_then(Value::as_str) else { return Vec::new() };
    let (needed, others) = fields_of(name);
    let known = || needed.iter().chain(others);
    let mut problems = Vec::new();
    for (field, value) in fields.iter().filter(|(field, _)| *field != "strategy") {
        if known().any(|known| known == field) {
            continue;
        }
        let first = value.as_object().and_then(|table| table.keys().next()).map(|below| format!(".{below}"));
        let key = format!("{SECTION}{field}{}", first.unwrap_or_default());
        let has: Vec<_> = known().copied().collect();
        let why = match has[..] {
            [] => format!("the strategy {name} has no fields; leave it out, or name another strategy"),
            _ => format!("the strategy {name} has {} and not this; leave it out", has.join(", ")),
        };
        problems.push(draft.refuse(&key, why));
    }
    for field in needed.iter().filter(|field| !fields.contains_key(**field)) {
        problems.push(draft.refuse(STRATEGY, format!("it needs {SECTION}{field}, like \"5s\"; write it beside it")));
    }
    problems
}

fn read(fields: &Map<String, Value>) -> Result<RetryStrategy, String> {
    serde_json::from_value(Value::Object(fields.clone())).map_err(|error| error.to_string())
}

/// Completes the fields. Fields without a strategy change the default one. A strategy without limits has the attempts of
/// the default one, or a message that always fails would retry forever; a time limit is a limit too.
fn completed(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut all = match serde_json::to_value(RetryStrategy::default()) {
        Ok(Value::Object(defaults)) => defaults,
        _ => Map::new(),
    };
    if let Some(name) = fields.get("strategy").and_then(Value::as_str) {
        let has_limits = fields_of(name).1.contains(&LIMITS) && !fields.contains_key(LIMITS);
        all.retain(|field, _| field == LIMITS && has_limits);
    }
    for (name, value) in fields {
        match (all.get_mut(name), value) {
            (Some(Value::Object(below)), Value::Object(above)) => below.extend(above.clone()),
            _ => drop(all.insert(name.clone(), value.clone())),
        }
    }
    if let Some(Value::Object(limits)) = all.get_mut(LIMITS) {
        // Null means no limit.
        limits.retain(|_, limit| !limit.is_null());
    }
    all
}

/// The field without which the strategy is valid; `None` when no single one is to blame.
fn offending_field(fields: &Map<String, Value>) -> Option<String> {
    fields.iter().find_map(|(name, value)| {
        let mut others = fields.clone();
        let limits: Vec<_> = value.as_object().map(|table| table.keys().collect()).unwrap_or_default();
        for limit in &limits {
            let mut rest = value.clone();
            rest.as_object_mut()?.remove(*limit);
            others.insert(name.clone(), rest);
            if read(&others).is_ok() {
                return Some(format!("{SECTION}{name}.{limit}"));
            }
        }
        others.remove(name);
        read(&others).ok()?;
        let first = limits.first().map_or_else(String::new, |limit| format!(".{limit}"));
        Some(format!("{SECTION}{name}{first}"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::keys;
    use super::*;

    #[test]
    fn every_strategy_has_its_name() {
        let second = std::time::Duration::from_secs(1);
        let all = [
            RetryStrategy::NoRetry,
            RetryStrategy::constant(second),
            RetryStrategy::linear(second, second, second),
            RetryStrategy::exponential(second, 2.0, second),
            RetryStrategy::exponential_with_jitter(second, 2.0, second),
            RetryStrategy::constant_with_jitter(second, second),
        ];
        // A new strategy does not compile here until it is in the list.
        for strategy in &all {
            match strategy {
                RetryStrategy::NoRetry
                | RetryStrategy::Constant { .. }
                | RetryStrategy::Linear { .. }
                | RetryStrategy::Exponential { .. }
                | RetryStrategy::ExponentialWithJitter { .. }
                | RetryStrategy::ConstantWithJitter { .. } => {}
            }
        }
        let names: Vec<_> = all.iter().map(|strategy| get(strategy, STRATEGY).unwrap()).collect();
        assert_eq!(names, STRATEGIES);
    }

    #[test]
    fn every_field_of_every_strategy_has_a_key() {
        let limits = postrider_core::RetryLimits {
            max_attempts: std::num::NonZeroU32::new(3),
            max_total_delay: Some(std::time::Duration::from_secs(1)),
        };
        let second = std::time::Duration::from_secs(1);
        let linear = RetryStrategy::Linear { initial_delay: second, increment: second, max_delay: second, limits };
        let mut keys: Vec<_> = keys::all().map(|key| key.name).filter(|key| is_field(key)).collect();
        for strategy in [linear, RetryStrategy::default(), RetryStrategy::constant_with_jitter(second, second)] {
            let Ok(Value::Object(fields)) = serde_json::to_value(&strategy) else { panic!("a strategy is a table") };
            for (name, value) in fields {
                let names = match value.as_object() {
                    Some(table) => table.keys().map(|field| format!("{name}.{field}")).collect(),
                    None => vec![name],
                };
                for name in names {
                    let key = keys::find(&format!("{SECTION}{name}")).unwrap_or_else(|| panic!("{name} has no key"));
                    keys.retain(|left| *left != key.name);
                }
            }
        }
        assert_eq!(keys, [""; 0], "keys that no strategy has");
    }
}
