//! Which queue a workflow's messages go through.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::MessagingError;
use crate::queue_name::QueueName;

const STEP_SUFFIX: &str = "_queue";
const DOMAIN_EVENT_SUFFIX: &str = "_domain_events";

/// Names the queues of a workflow. A namespace is a user's word, so a queue named after one may be refused.
pub trait MessageRouter: Send + Sync {
    /// Where the steps of a namespace wait for a worker.
    fn step_queue(&self, namespace: &str) -> Result<QueueName, MessagingError>;

    /// Where workers report what became of their steps.
    fn result_queue(&self) -> QueueName;

    /// Where requests to begin a task wait.
    fn task_request_queue(&self) -> QueueName;

    /// Where tasks wait to be brought to their end.
    fn task_finalization_queue(&self) -> QueueName;

    /// Where the events of a namespace are published.
    fn domain_event_queue(&self, namespace: &str) -> Result<QueueName, MessagingError>;

    /// The namespace whose [`step_queue`](Self::step_queue) this is; `None` when it is no step queue.
    fn extract_namespace(&self, queue: &QueueName) -> Option<String>;
}

/// The queues' names as they stand in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueuesConfig {
    /// What the names of step queues begin with.
    pub worker_queue_prefix: String,
    /// The queues of the orchestrator.
    pub orchestration_queues: OrchestrationQueues,
}

impl Default for QueuesConfig {
    fn default() -> Self {
        Self { worker_queue_prefix: "worker".into(), orchestration_queues: OrchestrationQueues::default() }
    }
}

/// The names of the orchestrator's queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OrchestrationQueues {
    /// Where workers report what became of their steps.
    pub step_results: String,
    /// Where requests to begin a task wait.
    pub task_requests: String,
    /// Where tasks wait to be brought to their end.
    pub task_finalizations: String,
}

impl Default for OrchestrationQueues {
    fn default() -> Self {
        Self {
            step_results: "step_results".into(),
            task_requests: "task_requests".into(),
            task_finalizations: "task_finalizations".into(),
        }
    }
}

/// Step queues `{prefix}_{namespace}_queue`, event queues `{namespace}_domain_events`, the rest by configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultMessageRouter {
    step_prefix: String,
    result_queue: QueueName,
    task_request_queue: QueueName,
    task_finalization_queue: QueueName,
}

impl DefaultMessageRouter {
    /// Checks the names. Two purposes may not share a queue: each would receive what it cannot read.
    pub fn from_config(config: &QueuesConfig) -> Result<Self, MessagingError> {
        let queues = &config.orchestration_queues;
        if config.worker_queue_prefix.is_empty() {
            return Err(MessagingError::invalid("worker_queue_prefix", "it is empty; the default is 'worker'"));
        }
        let router = Self {
            step_prefix: format!("{}_", config.worker_queue_prefix),
            result_queue: orchestration_queue("step_results", &queues.step_results)?,
            task_request_queue: orchestration_queue("task_requests", &queues.task_requests)?,
            task_finalization_queue: orchestration_queue("task_finalizations", &queues.task_finalizations)?,
        };
        // The shortest namespace there is shows whether the prefix leaves room for any.
        router.step_queue("n").map_err(|error| MessagingError::invalid("worker_queue_prefix", error.to_string()))?;
        router.refuse_shared_queues()?;
        Ok(router)
    }

    fn refuse_shared_queues(&self) -> Result<(), MessagingError> {
        let queues = [
            ("step_results", &self.result_queue),
            ("task_requests", &self.task_request_queue),
            ("task_finalizations", &self.task_finalization_queue),
        ];
        for (at, (key, queue)) in queues.into_iter().enumerate() {
            if let Some((other, _)) = queues[..at].iter().find(|(_, earlier)| *earlier == queue) {
                return Err(MessagingError::invalid(key, format!("'{queue}' is already the queue of {other}")));
            }
            if let Some(namespace) = self.extract_namespace(queue) {
                return Err(MessagingError::invalid(
                    key,
                    format!("'{queue}' is the step queue of namespace '{namespace}'; choose another name"),
                ));
            }
            if queue.as_str().ends_with(DOMAIN_EVENT_SUFFIX) {
                return Err(MessagingError::invalid(
                    key,
                    format!("'{queue}' is a namespace's event queue; choose a name without '{DOMAIN_EVENT_SUFFIX}'"),
                ));
            }
        }
        Ok(())
    }
}

