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
    /// No subscriber yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more subscriber.
    pub fn with<P: MessagingService, R: Run>(mut self, subscriber: Subscriber<P, R>) -> Self {
        let monitor = subscriber.monitor();
        self.subscribers.push((monitor, Box::new(|shutdown| Box::pin(subscriber.run(shutdown)))));
        self
    }

    /// What to look at each subscriber with, in the order in which they were added.
    pub fn monitors(&self) -> Vec<Monitor> {
        self.subscribers.iter().map(|(monitor, _)| monitor.clone()).collect()
    }

    /// Runs all of them until a stop is asked for, and answers what the stop of each came to, in their order.
    ///
    /// When one ends by itself, because its provider was closed, the others are stopped too. Only one that ends because
    /// nothing was left leaves the others to go on.
    pub async fn run(self, shutdown: impl Into<Shutdown>) -> Vec<RoutedReport> {
        let shutdown = shutdown.into();
        let run = |(index, (monitor, start)): (usize, (Monitor, Start))| {
            // Tasks of their own: one that is busy must not hold up the others.
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

/// What the stop of one subscriber of a router came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoutedReport {
    /// The subscriber's queues.
    pub queues: Vec<QueueName>,
    /// What its stop came to.
    pub report: StopReport,
}
