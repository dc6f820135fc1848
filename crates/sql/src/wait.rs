//! Looks at a database and waits for changes, with at most one look for each change and each poll interval.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream;
use postrider_core::{Deadline, QueueName, ReceiveOptions, RowResults, Settlement, WakeUps};
use postrider_provider::{Claimed, Look, Looked, Undone, persist};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::store::{Due, SqlStore};
use crate::wakes::Listener;

/// First pause before the next look at a due message that other transactions have locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(10);

/// Upper bound of the chore rounds in one look.
const MAX_ROUNDS: usize = 5;

/// [`Store::listen`](postrider_provider::Store::listen) of a database.
pub fn listen<S: SqlStore>(store: &S, queues: &[QueueName]) -> Listener {
    store.hear(queues);
    store.wakes().listen(queues)
}

/// [`Store::look`](postrider_provider::Store::look) of a database: settles with the claim from the first queue.
pub async fn look<S: SqlStore>(store: &S, look: Look) -> Result<Looked, Undone> {
    let Look { settlements, queues, options, deadline, deliver, .. } = look;
    let mut looked = Looked::default();
    let mut settlements = Some(settlements);
    for queue in &queues {
        let wanted = options.max - looked.messages.len().min(options.max);
        if wanted == 0 {
            break;
        }
        let settlements = settlements.take().unwrap_or_default();
        let done = match settle_and_claim_one(store, &settlements, queue, wanted, &options, deadline).await {
            Ok(done) => done,
            // The results for other queues must reach the caller.
            Err(_) if !looked.messages.is_empty() || !looked.settled.is_empty() => break,
            Err(error) => return Err(error),
        };
        looked.settled.extend(done.settled);
        looked.messages.extend(done.messages.into_iter().map(|claimed| deliver.message(claimed)));
        looked.is_cut_short |= done.is_cut_short;
    }
    if let Some(settlements) = settlements.filter(|settlements| !settlements.is_empty()) {
        looked.settled = store.settle(&settlements).await?;
    }
    Ok(looked)
}

/// What was done on one queue.
#[derive(Default)]
struct Done {
    settled: RowResults<()>,
    messages: Vec<Claimed>,
    is_cut_short: bool,
}

