//! Settles and extensions. A statement changes nothing without the valid lease.
//!
//! Another transaction may have locked a row for any time, such as one that has called `pgmq.delete`. The statements
//! wait a moment, for transactions that are about to commit. Then the batch goes without the locked rows, which fail
//! with a retryable error.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use postgres_types::ToSql;
use postrider_core::coalescer::ExtendRow;
use postrider_core::{
    ArchivePolicy, Deadline, Disposition, MessagingError, Nack, QueueName, ReceiptHandle, RowResults, Settlement,
};
use postrider_pg::Step;
use postrider_pg::columns::{micros, positions};
use postrider_pg::tokio_postgres::Row;
use postrider_provider::{Others, Undone, past_others, persist};

use crate::Session;
use crate::lease::{Lease, Leases, by_queue};
use crate::sql::OfQueue;
use crate::store::Shared;

/// The statement that ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Complete,
    Retry,
    Release,
    DeadLetter,
    /// A dead letter cannot be dead-lettered; the statement only checks the lease.
    Refuse,
}

/// The rows of one statement.
#[derive(Debug)]
struct Group {
    sql: Arc<OfQueue>,
    name: String,
    is_live: bool,
    indexes: Vec<usize>,
    leases: Leases,
    ids: Vec<String>,
    delays: Vec<i64>,
    reasons: Vec<String>,
    errors: Vec<Option<String>>,
}

/// A batch of settlements, grouped by statement.
#[derive(Debug)]
pub(crate) struct Settling<'s> {
    results: Vec<Option<Result<(), MessagingError>>>,
    receipts: Vec<&'s ReceiptHandle>,
    /// By queue, kind, and worker in failed attempts, if it is not the connection's.
    groups: BTreeMap<(QueueName, Kind, Option<String>), Group>,
    archive: ArchivePolicy,
    worker: &'s str,
}

/// Returns what a disposition does with a lease.
fn meaning(disposition: Disposition, queue: &QueueName) -> (Kind, Duration, String, Option<String>) {
    let none = String::new;
    match disposition {
        Disposition::Ack => (Kind::Complete, Duration::ZERO, none(), None),
        Disposition::Nack(Nack::Retry { after, error }) => (Kind::Retry, after, none(), error),
        Disposition::Nack(Nack::Release) => (Kind::Release, Duration::ZERO, none(), None),
        Disposition::Nack(Nack::DeadLetter { .. }) if queue.holds_dead_letters() => {
            (Kind::Refuse, Duration::ZERO, none(), None)
        }
        Disposition::Nack(Nack::DeadLetter { reason, error }) => {
            (Kind::DeadLetter, Duration::ZERO, reason.as_str().to_owned(), error)
        }
    }
}

/// A batch of settlements, before it is grouped.
#[derive(Debug)]
struct Chosen<'s> {
    results: Vec<Option<Result<(), MessagingError>>>,
    receipts: Vec<&'s ReceiptHandle>,
    /// The settlements that are valid if their leases are, with their indexes, in the order of the rows.
    rows: Vec<(usize, Lease, Settlement)>,
}

