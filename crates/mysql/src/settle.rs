//! Settles. A statement changes nothing without the valid lease token.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use mysql_async::Row;
use postrider_core::{
    ArchivePolicy, Deadline, Disposition, MessagingError, Nack, QueueName, ReceiptHandle, RowResults, Settlement,
};
use postrider_provider::{Undone, persist};
use postrider_sql::Lease;
use postrider_sql::stripes::in_order;

use crate::PROVIDER;
use crate::connection::{Session, at_once};
use crate::dead_letters::end_lives;
use crate::lease::{Held, Tried, held, locked, note, try_busy_again};
use crate::literal::{self, by_row, fill, micros, optional};
use crate::rows;
use crate::send::{lock_free_stripes, promote_or_leave, taken_stripes};
use crate::sql::Sql;
use crate::store::Shared;

/// What ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Complete,
    Retry,
    Release,
    DeadLetter,
    /// A dead letter cannot be dead-lettered; the statement only checks the lease.
    Refuse,
}

/// A settlement that is valid if its lease is.
#[derive(Debug)]
struct Chosen {
    index: usize,
    lease: Lease,
    kind: Kind,
    delay: Duration,
    reason: String,
    error: Option<String>,
    /// The worker in failed attempts, if it is not the connection's.
    worker: Option<Arc<str>>,
}

impl Chosen {
    fn new(index: usize, lease: Lease, disposition: Disposition, worker: Option<Arc<str>>) -> Self {
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
        Self { index, lease, kind, delay, reason, error, worker }
    }
}

/// A batch of settlements.
#[derive(Debug)]
pub(crate) struct Settling {
    results: Vec<Option<Result<(), MessagingError>>>,
    receipts: Vec<ReceiptHandle>,
    chosen: Vec<Chosen>,
    stripes: Vec<i32>,
    /// Whether all are acks of messages without keys, the common case.
    is_plain: bool,
    archive: ArchivePolicy,
    worker: String,
    touched: Vec<QueueName>,
    /// The indexes of settlements whose rows other transactions have locked.
    busy: Vec<usize>,
}

