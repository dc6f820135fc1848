//! The caller of a request, and what it may do.

use std::sync::Arc;

use postrider::QueueName;
use postrider::task::{TaskRoutes, TypePattern};

use super::queue_pattern::QueuePattern;
use super::role::{Role, includes};
use crate::api::ApiError;

/// How a caller was identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Not at all: the server is open.
    Open,
    /// Not at all, on a server that needs a token.
    None,
    /// By a token.
    Token,
    /// By a session cookie, which browsers send by themselves.
    Session,
}

/// The caller of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Name of the token; the address without one.
    pub(crate) name: Arc<str>,
    /// Id of the token; the address without one. Rates and budgets are counted by it.
    pub(crate) key: Arc<str>,
    /// Granted roles.
    pub(crate) roles: Arc<[Role]>,
    /// Queues the token is limited to; `None` is all.
    pub(crate) queues: Option<Arc<[QueuePattern]>>,
    /// How the caller was identified.
    pub(crate) proof: Proof,
    /// Key of the session's record, if there is a session.
    pub(crate) session: Option<Arc<str>>,
}

impl Caller {
    /// The caller of an open server.
    pub(crate) fn open(address: &str) -> Self {
        Self {
            name: address.into(),
            key: address.into(),
            roles: Arc::new([Role::Admin]),
            queues: None,
            proof: Proof::Open,
            session: None,
        }
    }

    /// A caller without a token.
    pub(crate) fn unknown(address: &str) -> Self {
        Self { roles: Arc::new([]), proof: Proof::None, ..Self::open(address) }
    }

    /// Whether the caller has the role.
    pub(crate) fn has(&self, wanted: Role) -> bool {
        self.roles.iter().any(|role| includes(*role, wanted))
    }

    /// Whether the token covers the queue.
    pub(crate) fn may_use(&self, queue: &QueueName) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.iter().any(|pattern| pattern.includes(queue)))
    }

    /// Returns the task types that the token covers: those whose queues it covers. `None` is all.
    pub(crate) fn task_types(&self, routes: &TaskRoutes) -> Option<Vec<TypePattern>> {
        let queues = self.queues.as_ref()?;
        Some(queues.iter().filter_map(|pattern| pattern.task_types(&routes.queue_prefix)).collect())
    }

    /// Fails if the token does not cover the queue.
    pub(crate) fn check_queue(&self, queue: &QueueName) -> Result<(), ApiError> {
        match self.may_use(queue) {
            true => Ok(()),
            false => Err(ApiError::forbidden(format!("this token does not cover queue '{queue}'; use one that does"))),
        }
    }

    /// Fails if the token is limited to queues.
    pub(crate) fn check_everywhere(&self) -> Result<(), ApiError> {
        match &self.queues {
            None => Ok(()),
            Some(_) => {
                let why = "this concerns all queues, and this token is limited to some; use one without a limit";
                Err(ApiError::forbidden(why))
            }
        }
    }
}
