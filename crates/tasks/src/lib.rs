//! Tasks: the database is the source of truth, and any queue delivers.
//!
//! **The idea.** A task is a row with its current state. Tasks reach workers in one of two ways, chosen by one line of
//! the configuration: by *polling*, where workers claim due tasks from the store, or by a *queue*, where a
//! [`TaskKeeper`] sends the ids of due tasks over any provider and a subscriber delivers them. Either way the claim is
//! the same conditional statement, and so are the guarantees.
//!
//! **The invariant.** Only the store decides. A transition names the state that it leaves and the lease token of the
//! attempt, and its messages and events commit with it. So a delivery may come twice, late or never, a worker may die
//! or freeze at any point, a broker may be unreachable, and each task still ends in exactly one of its three end
//! states: a lost message is sent again, a lost worker is reaped, and a late worker's token is refused.
//!
//! **What was rejected.** A lock service or an elected leader for the chores: every chore is safe to run twice, so each
//! process may run it. Sending every long-waiting task again: that would double a backlog every minute; lost messages
//! are counted first (`enqueuer.rs`). A second engine for queue mode: the subscriber already has leases, renewals and a
//! clean stop. Best-effort events: a task whose death is not reported is never replayed.
//!
//! ```
//! use postrider_core::{Deadline, NewTask};
//! use postrider_core::task::TaskRoutes;
//! use postrider_sqlite::{SqliteOptions, SqliteStore, SqliteTasks};
//! use postrider_tasks::{Shutdown, TaskContext, Tasks};
//!
//! async fn greet(task: TaskContext) -> Result<String, postrider_tasks::HandlerError> {
//!     let name: String = task.json()?; // an unreadable payload makes the task dead at once
//!     Ok(format!("hello {name}"))
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), postrider_core::MessagingError> {
//! # let folder = tempfile::tempdir().expect("a folder");
//! let store = SqliteStore::open(folder.path().join("tasks.db"), SqliteOptions::default()).await?;
//! let provider = store.connect().await?;
//! let tasks = Tasks::new(SqliteTasks::new(provider.clone(), TaskRoutes::default())?, provider);
//!
//! let made = tasks.client().create(NewTask::new("greet", r#""Anna""#)?, Deadline::default()).await?;
//! tasks.worker().handler("greet", greet).stop_when_empty(true).build()?.run(Shutdown::new()).await?;
//! let task = tasks.client().get(made.id, Deadline::default()).await?;
//! assert_eq!(task.result.as_deref(), Some(&b"hello Anna"[..]));
//! # Ok(())
//! # }
//! ```

mod attempt;
mod backoff;
mod batcher;
mod client;
mod context;
mod decide;
mod delivered;
mod enqueuer;
mod handlers;
mod hints;
mod keeper;
mod kind;
mod observer;
mod polling;
mod reaper;
mod replay;
mod running;
mod scheduler;
mod tasks;
mod timing;
mod worker;

pub use client::TaskClient;
pub use context::TaskContext;
pub use handlers::IntoTaskResult;
pub use keeper::{TaskKeeper, TaskKeeperOptions};
pub use kind::{TaskKind, TaskResultError};
pub use observer::{TaskCounts, TaskEnded, TaskObserver};
pub use postrider_subscriber::{CancellationToken, Classify, HandlerError, Shutdown, State, handler, layers};
pub use replay::{ReplayOptions, ReplayReport};
pub use running::StopReason;
pub use tasks::Tasks;
pub use timing::{NextRun, in_words, next_runs, next_times};
pub use worker::{TaskMonitor, TaskStopCause, TaskStopReport, TaskWorker, TaskWorkerBuilder, TaskWorkerOptions};

/// The default name of a worker: the host's name, the process id, and a random part that distinguishes it from other
/// workers of the process and from later processes with the same id.
fn default_worker_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.ok().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    format!("{}:{}:{:08x}", host.as_deref().unwrap_or("unknown"), std::process::id(), rand::random::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workers_of_one_process_have_two_names() {
        let (one, other) = (default_worker_name(), default_worker_name());
        assert_ne!(one, other);
        assert!(one.contains(&format!(":{}:", std::process::id())), "{one}");
    }
}
