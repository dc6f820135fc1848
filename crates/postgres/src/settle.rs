//! Settles and extensions. A statement changes nothing without the valid lease token.
//!
//! Another transaction may have locked a row for any time, such as one of a handler that acked its message inside it.
//! The statements wait a moment, for transactions that are about to commit. Then the batch goes without the locked
//! rows, which fail with a retryable error. A head is removed even if its stripe is still locked: its key is noted in
//! `unplaced`, and the next claim promotes the next message.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use postgres_types::ToSql;
use postrider_core::coalescer::ExtendRow;
use postrider_core::{
    ArchivePolicy, Deadline, Disposition, MessagingError, Nack, QueueName, ReceiptHandle, RowResults, Settlement,
};
use postrider_provider::{Others, Undone, past_others, persist};
use postrider_sql::Lease;
use postrider_sql::stripes::in_order;
use tokio_postgres::Row;
use uuid::Uuid;

use postrider_pg::Step;

use crate::rows::{micros, positions};
use crate::sql::Sql;
use crate::store::Shared;
use crate::{PROVIDER, Session};

/// Leases as the statements take them: one array a column, in the order of the rows, so that two batches cannot
/// deadlock.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    pub(crate) rows: Vec<i64>,
    pub(crate) tokens: Vec<i64>,
    pub(crate) ids: Vec<Uuid>,
    pub(crate) queues: Vec<String>,
}

impl Leases {
    fn read_all<'r>(receipts: impl Iterator<Item = &'r ReceiptHandle>) -> Self {
        let mut leases = Self::default();
        Lease::read_all(receipts, PROVIDER).iter().for_each(|lease| leases.push(lease));
        leases
    }

    pub(crate) fn push(&mut self, lease: &Lease) {
        self.rows.push(lease.row);
        self.tokens.push(lease.token);
        self.ids.push(*lease.receipt.message_id().as_uuid());
        self.queues.push(lease.receipt.queue().as_str().to_owned());
    }
}

/// The statement that ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Complete,
    /// An ack without a key or a record; each row once, and all of one queue.
    CompletePlain,
    Retry,
    Release,
    DeadLetter,
    /// A dead letter cannot be dead-lettered; the statement only checks the lease.
    Refuse,
}

const KINDS: [Kind; 6] =
    [Kind::Complete, Kind::CompletePlain, Kind::Retry, Kind::Release, Kind::DeadLetter, Kind::Refuse];

/// The rows of one statement.
#[derive(Debug, Default)]
struct Group {
    indexes: Vec<usize>,
    leases: Leases,
    delays: Vec<i64>,
    reasons: Vec<String>,
    errors: Vec<Option<String>>,
    is_read: Vec<bool>,
    /// Whether the transaction holds the stripe of the key, so that the statement promotes the next message.
    holds_stripe: Vec<bool>,
    /// The worker in failed attempts, if it is not the connection's.
    worker: Option<String>,
}

/// Rows and stripes that other transactions have locked.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    rows: HashSet<i64>,
    stripes: HashSet<i32>,
}

/// A batch of settlements, grouped by statement.
#[derive(Debug)]
pub(crate) struct Settling {
    results: Vec<Option<Result<(), MessagingError>>>,
    receipts: Vec<ReceiptHandle>,
    groups: Vec<(Kind, Group)>,
    pub(crate) stripes: Vec<i32>,
    archive: ArchivePolicy,
    worker: String,
}

