//! What has changed, told to whoever looks.
//!
//! Changes that say what is different wait for a slow reader, and one who misses some is told so. That something about
//! tasks or schedules may be different is a hint: many are one, and they push nothing else out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider::{QueueName, QueueStats};
use postrider_http::wire::job::Job;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

/// So many changes wait for a slow reader; who is slower misses all of them.
const KEPT: usize = 64;

/// Tasks change many times a second: those who look are told a few times.
const BETWEEN_HINTS: Duration = Duration::from_millis(200);

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
    /// There were more changes than this reader could take: everything may be different.
    Missed,
}

/// Tells changes to those who listen.
#[derive(Debug)]
pub(crate) struct Live {
    changes: broadcast::Sender<Change>,
    tasks: watch::Sender<()>,
    schedules: watch::Sender<()>,
    listening: Arc<AtomicUsize>,
}

/// Somebody who listens.
#[derive(Debug)]
pub(crate) struct Listener {
    changes: broadcast::Receiver<Change>,
    tasks: Hints,
    schedules: Hints,
    listening: Arc<AtomicUsize>,
}

/// Hints of one kind.
#[derive(Debug)]
struct Hints {
    told: watch::Receiver<()>,
    /// Not before.
    next: Instant,
}

impl Hints {
    fn of(told: &watch::Sender<()>) -> Self {
        Self { told: told.subscribe(), next: Instant::now() }
    }

    /// The next hint; all that came meanwhile are one. `None` when there will be no more.
    async fn next(&mut self) -> Option<()> {
        tokio::time::sleep_until(self.next).await;
        self.told.changed().await.ok()?;
        self.next = Instant::now() + BETWEEN_HINTS;
        Some(())
    }
}

impl Default for Live {
    fn default() -> Self {
        Self {
            changes: broadcast::Sender::new(KEPT),
            tasks: watch::Sender::default(),
            schedules: watch::Sender::default(),
            listening: Arc::default(),
        }
    }
}

impl Live {
    pub(crate) fn tell(&self, change: Change) {
        match change {
            Change::Tasks => self.tasks.send_replace(()),
            Change::Schedules => self.schedules.send_replace(()),
            // Nobody listening is nothing wrong.
            change => drop(self.changes.send(change)),
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.listening.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn listen(&self) -> Listener {
        self.listening.fetch_add(1, Ordering::Relaxed);
        Listener {
            changes: self.changes.subscribe(),
            tasks: Hints::of(&self.tasks),
            schedules: Hints::of(&self.schedules),
            listening: self.listening.clone(),
        }
    }
}

impl Listener {
    /// The next change; `None` when there will be no more.
    pub(crate) async fn next(&mut self) -> Option<Change> {
        tokio::select! {
            change = self.changes.recv() => match change {
                Ok(change) => Some(change),
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    // Whoever looks again at everything needs nothing of what was before.
                    self.changes = self.changes.resubscribe();
                    Some(Change::Missed)
                }
                Err(broadcast::error::RecvError::Closed) => None,
            },
            Some(()) = self.tasks.next() => Some(Change::Tasks),
            Some(()) = self.schedules.next() => Some(Change::Schedules),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listening.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn gone(number: usize) -> Change {
        Change::Gone([QueueName::new(format!("q{number}")).unwrap()].into())
    }

    /// What can be heard without waiting.
    fn heard(listener: &mut Listener) -> Vec<String> {
        let now = std::iter::from_fn(|| listener.next().now_or_never().flatten());
        now.map(|change| match change {
            Change::Gone(queues) => queues[0].to_string(),
            other => format!("{other:?}"),
        })
        .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn many_hints_are_one_and_push_nothing_out() {
        let live = Live::default();
        let mut listener = live.listen();
        live.tell(gone(1));
        for _ in 0..1000 {
            live.tell(Change::Tasks);
        }
        live.tell(gone(2));
        let mut all = heard(&mut listener);
        all.sort();
        assert_eq!(all, ["Tasks", "q1", "q2"]);
        // The next hint waits a little; what says more does not.
        live.tell(Change::Tasks);
        live.tell(gone(3));
        assert_eq!(heard(&mut listener), ["q3"]);
        tokio::time::advance(BETWEEN_HINTS).await;
        assert_eq!(heard(&mut listener), ["Tasks"]);
    }

    #[tokio::test]
    async fn whoever_misses_changes_is_told_so_and_hears_what_comes_after() {
        let live = Live::default();
        let mut listener = live.listen();
        (0..=KEPT).for_each(|number| live.tell(gone(number)));
        assert_eq!(heard(&mut listener), ["Missed"]);
        live.tell(gone(7));
        assert_eq!(heard(&mut listener), ["q7"]);
        drop(live);
        assert!(listener.next().await.is_none());
    }
}
