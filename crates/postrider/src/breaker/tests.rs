use std::collections::VecDeque;
use std::sync::Arc;

use postrider_core::*;
use proptest::prelude::*;
use tokio::time::advance;

use super::answer::{Answer, verdict};
use super::*;

const OPEN: Duration = Duration::from_secs(10);
const SETTINGS: BreakerSettings = BreakerSettings { failure_threshold: 3, success_threshold: 1, timeout: OPEN };

fn closed(failures: u32) -> BreakerState {
    BreakerState::Closed { failures }
}

fn open(retry_after: Duration) -> BreakerState {
    BreakerState::Open { retry_after }
}

fn connection() -> MessagingError {
    MessagingError::Connection { provider: "fake", detail: "gone".into(), source: None }
}

fn provider_error(retryable: bool) -> MessagingError {
    let source = Arc::new(std::io::Error::other("broken"));
    MessagingError::Provider { provider: "fake", operation: "send", source, retryable }
}

fn unknown() -> MessagingError {
    MessagingError::OutcomeUnknown { operation: "send", ids: Vec::new(), source: Some(Arc::new(connection())) }
}

/// A breaker that has just opened.
fn opened() -> CircuitBreaker {
    let breaker = CircuitBreaker::new(SETTINGS);
    for _ in 0..SETTINGS.failure_threshold {
        breaker.admit("fake").unwrap().answered(Verdict::Failure);
    }
    assert_eq!(breaker.state(), open(FIRST_HOLD));
    breaker
}

