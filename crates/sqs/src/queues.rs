//! Queues: where they are, whether they are there, and how they are made.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use postrider_core::{Deadline, MessagingError, QueueName};
use tokio::time::Instant;

use crate::error::Failure;
use crate::names::Side;
use crate::store::Shared;
use crate::waiting::RETENTION;
use crate::{dedup, lease};

/// For so long a queue is taken to be missing that was not there: another process may make it at any time.
pub(crate) const ABSENT: Duration = Duration::from_secs(5);

/// SQS moves a message to the dead letters by itself after so many receives. The limit that counts is checked by whoever
/// reads; this is the highest that SQS allows.
pub(crate) const BACKSTOP: u32 = 1000;

/// Where queues are, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Urls(Mutex<HashMap<(QueueName, Side), Known>>);

#[derive(Debug, Clone)]
enum Known {
    At(String),
    Absent(Instant),
}

impl Urls {
    fn get(&self, queue: &QueueName, side: Side) -> Option<Option<String>> {
        match self.lock().get(&(queue.clone(), side)) {
            Some(Known::At(url)) => Some(Some(url.clone())),
            Some(Known::Absent(since)) if since.elapsed() < ABSENT => Some(None),
            _ => None,
        }
    }

    fn set(&self, queue: &QueueName, side: Side, url: Option<String>) {
        let known = url.map_or_else(|| Known::Absent(Instant::now()), Known::At);
        self.lock().insert((queue.clone(), side), known);
    }

    /// A queue was found to be gone.
    pub(crate) fn gone(&self, queue: &QueueName, side: Side) {
        if let Some(Known::At(url)) = self.lock().remove(&(queue.clone(), side)) {
            lease::queue_gone(&url);
            dedup::queue_gone(&url);
        }
    }

    /// A queue's URL, if somebody has asked for it before.
    pub(crate) fn known(&self, queue: &QueueName, side: Side) -> Option<String> {
        self.get(queue, side).flatten()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(QueueName, Side), Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Whether SQS answers.
    pub(crate) async fn look(&self, deadline: Deadline) -> Result<(), MessagingError> {
        deadline.check("health check")?;
        let list = || self.calls.client.list_queues().set_queue_name_prefix(self.prefix()).max_results(1).send();
        match self.calls.call(list).await {
            Ok(_) => Ok(()),
            // Whoever may not list queues may use them all the same.
            Err(failure) if failure.is_denied() => Ok(()),
            Err(failure) => Err(failure.into_harmless("health check", None)),
        }
    }

    /// What the names of the queues begin with, if with anything.
    fn prefix(&self) -> Option<String> {
        Some(self.names.prefix().to_owned()).filter(|prefix| !prefix.is_empty())
    }

    /// Asks SQS where one side of a queue is.
    pub(crate) async fn find(&self, queue: &QueueName, side: Side) -> Result<Option<String>, MessagingError> {
        let name = self.names.wire(queue, side)?;
        let url = match self.calls.call(|| self.calls.client.get_queue_url().queue_name(name.as_str()).send()).await {
            Ok(answer) => answer.queue_url,
            Err(Failure::Missing) => None,
            Err(failure) => return Err(failure.into_harmless("look for the queue", Some(queue))),
        };
        match &url {
            Some(_) => self.urls.set(queue, side, url.clone()),
            None => {
                self.urls.gone(queue, side);
                self.urls.set(queue, side, None);
            }
        }
        Ok(url)
    }

    /// Where one side of a queue is; `None` when it is not there.
    pub(crate) async fn url(&self, queue: &QueueName, side: Side) -> Result<Option<String>, MessagingError> {
        match self.urls.get(queue, side) {
            Some(known) => Ok(known),
            None => self.find(queue, side).await,
        }
    }

    /// The sides of a queue that are there.
    pub(crate) async fn sides(&self, queue: &QueueName) -> Result<Vec<(Side, String)>, MessagingError> {
        let mut found = Vec::new();
        for side in [Side::Standard, Side::Fifo] {
            // Dead letters have no order to keep.
            if side == Side::Fifo && queue.holds_dead_letters() {
                continue;
            }
            if let Some(url) = self.url(queue, side).await? {
                found.push((side, url));
            }
        }
        Ok(found)
    }

    /// Where one side of a queue is; made if it is not there and may be made.
    pub(crate) async fn url_to_send(&self, queue: &QueueName, side: Side) -> Result<String, MessagingError> {
        if let Some(url) = self.urls.known(queue, side) {
            return Ok(url);
        }
        self.find_or_create(queue, side).await
    }

    /// The same, and what was seen some time ago does not count.
    async fn find_or_create(&self, queue: &QueueName, side: Side) -> Result<String, MessagingError> {
        match self.find(queue, side).await? {
            Some(url) => Ok(url),
            None if self.options.create_queues => self.create(queue, side).await,
            None => Err(MessagingError::QueueNotFound { queue: queue.clone() }),
        }
    }

    /// Makes a queue with its dead letters, and keeps its messages as long as SQS can.
    pub(crate) async fn ensure(&self, queue: &QueueName) -> Result<(), MessagingError> {
        for queue in [queue.dead_letters(), queue.clone()] {
            match self.find(&queue, Side::Standard).await? {
                None => drop(self.create(&queue, Side::Standard).await?),
                Some(url) => self.keep_long(&queue, &url).await?,
            }
        }
        if let Some(url) = self.url(queue, Side::Fifo).await? {
            self.keep_long(queue, &url).await?;
        }
        Ok(())
    }

    /// Sets the longest retention on a queue that somebody made with a shorter one.
    async fn keep_long(&self, queue: &QueueName, url: &str) -> Result<(), MessagingError> {
        let attributes = self.attributes(queue, url).await?;
        let retention = attributes.get(&QueueAttributeName::MessageRetentionPeriod).and_then(|text| text.parse().ok());
        if retention.is_none_or(|seconds: u64| seconds >= RETENTION.as_secs()) {
            return Ok(());
        }
        let longest = RETENTION.as_secs().to_string();
        let set = || {
            let set = self.calls.client.set_queue_attributes().queue_url(url);
            set.attributes(QueueAttributeName::MessageRetentionPeriod, longest.clone()).send()
        };
        match self.calls.call(set).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_denied() => {
                tracing::warn!(%queue, "its retention is shorter than 14 days and may not be changed");
                Ok(())
            }
            Err(failure) => Err(failure.into_harmless("set the retention", Some(queue))),
        }
    }

