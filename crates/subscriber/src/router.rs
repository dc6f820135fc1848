//! Several subscribers in one process.

use std::fmt;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use postrider_core::{MessagingService, QueueName};

use crate::report::{StopCause, StopReport};
use crate::run::Run;
use crate::shutdown::Shutdown;
use crate::subscriber::{Monitor, Subscriber};

type Start = Box<dyn FnOnce(Shutdown) -> BoxFuture<'static, StopReport> + Send>;

/// Several subscribers that start and stop together.
#[derive(Default)]
#[must_use = "a router does nothing until it is run"]
pub struct Router {
    subscribers: Vec<(Monitor, Start)>,
}

impl Router {
    /// A router without subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a subscriber.
    pub fn with<P: MessagingService, R: Run>(mut self, subscriber: Subscriber<P, R>) -> Self {
        let monitor = subscriber.monitor();
        self.subscribers.push((monitor, Box::new(|shutdown| Box::pin(subscriber.run(shutdown)))));
        self
    }

    /// The monitors of the subscribers, in the order in which they were added.
    pub fn monitors(&self) -> Vec<Monitor> {
        self.subscribers.iter().map(|(monitor, _)| monitor.clone()).collect()
    }

    /// Runs all subscribers until a stop is requested, and returns the report of each, in their order.
    ///
    /// When one ends by itself, because its provider was closed, the others are stopped too. A subscriber that ends
    /// because nothing is left does not stop the others.
    pub async fn run(self, shutdown: impl Into<Shutdown>) -> Vec<RoutedReport> {
        let shutdown = shutdown.into();
        let run = |(index, (monitor, start)): (usize, (Monitor, Start))| {
            // Separate tasks, so that a busy subscriber does not delay the others.
            let task = tokio::spawn(start(shutdown.clone()));
            async move { (index, monitor, task.await) }
        };
        let mut running: FuturesUnordered<_> = self.subscribers.into_iter().enumerate().map(run).collect();
        let mut reports = Vec::with_capacity(running.len());
        while let Some((index, monitor, ended)) = running.next().await {
            let has_nothing_left = ended.as_ref().is_ok_and(|report| report.cause == StopCause::NothingLeft);
            if !has_nothing_left && !shutdown.is_requested() {
                shutdown.request();
            }
            let queues = monitor.queues().to_vec();
            match ended {
                Ok(report) => reports.push((index, RoutedReport { queues, report })),
                Err(error) => tracing::error!(?queues, %error, "a subscriber ended without a report"),
            }
        }
        reports.sort_by_key(|(index, _)| *index);
        reports.into_iter().map(|(_, report)| report).collect()
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.subscribers.iter().map(|(monitor, _)| monitor)).finish()
    }
}

/// The report of one subscriber of a router.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoutedReport {
    /// The subscriber's queues.
    pub queues: Vec<QueueName>,
    /// Its report.
    pub report: StopReport,
}
