//! How processes tell each other that there is something to receive.
//!
//! A `NOTIFY` in every sender's transaction would make commits wait for each other: with sixteen senders it took two
//! thirds of the rate. So there is one every five milliseconds at most, for all queues together. When it is time for one,
//! it rides with the next send, which saves its own round trip and fsync; what no send takes along is told apart. A hint
//! that is lost is made up for by the look that every waiting receiver takes now and then.
//!
//! A payload is `fresh`, or `late:` and by how many milliseconds, then a number that the sender knows itself by, and the
//! queue. SQL functions tell `since`, the time at which their transaction began in microseconds, and the queue: they may
//! end long after it.

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
use crate::listener::{Heard, listen};

/// Tells queues to those who listen on a channel.
pub const NOTIFY: &str = include_str!("../sql/notify.sql");

/// How long after one notification the next may follow.
const DEBOUNCE: Duration = Duration::from_millis(5);

/// How much longer one waits for a send to ride with.
const STOP: Duration = Duration::from_millis(2);

/// What there is to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hint {
    /// It has been due for a moment.
    Fresh,
    /// It may have been due for that long, and claims may have gone past it.
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

/// What claims may have gone past, because it could be seen only after it was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// It was due no longer ago than that when it was told.
    For(Duration),
    /// It was due at this time of the server, or later.
    Since(Timestamp),
    /// It may have been due at any time.
    Anything,
}

/// Hears of what came late: in this queue, or anywhere.
type OnLate = Arc<dyn Fn(Option<&QueueName>, Missed) + Send + Sync>;

/// Tells other processes, and hears of them.
pub struct Notifier<Q> {
    pending: Arc<Pending>,
    database: Arc<Database<Q>>,
    wakes: Arc<Wakes>,
    on_late: OnLate,
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

impl<Q> std::fmt::Debug for Notifier<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").field("channel", &self.channel).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Pending {
    // A lock, held for a few insertions once a commit.
    state: Mutex<State>,
    came: Notify,
    /// Chance; what this process says need not be heard by it.
    own: u32,
}

/// What goes with a transaction. Of a transaction that has failed nobody has heard: what it took along waits again.
#[derive(Debug)]
pub struct Ride {
    payloads: Vec<String>,
    others: HashMap<QueueName, Hint>,
    pending: Arc<Pending>,
}

impl Ride {
    /// What is to be told.
    pub fn payloads(&self) -> &[String] {
        &self.payloads
    }

    /// The transaction was committed.
    pub fn arrived(mut self) {
        self.others.clear();
    }
}

impl Drop for Ride {
    fn drop(&mut self) {
        if !self.others.is_empty() {
            self.pending.note(self.others.iter().map(|(queue, hint)| (queue, *hint)));
        }
    }
}

#[derive(Debug)]
struct State {
    queues: HashMap<QueueName, Hint>,
    /// When the next notification may go.
    next_at: Instant,
}

impl Pending {
    fn new(own: u32) -> Self {
        let state = State { queues: HashMap::new(), next_at: Instant::now() };
        Self { state: Mutex::new(state), came: Notify::new(), own }
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
        self.came.notify_one();
    }

