//! Tasks of their own, as one type.
//!
//! `tokio::spawn` is compiled anew for every future that it is given, once for each of tokio's schedulers, and each copy
//! weighs some 15 kB of code. A box makes all of them one, compiled here.

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

/// Runs work in a task of its own. Panics outside of a tokio runtime, as `tokio::spawn` does.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    spawn_boxed(Box::pin(work))
}

fn spawn_boxed(work: BoxFuture<'static, ()>) -> JoinHandle<()> {
    tokio::spawn(work)
}