impl Settling {
    pub(crate) fn new(shared: &Shared, settlements: &[Settlement], busy: &Busy) -> Self {
        let mut chosen: Vec<(usize, Lease, Settlement)> = Vec::with_capacity(settlements.len());
        let mut results = Vec::with_capacity(settlements.len());
        let mut seen = HashSet::new();
        for (index, settlement) in settlements.iter().enumerate() {
            let checked = settlement.clone().checked(&shared.capabilities.limits);
            let ready = checked.and_then(|settlement| Ok((Lease::read(&settlement.receipt, PROVIDER)?, settlement)));
            results.push(match ready {
                // The first settlement ends the lease, or finds it ended; the second has none either way.
                Ok((lease, _)) if !seen.insert((lease.row, lease.token)) => Some(Err(settlement.receipt.expired())),
                Ok((lease, _)) if busy.rows.contains(&lease.row) => Some(Err(settlement.receipt.taken())),
                Ok((lease, settlement)) => {
                    chosen.push((index, lease, settlement));
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        chosen.sort_by_key(|(_, lease, _)| lease.row);
        // In the order of the kinds; failed attempts of each worker separately.
        let mut groups: Vec<(Kind, Group)> = KINDS.iter().map(|kind| (*kind, Group::default())).collect();
        let mut stripes = Vec::new();
        let mut last_plain: Option<(QueueName, i64)> = None;
        for (index, lease, settlement) in chosen {
            let (kind, delay, reason, error) = match settlement.disposition {
                Disposition::Ack if is_plain(&lease, last_plain.as_ref()) => {
                    last_plain = Some((lease.receipt.queue().clone(), lease.row));
                    (Kind::CompletePlain, Duration::ZERO, String::new(), None)
                }
                Disposition::Ack => (Kind::Complete, Duration::ZERO, String::new(), None),
                Disposition::Nack(Nack::Retry { after, error }) => (Kind::Retry, after, String::new(), error),
                Disposition::Nack(Nack::Release) => (Kind::Release, Duration::ZERO, String::new(), None),
                Disposition::Nack(Nack::DeadLetter { .. }) if lease.receipt.queue().holds_dead_letters() => {
                    (Kind::Refuse, Duration::ZERO, String::new(), None)
                }
                Disposition::Nack(Nack::DeadLetter { reason, error }) => {
                    (Kind::DeadLetter, Duration::ZERO, reason.as_str().to_owned(), error)
                }
            };
            if matches!(kind, Kind::Complete | Kind::DeadLetter) {
                stripes.extend(lease.stripe);
            }
            let holds_stripe = lease.stripe.is_some_and(|stripe| !busy.stripes.contains(&stripe));
            let worker = settlement.worker.filter(|_| matches!(kind, Kind::Retry | Kind::DeadLetter));
            let worker = worker.map(|name| name.to_string());
            if let Some(group) = group_of(&mut groups, kind, worker) {
                group.indexes.push(index);
                group.leases.push(&lease);
                group.delays.push(micros(delay));
                group.reasons.push(reason);
                group.errors.push(error);
                group.is_read.push(true);
                group.holds_stripe.push(holds_stripe);
            }
        }
        groups.retain(|(_, group)| !group.indexes.is_empty());
        Self {
            results,
            receipts: settlements.iter().map(|settlement| settlement.receipt.clone()).collect(),
            groups,
            stripes: in_order(stripes),
            archive: shared.options.archive,
            worker: shared.worker.clone(),
        }
    }

    /// Returns the steps of one transaction, to be run after the stripes are locked.
    pub(crate) fn steps<'p>(&'p self, sql: &'p Sql) -> Vec<Step<'p>> {
        self.groups.iter().map(|(kind, group)| self.step(*kind, group, sql)).collect()
    }

    fn step<'p>(&'p self, kind: Kind, group: &'p Group, sql: &'p Sql) -> Step<'p> {
        let text = match kind {
            Kind::Complete if self.archive == ArchivePolicy::All => &sql.archive,
            Kind::CompletePlain if self.archive == ArchivePolicy::All => &sql.archive_plain,
            Kind::CompletePlain => &sql.remove_plain,
            Kind::Complete => &sql.remove,
            Kind::Retry => &sql.retry,
            Kind::Release => &sql.release,
            Kind::DeadLetter => &sql.dead_letter,
            Kind::Refuse => &sql.held,
        };
        let leases = &group.leases;
        if let (Kind::CompletePlain, Some(queue)) = (kind, leases.queues.first()) {
            return Step::new(text, [&leases.rows as _, &leases.tokens as _, queue as _]);
        }
        let step = lease_step(text, leases);
        let worker: &(dyn ToSql + Sync) = match &group.worker {
            Some(worker) => worker,
            None => &self.worker,
        };
        match kind {
            Kind::Complete => step.and([&group.holds_stripe]),
            Kind::CompletePlain | Kind::Release | Kind::Refuse => step,
            Kind::Retry => step.and([&group.delays, &group.errors, worker]),
            Kind::DeadLetter => step.and([&group.holds_stripe, &group.reasons, &group.errors, &group.is_read, worker]),
        }
    }

    /// Returns the result of each settlement, and the queues that changed.
    pub(crate) fn finish<'r>(
        mut self,
        answers: impl IntoIterator<Item = &'r Vec<Row>>,
    ) -> (RowResults<()>, Vec<QueueName>) {
        let mut touched = Vec::new();
        for ((kind, group), rows) in self.groups.iter().zip(answers) {
            let [id, is_keyed] = positions(rows, ["id", "is_keyed"]);
            let done: HashSet<i64> = rows.iter().map(|row| row.get(id)).collect();
            let keyed = rows.iter().any(|row| row.get::<_, bool>(is_keyed));
            for (index, row) in group.indexes.iter().zip(&group.leases.rows) {
                let receipt = &self.receipts[*index];
                let queue = receipt.queue();
                self.results[*index] = Some(match (done.contains(row), kind) {
                    (false, _) => Err(receipt.expired()),
                    (true, Kind::Refuse) => Err(MessagingError::invalid(
                        "disposition",
                        format!("'{queue}' has no dead letters of its own; redrive the message or purge it"),
                    )),
                    (true, _) => Ok(()),
                });
                if keyed || matches!(kind, Kind::Retry | Kind::Release) {
                    note(&mut touched, queue);
                }
                if *kind == Kind::DeadLetter {
                    note(&mut touched, &queue.dead_letters());
                }
            }
        }
        let expired = |index: usize| Err(self.receipts[index].expired());
        let results = self.results.into_iter().enumerate();
        (results.map(|(index, result)| result.unwrap_or_else(|| expired(index))).collect(), touched)
    }
}

/// Returns the group of a kind and a worker; a new one is inserted after the others of its kind.
fn group_of(groups: &mut Vec<(Kind, Group)>, kind: Kind, worker: Option<String>) -> Option<&mut Group> {
    let is_it = |(own, group): &(Kind, Group)| *own == kind && group.worker == worker;
    let at = match groups.iter().position(is_it) {
        Some(at) => at,
        None => {
            let behind = groups.iter().rposition(|(own, _)| *own == kind)? + 1;
            groups.insert(behind, (kind, Group { worker, ..Group::default() }));
            behind
        }
    };
    groups.get_mut(at).map(|(_, group)| group)
}

/// Whether an ack can join the plain ack before it, in the order of the rows.
fn is_plain(lease: &Lease, last: Option<&(QueueName, i64)>) -> bool {
    let queue = lease.receipt.queue();
    lease.stripe.is_none()
        && !queue.holds_dead_letters()
        && last.is_none_or(|(same, row)| same == queue && *row != lease.row)
}

fn note(queues: &mut Vec<QueueName>, queue: &QueueName) {
    if !queues.contains(queue) {
        queues.push(queue.clone());
    }
}

pub(crate) fn lease_step<'p>(sql: &'p str, leases: &'p Leases) -> Step<'p> {
    Step::new(sql, [&leases.rows as _, &leases.tokens as _, &leases.ids as _, &leases.queues as _])
}

/// Locks the rows of valid leases. Returns the rows that other transactions have locked.
async fn lock_free(session: &Session<'_>, leases: &Leases) -> Result<HashSet<i64>, Undone> {
    let sql = session.sql();
    session.lock_free(&sql.lock_free, &lease_step(&sql.held, leases)).await
}

impl Shared {
    /// Settles leases.
    pub(crate) async fn settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        match self.try_settle(settlements).await {
            Err(Undone::InTheWay(_)) => self.settle_free(settlements).await,
            done => done,
        }
    }

