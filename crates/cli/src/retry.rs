//! Parses the retry strategy of `--retry`.

use std::num::NonZeroU32;

use postrider::{RetryStrategy, duration_text};
use serde_json::{Map, Value, json};

const FORMS: &str = "none, constant, constant-with-jitter, linear, exponential or exponential-with-jitter";

struct Form {
    name: &'static str,
    required: &'static [&'static str],
    optional: &'static [&'static str],
}

const STRATEGIES: &[Form] = &[
    Form { name: "constant", required: &["delay"], optional: &[] },
    Form { name: "constant-with-jitter", required: &["delay", "jitter"], optional: &[] },
    Form { name: "linear", required: &["increment"], optional: &["initial", "max"] },
    Form { name: "exponential", required: &[], optional: &["initial", "multiplier", "max"] },
    Form { name: "exponential-with-jitter", required: &[], optional: &["initial", "multiplier", "max"] },
];
const LIMITS: &[&str] = &["attempts", "total"];

/// The retry strategy of a task. It gets no default number of attempts, because the task has its own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TaskRetry {
    pub(crate) strategy: RetryStrategy,
    /// The strategy is written without a last attempt.
    pub(crate) is_endless: bool,
}

/// Reads `NAME[,FIELD=VALUE…]`.
pub(crate) fn parse(text: &str) -> Result<RetryStrategy, String> {
    let Some((fields, mut limits)) = read(text)? else { return Ok(RetryStrategy::NoRetry) };
    // Without a limit of attempts or time, a message that always fails would be retried for ever.
    if limits.is_empty() {
        limits.insert("max_attempts".into(), json!(RetryStrategy::DEFAULT_MAX_ATTEMPTS));
    }
    strategy(fields, limits)
}

/// Reads `NAME[,FIELD=VALUE…]` for a task.
pub(crate) fn parse_for_task(text: &str) -> Result<TaskRetry, String> {
    let Some((fields, limits)) = read(text)? else {
        return Ok(TaskRetry { strategy: RetryStrategy::NoRetry, is_endless: false });
    };
    let has_last = limits.get("max_attempts").is_some_and(|number| !number.is_null());
    let is_endless = !limits.is_empty() && !has_last;
    Ok(TaskRetry { strategy: strategy(fields, limits)?, is_endless })
}

type Fields = Map<String, Value>;

/// Returns the fields and the limits; `None` is no retry. Unlimited attempts are null.
fn read(text: &str) -> Result<Option<(Fields, Fields)>, String> {
    let mut parts = text.split(',').map(str::trim);
    // The configuration has the same names with '_'.
    let name = parts.next().unwrap_or_default().to_ascii_lowercase().replace('_', "-");
    if name == "none" || name == "no-retry" {
        return match parts.next() {
            None => Ok(None),
            Some(field) => Err(format!("'none' has no fields; remove '{field}'")),
        };
    }
    let Some(form) = STRATEGIES.iter().find(|form| form.name == name) else {
        return Err(format!("unknown strategy '{name}'; use {FORMS}"));
    };

    let mut fields = Map::new();
    let mut limits = Map::new();
    for part in parts {
        let (field, value) =
            part.split_once('=').ok_or_else(|| format!("'{part}' is not field=value; {}", form.fields()))?;
        let (target, key, value) = match field {
            "attempts" => (&mut limits, "max_attempts", attempts(value)?),
            "total" => (&mut limits, "max_total_delay", duration(field, value)?),
            _ if !form.has(field) => return Err(format!("unknown field '{field}'; {}", form.fields())),
            "multiplier" => {
                let number: f64 = value.parse().map_err(|_| format!("multiplier={value} is not a number like 2"))?;
                (&mut fields, "multiplier", json!(number))
            }
            "initial" => (&mut fields, "initial_delay", duration(field, value)?),
            "max" => (&mut fields, "max_delay", duration(field, value)?),
            same => (&mut fields, same, duration(field, value)?),
        };
        if target.insert(key.to_owned(), value).is_some() {
            return Err(format!("'{field}' is given twice"));
        }
    }
    if let Some(missing) = form.required.iter().find(|field| !fields.contains_key(**field)) {
        return Err(format!("'{}' needs {missing}=…; {}", form.name, form.fields()));
    }
    fields.insert("strategy".into(), json!(form.name.replace('-', "_")));
    Ok(Some((fields, limits)))
}

