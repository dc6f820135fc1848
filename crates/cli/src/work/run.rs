//! The loop: lease what can start at once, start it, wait.

use std::sync::Arc;
use std::time::Duration;

use postrider::{Deadline, MessagingError, MessagingService, QueueAdmin, QueuedMessage, ReceiveOptions, Settlement};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::job::{Job, JobEnd};
use super::stop::{Stage, Stop};
use super::tally::Tally;
use crate::failure::Failure;

/// How long one receive waits for a message.
const LONG_POLL: Duration = Duration::from_secs(10);
/// How long a receive that is under way at the end has to come back. One that only waits is dropped after it; one that
/// leases at that very moment would be dropped with its messages, which then cost them a delivery.
const LAST_LOOK: Duration = Duration::from_millis(250);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How messages are fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) workers: usize,
    pub(super) most_at_once: usize,
    pub(super) drain: bool,
    pub(super) options: ReceiveOptions,
}

/// Works until told to stop, until the queue is drained, or until there is no point in going on.
pub(super) async fn run(job: Arc<Job>, fetch: Fetch, stop: Stop) -> Result<(), Failure> {
    let mut crew = Crew {
        job,
        running: JoinSet::new(),
        stop,
        failure: None,
        unreachable: Pause::default(),
        starving: Pause::default(),
        tally: Tally::default(),
        paused: false,
    };
    crew.look_whether_paused().await;
    let fetched = fetch_and_start(&fetch, &mut crew).await;
    // Ends the patience with what still runs also when no signal did; a drained worker has nothing running.
    crew.stop.raise(Stage::Finishing);
    while let Some(ended) = crew.running.join_next().await {
        crew.note(ended);
    }
    crew.job.echo.note(&crew.tally);
    fetched.and(crew.failure.map_or(Ok(()), Err))
}

