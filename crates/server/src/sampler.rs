//! Periodic sampling of the queues, for charts, metrics and the live page.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use postrider::{Deadline, MessagingError, QueueAdmin, QueueName, QueueStats};
use tokio::time::Instant;

use crate::app::App;
use crate::live::Change;

/// Upper bound of the sampled queues.
const MAX_QUEUES: usize = 1000;

/// Number of queues sampled concurrently, so that a slow one does not delay the others.
const CONCURRENT: usize = 4;

/// Time-outs of the list of queues, and of one queue.
const TIMEOUT: Duration = Duration::from_secs(10);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time until a failed queue is sampled again.
const BACKOFF: Duration = Duration::from_secs(60);

/// Sampling interval while a live page is open.
const LIVE_INTERVAL: Duration = Duration::from_secs(1);

/// One sample of all queues.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// All queues of the store.
    pub(crate) listed: HashSet<QueueName>,
    /// Stats of the queues that could be sampled.
    pub(crate) stats: Vec<QueueStats>,
}

/// Samples queues, and backs off from those that fail.
#[derive(Debug, Default)]
struct Sampler {
    /// Failed queues, and when each is tried again.
    backoff: HashMap<QueueName, Instant>,
}

impl Sampler {
    /// Samples the listed queues. Fails if all of several queues fail.
    async fn sample<F>(
        &mut self,
        listed: Vec<QueueName>,
        stats: impl Fn(QueueName, Deadline) -> F,
    ) -> Result<Sample, MessagingError>
    where
        F: Future<Output = Result<QueueStats, MessagingError>>,
    {
        let now = Instant::now();
        let is_due = |queue: &&QueueName| self.backoff.get(*queue).is_none_or(|until| *until <= now);
        let due_queues: Vec<QueueName> = listed.iter().take(MAX_QUEUES).filter(is_due).cloned().collect();
        // The deadline of each begins when its turn comes.
        let samples = due_queues.into_iter().map(|queue| {
            let stats = &stats;
            async move {
                let deadline = Deadline::after(QUEUE_TIMEOUT);
                let sample = deadline.limit(stats(queue.clone(), deadline)).await;
                let late = || MessagingError::DeadlineExceeded { operation: "stats" };
                (queue, sample.unwrap_or_else(|| Err(late())))
            }
        });
        let samples: Vec<_> = stream::iter(samples).buffer_unordered(CONCURRENT).collect().await;
        let (mut seen, mut failed) = (Vec::with_capacity(samples.len()), Vec::new());
        for (queue, sample) in samples {
            match sample {
                Ok(stats) => seen.push(stats),
                Err(error) => failed.push((queue, error)),
            }
        }
        // The store is down then, not the queues.
        if seen.is_empty()
            && failed.len() > 1
            && let Some((_, error)) = failed.pop()
        {
            return Err(error);
        }
        for stats in &seen {
            if self.backoff.remove(&stats.queue).is_some() {
                tracing::info!(queue = %stats.queue, "the stats of the queue can be read again");
            }
        }
        for (queue, error) in failed {
            if self.backoff.insert(queue.clone(), Instant::now() + BACKOFF).is_none() {
                tracing::warn!(%error, %queue, "the stats of the queue could not be read; retrying once a minute");
            }
        }
        let listed: HashSet<QueueName> = listed.into_iter().collect();
        self.backoff.retain(|queue, _| listed.contains(queue));
        Ok(Sample { listed, stats: seen })
    }
}

