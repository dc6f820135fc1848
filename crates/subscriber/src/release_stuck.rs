//! The release-stuck loop: takes workers back from handlers that outlived their lease.
//!
//! The store itself delivers a message again when its lease ends, without help, and a message with a valid lease may
//! not be taken. What can stay stuck is the worker here: a handler that ignores the cancellation after its lease was
//! lost. `release_stuck_timeout` after its delivery it is dropped, its worker takes the next message, and a fetch
//! follows, because messages were returned. No other queue and no valid lease is touched.

use std::sync::Arc;

use postrider_core::MessagingService;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::held::later;

pub(crate) struct ReleaseStuckLoop<P> {
    engine: Arc<Engine<P>>,
}

impl<P: MessagingService> ReleaseStuckLoop<P> {
    pub(crate) fn new(engine: Arc<Engine<P>>) -> Self {
        Self { engine }
    }

    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let plan = &self.engine.plan;
        loop {
            let next = later(Instant::now(), plan.release_stuck_interval);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep_until(next) => {}
            }
            let dropped = self.engine.shared.change(|buffer, now, tally| {
                let dropped = buffer.drop_stuck(now, plan.release_stuck_timeout, tally);
                buffer.fetch.is_wanted |= dropped > 0;
                dropped
            });
            if dropped > 0 {
                tracing::warn!(dropped, "dropped handlers that still ran after their lease was lost");
            }
        }
    }
}
