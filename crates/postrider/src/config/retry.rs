//! The retry strategy. Its fields are read one by one, but make sense together only.

use postrider_core::RetryStrategy;
use serde_json::{Map, Value};

use super::draft::Draft;
use super::error::Problem;

/// The key that names the strategy.
pub(super) const STRATEGY: &str = "common.retry.strategy";
const SECTION: &str = "common.retry.";

/// The names of the strategies.
pub(super) const STRATEGIES: &[&str] =
    &["no_retry", "constant", "linear", "exponential", "exponential_with_jitter", "constant_with_jitter"];

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

/// A field of a strategy; `None` when the strategy has none of that name, or no value for it.
pub(super) fn get(strategy: &RetryStrategy, key: &str) -> Option<Value> {
    let fields = serde_json::to_value(strategy).ok()?;
    let mut path = key.strip_prefix(SECTION)?.split('.');
    path.try_fold(&fields, |at, name| at.get(name)).cloned()
}

/// Makes the strategy from its fields. Reading it checks it.
pub(super) fn strategy(draft: &Draft) -> Result<RetryStrategy, Problem> {
    let fields = completed(&draft.retry);
    read(&fields).map_err(|why| match culprit(&fields) {
        Some(key) => draft.refuse(&key, why),
        None => draft.refuse(STRATEGY, format!("its fields are not right: {why}")),
    })
}

fn read(fields: &Map<String, Value>) -> Result<RetryStrategy, String> {
    serde_json::from_value(Value::Object(fields.clone())).map_err(|error| error.to_string())
}

/// Fields without a strategy change the default one.
fn completed(fields: &Map<String, Value>) -> Map<String, Value> {
    if fields.contains_key("strategy") {
        return fields.clone();
    }
    let Ok(Value::Object(mut all)) = serde_json::to_value(RetryStrategy::default()) else {
        return fields.clone();
    };
    for (name, value) in fields {
        match (all.get_mut(name), value) {
            (Some(Value::Object(below)), Value::Object(above)) => below.extend(above.clone()),
            _ => drop(all.insert(name.clone(), value.clone())),
        }
    }
    all
}

/// The field without which the strategy could be read; `None` when no single one is to blame.
fn culprit(fields: &Map<String, Value>) -> Option<String> {
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
        let mut keys: Vec<_> = keys::KEYS.iter().map(|key| key.name).filter(|key| is_field(key)).collect();
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
