//! Live changes for open streams.
//!
//! Changes with content are buffered for slow readers; a reader that misses some is changed to read everything again.
//! Changes of tasks and schedules are hints without content: many become one, and they displace no other change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider::{QueueName, QueueStats, TaskType};
use postrider_wire::job::Job;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

/// Upper bound of buffered changes; a slower reader misses them.
const BUFFER: usize = 64;

/// Minimum interval of hints: tasks change many times a second.
const HINT_INTERVAL: Duration = Duration::from_millis(200);

/// A change.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// New stats of queues.
    Queues(Arc<[QueueStats]>),
    /// Removed queues.
    Gone(Arc<[QueueName]>),
    /// Progress of a job.
    Job(Job),
    /// Tasks may have changed.
    Tasks,
    /// Schedules may have changed.
    Schedules,
    /// The reader was too slow and has missed changes.
    Missed,
}

/// Upper bound of the types whose changes are counted.
const MAX_TYPES: usize = 10_000;

/// Number of changes by task type, from which a stream of a limited caller knows whether a hint concerns it. The lock
/// is held briefly.
#[derive(Debug, Default)]
struct ChangeCounts {
    counts: Mutex<HashMap<TaskType, u64>>,
    hint: watch::Sender<()>,
}

impl ChangeCounts {
    fn publish<'t>(&self, types: impl IntoIterator<Item = &'t TaskType>) {
        {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            for task_type in types {
                match counts.get_mut(task_type) {
                    Some(count) => *count += 1,
                    None => {
                        if counts.len() >= MAX_TYPES {
                            counts.clear();
                        }
                        counts.insert(task_type.clone(), 1);
                    }
                }
            }
        }
        self.hint.send_replace(());
    }

    fn count(&self, may_see: impl Fn(&TaskType) -> bool) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().filter(|(task_type, _)| may_see(task_type)).map(|(_, count)| count).sum()
    }
}

/// Publishes changes to listeners.
#[derive(Debug)]
pub(crate) struct Live {
    changes: broadcast::Sender<Change>,
    tasks: ChangeCounts,
    schedules: ChangeCounts,
    listening: Arc<AtomicUsize>,
}

/// A listener for changes.
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
    changed: watch::Receiver<()>,
    /// Time of the next hint at the earliest.
    next: Instant,
}

impl Hints {
    fn of(changed: &watch::Sender<()>) -> Self {
        Self { changed: changed.subscribe(), next: Instant::now() }
    }

    /// Waits for the next hint; several become one. `None` after the end.
    async fn next(&mut self) -> Option<()> {
        tokio::time::sleep_until(self.next).await;
        self.changed.changed().await.ok()?;
        self.next = Instant::now() + HINT_INTERVAL;
        Some(())
    }
}

impl Default for Live {
    fn default() -> Self {
        Self {
            changes: broadcast::Sender::new(BUFFER),
            tasks: ChangeCounts::default(),
            schedules: ChangeCounts::default(),
            listening: Arc::default(),
        }
    }
}

impl Live {
    pub(crate) fn publish(&self, change: Change) {
        // An error means that there is no listener.
        drop(self.changes.send(change));
    }

    /// Publishes a change of tasks of these types. Without types, only unlimited callers are changed.
    pub(crate) fn tasks_changed<'t>(&self, types: impl IntoIterator<Item = &'t TaskType>) {
        self.tasks.publish(types);
    }

    /// Publishes a change of schedules of these types.
    pub(crate) fn schedules_changed<'t>(&self, types: impl IntoIterator<Item = &'t TaskType>) {
        self.schedules.publish(types);
    }

    /// Returns the numbers of changes of tasks and of schedules of the visible types.
    pub(crate) fn counts(&self, may_see: impl Fn(&TaskType) -> bool) -> (u64, u64) {
        (self.tasks.count(&may_see), self.schedules.count(&may_see))
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.listening.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn listen(&self) -> Listener {
        self.listening.fetch_add(1, Ordering::Relaxed);
        Listener {
            changes: self.changes.subscribe(),
            tasks: Hints::of(&self.tasks.hint),
            schedules: Hints::of(&self.schedules.hint),
            listening: self.listening.clone(),
        }
    }
}

impl Listener {
    /// Waits for the next change; `None` after the end.
    pub(crate) async fn next(&mut self) -> Option<Change> {
        tokio::select! {
            change = self.changes.recv() => match change {
                Ok(change) => Some(change),
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    // The reader reads everything again, so the rest of the buffer is not needed.
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

    /// Returns the changes that are available without waiting.
    fn available(listener: &mut Listener) -> Vec<String> {
        let now = std::iter::from_fn(|| listener.next().now_or_never().flatten());
        now.map(|change| match change {
            Change::Gone(queues) => queues[0].to_string(),
            other => format!("{other:?}"),
        })
        .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn many_hints_become_one_and_displace_nothing() {
        let live = Live::default();
        let mut listener = live.listen();
        live.publish(gone(1));
        for _ in 0..1000 {
            live.tasks_changed(&[TaskType::new("mail").unwrap()]);
        }
        live.publish(gone(2));
        let mut all = available(&mut listener);
        all.sort();
        assert_eq!(all, ["Tasks", "q1", "q2"]);
        // The next hint is delayed; other changes are not.
        live.tasks_changed([]);
        live.publish(gone(3));
        assert_eq!(available(&mut listener), ["q3"]);
        tokio::time::advance(HINT_INTERVAL).await;
        assert_eq!(available(&mut listener), ["Tasks"]);
    }

    #[test]
    fn changes_are_counted_by_type() {
        let (live, mail) = (Live::default(), TaskType::new("mail").unwrap());
        live.tasks_changed([&mail, &TaskType::new("sms").unwrap()]);
        live.schedules_changed([&mail]);
        live.tasks_changed([]);
        assert_eq!((live.counts(|_| true), live.counts(|kind| *kind == mail)), ((2, 1), (1, 1)));
        for number in 0..MAX_TYPES * 2 {
            live.tasks_changed([&TaskType::new(format!("t{number}")).unwrap()]);
        }
        assert!(live.tasks.counts.lock().unwrap().len() <= MAX_TYPES);
    }

    #[tokio::test]
    async fn a_reader_that_misses_changes_is_told_and_gets_later_ones() {
        let live = Live::default();
        let mut listener = live.listen();
        (0..=BUFFER).for_each(|number| live.publish(gone(number)));
        assert_eq!(available(&mut listener), ["Missed"]);
        live.publish(gone(7));
        assert_eq!(available(&mut listener), ["q7"]);
        drop(live);
        assert!(listener.next().await.is_none());
    }
}
