//! Who may do what.
//!
//! **The idea.** A token is a name with roles, perhaps for some queues only; its secret is shown once and kept as a hash.
//! A server without any token is open, and then listens on loopback alone. The dashboard turns a token into a session,
//! whose cookie scripts cannot read and other sites cannot use.
//!
//! **The invariant.** Every route is behind [`guard`], which asks who sends a request before anything of it is read, and a
//! token that was revoked is worth nothing a second later, in every process that shares its state.

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
pub(crate) use guard::{Guarding, guard};
pub(crate) use identify::Access;
pub use queue_pattern::QueuePattern;
pub use role::{Role, role_name, role_named};
pub(crate) use session::{SECURE_COOKIE, SESSION_COOKIE};
pub(crate) use token::random;
pub use token::{NewToken, Tokens};
