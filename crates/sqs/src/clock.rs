//! The time as SQS has it.
//!
//! SQS writes its time on every answer and on every message. Each of these is a moment that has passed there, so the
//! latest of them is what the time there is at least: a due time that is judged by it is never judged too early, whatever
//! clock this host has.

use std::sync::atomic::{AtomicI64, Ordering};

use aws_sdk_sqs::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sqs::error::BoxError;
use aws_sdk_sqs::primitives::{DateTime, DateTimeFormat};
use postrider_core::Timestamp;
use std::sync::Arc;

const NOT_KNOWN: i64 = i64::MIN;

/// An answer's time is cut to whole seconds: only what is further back than this is a clock that was set.
const SET_BACK: i64 = 2_500_000;

/// How far SQS's clock is ahead of this host's.
#[derive(Debug, Clone)]
pub(crate) struct SqsClock(Arc<AtomicI64>);

impl SqsClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(NOT_KNOWN)))
    }

    /// What time it is there, at least.
    pub(crate) fn now(&self) -> Timestamp {
        match self.0.load(Ordering::Relaxed) {
            NOT_KNOWN => Timestamp::now(),
            ahead => Timestamp::from_micros(Timestamp::now().as_micros().saturating_add(ahead)),
        }
    }

    /// It was that time there when this answer was given.
    fn answered_at(&self, there: Timestamp, here: Timestamp) {
        let ahead = there.as_micros().saturating_sub(here.as_micros());
        let known = self.0.load(Ordering::Relaxed);
        if known == NOT_KNOWN || ahead > known || ahead < known.saturating_sub(SET_BACK) {
            self.0.store(ahead, Ordering::Relaxed);
        }
    }

    /// It has been that time there.
    pub(crate) fn has_been(&self, there: Timestamp) {
        let ahead = there.as_micros().saturating_sub(Timestamp::now().as_micros());
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
            self.answered_at(Timestamp::from_micros(date.secs().saturating_mul(1_000_000)), Timestamp::now());
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
    fn the_latest_moment_that_is_known_to_have_passed_counts() {
        let clock = SqsClock::new();
        let ahead = |clock: &SqsClock| clock.0.load(Ordering::Relaxed) / 1_000_000;
        clock.answered_at(at(3600), at(0));
        assert_eq!(ahead(&clock), 3600);
        // Cut to the second, the next answers may seem to be from before.
        clock.answered_at(at(3600), at(1));
        assert_eq!(ahead(&clock), 3600);
        clock.answered_at(at(3602), at(1));
        assert_eq!(ahead(&clock), 3601);
        // Somebody has set one of the clocks.
        clock.answered_at(at(10), at(2));
        assert_eq!(ahead(&clock), 8);
        clock.has_been(Timestamp::now().saturating_add(std::time::Duration::from_secs(100)));
        assert!((99..=100).contains(&ahead(&clock)));
        clock.has_been(at(0));
        assert!((99..=100).contains(&ahead(&clock)));
    }
}