impl Settling {
    pub(crate) fn new(shared: &Shared, settlements: &[Settlement]) -> Self {
        let mut chosen: Vec<Chosen> = Vec::with_capacity(settlements.len());
        let mut results = Vec::with_capacity(settlements.len());
        let mut seen = HashSet::new();
        for (index, settlement) in settlements.iter().enumerate() {
            let checked = settlement.clone().checked(&shared.capabilities.limits);
            let ready = checked.and_then(|settlement| Ok((Lease::read(&settlement.receipt, PROVIDER)?, settlement)));
            results.push(match ready {
                // The first settlement ends the lease, or finds it ended; the second has none either way.
                Ok((lease, _)) if !seen.insert((lease.row, lease.token)) => Some(Err(settlement.receipt.expired())),
                Ok((lease, settlement)) => {
                    chosen.push(Chosen::new(index, lease, settlement.disposition, settlement.worker));
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        let removing = chosen.iter().filter(|chosen| matches!(chosen.kind, Kind::Complete | Kind::DeadLetter));
        let is_plain = |chosen: &Chosen| {
            chosen.kind == Kind::Complete
                && chosen.lease.stripe.is_none()
                && !chosen.lease.receipt.queue().holds_dead_letters()
        };
        Self {
            is_plain: chosen.iter().all(is_plain),
            results,
            receipts: settlements.iter().map(|settlement| settlement.receipt.clone()).collect(),
            stripes: in_order(removing.filter_map(|chosen| chosen.lease.stripe).collect()),
            chosen,
            archive: shared.options.archive,
            worker: literal::text(&shared.worker),
            touched: Vec::new(),
            busy: Vec::new(),
        }
    }

    /// Whether a key may lose its head.
    pub(crate) fn frees_keys(&self) -> bool {
        !self.stripes.is_empty()
    }

    /// Whether no settlement is left for the server.
    pub(crate) fn is_empty(&self) -> bool {
        self.chosen.is_empty()
    }

    /// Begins a transaction and runs all steps but the last ones, which are returned.
    pub(crate) async fn carry_out(&mut self, session: &mut Session<'_>) -> Result<Vec<String>, Undone> {
        if self.is_plain && self.remove_at_once(session, None).await?.is_some() {
            return Ok(Vec::new());
        }
        self.look_and_choose(session).await
    }

    /// Locks stripes and then rows, reads the leases, and settles the valid ones. Skips stripes and rows that other
    /// transactions have locked.
    async fn look_and_choose(&mut self, session: &mut Session<'_>) -> Result<Vec<String>, Undone> {
        let sql = session.sql();
        let ids = literal::list(self.chosen.iter().map(|chosen| chosen.lease.row));
        let (lock, look) = (lock_free_stripes(sql, &self.stripes), held(sql, &ids, "for update skip locked"));
        let text = if lock.is_empty() { look } else { format!("{lock};\n{look}") };
        let mut answers = session.begin(text).await?;
        let found = Held::by_row(&answers.pop().unwrap_or_default());
        let locked = locked(session, self.chosen.iter().map(|chosen| chosen.lease.row), &found).await?;
        let (steps, freed) = self.steps(sql, &found, &locked);
        let steps = steps.into_iter().map(at_once).collect();
        let freed = freed.iter().map(|(queue, key)| (queue, key.as_str())).collect();
        promote_or_leave(session, steps, &freed, &taken_stripes(&answers.concat())).await
    }

    /// Like `carry_out`, with one more read in the same transaction, which stays open.
    pub(crate) async fn carry_out_and_ask(
        &mut self,
        session: &mut Session<'_>,
        look: String,
    ) -> Result<Vec<Row>, Undone> {
        if self.is_plain
            && let Some(found) = self.remove_at_once(session, Some(&look)).await?
        {
            return Ok(found);
        }
        let mut steps = self.look_and_choose(session).await?;
        steps.push(look);
        Ok(session.query(steps.join(";\n")).await?.pop().unwrap_or_default())
    }

    /// Ends leases without reading them: if as many messages were removed as there are leases, all were valid. Returns
    /// `None`, with nothing done, if not, or if a row is locked.
    async fn remove_at_once(
        &mut self,
        session: &mut Session<'_>,
        also: Option<&str>,
    ) -> Result<Option<Vec<Row>>, Undone> {
        let sql = session.sql();
        let ids = literal::list(self.chosen.iter().map(|chosen| chosen.lease.row));
        let (held, counted) = (self.held_by_leases(sql), "select row_count() as removed".to_owned());
        let mut steps = match self.archive {
            ArchivePolicy::All => vec![
                at_once(fill(&sql.archive, &[("these", &held)])),
                counted,
                at_once(fill(&sql.remove, &[("these", &literal::these(&ids))])),
            ],
            ArchivePolicy::Failed | ArchivePolicy::None => {
                let noted = self.chosen.iter().map(|chosen| &chosen.lease.receipt);
                let noted = noted.map(|receipt| (receipt.queue().as_str(), literal::id(receipt.message_id())));
                vec![
                    at_once(fill(&sql.forget_attempts, &[("messages", &literal::attempts_of(noted))])),
                    at_once(fill(&sql.remove, &[("these", &held)])),
                    counted,
                ]
            }
        };
        steps.extend(also.map(str::to_owned));
        let mut answers = match session.begin(steps.join(";\n")).await {
            Ok(answers) => answers.into_iter(),
            Err(Undone::InTheWay(_)) if !session.is_in_transaction() => return Ok(None),
            Err(error) => return Err(error),
        };
        let removed = answers.next().and_then(|rows| rows.first().map(|row| rows::number(row, "removed")));
        if removed != i64::try_from(self.chosen.len()).ok() {
            session.rollback().await?;
            return Ok(None);
        }
        for chosen in &self.chosen {
            self.results[chosen.index] = Some(Ok(()));
        }
        Ok(Some(answers.next().unwrap_or_default()))
    }

    /// Returns the condition for rows with valid leases. Leases of one claim share a part.
    fn held_by_leases(&self, sql: &Sql) -> String {
        let mut by_claim: BTreeMap<(&str, i64), Vec<i64>> = BTreeMap::new();
        for Chosen { lease, .. } in &self.chosen {
            by_claim.entry((lease.receipt.queue().as_str(), lease.token)).or_default().push(lease.row);
        }
        let held = |((queue, token), rows): ((&str, i64), Vec<i64>)| {
            let (queue, lease) = (literal::bytes(queue.as_bytes()), token.to_string());
            fill(&sql.held_by, &[("ids", &literal::list(rows)), ("lease", &lease), ("queue", &queue)])
        };
        by_claim.into_iter().map(held).collect::<Vec<_>>().join(" or ")
    }

    /// Returns the steps for the valid leases, and the keys that lose their heads.
    fn steps(
        &mut self,
        sql: &Sql,
        found: &HashMap<i64, Held>,
        locked: &HashMap<i64, Held>,
    ) -> (Vec<String>, Vec<(QueueName, String)>) {
        let mut by_kind: HashMap<Kind, Vec<(&Chosen, &Held)>> = HashMap::new();
        for chosen in &self.chosen {
            let receipt = &chosen.lease.receipt;
            let held = found.get(&chosen.lease.row).filter(|held| held.is_by(&chosen.lease));
            let is_busy = locked.get(&chosen.lease.row).is_some_and(|held| held.is_by(&chosen.lease));
            if is_busy {
                self.busy.push(chosen.index);
            }
            self.results[chosen.index] = Some(match (held, chosen.kind) {
                (None, _) if is_busy => Err(receipt.taken()),
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
        // Always in the same order, because each of them writes.
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
                let key = |(chosen, held): &(&Chosen, &Held)| {
                    Some((chosen.lease.receipt.queue().clone(), held.ordering_key.clone()?))
                };
                freed.extend(ordered.filter_map(key));
            }
        }
        (steps, freed)
    }

    fn complete(&self, sql: &Sql, group: &[(&Chosen, &Held)]) -> Vec<String> {
        let ids = ids(group);
        let is_dead = |chosen: &Chosen| chosen.lease.receipt.queue().holds_dead_letters();
        let mut steps = Vec::new();
        if self.archive == ArchivePolicy::All {
            steps.push(fill(&sql.archive, &[("these", &literal::these(&ids))]));
        } else {
            let noted = group.iter().filter(|(chosen, held)| held.attempts_count > 0 || is_dead(chosen));
            let noted: Vec<(&str, String)> =
                noted.map(|(chosen, held)| (chosen.lease.receipt.queue().as_str(), literal::id(held.id))).collect();
            if !noted.is_empty() {
                steps.push(fill(&sql.forget_attempts, &[("messages", &literal::attempts_of(noted))]));
            }
        }
        let dead: Vec<i64> =
            group.iter().filter(|(chosen, _)| is_dead(chosen)).map(|(chosen, _)| chosen.lease.row).collect();
        if !dead.is_empty() {
            steps.push(fill(&sql.forget_dead, &[("ids", &literal::list(dead))]));
        }
        steps.push(fill(&sql.remove, &[("these", &literal::these(&ids))]));
        steps
    }

    fn retry(&self, sql: &Sql, group: &[(&Chosen, &Held)]) -> Vec<String> {
        let delays: Vec<_> =
            group.iter().map(|(chosen, _)| (chosen.lease.row, micros(chosen.delay).to_string())).collect();
        let values = [("ids", &*ids(group)), ("delays", &by_row(&delays)), ("errors", &errors(group))];
        let mut steps = vec![fill(&sql.retry, &values)];
        // Dead letters have no failed attempts.
        let living: Vec<(&Chosen, &Held)> =
            group.iter().filter(|(chosen, _)| !chosen.lease.receipt.queue().holds_dead_letters()).copied().collect();
        steps.extend(self.noted(&sql.note_attempts, &living));
        if living.iter().any(|(_, held)| held.attempts_count >= 10) {
            steps.push(fill(&sql.trim_attempts, &[("ids", &ids(&living))]));
        }
        steps
    }

    fn dead_letter(&self, sql: &Sql, group: &[(&Chosen, &Held)]) -> Vec<String> {
        let dead: Vec<(i64, String, Option<String>)> =
            group.iter().map(|(chosen, _)| (chosen.lease.row, chosen.reason.clone(), chosen.error.clone())).collect();
        let mut steps = self.noted(&sql.note_last_attempts, group);
        steps.extend(end_lives(sql, &dead));
        steps
    }

    /// Returns the statements that note failed attempts, one for each worker.
    fn noted(&self, statement: &str, group: &[(&Chosen, &Held)]) -> Vec<String> {
        let mut by_worker: BTreeMap<Option<&str>, Vec<(&Chosen, &Held)>> = BTreeMap::new();
        for (chosen, held) in group {
            by_worker.entry(chosen.worker.as_deref()).or_default().push((chosen, held));
        }
        let note = |(worker, group): (Option<&str>, Vec<(&Chosen, &Held)>)| {
            let worker = worker.map_or_else(|| self.worker.clone(), literal::text);
            fill(statement, &[("ids", &*ids(&group)), ("errors", &errors(&group)), ("worker", &worker)])
        };
        by_worker.into_iter().map(note).collect()
    }

    /// Returns the result of each settlement, and the queues that changed.
    pub(crate) fn finish(self) -> (Tried, Vec<QueueName>) {
        let results = self.results.into_iter().zip(&self.receipts);
        let results = results.map(|(result, receipt)| result.unwrap_or_else(|| Err(receipt.expired()))).collect();
        ((results, self.busy), self.touched)
    }
}

fn ids(group: &[(&Chosen, &Held)]) -> String {
    literal::list(group.iter().map(|(chosen, _)| chosen.lease.row))
}

fn errors(group: &[(&Chosen, &Held)]) -> String {
    let error = |(chosen, _): &(&Chosen, &Held)| (chosen.lease.row, optional(chosen.error.as_deref(), literal::text));
    by_row(&group.iter().map(error).collect::<Vec<_>>())
}

impl Shared {
    /// Settles leases.
    pub(crate) async fn settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, Undone> {
        let tried = persist(|| self.try_settle(settlements)).await?;
        Ok(self.settle_busy(settlements, tried).await)
    }

    /// Retries settlements whose rows are locked, for a moment.
    pub(crate) async fn settle_busy(&self, settlements: &[Settlement], tried: Tried) -> RowResults<()> {
        let work = |again: Vec<Settlement>| async move { persist(|| self.try_settle(&again)).await };
        try_busy_again("settle", settlements, |settlement| &settlement.receipt, tried, work).await
    }

    async fn try_settle(&self, settlements: &[Settlement]) -> Result<Tried, Undone> {
        let mut settling = Settling::new(self, settlements);
        if !settling.is_empty() {
            let mut session = self.database.session("settle", Deadline::default()).await?;
            let steps = settling.carry_out(&mut session).await?;
            session.commit(steps.join(";\n")).await?;
        }
        if settling.frees_keys() {
            settling.receipts.iter().for_each(|receipt| self.histories.lift(receipt.queue()));
        }
        let (tried, touched) = settling.finish();
        self.touch(&touched);
        Ok(tried)
    }
}
