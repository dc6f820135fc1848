//! Waiting for the next due time by a clock of this host.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream;
use postrider_core::wakes::Listener;
use postrider_core::{Clock, Timestamp, WakeUps};
use tokio::sync::watch;

/// Waits until the listener is notified or `due` has come.
pub async fn until_due(listener: &Listener, clock: &dyn Clock, due: Timestamp) {
    tokio::select! {
        biased;
        () = listener.called() => {}
        () = until(clock, due) => {}
    }
}

async fn until(clock: &dyn Clock, time: Timestamp) {
    if time == Timestamp::MAX {
        std::future::pending::<()>().await;
    }
    clock.sleep_until(time).await;
}

/// Returns the first time after the given one at which a message becomes due.
type NextDue = dyn Fn(Timestamp) -> BoxFuture<'static, Timestamp> + Send + Sync;

/// Hints until the connection closes: one for each notification of the listener, and one at each time that `next_due`
/// returns.
pub fn hints(
    listener: Listener,
    clock: Arc<dyn Clock>,
    closing: watch::Receiver<bool>,
    next_due: impl Fn(Timestamp) -> BoxFuture<'static, Timestamp> + Send + Sync + 'static,
) -> WakeUps {
    let next_due: Box<NextDue> = Box::new(next_due);
    let seen = clock.now();
    WakeUps::new(stream::unfold((listener, clock, closing, next_due, seen), |state| async move {
        let (listener, clock, mut closing, next_due, seen) = state;
        let next = async {
            listener.begin_look();
            let due = next_due(seen).await;
            listener.end_look(due);
            until_due(&listener, &*clock, due).await;
        };
        tokio::select! {
            biased;
            _ = closing.wait_for(|closed| *closed) => return None,
            () = next => {}
        }
        let seen = clock.now().max(seen);
        Some(((), (listener, clock, closing, next_due, seen)))
    }))
}
