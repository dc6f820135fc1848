//! Leases of tasks that were claimed through this client.
//!
//! The server's lease is an opaque text, the contract's a task id and a number. The texts are stored here under numbers
//! given out locally, until some time after they expire.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::TaskId;
use postrider_core::task::TaskLease;
use tokio::time::Instant;

/// Retention of an expired lease: with its text the server can still tell the state of the task.
const RETENTION: Duration = Duration::from_secs(600);

/// Minimum number of leases before a cleanup.
const MIN_CLEANUP: usize = 1024;

/// The texts of leases. The lock is held for single map operations.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    texts: HashMap<TaskLease, Text>,
    last_number: i64,
    /// Number of leases at which the next cleanup runs.
    cleanup_at: usize,
}

#[derive(Debug)]
struct Text {
    text: String,
    expires_at: Option<Instant>,
}

impl Leases {
    /// Stores the text of a lease.
    pub(super) fn insert(&self, id: TaskId, text: String, duration: Duration) -> TaskLease {
        let mut state = self.lock();
        state.last_number += 1;
        let lease = TaskLease { id, token: state.last_number };
        state.texts.insert(lease, Text { text, expires_at: Instant::now().checked_add(duration) });
        if state.texts.len() >= state.cleanup_at.max(MIN_CLEANUP) {
            let now = Instant::now();
            state
                .texts
                .retain(|_, text| text.expires_at.is_none_or(|end| now.saturating_duration_since(end) < RETENTION));
            state.cleanup_at = state.texts.len() * 2;
        }
        lease
    }

    /// The text of a lease.
    pub(super) fn text(&self, lease: &TaskLease) -> Option<String> {
        self.lock().texts.get(lease).map(|lease| lease.text.clone())
    }

    /// Sets a new end of a lease.
    pub(super) fn extend(&self, lease: &TaskLease, duration: Duration) {
        if let Some(lease) = self.lock().texts.get_mut(lease) {
            lease.expires_at = Instant::now().checked_add(duration);
        }
    }

    /// Removes a lease.
    pub(super) fn remove(&self, lease: &TaskLease) {
        self.lock().texts.remove(lease);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn leases_are_found_until_their_retention_ends() {
        let leases = Leases::default();
        let id = TaskId::generate();
        let first = leases.insert(id, "first".into(), Duration::from_secs(1));
        let second = leases.insert(id, "second".into(), Duration::MAX);
        assert_ne!(first, second);
        assert_eq!(leases.text(&first).as_deref(), Some("first"));
        leases.extend(&second, Duration::from_secs(10_000));
        tokio::time::advance(RETENTION + Duration::from_secs(2)).await;
        for _ in 0..MIN_CLEANUP {
            leases.insert(TaskId::generate(), "other".into(), Duration::from_secs(1));
        }
        assert_eq!(leases.text(&first), None, "its retention has ended");
        assert_eq!(leases.text(&second).as_deref(), Some("second"));
        leases.remove(&second);
        assert_eq!(leases.text(&second), None);
    }
}