impl<'s> Chosen<'s> {
    /// Creates the dead-letter queues that the statements need. Leases of missing queues have expired.
    async fn new(shared: &Shared, settlements: &'s [Settlement]) -> Result<Self, Undone> {
        let mut rows: Vec<(usize, Lease, Settlement)> = Vec::with_capacity(settlements.len());
        let mut results = Vec::with_capacity(settlements.len());
        let mut seen = HashSet::new();
        for (index, settlement) in settlements.iter().enumerate() {
            let checked = settlement.clone().checked(&shared.capabilities.limits);
            let ready = checked.and_then(|settlement| Ok((Lease::read(&settlement.receipt)?, settlement)));
            let ready = match ready {
                Ok(_) if !shared.exists(settlement.receipt.queue(), Deadline::default()).await? => {
                    Err(settlement.receipt.expired())
                }
                ready => ready,
            };
            results.push(match ready {
                // The first settlement ends the lease, or finds it ended; the second has none either way.
                Ok(_) if !seen.insert(&settlement.receipt) => Some(Err(settlement.receipt.expired())),
                Ok((lease, settlement)) => {
                    let queue = settlement.receipt.queue();
                    let is_end = matches!(settlement.disposition, Disposition::Nack(Nack::DeadLetter { .. }));
                    if is_end && !queue.holds_dead_letters() {
                        shared.ensure_dead_letters(queue).await?;
                    }
                    rows.push((index, lease, settlement));
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        rows.sort_by_key(|(_, lease, _)| lease.msg_id);
        Ok(Self { results, receipts: settlements.iter().map(|settlement| &settlement.receipt).collect(), rows })
    }

    /// Removes the settlements whose rows other transactions have locked.
    fn remove_locked(&mut self, busy: &HashSet<(QueueName, i64)>) {
        let results = &mut self.results;
        self.rows.retain(|(index, lease, settlement)| {
            let receipt = &settlement.receipt;
            let is_busy = busy.contains(&(receipt.queue().clone(), lease.msg_id));
            if is_busy {
                results[*index] = Some(Err(receipt.taken()));
            }
            !is_busy
        });
    }
}

impl<'s> Settling<'s> {
    pub(crate) async fn new(shared: &'s Shared, settlements: &'s [Settlement]) -> Result<Self, Undone> {
        Ok(Self::sorted(shared, Chosen::new(shared, settlements).await?))
    }

    fn sorted(shared: &'s Shared, chosen: Chosen<'s>) -> Self {
        let mut groups: BTreeMap<_, Group> = BTreeMap::new();
        for (index, lease, settlement) in chosen.rows {
            let queue = settlement.receipt.queue().clone();
            let (kind, delay, reason, error) = meaning(settlement.disposition, &queue);
            let worker = settlement.worker.filter(|_| matches!(kind, Kind::Retry | Kind::DeadLetter));
            let worker = worker.map(|name| name.to_string());
            let group = groups.entry((queue.clone(), kind, worker)).or_insert_with(|| Group {
                sql: shared.database.sql.of(&queue),
                name: queue.as_str().to_owned(),
                is_live: !queue.holds_dead_letters(),
                indexes: Vec::new(),
                leases: Leases::default(),
                ids: Vec::new(),
                delays: Vec::new(),
                reasons: Vec::new(),
                errors: Vec::new(),
            });
            group.indexes.push(index);
            group.leases.push(&lease);
            group.ids.push(settlement.receipt.message_id().to_string());
            group.delays.push(micros(delay));
            group.reasons.push(reason);
            group.errors.push(error);
        }
        Self {
            results: chosen.results,
            receipts: chosen.receipts,
            groups,
            archive: shared.options.archive,
            worker: &shared.worker,
        }
    }

    /// Returns the steps of one transaction.
    pub(crate) fn steps(&self) -> Vec<Step<'_>> {
        self.groups.iter().map(|((_, kind, worker), group)| self.step(*kind, worker.as_ref(), group)).collect()
    }

    fn step<'p>(&'p self, kind: Kind, worker: Option<&'p String>, group: &'p Group) -> Step<'p> {
        let sql = &group.sql;
        let text = match kind {
            Kind::Complete if self.archive == ArchivePolicy::All => &sql.archive,
            Kind::Complete => &sql.remove,
            Kind::Retry => &sql.retry,
            Kind::Release => &sql.release,
            Kind::DeadLetter => &sql.dead_letter,
            Kind::Refuse => &sql.held,
        };
        let step = lease_step(text, &group.leases);
        let worker: &(dyn ToSql + Sync) = match worker {
            Some(worker) => worker,
            None => &self.worker,
        };
        match kind {
            Kind::Complete => step.and([&group.name]),
            Kind::Release | Kind::Refuse => step,
            Kind::Retry => step.and([&group.delays, &group.errors, worker, &group.is_live]),
            Kind::DeadLetter => step.and([&group.ids, &group.reasons, &group.errors, &group.name, worker]),
        }
    }

    /// Returns the result of each settlement, and the queues that changed.
    pub(crate) fn finish(mut self, answers: &[Vec<Row>]) -> (RowResults<()>, Vec<QueueName>) {
        let mut touched = Vec::new();
        for (((queue, kind, _), group), rows) in self.groups.iter().zip(answers) {
            let [msg_id, is_keyed] = positions(rows, ["msg_id", "is_keyed"]);
            let done: HashSet<i64> = rows.iter().map(|row| row.get(msg_id)).collect();
            let keyed = rows.iter().any(|row| row.get::<_, bool>(is_keyed));
            for (index, msg_id) in group.indexes.iter().zip(&group.leases.msg_ids) {
                self.results[*index] = Some(match (done.contains(msg_id), kind) {
                    (false, _) => Err(self.receipts[*index].expired()),
                    (true, Kind::Refuse) => Err(MessagingError::invalid(
                        "disposition",
                        format!("'{queue}' has no dead letters of its own; redrive the message or purge it"),
                    )),
                    (true, _) => Ok(()),
                });
            }
            if keyed || matches!(kind, Kind::Retry | Kind::Release) {
                touched.push(queue.clone());
            }
            if *kind == Kind::DeadLetter {
                touched.push(queue.dead_letters());
            }
        }
        touched.dedup();
        let expired = |index: usize| Err(self.receipts[index].expired());
        let results = self.results.into_iter().enumerate();
        (results.map(|(index, result)| result.unwrap_or_else(|| expired(index))).collect(), touched)
    }
}

fn lease_step<'p>(sql: &'p str, leases: &'p Leases) -> Step<'p> {
    Step::new(sql, [&leases.msg_ids as _, &leases.read_cts as _, &leases.read_at as _, &leases.ends as _])
}

/// Locks the rows of valid leases. Returns the rows that other transactions have locked.
async fn lock_free<'r>(
    session: &Session<'_>,
    receipts: impl Iterator<Item = &'r ReceiptHandle>,
) -> Result<HashSet<(QueueName, i64)>, Undone> {
    let mut busy = HashSet::new();
    for (queue, leases) in by_queue(receipts) {
        let sql = session.sql().of(&queue);
        let taken = session.lock_free(&sql.lock_free, &lease_step(&sql.held, &leases)).await?;
        busy.extend(taken.into_iter().map(|msg_id| (queue.clone(), msg_id)));
    }
    Ok(busy)
}

