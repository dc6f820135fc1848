//! The lease loop: renews every lease of the subscriber, in every phase of its message.
//!
//! One task scans all leases when the first is due. A heap by due time was rejected: it would keep an entry for each of
//! the thousands of messages that were settled meanwhile, and the number of leases is bounded by the capacity.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use postrider_core::{Deadline, LeaseToken, MessagingError, MessagingService, Moment, ReceiptHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::buffer::Buffer;
use crate::engine::Engine;
use crate::held::{Phase, later};

/// Concurrent renewals: enough for a provider to collect them into one batch, without crowding out other calls.
const AT_THE_SAME_TIME: usize = 256;

pub(crate) struct LeaseLoop<P> {
    engine: Arc<Engine<P>>,
}

/// The result of one scan of the leases.
#[derive(Default)]
struct Scan {
    due: Vec<(LeaseToken, ReceiptHandle, Instant)>,
    over: Vec<LeaseToken>,
    next: Option<Instant>,
}

impl<P: MessagingService> LeaseLoop<P> {
    pub(crate) fn new(engine: Arc<Engine<P>>) -> Self {
        Self { engine }
    }

    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let shared = &self.engine.shared;
        loop {
            let scan = self.scan(Instant::now());
            if !scan.over.is_empty() {
                shared.change(|buffer, _, tally| {
                    for token in scan.over {
                        buffer.lose(token, tally);
                    }
                });
            }
            if !scan.due.is_empty() {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    () = self.renew(scan.due) => {}
                }
                continue;
            }
            let due = async {
                match scan.next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = shared.leases.notified() => {}
                () = due => {}
            }
        }
    }

    fn scan(&self, now: Instant) -> Scan {
        // Leases that are nearly due are renewed too, so that renewals share batches.
        let soon = later(now, self.engine.plan.visibility / 12);
        let mut scan = Scan::default();
        let mut nearly = Vec::new();
        let mut buffer = self.engine.shared.buffer();
        for (token, held) in &buffer.held {
            if matches!(held.phase, Phase::Lost(_)) {
                continue;
            }
            let lease = &held.lease;
            if now >= lease.over_at {
                // While its settle is under way, only the answer counts.
                if !matches!(held.phase, Phase::Settling(_)) {
                    scan.over.push(*token);
                }
            } else if lease.renew_at <= now {
                scan.due.push((*token, held.receipt(), lease.over_at));
            } else {
                if lease.renew_at <= soon && soon < lease.over_at {
                    nearly.push((*token, held.receipt(), lease.over_at));
                }
                scan.next = Some(scan.next.map_or(lease.renew_at, |next| next.min(lease.renew_at)));
            }
        }
        if !scan.due.is_empty() {
            scan.due.append(&mut nearly);
        }
        buffer.looks_at_leases = scan.next;
        scan
    }

    async fn renew(&self, due: Vec<(LeaseToken, ReceiptHandle, Instant)>) {
        stream::iter(due)
            .map(|(token, receipt, over_at)| self.renew_one(token, receipt, over_at))
            .buffer_unordered(AT_THE_SAME_TIME)
            .for_each(|()| async {})
            .await;
    }

    async fn renew_one(&self, token: LeaseToken, receipt: ReceiptHandle, over_at: Instant) {
        let Engine { provider, plan, shared, .. } = &*self.engine;
        let requested = Moment::now();
        let limit = over_at.saturating_duration_since(requested.instant()).min(plan.visibility / 3);
        let deadline = Deadline::after(limit);
        let call = provider.extend_visibility(receipt.queue(), &receipt, plan.visibility, deadline);
        // Limited here too: a provider that ignores its deadline must not delay the renewal of other leases.
        let answer =
            deadline.limit(call).await.unwrap_or(Err(MessagingError::DeadlineExceeded { operation: "extend" }));
        let answered = Instant::now();
        match answer {
            Ok(next) => {
                if shared.health.renewed(true) {
                    tracing::warn!(queue = %receipt.queue(), "leases can be renewed again");
                }
                let mut buffer = shared.buffer();
                if let Some(held) = buffer.held.get_mut(&token) {
                    held.message.goes_on_by(next);
                    held.lease.renewed(requested, answered, plan.visibility, plan.resolution);
                    if let Phase::Running(running) = &held.phase {
                        running.control.is_leased_for(plan.visibility, requested);
                    }
                }
            }
            Err(MessagingError::VisibilityExpired { .. }) => {
                tracing::warn!(queue = %receipt.queue(), id = %receipt.message_id(), "the lease was lost");
                shared.change(|buffer, _, tally| buffer.lose(token, tally));
            }
            Err(error) => {
                let (queue, id) = (receipt.queue(), receipt.message_id());
                match shared.health.renewed(false) {
                    true => {
                        tracing::warn!(%queue, %id, %error, "cannot renew leases; retrying until they end")
                    }
                    false => tracing::debug!(%queue, %id, %error, "cannot renew the lease"),
                }
                try_again(&mut shared.buffer(), token, answered, plan.visibility);
            }
        }
    }
}

/// Schedules another renewal; several fit before the lease ends.
fn try_again(buffer: &mut Buffer, token: LeaseToken, now: Instant, visibility: Duration) {
    if let Some(held) = buffer.held.get_mut(&token) {
        held.lease.renew_at = later(now, visibility / 6).min(held.lease.over_at);
    }
}
