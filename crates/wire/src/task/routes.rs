//! How tasks are delivered on this server.

use postrider_core::task::{Post, TaskRoutes};
use postrider_core::{MessagingError, QueueName};
use serde::{Deserialize, Serialize};

/// `GET /v1/tasks/routes`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TaskRoutes"))]
pub struct Routes {
    /// `polling` or `queue`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["polling", "queue"])))]
    pub mode: String,
    /// Prefix of the queue name of a task type.
    pub queue_prefix: String,
    /// Queue for events of dead tasks.
    pub dead_events: Option<QueueName>,
    /// Upper bound of a payload or result.
    pub max_payload_bytes: usize,
    /// Provider of the store.
    pub store: String,
}

impl Routes {
    /// The routes of a store.
    pub fn new(routes: &TaskRoutes, max_payload_bytes: usize, store: &str) -> Self {
        Self {
            mode: routes.mode.name().to_owned(),
            queue_prefix: routes.queue_prefix.clone(),
            dead_events: routes.dead_events.clone(),
            max_payload_bytes,
            store: store.to_owned(),
        }
    }

    /// The routes for a client. The server alone sends messages, so `post` has its default.
    pub fn into_routes(self) -> Result<TaskRoutes, MessagingError> {
        Ok(TaskRoutes {
            mode: self.mode.parse()?,
            post: Post::default(),
            queue_prefix: self.queue_prefix,
            dead_events: self.dead_events,
        })
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::task::TaskMode;

    use super::*;
    use crate::testing::round_trip;

    #[test]
    fn routes_round_trip() {
        for mode in TaskMode::ALL {
            let dead_events = Some(QueueName::new("deaths").unwrap());
            let routes = TaskRoutes { mode, queue_prefix: "job_".into(), dead_events, ..TaskRoutes::default() };
            let answer = round_trip(&Routes::new(&routes, 7, "sqlite"));
            assert_eq!((answer.max_payload_bytes, answer.store.as_str()), (7, "sqlite"));
            assert_eq!(answer.into_routes().unwrap(), routes);
        }
    }
}
