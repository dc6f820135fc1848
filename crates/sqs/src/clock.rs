//! SQS's clock.
//!
//! SQS writes its time on every answer and on every message. Each of these moments has passed there, so the latest one is a
//! lower bound of SQS's time: a message judged by it is never due too early, however wrong this host's clock is.

use std::sync::atomic::{AtomicI64, Ordering};

use aws_sdk_sqs::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::BoxError;
use aws_sdk_sqs::primitives::{DateTime, DateTimeFormat};
use postrider_core::Timestamp;
use std::sync::Arc;

const NOT_KNOWN: i64 = i64::MIN;

/// Smallest backward step in microseconds that means a clock was set: an answer's time is cut to whole seconds.
const SET_BACK: i64 = 2_500_000;

/// How far SQS's clock is ahead of this host's, in microseconds.
#[derive(Debug, Clone)]
pub(crate) struct SqsClock(Arc<AtomicI64>);

impl SqsClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(NOT_KNOWN)))
    }

    /// Returns a lower bound of SQS's time.
    pub(crate) fn now(&self) -> Timestamp {
        match self.0.load(Ordering::Relaxed) {
            NOT_KNOWN => Timestamp::now(),
            ahead => Timestamp::from_micros(Timestamp::now().as_micros().saturating_add(ahead)),
        }
    }

    /// Records the time of an answer.
    fn observe_answer(&self, theirs: Timestamp, ours: Timestamp) {
        let ahead = theirs.as_micros().saturating_sub(ours.as_micros());
        let known = self.0.load(Ordering::Relaxed);
        if known == NOT_KNOWN || ahead > known || ahead < known.saturating_sub(SET_BACK) {
            self.0.store(ahead, Ordering::Relaxed);
        }
    }

    /// Records a moment that has passed at SQS.
    pub(crate) fn observe(&self, theirs: Timestamp) {
        let ahead = theirs.as_micros().saturating_sub(Timestamp::now().as_micros());
        self.0.fetch_max(ahead, Ordering::Relaxed);
    }
}

impl Intercept for SqsClock {
    fn name(&self) -> &'static str {
        "SqsClock"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        if let Some(date) = date.and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok()) {
            self.observe_answer(Timestamp::from_micros(date.secs().saturating_mul(1_000_000)), Timestamp::now());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn the_latest_known_moment_counts() {
        let clock = SqsClock::new();
        let ahead = |clock: &SqsClock| clock.0.load(Ordering::Relaxed) / 1_000_000;
        clock.observe_answer(at(3600), at(0));
        assert_eq!(ahead(&clock), 3600);
        // Cut to the second, the next answers may seem earlier.
        clock.observe_answer(at(3600), at(1));
        assert_eq!(ahead(&clock), 3600);
        clock.observe_answer(at(3602), at(1));
        assert_eq!(ahead(&clock), 3601);
        // One of the clocks was set.
        clock.observe_answer(at(10), at(2));
        assert_eq!(ahead(&clock), 8);
        clock.observe(Timestamp::now().saturating_add(std::time::Duration::from_secs(100)));
        assert!((99..=100).contains(&ahead(&clock)));
        clock.observe(at(0));
        assert!((99..=100).contains(&ahead(&clock)));
    }
}
