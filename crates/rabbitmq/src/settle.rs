//! How leases end: where a message is settled, retried and dead-lettered.
//!
//! The broker cannot write anything down on a message that it holds. So a message that is to come back changed is stored
//! once more, confirmed, and only then is the old one acknowledged: a crash between the two leaves a duplicate, never a
//! loss.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use postrider_core::coalescer::{BatchFailure, ExtendRow};
use postrider_core::{
    DEAD_LETTER_SUFFIX, Deadline, Disposition, MessagingError, Nack, NativeRef, ReceiptHandle, RowResults, Settlement,
    Timestamp,
};

use crate::PROVIDER;
use crate::broker::RabbitmqBroker;
use crate::feed::{Feed, see_again};
use crate::keyed::Place;
use crate::leases::{At, Lease};
use crate::link::ANSWER;
use crate::publish::Published;
use crate::send::{Target, accepted};
use crate::wire;

/// What is left to do with a message whose lease was taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It goes: it was handled, or its copy is stored.
    Remove,
    /// It goes back.
    GiveBack,
    /// It waits where it is, and then goes back: its key is held.
    Wait(std::time::Duration),
}

/// A row whose lease was taken out.
struct Open {
    row: usize,
    lease: Lease,
    ending: Ending,
}

impl RabbitmqBroker {
    /// Ends leases.
    pub(crate) async fn end_leases(&self, settlements: &[Settlement]) -> Result<RowResults<()>, BatchFailure> {
        let mut results: RowResults<()> = Vec::with_capacity(settlements.len());
        let (mut open, mut copies) = (Vec::new(), Vec::new());
        for (row, settlement) in settlements.iter().enumerate() {
            match self.open(row, settlement) {
                Ok((opened, copy)) => {
                    copies.extend(copy.map(|copy| (open.len(), copy)));
                    open.push(Some(opened));
                    results.push(Ok(()));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        self.store_copies(settlements, copies, &mut open, &mut results).await;
        let receipt = |row: usize| &settlements[row].receipt;
        self.finish(open.into_iter().flatten().collect(), receipt, &mut results).await;
        Ok(results)
    }

    /// Takes a lease out, and says what is to be done: the copy that is to be stored, and what becomes of the message.
    fn open(&self, row: usize, settlement: &Settlement) -> Result<(Open, Option<Target>), MessagingError> {
        let settlement = settlement.clone().checked(&self.known_capabilities().limits)?;
        let receipt = &settlement.receipt;
        self.check_receipt(receipt)?;
        if receipt.queue().holds_dead_letters()
            && matches!(settlement.disposition, Disposition::Nack(Nack::DeadLetter { .. }))
        {
            return Err(MessagingError::invalid(
                "disposition",
                format!("'{}' has no dead letters of its own; redrive the message or purge it", receipt.queue()),
            ));
        }
        let lease = self.leases().take(receipt).ok_or_else(|| receipt.expired())?;
        let (queue, stored) = (lease.queue.clone(), &lease.stored);
        let (ending, copy) = match &settlement.disposition {
            Disposition::Ack => (Ending::Remove, None),
            Disposition::Nack(Nack::Release) => (Ending::GiveBack, None),
            Disposition::Nack(Nack::DeadLetter { reason, error }) => {
                let letter = stored.clone().buried(reason, error.as_deref(), Timestamp::now());
                (Ending::Remove, Some((queue.dead_letters(), wire::fitted(letter))))
            }
            Disposition::Nack(Nack::Retry { after, error }) => match &lease.at {
                At::Feed { .. } => {
                    (Ending::Remove, Some((queue, wire::fitted(stored.clone().retried(*after, error.as_deref())))))
                }
                At::Partition(_) => {
                    // The broker counts from when it handed the message over.
                    let left = self.options().longest_hold().saturating_sub(lease.since.elapsed());
                    let longest = left.min(self.options().longest_wait_in_hand());
                    if *after > longest {
                        self.leases().put_back(receipt, lease);
                        return Err(MessagingError::invalid(
                            "retry delay",
                            format!(
                                "a message with a key waits in the worker's hand, for at most {} s now; retry sooner, \
                                 or dead-letter it and redrive it later",
                                longest.as_secs()
                            ),
                        ));
                    }
                    (Ending::Wait(*after), None)
                }
            },
        };
        Ok((Open { row, lease, ending }, copy))
    }

    /// Refuses a receipt that this connection did not issue: nobody else can settle on AMQP.
    fn check_receipt(&self, receipt: &ReceiptHandle) -> Result<(), MessagingError> {
        receipt.check_provider(PROVIDER)?;
        match receipt.native() {
            NativeRef::Row(instance) if *instance == self.instance() => Ok(()),
            _ => Err(MessagingError::invalid_receipt(format!(
                "it was received on another connection, and {}",
                crate::capabilities::NOT_PORTABLE
            ))),
        }
    }

    /// Stores the copies. A message whose copy was not stored stays leased.
    async fn store_copies(
        &self,
        settlements: &[Settlement],
        copies: Vec<(usize, Target)>,
        open: &mut [Option<Open>],
        results: &mut RowResults<()>,
    ) {
        if copies.is_empty() {
            return;
        }
        let (places, targets): (Vec<_>, Vec<_>) = copies.into_iter().unzip();
        let fates = match self.link().live(Deadline::after(ANSWER)).await {
            Ok(live) => self.store(&live, &targets).await,
            Err(error) => targets.iter().map(|_| Published::NotSent(error.clone())).collect(),
        };
        for ((place, fate), (queue, stored)) in places.into_iter().zip(fates).zip(&targets) {
            let Err(error) = accepted("settle", queue, stored.id, fate) else { continue };
            if let Some(Open { row, lease, .. }) = open[place].take() {
                self.leases().put_back(&settlements[row].receipt, lease);
                results[row] = Err(error);
            }
        }
    }

    /// Does with the messages what is left to do, channel by channel.
    async fn finish<'a>(
        &self,
        open: Vec<Open>,
        receipt: impl Fn(usize) -> &'a ReceiptHandle,
        results: &mut RowResults<()>,
    ) {
        let mut feeds: HashMap<usize, OnFeed> = HashMap::new();
        let mut places = Vec::new();
        for Open { row, lease, ending } in open {
            match lease.at {
                At::Feed { feed, tag } => {
                    let on_feed = feeds.entry(Arc::as_ptr(&feed).addr()).or_insert_with(|| OnFeed::new(feed));
                    on_feed.rows.push(row);
                    match ending {
                        Ending::Remove => on_feed.remove.push(tag),
                        Ending::GiveBack | Ending::Wait(_) => on_feed.give_back.push(tag),
                    }
                }
                At::Partition(place) => places.push((row, place, ending)),
            }
        }
        let feeds = join_all(feeds.into_values().map(OnFeed::settle));
        let places =
            join_all(places.into_iter().map(|(row, place, ending)| async move { (row, leave(place, ending).await) }));
        let (feeds, places) = tokio::join!(feeds, places);
        let places = places.into_iter().map(|(row, done)| (vec![row], done));
        for (rows, done) in feeds.into_iter().chain(places) {
            let Err(error) = done else { continue };
            for row in rows {
                results[row] = Err(MessagingError::OutcomeUnknown {
                    operation: "settle",
                    ids: vec![receipt(row).message_id()],
                    source: Some(Arc::new(error.clone())),
                });
            }
        }
    }

    /// Extends leases.
    pub(crate) fn extend_leases(&self, rows: &[ExtendRow]) -> RowResults<()> {
        let longest = self.options().longest_hold();
        let extend = |row: &ExtendRow| {
            self.check_receipt(&row.receipt)?;
            self.leases().extend(&row.receipt, row.extension, longest)
        };
        rows.iter().map(extend).collect()
    }

    /// Gives back what was leased and nobody will use.
    pub(crate) async fn give_back(&self, leases: Vec<Lease>) -> Result<(), MessagingError> {
        let open =
            leases.into_iter().filter(Lease::is_held).map(|lease| Open { row: 0, lease, ending: Ending::GiveBack });
        let open: Vec<_> = open.collect();
        let Some(first) = open.first() else { return Ok(()) };
        // The rows are all one: whatever fails, the messages go back when the connection ends.
        let receipt = ReceiptHandle::new(
            PROVIDER,
            first.lease.queue.clone(),
            first.lease.stored.id,
            postrider_core::LeaseToken(0),
            NativeRef::Row(self.instance()),
        );
        let mut results = vec![Ok(())];
        self.finish(open, |_| &receipt, &mut results).await;
        results.pop().unwrap_or(Ok(()))
    }
}

/// What is to be done on one channel.
struct OnFeed {
    feed: Arc<Feed>,
    rows: Vec<usize>,
    remove: Vec<u64>,
    give_back: Vec<u64>,
}

impl OnFeed {
    fn new(feed: Arc<Feed>) -> Self {
        Self { feed, rows: Vec::new(), remove: Vec::new(), give_back: Vec::new() }
    }

    async fn settle(self) -> (Vec<usize>, Result<(), MessagingError>) {
        let done = async {
            let returned = self.give_back.len();
            self.feed.ack(self.remove).await?;
            self.feed.give_back(self.give_back).await?;
            self.feed.catch_up().await?;
            match self.feed.queue().ends_with(DEAD_LETTER_SUFFIX) {
                true => see_again(returned, || async { self.feed.catch_up().await.map(Some) }).await,
                false => Ok(()),
            }
        };
        let done = done.await;
        (self.rows, done)
    }
}

/// Does with the first message of a partition what is left to do.
async fn leave(place: Place, ending: Ending) -> Result<(), MessagingError> {
    match ending {
        Ending::Remove => place.ack().await,
        Ending::GiveBack => place.give_back().await,
        Ending::Wait(after) if after.is_zero() => place.give_back().await,
        Ending::Wait(after) => {
            place.give_back_after(after);
            Ok(())
        }
    }
}
