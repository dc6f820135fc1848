//! Claimed tasks that have not reached their caller yet.

use std::sync::Arc;

use postrider_core::MessagingError;
use postrider_core::task::{ClaimedTask, TaskLease, TaskOutcome};
use postrider_wire::task::{Claimed, Finish, FinishRequest, Finished};

use super::leases::Leases;
use crate::failure::{AnswerError, Failure};
use crate::transport::{Request, Transport};

/// Claimed tasks; releases them on drop, because their caller is gone.
#[derive(Debug)]
pub(super) struct ClaimGuard {
    transport: Arc<Transport>,
    leases: Arc<Leases>,
    claimed: Vec<TaskLease>,
}

impl ClaimGuard {
    pub(super) fn new(transport: Arc<Transport>, leases: Arc<Leases>) -> Self {
        Self { transport, leases, claimed: Vec::new() }
    }

    /// Converts a claimed task and stores its lease.
    pub(super) fn add(
        &mut self,
        claimed: Claimed,
        duration: std::time::Duration,
        operation: &'static str,
    ) -> Result<ClaimedTask, MessagingError> {
        let lease = self.leases.insert(claimed.id, claimed.lease.clone(), duration);
        self.claimed.push(lease);
        let server = || self.transport.server().to_string();
        claimed.into_task(lease).map_err(|error| {
            AnswerError::Malformed { server: server(), cause: error.to_string() }.into_error(operation)
        })
    }

    /// The caller has the tasks: nothing is released.
    pub(super) fn disarm(mut self) {
        self.claimed.clear();
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        let claimed = std::mem::take(&mut self.claimed);
        let finish = |lease: TaskLease| {
            let text = self.leases.text(&lease);
            self.leases.remove(&lease);
            text.map(|text| Finish::new(text, TaskOutcome::Released))
        };
        let finish: Vec<_> = claimed.into_iter().filter_map(finish).collect();
        // Without a runtime the process is ending; the leases expire.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if finish.is_empty() {
            return;
        }
        let transport = self.transport.clone();
        runtime.spawn(async move {
            let released = async {
                let request = Request::post("/v1/tasks/finish", &FinishRequest { finish })?;
                transport.call_once::<Finished>(request).await.map_err(Failure::into_connection_error)
            };
            if let Err(error) = released.await {
                tracing::debug!(%error, "could not release claimed tasks of a canceled call; their leases expire");
            }
        });
    }
}
