//! How a worker is told to end, and how urgently.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider::subscriber::Shutdown;
use tokio_util::sync::CancellationToken;

use super::echo::Echo;
use crate::failure::Failure;
use crate::signals::Signals;

/// How long killed commands may take to be collected, and what became of their work to be told, before the worker
/// leaves regardless.
const LAST_PATIENCE: Duration = Duration::from_secs(3);

/// Ends the worker. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    shutdown: Shutdown,
    kill: CancellationToken,
    // Held to put something in or take it out.
    failure: Arc<Mutex<Option<Failure>>>,
}

impl Stop {
    /// The first SIGINT, SIGTERM or SIGHUP lets what runs finish; the second ends it at once.
    pub(crate) fn listen(&self, echo: Echo) -> io::Result<()> {
        let mut signals = Signals::listen()?;
        let stop = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = signals.next() => {
                    echo.note("finishing what runs; once more to end it at once");
                    stop.shutdown.request();
                }
                // It stops for another reason.
                () = stop.shutdown.requested() => {}
            }
            signals.next().await;
            stop.kill.cancel();
            tokio::time::sleep(LAST_PATIENCE).await;
            stop.shutdown.request_at_once();
        });
        Ok(())
    }

    /// What the loop that brings the work is stopped by.
    pub(crate) fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Completes when what runs shall end at once.
    pub(crate) async fn killing(&self) {
        self.kill.cancelled().await;
    }

    /// There is no point in going on. The first reason is the one that is told.
    pub(crate) fn fail(&self, failure: Failure) {
        self.failure().get_or_insert(failure);
        if !self.shutdown.is_requested() {
            self.shutdown.request();
        }
    }

    /// Why there was no point in going on.
    pub(crate) fn result(&self) -> Result<(), Failure> {
        self.failure().take().map_or(Ok(()), Err)
    }

    fn failure(&self) -> std::sync::MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_told_and_stops_the_worker_gracefully() {
        let stop = Stop::default();
        assert!(stop.result().is_ok());
        stop.fail(Failure::failed("first"));
        stop.fail(Failure::failed("second"));
        assert!(stop.shutdown().is_requested());
        assert!(!stop.kill.is_cancelled());
        assert!(matches!(stop.result(), Err(Failure::Failed(text)) if text == "first"));
    }
}
