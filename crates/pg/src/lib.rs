//! Connections to PostgreSQL for the providers that live there.
//!
//! **Idea.** A provider has the statements; this crate runs them: a pool whose sessions have fixed planner settings,
//! transactions whose statements are all sent before the first answer is awaited, errors classified by whether the work
//! was done, and a separate connection that listens for notifications.
//!
//! **Invariant.** A session that is dropped inside a transaction is closed, so that no other work continues in it. A
//! lost answer is never reported as a refusal.

pub mod columns;
mod connection;
pub mod doctor;
mod error;
mod listener;
mod migrations;
mod notifier;
mod schema;
mod tls;

pub use tokio_postgres;

pub use connection::{ConnectionOptions, Database, Session, Step};
pub use error::{cannot_connect, is_missing_table, text, undone};
pub use migrations::{Known, Migration, Migrations};
pub use notifier::{Hint, HintBatch, Missed, NOTIFY, Notifier};
pub use schema::Schema;

/// Returns the worker name in failed attempts: the given one, or the host name and the process id.
pub fn worker_name(given: Option<&str>) -> String {
    given.map_or_else(this_process, str::to_owned)
}

fn this_process() -> String {
    let host = nix::sys::utsname::uname().map(|host| host.nodename().to_string_lossy().into_owned());
    format!("{}:{}", host.unwrap_or_else(|_| "unknown".into()), std::process::id())
}
