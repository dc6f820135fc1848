use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::coalescer::{BatchFailure, ExtendRow, SendRow};
use postrider_core::{
    Capabilities, DeadLetters, Message, QueueAdmin, QueueStats, ReceiptHandle, ReceiveOptions, Redrive, RowResults,
    Settlement, WakeUps,
};

use postrider_provider::{Claimed, Patience, Provider};

use super::*;
use crate::contract::Connection;

/// A broker in memory that has dead letters only. Held messages are hidden from other holds.
#[derive(Debug, Clone)]
struct Fake {
    capabilities: Arc<Capabilities>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    dead: Vec<Stored>,
    revived: Vec<Stored>,
    holds: usize,
    takes: usize,
    /// Rejects redriven messages at once.
    rejects: bool,
    /// Number of messages that die during each take.
    dying: usize,
}

#[derive(Debug)]
struct FakeHold {
    fake: Fake,
    held: HashMap<u64, Stored>,
}

impl Fake {
    fn new() -> (Self, Provider<Connection<Self>>) {
        let fake = Self { capabilities: Arc::new(Capabilities::native("fake")), state: Arc::default() };
        (fake.clone(), Provider::new(Connection::new(fake)).unwrap())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn add_dead_letters(&self, count: usize) -> Vec<MessageId> {
        let letters: Vec<_> = (0..count).map(|n| letter(n as i64)).collect();
        let ids = ids(&letters).into_iter().collect();
        self.state().dead.extend(letters);
        ids
    }
}

fn letter(at: i64) -> Stored {
    let at = Timestamp::from_micros(at);
    Stored::new(&Message::new("x"), at).buried(&DeadLetterReason::REJECTED, None, at)
}

impl Hold for FakeHold {
    async fn take(&mut self, count: usize) -> Result<Vec<Held>, MessagingError> {
        // Lets other tasks run.
        tokio::task::yield_now().await;
        let mut state = self.fake.state();
        state.takes += 1;
        assert!(state.takes < 100, "it has no end");
        let now = Timestamp::now().saturating_add(Duration::from_micros(1));
        for _ in 0..state.dying {
            state.dead.push(letter(now.as_micros()));
        }
        let count = count.min(state.dead.len());
        let taken: Vec<_> = state.dead.drain(..count).collect();
        drop(state);
        let hold = |stored: Stored| {
            let place = self.held.len() as u64;
            self.held.insert(place, stored.clone());
            Held { stored, place }
        };
        Ok(taken.into_iter().map(hold).collect())
    }

    async fn remove(&mut self, places: &[u64]) -> Result<(), MessagingError> {
        for place in places {
            // The entry stays, so that its number is not used again.
            let gone = self.held.get_mut(place).unwrap();
            gone.deliveries = u32::MAX;
        }
        Ok(())
    }

    async fn move_to(&mut self, _: &QueueName, moved: Vec<(u64, Stored)>) -> Result<RowResults<()>, MessagingError> {
        let (places, copies): (Vec<_>, Vec<_>) = moved.into_iter().unzip();
        self.remove(&places).await?;
        let mut state = self.fake.state();
        if state.rejects {
            let reject = |stored: Stored| stored.buried(&DeadLetterReason::REJECTED, None, Timestamp::now());
            state.dead.extend(copies.iter().cloned().map(reject));
        }
        state.revived.extend(copies);
        Ok(places.iter().map(|_| Ok(())).collect())
    }

    async fn put_back(self) -> Result<(), MessagingError> {
        let left = self.held.into_values().filter(|stored| stored.deliveries != u32::MAX);
        self.fake.state.lock().unwrap().dead.extend(left);
        Ok(())
    }
}

impl Broker for Fake {
    const PROVIDER: &'static str = "fake";

    type Hold = FakeHold;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn creates_queues(&self) -> bool {
        true
    }

