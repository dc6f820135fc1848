//! Messages that are held for a moment: received, looked at, moved or removed, and let go.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use postrider_broker::{Held, Hold, Stored};
use postrider_core::{MessagingError, QueueName, RowResults};
use tokio::time::Instant;

use crate::calls::{MOST_ROWS, Receive};
use crate::codec::Incoming;
use crate::error::Failure;
use crate::lease::{self, Fence};
use crate::names::Side;
use crate::store::SqsStore;
use crate::waiting::{seconds, whole};

/// For so long nobody else sees what is held. Who dies meanwhile holds it no longer.
const HELD: Duration = Duration::from_secs(60);

/// So often what is held is held for longer: early enough for a second try when the first fails.
const KEPT: Duration = Duration::from_secs(HELD.as_secs() / 3);

/// So many messages are taken before any is shown: SQS hands them out in no order, and this many are put into one.
const AT_ONCE: usize = 1000;

/// Messages of one queue that are held.
#[derive(Debug)]
pub struct SqsHold {
    store: SqsStore,
    queue: QueueName,
    sides: Vec<(Side, String)>,
    held: HashMap<u64, Place>,
    /// The places of all that was ever taken, by the side that it is on and SQS's id.
    seen: HashMap<(usize, String), u64>,
    /// Then what is held is to be held for longer.
    next_keep: Instant,
    /// What was taken and not shown yet.
    taken: VecDeque<Held>,
    /// Whether all that could be taken was.
    is_swept: bool,
    next: u64,
}

/// A place, SQS's receipt for it, and until when that may be sent.
type Receipt = (u64, (String, Fence));

/// Where a message that is held is.
#[derive(Debug)]
struct Place {
    side: usize,
    receipt: String,
    /// Until then it is held.
    ends: Instant,
}

impl SqsHold {
    pub(crate) async fn new(store: &SqsStore, queue: &QueueName) -> Result<Self, MessagingError> {
        let sides = store.shared.sides(queue).await?;
        Ok(Self {
            store: store.clone(),
            queue: queue.clone(),
            sides,
            held: HashMap::new(),
            seen: HashMap::new(),
            next_keep: Instant::now() + KEPT,
            taken: VecDeque::new(),
            is_swept: false,
            next: 0,
        })
    }

    async fn take_more(&mut self) -> Result<(), MessagingError> {
        let shared = self.store.shared.clone();
        let mut taken: Vec<Held> = Vec::new();
        for (number, (side, url)) in self.sides.clone().into_iter().enumerate() {
            let mut wait = 0;
            while taken.len() < AT_ONCE {
                self.keep().await;
                let receive = Receive { max: MOST_ROWS, visibility: seconds(HELD), wait };
                let (messages, asked) = match shared.calls.receive(&url, receive).await {
                    Ok(received) => received,
                    Err(Failure::Missing) => {
                        shared.urls.gone(&self.queue, side);
                        break;
                    }
                    Err(failure) => return Err(failure.into_error("look at messages", Some(&self.queue), Vec::new())),
                };
                let ends = Instant::now() + HELD - lease::margin(HELD, asked.elapsed(), whole(wait));
                let before = self.next;
                for message in messages {
                    let now = |_| shared.clock.now();
                    let name = message.message_id.clone().map(|id| (number, id));
                    let Some(incoming) = Incoming::read(message, &self.queue, side, now) else { continue };
                    let again = name.as_ref().and_then(|name| self.seen.get(name)).copied();
                    let place = again.unwrap_or(self.next);
                    self.held.insert(place, Place { side: number, receipt: incoming.receipt, ends });
                    if again.is_none() {
                        self.seen.extend(name.map(|name| (name, place)));
                        taken.push(Held { stored: incoming.stored, place });
                        self.next += 1;
                    }
                }
                // What was taken before is nothing new: a sweep that went on for it would have no end.
                let is_in_vain = self.next == before;
                if is_in_vain && wait > 0 {
                    break;
                }
                // A look without a wait asks only some of SQS's servers: one that brings nothing says nothing yet.
                wait = i32::from(is_in_vain);
            }
        }
        self.is_swept = taken.len() < AT_ONCE;
        let since = |held: &Held| held.stored.death.as_ref().map_or(held.stored.enqueued_at, |death| death.dead_at);
        taken.sort_by_key(since);
        self.taken.extend(taken);
        Ok(())
    }

