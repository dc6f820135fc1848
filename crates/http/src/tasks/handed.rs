//! Claims on their way to a worker.

use std::sync::Arc;

use postrider_core::MessagingError;
use postrider_core::task::{ClaimedTask, TaskLease, TaskOutcome};
use postrider_wire::task::{Claimed, Finish, FinishRequest, Finished};

use super::leases::Leases;
use crate::failure::{Odd, Undone};
use crate::transport::{Ask, Transport};

/// Tasks that were claimed for somebody. Dropped, they go back: whoever asked for them has left.
#[derive(Debug)]
pub(super) struct Handed {
    transport: Arc<Transport>,
    leases: Arc<Leases>,
    held: Vec<TaskLease>,
}

impl Handed {
    pub(super) fn new(transport: Arc<Transport>, leases: Arc<Leases>) -> Self {
        Self { transport, leases, held: Vec::new() }
    }

    /// A task that came over the wire, with its lease kept.
    pub(super) fn take(
        &mut self,
        claimed: Claimed,
        lasts: std::time::Duration,
        operation: &'static str,
    ) -> Result<ClaimedTask, MessagingError> {
        let lease = self.leases.keep(claimed.id, claimed.lease.clone(), lasts);
        self.held.push(lease);
        let place = || self.transport.place().to_string();
        claimed
            .into_task(lease)
            .map_err(|error| Odd::Garbled { place: place(), cause: error.to_string() }.into_failure(operation))
    }

    /// They have arrived.
    pub(super) fn arrived(mut self) {
        self.held.clear();
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held);
        let finish = |lease: TaskLease| {
            let text = self.leases.text(&lease);
            self.leases.forget(&lease);
            text.map(|text| Finish::new(text, TaskOutcome::Released))
        };
        let finish: Vec<_> = held.into_iter().filter_map(finish).collect();
        // Without a runtime the process is ending; the leases run out.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if finish.is_empty() {
            return;
        }
        let transport = self.transport.clone();
        runtime.spawn(async move {
            let released = async {
                let ask = Ask::post("/v1/tasks/finish", &FinishRequest { finish })?;
                transport.change::<Finished>(ask).await.map_err(Undone::into_harmless)
            };
            if let Err(error) = released.await {
                tracing::debug!(%error, "claims that nobody waited for were not given back; their leases run out");
            }
        });
    }
}
