//! Retry strategies.

use super::*;

#[test]
fn a_source_that_names_a_strategy_replaces_lower_fields() {
    let folder = Folder::new();
    let file = folder
        .write("postrider.toml", "[common.retry]\nstrategy = 'linear'\nincrement = '2s'\nlimits.max_attempts = 9\n");
    let load = |variables: &[(&str, &str)]| {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let config = Config::load(&defaults().file(&file).environment(variables)).unwrap();
        let origin = |name: &str| {
            let key = format!("common.retry.{name}");
            config.describe().iter().find(|row| row.key == key).unwrap().origin.to_string()
        };
        (config.common().retry.clone(), folder.without(origin("increment")), origin("limits.max_attempts"))
    };
    let linear = RetryStrategy::linear(Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(3600));
    let variable = "POSTRIDER__COMMON__RETRY__LIMITS__MAX_ATTEMPTS";
    assert_eq!(load(&[(variable, "2")]), (linear.with_max_attempts(2), "postrider.toml:3:1".into(), variable.into()));
    let named = [("POSTRIDER__COMMON__RETRY__STRATEGY", "constant"), ("POSTRIDER__COMMON__RETRY__DELAY", "3s")];
    let constant = RetryStrategy::constant(Duration::from_secs(3)).with_max_attempts(24);
    assert_eq!(load(&named), (constant, "default".into(), "default".into()));
}

#[test]
fn fields_without_a_strategy_change_the_default_one() {
    let config = load("[common.retry]\ninitial_delay = '2s'").unwrap();
    let expected = RetryStrategy::exponential_with_jitter(Duration::from_secs(2), 2.0, Duration::from_secs(3600))
        .with_max_attempts(24);
    assert_eq!(config.common().retry, expected);
    let config = load("[common.retry]\nlimits.max_total_delay = '1h'").unwrap();
    let expected = RetryStrategy::default().with_max_total_delay(Duration::from_secs(3600));
    assert_eq!(config.common().retry, expected, "the other limit stays");
}

#[test]
fn a_strategy_without_limits_has_those_of_the_default_one() {
    let attempts = |text: &str| {
        let config = load(text).unwrap();
        let row = config.describe().iter().find(|row| row.key == "common.retry.limits.max_attempts").cloned();
        (config.common().retry.max_attempts().map(std::num::NonZeroU32::get), row.and_then(|row| row.value))
    };
    let constant = "[common.retry]\nstrategy = 'constant'\ndelay = '5s'\n";
    assert_eq!(attempts(constant), (Some(24), Some("24".into())));
    assert_eq!(attempts(&format!("{constant}limits.max_attempts = 7")), (Some(7), Some("7".into())));
    let forever = (None, Some("forever".into()));
    assert_eq!(attempts(&format!("{constant}limits.max_attempts = 'forever'")), forever);
    assert_eq!(attempts(&format!("{constant}limits.max_total_delay = '1h'")), forever, "a limit of time is one too");
    assert_eq!(attempts("[common.retry]\nlimits.max_attempts = 'forever'"), forever);
    assert_eq!(attempts("[common.retry]\nstrategy = 'no_retry'"), (Some(1), None));
}