/// Settles and claims from one queue in one transaction. Does the chores of the claim, and claims again as long as they
/// make messages receivable.
async fn settle_and_claim_one<S: SqlStore>(
    store: &S,
    settlements: &[Settlement],
    queue: &QueueName,
    wanted: usize,
    options: &ReceiveOptions,
    deadline: Deadline,
) -> Result<Done, Undone> {
    let mut done = Done::default();
    let begun = Instant::now();
    let mut taken = persist(|| store.settle_and_claim(settlements, queue, wanted, options, deadline)).await?;
    done.settled = std::mem::take(&mut taken.settled);
    for number in 1.. {
        done.messages.append(&mut taken.messages);
        let more = match store.do_chores(queue, taken.chores).await {
            Ok(more) => more,
            // The results so far must reach the caller.
            Err(_) if !settlements.is_empty() || !done.messages.is_empty() => break,
            Err(error) => return Err(error),
        };
        let left = wanted - done.messages.len().min(wanted);
        done.is_cut_short = more && left > 0 && number == MAX_ROUNDS;
        // A lease that expires meanwhile would be claimed again, and one answer would contain its message twice.
        let is_late = !done.messages.is_empty() && begun.elapsed() > options.visibility / 4;
        if !more || left == 0 || done.is_cut_short || is_late {
            break;
        }
        match persist(|| store.settle_and_claim(&[], queue, left, options, deadline)).await {
            Ok(next) => {
                taken = next;
                if !done.messages.is_empty() && begun.elapsed() > options.visibility {
                    // The earlier leases have expired, or will before their messages are handled. Their deliveries stay
                    // counted, like those of any expired lease.
                    let expired: Vec<_> = done.messages.drain(..).map(|claimed| claimed.receipt).collect();
                    if let Err(error) = store.give_up(&expired).await {
                        tracing::debug!(?error, "late leases were not given back; they will expire");
                    }
                }
            }
            Err(_) if !settlements.is_empty() || !done.messages.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    if !done.messages.is_empty() && options.visibility < store.poll_interval() {
        // Receivers in this process may be waiting for a time after the end of these leases.
        store.wakes().tell([queue]);
    }
    Ok(done)
}

/// [`Store::news`](postrider_provider::Store::news) of a database.
pub async fn news<S: SqlStore>(store: &S, listener: &Listener, queues: &[QueueName]) {
    let poll = store.poll_interval();
    loop {
        let (due, age) = match next_due(store, listener, queues).await {
            Ok((due, age)) => (Ok(due), age),
            Err(error) => (Err(error), Duration::ZERO),
        };
        let until_next = poll.saturating_sub(age);
        let pause = match due {
            Ok(Due::Now) => {
                // The message arrived after the claim, or another transaction has it locked.
                let failed_claims = listener.failed_claims.fetch_add(1, Ordering::Relaxed);
                let pause = failed_claims.checked_sub(1).map_or(Duration::ZERO, |n| LOCKED_PAUSE * 2u32.pow(n.min(10)));
                pause.min(poll)
            }
            Ok(Due::In(pause)) => {
                listener.failed_claims.store(0, Ordering::Relaxed);
                pause.min(until_next)
            }
            // The server is unavailable. The wait goes on; the next claim reports the error if it lasts.
            Err(_) => poll,
        };
        let is_woken = woken_within(listener, pause).await;
        // Before a later due time is believed, the queue is read again: another process may have taken the message.
        if is_woken || pause != until_next || matches!(due, Ok(Due::Now)) {
            return;
        }
    }
}

/// Waits for a wake-up of the listener; returns whether one came before the pause ended.
async fn woken_within(listener: &Listener, pause: Duration) -> bool {
    tokio::select! {
        biased;
        () = listener.called() => true,
        () = tokio::time::sleep(pause) => false,
    }
}

/// [`Store::wake_ups`](postrider_provider::Store::wake_ups) of a database.
pub fn wake_ups<S: SqlStore>(store: &S, queue: &QueueName, closing: watch::Receiver<bool>) -> WakeUps {
    let listener = listen(store, std::slice::from_ref(queue));
    let state = (store.clone(), queue.clone(), listener, closing);
    WakeUps::new(stream::unfold(state, |(store, queue, listener, mut closing)| async move {
        tokio::select! {
            biased;
            _ = closing.wait_for(|closed| *closed) => return None,
            () = hint(&store, &listener, &queue) => {}
        }
        Some(((), (store, queue, listener, closing)))
    }))
}

/// Waits until a message may have become receivable.
async fn hint<S: SqlStore>(store: &S, listener: &Listener, queue: &QueueName) {
    let poll = store.poll_interval();
    let queues = std::slice::from_ref(queue);
    loop {
        let (pause, until_next) = match next_due(store, listener, queues).await {
            // The caller of this hint has looked already; a hint for the same message would make it look for ever.
            Ok((Due::Now, _)) | Err(_) => (poll, poll),
            Ok((Due::In(pause), age)) => (pause.min(poll.saturating_sub(age)), poll.saturating_sub(age)),
        };
        let is_woken = woken_within(listener, pause).await;
        if is_woken || pause != until_next || matches!(next_due(store, listener, queues).await, Ok((Due::Now, _))) {
            return;
        }
    }
}

/// Hints for rows that a store keeps beside messages: one for each notification under one of these names, and one
/// whenever `pause` passes without any. They end when the connection closes.
pub fn hints<S: SqlStore>(
    store: &S,
    names: &[QueueName],
    pause: Option<Duration>,
    closing: watch::Receiver<bool>,
) -> WakeUps {
    // A timer of tokio reaches no further than about two years.
    let pause = pause.unwrap_or(Duration::from_secs(3600 * 24 * 365));
    let state = (listen(store, names), closing);
    WakeUps::new(stream::unfold(state, move |(listener, mut closing)| async move {
        tokio::select! {
            biased;
            _ = closing.wait_for(|closed| *closed) => return None,
            _ = woken_within(&listener, pause) => {}
        }
        Some(((), (listener, closing)))
    }))
}

/// When a message of any of these queues can be received, and how long ago that was read.
async fn next_due<S: SqlStore>(
    store: &S,
    listener: &Listener,
    queues: &[QueueName],
) -> Result<(Due, Duration), Undone> {
    let (mut earliest, mut oldest) = (Duration::MAX, Duration::ZERO);
    for queue in queues {
        match listener.due(queue, store.poll_interval(), || store.next_due(queue)).await? {
            (Due::Now, _) => return Ok((Due::Now, Duration::ZERO)),
            (Due::In(pause), age) => {
                earliest = earliest.min(pause);
                oldest = oldest.max(age);
            }
        }
    }
    Ok((Due::In(earliest), oldest))
}
