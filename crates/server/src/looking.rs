//! Looking at the queues again and again, for the charts, the metrics and the live page.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use postrider::{Deadline, MessagingError, QueueAdmin, QueueName, QueueStats};
use tokio::time::Instant;

use crate::app::App;
use crate::live::Change;

/// So many queues are looked at.
const MOST_QUEUES: usize = 1000;

/// So many at once, so that one that takes long does not hold up all the others.
const AT_ONCE: usize = 4;

/// How long the list of queues may take, and how long one queue may.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_WITH_ONE: Duration = Duration::from_secs(5);

/// How long a queue is left alone that could not be looked at.
const REST: Duration = Duration::from_secs(60);

/// How often queues are looked at while somebody watches.
const WATCHED: Duration = Duration::from_secs(1);

/// What one look has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Every queue that there is.
    pub(crate) listed: HashSet<QueueName>,
    /// Those that could be looked at.
    pub(crate) stats: Vec<QueueStats>,
}

/// Looks at queues, and remembers which could not be looked at.
#[derive(Debug, Default)]
struct Looker {
    /// Until when they are left alone.
    resting: HashMap<QueueName, Instant>,
}

impl Looker {
    /// Looks at the queues in a list. Fails when none of them could be looked at.
    async fn look<F>(
        &mut self,
        listed: Vec<QueueName>,
        stats: impl Fn(QueueName, Deadline) -> F,
    ) -> Result<Seen, MessagingError>
    where
        F: Future<Output = Result<QueueStats, MessagingError>>,
    {
        let now = Instant::now();
        let is_awake = |queue: &&QueueName| self.resting.get(*queue).is_none_or(|until| *until <= now);
        let awake: Vec<QueueName> = listed.iter().take(MOST_QUEUES).filter(is_awake).cloned().collect();
        // The deadline of each begins with its look.
        let looks = awake.into_iter().map(|queue| {
            let stats = &stats;
            async move {
                let deadline = Deadline::after(PATIENCE_WITH_ONE);
                let look = deadline.limit(stats(queue.clone(), deadline)).await;
                let late = || MessagingError::DeadlineExceeded { operation: "queue_stats" };
                (queue, look.unwrap_or_else(|| Err(late())))
            }
        });
        let looks: Vec<_> = stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
        let (mut seen, mut failed) = (Vec::with_capacity(looks.len()), Vec::new());
        for (queue, look) in looks {
            match look {
                Ok(stats) => seen.push(stats),
                Err(error) => failed.push((queue, error)),
            }
        }
        // It is the store then, and no queue.
        if seen.is_empty()
            && failed.len() > 1
            && let Some((_, error)) = failed.pop()
        {
            return Err(error);
        }
        for stats in &seen {
            if self.resting.remove(&stats.queue).is_some() {
                tracing::info!(queue = %stats.queue, "the queue can be looked at again");
            }
        }
        for (queue, error) in failed {
            if self.resting.insert(queue.clone(), Instant::now() + REST).is_none() {
                tracing::warn!(%error, %queue, "the queue could not be looked at; it is tried once a minute");
            }
        }
        let listed: HashSet<QueueName> = listed.into_iter().collect();
        self.resting.retain(|queue, _| listed.contains(queue));
        Ok(Seen { listed, stats: seen })
    }
}