/// Samples the queues until the server stops.
pub(crate) async fn run(app: Arc<App>) -> Infallible {
    let (mut sampler, mut was_up) = (Sampler::default(), true);
    let (interval, mut due) = (app.options.sample_interval, Instant::now());
    loop {
        let began = Instant::now();
        let is_recorded = began >= due;
        if is_recorded {
            due = began + interval;
        }
        let listed = app.provider.list_queues(Deadline::after(TIMEOUT)).await;
        let own = &app;
        let stats = |queue, deadline| async move { own.provider.queue_stats(&queue, deadline).await };
        let seen = match listed {
            Ok(listed) => sampler.sample(listed, stats).await,
            Err(error) => Err(error),
        };
        app.metrics.store_up(seen.is_ok());
        match seen {
            Ok(seen) => {
                if !was_up {
                    tracing::warn!("the store answers again: queue stats are available");
                }
                was_up = true;
                publish(&app, &seen, is_recorded);
            }
            Err(error) => {
                // Logged once per outage.
                if was_up {
                    tracing::warn!(%error, "the store does not answer: queue stats are not available");
                }
                was_up = false;
                if is_recorded {
                    app.history.record_gap();
                }
            }
        }
        let usual = if app.live.has_listeners() { LIVE_INTERVAL } else { interval };
        let until_due = due.saturating_duration_since(Instant::now());
        // A slow store is sampled less often.
        tokio::time::sleep(usual.min(until_due).max(began.elapsed() * 4)).await;
    }
}

fn publish(app: &App, seen: &Sample, is_recorded: bool) {
    seen.stats.iter().for_each(|stats| app.metrics.set_queue_stats(stats));
    let (changed, gone) = app.history.record(seen, |queue| app.metrics.counts(queue), is_recorded);
    gone.iter().for_each(|queue| app.metrics.remove_queue(queue.as_str()));
    // Queues of dead letters are not listed themselves; their origin is.
    app.metrics.retain_listed(|queue| seen.listed.contains(&queue.origin()));
    app.durations.retain_listed(|queue| seen.listed.contains(&queue.origin()));
    if !changed.is_empty() {
        app.live.publish(Change::Queues(changed.into()));
    }
    if !gone.is_empty() {
        app.live.publish(Change::Gone(gone.into()));
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
    async fn a_queue_that_does_not_answer_delays_no_other_and_backs_off() {
        let listed: Vec<_> = (0..100).map(|number| QueueName::new(format!("q{number}")).unwrap()).collect();
        let (queried, slow) = (&Mutex::new(Vec::new()), &listed[7]);
        let read_stats = |queue: QueueName, _| async move {
            queried.lock().unwrap().push(queue.clone());
            tokio::time::sleep(Duration::from_millis(1)).await;
            if queue == *slow {
                std::future::pending::<()>().await;
            }
            Ok(stats(queue))
        };
        let take_queried = || std::mem::take(&mut *queried.lock().unwrap());
        let (mut sampler, began) = (Sampler::default(), Instant::now());
        let seen = sampler.sample(listed.clone(), read_stats).await.unwrap();
        assert_eq!((seen.listed.len(), seen.stats.len(), take_queried().len()), (100, 99, 100));
        assert_eq!(began.elapsed().as_secs(), QUEUE_TIMEOUT.as_secs(), "the others were sampled meanwhile");
        let began = Instant::now();
        let seen = sampler.sample(listed.clone(), read_stats).await.unwrap();
        assert!(seen.stats.len() == 99 && !take_queried().contains(slow) && began.elapsed() < Duration::from_secs(1));
        tokio::time::advance(BACKOFF).await;
        sampler.sample(listed.clone(), read_stats).await.unwrap();
        assert!(take_queried().contains(slow));
        // A removed queue leaves no backoff behind.
        sampler.sample(listed[..1].to_vec(), read_stats).await.unwrap();
        assert!(sampler.backoff.is_empty());
    }

    #[tokio::test]
    async fn if_all_queues_fail_the_store_is_down() {
        let listed = vec![QueueName::new("a").unwrap(), QueueName::new("b").unwrap()];
        let mut sampler = Sampler::default();
        let gone = |_, _| async { Err(MessagingError::busy("gone")) };
        assert!(sampler.sample(listed.clone(), gone).await.is_err());
        let back = |queue, _| async { Ok(stats(queue)) };
        assert_eq!(sampler.sample(listed, back).await.unwrap().stats.len(), 2, "no queue backs off");
        assert!(sampler.sample(Vec::new(), gone).await.unwrap().stats.is_empty());
    }
}
