//! Workloads on one store, in queues of their own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{Deadline, MessagingError, Provider, QueueName};

use crate::error::BenchError;
use crate::load::Load;
use crate::measured::{Latency, Measured, Rate};
use crate::workload::Workload;
use crate::{drain, handle, latency, send};

/// Called with the number of messages that completed a step.
pub type Progress = Arc<dyn Fn(usize) + Send + Sync>;

/// Prefix of the queue names of a run, followed by the run's number.
const PREFIX: &str = "pb";

/// Time-out for the deletion of a long queue.
const REMOVAL: Duration = Duration::from_secs(600);

/// Workloads on one store, in queues of their own.
pub struct Bench<P> {
    provider: Arc<P>,
    /// The receiving connection of the latency workload.
    receiver: Arc<P>,
    load: Load,
    run: u32,
    progress: Progress,
}

impl<P: Provider + Clone> Bench<P> {
    /// Workloads with this load on this store.
    pub fn new(provider: P, load: Load) -> Result<Self, MessagingError> {
        for (what, value) in [
            ("messages", load.messages),
            ("callers", load.callers),
            ("batch", load.batch),
            ("workers", load.workers),
            ("pace", load.pace),
        ] {
            if value == 0 {
                return Err(MessagingError::invalid(what, "must be at least 1"));
            }
        }
        let provider = Arc::new(provider);
        Ok(Self { receiver: provider.clone(), provider, load, run: rand::random(), progress: Arc::new(|_| ()) })
    }

    /// Measures latency from one connection to another. The caller closes `receiver`.
    #[must_use]
    pub fn received_by(mut self, receiver: P) -> Self {
        self.receiver = Arc::new(receiver);
        self
    }

    /// Calls `progress` with the number of messages that completed a step.
    #[must_use]
    pub fn on_progress(mut self, progress: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.progress = Arc::new(progress);
        self
    }

    /// Number of steps of a workload, for progress bars: each message is sent and drained.
    pub fn steps(&self, workload: Workload) -> usize {
        match workload {
            Workload::SendOne | Workload::SendBatch | Workload::Drain | Workload::Handle => {
                self.load.messages.saturating_mul(2)
            }
            Workload::Latency => self.load.latency_messages(),
        }
    }

    /// Runs one workload. Deletes its queue only on success; [`Bench::clean_up`] deletes it in any case.
    pub async fn run(&self, workload: Workload) -> Result<Measured, BenchError> {
        let (provider, load, progress) = (&self.provider, &self.load, &self.progress);
        let queue = &self.queue(workload)?;
        provider.ensure_queue(queue, Deadline::default()).await?;
        let measured = match workload {
            Workload::SendOne => {
                let sent = send::one_by_one(provider, queue, load, progress).await?;
                drain::drain(provider, queue, load, sent.ids, progress).await?;
                Measured::Rate(Rate::new(workload, load.messages, sent.elapsed))
            }
            Workload::SendBatch => {
                let sent = send::in_batches(provider, queue, load, progress).await?;
                drain::drain(provider, queue, load, sent.ids, progress).await?;
                Measured::Rate(Rate::new(workload, load.messages, sent.elapsed))
            }
            Workload::Drain => {
                let sent = send::in_batches(provider, queue, load, progress).await?;
                let elapsed = drain::drain(provider, queue, load, sent.ids, progress).await?;
                Measured::Rate(Rate::new(workload, load.messages, elapsed))
            }
            Workload::Handle => {
                let sent = send::in_batches(provider, queue, load, progress).await?;
                let elapsed = handle::handle(&**provider, queue, load, sent.ids, progress).await?;
                Measured::Rate(Rate::new(workload, load.messages, elapsed))
            }
            Workload::Latency => {
                Measured::Latency(Latency::new(latency::times(provider, &self.receiver, queue, load, progress).await?))
            }
        };
        self.remove(queue).await?;
        Ok(measured)
    }

    /// Sends all messages in batches, then drains them, and returns both rates.
    pub async fn backlog(&self) -> Result<(Rate, Rate), BenchError> {
        let (provider, load, progress) = (&self.provider, &self.load, &self.progress);
        let queue = &self.queue(Workload::Drain)?;
        provider.ensure_queue(queue, Deadline::default()).await?;
        let sent = send::in_batches(provider, queue, load, progress).await?;
        let drained = drain::drain(provider, queue, load, sent.ids, progress).await?;
        self.remove(queue).await?;
        let rate = |workload, elapsed| Rate::new(workload, load.messages, elapsed);
        Ok((rate(Workload::SendBatch, sent.elapsed), rate(Workload::Drain, drained)))
    }

    /// Deletes the remaining queues of this run after a failure or an interruption. Closes this run's connection first and
    /// uses another one: an interrupted send could otherwise still create its queue again.
    pub async fn clean_up(&self, by: &P) -> Result<(), MessagingError> {
        self.provider.close(Deadline::default()).await?;
        let present = by.list_queues(Deadline::default()).await?;
        for workload in Workload::ALL {
            let queue = self.queue(workload)?;
            if present.contains(&queue) {
                by.delete_queue(&queue, Deadline::after(REMOVAL)).await?;
            }
        }
        Ok(())
    }

    /// Prefix of its queue names.
    pub fn prefix(&self) -> String {
        format!("{PREFIX}{:08x}_", self.run)
    }

    /// The measured store.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    async fn remove(&self, queue: &QueueName) -> Result<(), MessagingError> {
        self.provider.delete_queue(queue, Deadline::after(REMOVAL)).await
    }

    /// A short lower-case name, which every store allows.
    fn queue(&self, workload: Workload) -> Result<QueueName, MessagingError> {
        QueueName::new(self.prefix() + &workload.name().replace('-', "_"))
    }
}

impl<P> fmt::Debug for Bench<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").field("load", &self.load).field("run", &self.run).finish_non_exhaustive()
    }
}
