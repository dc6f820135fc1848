//! Pauses: a tag of the queue in SQS, which Postrider's receivers read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postrider_core::{MessagingError, QueueName};
use tokio::time::Instant;

use crate::error::Failure;
use crate::names::Side;
use crate::store::Shared;

/// The tag of a queue that is paused.
const PAUSED: &str = "postrider-paused";

/// Maximum age of a cached pause.
pub(crate) const PAUSE_MAX_AGE: Duration = Duration::from_secs(2);

/// Cache of which queues are paused.
#[derive(Debug, Default)]
pub(crate) struct Pauses(Mutex<HashMap<QueueName, (bool, Instant)>>);

impl Pauses {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<QueueName, (bool, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, queue: &QueueName) -> Option<bool> {
        self.lock().get(queue).filter(|(_, looked)| looked.elapsed() < PAUSE_MAX_AGE).map(|(is_paused, _)| *is_paused)
    }

    fn set(&self, queue: &QueueName, is_paused: bool) {
        self.lock().insert(queue.clone(), (is_paused, Instant::now()));
    }

    pub(crate) fn forget(&self, queue: &QueueName) {
        self.lock().remove(queue);
    }
}

impl Shared {
    /// Whether a queue is paused, from the cache or from SQS.
    pub(crate) async fn is_paused(&self, queue: &QueueName) -> Result<bool, MessagingError> {
        match self.pauses.get(queue) {
            Some(is_paused) => Ok(is_paused),
            None => self.read_paused(queue).await,
        }
    }

    /// Reads from SQS whether a queue is paused.
    pub(crate) async fn read_paused(&self, queue: &QueueName) -> Result<bool, MessagingError> {
        let Some(url) = self.url(queue, Side::Standard).await? else { return Ok(false) };
        let tags = match self.calls.call(|| self.calls.client.list_queue_tags().queue_url(&url).send()).await {
            Ok(answer) => answer.tags.unwrap_or_default(),
            Err(Failure::Missing) => {
                self.urls.forget_deleted(queue, Side::Standard);
                HashMap::new()
            }
            // Without the permission to read tags a pause has no effect; `postrider doctor` reports it.
            Err(failure) if failure.is_denied() => HashMap::new(),
            Err(failure) => return Err(failure.into_harmless("read whether the queue is paused", Some(queue))),
        };
        let is_paused = tags.contains_key(PAUSED);
        self.pauses.set(queue, is_paused);
        Ok(is_paused)
    }

    /// Pauses or resumes a queue.
    pub(crate) async fn pause(&self, queue: &QueueName, is_paused: bool) -> Result<(), MessagingError> {
        let client = &self.calls.client;
        let set = if is_paused {
            let url = self.url_to_send(queue, Side::Standard).await?;
            self.calls.call(|| client.tag_queue().queue_url(&url).tags(PAUSED, "true").send()).await.map(drop)
        } else {
            let Some(url) = self.find(queue, Side::Standard).await? else {
                self.pauses.forget(queue);
                return Ok(());
            };
            self.calls.call(|| client.untag_queue().queue_url(&url).tag_keys(PAUSED).send()).await.map(drop)
        };
        match set {
            Ok(()) => {
                self.pauses.set(queue, is_paused);
                Ok(())
            }
            Err(failure) => Err(failure.into_harmless("pause the queue", Some(queue))),
        }
    }
}
