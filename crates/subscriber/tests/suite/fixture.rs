//! Shared parts of the tests: a store, a handler from a closure, and a way to wait for counts.

use std::time::Duration;

use postrider_core::{
    Deadline, MemoryProvider, MemoryStore, Message, MessageId, MessagingService, QueueAdmin, QueueName, QueueStats,
};
use postrider_subscriber::{Counts, Monitor, Run, Shutdown, StopReport, Subscriber};
use tokio::task::JoinHandle;

pub(crate) use crate::closure::handler;

pub(crate) fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

pub(crate) fn soon() -> Deadline {
    Deadline::default()
}

pub(crate) fn store() -> MemoryProvider {
    MemoryStore::new().open()
}

/// A subscriber that runs.
pub(crate) struct Running {
    pub(crate) shutdown: Shutdown,
    pub(crate) monitor: Monitor,
    task: JoinHandle<StopReport>,
}

pub(crate) fn start<P: MessagingService, R: Run>(subscriber: Subscriber<P, R>) -> Running {
    let shutdown = Shutdown::new();
    let monitor = subscriber.monitor();
    let task = tokio::spawn(subscriber.run(shutdown.clone()));
    Running { shutdown, monitor, task }
}

impl Running {
    /// Waits until the counts satisfy the condition. Paused time jumps ahead meanwhile, so the limit also counts in the
    /// store's time.
    pub(crate) async fn until(&self, is_reached: impl Fn(&Counts) -> bool) -> Counts {
        for look in 0..100_000 {
            let counts = self.monitor.counts();
            if is_reached(&counts) {
                return counts;
            }
            tokio::time::sleep(Duration::from_millis(if look < 5_000 { 1 } else { 10 })).await;
        }
        panic!("the counts were never reached: {:?}", self.monitor.counts());
    }

    pub(crate) async fn stop(self) -> StopReport {
        self.shutdown.request();
        self.stopped().await
    }

    pub(crate) async fn stopped(self) -> StopReport {
        self.task.await.unwrap()
    }
}

pub(crate) async fn send<P: MessagingService>(provider: &P, count: usize) -> Vec<MessageId> {
    let messages = (0..count).map(|number| Message::new(number.to_string())).collect();
    let sent = provider.send_batch(&queue(), messages, soon()).await.unwrap();
    sent.into_iter().map(Result::unwrap).collect()
}

pub(crate) async fn stats<P: QueueAdmin>(provider: &P) -> QueueStats {
    provider.queue_stats(&queue(), soon()).await.unwrap()
}
