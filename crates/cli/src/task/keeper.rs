//! `postrider task keeper`

use postrider::TaskStore;
use postrider::tasks::Tasks;

use crate::args::Global;
use crate::command::{Echo, Stop};
use crate::failure::Failure;
use crate::log;

/// Run the chores of tasks, without a worker
///
/// Sends due tasks to the task queue if tasks.mode is 'queue', sends the messages of the outbox to their queues, fires
/// schedules, takes tasks back from lost workers, and ends tasks past their deadline. At least one process must do this:
/// 'task worker' does, unless --no-keeper is given, and a server does for its own tasks. Any number of processes may.
///
/// Runs until Ctrl-C, SIGTERM or SIGHUP.
#[derive(Debug, clap::Args)]
pub(super) struct Keeper {}

pub(super) async fn run(global: &Global, Keeper {}: Keeper) -> Result<(), Failure> {
    let echo = Echo::start();
    log::start(&echo, global)?;
    let session = global.connect_to_tasks().await?;
    if session.store.is_kept_elsewhere() {
        let url = session.config.url();
        return Err(Failure::usage(format!(
            "{url} is a server, which runs the chores of its tasks itself; it needs no keeper"
        )));
    }
    let queues = session.queues().await?;
    let stop = Stop::default();
    stop.listen(echo.clone()).map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;
    let keeper = Tasks::new(session.store.clone(), queues.clone()).keeper(session.keeper_options());
    let (mode, store) = (session.store.routes().mode, session.store.store_name());
    echo.note(format_args!("running the chores of the tasks in {store}; mode '{mode}'"));
    let shutdown = stop.shutdown();
    tokio::select! {
        ended = keeper.run(shutdown.clone()) => ended?,
        () = shutdown.requested_at_once() => {}
    }
    if !shutdown.is_requested() {
        stop.fail(Failure::failed("the keeper stopped: the store was closed"));
    }
    let closed = session.close_with(queues).await;
    echo.flush().await;
    stop.result().and(closed)
}