/// Looks at the queues until the server stops.
pub(crate) async fn watch(app: Arc<App>) -> Infallible {
    let (mut looker, mut was_up) = (Looker::default(), true);
    let (interval, mut due) = (app.options.sample_interval, Instant::now());
    loop {
        let began = Instant::now();
        let is_kept = began >= due;
        if is_kept {
            due = began + interval;
        }
        let listed = app.provider.list_queues(Deadline::after(PATIENCE)).await;
        let own = &app;
        let stats = |queue, deadline| async move { own.provider.queue_stats(&queue, deadline).await };
        let seen = match listed {
            Ok(listed) => looker.look(listed, stats).await,
            Err(error) => Err(error),
        };
        app.meter.store_up(seen.is_ok());
        match seen {
            Ok(seen) => {
                if !was_up {
                    tracing::warn!("the store answers again: the queues can be looked at");
                }
                was_up = true;
                note(&app, &seen, is_kept);
            }
            Err(error) => {
                // Once, and not at every look for as long as it lasts.
                if was_up {
                    tracing::warn!(%error, "the store does not answer: the queues cannot be looked at");
                }
                was_up = false;
                if is_kept {
                    app.history.unseen();
                }
            }
        }
        let usual = if app.live.is_watched() { WATCHED } else { interval };
        let until_due = due.saturating_duration_since(Instant::now());
        // A store that takes long to answer is not asked all the time.
        tokio::time::sleep(usual.min(until_due).max(began.elapsed() * 4)).await;
    }
}

fn note(app: &App, seen: &Seen, is_kept: bool) {
    seen.stats.iter().for_each(|stats| app.meter.looked_at(stats));
    let (changed, gone) = app.history.seen(seen, |queue| app.meter.counts(queue), is_kept);
    gone.iter().for_each(|queue| app.meter.gone(queue.as_str()));
    // Dead letters are listed by the name of their queue.
    app.meter.keep(|queue| seen.listed.contains(&queue.origin()));
    app.durations.keep(|queue| seen.listed.contains(&queue.origin()));
    if !changed.is_empty() {
        app.live.tell(Change::Queues(changed.into()));
    }
    if !gone.is_empty() {
        app.live.tell(Change::Gone(gone.into()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use postrider::Measured;

    use super::*;

    fn stats(queue: QueueName) -> QueueStats {
        let none = Measured::Exact(0);
        let oldest_age = Measured::Exact(None);
        QueueStats { queue, ready: none, in_flight: none, delayed: none, dead: none, oldest_age, paused: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_does_not_answer_holds_up_no_other_and_rests() {
        let listed: Vec<_> = (0..100).map(|number| QueueName::new(format!("q{number}")).unwrap()).collect();
        let (asked, slow) = (&Mutex::new(Vec::new()), &listed[7]);
        let ask = |queue: QueueName, _| async move {
            asked.lock().unwrap().push(queue.clone());
            tokio::time::sleep(Duration::from_millis(1)).await;
            if queue == *slow {
                std::future::pending::<()>().await;
            }
            Ok(stats(queue))
        };
        let asks = || std::mem::take(&mut *asked.lock().unwrap());
        let (mut looker, began) = (Looker::default(), Instant::now());
        let seen = looker.look(listed.clone(), ask).await.unwrap();
        assert_eq!((seen.listed.len(), seen.stats.len(), asks().len()), (100, 99, 100));
        assert_eq!(began.elapsed().as_secs(), PATIENCE_WITH_ONE.as_secs(), "the others were looked at meanwhile");
        let began = Instant::now();
        let seen = looker.look(listed.clone(), ask).await.unwrap();
        assert!(seen.stats.len() == 99 && !asks().contains(slow) && began.elapsed() < Duration::from_secs(1));
        tokio::time::advance(REST).await;
        looker.look(listed.clone(), ask).await.unwrap();
        assert!(asks().contains(slow));
        // One that is no more is not waited for.
        looker.look(listed[..1].to_vec(), ask).await.unwrap();
        assert!(looker.resting.is_empty());
    }

    #[tokio::test]
    async fn where_no_queue_can_be_looked_at_it_is_the_store() {
        let listed = vec![QueueName::new("a").unwrap(), QueueName::new("b").unwrap()];
        let mut looker = Looker::default();
        let gone = |_, _| async { Err(MessagingError::busy("gone")) };
        assert!(looker.look(listed.clone(), gone).await.is_err());
        let back = |queue, _| async { Ok(stats(queue)) };
        assert_eq!(looker.look(listed, back).await.unwrap().stats.len(), 2, "nothing rests");
        assert!(looker.look(Vec::new(), gone).await.unwrap().stats.is_empty());
    }
}