    /// The attributes of a queue.
    pub(crate) async fn attributes(
        &self,
        queue: &QueueName,
        url: &str,
    ) -> Result<HashMap<QueueAttributeName, String>, MessagingError> {
        let ask = || {
            let ask = self.calls.client.get_queue_attributes().queue_url(url);
            ask.attribute_names(QueueAttributeName::All).send()
        };
        match self.calls.call(ask).await {
            Ok(answer) => Ok(answer.attributes.unwrap_or_default()),
            Err(failure) => Err(failure.into_harmless("look at the queue", Some(queue))),
        }
    }

    async fn create(&self, queue: &QueueName, side: Side) -> Result<String, MessagingError> {
        let name = self.names.wire(queue, side)?;
        let mut attributes =
            HashMap::from([(QueueAttributeName::MessageRetentionPeriod, RETENTION.as_secs().to_string())]);
        match side {
            Side::Fifo => {
                // A queue is listed by its standard side, and its dead letters are behind that.
                Box::pin(self.find_or_create(queue, Side::Standard)).await?;
                attributes.insert(QueueAttributeName::FifoQueue, "true".into());
            }
            Side::Standard if !queue.holds_dead_letters() => {
                let dead = queue.dead_letters();
                let url = Box::pin(self.find_or_create(&dead, Side::Standard)).await?;
                if let Some(arn) = self.attributes(&dead, &url).await?.get(&QueueAttributeName::QueueArn) {
                    let policy = serde_json::json!({ "deadLetterTargetArn": arn, "maxReceiveCount": BACKSTOP });
                    attributes.insert(QueueAttributeName::RedrivePolicy, policy.to_string());
                }
            }
            Side::Standard => {}
        }
        let create = || {
            let create = self.calls.client.create_queue().queue_name(name.as_str());
            create.set_attributes(Some(attributes.clone())).send()
        };
        match self.calls.call(create).await {
            Ok(answer) => match answer.queue_url {
                Some(url) => {
                    self.urls.set(queue, side, Some(url.clone()));
                    Ok(url)
                }
                None => Err(MessagingError::QueueNotFound { queue: queue.clone() }),
            },
            // Somebody else made it, with other attributes, since we looked.
            Err(failure) if failure.has_code(&["QueueAlreadyExists", "QueueNameExists"]) => {
                let found = self.find(queue, side).await?;
                found.ok_or_else(|| failure.into_harmless("create the queue", Some(queue)))
            }
            Err(failure) => Err(failure.into_harmless("create the queue", Some(queue))),
        }
    }

    /// All queues, by name.
    pub(crate) async fn list(&self) -> Result<BTreeSet<QueueName>, MessagingError> {
        let (mut queues, mut next) = (BTreeSet::new(), None);
        loop {
            let list = || {
                let list = self.calls.client.list_queues().max_results(1000).set_next_token(next.clone());
                list.set_queue_name_prefix(self.prefix()).send()
            };
            let page = self.calls.call(list).await.map_err(|failure| failure.into_harmless("list queues", None))?;
            let names = page.queue_urls.unwrap_or_default();
            let names = names.iter().filter_map(|url| self.names.queue(url.rsplit('/').next()?));
            queues.extend(names.map(|name| name.origin()));
            next = page.next_token;
            if next.is_none() {
                return Ok(queues);
            }
        }
    }

    /// Removes both sides of a queue, and its dead letters.
    pub(crate) async fn delete(&self, queue: &QueueName) -> Result<(), MessagingError> {
        let dead = queue.dead_letters();
        for (queue, side) in [(queue, Side::Fifo), (queue, Side::Standard), (&dead, Side::Standard)] {
            if let Some(url) = self.find(queue, side).await? {
                match self.calls.call(|| self.calls.client.delete_queue().queue_url(&url).send()).await {
                    Ok(_) | Err(Failure::Missing) => {}
                    Err(failure) => return Err(failure.into_error("delete the queue", Some(queue), Vec::new())),
                }
            }
            self.urls.gone(queue, side);
        }
        self.pauses.forget(queue);
        Ok(())
    }
}
