//! Costs of steps, counted in SQLite's virtual machine instructions: the same in every run on every machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postrider_core::{ArchivePolicy, Capabilities, Message, QueueName, ReceiveOptions, Timestamp};
use rusqlite::Connection;

use crate::session::{Rules, Session, WriterCache};
use crate::{PROVIDER, migrations};

pub(crate) const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// An in-memory database with the schema, and a counter of instructions.
pub(crate) struct Bench {
    pub(crate) connection: Connection,
    instructions: Arc<AtomicU64>,
    rules: Rules,
    cache: WriterCache,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let mut connection = Connection::open_in_memory().unwrap();
        for step in migrations::all() {
            connection.execute_batch(step.sql).unwrap();
        }
        let instructions = Arc::new(AtomicU64::new(0));
        let counter = instructions.clone();
        let count = move || {
            counter.fetch_add(1, Ordering::Relaxed);
            false
        };
        connection.progress_handler(1, Some(count)).unwrap();
        let rules = Rules {
            headroom: 0,
            capabilities: Capabilities::native(PROVIDER),
            create_queues: true,
            archive: ArchivePolicy::All,
            worker: "test".into(),
        };
        Self { connection, instructions, rules, cache: WriterCache::default() }
    }

    /// Inserts messages into a queue without counting.
    fn fill(&self, queue: &str, count: i64, due: Timestamp, lease: Option<i64>) {
        self.connection
            .execute(
                "with recursive n (n) as (select 1 union all select n + 1 from n where n < ?1) \
                 insert into message (queue, blocked, priority, next_attempt_at, state, lease_token, created_at, \
                                      message_id, headers, payload) \
                 select ?2, 0, n % 10, ?3, 'PENDING', ?4, 0, randomblob(16), '{}', x'00' from n",
                (count, queue, due.as_micros(), lease),
            )
            .unwrap();
    }

    pub(crate) fn cost<T>(&mut self, step: impl FnOnce(&mut Session<'_>) -> T) -> (u64, T) {
        let before = self.instructions.load(Ordering::Relaxed);
        let mut session = Session::new(&self.connection, &self.rules, &mut self.cache, NOW);
        let answer = step(&mut session);
        (self.instructions.load(Ordering::Relaxed) - before, answer)
    }

    /// The cost of claiming ten messages.
    fn claim_ten(&mut self, queue: &QueueName) -> u64 {
        let options = ReceiveOptions::batch(10).wait(Duration::from_secs(1));
        let (cost, claim) = self.cost(|session| session.claim(queue, &options).unwrap());
        assert_eq!(claim.messages.len(), 10);
        cost
    }
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub(crate) fn later() -> Timestamp {
    NOW.saturating_add(Duration::from_secs(3600))
}

#[test]
fn other_queues_and_messages_that_are_not_due_add_no_cost_to_a_claim() {
    let alone = {
        let mut bench = Bench::new();
        bench.fill("orders", 10, NOW, None);
        bench.claim_ten(&queue("orders"))
    };
    let mut bench = Bench::new();
    bench.fill("orders", 10, NOW, None);
    bench.fill("orders", 200_000, later(), None);
    bench.fill("orders", 20_000, later(), Some(7));
    bench.fill("others", 200_000, NOW, None);
    let crowded = bench.claim_ten(&queue("orders"));
    assert!(crowded <= alone + alone / 10, "{alone} instructions alone, {crowded} among other messages");
    let options = ReceiveOptions::batch(10).wait(Duration::from_secs(1));
    let (empty, claim) = bench.cost(|session| session.claim(&queue("orders"), &options).unwrap());
    assert!(claim.messages.is_empty());
    assert_eq!(claim.next, NOW.saturating_add(options.visibility), "when the ten leases end");
    assert!(empty < alone, "an empty claim takes {empty} instructions, ten messages take {alone}");
}

#[test]
fn a_claim_costs_the_same_whatever_the_number_of_due_messages() {
    let most = 1_000_000;
    let mut costs = Vec::new();
    for count in [1000, most] {
        let mut bench = Bench::new();
        bench.fill("orders", count, NOW, None);
        costs.push(bench.claim_ten(&queue("orders")));
    }
    assert!(costs[1] <= costs[0] + costs[0] / 10, "instructions for a thousand and for {most}: {costs:?}");
}

#[test]
fn a_key_with_many_messages_costs_no_more_than_a_key_with_few() {
    let cost_of_one = |length: usize| {
        let mut bench = Bench::new();
        let orders = queue("orders");
        bench.cost(|session| {
            for _ in 0..length {
                session.send(&orders, &Message::new("x").ordering_key("k").unwrap()).unwrap();
            }
        });
        let (cost, ()) = bench.cost(|session| {
            session.send(&orders, &Message::new("x").ordering_key("k").unwrap()).unwrap();
            let claim = session.claim(&orders, &ReceiveOptions::batch(10)).unwrap();
            assert_eq!(claim.messages.len(), 1, "the head of the key");
            let receipt = claim.messages.into_iter().next().unwrap().receipt;
            session.settle(&postrider_core::Settlement::ack(receipt)).unwrap();
        });
        cost
    };
    let (short, long) = (cost_of_one(10), cost_of_one(20_000));
    assert!(long <= short + short / 10, "{short} instructions with ten, {long} with twenty thousand");
}
