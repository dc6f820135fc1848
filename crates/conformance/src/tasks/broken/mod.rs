//! Task stores that break one rule each: they show that the suite can fail.
//!
//! [`BrokenTasks`] wraps a store that keeps the rules and spoils one thing on the way through. The tests that
//! [`TaskFault::caught_by`] names, run on it, must find a fault.

mod fault;
mod notes;
mod rows;
mod schedules;
mod spoil;
mod store;

use std::sync::Arc;
use std::time::Duration;

use postrider_core::task::{ScheduleStore, TaskMode, TaskRoutes, TaskStore};
use postrider_core::{MessagingError, QueueName};

use super::TaskHarness;
pub use fault::TaskFault;
use notes::Notes;

/// A store that breaks the rule of its fault; without a fault it keeps the rules.
#[derive(Debug)]
pub struct BrokenTasks<S> {
    inner: S,
    /// The same store with routes without dead-task events.
    without_events: S,
    routes: TaskRoutes,
    fault: Option<TaskFault>,
    notes: Arc<Notes>,
}

impl<S: TaskStore + ScheduleStore> BrokenTasks<S> {
    fn has(&self, fault: TaskFault) -> bool {
        self.fault == Some(fault)
    }

    /// The store that ends attempts.
    fn ending(&self) -> &S {
        let is_silent = self.has(TaskFault::RetriesWithoutMessage) || self.has(TaskFault::DropsDeadEvents);
        if is_silent { &self.without_events } else { &self.inner }
    }
}

/// The harness of a broken store.
#[derive(Debug)]
pub struct BrokenTaskHarness<H> {
    harness: H,
    fault: Option<TaskFault>,
    notes: Arc<Notes>,
}

impl<H: TaskHarness> BrokenTaskHarness<H> {
    /// Adds a fault to the store of a harness; `None` adds none.
    pub fn new(harness: H, fault: Option<TaskFault>) -> Self {
        Self { harness, fault, notes: Arc::default() }
    }
}

impl<H: TaskHarness> TaskHarness for BrokenTaskHarness<H> {
    type Store = BrokenTasks<H::Store>;
    type Queue = H::Queue;

    async fn open(&self, routes: TaskRoutes) -> Result<Self::Store, MessagingError> {
        let mut spoiled = routes.clone();
        match self.fault {
            Some(TaskFault::SendsToAnotherQueue) => spoiled.queue_prefix = "x_".to_owned(),
            Some(TaskFault::TellsDeathsAnyway) => spoiled.dead_events = Some(QueueName::new("nobody")?),
            _ => {}
        }
        let mut without_events = TaskRoutes { dead_events: None, ..spoiled.clone() };
        if matches!(self.fault, Some(TaskFault::RetriesWithoutMessage | TaskFault::ReplaysWithoutMessage)) {
            without_events.mode = TaskMode::Polling;
        }
        Ok(BrokenTasks {
            inner: self.harness.open(spoiled).await?,
            without_events: self.harness.open(without_events).await?,
            routes,
            fault: self.fault,
            notes: self.notes.clone(),
        })
    }

    async fn queue(&self) -> Result<H::Queue, MessagingError> {
        self.harness.queue().await
    }

    async fn elapse(&self, time: Duration) {
        self.harness.elapse(time).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::TASK_TESTS;
    use super::*;

    #[test]
    fn every_test_has_a_broken_twin() {
        let caught: Vec<&str> = TaskFault::ALL.iter().flat_map(|fault| fault.caught_by()).copied().collect();
        for test in TASK_TESTS {
            assert!(caught.contains(test), "no broken store shows that {test} can fail");
        }
        for test in caught {
            assert!(TASK_TESTS.contains(&test), "unknown test {test}");
        }
    }
}
