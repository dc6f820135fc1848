//! Who asks, and what they may do.

use std::sync::Arc;

use postrider::QueueName;
use postrider::task::{TaskRoutes, TypePattern};

use super::queue_pattern::QueuePattern;
use super::role::{Role, includes};
use crate::api::ApiError;

/// How a caller has shown who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// They have not, and need not: the server is open.
    Open,
    /// They have not.
    None,
    /// By a token.
    Token,
    /// By the cookie of a session, which browsers send along by themselves.
    Session,
}

/// Whoever sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The name of their token; where they are when they have none.
    pub(crate) name: Arc<str>,
    /// The token's id; the address where there is none. What a rate is counted by.
    pub(crate) key: Arc<str>,
    /// What they may do.
    pub(crate) roles: Arc<[Role]>,
    /// Where they may do it; `None` is everywhere.
    pub(crate) queues: Option<Arc<[QueuePattern]>>,
    /// How they have shown who they are.
    pub(crate) proof: Proof,
    /// What their session is kept under, if they have one.
    pub(crate) session: Option<Arc<str>>,
}

impl Caller {
    /// Whoever reaches an open server.
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

    /// Somebody without a token.
    pub(crate) fn unknown(address: &str) -> Self {
        Self { roles: Arc::new([]), proof: Proof::None, ..Self::open(address) }
    }

    /// Whether they may do what asks for that role.
    pub(crate) fn has(&self, wanted: Role) -> bool {
        self.roles.iter().any(|role| includes(*role, wanted))
    }

    /// Whether they may do it to that queue.
    pub(crate) fn may_use(&self, queue: &QueueName) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.iter().any(|pattern| pattern.includes(queue)))
    }

    /// The types of tasks that they may see and use: those of the queues that would deliver them. `None` is all.
    pub(crate) fn task_types(&self, routes: &TaskRoutes) -> Option<Vec<TypePattern>> {
        let queues = self.queues.as_ref()?;
        Some(queues.iter().filter_map(|pattern| pattern.task_types(&routes.queue_prefix)).collect())
    }

    /// Refuses a queue that the token is not for.
    pub(crate) fn check_queue(&self, queue: &QueueName) -> Result<(), ApiError> {
        match self.may_use(queue) {
            true => Ok(()),
            false => Err(ApiError::forbidden(format!("this token is not for queue '{queue}'; use one that is"))),
        }
    }

    /// Refuses somebody whose token is for some queues only, where everything is meant.
    pub(crate) fn check_everywhere(&self) -> Result<(), ApiError> {
        match &self.queues {
            None => Ok(()),
            Some(_) => {
                let why = "this concerns every queue, and this token is for some; use one without a limit to queues";
                Err(ApiError::forbidden(why))
            }
        }
    }
}
