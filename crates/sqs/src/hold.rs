//! Messages held for a moment, to be listed, moved or removed.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use postrider_broker::{Held, Hold, Stored};
use postrider_core::{MessagingError, QueueName, RowResults};
use tokio::time::Instant;

use crate::calls::{MAX_ROWS, Receive};
use crate::codec::Incoming;
use crate::delay::{from_seconds, seconds};
use crate::error::Failure;
use crate::lease::{self, Fence};
use crate::names::Side;
use crate::store::SqsStore;

/// Visibility of held messages. If this process dies, they reappear after it.
const HIDE_TIME: Duration = Duration::from_secs(60);

/// Visibility renewal interval: early enough for a second attempt when the first fails.
const RENEW_INTERVAL: Duration = Duration::from_secs(HIDE_TIME.as_secs() / 3);

/// Number of messages that are received and sorted before any is returned: SQS delivers in no order.
const SWEEP_SIZE: usize = 1000;

/// Held messages of one queue.
#[derive(Debug)]
pub struct SqsHold {
    store: SqsStore,
    queue: QueueName,
    sides: Vec<(Side, String)>,
    held: HashMap<u64, HeldMessage>,
    /// `Held::place` of every message that was ever taken, by the index of its side and SQS's id.
    seen: HashMap<(usize, String), u64>,
    /// Time of the next renewal.
    next_renewal: Instant,
    /// Taken and not returned yet.
    taken: VecDeque<Held>,
    /// Whether all messages that could be taken were.
    is_swept: bool,
    next: u64,
}

/// `Held::place`, SQS's receipt and its fence.
type PlaceReceipt = (u64, (String, Fence));

/// A held message.
#[derive(Debug)]
struct HeldMessage {
    side: usize,
    receipt: String,
    /// End of its visibility.
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
            next_renewal: Instant::now() + RENEW_INTERVAL,
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
            while taken.len() < SWEEP_SIZE {
                self.renew().await;
                let receive = Receive { max: MAX_ROWS, visibility: seconds(HIDE_TIME), wait };
                let (messages, asked) = match shared.calls.receive(&url, receive).await {
                    Ok(received) => received,
                    Err(Failure::Missing) => {
                        shared.urls.forget_deleted(&self.queue, side);
                        break;
                    }
                    Err(failure) => return Err(failure.into_error("receive messages", Some(&self.queue), Vec::new())),
                };
                let ends = Instant::now() + HIDE_TIME - lease::margin(HIDE_TIME, asked.elapsed(), from_seconds(wait));
                let before = self.next;
                for message in messages {
                    let now = |_| shared.clock.now();
                    let name = message.message_id.clone().map(|id| (number, id));
                    let Some(incoming) = Incoming::read(message, &self.queue, side, now) else { continue };
                    let again = name.as_ref().and_then(|name| self.seen.get(name)).copied();
                    let place = again.unwrap_or(self.next);
                    self.held.insert(place, HeldMessage { side: number, receipt: incoming.receipt, ends });
                    if again.is_none() {
                        self.seen.extend(name.map(|name| (name, place)));
                        taken.push(Held { stored: incoming.stored, place });
                        self.next += 1;
                    }
                }
                // Messages taken before do not count: otherwise the sweep would never end.
                let is_in_vain = self.next == before;
                if is_in_vain && wait > 0 {
                    break;
                }
                // A receive without a wait queries only some of SQS's servers, so an empty answer needs a second receive.
                wait = i32::from(is_in_vain);
            }
        }
        self.is_swept = taken.len() < SWEEP_SIZE;
        let since = |held: &Held| held.stored.death.as_ref().map_or(held.stored.enqueued_at, |death| death.dead_at);
        taken.sort_by_key(since);
        self.taken.extend(taken);
        Ok(())
    }

    /// Renews the visibility of held messages when it is time. A message that is not renewed reappears and may be received
    /// again.
    async fn renew(&mut self) {
        let now = Instant::now();
        if now < self.next_renewal {
            return;
        }
        self.next_renewal = now + RENEW_INTERVAL;
        let soon = now + HIDE_TIME - RENEW_INTERVAL;
        let ending: Vec<_> = self.held.iter().filter(|(_, held)| held.ends < soon).map(|(place, _)| *place).collect();
        for (url, rows) in self.receipts(&ending) {
            let hidden =
                rows.iter().map(|(_, (receipt, fence))| (receipt.clone(), seconds(HIDE_TIME), *fence)).collect();
            for ((place, _), answer) in rows.into_iter().zip(self.store.shared.calls.hide(&url, hidden).await) {
                match (answer, self.held.get_mut(&place)) {
                    (Ok(()), Some(held)) => held.ends = now + HIDE_TIME,
                    (answer, _) => {
                        tracing::debug!(queue = %self.queue, ?answer, "the visibility of a held message was not renewed")
                    }
                }
            }
        }
    }

    /// Returns the receipts of messages, by side.
    fn receipts(&self, places: &[u64]) -> Vec<(String, Vec<PlaceReceipt>)> {
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
        self.renew().await;
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
                    // Deleted, or received by another client: nothing to release.
                    Ok(()) | Err(Failure::Stale(_) | Failure::Missing) => {}
                    Err(failure) => {
                        return Err(failure.into_error("release messages", Some(&self.queue), Vec::new()));
                    }
                }
            }
        }
        Ok(())
    }
}
