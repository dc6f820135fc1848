//! The record of one piece of work, while it is done.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider_core::{Deadline, IdempotencyStore, IdempotencyToken, MessagingError, Standing};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Attempts to write a record.
const TRIES: u32 = 4;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Interval at which old records are removed.
const FORGET_EVERY: Duration = Duration::from_secs(3600);

/// A record that this worker has begun. Dropped without an end (the handler panicked, timed out or was cancelled) it is
/// abandoned, so that the next attempt need not wait for the end of the lease.
pub(super) struct Record<R: IdempotencyStore> {
    records: Arc<R>,
    token: IdempotencyToken,
    lease: Duration,
    cancellation: CancellationToken,
    is_open: bool,
}

impl<R: IdempotencyStore> Record<R> {
    pub(super) fn new(
        records: Arc<R>,
        token: IdempotencyToken,
        lease: Duration,
        cancellation: CancellationToken,
    ) -> Self {
        Self { records, token, lease, cancellation, is_open: true }
    }

    /// Runs the work and extends the lease meanwhile.
    pub(super) async fn while_held<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        let mut heartbeat = pin!(self.heartbeat());
        tokio::select! {
            biased;
            outcome = &mut work => outcome,
            () = &mut heartbeat => work.await,
        }
    }

    /// Ends when the record is lost.
    async fn heartbeat(&self) {
        loop {
            tokio::time::sleep(self.lease / 3).await;
            // A failed extension is retried at the next interval: there is time for two.
            let beat = self.records.extend(&self.token, self.lease, Deadline::after(self.lease / 3)).await;
            if let Ok(Standing::Lost) = beat {
                tracing::warn!(key = %self.token.key(), "another worker has taken over the work; cancelling the handler");
                self.cancellation.cancel();
                return;
            }
        }
    }

    /// Records that the work is done. A failure is only logged, because the work cannot be undone.
    pub(super) async fn complete(mut self) {
        self.is_open = false;
        match self.write(|| self.records.complete(&self.token, Deadline::after(self.lease))).await {
            Ok(Standing::Held) => {}
            Ok(Standing::Lost) => {
                tracing::warn!(key = %self.token.key(), "the work was done, and another worker has taken it over before");
            }
            Err(error) => {
                tracing::warn!(key = %self.token.key(), %error, "the work was done and could not be recorded");
            }
        }
    }

    /// Records that the work is not done.
    pub(super) async fn abandon(mut self) {
        self.is_open = false;
        // If this fails, the record is free when its lease ends.
        if let Err(error) = self.write(|| self.records.abandon(&self.token, Deadline::after(self.lease))).await {
            tracing::debug!(key = %self.token.key(), %error, "the record stays until its lease ends");
        }
    }

    /// Retries a write. Both writes can be repeated, also after an unknown outcome.
    async fn write<F>(&self, mut attempt: impl FnMut() -> F) -> Result<Standing, MessagingError>
    where
        F: Future<Output = Result<Standing, MessagingError>>,
    {
        let mut tried = 1;
        loop {
            match attempt().await {
                Err(error) if tried < TRIES => {
                    tracing::debug!(key = %self.token.key(), %error, "the record is written again");
                    tokio::time::sleep(BETWEEN_TRIES * 2_u32.pow(tried)).await;
                    tried += 1;
                }
                result => return result,
            }
        }
    }
}

impl<R: IdempotencyStore> Drop for Record<R> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        // Without a runtime the lease ends by itself.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (records, token, lease) = (self.records.clone(), self.token.clone(), self.lease);
        runtime.spawn(async move {
            let _ = records.abandon(&token, Deadline::after(lease)).await;
        });
    }
}

/// Removes old records.
#[derive(Debug, Default)]
pub(super) struct Cleanup {
    // A blocking mutex, held for a comparison.
    last: Mutex<Option<Instant>>,
}

impl Cleanup {
    /// Removes old records in the background, once an hour.
    pub(super) fn forget_old<R: IdempotencyStore>(&self, records: &Arc<R>, retention: Duration) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < FORGET_EVERY) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        let records = records.clone();
        tokio::spawn(async move {
            if let Err(error) = records.forget(retention, Deadline::default()).await {
                tracing::debug!(%error, "old idempotency records are forgotten later");
            }
        });
    }
}
