//! Notifications between processes.
//!
//! A `NOTIFY` in every sender's transaction would make commits wait for each other: with sixteen senders it cost two
//! thirds of the rate. So there is at most one every five milliseconds, for all queues together. It goes with the next
//! send, which saves a round trip and an fsync; hints that no send takes are sent alone. A lost hint is covered by the
//! poll of every waiting receiver.
//!
//! A payload is `fresh`, or `late:` and a number of milliseconds, then a number that identifies the sending process,
//! and the queue. SQL functions send `since`, the time in microseconds at which their transaction began, and the queue:
//! such a transaction may end long after it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postrider_core::{Deadline, QueueName, Timestamp, spawn};
use postrider_sql::Wakes;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::connection::{Database, Step};
use crate::listener::{ListenerEvent, listen};

/// Sends payloads to a channel.
pub const NOTIFY: &str = include_str!("../sql/notify.sql");

/// Minimum interval of notifications.
const DEBOUNCE: Duration = Duration::from_millis(5);

/// Time for which a due notification waits for a send to take it.
const SEND_WAIT: Duration = Duration::from_millis(2);

/// How late a change became visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hint {
    /// At once.
    Fresh,
    /// Up to this long after its due time; claims may have skipped it.
    Late(Duration),
}

impl Hint {
    fn word(self) -> String {
        match self {
            Self::Fresh => "fresh".to_owned(),
            Self::Late(by) => format!("late:{}", by.as_millis() + 1),
        }
    }
}

/// What claims may have skipped, because it became visible after its due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// Messages due up to this long before the hint.
    For(Duration),
    /// Messages due at this time of the server or later.
    Since(Timestamp),
    /// Messages due at any time.
    Anything,
}

/// Called with a late hint: of this queue, or of any.
type OnLate = Arc<dyn Fn(Option<&QueueName>, Missed) + Send + Sync>;

/// Sends hints to other processes, and receives theirs.
pub struct Notifier<Q> {
    pending: Arc<Pending>,
    database: Arc<Database<Q>>,
    wakes: Arc<Wakes>,
    on_late: OnLate,
    /// The channel of this provider's processes.
    channel: String,
    /// Every channel listened to.
    channels: watch::Sender<Vec<String>>,
    /// Queues with channels of their own, by channel. Held for a lookup.
    queue_channels: Arc<Mutex<HashMap<String, QueueName>>>,
    sending: AbortHandle,
    /// Started by the first waiting receiver.
    listening: Mutex<Option<AbortHandle>>,
    is_listening: AtomicBool,
}

impl<Q> std::fmt::Debug for Notifier<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").field("channel", &self.channel).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Pending {
    // Held for a few insertions once a commit.
    state: Mutex<State>,
    added: Notify,
    /// Random number of this process, which skips its own hints.
    own: u32,
}

/// Hints that go with a transaction. If it fails, the hints of other transactions become pending again.
#[derive(Debug)]
pub struct HintBatch {
    payloads: Vec<String>,
    others: HashMap<QueueName, Hint>,
    pending: Arc<Pending>,
}

impl HintBatch {
    /// Returns the payloads to send.
    pub fn payloads(&self) -> &[String] {
        &self.payloads
    }

    /// Notes that the transaction was committed.
    pub fn committed(mut self) {
        self.others.clear();
    }
}

impl Drop for HintBatch {
    fn drop(&mut self) {
        if !self.others.is_empty() {
            self.pending.note(self.others.iter().map(|(queue, hint)| (queue, *hint)));
        }
    }
}

#[derive(Debug)]
struct State {
    queues: HashMap<QueueName, Hint>,
    /// When the next notification may be sent.
    next_at: Instant,
}

impl Pending {
    fn new(own: u32) -> Self {
        let state = State { queues: HashMap::new(), next_at: Instant::now() };
        Self { state: Mutex::new(state), added: Notify::new(), own }
    }

    fn take(&self) -> Vec<String> {
        let mut state = self.lock();
        state.next_at = Instant::now() + DEBOUNCE;
        std::mem::take(&mut state.queues).iter().map(|(queue, hint)| self.payload(queue, *hint)).collect()
    }

