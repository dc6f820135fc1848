//! What has changed, told to whoever looks.
//!
//! Changes that say what is different wait for a slow reader, and one who misses some is told so. That something about
//! tasks or schedules may be different is a hint: many are one, and they push nothing else out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider::{QueueName, QueueStats, TaskType};
use postrider_wire::job::Job;
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

/// Upper bound of the types whose changes are counted by themselves.
const MOST_TYPES: usize = 10_000;

/// What changes of the tasks or schedules of each type: how often, so that whoever may see some types only can tell
/// whether it was one of those. A lock, held for a look.
#[derive(Debug, Default)]
struct ByType {
    counts: Mutex<HashMap<TaskType, u64>>,
    hint: watch::Sender<()>,
}

impl ByType {
    fn tell<'t>(&self, types: impl IntoIterator<Item = &'t TaskType>) {
        {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            for task_type in types {
                match counts.get_mut(task_type) {
                    Some(count) => *count += 1,
                    None => {
                        if counts.len() >= MOST_TYPES {
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

/// Tells changes to those who listen.
#[derive(Debug)]
pub(crate) struct Live {
    changes: broadcast::Sender<Change>,
    tasks: ByType,
    schedules: ByType,
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
            tasks: ByType::default(),
            schedules: ByType::default(),
            listening: Arc::default(),
        }
    }
}

impl Live {
    pub(crate) fn tell(&self, change: Change) {
        // Nobody listening is nothing wrong.
        drop(self.changes.send(change));
    }

    /// Something about tasks of these types is different. Without a type it is told to those alone who may see all.
    pub(crate) fn tell_of_tasks<'t>(&self, types: impl IntoIterator<Item = &'t TaskType>) {
        self.tasks.tell(types);
    }

    /// The same of schedules.
    pub(crate) fn tell_of_schedules<'t>(&self, types: impl IntoIterator<Item = &'t TaskType>) {
        self.schedules.tell(types);
    }

    /// How often something was told of tasks, and of schedules, that somebody may see.
    pub(crate) fn counts(&self, may_see: impl Fn(&TaskType) -> bool) -> (u64, u64) {
        (self.tasks.count(&may_see), self.schedules.count(&may_see))
    }

    pub(crate) fn is_watched(&self) -> bool {
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
            live.tell_of_tasks(&[TaskType::new("mail").unwrap()]);
        }
        live.tell(gone(2));
        let mut all = heard(&mut listener);
        all.sort();
        assert_eq!(all, ["Tasks", "q1", "q2"]);
        // The next hint waits a little; what says more does not.
        live.tell_of_tasks([]);
        live.tell(gone(3));
        assert_eq!(heard(&mut listener), ["q3"]);
        tokio::time::advance(BETWEEN_HINTS).await;
        assert_eq!(heard(&mut listener), ["Tasks"]);
    }

    #[test]
    fn changes_are_counted_by_type() {
        let (live, mail) = (Live::default(), TaskType::new("mail").unwrap());
        live.tell_of_tasks([&mail, &TaskType::new("sms").unwrap()]);
        live.tell_of_schedules([&mail]);
        live.tell_of_tasks([]);
        assert_eq!((live.counts(|_| true), live.counts(|kind| *kind == mail)), ((2, 1), (1, 1)));
        for number in 0..MOST_TYPES * 2 {
            live.tell_of_tasks([&TaskType::new(format!("t{number}")).unwrap()]);
        }
        assert!(live.tasks.counts.lock().unwrap().len() <= MOST_TYPES);
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
