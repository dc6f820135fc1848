//! Connections to PostgreSQL for the providers that live there.
//!
//! **The idea.** A provider has statements and knows what they mean; here is how they reach the server: a pool whose
//! sessions pin the planner, transactions whose statements are all sent before the first answer is awaited, errors sorted
//! by whether the work was done, and a connection apart that hears notifications.
//!
//! **The invariant.** A session that is dropped in the middle of a transaction is closed, so that nobody else goes on in
//! it. An answer that was lost is never taken for a refusal.

pub mod columns;
mod connection;
mod error;
mod listener;
mod tls;

pub use tokio_postgres;

pub use connection::{ConnectionOptions, Database, Session, Step};
pub use error::{cannot_connect, text, undone};
pub use listener::{Heard, listen};