    fn note<'q>(&self, hints: impl Iterator<Item = (&'q QueueName, Hint)>) {
        let mut state = self.lock();
        for (queue, hint) in hints {
            match state.queues.get_mut(queue) {
                Some(known) => *known = hint.max(*known),
                None => drop(state.queues.insert(queue.clone(), hint)),
            }
        }
        drop(state);
        self.added.notify_one();
    }

    fn take_hints<'q>(self: &Arc<Self>, queues: impl Iterator<Item = &'q QueueName>) -> Option<HintBatch> {
        let mut state = self.lock();
        let now = Instant::now();
        if now < state.next_at {
            return None;
        }
        state.next_at = now + DEBOUNCE;
        let others = std::mem::take(&mut state.queues);
        drop(state);
        let own = queues.filter(|queue| !others.contains_key(*queue)).map(|queue| (queue, Hint::Fresh));
        let all = own.chain(others.iter().map(|(queue, hint)| (queue, *hint)));
        Some(HintBatch {
            payloads: all.map(|(queue, hint)| self.payload(queue, hint)).collect(),
            others,
            pending: self.clone(),
        })
    }

    /// Returns when pending hints are sent alone, unless a send takes them before.
    fn send_at(&self) -> Option<Instant> {
        let state = self.lock();
        (!state.queues.is_empty()).then(|| state.next_at + SEND_WAIT)
    }

    fn payload(&self, queue: &QueueName, hint: Hint) -> String {
        format!("{} {:08x} {queue}", hint.word(), self.own)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q: Send + Sync + 'static> Notifier<Q> {
    /// Starts to send hints on a channel. `on_late` is called before a late hint wakes receivers.
    pub fn start(
        database: Arc<Database<Q>>,
        wakes: Arc<Wakes>,
        channel: String,
        on_late: impl Fn(Option<&QueueName>, Missed) + Send + Sync + 'static,
    ) -> Self {
        let pending = Arc::new(Pending::new(rand::random()));
        // A separate task, so that senders do not wait for it.
        let sending = spawn(send_pending(database.clone(), channel.clone(), pending.clone())).abort_handle();
        Self {
            pending,
            database,
            wakes,
            on_late: Arc::new(on_late),
            channels: watch::Sender::new(vec![channel.clone()]),
            channel,
            queue_channels: Arc::default(),
            sending,
            listening: Mutex::default(),
            is_listening: AtomicBool::new(false),
        }
    }

    /// Notes that messages of these queues can be claimed.
    pub fn note(&self, queues: &[&QueueName], hint: Hint) {
        self.pending.note(queues.iter().map(|queue| (*queue, hint)));
    }

    /// Returns the hints for a transaction that is about to begin, if a notification is due: those of these queues and
    /// all pending ones.
    pub fn take_hints<'q>(&self, queues: impl Iterator<Item = &'q QueueName>) -> Option<HintBatch> {
        self.pending.take_hints(queues)
    }

    /// Listens for hints of other processes, and to these channels of queues.
    pub fn listen(&self, others: impl IntoIterator<Item = (String, QueueName)>) {
        let mut queue_channels = self.queue_channels.lock().unwrap_or_else(PoisonError::into_inner);
        for (channel, queue) in others {
            if queue_channels.insert(channel.clone(), queue).is_none() {
                self.channels.send_modify(|channels| channels.push(channel));
            }
        }
        drop(queue_channels);
        if self.is_listening.swap(true, Ordering::SeqCst) {
            return;
        }
        let (wakes, queue_channels) = (self.wakes.clone(), self.queue_channels.clone());
        let (on_late, own) = (self.on_late.clone(), self.pending.own);
        let on_event = move |event: ListenerEvent<'_>| match event {
            ListenerEvent::Connected => {
                on_late(None, Missed::Anything);
                wakes.tell_all();
            }
            ListenerEvent::Notification { channel, payload } => {
                let own_channel = queue_channels.lock().unwrap_or_else(PoisonError::into_inner).get(channel).cloned();
                let hint = own_channel.map(|queue| (queue, Some(Missed::Anything))).or_else(|| read(payload, own));
                if let Some((queue, missed)) = hint {
                    if let Some(missed) = missed {
                        on_late(Some(&queue), missed);
                    }
                    wakes.tell([&queue]);
                }
            }
        };
        let task = spawn(listen(self.database.clone(), self.channels.subscribe(), on_event));
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    }

    /// Sends pending hints now.
    pub async fn flush(&self, deadline: Deadline) {
        notify(&self.database, &self.channel, self.pending.take(), deadline).await;
    }
}

