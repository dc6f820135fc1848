//! Spawning of boxed tasks.
//!
//! `tokio::spawn` is compiled for every future type and each of tokio's schedulers, about 15 kB of code each. With a
//! boxed future it is compiled once, here.

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

/// Spawns a task. Panics outside of a tokio runtime, as `tokio::spawn` does.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    spawn_boxed(Box::pin(work))
}

fn spawn_boxed(work: BoxFuture<'static, ()>) -> JoinHandle<()> {
    tokio::spawn(work)
}
