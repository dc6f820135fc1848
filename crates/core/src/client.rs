//! Messages of workflows, each on its queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::Feature;
use crate::codec::FromBytes;
use crate::deadline::Deadline;
use crate::disposition::Nack;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::queued_message::QueuedMessage;
use crate::receipt::ReceiptHandle;
use crate::receive_options::ReceiveOptions;
use crate::router::{MessageRouter, MessageRouterKind};
use crate::service::{MessagingService, QueueAdmin};
use crate::stats::QueueStats;
use crate::typed::TypedMessaging;
use crate::workflow_message::{
    DomainEvent, StepExecutionResult, StepMessage, TaskFinalizationMessage, TaskRequestMessage,
};

/// The header with the trace of a step.
pub const TRACEPARENT_HEADER: &str = "traceparent";
/// The header with vendor data of the trace.
pub const TRACESTATE_HEADER: &str = "tracestate";

/// Sends and receives the messages between orchestrators and workers, through a provider and on the queues that a
/// router names. Clones share the provider.
pub struct MessageClient<S> {
    provider: Arc<S>,
    router: MessageRouterKind,
}

impl<S> Clone for MessageClient<S> {
    fn clone(&self) -> Self {
        Self { provider: self.provider.clone(), router: self.router.clone() }
    }
}

impl<S> fmt::Debug for MessageClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageClient").field("router", &self.router).finish_non_exhaustive()
    }
}

impl<S: MessagingService> MessageClient<S> {
    /// A client that uses a provider and the queue names of a router.
    pub fn new(provider: Arc<S>, router: impl Into<MessageRouterKind>) -> Self {
        Self { provider, router: router.into() }
    }

    /// The provider.
    pub fn provider(&self) -> &Arc<S> {
        &self.provider
    }

    /// The router that names the queues.
    pub fn router(&self) -> &MessageRouterKind {
        &self.router
    }

    /// The provider's name.
    pub fn provider_name(&self) -> &'static str {
        self.provider.provider_name()
    }

    /// Creates the queues of namespaces: one for steps and one for events each.
    ///
    /// All names are checked before the first queue is created.
    pub async fn initialize_namespace_queues(
        &self,
        namespaces: &[&str],
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        let mut queues = Vec::with_capacity(2 * namespaces.len());
        for namespace in namespaces {
            queues.push(self.router.step_queue(namespace)?);
            queues.push(self.router.domain_event_queue(namespace)?);
        }
        self.provider.ensure_queues(&queues, deadline).await
    }

    /// Creates the queues of an orchestrator: results, requests and finalizations.
    pub async fn initialize_orchestration_queues(&self, deadline: Deadline) -> Result<(), MessagingError> {
        let router = &self.router;
        let queues = [router.result_queue(), router.task_request_queue(), router.task_finalization_queue()];
        self.provider.ensure_queues(&queues, deadline).await
    }

    /// Sends a step to the workers of a namespace. Its trace is copied to the headers, where tracing tools expect it.
    pub async fn send_step_message(
        &self,
        namespace: &str,
        step: StepMessage,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        let queue = self.router.step_queue(namespace)?;
        let mut message = Message::encode(&step)?;
        if let Some(trace) = step.trace_context {
            message = message.header(TRACEPARENT_HEADER, trace.traceparent)?;
            if let Some(tracestate) = trace.tracestate {
                message = message.header(TRACESTATE_HEADER, tracestate)?;
            }
        }
        self.provider.send_message(&queue, message, deadline).await
    }

    /// Sends the result of a step to the orchestrator.
    pub async fn send_step_result(
        &self,
        result: StepExecutionResult,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        self.provider.send_typed(&self.router.result_queue(), &result, deadline).await
    }

    /// Requests a task. The message has the priority of the task if the provider supports priorities; the request
    /// carries the priority in any case.
    pub async fn send_task_request(
        &self,
        request: TaskRequestMessage,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        let mut message = Message::encode(&request)?;
        if self.provider.capabilities().offers(Feature::Priority) {
            message = message.priority(request.priority);
        }
        self.provider.send_message(&self.router.task_request_queue(), message, deadline).await
    }

    /// Requests the finalization of a task.
    pub async fn send_task_finalization(
        &self,
        finalization: TaskFinalizationMessage,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        self.provider.send_typed(&self.router.task_finalization_queue(), &finalization, deadline).await
    }

    /// Publishes an event to a namespace, which can differ from the one where it happened.
    pub async fn publish_domain_event(
        &self,
        namespace: &str,
        event: DomainEvent,
        deadline: Deadline,
    ) -> Result<MessageId, MessagingError> {
        self.provider.send_typed(&self.router.domain_event_queue(namespace)?, &event, deadline).await
    }

    /// Receives steps of a namespace.
    pub async fn receive_step_messages(
        &self,
        namespace: &str,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage<StepMessage>>, MessagingError> {
        self.receive(self.router.step_queue(namespace)?, options, deadline).await
    }

    /// Receives results of steps.
    pub async fn receive_step_results(
        &self,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage<StepExecutionResult>>, MessagingError> {
        self.receive(self.router.result_queue(), options, deadline).await
    }

    /// Receives requests for tasks.
    pub async fn receive_task_requests(
        &self,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage<TaskRequestMessage>>, MessagingError> {
        self.receive(self.router.task_request_queue(), options, deadline).await
    }

    /// Receives requests for finalizations.
    pub async fn receive_task_finalizations(
        &self,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage<TaskFinalizationMessage>>, MessagingError> {
        self.receive(self.router.task_finalization_queue(), options, deadline).await
    }

    /// Receives events that were published to a namespace.
    pub async fn receive_domain_events(
        &self,
        namespace: &str,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage<DomainEvent>>, MessagingError> {
        self.receive(self.router.domain_event_queue(namespace)?, options, deadline).await
    }

    async fn receive<T: FromBytes>(
        &self,
        queue: QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage<T>>, MessagingError> {
        self.provider.receive_typed(&queue, options, deadline).await
    }

    /// Acknowledges a message.
    pub async fn ack_message(
        &self,
        queue: &QueueName,
        receipt: impl Into<ReceiptHandle> + Send,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.provider.ack_message(queue, receipt, deadline).await
    }

    /// Alias of [`ack_message`](Self::ack_message).
    pub async fn delete_message(
        &self,
        queue: &QueueName,
        receipt: impl Into<ReceiptHandle> + Send,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.ack_message(queue, receipt, deadline).await
    }

    /// Gives a message back: retries, releases or dead-letters it.
    pub async fn nack_message(
        &self,
        queue: &QueueName,
        receipt: impl Into<ReceiptHandle> + Send,
        nack: impl Into<Nack> + Send,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        self.provider.nack_message(queue, receipt, nack, deadline).await
    }

    /// Sets the end of a lease to *now + extension* by the store's clock, and returns the receipt that is valid from
    /// now on.
    pub async fn extend_visibility(
        &self,
        queue: &QueueName,
        receipt: &ReceiptHandle,
        extension: Duration,
        deadline: Deadline,
    ) -> Result<ReceiptHandle, MessagingError> {
        self.provider.extend_visibility(queue, receipt, extension, deadline).await
    }
}

impl<S: MessagingService + QueueAdmin> MessageClient<S> {
    /// The counts of a queue.
    pub async fn get_queue_metrics(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        self.provider.queue_stats(queue, deadline).await
    }
}

#[cfg(test)]
mod tests;
