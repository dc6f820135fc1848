//! The leases on tasks that were claimed here.
//!
//! A lease is a text that only its server can make, and a worker holds an id and a number. So the text is kept here under a
//! number that is drawn for it, for as long as the lease can be of use.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::TaskId;
use postrider_core::task::TaskLease;
use tokio::time::Instant;

/// How long a lease that has run out is remembered: whoever asks by it is told by the server what became of the task.
const AFTERWARDS: Duration = Duration::from_secs(600);

/// From so many leases on it is looked for those that have run out.
const MANY: usize = 1024;

/// The texts of leases. A lock, held for a look.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    texts: HashMap<TaskLease, Text>,
    drawn: i64,
    /// How many there are when it is looked next.
    look_at: usize,
}

#[derive(Debug)]
struct Text {
    text: String,
    runs_out: Option<Instant>,
}

impl Leases {
    /// Keeps the text of a lease that lasts that long.
    pub(super) fn keep(&self, id: TaskId, text: String, lasts: Duration) -> TaskLease {
        let mut kept = self.lock();
        kept.drawn += 1;
        let lease = TaskLease { id, token: kept.drawn };
        kept.texts.insert(lease, Text { text, runs_out: Instant::now().checked_add(lasts) });
        if kept.texts.len() >= kept.look_at.max(MANY) {
            let now = Instant::now();
            kept.texts
                .retain(|_, text| text.runs_out.is_none_or(|end| now.saturating_duration_since(end) < AFTERWARDS));
            kept.look_at = kept.texts.len() * 2;
        }
        lease
    }

    /// The text of a lease.
    pub(super) fn text(&self, lease: &TaskLease) -> Option<String> {
        self.lock().texts.get(lease).map(|kept| kept.text.clone())
    }

    /// The lease lasts that long from now.
    pub(super) fn renew(&self, lease: &TaskLease, lasts: Duration) {
        if let Some(kept) = self.lock().texts.get_mut(lease) {
            kept.runs_out = Instant::now().checked_add(lasts);
        }
    }

    /// The lease is over.
    pub(super) fn forget(&self, lease: &TaskLease) {
        self.lock().texts.remove(lease);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn leases_are_found_until_they_are_of_no_use() {
        let leases = Leases::default();
        let id = TaskId::generate();
        let first = leases.keep(id, "first".into(), Duration::from_secs(1));
        let second = leases.keep(id, "second".into(), Duration::MAX);
        assert_ne!(first, second);
        assert_eq!(leases.text(&first).as_deref(), Some("first"));
        leases.renew(&second, Duration::from_secs(10_000));
        tokio::time::advance(AFTERWARDS + Duration::from_secs(2)).await;
        for _ in 0..MANY {
            leases.keep(TaskId::generate(), "other".into(), Duration::from_secs(1));
        }
        assert_eq!(leases.text(&first), None, "it has run out long ago");
        assert_eq!(leases.text(&second).as_deref(), Some("second"));
        leases.forget(&second);
        assert_eq!(leases.text(&second), None);
    }
}
