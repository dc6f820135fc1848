//! The queues of workflow messages.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::MessagingError;
use crate::queue_name::QueueName;

const STEP_SUFFIX: &str = "_queue";
const DOMAIN_EVENT_SUFFIX: &str = "_domain_events";

/// Names the queues of a workflow. A namespace is chosen by a user, so it may give an invalid queue name.
pub trait MessageRouter: Send + Sync {
    /// The queue of the steps of a namespace.
    fn step_queue(&self, namespace: &str) -> Result<QueueName, MessagingError>;

    /// The queue of step results.
    fn result_queue(&self) -> QueueName;

    /// The queue of requests to begin a task.
    fn task_request_queue(&self) -> QueueName;

    /// The queue of tasks that may be finished.
    fn task_finalization_queue(&self) -> QueueName;

    /// The queue of the events of a namespace.
    fn domain_event_queue(&self, namespace: &str) -> Result<QueueName, MessagingError>;

    /// The namespace of a [`step_queue`](Self::step_queue); `None` for other queues.
    fn extract_namespace(&self, queue: &QueueName) -> Option<String>;
}

/// The queue names of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueuesConfig {
    /// The prefix of step queues.
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
    /// The queue of step results.
    pub step_results: String,
    /// The queue of requests to begin a task.
    pub task_requests: String,
    /// The queue of tasks that may be finished.
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

/// Names step queues `{prefix}_{namespace}_queue` and event queues `{namespace}_domain_events`; the rest is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultMessageRouter {
    step_prefix: String,
    result_queue: QueueName,
    task_request_queue: QueueName,
    task_finalization_queue: QueueName,
}

impl DefaultMessageRouter {
    /// Checks the names. Each purpose needs its own queue, because a receiver cannot read the messages of another.
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
        // The shortest namespace shows whether the prefix is short enough.
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
                    format!(
                        "'{queue}' is the event queue of a namespace; choose a name without '{DOMAIN_EVENT_SUFFIX}'"
                    ),
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
        return Err(MessagingError::invalid("namespace", "it is empty; pass the name of a namespace"));
    }
    QueueName::new(format!("{prefix}{namespace}{suffix}"))
        .map_err(|error| MessagingError::invalid("namespace", format!("its queue name is not valid: {error}")))
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
        // The prefix is removed before the suffix, so that any namespace is extracted unchanged.
        let namespace = queue.as_str().strip_prefix(&self.step_prefix)?.strip_suffix(STEP_SUFFIX)?;
        (!namespace.is_empty()).then(|| namespace.to_owned())
    }
}

/// The router of a client: the default one, or one of the application.
#[derive(Clone)]
pub enum MessageRouterKind {
    /// Names from the configuration.
    Default(DefaultMessageRouter),
    /// Names by a rule of the application.
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
