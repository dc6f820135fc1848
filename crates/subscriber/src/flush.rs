//! The flush loop: settles decided messages that no fetch settles.
//!
//! A settlement does not wait while the subscriber is otherwise idle. While a fetch is under way it waits for the end
//! of that fetch, because the next one settles it in the same transaction, but no longer than `flush_interval`.

use std::sync::Arc;

use postrider_core::{Deadline, MessagingError, MessagingService};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::{Engine, answered};
use crate::outbox::Rows;

pub(crate) struct FlushLoop<P> {
    engine: Arc<Engine<P>>,
}

impl<P: MessagingService> FlushLoop<P> {
    pub(crate) fn new(engine: Arc<Engine<P>>) -> Self {
        Self { engine }
    }

    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let engine = self.engine.clone();
        loop {
            let now = Instant::now();
            let (rows, flush_at) = {
                let mut buffer = engine.shared.buffer();
                let flush_at = buffer.flush_at(now);
                let is_due = flush_at.is_some_and(|at| at <= now);
                buffer.flushes_at = flush_at.filter(|_| !is_due);
                (if is_due { buffer.take_rows(now) } else { Rows::default() }, buffer.flushes_at)
            };
            if !rows.tokens.is_empty() {
                self.flush(rows).await;
                continue;
            }
            let due = async {
                match flush_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = engine.shared.flush.notified() => {}
                () = due => {}
            }
        }
    }

    async fn flush(&self, rows: Rows) {
        let call = self.engine.provider.settle(rows.settlements, Deadline::default());
        let answer = answered(call, "settle").await;
        if matches!(answer, Err(MessagingError::Closed { .. })) {
            self.engine.closed.cancel();
        }
        let shared = &self.engine.shared;
        let failure = shared.change(|buffer, now, tally| buffer.settled(rows.tokens, answer, now, tally));
        shared.record_settle(failure);
    }
}
