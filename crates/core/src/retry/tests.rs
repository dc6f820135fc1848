use proptest::prelude::*;

use super::*;
use crate::error::MessagingError;
use crate::message::MAX_DURATION;

const SECOND: Duration = Duration::from_secs(1);
const NEVER_TOO_LATE: Duration = Duration::ZERO;

fn attempts(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

fn delays(strategy: &RetryStrategy, random: f64) -> Vec<u128> {
    (1..=6)
        .map_while(|failed| strategy.next_delay(failed, NEVER_TOO_LATE, random))
        .map(|delay| delay.as_millis())
        .collect()
}

#[test]
fn each_strategy_gives_its_own_delays() {
    let cap = 10 * SECOND;
    assert_eq!(delays(&RetryStrategy::NoRetry, 0.0), []);
    assert_eq!(delays(&RetryStrategy::constant(SECOND), 0.9), [1000; 6]);
    let linear = RetryStrategy::linear(SECOND, 4 * SECOND, cap);
    assert_eq!(delays(&linear, 0.9), [1000, 5000, 9000, 10_000, 10_000, 10_000]);
    let exponential = RetryStrategy::exponential(SECOND, 2.0, cap);
    assert_eq!(delays(&exponential, 0.9), [1000, 2000, 4000, 8000, 10_000, 10_000]);
    let jittered = RetryStrategy::exponential_with_jitter(SECOND, 2.0, cap);
    assert_eq!(delays(&jittered, 0.0), [1000, 2000, 4000, 8000, 10_000, 10_000]);
    assert_eq!(delays(&jittered, 0.5), [750, 1500, 3000, 6000, 7500, 7500]);
    let jittered = RetryStrategy::constant_with_jitter(SECOND, 500 * SECOND / 1000);
    assert_eq!(delays(&jittered, 0.0), [1000; 6]);
    assert_eq!(delays(&jittered, 0.5), [1250; 6]);
}

#[test]
fn the_default_backs_off_for_nine_hours() {
    let strategy = RetryStrategy::default();
    strategy.validate().unwrap();
    assert_eq!(delays(&strategy, 0.0)[..3], [1000, 2000, 4000]);
    assert_eq!(strategy.max_attempts(), Some(attempts(24)));
    let lasts =
        |random| (1..24).filter_map(|failed| strategy.next_delay(failed, NEVER_TOO_LATE, random)).sum::<Duration>();
    let hours = |random| lasts(random).as_secs() / 3600;
    assert_eq!((hours(0.0), hours(0.5), hours(0.999)), (12, 9, 6));
    let endless = strategy.without_limits();
    assert_eq!(endless.max_attempts(), None);
    assert_eq!(endless.next_delay(u32::MAX, Duration::MAX, 0.0), Some(DEFAULT_MAX_DELAY));
}

#[test]
fn max_attempts_counts_the_first_attempt() {
    let once = RetryStrategy::constant(SECOND).with_max_attempts(1);
    assert_eq!(delays(&once, 0.0), []);
    assert_eq!(once, RetryStrategy::constant(SECOND).with_max_attempts(0), "zero attempts count as one");
    let twice = RetryStrategy::constant(SECOND).with_max_attempts(2);
    assert_eq!(delays(&twice, 0.0), [1000]);
    assert_eq!(twice.next_delay(u32::MAX, NEVER_TOO_LATE, 0.0), None);
    assert_eq!(RetryStrategy::NoRetry.max_attempts(), Some(attempts(1)));
    assert_eq!(RetryStrategy::NoRetry.with_max_attempts(9).without_limits(), RetryStrategy::NoRetry);
}

#[test]
fn no_attempt_is_begun_past_the_total_delay() {
    let strategy = RetryStrategy::constant(SECOND).with_max_total_delay(3 * SECOND);
    assert_eq!(strategy.next_delay(1, 2 * SECOND, 0.0), Some(SECOND));
    assert_eq!(strategy.next_delay(1, 2 * SECOND + Duration::from_nanos(1), 0.0), None);
    assert_eq!(strategy.next_delay(1, Duration::MAX, 0.0), None);
    let endless = RetryStrategy::constant(Duration::MAX).with_max_total_delay(Duration::MAX);
    assert_eq!(endless.next_delay(1, SECOND, 0.0), None, "the sum is out of range");
}

#[test]
fn invalid_multipliers_neither_panic_nor_make_a_hot_loop() {
    let after = |multiplier: f64, failed: u32| {
        RetryStrategy::exponential(SECOND, multiplier, 60 * SECOND).next_delay(failed, NEVER_TOO_LATE, 0.0)
    };
    for failed in [1, 2, 1025, u32::MAX] {
        for shrinking in [0.5, 0.0, -2.0, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(after(shrinking, failed), Some(SECOND), "{shrinking} {failed}");
        }
    }
    assert_eq!(after(f64::INFINITY, 1), Some(SECOND));
    assert_eq!(after(f64::INFINITY, 2), Some(60 * SECOND));
    assert_eq!(after(2.0, 1025), Some(60 * SECOND));
    let nothing = RetryStrategy::exponential(Duration::ZERO, f64::INFINITY, SECOND);
    assert_eq!(nothing.next_delay(2, NEVER_TOO_LATE, 0.0), Some(Duration::ZERO));
}

#[test]
fn float_rounding_keeps_delays_within_their_bounds() {
    // From here on, odd numbers of seconds have no exact float.
    let exact = Duration::from_secs(1 << 53);
    let strategy = RetryStrategy::exponential(exact + SECOND, 1.0, Duration::MAX);
    assert_eq!(strategy.next_delay(2, NEVER_TOO_LATE, 0.0), Some(exact + SECOND), "rounded down");
    let strategy = RetryStrategy::exponential(exact + SECOND, 1.5, exact + SECOND);
    assert_eq!(strategy.next_delay(2, NEVER_TOO_LATE, 0.0), Some(exact + SECOND), "above the cap");
    let strategy = RetryStrategy::constant_with_jitter(Duration::ZERO, exact + 3 * SECOND);
    assert_eq!(strategy.next_delay(1, NEVER_TOO_LATE, 1.0), Some(exact + 3 * SECOND), "rounded up");
}

#[test]
fn a_random_number_out_of_range_is_clamped() {
    let strategy = RetryStrategy::constant_with_jitter(SECOND, SECOND);
    let delay = |random| strategy.next_delay(1, NEVER_TOO_LATE, random).unwrap();
    for low in [-1.0, f64::NEG_INFINITY, f64::NAN] {
        assert_eq!(delay(low), SECOND);
    }
    for high in [1.0, 7.0, f64::INFINITY] {
        assert_eq!(delay(high), 2 * SECOND);
    }
}

#[test]
fn invalid_strategies_are_refused_by_field() {
    let refused = |strategy: RetryStrategy| match strategy.validate() {
        Err(MessagingError::InvalidInput { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    for multiplier in [-1.0, 0.0, 0.5, f64::NAN, f64::INFINITY] {
        assert_eq!(refused(RetryStrategy::exponential(SECOND, multiplier, SECOND)), "multiplier");
        assert_eq!(refused(RetryStrategy::exponential_with_jitter(SECOND, multiplier, SECOND)), "multiplier");
    }
    assert_eq!(refused(RetryStrategy::exponential(2 * SECOND, 2.0, SECOND)), "initial_delay");
    assert_eq!(refused(RetryStrategy::linear(2 * SECOND, SECOND, SECOND)), "initial_delay");
    assert_eq!(refused(RetryStrategy::linear(SECOND, Duration::MAX, SECOND)), "increment");
    assert_eq!(refused(RetryStrategy::linear(SECOND, SECOND, Duration::MAX)), "max_delay");
    assert_eq!(refused(RetryStrategy::constant(Duration::MAX)), "delay");
    assert_eq!(refused(RetryStrategy::constant_with_jitter(SECOND, MAX_DURATION)), "jitter");
    assert_eq!(refused(RetryStrategy::constant(SECOND).with_max_total_delay(Duration::ZERO)), "max_total_delay");
    assert_eq!(refused(RetryStrategy::constant(SECOND).with_max_total_delay(Duration::MAX)), "max_total_delay");
    for good in [RetryStrategy::NoRetry, RetryStrategy::constant(Duration::ZERO), RetryStrategy::default()] {
        good.validate().unwrap();
    }
}

#[test]
fn strategies_are_deserialized() {
    let read = |text: &str| serde_json::from_str::<RetryStrategy>(text);
    assert_eq!(read(r#"{"strategy": "no_retry"}"#).unwrap(), RetryStrategy::NoRetry);
    assert_eq!(
        read(r#"{"strategy": "exponential_with_jitter", "limits": {"max_attempts": 24}}"#).unwrap(),
        RetryStrategy::default()
    );
    let hour = Duration::from_secs(3600);
    assert_eq!(
        read(r#"{"strategy": "constant", "delay": "1h30m", "limits": {"max_total_delay": "3d"}}"#).unwrap(),
        RetryStrategy::constant(hour * 3 / 2).with_max_total_delay(72 * hour)
    );
    assert_eq!(
        read(
            r#"{"strategy": "constant", "delay": "500ms", "limits": {"max_attempts": null, "max_total_delay": null}}"#
        )
        .unwrap(),
        RetryStrategy::constant(SECOND / 2)
    );
    for wrong in [
        r#"{"strategy": "sometimes"}"#,
        r#"{"strategy": "no_retry", "delay": "5s"}"#,
        r#"{"strategy": "constant"}"#,
        r#"{"strategy": "constant", "delay": "-5s"}"#,
        r#"{"strategy": "constant", "delay": "1mo"}"#,
        r#"{"strategy": "constant", "delay": 5}"#,
        r#"{"strategy": "constant", "delay": "5s", "dealy": "5s"}"#,
        r#"{"strategy": "constant", "delay": "5s", "limits": {"max_attempts": 0}}"#,
        r#"{"strategy": "constant", "delay": "5s", "limits": {"max_atempts": 2}}"#,
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    let error = read(r#"{"strategy": "constant", "delay": "soon"}"#).unwrap_err().to_string();
    assert!(error.contains("'soon' is not a duration; write it like"), "{error}");
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        Just(Duration::MAX),
        (0..1_000_000_u64).prop_map(Duration::from_micros),
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
    ]
}

fn any_float() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), 0.0..4.0, Just(f64::NAN), Just(f64::INFINITY)]
}

fn any_limits() -> impl Strategy<Value = RetryLimits> {
    (prop::option::of(1_u32..10), prop::option::of(any_duration())).prop_map(|(count, max_total_delay)| RetryLimits {
        max_attempts: count.and_then(NonZeroU32::new),
        max_total_delay,
    })
}

/// Any strategy, including those that `validate` refuses.
fn any_strategy() -> impl Strategy<Value = RetryStrategy> {
    strategy_with(any_float())
}

/// Strategies that `validate` accepts, with multipliers that JSON represents exactly.
fn allowed_strategy() -> impl Strategy<Value = RetryStrategy> {
    strategy_with((0..100_u8).prop_map(|quarters| f64::from(quarters) / 4.0))
        .prop_filter("the strategy must be valid", |strategy| strategy.validate().is_ok())
}

fn strategy_with(multiplier: impl Strategy<Value = f64>) -> impl Strategy<Value = RetryStrategy> {
    let parts = (0..6, any_duration(), any_duration(), any_duration(), multiplier, any_limits());
    parts.prop_map(|(kind, a, b, max_delay, multiplier, limits)| match kind {
        0 => RetryStrategy::NoRetry,
        1 => RetryStrategy::Constant { delay: a, limits },
        2 => RetryStrategy::Linear { initial_delay: a, increment: b, max_delay, limits },
        3 => RetryStrategy::Exponential { initial_delay: a, multiplier, max_delay, limits },
        4 => RetryStrategy::ExponentialWithJitter { initial_delay: a, multiplier, max_delay, limits },
        _ => RetryStrategy::ConstantWithJitter { delay: a, jitter: b, limits },
    })
}

/// The least and the greatest delay, for any number of failures and any random number.
fn bounds(strategy: &RetryStrategy) -> (Duration, Duration) {
    match *strategy {
        RetryStrategy::NoRetry => (Duration::ZERO, Duration::ZERO),
        RetryStrategy::Constant { delay, .. } => (delay, delay),
        RetryStrategy::Linear { initial_delay, max_delay, .. }
        | RetryStrategy::Exponential { initial_delay, max_delay, .. } => (initial_delay.min(max_delay), max_delay),
        RetryStrategy::ExponentialWithJitter { initial_delay, max_delay, .. } => {
            let longest = initial_delay.min(max_delay);
            (longest - longest / 2, max_delay)
        }
        RetryStrategy::ConstantWithJitter { delay, jitter, .. } => (delay, delay.saturating_add(jitter)),
    }
}

fn any_failures() -> impl Strategy<Value = u32> {
    prop_oneof![0..20_u32, Just(1025), Just(u32::MAX), any::<u32>()]
}

proptest! {
    #[test]
    fn every_input_has_a_delay_within_its_bounds(
        strategy in any_strategy(), failed in any_failures(), since in any_duration(), random in any_float(),
    ) {
        let answer = strategy.next_delay(failed, since, random);
        prop_assert_eq!(answer, strategy.next_delay(failed, since, random), "the same input, the same answer");
        let _ = strategy.validate();
        if let Some(delay) = answer {
            let (least, most) = bounds(&strategy);
            prop_assert!(least <= delay && delay <= most, "{:?} is not in {:?}..={:?}", delay, least, most);
            let limits = strategy.limits().unwrap();
            prop_assert!(limits.max_attempts.is_none_or(|most| failed < most.get()));
            prop_assert!(limits.max_total_delay.is_none_or(|most| since.checked_add(delay).unwrap() <= most));
        }
        prop_assert_eq!(
            strategy.clone().without_limits().next_delay(failed, since, random).is_none(),
            strategy == RetryStrategy::NoRetry
        );
    }

    #[test]
    fn without_randomness_delays_never_shrink(
        strategy in any_strategy(), first in any_failures(), second in any_failures(),
    ) {
        let strategy = strategy.without_limits();
        let delay = |failed| strategy.next_delay(failed, NEVER_TOO_LATE, 0.0);
        prop_assert!(delay(first.min(second)) <= delay(first.max(second)));
    }

    #[test]
    fn strategies_round_trip(strategy in allowed_strategy()) {
        let text = serde_json::to_string(&strategy).unwrap();
        prop_assert_eq!(serde_json::from_str::<RetryStrategy>(&text).unwrap(), strategy, "{}", text);
    }
}

#[test]
fn deserialized_strategies_are_validated() {
    let text = r#"{"strategy": "exponential", "multiplier": 0.5}"#;
    let refused = serde_json::from_str::<RetryStrategy>(text).unwrap_err();
    assert!(refused.to_string().contains("multiplier"), "{refused}");
}
