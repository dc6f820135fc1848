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
use postrider_core::{Deadline, MessagingError};

use crate::provider::HttpProvider;
use crate::transport::Ask;
use crate::wire::task::Routes;

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
    pub async fn open(provider: HttpProvider, deadline: Deadline) -> Result<Self, MessagingError> {
        let routes: Routes = provider.look("connect", Ask::get("/v1/tasks/routes"), deadline).await?;
        let max_payload_bytes = routes.max_payload_bytes;
        let routes = routes.into_routes().map_err(provider.garbled("connect"))?;
        Ok(Self { provider, shared: Arc::new(Shared { routes, max_payload_bytes, leases: Arc::default() }) })
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

/// What the server said of leases, in the order of the request.
fn standings(said: Vec<crate::wire::task::Standing>) -> Vec<TaskStanding> {
    said.into_iter().map(TaskStanding::from).collect()
}
