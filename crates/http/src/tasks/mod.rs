//! The tasks of a server.
//!
//! Workers claim tasks and finish attempts, applications create and read tasks, operators change them. The server runs the
//! chores (reaper, enqueuer, scheduler, cleanup) itself; their operations are errors here.

mod claim_guard;
mod contract;
mod leases;
mod operate;
mod schedules;

use std::sync::Arc;

use postrider_core::task::{NewTask, TaskRoutes, TaskStanding};
use postrider_core::{BoxFuture, Deadline, MessagingError};
use postrider_wire::task::{Routes, Standing};

use crate::failure::problem_error;
use crate::provider::HttpProvider;
use crate::transport::Request;

use leases::Leases;

/// The tasks and schedules of a server. Clones share the connection.
#[derive(Debug, Clone)]
pub struct HttpTasks {
    provider: HttpProvider,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    routes: TaskRoutes,
    max_payload_bytes: usize,
    leases: Arc<Leases>,
}

impl HttpTasks {
    /// The tasks of the server of a connection. Reads its task routes.
    pub fn open(provider: HttpProvider, deadline: Deadline) -> BoxFuture<'static, Result<Self, MessagingError>> {
        Box::pin(async move {
            let routes: Routes = provider.call("connect", Request::get("/v1/tasks/routes"), deadline).await?;
            let max_payload_bytes = routes.max_payload_bytes;
            let routes = routes.into_routes().map_err(provider.malformed_answer("connect"))?;
            Ok(Self { provider, shared: Arc::new(Shared { routes, max_payload_bytes, leases: Arc::default() }) })
        })
    }

    /// The connection.
    pub fn provider(&self) -> &HttpProvider {
        &self.provider
    }

    /// The error for a chore that the server runs.
    fn kept_by_the_server(&self, chore: &str) -> MessagingError {
        MessagingError::invalid(
            "task store",
            format!(
                "the server {} {chore} by itself; do not run a keeper against it",
                self.provider.transport().server()
            ),
        )
    }

    fn check(&self, task: NewTask) -> Result<NewTask, MessagingError> {
        task.check(self.shared.max_payload_bytes)?;
        Ok(task)
    }
}

/// Standings of leases, in the order of the request. A refused lease counts as lost.
fn standings(rows: Vec<Standing>) -> Vec<TaskStanding> {
    for problem in rows.iter().filter_map(|row| row.problem.as_deref()) {
        tracing::warn!(code = %problem.code, problem = problem.detail, "the server refused a task lease");
    }
    rows.into_iter().map(TaskStanding::from).collect()
}

/// The same, but fails if the server refuses all leases.
fn only_standings(rows: Vec<Standing>) -> Result<Vec<TaskStanding>, MessagingError> {
    match rows.first().and_then(|first| first.problem.clone()) {
        Some(problem) if rows.iter().all(|row| row.problem.is_some()) => Err(problem_error(*problem)),
        _ => Ok(standings(rows)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_lease_is_lost_and_a_call_with_only_refused_leases_fails() {
        let refused = || Standing::refused(&MessagingError::invalid("lease", "it is odd"));
        let mixed = only_standings(vec![TaskStanding::Held.into(), refused()]).unwrap();
        assert_eq!(mixed, [TaskStanding::Held, TaskStanding::Lost(None)]);
        let error = only_standings(vec![refused(), refused()]).unwrap_err();
        assert!(matches!(error, MessagingError::InvalidInput { what: "lease", .. }), "{error:?}");
        assert_eq!(standings(vec![refused()]), [TaskStanding::Lost(None)]);
        assert_eq!(only_standings(Vec::new()).unwrap(), []);
    }
}
