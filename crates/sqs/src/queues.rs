//! Finds, creates, lists and deletes queues.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use postrider_core::{Deadline, MessagingError, QueueName};
use tokio::time::Instant;

use crate::delay::RETENTION;
use crate::error::Failure;
use crate::names::Side;
use crate::store::Shared;
use crate::{dedup, lease};

/// Maximum age of a cached absence: another process may create the queue at any time.
pub(crate) const ABSENT_MAX_AGE: Duration = Duration::from_secs(5);

/// `maxReceiveCount` of the redrive policy, the highest that SQS allows. The configured delivery limit is checked on
/// reading.
pub(crate) const REDRIVE_LIMIT: u32 = 1000;

/// Cache of the queues' URLs.
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
            Some(Known::Absent(since)) if since.elapsed() < ABSENT_MAX_AGE => Some(None),
            _ => None,
        }
    }

    fn set(&self, queue: &QueueName, side: Side, url: Option<String>) {
        let known = url.map_or_else(|| Known::Absent(Instant::now()), Known::At);
        self.lock().insert((queue.clone(), side), known);
    }

    /// Removes a queue that no longer exists, with its leases and dedup keys.
    pub(crate) fn forget_deleted(&self, queue: &QueueName, side: Side) {
        if let Some(Known::At(url)) = self.lock().remove(&(queue.clone(), side)) {
            lease::queue_deleted(&url);
            dedup::queue_deleted(&url);
        }
    }

    /// Returns a queue's URL if it is cached.
    pub(crate) fn known(&self, queue: &QueueName, side: Side) -> Option<String> {
        self.get(queue, side).flatten()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(QueueName, Side), Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Checks that SQS answers.
    pub(crate) async fn check_answers(&self, deadline: Deadline) -> Result<(), MessagingError> {
        deadline.check("health check")?;
        let list = || self.calls.client.list_queues().set_queue_name_prefix(self.prefix()).max_results(1).send();
        match self.calls.call(list).await {
            Ok(_) => Ok(()),
            // Queues can be used without the permission to list them.
            Err(failure) if failure.is_denied() => Ok(()),
            Err(failure) => Err(failure.into_harmless("health check", None)),
        }
    }

    /// Returns the prefix of the queues' names, if there is one.
    fn prefix(&self) -> Option<String> {
        Some(self.names.prefix().to_owned()).filter(|prefix| !prefix.is_empty())
    }

    /// Reads the URL of one side of a queue from SQS; `None` when it does not exist.
    pub(crate) async fn find(&self, queue: &QueueName, side: Side) -> Result<Option<String>, MessagingError> {
        let name = self.names.wire(queue, side)?;
        let url = match self.calls.call(|| self.calls.client.get_queue_url().queue_name(name.as_str()).send()).await {
            Ok(answer) => answer.queue_url,
            Err(Failure::Missing) => None,
            Err(failure) => return Err(failure.into_harmless("find the queue", Some(queue))),
        };
        match &url {
            Some(_) => self.urls.set(queue, side, url.clone()),
            None => {
                self.urls.forget_deleted(queue, side);
                self.urls.set(queue, side, None);
            }
        }
        Ok(url)
    }

    /// Returns the URL of one side of a queue, from the cache or from SQS; `None` when it does not exist.
    pub(crate) async fn url(&self, queue: &QueueName, side: Side) -> Result<Option<String>, MessagingError> {
        match self.urls.get(queue, side) {
            Some(known) => Ok(known),
            None => self.find(queue, side).await,
        }
    }

    /// Returns the sides of a queue that exist.
    pub(crate) async fn sides(&self, queue: &QueueName) -> Result<Vec<(Side, String)>, MessagingError> {
        let mut found = Vec::new();
        for side in [Side::Standard, Side::Fifo] {
            // Dead letters have no order.
            if side == Side::Fifo && queue.holds_dead_letters() {
                continue;
            }
            if let Some(url) = self.url(queue, side).await? {
                found.push((side, url));
            }
        }
        Ok(found)
    }

    /// Returns the URL of one side of a queue. Creates a missing one, if `create_queues` is set.
    pub(crate) async fn url_to_send(&self, queue: &QueueName, side: Side) -> Result<String, MessagingError> {
        if let Some(url) = self.urls.known(queue, side) {
            return Ok(url);
        }
        self.find_or_create(queue, side).await
    }

    /// As [`Self::url_to_send`], without the cache.
    async fn find_or_create(&self, queue: &QueueName, side: Side) -> Result<String, MessagingError> {
        match self.find(queue, side).await? {
            Some(url) => Ok(url),
            None if self.options.create_queues => self.create(queue, side).await,
            None => Err(MessagingError::QueueNotFound { queue: queue.clone() }),
        }
    }

    /// Creates a queue with its dead letters, and sets the longest retention.
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

    /// Sets the longest retention on a queue that was created with a shorter one.
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
                tracing::warn!(%queue, "the queue's retention is shorter than 14 days, and the permission to change it is missing");
                Ok(())
            }
            Err(failure) => Err(failure.into_harmless("set the retention", Some(queue))),
        }
    }

    /// Returns the attributes of a queue.
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
            Err(failure) => Err(failure.into_harmless("read the queue's attributes", Some(queue))),
        }
    }

    async fn create(&self, queue: &QueueName, side: Side) -> Result<String, MessagingError> {
        let name = self.names.wire(queue, side)?;
        let mut attributes =
            HashMap::from([(QueueAttributeName::MessageRetentionPeriod, RETENTION.as_secs().to_string())]);
        match side {
            Side::Fifo => {
                // A queue always has a standard side, which carries the redrive policy and the pause.
                Box::pin(self.find_or_create(queue, Side::Standard)).await?;
                attributes.insert(QueueAttributeName::FifoQueue, "true".into());
            }
            Side::Standard if !queue.holds_dead_letters() => {
                let dead = queue.dead_letters();
                let url = Box::pin(self.find_or_create(&dead, Side::Standard)).await?;
                if let Some(arn) = self.attributes(&dead, &url).await?.get(&QueueAttributeName::QueueArn) {
                    let policy = serde_json::json!({ "deadLetterTargetArn": arn, "maxReceiveCount": REDRIVE_LIMIT });
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
            // Another client has created it meanwhile, with other attributes.
            Err(failure) if failure.has_code(&["QueueAlreadyExists", "QueueNameExists"]) => {
                let found = self.find(queue, side).await?;
                found.ok_or_else(|| failure.into_harmless("create the queue", Some(queue)))
            }
            Err(failure) => Err(failure.into_harmless("create the queue", Some(queue))),
        }
    }

    /// Lists all queues.
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

    /// Deletes both sides of a queue, and its dead letters.
    pub(crate) async fn delete(&self, queue: &QueueName) -> Result<(), MessagingError> {
        let dead = queue.dead_letters();
        for (queue, side) in [(queue, Side::Fifo), (queue, Side::Standard), (&dead, Side::Standard)] {
            if let Some(url) = self.find(queue, side).await? {
                match self.calls.call(|| self.calls.client.delete_queue().queue_url(&url).send()).await {
                    Ok(_) | Err(Failure::Missing) => {}
                    Err(failure) => return Err(failure.into_error("delete the queue", Some(queue), Vec::new())),
                }
            }
            self.urls.forget_deleted(queue, side);
        }
        self.pauses.forget(queue);
        Ok(())
    }
}
