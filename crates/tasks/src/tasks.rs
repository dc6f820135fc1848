//! A task store and a provider of queues, together.

use postrider_core::task::{ScheduleStore, TaskStore};
use postrider_core::{MessagingService, QueueAdmin};

use crate::client::TaskClient;
use crate::keeper::{TaskKeeper, TaskKeeperOptions};
use crate::worker::TaskWorkerBuilder;

/// A task store, and the provider whose queues deliver the tasks if the store's routes use queues. Clones are the same.
#[derive(Debug, Clone)]
pub struct Tasks<S, P> {
    store: S,
    provider: P,
    client: TaskClient<S, P>,
}

impl<S, P> Tasks<S, P>
where
    S: TaskStore + ScheduleStore + Clone,
    P: MessagingService + QueueAdmin + Clone,
{
    /// The tasks of a store. In polling mode, and without events, the provider is not used.
    pub fn new(store: S, provider: P) -> Self {
        Self { client: TaskClient::new(store.clone(), provider.clone()), store, provider }
    }

    /// Creates, reads, cancels and replays tasks.
    pub fn client(&self) -> &TaskClient<S, P> {
        &self.client
    }

    /// The provider whose queues deliver the tasks.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// Builds a worker, which still needs handlers.
    pub fn worker(&self) -> TaskWorkerBuilder<S, P> {
        TaskWorkerBuilder::new(self.store.clone(), self.provider.clone())
    }

    /// A keeper, which runs the chores. At least one process must run one.
    pub fn keeper(&self, options: TaskKeeperOptions) -> TaskKeeper<S, P> {
        TaskKeeper::new(self.store.clone(), self.provider.clone(), options)
    }
}