fn orchestration_queue(key: &'static str, name: &str) -> Result<QueueName, MessagingError> {
    QueueName::new(name).map_err(|error| MessagingError::invalid(key, error.to_string()))
}

fn namespace_queue(prefix: &str, namespace: &str, suffix: &str) -> Result<QueueName, MessagingError> {
    if namespace.is_empty() {
        return Err(MessagingError::invalid("namespace", "it is empty; name the one whose queue is meant"));
    }
    QueueName::new(format!("{prefix}{namespace}{suffix}"))
        .map_err(|error| MessagingError::invalid("namespace", format!("no queue can be named after it: {error}")))
}

impl MessageRouter for DefaultMessageRouter {
    fn step_queue(&self, namespace: &str) -> Result<QueueName, MessagingError> {
        namespace_queue(&self.step_prefix, namespace, STEP_SUFFIX)
    }

    fn result_queue(&self) -> QueueName {
        self.result_queue.clone()
    }

    fn task_request_queue(&self) -> QueueName {
        self.task_request_queue.clone()
    }

    fn task_finalization_queue(&self) -> QueueName {
        self.task_finalization_queue.clone()
    }

    fn domain_event_queue(&self, namespace: &str) -> Result<QueueName, MessagingError> {
        namespace_queue("", namespace, DOMAIN_EVENT_SUFFIX)
    }

    fn extract_namespace(&self, queue: &QueueName) -> Option<String> {
        // One strip at each end, the prefix first: what is left is what was put in, whatever it contains itself.
        let namespace = queue.as_str().strip_prefix(&self.step_prefix)?.strip_suffix(STEP_SUFFIX)?;
        (!namespace.is_empty()).then(|| namespace.to_owned())
    }
}

/// The router of a client: the default one, or one that the application brought.
#[derive(Clone)]
pub enum MessageRouterKind {
    /// Names by configuration.
    Default(DefaultMessageRouter),
    /// Names by the application's own rule.
    Custom(Arc<dyn MessageRouter>),
}

impl MessageRouterKind {
    fn router(&self) -> &dyn MessageRouter {
        match self {
            Self::Default(router) => router,
            Self::Custom(router) => &**router,
        }
    }
}

impl From<DefaultMessageRouter> for MessageRouterKind {
    fn from(router: DefaultMessageRouter) -> Self {
        Self::Default(router)
    }
}

impl fmt::Debug for MessageRouterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default(router) => f.debug_tuple("Default").field(router).finish(),
            Self::Custom(_) => f.debug_tuple("Custom").finish_non_exhaustive(),
        }
    }
}

impl MessageRouter for MessageRouterKind {
    fn step_queue(&self, namespace: &str) -> Result<QueueName, MessagingError> {
        self.router().step_queue(namespace)
    }

    fn result_queue(&self) -> QueueName {
        self.router().result_queue()
    }

    fn task_request_queue(&self) -> QueueName {
        self.router().task_request_queue()
    }

    fn task_finalization_queue(&self) -> QueueName {
        self.router().task_finalization_queue()
    }

    fn domain_event_queue(&self, namespace: &str) -> Result<QueueName, MessagingError> {
        self.router().domain_event_queue(namespace)
    }

    fn extract_namespace(&self, queue: &QueueName) -> Option<String> {
        self.router().extract_namespace(queue)
    }
}

#[cfg(test)]
mod tests;
