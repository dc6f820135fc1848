//! How processes tell each other that there is something to receive.
//!
//! A `NOTIFY` inside the senders' transactions would make their commits wait for each other: with sixteen senders it
//! took two thirds of the rate. So what was touched is gathered and told after the commits, at once after a quiet time
//! and then every ten milliseconds at most, for all queues together. A hint that is lost is made up for by the look that
//! every waiting receiver takes now and then.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider_core::{Deadline, QueueName};
use postrider_pg::{Heard, Step, listen};
use postrider_sql::Wakes;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::Database;

/// How long after one notification the next may follow.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// Tells other processes, and hears of them.
#[derive(Debug)]
pub(crate) struct Notifier {
    pending: Arc<Pending>,
    database: Arc<Database>,
    wakes: Arc<Wakes>,
    telling: AbortHandle,
    /// Started when somebody first waits.
    listening: Mutex<Option<AbortHandle>>,
    is_listening: AtomicBool,
}

#[derive(Debug, Default)]
struct Pending {
    // A lock, held for a few insertions once a commit.
    queues: Mutex<HashSet<QueueName>>,
    came: Notify,
}

impl Pending {
    fn take(&self) -> HashSet<QueueName> {
        std::mem::take(&mut *self.queues.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Notifier {
    pub(crate) fn start(database: Arc<Database>, wakes: Arc<Wakes>) -> Self {
        let pending = Arc::new(Pending::default());
        // A task, because senders must not wait for it.
        let telling = tokio::spawn(tell_others(database.clone(), pending.clone())).abort_handle();
        Self { pending, database, wakes, telling, listening: Mutex::default(), is_listening: AtomicBool::new(false) }
    }

    /// Something in these queues can be received.
    pub(crate) fn note(&self, queues: &[&QueueName]) {
        let mut pending = self.pending.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues {
            if !pending.contains(*queue) {
                pending.insert((*queue).clone());
            }
        }
        drop(pending);
        self.pending.came.notify_one();
    }

    /// Hears of other processes from now on.
    pub(crate) fn listen(&self) {
        if self.is_listening.swap(true, Ordering::SeqCst) {
            return;
        }
        let (wakes, channel) = (self.wakes.clone(), self.database.sql.schema.channel());
        let heard = move |heard: Heard<'_>| match heard {
            Heard::Anything => wakes.tell_all(),
            Heard::Told(payload) => {
                if let Ok(queue) = QueueName::for_reading(payload) {
                    wakes.tell([&queue]);
                }
            }
        };
        let task = tokio::spawn(listen(self.database.clone(), channel, heard));
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    }

    /// Tells at once what has not been told.
    pub(crate) async fn flush(&self, deadline: Deadline) {
        tell(&self.database, self.pending.take(), deadline).await;
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.telling.abort();
        if let Some(listening) = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take() {
            listening.abort();
        }
    }
}

async fn tell_others(database: Arc<Database>, pending: Arc<Pending>) {
    loop {
        pending.came.notified().await;
        tell(&database, pending.take(), Deadline::default()).await;
        tokio::time::sleep(DEBOUNCE).await;
    }
}

async fn tell(database: &Database, queues: HashSet<QueueName>, deadline: Deadline) {
    if queues.is_empty() {
        return;
    }
    let names: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
    let channel = database.sql.schema.channel();
    let Ok(mut session) = database.session("notify", deadline).await else { return };
    let step = Step::new(&session.sql().notify, [&channel as _, &names as _]);
    // Whoever waits looks by themselves when no hint comes.
    if let Err(error) = session.run(&[step]).await {
        tracing::debug!(?error, "a wake-up was not sent");
    }
}
