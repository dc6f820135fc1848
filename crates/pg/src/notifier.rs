//! How processes tell each other that there is something to receive.
//!
//! A `NOTIFY` inside the senders' transactions would make their commits wait for each other: with sixteen senders it
//! took two thirds of the rate. So what was touched is gathered and told after the commits, at once after a quiet time
//! and then every ten milliseconds at most, for all queues together. A hint that is lost is made up for by the look that
//! every waiting receiver takes now and then.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider_core::{Deadline, QueueName};
use postrider_sql::Wakes;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::connection::{Database, Step};
use crate::listener::{Heard, listen};

/// How long after one notification the next may follow.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// Tells other processes, and hears of them.
#[derive(Debug)]
pub struct Notifier<Q> {
    pending: Arc<Pending>,
    database: Arc<Database<Q>>,
    wakes: Arc<Wakes>,
    /// The channel that processes tell each other on.
    channel: String,
    /// Everything that is listened to.
    channels: watch::Sender<Vec<String>>,
    /// The queues that others tell of on channels of their own. A lock, held for a look.
    told_by_others: Arc<Mutex<HashMap<String, QueueName>>>,
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

impl<Q: Send + Sync + 'static> Notifier<Q> {
    /// Begins to tell, on this channel.
    pub fn start(database: Arc<Database<Q>>, wakes: Arc<Wakes>, channel: String) -> Self {
        let pending = Arc::new(Pending::default());
        // A task, because senders must not wait for it.
        let telling = tokio::spawn(tell_others(database.clone(), channel.clone(), pending.clone())).abort_handle();
        Self {
            pending,
            database,
            wakes,
            channels: watch::Sender::new(vec![channel.clone()]),
            channel,
            told_by_others: Arc::default(),
            telling,
            listening: Mutex::default(),
            is_listening: AtomicBool::new(false),
        }
    }

    /// Something in these queues can be received.
    pub fn note(&self, queues: &[&QueueName]) {
        let mut pending = self.pending.queues.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues {
            if !pending.contains(*queue) {
                pending.insert((*queue).clone());
            }
        }
        drop(pending);
        self.pending.came.notify_one();
    }

    /// Hears of other processes from now on, and of these queues also what others tell on channels of their own.
    pub fn listen(&self, others: impl IntoIterator<Item = (String, QueueName)>) {
        let mut told_by_others = self.told_by_others.lock().unwrap_or_else(PoisonError::into_inner);
        for (channel, queue) in others {
            if told_by_others.insert(channel.clone(), queue).is_none() {
                self.channels.send_modify(|channels| channels.push(channel));
            }
        }
        drop(told_by_others);
        if self.is_listening.swap(true, Ordering::SeqCst) {
            return;
        }
        let (wakes, told_by_others) = (self.wakes.clone(), self.told_by_others.clone());
        let heard = move |heard: Heard<'_>| match heard {
            Heard::Anything => wakes.tell_all(),
            Heard::Told { channel, payload } => {
                let of_others = told_by_others.lock().unwrap_or_else(PoisonError::into_inner).get(channel).cloned();
                if let Some(queue) = of_others.or_else(|| QueueName::for_reading(payload).ok()) {
                    wakes.tell([&queue]);
                }
            }
        };
        let task = tokio::spawn(listen(self.database.clone(), self.channels.subscribe(), heard));
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    }

    /// Tells at once what has not been told.
    pub async fn flush(&self, deadline: Deadline) {
        tell(&self.database, &self.channel, self.pending.take(), deadline).await;
    }
}

impl<Q> Drop for Notifier<Q> {
    fn drop(&mut self) {
        self.telling.abort();
        if let Some(listening) = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take() {
            listening.abort();
        }
    }
}

async fn tell_others<Q>(database: Arc<Database<Q>>, channel: String, pending: Arc<Pending>) {
    loop {
        pending.came.notified().await;
        tell(&database, &channel, pending.take(), Deadline::default()).await;
        tokio::time::sleep(DEBOUNCE).await;
    }
}

async fn tell<Q>(database: &Database<Q>, channel: &str, queues: HashSet<QueueName>, deadline: Deadline) {
    if queues.is_empty() {
        return;
    }
    let names: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
    let Ok(mut session) = database.session("notify", deadline).await else { return };
    let step = Step::new(include_str!("../sql/notify.sql"), [&channel as _, &names as _]);
    // Whoever waits looks by themselves when no hint comes.
    if let Err(error) = session.run(&[step]).await {
        tracing::debug!(?error, "a wake-up was not sent");
    }
}
