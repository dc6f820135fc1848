use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn strategy() -> RetryStrategy {
    RetryStrategy::constant(SECOND).with_max_attempts(3)
}

fn decided(
    policy: AckPolicy,
    by_hand: Option<Disposition>,
    result: Result<(), HandlerError>,
    attempts_count: u32,
) -> Disposition {
    decide(Ending {
        policy,
        by_hand,
        result: &result,
        attempts_count,
        since_first_attempt: Duration::ZERO,
        strategy: &strategy(),
        random: 0.0,
    })
}

fn dead(reason: DeadLetterReason, error: &str) -> Disposition {
    Disposition::Nack(Nack::dead_letter(reason).with_error(error))
}

fn retry(after: Duration, error: &str) -> Disposition {
    Disposition::Nack(Nack::retry_after(after).with_error(error))
}

fn every_error() -> Vec<HandlerError> {
    vec![
        HandlerError::retryable("no"),
        HandlerError::permanent("no"),
        HandlerError::retry_after(SECOND * 7, "no"),
        HandlerError::timed_out(SECOND),
        HandlerError::panicked(&"no"),
        HandlerError::undecodable("no"),
    ]
}

#[test]
fn a_decision_by_hand_wins_over_every_policy_and_result() {
    for policy in AckPolicy::ALL {
        for by_hand in [Disposition::Ack, Disposition::Nack(Nack::Release), dead("odd".into(), "x")] {
            assert_eq!(decided(policy, Some(by_hand.clone()), Ok(()), 9), by_hand, "{policy}");
            for error in every_error() {
                assert_eq!(decided(policy, Some(by_hand.clone()), Err(error), 9), by_hand, "{policy}");
            }
        }
    }
}

#[test]
fn success_is_an_ack_except_with_manual_settlement() {
    for policy in [AckPolicy::AckFirst, AckPolicy::Ack, AckPolicy::RejectOnError, AckPolicy::NackOnError] {
        assert_eq!(decided(policy, None, Ok(()), 0), Disposition::Ack, "{policy}");
    }
    let unsettled = "the handler ended without settling the message";
    assert_eq!(decided(AckPolicy::Manual, None, Ok(()), 0), retry(SECOND, unsettled));
    assert_eq!(decided(AckPolicy::Manual, None, Ok(()), 2), dead(DeadLetterReason::RETRIES_EXHAUSTED, unsettled));
}

#[test]
fn an_undecodable_body_is_dead_lettered_unless_it_was_acknowledged_before() {
    for policy in AckPolicy::ALL {
        let expected = match policy {
            AckPolicy::AckFirst => Disposition::Ack,
            _ => dead(DeadLetterReason::UNDECODABLE, "no"),
        };
        assert_eq!(decided(policy, None, Err(HandlerError::undecodable("no")), 0), expected, "{policy}");
    }
}

#[test]
fn an_error_is_an_ack_a_rejection_or_a_retry_by_policy() {
    for error in every_error().into_iter().take(5) {
        let text = error.to_string();
        assert_eq!(decided(AckPolicy::Ack, None, Err(error.clone()), 0), Disposition::Ack);
        assert_eq!(decided(AckPolicy::AckFirst, None, Err(error.clone()), 0), Disposition::Ack);
        let rejected = dead(DeadLetterReason::REJECTED, &text);
        assert_eq!(decided(AckPolicy::RejectOnError, None, Err(error.clone()), 0), rejected);
        let nacked = match error.kind() {
            ErrorKind::Permanent => rejected,
            ErrorKind::RetryAfter(delay) => retry(*delay, &text),
            _ => retry(SECOND, &text),
        };
        for policy in [AckPolicy::NackOnError, AckPolicy::Manual] {
            assert_eq!(decided(policy, None, Err(error.clone()), 1), nacked, "{policy}: {text}");
        }
    }
}

#[test]
fn a_strategy_that_allows_no_more_attempts_ends_in_the_dead_letters() {
    for error in [HandlerError::retryable("no"), HandlerError::retry_after(SECOND, "no")] {
        let exhausted = dead(DeadLetterReason::RETRIES_EXHAUSTED, "no");
        assert_eq!(decided(AckPolicy::NackOnError, None, Err(error.clone()), 2), exhausted);
        assert_eq!(decided(AckPolicy::NackOnError, None, Err(error), u32::MAX), exhausted);
    }
}

#[test]
fn an_error_brings_its_own_strategy_and_reason() {
    let once = HandlerError::retryable("no").with_strategy(RetryStrategy::NoRetry).with_reason("no_stock");
    assert_eq!(decided(AckPolicy::NackOnError, None, Err(once), 0), dead("no_stock".into(), "no"));
    let slower = HandlerError::retryable("no").with_strategy(RetryStrategy::constant(SECOND * 60));
    assert_eq!(decided(AckPolicy::NackOnError, None, Err(slower), 99), retry(SECOND * 60, "no"));
}

#[test]
fn a_handlers_own_delay_counts_towards_the_total_delay() {
    let strategy = RetryStrategy::constant(SECOND).with_max_total_delay(SECOND * 10);
    let after = |delay, since_first_attempt| {
        let result = Err(HandlerError::retry_after(delay, "no"));
        decide(Ending {
            policy: AckPolicy::NackOnError,
            by_hand: None,
            result: &result,
            attempts_count: 0,
            since_first_attempt,
            strategy: &strategy,
            random: 0.0,
        })
    };
    assert_eq!(after(SECOND * 4, SECOND * 6), retry(SECOND * 4, "no"));
    assert_eq!(after(SECOND * 5, SECOND * 6), dead(DeadLetterReason::RETRIES_EXHAUSTED, "no"));
    assert_eq!(after(Duration::MAX, SECOND), dead(DeadLetterReason::RETRIES_EXHAUSTED, "no"));
}

#[test]
fn an_invalid_reason_and_an_endless_delay_are_limited() {
    let limits = Limits::default();
    let reason = |text: &str| match fitting(dead(text.into(), "x"), &limits) {
        Disposition::Nack(Nack::DeadLetter { reason, .. }) => reason.as_str().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(reason("fine"), "fine");
    assert_eq!(reason("two\nlines"), "two lines");
    assert_eq!(reason(" \n"), "rejected");
    assert_eq!(reason(&"ä".repeat(100)), "ä".repeat(64));
    assert_eq!(fitting(retry(Duration::MAX, "x"), &limits), retry(limits.max_delay, "x"));
}