/// Runs steps in one transaction, which is already open if rows were locked for it.
async fn run(session: &mut Session<'_>, steps: &[Step<'_>], others: Others) -> Result<Vec<Vec<Row>>, Undone> {
    if others == Others::WaitFor {
        return session.run(steps).await;
    }
    let mut answers = Vec::with_capacity(steps.len());
    for step in steps {
        answers.push(session.query(step.sql, &step.parameters).await?);
    }
    session.commit().await?;
    Ok(answers)
}

impl Shared {
    /// Settles leases.
    pub(crate) async fn settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        past_others(|others| self.settle_existing(settlements, others)).await
    }

    /// Settles the leases whose rows no other transaction has locked.
    pub(crate) async fn settle_free(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        persist(|| self.settle_existing(settlements, Others::PassBy)).await
    }

    async fn settle_existing(&self, settlements: &[Settlement], others: Others) -> Result<RowResults<()>, Undone> {
        let named = settlements.iter().map(|settlement| settlement.receipt.queue());
        self.again_without_missing(named, || self.try_settle(settlements, others)).await
    }

    async fn try_settle(&self, settlements: &[Settlement], others: Others) -> Result<RowResults<()>, Undone> {
        let mut chosen = Chosen::new(self, settlements).await?;
        let mut answers = Vec::new();
        let settling = if chosen.rows.is_empty() {
            Settling::sorted(self, chosen)
        } else {
            let mut session = self.database.session("settle", Deadline::default()).await?;
            if others == Others::PassBy {
                session.begin().await?;
                let receipts = chosen.rows.iter().map(|(.., settlement)| &settlement.receipt);
                let busy = lock_free(&session, receipts).await?;
                chosen.remove_locked(&busy);
            }
            let settling = Settling::sorted(self, chosen);
            answers = run(&mut session, &settling.steps(), others).await?;
            settling
        };
        let (results, touched) = settling.finish(&answers);
        self.touch(&touched);
        Ok(results)
    }

    /// Sets the ends of leases.
    pub(crate) async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<()>, Undone> {
        let named = || rows.iter().map(|row| row.receipt.queue());
        past_others(|others| self.again_without_missing(named(), move || self.try_extend(rows, others))).await
    }

    async fn try_extend(&self, rows: &[ExtendRow], others: Others) -> Result<RowResults<()>, Undone> {
        let mut results: RowResults<()> = Vec::with_capacity(rows.len());
        // Of two extensions of one lease the later counts.
        let mut wanted: BTreeMap<(&QueueName, i64), (Lease, i64)> = BTreeMap::new();
        for row in rows {
            let lease = match Lease::read(&row.receipt) {
                Ok(_) if !self.exists(row.receipt.queue(), Deadline::default()).await? => Err(row.receipt.expired()),
                lease => lease,
            };
            results.push(lease.map(|lease| {
                wanted.insert((row.receipt.queue(), lease.msg_id), (lease, micros(row.extension)));
            }));
        }
        if wanted.is_empty() {
            return Ok(results);
        }
        let mut session = self.database.session("extend", Deadline::default()).await?;
        let mut busy = HashSet::new();
        if others == Others::PassBy {
            session.begin().await?;
            let receipts = rows.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(row, _)| &row.receipt);
            busy = lock_free(&session, receipts).await?;
            wanted.retain(|(queue, msg_id), _| !busy.contains(&((*queue).clone(), *msg_id)));
        }
        let mut queues: BTreeMap<&QueueName, (Arc<OfQueue>, Leases, Vec<i64>)> = BTreeMap::new();
        for ((queue, _), (lease, extension)) in &wanted {
            let new = || (self.database.sql.of(queue), Leases::default(), Vec::new());
            let (_, leases, extensions) = queues.entry(queue).or_insert_with(new);
            leases.push(lease);
            extensions.push(*extension);
        }
        let steps: Vec<Step<'_>> = queues
            .values()
            .map(|(sql, leases, extensions)| lease_step(&sql.extend, leases).and([extensions]))
            .collect();
        let answers = run(&mut session, &steps, others).await?;
        let mut done = HashSet::new();
        for (queue, rows) in queues.keys().zip(&answers) {
            done.extend(rows.iter().map(|row| (*queue, row.get::<_, i64>("msg_id"))));
        }
        for (row, result) in rows.iter().zip(&mut results) {
            let Ok(Lease { msg_id, .. }) = Lease::read(&row.receipt) else { continue };
            if result.is_ok() && !done.contains(&(row.receipt.queue(), msg_id)) {
                let is_busy = busy.contains(&(row.receipt.queue().clone(), msg_id));
                *result = Err(if is_busy { row.receipt.taken() } else { row.receipt.expired() });
            }
        }
        // A lease may have become shorter. Only this process is woken; others look at every poll interval.
        self.wakes.tell(queues.into_keys());
        Ok(results)
    }

    /// Ends the leases of messages that were dropped unsettled. Their deliveries stay counted.
    pub(crate) async fn give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), Undone> {
        for (queue, leases) in by_queue(receipts.iter()) {
            let sql = self.database.sql.of(&queue);
            let mut session = self.database.session("return", Deadline::default()).await?;
            session.ask(lease_step(&sql.give_up, &leases)).await?;
            self.touch([&queue]);
        }
        Ok(())
    }
}
