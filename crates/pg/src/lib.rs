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
pub use notifier::{Hint, Missed, NOTIFY, Notifier, Ride};
pub use schema::Schema;

/// What failed attempts are signed with: the name that was given, or else the host's and the process's number.
pub fn worker_name(given: Option<&str>) -> String {
    given.map_or_else(this_process, str::to_owned)
}

fn this_process() -> String {
    let host = nix::sys::utsname::uname().map(|host| host.nodename().to_string_lossy().into_owned());
    format!("{}:{}", host.unwrap_or_else(|_| "unknown".into()), std::process::id())
}