    fn health_check(&self, _: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send {
        ready(Ok(()))
    }

    fn ensure_queue(&self, _: &QueueName, _: Deadline) -> impl Future<Output = Result<(), MessagingError>> + Send {
        ready(Ok(()))
    }

    async fn send(&self, _: &[SendRow]) -> Result<RowResults<MessageId>, BatchFailure> {
        unreachable!()
    }

    async fn settle(&self, _: &[Settlement]) -> Result<RowResults<()>, BatchFailure> {
        unreachable!()
    }

    async fn extend(&self, _: &[ExtendRow]) -> Result<RowResults<ReceiptHandle>, BatchFailure> {
        unreachable!()
    }

    async fn give_up(&self, _: &[ReceiptHandle]) -> Result<(), MessagingError> {
        unreachable!()
    }

    async fn receive(
        &self,
        _: &QueueName,
        _: &ReceiveOptions,
        _: Deadline,
        _: Patience,
    ) -> Result<Vec<Claimed>, MessagingError> {
        unreachable!()
    }

    async fn wake_ups(&self, _: &QueueName, _: Deadline) -> Result<WakeUps, MessagingError> {
        unreachable!()
    }

    async fn list_queues(&self, _: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        unreachable!()
    }

    async fn is_usable(&self, _: &QueueName, _: Deadline) -> Result<Option<Result<(), String>>, MessagingError> {
        Ok(Some(Ok(())))
    }

    async fn stats(&self, _: &QueueName, _: Deadline) -> Result<QueueStats, MessagingError> {
        unreachable!()
    }

    async fn set_paused(&self, _: &QueueName, _: bool, _: Deadline) -> Result<(), MessagingError> {
        unreachable!()
    }

    async fn purge(&self, _: &QueueName, _: Deadline) -> Result<u64, MessagingError> {
        unreachable!()
    }

    async fn delete_queue(&self, _: &QueueName, _: Deadline) -> Result<(), MessagingError> {
        unreachable!()
    }

    async fn hold(&self, _: &QueueName, _: Deadline) -> Result<FakeHold, MessagingError> {
        self.state().holds += 1;
        Ok(FakeHold { fake: self.clone(), held: HashMap::new() })
    }

    fn leased(&self, _: &QueueName) -> Vec<Stored> {
        Vec::new()
    }

    async fn close(&self, _: Deadline) -> Result<(), MessagingError> {
        Ok(())
    }
}

fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

fn soon() -> Deadline {
    Deadline::default()
}

#[tokio::test]
async fn reads_of_one_queue_wait_for_each_other() {
    let (fake, provider) = Fake::new();
    fake.add_dead_letters(3 * CHUNK);
    let query = DeadLetterQuery { limit: usize::MAX, ..DeadLetterQuery::default() };
    let (queue, dead) = (queue(), queue().dead_letters());
    let (first, second, peeked) = tokio::join!(
        provider.list_dead_letters(&queue, &query, soon()),
        provider.list_dead_letters(&queue, &query, soon()),
        provider.peek(&dead, usize::MAX, soon())
    );
    assert_eq!((first.unwrap().letters.len(), second.unwrap().letters.len()), (3 * CHUNK, 3 * CHUNK));
    assert_eq!(peeked.unwrap().len(), 3 * CHUNK);
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_for_another_no_longer_than_its_deadline() {
    let (fake, provider) = Fake::new();
    let _guard = provider.store().lock_hold(&queue().dead_letters(), soon()).await.unwrap();
    let second = Deadline::after(Duration::from_secs(1));
    provider.list_dead_letters(&queue(), &DeadLetterQuery::default(), second).await.unwrap_err();
    assert_eq!(fake.state().holds, 0);
    assert!(
        provider
            .list_dead_letters(&QueueName::new("other").unwrap(), &DeadLetterQuery::default(), soon())
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_dead_letter_that_a_crash_left_twice_is_redriven_once_beside_a_consumer_that_rejects() {
    let (fake, provider) = Fake::new();
    let twice = letter(1);
    let ids: HashSet<_> = fake.add_dead_letters(2 * CHUNK).into_iter().chain([twice.id]).collect();
    {
        let mut state = fake.state();
        state.dead.insert(0, twice.clone());
        state.dead.push(twice.clone());
        state.rejects = true;
    }
    let dry = Redrive { dry_run: true, ..Redrive::default() };
    for redrive in [dry, Redrive::default()] {
        let report = provider.redrive_dead_letters(&queue(), &redrive, soon()).await.unwrap();
        assert_eq!((report.redriven.len(), report.redriven.into_iter().collect()), (ids.len(), ids.clone()));
    }
    let redriven = || fake.state().revived.iter().filter(|stored| stored.id == twice.id).count();
    assert_eq!(redriven(), 1);
    assert_eq!(fake.state().revived.len(), ids.len());
    assert_eq!(fake.state().dead.len(), ids.len(), "the copy is gone, and each message has died again");
    // Selected by id, the message that was rejected meanwhile is left alone as well.
    let wanted = vec![twice.id, MessageId::generate()];
    let redrive = Redrive { selection: DeadLetterSelection::Ids(wanted), ..Redrive::default() };
    let report = provider.redrive_dead_letters(&queue(), &redrive, soon()).await.unwrap();
    assert_eq!((report.redriven, redriven()), (vec![twice.id], 2));
}

#[tokio::test]
async fn a_dead_letter_that_a_crash_left_twice_is_counted_once_and_shows_the_later_edit() {
    for is_first in [true, false] {
        let (fake, provider) = Fake::new();
        let old = letter(1);
        let edit = DeadLetterEdit { body: Some("edited".into()), ..DeadLetterEdit::default() };
        let new = old.clone().edited(&edit, &Limits::default()).unwrap();
        fake.state().dead.extend(if is_first { [new.clone(), old] } else { [old, new.clone()] });
        let page = provider.list_dead_letters(&queue(), &DeadLetterQuery::default(), soon()).await.unwrap();
        assert_eq!(
            page.letters.iter().map(|letter| (letter.revision, &letter.body)).collect::<Vec<_>>(),
            [(1, &new.body)]
        );
        let before = fake.state().dead.clone();
        assert_eq!(provider.purge_dead_letters(&queue(), &DeadLetterSelection::All, soon()).await.unwrap(), 1);
        assert!(fake.state().dead.is_empty());
        fake.state().dead = before;
        provider.redrive_dead_letters(&queue(), &Redrive::default(), soon()).await.unwrap();
        assert_eq!(fake.state().revived.iter().map(|stored| &stored.body).collect::<Vec<_>>(), [&new.body]);
    }
}

#[tokio::test]
async fn every_dead_letter_is_found_in_one_hold_which_ends_with_the_last_wanted() {
    let (fake, provider) = Fake::new();
    let count = 4 * CHUNK;
    fake.add_dead_letters(count);
    let first = fake.state().dead[0].id;
    let found = provider.find_dead_letters(&queue(), &DeadLetterSelection::All, None, soon()).await.unwrap();
    assert_eq!((found.len(), fake.state().holds), (count, 1));
    let one = DeadLetterSelection::Ids(vec![first, first]);
    let takes = || std::mem::take(&mut fake.state().takes);
    for step in 0..3 {
        // The order of a broker changes with each hold.
        fake.state().dead.sort_by_key(Stored::dead_at);
        takes();
        match step {
            0 => assert_eq!(provider.find_dead_letters(&queue(), &one, None, soon()).await.unwrap(), [first]),
            1 => {
                let redrive = Redrive { selection: one.clone(), dry_run: true, ..Redrive::default() };
                let report = provider.redrive_dead_letters(&queue(), &redrive, soon()).await.unwrap();
                assert_eq!(report.redriven, [first]);
            }
            _ => assert_eq!(provider.purge_dead_letters(&queue(), &one, soon()).await.unwrap(), 1),
        }
        assert_eq!(takes(), 1, "step {step}");
    }
}

#[tokio::test]
async fn messages_that_die_meanwhile_are_left_alone() {
    let (fake, provider) = Fake::new();
    let ids = fake.add_dead_letters(CHUNK);
    fake.state().dying = 1;
    let report = provider.redrive_dead_letters(&queue(), &Redrive::default(), soon()).await.unwrap();
    assert_eq!(
        (report.redriven.len(), report.redriven.into_iter().collect()),
        (ids.len(), ids.into_iter().collect::<HashSet<_>>())
    );
    let left = fake.state().dead.len();
    assert_eq!(provider.purge_dead_letters(&queue(), &DeadLetterSelection::All, soon()).await.unwrap(), left as u64);
}