    /// Holds what is held for longer, when it is time. What cannot be is let go by SQS, and may be met again.
    async fn keep(&mut self) {
        let now = Instant::now();
        if now < self.next_keep {
            return;
        }
        self.next_keep = now + KEPT;
        let soon = now + HELD - KEPT;
        let ending: Vec<_> = self.held.iter().filter(|(_, held)| held.ends < soon).map(|(place, _)| *place).collect();
        for (url, rows) in self.receipts(&ending) {
            let hidden = rows.iter().map(|(_, (receipt, fence))| (receipt.clone(), seconds(HELD), *fence)).collect();
            for ((place, _), answer) in rows.into_iter().zip(self.store.shared.calls.hide(&url, hidden).await) {
                match (answer, self.held.get_mut(&place)) {
                    (Ok(()), Some(held)) => held.ends = now + HELD,
                    (answer, _) => tracing::debug!(queue = %self.queue, ?answer, "a message is not held for longer"),
                }
            }
        }
    }

    /// The receipts of messages, by the side that they are on.
    fn receipts(&self, places: &[u64]) -> Vec<(String, Vec<Receipt>)> {
        let on = |side: usize| {
            let own = places.iter().filter_map(move |place| {
                let held = self.held.get(place)?;
                (held.side == side).then(|| (*place, (held.receipt.clone(), Fence::at(held.ends))))
            });
            own.collect::<Vec<_>>()
        };
        self.sides.iter().enumerate().map(|(number, (_, url))| (url.clone(), on(number))).collect()
    }

    async fn delete(&mut self, places: &[u64]) -> Vec<(u64, Result<(), MessagingError>)> {
        let mut results = Vec::new();
        for (url, rows) in self.receipts(places) {
            let (places, receipts): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            for (place, answer) in places.into_iter().zip(self.store.shared.calls.delete(&url, receipts).await) {
                if answer.is_ok() {
                    self.held.remove(&place);
                }
                let failed = |failure: Failure| failure.into_error("remove a message", Some(&self.queue), Vec::new());
                results.push((place, answer.map_err(failed)));
            }
        }
        results
    }
}

impl Hold for SqsHold {
    async fn take(&mut self, count: usize) -> Result<Vec<Held>, MessagingError> {
        self.keep().await;
        if self.taken.is_empty() && !self.is_swept {
            self.take_more().await?;
        }
        let count = count.min(self.taken.len());
        Ok(self.taken.drain(..count).collect())
    }

    async fn remove(&mut self, places: &[u64]) -> Result<(), MessagingError> {
        self.delete(places).await.into_iter().try_for_each(|(_, answer)| answer)
    }

    async fn move_to(
        &mut self,
        queue: &QueueName,
        moved: Vec<(u64, Stored)>,
    ) -> Result<RowResults<()>, MessagingError> {
        let (places, copies): (Vec<_>, Vec<_>) = moved.into_iter().unzip();
        let mut results = self.store.shared.store_copies(queue, &copies).await;
        let is_copied = |place: &u64| places.iter().position(|own| own == place);
        let copied: Vec<_> =
            places.iter().zip(&results).filter(|(_, copied)| copied.is_ok()).map(|(place, _)| *place).collect();
        for (place, answer) in self.delete(&copied).await {
            if let (Some(row), Err(error)) = (is_copied(&place), answer) {
                results[row] = Err(error);
            }
        }
        Ok(results)
    }

    async fn put_back(self) -> Result<(), MessagingError> {
        let mut places: Vec<_> = self.held.keys().copied().collect();
        places.sort_unstable();
        for (url, rows) in self.receipts(&places) {
            let hidden = rows.into_iter().map(|(_, (receipt, fence))| (receipt, 0, fence)).collect();
            for answer in self.store.shared.calls.hide(&url, hidden).await {
                match answer {
                    // What is gone, or another's, needs no letting go.
                    Ok(()) | Err(Failure::Stale(_) | Failure::Missing) => {}
                    Err(failure) => {
                        return Err(failure.into_error("let go of messages", Some(&self.queue), Vec::new()));
                    }
                }
            }
        }
        Ok(())
    }
}
