//! A harness in one process with every optional hook of the suite.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_core::*;

use super::notes::Notes;
use super::{Broken, Fault};
use crate::harness::{ClockShift, Harness};
use crate::link::{Link, LinkedProvider};

/// A store in memory behind a link that can be cut, with workers whose clocks can be wrong. With a fault, it breaks
/// the rule of that fault.
#[derive(Debug, Clone)]
pub struct SimulatedStore {
    store: MemoryStore,
    link: Link,
    fault: Option<Fault>,
    refused: Option<Feature>,
    notes: Arc<Notes>,
}

impl SimulatedStore {
    /// A store that keeps the law.
    pub fn lawful() -> Self {
        Self::new(None)
    }

    /// A store that breaks one rule.
    pub fn with_fault(fault: Fault) -> Self {
        Self::new(Some(fault))
    }

    fn new(fault: Option<Fault>) -> Self {
        Self { store: MemoryStore::new(), link: Link::new(), fault, refused: None, notes: Arc::default() }
    }

    /// Uses this store.
    #[must_use]
    pub fn on(mut self, store: MemoryStore) -> Self {
        self.store = store;
        self
    }

    /// Refuses this feature and declares so.
    #[must_use]
    pub fn refusing(mut self, feature: Feature) -> Self {
        self.refused = Some(feature);
        self
    }

    /// Uses this link.
    #[must_use]
    pub fn link(mut self, link: Link) -> Self {
        self.link = link;
        self
    }

    fn worker(&self, shift: Option<ClockShift>) -> Broken<LinkedProvider<MemoryProvider>> {
        let link = LinkedProvider::new(self.store.open(), self.link.clone());
        let mut capabilities = match self.fault {
            Some(Fault::AcceptsWhatItRefuses) => {
                link.capabilities().clone().with(Feature::Delay, Support::refused("it says so"))
            }
            Some(Fault::HidesCosts) => link.capabilities().clone().with(Feature::Peek, Support::emulated(" ")),
            _ => link.capabilities().clone(),
        };
        if let Some(feature) = self.refused {
            capabilities = capabilities.with(feature, Support::refused("this store does without it"));
        }
        let (fault, refused, notes) = (self.fault, self.refused, self.notes.clone());
        Broken { inner: link, fault, refused, notes, capabilities, shift, extended: Mutex::default() }
    }

    async fn forget_everything(&self) -> Result<(), MessagingError> {
        let provider = self.store.open();
        for queue in provider.list_queues(Deadline::default()).await? {
            provider.delete_queue(&queue, Deadline::default()).await?;
            provider.ensure_queue(&queue, Deadline::default()).await?;
        }
        Ok(())
    }
}

impl Harness for SimulatedStore {
    type Provider = Broken<LinkedProvider<MemoryProvider>>;

    async fn open(&self) -> Result<Self::Provider, MessagingError> {
        Ok(self.worker(None))
    }

    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        Some(Box::pin(async {
            self.link.cut(Duration::from_secs(1)).await;
            if matches!(self.fault, Some(Fault::ForgetsOnRestart | Fault::AnswersTooSoon)) {
                self.forget_everything().await?;
            }
            Ok(())
        }))
    }

    fn open_with_clock(&self, shift: ClockShift) -> Option<BoxFuture<'_, Result<Self::Provider, MessagingError>>> {
        Some(Box::pin(async move { Ok(self.worker(Some(shift))) }))
    }
}