    /// Settles the leases whose rows no other transaction has locked.
    pub(crate) async fn settle_free(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        persist(|| self.try_settle_free(settlements)).await
    }

    async fn try_settle_free(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        let began = Instant::now();
        let mut session = self.database.session("settle", Deadline::default()).await?;
        session.begin().await?;
        let leases = Leases::read_all(settlements.iter().map(|settlement| &settlement.receipt));
        let rows = lock_free(&session, &leases).await?;
        let wanted = Settling::new(self, settlements, &Busy::default()).stripes;
        let got = self.lock_free_stripes(&session, &wanted).await?;
        let stripes = wanted.into_iter().filter(|stripe| !got.contains(stripe)).collect();
        let settling = Settling::new(self, settlements, &Busy { rows, stripes });
        let mut answers = Vec::new();
        for step in settling.steps(session.sql()) {
            answers.push(session.query(step.sql, &step.parameters).await?);
        }
        session.commit().await?;
        let (results, touched) = settling.finish(&answers);
        self.touch(&touched, began);
        Ok(results)
    }

    async fn try_settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        let began = Instant::now();
        let settling = Settling::new(self, settlements, &Busy::default());
        let mut answers = Vec::new();
        if !settling.groups.is_empty() {
            let mut session = self.database.session("settle", Deadline::default()).await?;
            let class = self.database.sql.schema.lock_class();
            let mut steps = settling.steps(session.sql());
            let locks = usize::from(!settling.stripes.is_empty());
            if locks > 0 {
                let lock = Step::new(&session.sql().await_stripes, [&class as _, &settling.stripes as _]);
                steps.insert(0, lock);
            }
            answers = session.run(&steps).await?.split_off(locks);
        }
        let (results, touched) = settling.finish(&answers);
        self.touch(&touched, began);
        Ok(results)
    }

    /// Sets the ends of leases.
    pub(crate) async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<()>, Undone> {
        past_others(|others| self.try_extend(rows, others)).await
    }

    async fn try_extend(&self, rows: &[ExtendRow], others: Others) -> Result<RowResults<()>, Undone> {
        let mut results: RowResults<()> = Vec::with_capacity(rows.len());
        let mut chosen: Vec<(usize, Lease, i64)> = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            match Lease::read(&row.receipt, PROVIDER) {
                Ok(lease) => {
                    // Of two extensions of one lease the later counts.
                    chosen.retain(|(_, other, _)| (other.row, other.token) != (lease.row, lease.token));
                    chosen.push((index, lease, micros(row.extension)));
                    results.push(Ok(()));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        if chosen.is_empty() {
            return Ok(results);
        }
        let mut session = self.database.session("extend", Deadline::default()).await?;
        let mut busy = HashSet::new();
        if others == Others::PassBy {
            session.begin().await?;
            busy = lock_free(&session, &Leases::read_all(rows.iter().map(|row| &row.receipt))).await?;
            chosen.retain(|(_, lease, _)| !busy.contains(&lease.row));
        }
        chosen.sort_by_key(|(_, lease, _)| lease.row);
        let mut leases = Leases::default();
        chosen.iter().for_each(|(_, lease, _)| leases.push(lease));
        let extensions: Vec<i64> = chosen.iter().map(|(.., extension)| *extension).collect();
        let step = lease_step(&session.sql().extend, &leases).and([&extensions]);
        let answers = match others {
            Others::WaitFor => session.ask(step).await?,
            Others::PassBy => {
                let answers = session.query(step.sql, &step.parameters).await?;
                session.commit().await?;
                answers
            }
        };
        let done: HashSet<i64> = answers.iter().map(|row| row.get("id")).collect();
        let mut touched = Vec::new();
        for (row, result) in rows.iter().zip(&mut results) {
            let row_number = row.receipt.row().ok().and_then(|row| i64::try_from(row).ok());
            if result.is_ok() {
                if row_number.is_some_and(|number| done.contains(&number)) {
                    note(&mut touched, row.receipt.queue());
                } else if row_number.is_some_and(|number| busy.contains(&number)) {
                    *result = Err(row.receipt.taken());
                } else {
                    *result = Err(row.receipt.expired());
                }
            }
        }
        // A lease may have become shorter. Only this process is woken; others look at every poll interval.
        self.wakes.tell(&touched);
        Ok(results)
    }

    /// Ends the leases of messages that were dropped unsettled. Their deliveries stay counted.
    pub(crate) async fn give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), Undone> {
        let began = Instant::now();
        let leases = Leases::read_all(receipts.iter());
        let mut session = self.database.session("return", Deadline::default()).await?;
        let step = lease_step(&session.sql().give_up, &leases);
        session.run(&[step]).await?;
        let mut touched = Vec::new();
        receipts.iter().for_each(|receipt| note(&mut touched, receipt.queue()));
        self.touch(&touched, began);
        Ok(())
    }
}
