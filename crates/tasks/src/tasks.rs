//! A store of tasks and a provider of queues, together.

use postrider_core::task::{ScheduleStore, TaskStore};
use postrider_core::{MessagingService, QueueAdmin};

use crate::client::TaskClient;
use crate::keeper::{TaskKeeper, TaskKeeperOptions};
use crate::worker::TaskWorkerBuilder;

/// A store of tasks, and the provider whose queues deliver them where the store's routes say so. Clones are the same.
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
    /// Tasks of this store. In polling mode, and without events, nothing is asked of the provider.
    pub fn new(store: S, provider: P) -> Self {
        Self { client: TaskClient::new(store.clone(), provider.clone()), store, provider }
    }

    /// Makes, reads, cancels and replays tasks.
    pub fn client(&self) -> &TaskClient<S, P> {
        &self.client
    }

    /// The provider whose queues deliver.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// A worker. Only its handlers are missing.
    pub fn worker(&self) -> TaskWorkerBuilder<S, P> {
        TaskWorkerBuilder::new(self.store.clone(), self.provider.clone())
    }

    /// What keeps tasks going beside the workers. At least one process must run one.
    pub fn keeper(&self, options: TaskKeeperOptions) -> TaskKeeper<S, P> {
        TaskKeeper::new(self.store.clone(), self.provider.clone(), options)
    }
}
