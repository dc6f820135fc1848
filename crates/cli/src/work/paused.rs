//! Notes when the queue of a worker is paused or resumed.

use std::convert::Infallible;
use std::time::Duration;

use postrider::subscriber::Monitor;
use postrider::{Deadline, MessagingProvider, QueueAdmin, QueueName};

use crate::command::Echo;

/// Poll interval while no message is received.
const POLL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct PauseWatcher {
    pub(super) provider: MessagingProvider,
    pub(super) queue: QueueName,
    pub(super) echo: Echo,
    /// The state noted last.
    pub(super) is_paused: bool,
}

impl PauseWatcher {
    /// Checks the queue at intervals in which no message was received.
    pub(super) async fn watch(&mut self, monitor: &Monitor) -> Infallible {
        let mut received = monitor.counts().received;
        loop {
            tokio::time::sleep(POLL).await;
            let before = std::mem::replace(&mut received, monitor.counts().received);
            if received == before || self.is_paused {
                self.check().await;
            }
        }
    }

    pub(super) async fn check(&mut self) {
        let queue = &self.queue;
        // A store that does not answer is reported by the subscriber.
        let Ok(stats) = self.provider.queue_stats(queue, Deadline::default()).await else { return };
        if stats.paused == self.is_paused {
            return;
        }
        self.is_paused = stats.paused;
        match stats.paused {
            true => {
                self.echo.note(format_args!("queue '{queue}' is paused; 'postrider resume {queue}' resumes it"));
            }
            false => self.echo.note(format_args!("queue '{queue}' is resumed")),
        }
    }
}
