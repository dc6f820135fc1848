//! Where leases end or are extended: nothing happens without the token that is valid now.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use mysql_async::Row;
use postrider_core::coalescer::ExtendRow;
use postrider_core::{
    Deadline, Disposition, MessageId, MessagingError, Nack, QueueName, ReceiptHandle, RowResults, Settlement,
};
use postrider_sql::stripes::{in_order, read_token};
use postrider_sql::{Undone, persist};

use crate::PROVIDER;

use crate::connection::Session;
use crate::literal::{self, by_row, fill, micros, optional};
use crate::options::ArchivePolicy;
use crate::rows;
use crate::send::{lock_stripes, promote};
use crate::sql::Sql;
use crate::store::Shared;

/// A row as it is now, locked.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) token: Option<i64>,
    id: MessageId,
    queue: String,
    pub(crate) is_valid: bool,
    pub(crate) ordering_key: Option<String>,
    attempts_count: i64,
}

impl Held {
    pub(crate) fn read(row: &Row) -> Self {
        Self {
            token: rows::optional_number(row, 1),
            id: rows::message_id(row, 2),
            queue: rows::text(row, 3),
            is_valid: rows::flag(row, 4),
            ordering_key: rows::optional_text(row, 5),
            attempts_count: rows::number(row, 6),
        }
    }

    /// Whether a lease is the one that the row has, and still valid.
    pub(crate) fn is_by(&self, lease: &Lease) -> bool {
        self.is_valid
            && self.token == Some(lease.token)
            && self.id == lease.receipt.message_id()
            && self.queue == lease.receipt.queue().as_str()
    }
}

/// A receipt that can be this provider's.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) row: i64,
    token: i64,
    stripe: Option<i32>,
    pub(crate) receipt: ReceiptHandle,
}

impl Lease {
    pub(crate) fn read(receipt: &ReceiptHandle) -> Result<Self, MessagingError> {
        receipt.check_provider(PROVIDER)?;
        let row = i64::try_from(receipt.row()?).map_err(|_| receipt.expired())?;
        let (token, stripe) = read_token(receipt.token(), row).ok_or_else(|| receipt.expired())?;
        Ok(Self { row, token, stripe, receipt: receipt.clone() })
    }
}

/// What becomes of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Complete,
    Retry,
    Release,
    DeadLetter,
    /// A dead letter has none of its own; all that is asked is whether its lease is valid.
    Refuse,
}

/// A settlement that can be carried out if its lease is valid.
#[derive(Debug)]
struct Chosen {
    place: usize,
    lease: Lease,
    kind: Kind,
    delay: Duration,
    reason: String,
    error: Option<String>,
}

