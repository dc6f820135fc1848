//! Authentication and authorization.
//!
//! **The idea.** A token is a name with roles, possibly limited to some queues; its secret is shown once and stored as
//! a hash. A server without any token is open, and then listens on loopback only. The dashboard exchanges a token for a
//! session, whose cookie scripts cannot read and other sites cannot use.
//!
//! **The invariant.** Every route is behind [`guard`], which identifies the caller before the body is read. A revoked
//! token is invalid within a second, in every process on the same state.

mod caller;
mod guard;
mod identify;
mod origin;
mod queue_pattern;
pub(crate) mod rate;
mod role;
mod session;
mod token;

pub(crate) use caller::{Caller, Proof};
pub(crate) use guard::{GuardedRoute, guard};
pub(crate) use identify::Access;
pub use queue_pattern::QueuePattern;
pub use role::{Role, role_name, role_named};
pub(crate) use session::{SECURE_COOKIE, SESSION_COOKIE};
pub(crate) use token::random;
pub use token::{NewToken, Tokens};
