//! Stops a worker: gracefully on the first signal, at once on the second.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider::subscriber::Shutdown;
use tokio_util::sync::CancellationToken;

use super::echo::Echo;
use crate::failure::Failure;
use crate::signals::Signals;

/// Time for killed commands to be reaped and their outcomes to be reported before the worker exits anyway.
const LAST_GRACE: Duration = Duration::from_secs(3);

/// The stop of a worker. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    shutdown: Shutdown,
    kill: CancellationToken,
    // Locked only to insert or take.
    failure: Arc<Mutex<Option<Failure>>>,
}

impl Stop {
    /// Listens for SIGINT, SIGTERM and SIGHUP: the first lets running commands finish, the second kills them.
    pub(crate) fn listen(&self, echo: Echo) -> io::Result<()> {
        let mut signals = Signals::listen()?;
        let stop = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = signals.next() => {
                    echo.note("finishing running work; a second signal ends it at once");
                    stop.shutdown.request();
                }
                // The worker stops for another reason.
                () = stop.shutdown.requested() => {}
            }
            signals.next().await;
            stop.kill.cancel();
            tokio::time::sleep(LAST_GRACE).await;
            stop.shutdown.request_at_once();
        });
        Ok(())
    }

    /// The shutdown of the loop that receives messages or claims tasks.
    pub(crate) fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Completes when running commands must be killed.
    pub(crate) async fn killing(&self) {
        self.kill.cancelled().await;
    }

    /// Stops the worker because of a failure. The first failure is the result.
    pub(crate) fn fail(&self, failure: Failure) {
        self.failure().get_or_insert(failure);
        if !self.shutdown.is_requested() {
            self.shutdown.request();
        }
    }

    /// Takes the failure that stopped the worker, if any.
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
    fn the_first_failure_is_the_result_and_stops_the_worker_gracefully() {
        let stop = Stop::default();
        assert!(stop.result().is_ok());
        stop.fail(Failure::failed("first"));
        stop.fail(Failure::failed("second"));
        assert!(stop.shutdown().is_requested());
        assert!(!stop.kill.is_cancelled());
        assert!(matches!(stop.result(), Err(Failure::Failed(text)) if text == "first"));
    }
}
