//! Finds missing permissions without any effect.
//!
//! Each call is one that SQS must refuse, such as an empty batch or an invalid receipt, or one that changes nothing. SQS
//! checks the permission first, so a missing one is reported instead of the invalid input.

use std::collections::BTreeMap;
use std::error::Error;

use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::QueueAttributeName;
use postrider_core::{Finding, Severity};

use crate::error::Failure;
use crate::names::{Side, WireName};
use crate::store::Shared;

/// An invalid receipt.
const NO_RECEIPT: &str = "postrider-doctor";

/// Maximum number of queues named in a finding.
const MAX_NAMED: usize = 5;

/// A permission of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    ListQueues,
    GetQueueUrl,
    GetQueueAttributes,
    CreateQueue,
    SendMessage,
    ReceiveMessage,
    DeleteMessage,
    ChangeMessageVisibility,
    ListQueueTags,
}

impl Right {
    /// Describes what fails without it.
    fn is_needed_for(self) -> &'static str {
        match self {
            Self::ListQueues => "queues cannot be listed, and `postrider doctor` checks none",
            Self::GetQueueUrl => "the queues cannot be used at all",
            Self::GetQueueAttributes => "they have no statistics, and no queue can be created",
            Self::CreateQueue => "no queue can be created, nor a FIFO queue by the first message with a key",
            Self::SendMessage => "no message can be sent there, and no retry or dead letter can be stored",
            Self::ReceiveMessage => "no message can be received there",
            Self::DeleteMessage => "acknowledged messages cannot be removed and are delivered again",
            Self::ChangeMessageVisibility => "leases cannot be extended or released, and messages cannot be retried",
            Self::ListQueueTags => "a pause of the queue has no effect",
        }
    }
}

/// The missing permissions, each with the queues and SQS's error.
#[derive(Debug, Default)]
pub(crate) struct MissingRights(BTreeMap<Right, (Vec<String>, String)>);

impl MissingRights {
    pub(crate) fn add(&mut self, right: Right, queue: impl Into<Option<String>>, why: impl ToString) {
        let (queues, _) = self.0.entry(right).or_insert_with(|| (Vec::new(), why.to_string()));
        queues.extend(queue.into());
    }

    pub(crate) fn into_findings(self) -> impl Iterator<Item = Finding> {
        self.0.into_iter().map(|(right, (queues, why))| {
            let named: Vec<_> = queues.iter().take(MAX_NAMED).map(|queue| format!("'{queue}'")).collect();
            let on = match queues.len().saturating_sub(MAX_NAMED) {
                _ if queues.is_empty() => String::new(),
                0 => format!(" on {}", named.join(", ")),
                more => format!(" on {} and {more} more", named.join(", ")),
            };
            let found = format!("sqs:{right:?} is not possible{on}: {}; {why}", right.is_needed_for());
            let fix = format!("allow sqs:{right:?} for this identity, or use another identity for these operations");
            Finding::new("permissions", Severity::Warning, found, fix)
        })
    }
}

impl Shared {
    /// Returns the missing permissions on the messages of a queue.
    pub(crate) async fn denied_on_messages(&self, url: &str) -> impl Iterator<Item = (Right, Failure)> {
        let client = &self.calls.client;
        let (send, receive, delete, hide) = tokio::join!(
            self.is_denied(|| client.send_message_batch().queue_url(url).set_entries(Some(Vec::new())).send()),
            self.is_denied(|| client.receive_message().queue_url(url).max_number_of_messages(0).send()),
            self.is_denied(|| client.delete_message().queue_url(url).receipt_handle(NO_RECEIPT).send()),
            self.is_denied(|| {
                let hide = client.change_message_visibility().queue_url(url);
                hide.receipt_handle(NO_RECEIPT).visibility_timeout(0).send()
            }),
        );
        let asked = [
            (Right::SendMessage, send),
            (Right::ReceiveMessage, receive),
            (Right::DeleteMessage, delete),
            (Right::ChangeMessageVisibility, hide),
        ];
        asked.into_iter().filter_map(|(right, denied)| Some((right, denied?)))
    }

    /// Returns the failure if queues may not be created. Tries it on an existing queue, which changes nothing.
    pub(crate) async fn denied_to_create(&self, name: &WireName, side: Side) -> Option<Failure> {
        self.is_denied(|| {
            let create = self.calls.client.create_queue().queue_name(name.as_str());
            match side {
                Side::Standard => create,
                Side::Fifo => create.attributes(QueueAttributeName::FifoQueue, "true"),
            }
            .send()
        })
        .await
    }

    async fn is_denied<T, E, Fut>(&self, call: impl FnMut() -> Fut) -> Option<Failure>
    where
        Fut: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        self.calls.call(call).await.err().filter(Failure::is_denied)
    }
}
