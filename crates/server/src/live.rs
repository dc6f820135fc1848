//! What has changed, told to whoever looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use postrider::{QueueName, QueueStats};
use postrider_http::wire::job::Job;
use tokio::sync::broadcast;

/// So many changes wait for a slow reader; who is slower misses some and looks again.
const KEPT: usize = 64;

/// Something that has changed.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// These queues are like this now.
    Queues(Arc<[QueueStats]>),
    /// These queues are no more.
    Gone(Arc<[QueueName]>),
    /// A job has come further.
    Job(Job),
    /// Something about tasks may be different.
    Tasks,
    /// Something about schedules may be different.
    Schedules,
}

/// Tells changes to those who listen.
#[derive(Debug)]
pub(crate) struct Live {
    changes: broadcast::Sender<Change>,
    listening: Arc<AtomicUsize>,
}

/// Somebody who listens.
#[derive(Debug)]
pub(crate) struct Listener {
    changes: broadcast::Receiver<Change>,
    listening: Arc<AtomicUsize>,
}

impl Default for Live {
    fn default() -> Self {
        Self { changes: broadcast::Sender::new(KEPT), listening: Arc::default() }
    }
}

impl Live {
    pub(crate) fn tell(&self, change: Change) {
        // Nobody listening is nothing wrong.
        let _ = self.changes.send(change);
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.listening.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn listen(&self) -> Listener {
        self.listening.fetch_add(1, Ordering::Relaxed);
        Listener { changes: self.changes.subscribe(), listening: self.listening.clone() }
    }
}

impl Listener {
    /// The next change; `None` when there will be no more. What a slow reader missed is skipped.
    pub(crate) async fn next(&mut self) -> Option<Change> {
        loop {
            match self.changes.recv().await {
                Ok(change) => return Some(change),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listening.fetch_sub(1, Ordering::Relaxed);
    }
}