impl Chosen {
    fn new(place: usize, lease: Lease, disposition: Disposition) -> Self {
        let (kind, delay, reason, error) = match disposition {
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
        Self { place, lease, kind, delay, reason, error }
    }
}

/// A batch of settlements.
#[derive(Debug)]
pub(crate) struct Settling {
    results: Vec<Option<Result<(), MessagingError>>>,
    receipts: Vec<ReceiptHandle>,
    chosen: Vec<Chosen>,
    stripes: Vec<i32>,
    archive: ArchivePolicy,
    worker: String,
    touched: Vec<QueueName>,
}

impl Settling {
    pub(crate) fn new(shared: &Shared, settlements: &[Settlement]) -> Self {
        let mut chosen: Vec<Chosen> = Vec::with_capacity(settlements.len());
        let mut results = Vec::with_capacity(settlements.len());
        let mut seen = HashSet::new();
        for (place, settlement) in settlements.iter().enumerate() {
            let checked = settlement.clone().checked(&shared.capabilities.limits);
            let ready = checked.and_then(|settlement| Ok((Lease::read(&settlement.receipt)?, settlement)));
            results.push(match ready {
                // The first one ends the lease, or finds it ended; either way there is none for the second.
                Ok((lease, _)) if !seen.insert((lease.row, lease.token)) => Some(Err(settlement.receipt.expired())),
                Ok((lease, settlement)) => {
                    chosen.push(Chosen::new(place, lease, settlement.disposition));
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        let removing = chosen.iter().filter(|chosen| matches!(chosen.kind, Kind::Complete | Kind::DeadLetter));
        Self {
            results,
            receipts: settlements.iter().map(|settlement| settlement.receipt.clone()).collect(),
            stripes: in_order(removing.filter_map(|chosen| chosen.lease.stripe).collect()),
            chosen,
            archive: shared.options.archive,
            worker: literal::text(&shared.worker),
            touched: Vec::new(),
        }
    }

    /// Whether nothing is left to be asked of the server.
    pub(crate) fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// Locks the stripes and then the rows, and asks who has them leased.
    fn look(&self, sql: &Sql) -> (String, String) {
        let ids = literal::list(self.chosen.iter().map(|chosen| chosen.lease.row));
        (lock_stripes(sql, &self.stripes), fill(&sql.held, &[("ids", &ids)]))
    }

    /// Begins a transaction and does what there is to do, but for the last steps, which are answered.
    pub(crate) async fn carry_out(&mut self, session: &mut Session<'_>) -> Result<Vec<String>, Undone> {
        let sql = session.sql();
        let (lock, look) = self.look(sql);
        let text = if lock.is_empty() { look } else { format!("{lock};\n{look}") };
        let found = session.begin(text).await?.pop().unwrap_or_default();
        let (steps, freed) = self.steps(sql, &found);
        promote(session, steps, freed.iter().map(|(queue, key)| (queue.as_str(), key.as_str()))).await
    }

    /// What to do with the leases that turned out to be valid, and the keys that lose their heads by it.
    fn steps(&mut self, sql: &Sql, found: &[Row]) -> (Vec<String>, Vec<(String, String)>) {
        let held: HashMap<i64, Held> = found.iter().map(|row| (rows::number(row, 0), Held::read(row))).collect();
        let mut by_kind: HashMap<Kind, Vec<(&Chosen, &Held)>> = HashMap::new();
        for chosen in &self.chosen {
            let receipt = &chosen.lease.receipt;
            let held = held.get(&chosen.lease.row).filter(|held| held.is_by(&chosen.lease));
            self.results[chosen.place] = Some(match (held, chosen.kind) {
                (None, _) => Err(receipt.expired()),
                (Some(_), Kind::Refuse) => Err(MessagingError::invalid(
                    "disposition",
                    format!("'{}' has no dead letters of its own; redrive the message or purge it", receipt.queue()),
                )),
                (Some(_), _) => Ok(()),
            });
            let Some(held) = held else { continue };
            by_kind.entry(chosen.kind).or_default().push((chosen, held));
            let frees_a_key = held.ordering_key.is_some() && chosen.kind != Kind::Refuse;
            if frees_a_key || matches!(chosen.kind, Kind::Retry | Kind::Release) {
                note(&mut self.touched, receipt.queue());
            }
            if chosen.kind == Kind::DeadLetter {
                note(&mut self.touched, &receipt.queue().dead_letters());
            }
        }
        let mut steps = Vec::new();
        let mut freed = Vec::new();
        // Always in the same order, because every one of them writes.
        for kind in [Kind::Complete, Kind::Retry, Kind::Release, Kind::DeadLetter] {
            let Some(group) = by_kind.get(&kind) else { continue };
            match kind {
                Kind::Complete => steps.extend(self.complete(sql, group)),
                Kind::Retry => steps.extend(self.retry(sql, group)),
                Kind::Release => steps.push(fill(&sql.release, &[("ids", &ids(group))])),
                Kind::DeadLetter => steps.extend(self.dead_letter(sql, group)),
                Kind::Refuse => {}
            }
            if matches!(kind, Kind::Complete | Kind::DeadLetter) {
                let ordered = group.iter().filter(|(chosen, _)| !chosen.lease.receipt.queue().holds_dead_letters());
                freed.extend(ordered.filter_map(|(_, held)| Some((held.queue.clone(), held.ordering_key.clone()?))));
            }
        }
        (steps, freed)
    }

    fn complete(&self, sql: &Sql, group: &[(&Chosen, &Held)]) -> Vec<String> {
        let ids = ids(group);
        let is_dead = |chosen: &Chosen| chosen.lease.receipt.queue().holds_dead_letters();
        let mut steps = Vec::new();
        if self.archive == ArchivePolicy::All {
            steps.push(fill(&sql.archive, &[("ids", &ids)]));
        } else {
            let noted = group.iter().filter(|(chosen, held)| held.attempts_count > 0 || is_dead(chosen));
            let noted: Vec<String> = noted.map(|(_, held)| literal::id(held.id)).collect();
            if !noted.is_empty() {
                steps.push(fill(&sql.forget_attempts, &[("message_ids", &literal::list(noted))]));
            }
        }
        let dead: Vec<i64> =
            group.iter().filter(|(chosen, _)| is_dead(chosen)).map(|(chosen, _)| chosen.lease.row).collect();
        if !dead.is_empty() {
            steps.push(fill(&sql.forget_dead, &[("ids", &literal::list(dead))]));
        }
        steps.push(fill(&sql.remove, &[("ids", &ids)]));
        steps
    }

    fn retry(&self, sql: &Sql, group: &[(&Chosen, &Held)]) -> Vec<String> {
        let delays: Vec<_> =
            group.iter().map(|(chosen, _)| (chosen.lease.row, micros(chosen.delay).to_string())).collect();
        let values = [("ids", &*ids(group)), ("delays", &by_row(&delays)), ("errors", &errors(group))];
        let mut steps = vec![fill(&sql.retry, &values)];
        // A dead letter's story is over, and its attempts are not noted.
        let living: Vec<(&Chosen, &Held)> =
            group.iter().filter(|(chosen, _)| !chosen.lease.receipt.queue().holds_dead_letters()).copied().collect();
        if !living.is_empty() {
            let values = [("ids", &*ids(&living)), ("errors", &errors(&living)), ("worker", &self.worker)];
            steps.push(fill(&sql.note_attempts, &values));
        }
        if living.iter().any(|(_, held)| held.attempts_count >= 10) {
            steps.push(fill(&sql.trim_attempts, &[("ids", &ids(&living))]));
        }
        steps
    }

    fn dead_letter(&self, sql: &Sql, group: &[(&Chosen, &Held)]) -> Vec<String> {
        let values = [("ids", &*ids(group)), ("errors", &errors(group)), ("worker", &self.worker)];
        let dead: Vec<(i64, String, Option<String>)> =
            group.iter().map(|(chosen, _)| (chosen.lease.row, chosen.reason.clone(), chosen.error.clone())).collect();
        let mut steps = vec![fill(&sql.note_last_attempts, &values)];
        steps.extend(end_lives(sql, &dead));
        steps
    }

    /// What each settlement came to, and the queues in which something changed.
    pub(crate) fn finish(self) -> (RowResults<()>, Vec<QueueName>) {
        let results = self.results.into_iter().zip(&self.receipts);
        let results = results.map(|(result, receipt)| result.unwrap_or_else(|| Err(receipt.expired()))).collect();
        (results, self.touched)
    }
}

fn ids(group: &[(&Chosen, &Held)]) -> String {
    literal::list(group.iter().map(|(chosen, _)| chosen.lease.row))
}

fn errors(group: &[(&Chosen, &Held)]) -> String {
    let error = |(chosen, _): &(&Chosen, &Held)| (chosen.lease.row, optional(chosen.error.as_deref(), literal::text));
    by_row(&group.iter().map(error).collect::<Vec<_>>())
}

fn note(queues: &mut Vec<QueueName>, queue: &QueueName) {
    if !queues.contains(queue) {
        queues.push(queue.clone());
    }
}

/// Moves rows to the dead letters of their queues, each with its reason and its error. The caller has locked the rows and
/// holds the stripes of their keys, and promotes afterwards.
pub(crate) fn end_lives(sql: &Sql, dead: &[(i64, String, Option<String>)]) -> Vec<String> {
    if dead.is_empty() {
        return Vec::new();
    }
    let ids = literal::list(dead.iter().map(|(row, ..)| row));
    let reasons: Vec<_> = dead.iter().map(|(row, reason, _)| (*row, literal::text(reason))).collect();
    let errors: Vec<_> = dead.iter().map(|(row, _, error)| (*row, optional(error.as_deref(), literal::text))).collect();
    let record = [("ids", ids.as_str()), ("reasons", &by_row(&reasons)), ("errors", &by_row(&errors))];
    vec![fill(&sql.record_deaths, &record), fill(&sql.dead_letter, &[("ids", &ids)])]
}

impl Shared {
    /// Ends leases, each in its own way.
    pub(crate) async fn settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        persist(|| self.try_settle(settlements)).await
    }

    async fn try_settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        let mut settling = Settling::new(self, settlements);
        if !settling.is_empty() {
            let mut session = self.database.session("settle", Deadline::default()).await?;
            let steps = settling.carry_out(&mut session).await?;
            session.commit(steps.join(";\n")).await?;
        }
        let (results, touched) = settling.finish();
        self.touch(&touched);
        Ok(results)
    }

    /// Sets the ends of leases.
    pub(crate) async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<()>, Undone> {
        persist(|| self.try_extend(rows)).await
    }

    async fn try_extend(&self, rows: &[ExtendRow]) -> Result<RowResults<()>, Undone> {
        let mut results: RowResults<()> = Vec::with_capacity(rows.len());
        let mut chosen: Vec<(usize, Lease, i64)> = Vec::new();
        for (place, row) in rows.iter().enumerate() {
            match Lease::read(&row.receipt) {
                Ok(lease) => {
                    // Of two extensions of one lease the later stands.
                    chosen.retain(|(_, other, _)| (other.row, other.token) != (lease.row, lease.token));
                    chosen.push((place, lease, micros(row.extension)));
                    results.push(Ok(()));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        if chosen.is_empty() {
            return Ok(results);
        }
        let mut session = self.database.session("extend", Deadline::default()).await?;
        let sql = session.sql();
        let ids = literal::list(chosen.iter().map(|(_, lease, _)| lease.row));
        let found = session.begin(fill(&sql.held, &[("ids", &ids)])).await?.concat();
        let held: HashMap<i64, Held> = found.iter().map(|row| (rows::number(row, 0), Held::read(row))).collect();
        chosen.retain(|(_, lease, _)| held.get(&lease.row).is_some_and(|held| held.is_by(lease)));
        let extensions: Vec<(i64, String)> =
            chosen.iter().map(|(_, lease, extension)| (lease.row, extension.to_string())).collect();
        if chosen.is_empty() {
            session.rollback().await?;
        } else {
            let ids = literal::list(chosen.iter().map(|(_, lease, _)| lease.row));
            session.commit(fill(&sql.extend, &[("ids", &ids), ("extensions", &by_row(&extensions))])).await?;
        }
        let done: HashSet<(i64, i64)> = chosen.iter().map(|(_, lease, _)| (lease.row, lease.token)).collect();
        let mut touched = Vec::new();
        for (row, result) in rows.iter().zip(&mut results) {
            if result.is_ok() {
                if Lease::read(&row.receipt).is_ok_and(|lease| done.contains(&(lease.row, lease.token))) {
                    note(&mut touched, row.receipt.queue());
                } else {
                    *result = Err(row.receipt.expired());
                }
            }
        }
        // A lease may have become shorter. Only those of this process are told: the others look every now and then.
        self.wakes.tell(&touched);
        Ok(results)
    }

    /// Messages were dropped unsettled: their leases end now, their deliveries stay counted.
    pub(crate) async fn give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), Undone> {
        persist(|| self.try_give_up(receipts)).await
    }

    async fn try_give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), Undone> {
        let mut chosen: Vec<Lease> = receipts.iter().filter_map(|receipt| Lease::read(receipt).ok()).collect();
        let mut session = self.database.session("return", Deadline::default()).await?;
        let sql = session.sql();
        let ids = literal::list(chosen.iter().map(|lease| lease.row));
        let found = session.begin(fill(&sql.held, &[("ids", &ids)])).await?.concat();
        let held: HashMap<i64, Held> = found.iter().map(|row| (rows::number(row, 0), Held::read(row))).collect();
        chosen.retain(|lease| held.get(&lease.row).is_some_and(|held| held.is_by(lease)));
        let ids = literal::list(chosen.iter().map(|lease| lease.row));
        session.commit(fill(&sql.give_up, &[("ids", &ids)])).await?;
        let mut touched = Vec::new();
        receipts.iter().for_each(|receipt| note(&mut touched, receipt.queue()));
        self.touch(&touched);
        Ok(())
    }
}
