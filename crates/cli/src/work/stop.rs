//! How a worker is told to end, and how urgently.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::echo::Echo;
use crate::signals::Signals;

/// What a worker may still do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Everything.
    Running,
    /// Finish what was begun.
    Finishing,
    /// End what still runs, politely.
    Terminating,
    /// End what still runs, at once.
    Killing,
}

/// Where every part of a worker sees the stage. It only ever rises.
#[derive(Debug, Clone)]
pub(super) struct Stop(Arc<watch::Sender<Stage>>);

impl Stop {
    /// The first SIGINT, SIGTERM or SIGHUP lets what runs finish, for at most `graceful`; the second ends it at once.
    pub(super) fn listen(graceful: Duration, echo: Echo) -> io::Result<Self> {
        let mut signals = Signals::listen()?;
        let stop = Self::new();
        let conducted = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = signals.next() => {
                    echo.note("finishing what runs; once more to end it at once");
                    conducted.raise(Stage::Finishing);
                }
                () = conducted.reached(Stage::Finishing) => {}
            }
            tokio::select! {
                () = signals.next() => conducted.raise(Stage::Killing),
                () = tokio::time::sleep(graceful) => {
                    conducted.raise(Stage::Terminating);
                    signals.next().await;
                    conducted.raise(Stage::Killing);
                }
            }
        });
        Ok(stop)
    }

    fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Stage::Running)))
    }

    /// Raises the stage; never lowers it.
    pub(super) fn raise(&self, to: Stage) {
        self.0.send_if_modified(|stage| {
            let higher = to > *stage;
            *stage = (*stage).max(to);
            higher
        });
    }

    pub(super) fn has_reached(&self, stage: Stage) -> bool {
        *self.0.borrow() >= stage
    }

    /// Completes when the stage has been reached.
    pub(super) async fn reached(&self, stage: Stage) {
        // It cannot fail: the sender lives in `self`.
        let _ = self.0.subscribe().wait_for(|now| *now >= stage).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_stage_only_rises() {
        let stop = Stop::new();
        assert!(stop.has_reached(Stage::Running) && !stop.has_reached(Stage::Finishing));
        stop.raise(Stage::Terminating);
        stop.raise(Stage::Finishing);
        assert!(stop.has_reached(Stage::Terminating) && !stop.has_reached(Stage::Killing));
        stop.reached(Stage::Finishing).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_still_runs_is_ended_when_the_graceful_time_is_over() {
        let stop = Stop::listen(Duration::from_secs(9), Echo::start()).unwrap();
        let begun = tokio::time::Instant::now();
        stop.raise(Stage::Finishing);
        stop.reached(Stage::Terminating).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(9));
        assert!(!stop.has_reached(Stage::Killing));
    }
}
