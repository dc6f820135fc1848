//! Whether somebody has paused the queue: whoever waits for messages wants to know.

use std::convert::Infallible;
use std::time::Duration;

use postrider::subscriber::Monitor;
use postrider::{Deadline, MessagingProvider, QueueAdmin, QueueName};

use crate::command::Echo;

/// How often to look while nothing comes.
const LOOK: Duration = Duration::from_secs(10);

/// Tells when the queue begins or ends to hold messages back.
#[derive(Debug)]
pub(super) struct Paused {
    pub(super) provider: MessagingProvider,
    pub(super) queue: QueueName,
    pub(super) echo: Echo,
    /// What was last told.
    pub(super) is_paused: bool,
}

impl Paused {
    /// Looks now and then; a queue that gives messages is not asked.
    pub(super) async fn watch(&mut self, monitor: &Monitor) -> Infallible {
        let mut received = monitor.counts().received;
        loop {
            tokio::time::sleep(LOOK).await;
            let before = std::mem::replace(&mut received, monitor.counts().received);
            if received == before || self.is_paused {
                self.look().await;
            }
        }
    }

    pub(super) async fn look(&mut self) {
        let queue = &self.queue;
        // A store that does not answer is told elsewhere.
        let Ok(stats) = self.provider.queue_stats(queue, Deadline::default()).await else { return };
        if stats.paused == self.is_paused {
            return;
        }
        self.is_paused = stats.paused;
        match stats.paused {
            true => self.echo.note(format_args!(
                "queue '{queue}' is paused and gives nothing; 'postrider resume {queue}' lets it go on"
            )),
            false => self.echo.note(format_args!("queue '{queue}' goes on")),
        }
    }
}
