//! The lease loop: renews every lease of the subscriber, whether its message runs, waits or is to be settled.
//!
//! One task walks all leases when the first is due. A heap by due time was rejected: it would keep an entry for each of
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

/// Enough for a provider to gather them into one batch, and not so many that they crowd out everything else.
const AT_THE_SAME_TIME: usize = 256;

pub(crate) struct LeaseLoop<P> {
    engine: Arc<Engine<P>>,
}

/// What one walk over the leases found.
#[derive(Default)]
struct Walk {
    due: Vec<(LeaseToken, ReceiptHandle, Instant)>,
    over: Vec<LeaseToken>,
    next: Option<Instant>,
}

impl<P: MessagingService> LeaseLoop<P> {
    pub(crate) fn new(engine: Arc<Engine<P>>) -> Self {
        Self { engine }
    }

    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let desk = &self.engine.desk;
        loop {
            let walk = self.walk(Instant::now());
            if !walk.over.is_empty() {
                desk.change(|buffer, _, tally| {
                    for token in walk.over {
                        buffer.lose(token, tally);
                    }
                });
            }
            if !walk.due.is_empty() {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    () = self.renew(walk.due) => {}
                }
                continue;
            }
            let due = async {
                match walk.next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = desk.leases.notified() => {}
                () = due => {}
            }
        }
    }

    fn walk(&self, now: Instant) -> Walk {
        // Leases that are nearly due go along, so that renewals travel in company.
        let soon = later(now, self.engine.plan.visibility / 12);
        let mut walk = Walk::default();
        let mut nearly = Vec::new();
        let mut buffer = self.engine.desk.buffer();
        for (token, held) in &buffer.held {
            if matches!(held.phase, Phase::Lost(_)) {
                continue;
            }
            let lease = &held.lease;
            if now >= lease.over_at {
                // While its settle is under way only the answer counts.
                if !matches!(held.phase, Phase::Settling(_)) {
                    walk.over.push(*token);
                }
            } else if lease.renew_at <= now {
                walk.due.push((*token, held.receipt(), lease.over_at));
            } else {
                if lease.renew_at <= soon && soon < lease.over_at {
                    nearly.push((*token, held.receipt(), lease.over_at));
                }
                walk.next = Some(walk.next.map_or(lease.renew_at, |next| next.min(lease.renew_at)));
            }
        }
        if !walk.due.is_empty() {
            walk.due.append(&mut nearly);
        }
        buffer.looks_at_leases = walk.next;
        walk
    }

    async fn renew(&self, due: Vec<(LeaseToken, ReceiptHandle, Instant)>) {
        stream::iter(due)
            .map(|(token, receipt, over_at)| self.renew_one(token, receipt, over_at))
            .buffer_unordered(AT_THE_SAME_TIME)
            .for_each(|()| async {})
            .await;
    }

    async fn renew_one(&self, token: LeaseToken, receipt: ReceiptHandle, over_at: Instant) {
        let Engine { provider, plan, desk, .. } = &*self.engine;
        let asked = Moment::now();
        let patience = over_at.saturating_duration_since(asked.instant()).min(plan.visibility / 3);
        let deadline = Deadline::after(patience);
        let call = provider.extend_visibility(receipt.queue(), &receipt, plan.visibility, deadline);
        // Limited here too: a provider that ignores its deadline must not keep the other leases from being renewed.
        let answer =
            deadline.limit(call).await.unwrap_or(Err(MessagingError::DeadlineExceeded { operation: "extend" }));
        let answered = Instant::now();
        match answer {
            Ok(next) => {
                if desk.health.renewed(true) {
                    tracing::warn!(queue = %receipt.queue(), "leases can be renewed again");
                }
                let mut buffer = desk.buffer();
                if let Some(held) = buffer.held.get_mut(&token) {
                    held.message.goes_on_by(next);
                    held.lease.renewed(asked, answered, plan.visibility, plan.resolution);
                    if let Phase::Running(running) = &held.phase {
                        running.control.is_leased_for(plan.visibility, asked);
                    }
                }
            }
            Err(MessagingError::VisibilityExpired { .. }) => {
                tracing::warn!(queue = %receipt.queue(), id = %receipt.message_id(), "the lease was lost");
                desk.change(|buffer, _, tally| buffer.lose(token, tally));
            }
            Err(error) => {
                let (queue, id) = (receipt.queue(), receipt.message_id());
                match desk.health.renewed(false) {
                    true => {
                        tracing::warn!(%queue, %id, %error, "cannot renew leases; trying again until they are over")
                    }
                    false => tracing::debug!(%queue, %id, %error, "cannot renew the lease"),
                }
                try_again(&mut desk.buffer(), token, answered, plan.visibility);
            }
        }
    }
}

/// Several more tries before the lease is over.
fn try_again(buffer: &mut Buffer, token: LeaseToken, now: Instant, visibility: Duration) {
    if let Some(held) = buffer.held.get_mut(&token) {
        held.lease.renew_at = later(now, visibility / 6).min(held.lease.over_at);
    }
}