fn refusal(breaker: &CircuitBreaker) -> Duration {
    match breaker.admit("fake").unwrap_err() {
        MessagingError::CircuitBreakerOpen { provider: "fake", retry_after } => retry_after,
        other => panic!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn consecutive_failures_open_it_and_a_success_resets_the_count() {
    let breaker = CircuitBreaker::new(SETTINGS);
    let answer = |verdict| breaker.admit("fake").unwrap().answered(verdict);
    answer(Verdict::Failure);
    answer(Verdict::Failure);
    assert_eq!(breaker.state(), closed(2));
    answer(Verdict::Nothing);
    assert_eq!(breaker.state(), closed(2));
    answer(Verdict::Success);
    assert_eq!(breaker.state(), closed(0));
    for _ in 0..3 {
        answer(Verdict::Failure);
    }
    assert_eq!(breaker.state(), open(FIRST_HOLD));
}

#[tokio::test(start_paused = true)]
async fn while_open_it_returns_the_time_left() {
    let breaker = opened();
    advance(Duration::from_millis(40)).await;
    assert_eq!(refusal(&breaker), Duration::from_millis(60));
    assert_eq!(breaker.state(), open(Duration::from_millis(60)));
    advance(Duration::from_millis(60)).await;
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
}

#[tokio::test(start_paused = true)]
async fn one_probe_is_admitted_and_its_success_closes() {
    let breaker = opened();
    advance(OPEN).await;
    let probe = breaker.admit("fake").unwrap();
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert_eq!(refusal(&breaker), FIRST_HOLD);
    probe.answered(Verdict::Success);
    assert_eq!(breaker.state(), closed(0));
    assert!(!breaker.admit("fake").unwrap().is_probe);
}

#[tokio::test(start_paused = true)]
async fn the_threshold_of_consecutive_probes_must_succeed() {
    let breaker = CircuitBreaker::new(BreakerSettings { success_threshold: 3, ..SETTINGS });
    for _ in 0..SETTINGS.failure_threshold {
        breaker.admit("fake").unwrap().answered(Verdict::Failure);
    }
    advance(OPEN).await;
    for verdict in [Verdict::Success, Verdict::Success, Verdict::Failure] {
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.admit("fake").unwrap().answered(verdict);
    }
    assert_eq!(breaker.state(), open(FIRST_HOLD * 2));
    advance(OPEN).await;
    for verdict in [Verdict::Success, Verdict::Success, Verdict::Nothing, Verdict::Success] {
        let probe = breaker.admit("fake").unwrap();
        assert!(probe.is_probe, "probes before the failure do not count");
        probe.answered(verdict);
    }
    assert_eq!(breaker.state(), closed(0));
}

#[tokio::test(start_paused = true)]
async fn a_failed_probe_opens_it_for_twice_as_long_up_to_the_timeout() {
    let breaker = opened();
    let mut hold = FIRST_HOLD;
    for _ in 0..10 {
        advance(hold).await;
        breaker.admit("fake").unwrap().answered(Verdict::Failure);
        hold = (hold * 2).min(OPEN);
        assert_eq!(breaker.state(), open(hold));
    }
    assert_eq!(hold, OPEN);
    advance(OPEN).await;
    breaker.admit("fake").unwrap().answered(Verdict::Success);
    assert_eq!(breaker.state(), closed(0));
    for _ in 0..SETTINGS.failure_threshold {
        breaker.admit("fake").unwrap().answered(Verdict::Failure);
    }
    assert_eq!(breaker.state(), open(FIRST_HOLD), "the next outage starts with the first hold");
}

/// Everything that is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn its_opening_and_its_closing_are_logged_once_each() {
    let log = Log::default();
    let written = log.clone();
    let listener = tracing_subscriber::fmt().with_ansi(false).with_writer(move || written.clone());
    let _listens = tracing::subscriber::set_default(listener.with_max_level(tracing::Level::WARN).finish());
    let breaker = opened();
    for verdict in [Verdict::Failure, Verdict::Failure, Verdict::Success] {
        advance(OPEN).await;
        breaker.admit("fake").unwrap().answered(verdict);
    }
    assert_eq!(breaker.state(), closed(0));
    breaker.admit("fake").unwrap().answered(Verdict::Success);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("fake")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains("calls are held back") && lines[1].contains("answers again"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_response_of_the_store_ends_the_hold_and_does_not_close() {
    let breaker = opened();
    breaker.store_responded();
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    let probe = breaker.admit("fake").unwrap();
    assert!(probe.is_probe);
    breaker.store_responded();
    assert_eq!(refusal(&breaker), FIRST_HOLD, "one probe at a time");
    probe.answered(Verdict::Failure);
    assert_eq!(breaker.state(), open(FIRST_HOLD * 2));
}

#[tokio::test(start_paused = true)]
async fn after_a_probe_without_a_verdict_the_next_call_probes() {
    let breaker = opened();
    advance(OPEN).await;
    drop(breaker.admit("fake").unwrap());
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    breaker.admit("fake").unwrap().answered(Verdict::Nothing);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    let probe = breaker.admit("fake").unwrap();
    assert!(probe.is_probe);
    refusal(&breaker);
}

#[tokio::test(start_paused = true)]
async fn calls_that_fail_together_are_one_failure() {
    let breaker = CircuitBreaker::new(SETTINGS);
    let batch: Vec<_> = (0..64).map(|_| breaker.admit("fake").unwrap()).collect();
    batch.into_iter().for_each(|permit| permit.answered(Verdict::Failure));
    assert_eq!(breaker.state(), closed(1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_an_old_call_counts_as_nothing() {
    let breaker = CircuitBreaker::new(SETTINGS);
    let waiting: Vec<_> = (0..3).map(|_| breaker.admit("fake").unwrap()).collect();
    let [success, failure, late] = <[_; 3]>::try_from(waiting).unwrap();
    breaker.admit("fake").unwrap().answered(Verdict::Failure);
    success.answered(Verdict::Success);
    assert_eq!(breaker.state(), closed(1), "a call that waited meanwhile hides no failure");
    failure.answered(Verdict::Failure);
    assert_eq!(breaker.state(), closed(1));
    for _ in 0..2 {
        breaker.admit("fake").unwrap().answered(Verdict::Failure);
    }
    late.answered(Verdict::Success);
    assert_eq!(breaker.state(), open(FIRST_HOLD), "only a probe closes it");
}

#[test]
fn only_failures_of_connection_or_server_count() {
    let queue = QueueName::new("orders").unwrap();
    let id = MessageId::generate();
    let (io, why) = (|| Arc::new(std::io::Error::other("broken")), String::new);
    for error in [connection(), provider_error(true), unknown()] {
        assert_eq!(verdict::<()>(&Err(error)), Verdict::Failure);
    }
    for error in [
        provider_error(false),
        // Caused by something on the way, not by the store.
        MessagingError::Busy { source: Arc::new(provider_error(true)) },
        MessagingError::Busy { source: Arc::new(connection()) },
        MessagingError::OutcomeUnknown {
            operation: "send",
            ids: vec![id],
            source: Some(Arc::new(MessagingError::invalid("message", "too large"))),
        },
        MessagingError::QueueNotFound { queue: queue.clone() },
        MessagingError::Serialization { content_type: "json", source: io() },
        MessagingError::Deserialization { content_type: "json", source: io() },
        MessagingError::MessageNotFound { queue: queue.clone(), id },
        MessagingError::MessageLeased { queue: queue.clone(), id },
        MessagingError::VisibilityExpired { queue, id },
        MessagingError::CircuitBreakerOpen { provider: "fake", retry_after: OPEN },
        MessagingError::NotSupported { provider: "fake", feature: Feature::Delay, why: why() },
        MessagingError::InvalidReceipt { why: why() },
        MessagingError::InvalidInput { what: "body", why: why() },
        MessagingError::DeadlineExceeded { operation: "send" },
        MessagingError::Closed { provider: "fake" },
    ] {
        assert_eq!(verdict::<()>(&Err(error.clone())), Verdict::Nothing, "{error}");
    }
    assert_eq!(verdict(&Ok(())), Verdict::Success);
}

#[test]
fn failures_inside_an_answer_count() {
    let mistake = || MessagingError::invalid("body", "too long");
    let rows = |rows: Vec<Result<(), MessagingError>>| rows;
    for (answer, expected) in [
        (rows(vec![Ok(()), Err(mistake())]), Verdict::Success),
        (rows(vec![Ok(()), Err(unknown()), Err(mistake())]), Verdict::Failure),
        (rows(vec![Err(mistake())]), Verdict::Nothing),
        (rows(vec![]), Verdict::Nothing),
    ] {
        assert_eq!(answer.verdict(), expected, "{answer:?}");
    }
    let both = |settled, received| SettledAndReceived { settled, received }.verdict();
    assert_eq!(both(vec![Ok(())], Err(connection())), Verdict::Failure);
    assert_eq!(both(vec![Err(unknown())], Ok(Vec::new())), Verdict::Failure);
    assert_eq!(both(vec![Err(mistake())], Ok(Vec::new())), Verdict::Success);
    assert_eq!(both(vec![], Err(mistake())), Verdict::Nothing);
}

#[derive(Debug, Clone)]
enum Step {
    Call,
    Answer(usize, Verdict),
    Cancel(usize),
    Wait(Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let verdict = prop_oneof![Just(Verdict::Success), Just(Verdict::Failure), Just(Verdict::Nothing)];
    prop_oneof![
        4 => Just(Step::Call),
        4 => (0usize..8, verdict).prop_map(|(call, verdict)| Step::Answer(call, verdict)),
        2 => (0usize..8).prop_map(Step::Cancel),
        1 => (1u64..15).prop_map(|seconds| Step::Wait(Duration::from_secs(seconds))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn there_is_at_most_one_probe_and_calls_are_admitted_again(steps in prop::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let breaker = CircuitBreaker::new(SETTINGS);
            let mut under_way: VecDeque<Permit<'_>> = VecDeque::new();
            for step in steps {
                match step {
                    Step::Call => {
                        let before = breaker.state();
                        let admitted = breaker.admit("fake");
                        match before {
                            BreakerState::Closed { .. } => prop_assert!(admitted.as_ref().is_ok_and(|call| !call.is_probe)),
                            BreakerState::Open { .. } => prop_assert!(admitted.is_err()),
                            BreakerState::HalfOpen => {
                                let probes = under_way.iter().any(|call| call.is_probe);
                                prop_assert_eq!(admitted.is_err(), probes);
                            }
                        }
                        under_way.extend(admitted);
                    }
                    Step::Answer(call, verdict) => {
                        if let Some(call) = under_way.remove(call) {
                            call.answered(verdict);
                        }
                    }
                    Step::Cancel(call) => {
                        let before = breaker.state();
                        let probe = under_way.get(call).is_some_and(|call| call.is_probe);
                        drop(under_way.remove(call));
                        prop_assert!(probe || breaker.state() == before, "a cancelled call counts as nothing");
                    }
                    Step::Wait(time) => advance(time).await,
                }
                prop_assert!(under_way.iter().filter(|call| call.is_probe).count() <= 1);
            }
            drop(under_way);
            advance(OPEN).await;
            prop_assert!(breaker.admit("fake").is_ok(), "after any sequence a call is admitted in the end");
            Ok(())
        })?;
    }
}
