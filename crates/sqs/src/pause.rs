//! Queues that are held back: a tag in SQS, which binds whoever looks at it.

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

/// For so long what was seen is believed.
pub(crate) const FRESH: Duration = Duration::from_secs(2);

/// Which queues are paused, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Pauses(Mutex<HashMap<QueueName, (bool, Instant)>>);

impl Pauses {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<QueueName, (bool, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, queue: &QueueName) -> Option<bool> {
        self.lock().get(queue).filter(|(_, looked)| looked.elapsed() < FRESH).map(|(is_paused, _)| *is_paused)
    }

    fn set(&self, queue: &QueueName, is_paused: bool) {
        self.lock().insert(queue.clone(), (is_paused, Instant::now()));
    }

    pub(crate) fn forget(&self, queue: &QueueName) {
        self.lock().remove(queue);
    }
}

impl Shared {
    /// Whether a queue is paused, or was a moment ago.
    pub(crate) async fn is_paused(&self, queue: &QueueName) -> Result<bool, MessagingError> {
        match self.pauses.get(queue) {
            Some(is_paused) => Ok(is_paused),
            None => self.look_whether_paused(queue).await,
        }
    }

    /// Asks SQS whether a queue is paused.
    pub(crate) async fn look_whether_paused(&self, queue: &QueueName) -> Result<bool, MessagingError> {
        let Some(url) = self.url(queue, Side::Standard).await? else { return Ok(false) };
        let tags = match self.calls.call(|| self.calls.client.list_queue_tags().queue_url(&url).send()).await {
            Ok(answer) => answer.tags.unwrap_or_default(),
            Err(Failure::Missing) => {
                self.urls.gone(queue, Side::Standard);
                HashMap::new()
            }
            // Whoever may not see tags cannot be held back by them; the doctor says so.
            Err(failure) if failure.is_denied() => HashMap::new(),
            Err(failure) => return Err(failure.into_harmless("look whether the queue is paused", Some(queue))),
        };
        let is_paused = tags.contains_key(PAUSED);
        self.pauses.set(queue, is_paused);
        Ok(is_paused)
    }

    /// Holds a queue back, or lets it go.
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