    fn ride<'q>(self: &Arc<Self>, queues: impl Iterator<Item = &'q QueueName>) -> Option<Ride> {
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
        Some(Ride {
            payloads: all.map(|(queue, hint)| self.payload(queue, hint)).collect(),
            others,
            pending: self.clone(),
        })
    }

    /// When what waits is to be told apart, unless a send takes it along before.
    fn leaves_at(&self) -> Option<Instant> {
        let state = self.lock();
        (!state.queues.is_empty()).then(|| state.next_at + STOP)
    }

    fn payload(&self, queue: &QueueName, hint: Hint) -> String {
        format!("{} {:08x} {queue}", hint.word(), self.own)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Q: Send + Sync + 'static> Notifier<Q> {
    /// Begins to tell, on this channel. `on_late` is called before anybody is woken by a hint of what came late.
    pub fn start(
        database: Arc<Database<Q>>,
        wakes: Arc<Wakes>,
        channel: String,
        on_late: impl Fn(Option<&QueueName>, Missed) + Send + Sync + 'static,
    ) -> Self {
        let pending = Arc::new(Pending::new(rand::random()));
        // A task, because senders must not wait for it.
        let telling = spawn(tell_others(database.clone(), channel.clone(), pending.clone())).abort_handle();
        Self {
            pending,
            database,
            wakes,
            on_late: Arc::new(on_late),
            channels: watch::Sender::new(vec![channel.clone()]),
            channel,
            told_by_others: Arc::default(),
            telling,
            listening: Mutex::default(),
            is_listening: AtomicBool::new(false),
        }
    }

    /// Something in these queues can be received.
    pub fn note(&self, queues: &[&QueueName], hint: Hint) {
        self.pending.note(queues.iter().map(|queue| (*queue, hint)));
    }

    /// What a transaction that is about to begin is to tell, when it is time for a notification: of these queues and of
    /// everything that waits to be told.
    pub fn ride<'q>(&self, queues: impl Iterator<Item = &'q QueueName>) -> Option<Ride> {
        self.pending.ride(queues)
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
        let (on_late, own) = (self.on_late.clone(), self.pending.own);
        let heard = move |heard: Heard<'_>| match heard {
            Heard::Anything => {
                on_late(None, Missed::Anything);
                wakes.tell_all();
            }
            Heard::Told { channel, payload } => {
                let of_others = told_by_others.lock().unwrap_or_else(PoisonError::into_inner).get(channel).cloned();
                let told = of_others.map(|queue| (queue, Some(Missed::Anything))).or_else(|| read(payload, own));
                if let Some((queue, missed)) = told {
                    if let Some(missed) = missed {
                        on_late(Some(&queue), missed);
                    }
                    wakes.tell([&queue]);
                }
            }
        };
        let task = spawn(listen(self.database.clone(), self.channels.subscribe(), heard));
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    }

    /// Tells at once what has not been told.
    pub async fn flush(&self, deadline: Deadline) {
        tell(&self.database, &self.channel, self.pending.take(), deadline).await;
    }
}

/// What a payload says, unless this process has said it: the queue, and what may have been missed in it.
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
        self.telling.abort();
        if let Some(listening) = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take() {
            listening.abort();
        }
    }
}

async fn tell_others<Q>(database: Arc<Database<Q>>, channel: String, pending: Arc<Pending>) {
    loop {
        pending.came.notified().await;
        while let Some(leaves_at) = pending.leaves_at() {
            if leaves_at <= Instant::now() {
                tell(&database, &channel, pending.take(), Deadline::default()).await;
                break;
            }
            tokio::time::sleep_until(leaves_at).await;
        }
    }
}

async fn tell<Q>(database: &Database<Q>, channel: &str, payloads: Vec<String>, deadline: Deadline) {
    if payloads.is_empty() {
        return;
    }
    let Ok(mut session) = database.session("notify", deadline).await else { return };
    let step = Step::new(NOTIFY, [&channel as _, &payloads as _]);
    // Whoever waits looks by themselves when no hint comes.
    if let Err(error) = session.run(&[step]).await {
        tracing::debug!(?error, "a wake-up was not sent");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_says_what_was_put_into_it_and_the_unknown_may_be_anything() {
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
    async fn what_waits_rides_with_the_next_send_and_waits_again_when_that_fails() {
        let pending = Arc::new(Pending::new(7));
        let [orders, bills] = ["orders", "bills"].map(|name| QueueName::new(name).unwrap());
        let told = |ride: &Ride| {
            let mut told: Vec<_> = ride.payloads().iter().filter_map(|payload| read(payload, 8)).collect();
            told.sort_by_key(|(queue, _)| queue.clone());
            told
        };
        let late = Hint::Late(Duration::from_millis(99));
        let alone = pending.ride([&orders].into_iter()).unwrap();
        assert_eq!(told(&alone), [(orders.clone(), None)]);
        alone.arrived();
        assert_eq!(pending.leaves_at(), None);
        pending.note([(&orders, late), (&bills, Hint::Fresh)].into_iter());
        assert!(pending.ride([&orders].into_iter()).is_none(), "there was one a moment ago");
        tokio::time::advance(DEBOUNCE).await;
        assert_eq!(pending.leaves_at(), Some(Instant::now() + STOP));
        let both = [(bills.clone(), None), (orders.clone(), Some(Missed::For(Duration::from_millis(100))))];
        let failed = pending.ride([&orders].into_iter()).unwrap();
        assert_eq!(told(&failed), both);
        assert_eq!(pending.leaves_at(), None, "it is on its way");
        drop(failed);
        tokio::time::advance(DEBOUNCE).await;
        let arrived = pending.ride([&bills].into_iter()).unwrap();
        assert_eq!(told(&arrived), both);
        arrived.arrived();
        assert_eq!(pending.leaves_at(), None);
    }
}
