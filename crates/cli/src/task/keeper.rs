//! `postrider task keeper`

use postrider::TaskStore;
use postrider::tasks::Tasks;

use crate::args::Global;
use crate::command::{Echo, Stop};
use crate::failure::Failure;
use crate::log;

/// Keep tasks going without working on them
///
/// Sends due tasks on their way when tasks.mode is 'queue', relays what is to be sent to queues elsewhere, fires
/// schedules, takes tasks from workers that were lost, and ends those that are too late. 'task worker' does all that by
/// itself unless with --no-keeper; at least one process must, and any number may. A server does it for its own tasks.
///
/// Works until the first Ctrl-C, SIGTERM or SIGHUP.
#[derive(Debug, clap::Args)]
pub(super) struct Keeper {}

pub(super) async fn run(global: &Global, Keeper {}: Keeper) -> Result<(), Failure> {
    let echo = Echo::start();
    log::start(&echo, global)?;
    let session = global.connect_to_tasks().await?;
    if session.store.is_kept_elsewhere() {
        let url = session.config.url();
        return Err(Failure::usage(format!("{url} is a server, which keeps its tasks going by itself; run no keeper")));
    }
    let queues = session.queues().await?;
    let stop = Stop::default();
    stop.listen(echo.clone()).map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;
    let keeper = Tasks::new(session.store.clone(), queues.clone()).keeper(session.keeper_options());
    let (mode, store) = (session.store.routes().mode, session.store.store_name());
    echo.note(format_args!("keeping the tasks in {store} going; mode '{mode}'"));
    let shutdown = stop.shutdown();
    tokio::select! {
        ended = keeper.run(shutdown.clone()) => ended?,
        () = shutdown.requested_at_once() => {}
    }
    if !shutdown.is_requested() {
        stop.fail(Failure::failed("the keeper cannot go on: the store was closed"));
    }
    let closed = session.close_with(queues).await;
    echo.flush().await;
    stop.result().and(closed)
}