async fn fetch_and_start(fetch: &Fetch, crew: &mut Crew) -> Result<(), Failure> {
    while !crew.stop.has_reached(Stage::Finishing) {
        if let Some(pause) = crew.unreachable.take().or_else(|| crew.starving.take()) {
            crew.pause(pause).await;
            continue;
        }
        if crew.running.len() >= fetch.workers {
            crew.one_ends().await;
            continue;
        }
        match crew.receive(fetch).await {
            None => {}
            Some(Ok(messages)) if messages.is_empty() && fetch.drain => {
                // What runs may free an ordering key, or send something itself.
                if crew.running.is_empty() {
                    crew.look_whether_paused().await;
                    return Ok(());
                }
                crew.one_ends().await;
            }
            Some(Ok(messages)) => {
                if crew.unreachable.over() {
                    crew.job.echo.note("the store answers again");
                }
                if messages.is_empty() {
                    crew.look_whether_paused().await;
                }
                crew.start(messages).await;
            }
            Some(Err(error)) if error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. }) => {
                crew.job.echo.note(format_args!("cannot receive, trying again soon: {error}"));
                crew.unreachable.longer();
            }
            Some(Err(error)) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The commands that run.
struct Crew {
    job: Arc<Job>,
    running: JoinSet<Result<JobEnd, Failure>>,
    stop: Stop,
    /// The first reason not to go on.
    failure: Option<Failure>,
    /// The store does not answer.
    unreachable: Pause,
    /// The system starts no process.
    starving: Pause,
    tally: Tally,
    /// What was last told of the queue.
    paused: bool,
}

impl Crew {
    /// Leases at most as many messages as can start at once. `None` when the worker shall stop.
    async fn receive(&mut self, fetch: &Fetch) -> Option<Result<Vec<QueuedMessage>, MessagingError>> {
        let job = self.job.clone();
        let free = fetch.workers - self.running.len();
        let wait = if fetch.drain { Duration::ZERO } else { LONG_POLL };
        let options = ReceiveOptions { max: free.min(fetch.most_at_once), wait, ..fetch.options.clone() };
        let deadline = Deadline::after(wait + Deadline::DEFAULT);
        let mut receiving = std::pin::pin!(job.provider.receive_messages(&job.queue, &options, deadline));
        let stop = self.stop.clone();
        loop {
            tokio::select! {
                received = &mut receiving => return Some(received),
                Some(ended) = self.running.join_next() => self.note(ended),
                () = stop.reached(Stage::Finishing) => {
                    if let Ok(Ok(messages)) = timeout(LAST_LOOK, &mut receiving).await {
                        self.release(messages).await;
                    }
                    return None;
                }
            }
        }
    }

    async fn start(&mut self, messages: Vec<QueuedMessage>) {
        if self.stop.has_reached(Stage::Finishing) {
            return self.release(messages).await;
        }
        let leased_at = Instant::now();
        for message in messages {
            let job = self.job.clone();
            self.running.spawn(async move { job.handle(message, leased_at).await });
        }
    }

    /// Gives back what was never started.
    async fn release(&self, messages: Vec<QueuedMessage>) {
        let releases: Vec<_> =
            messages.into_iter().map(|message| Settlement::nack(message, postrider::Nack::Release)).collect();
        if releases.is_empty() {
            return;
        }
        if let Err(error) = self.job.provider.settle(releases, Deadline::default()).await {
            self.job.echo.note(format_args!(
                "messages that were not begun could not be given back, and will come back by themselves: {error}"
            ));
        }
    }

    /// Waits until a command ends or the worker shall stop.
    async fn one_ends(&mut self) {
        let stop = self.stop.clone();
        tokio::select! {
            Some(ended) = self.running.join_next() => self.note(ended),
            () = stop.reached(Stage::Finishing) => {}
        }
    }

    /// Tells when the queue begins or ends to hold receives back. Only asked when nothing comes, so it costs little.
    async fn look_whether_paused(&mut self) {
        let queue = &self.job.queue;
        // A store that does not answer is told elsewhere.
        let Ok(stats) = self.job.provider.queue_stats(queue, Deadline::default()).await else { return };
        if stats.paused != self.paused {
            self.paused = stats.paused;
            match stats.paused {
                true => self.job.echo.note(format_args!(
                    "queue '{queue}' is paused and gives nothing; 'postrider resume {queue}' lets it go on"
                )),
                false => self.job.echo.note(format_args!("queue '{queue}' goes on")),
            }
        }
    }

    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = sleep(pause) => {}
            () = self.stop.reached(Stage::Finishing) => {}
        }
    }

    fn note(&mut self, ended: Result<Result<JobEnd, Failure>, JoinError>) {
        match ended {
            Ok(Ok(JobEnd::Handled(outcome))) => {
                self.tally.count(outcome);
                self.starving.over();
            }
            Ok(Ok(JobEnd::Starved)) => self.starving.longer(),
            Ok(Err(failure)) => self.fail(failure),
            Err(error) => self.fail(Failure::failed(format!("a worker broke down: {error}"))),
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.stop.raise(Stage::Finishing);
    }
}

/// Ever longer pauses while something does not work.
#[derive(Debug, Default)]
struct Pause {
    last: Option<Duration>,
    due: bool,
}

impl Pause {
    fn longer(&mut self) {
        let next = self.last.map_or(FIRST_PAUSE, |last| (last * 2).min(LONGEST_PAUSE));
        *self = Self { last: Some(next), due: true };
    }

    /// The pause that is to be made now, once.
    fn take(&mut self) -> Option<Duration> {
        std::mem::take(&mut self.due).then_some(self.last).flatten()
    }

    /// It works again. Answers whether it had not.
    fn over(&mut self) -> bool {
        std::mem::take(self).last.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_it_works_again() {
        let mut pause = Pause::default();
        assert_eq!((pause.take(), pause.over()), (None, false));
        pause.longer();
        assert_eq!((pause.take(), pause.take()), (Some(FIRST_PAUSE), None));
        (0..20).for_each(|_| pause.longer());
        assert_eq!((pause.take(), pause.over(), pause.over()), (Some(LONGEST_PAUSE), true, false));
    }
}
