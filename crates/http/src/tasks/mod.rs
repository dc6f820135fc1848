//! Tasks that a server keeps.
//!
//! Workers claim and end attempts through it, applications make tasks and look at them, people change them. What a keeper
//! does (reaping lost attempts, sending due tasks on their way, firing schedules, clearing up) the server does by itself,
//! for everybody; asked to do it from here, this says so.

mod contract;
mod handed;
mod leases;
mod operate;
mod schedules;

use std::sync::Arc;

use postrider_core::task::{NewTask, TaskRoutes, TaskStanding};
use postrider_core::{BoxFuture, Deadline, MessagingError};
use postrider_wire::task::{Routes, Standing};

use crate::failure::told;
use crate::provider::HttpProvider;
use crate::transport::Ask;

use leases::Leases;

/// The tasks and schedules of a server. Clones are the same.
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
    /// The tasks of the server that a connection leads to. Asks it how tasks reach their workers there.
    pub fn open(provider: HttpProvider, deadline: Deadline) -> BoxFuture<'static, Result<Self, MessagingError>> {
        Box::pin(async move {
            let routes: Routes = provider.look("connect", Ask::get("/v1/tasks/routes"), deadline).await?;
            let max_payload_bytes = routes.max_payload_bytes;
            let routes = routes.into_routes().map_err(provider.garbled("connect"))?;
            Ok(Self { provider, shared: Arc::new(Shared { routes, max_payload_bytes, leases: Arc::default() }) })
        })
    }

    /// The connection behind this.
    pub fn provider(&self) -> &HttpProvider {
        &self.provider
    }

    /// Why a keeper has nothing to do here.
    fn kept_by_the_server(&self, chore: &str) -> MessagingError {
        MessagingError::invalid(
            "task store",
            format!("the server {} {chore} by itself; run no keeper against it", self.provider.transport().place()),
        )
    }

    fn check(&self, task: NewTask) -> Result<NewTask, MessagingError> {
        task.check(self.shared.max_payload_bytes)?;
        Ok(task)
    }
}

/// What the server said of leases, in the order of the request. One that it refuses is of no more use than one that is lost.
fn standings(said: Vec<Standing>) -> Vec<TaskStanding> {
    for problem in said.iter().filter_map(|row| row.problem.as_deref()) {
        tracing::warn!(code = %problem.code, problem = problem.detail, "the server refuses a lease on a task");
    }
    said.into_iter().map(TaskStanding::from).collect()
}

/// The same where nothing else was asked: if it refuses all of them, so is the call.
fn only_standings(said: Vec<Standing>) -> Result<Vec<TaskStanding>, MessagingError> {
    match said.first().and_then(|first| first.problem.clone()) {
        Some(problem) if said.iter().all(|row| row.problem.is_some()) => Err(told(*problem)),
        _ => Ok(standings(said)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_refused_is_lost_and_if_all_are_so_is_the_call() {
        let refused = || Standing::refused(&MessagingError::invalid("lease", "it is odd"));
        let mixed = only_standings(vec![TaskStanding::Held.into(), refused()]).unwrap();
        assert_eq!(mixed, [TaskStanding::Held, TaskStanding::Lost(None)]);
        let error = only_standings(vec![refused(), refused()]).unwrap_err();
        assert!(matches!(error, MessagingError::InvalidInput { what: "lease", .. }), "{error:?}");
        assert_eq!(standings(vec![refused()]), [TaskStanding::Lost(None)]);
        assert_eq!(only_standings(Vec::new()).unwrap(), []);
    }
}