fn strategy(mut fields: Fields, mut limits: Fields) -> Result<RetryStrategy, String> {
    limits.retain(|_, value| !value.is_null());
    fields.insert("limits".into(), Value::Object(limits));
    serde_json::from_value(Value::Object(fields)).map_err(|error| {
        // Translates the configuration's names to those of `--retry`.
        error.to_string().replace("initial_delay", "initial").replace("max_delay", "max")
    })
}

impl Form {
    fn has(&self, field: &str) -> bool {
        self.required.contains(&field) || self.optional.contains(&field)
    }

    fn fields(&self) -> String {
        let fields: Vec<_> = [self.required, self.optional, LIMITS].concat();
        format!("'{}' takes {}", self.name, fields.join(", "))
    }
}

/// Reads `attempts`; null is no limit.
fn attempts(value: &str) -> Result<Value, String> {
    if value == "forever" {
        return Ok(Value::Null);
    }
    let number: NonZeroU32 =
        value.parse().map_err(|_| format!("attempts={value} is neither a number from 1 up nor 'forever'"))?;
    Ok(json!(number))
}

fn duration(field: &str, value: &str) -> Result<Value, String> {
    match duration_text::parse(value) {
        Some(_) => Ok(json!(value)),
        None => Err(format!("{field}={value}: write a duration like {}", duration_text::EXAMPLES)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn attempts(strategy: RetryStrategy, max: u32) -> RetryStrategy {
        strategy.with_max_attempts(max)
    }

    #[test]
    fn every_strategy_can_be_written() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        for (text, strategy) in [
            ("none", RetryStrategy::NoRetry),
            ("no_retry", RetryStrategy::NoRetry),
            ("exponential-with-jitter", RetryStrategy::default()),
            ("constant,delay=1s", attempts(RetryStrategy::constant(second), 24)),
            ("constant,delay=1s,attempts=forever", RetryStrategy::constant(second)),
            ("constant,delay=1s,total=1m", RetryStrategy::constant(second).with_max_total_delay(minute)),
            (
                "constant_with_jitter, delay=1s, jitter=1m, attempts=9",
                attempts(RetryStrategy::constant_with_jitter(second, minute), 9),
            ),
            ("linear,initial=1s,increment=1s,max=1m", attempts(RetryStrategy::linear(second, second, minute), 24)),
            (
                "exponential,initial=1s,multiplier=1.5,max=1m,attempts=5",
                attempts(RetryStrategy::exponential(second, 1.5, minute), 5),
            ),
        ] {
            assert_eq!(parse(text), Ok(strategy), "{text}");
        }
    }

    #[test]
    fn errors_name_the_mistake_and_the_alternatives() {
        let errors: Vec<_> = [
            "sometimes",
            "",
            "none,attempts=3",
            "constant",
            "constant,delay",
            "constant,delay=soon",
            "constant,delay=1s,delay=2s",
            "constant,delay=1s,max=3s",
            "exponential,multiplier=x",
            "exponential,multiplier=0.5",
            "exponential,attempts=0",
            "exponential,initial=2h",
        ]
        .iter()
        .map(|text| format!("{text}: {}", parse(text).unwrap_err()))
        .collect();
        insta::assert_snapshot!("retry_errors", errors.join("\n"));
    }

    #[test]
    fn a_task_keeps_its_own_attempts_unless_they_are_given() {
        let second = RetryStrategy::constant(Duration::from_secs(1));
        for (text, strategy, is_endless) in [
            ("none", RetryStrategy::NoRetry, false),
            ("constant,delay=1s", second.clone(), false),
            ("constant,delay=1s,attempts=5", attempts(second.clone(), 5), false),
            ("constant,delay=1s,attempts=forever", second.clone(), true),
            ("constant,delay=1s,total=1s", second.with_max_total_delay(Duration::from_secs(1)), true),
        ] {
            assert_eq!(parse_for_task(text), Ok(TaskRetry { strategy, is_endless }), "{text}");
        }
    }
}