/// Reads a payload: the queue, and what may have been skipped in it. `None` for this process's own hint.
fn read(payload: &str, own: u32) -> Option<(QueueName, Option<Missed>)> {
    let words: Vec<&str> = payload.split(' ').collect();
    let (missed, queue) = match words[..] {
        [queue] => (Some(Missed::Anything), queue),
        ["since", micros, queue] => (
            Some(micros.parse().map_or(Missed::Anything, |micros| Missed::Since(Timestamp::from_micros(micros)))),
            queue,
        ),
        [_, sender, _] if sender == format!("{own:08x}") => return None,
        ["fresh", _, queue] => (None, queue),
        [word, _, queue] => {
            let by = word.strip_prefix("late:").and_then(|millis| millis.parse().ok());
            (Some(by.map_or(Missed::Anything, |millis| Missed::For(Duration::from_millis(millis)))), queue)
        }
        _ => return None,
    };
    Some((QueueName::for_reading(queue).ok()?, missed))
}

impl<Q> Drop for Notifier<Q> {
    fn drop(&mut self) {
        self.sending.abort();
        if let Some(listening) = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take() {
            listening.abort();
        }
    }
}

async fn send_pending<Q>(database: Arc<Database<Q>>, channel: String, pending: Arc<Pending>) {
    loop {
        pending.added.notified().await;
        while let Some(send_at) = pending.send_at() {
            if send_at <= Instant::now() {
                notify(&database, &channel, pending.take(), Deadline::default()).await;
                break;
            }
            tokio::time::sleep_until(send_at).await;
        }
    }
}

async fn notify<Q>(database: &Database<Q>, channel: &str, payloads: Vec<String>, deadline: Deadline) {
    if payloads.is_empty() {
        return;
    }
    let Ok(mut session) = database.session("notify", deadline).await else { return };
    let step = Step::new(NOTIFY, [&channel as _, &payloads as _]);
    // Without the hint, waiting receivers poll.
    if let Err(error) = session.run(&[step]).await {
        tracing::debug!(?error, "cannot send a wake-up");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_back_and_an_unknown_one_may_mean_anything() {
        let (queue, pending) = (QueueName::new("orders").unwrap(), Pending::new(7));
        let late = Missed::For(Duration::from_millis(351));
        for (hint, missed) in [(Hint::Fresh, None), (Hint::Late(Duration::from_micros(350_400)), Some(late))] {
            assert_eq!(read(&pending.payload(&queue, hint), 8), Some((queue.clone(), missed)));
            assert_eq!(read(&pending.payload(&queue, hint), 7), None, "it is this process's own");
        }
        let since = Missed::Since(Timestamp::from_micros(1_700_000_000_000_000));
        assert_eq!(read("since 1700000000000000 orders", 7), Some((queue.clone(), Some(since))));
        for unknown in ["orders", "soon 00000008 orders", "late:long 00000008 orders", "since ever orders"] {
            assert_eq!(read(unknown, 7), Some((queue.clone(), Some(Missed::Anything))), "{unknown}");
        }
        assert_eq!(read("no queue", 7), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pending_hints_go_with_the_next_send_and_are_pending_again_when_it_fails() {
        let pending = Arc::new(Pending::new(7));
        let [orders, bills] = ["orders", "bills"].map(|name| QueueName::new(name).unwrap());
        let read_all = |hints: &HintBatch| {
            let mut hints: Vec<_> = hints.payloads().iter().filter_map(|payload| read(payload, 8)).collect();
            hints.sort_by_key(|(queue, _)| queue.clone());
            hints
        };
        let late = Hint::Late(Duration::from_millis(99));
        let alone = pending.take_hints([&orders].into_iter()).unwrap();
        assert_eq!(read_all(&alone), [(orders.clone(), None)]);
        alone.committed();
        assert_eq!(pending.send_at(), None);
        pending.note([(&orders, late), (&bills, Hint::Fresh)].into_iter());
        assert!(pending.take_hints([&orders].into_iter()).is_none(), "the interval has not passed");
        tokio::time::advance(DEBOUNCE).await;
        assert_eq!(pending.send_at(), Some(Instant::now() + SEND_WAIT));
        let both = [(bills.clone(), None), (orders.clone(), Some(Missed::For(Duration::from_millis(100))))];
        let failed = pending.take_hints([&orders].into_iter()).unwrap();
        assert_eq!(read_all(&failed), both);
        assert_eq!(pending.send_at(), None, "it goes with the transaction");
        drop(failed);
        tokio::time::advance(DEBOUNCE).await;
        let taken = pending.take_hints([&bills].into_iter()).unwrap();
        assert_eq!(read_all(&taken), both);
        taken.committed();
        assert_eq!(pending.send_at(), None);
    }
}
