//! Claims: messages are leased, or dead-lettered because they were delivered too often or have expired.

use std::collections::HashMap;
use std::time::Duration;

use mysql_async::Row;
use postrider_core::{
    DeadLetterReason, Deadline, Envelope, Key, MessageId, NativeRef, QueueName, ReceiptHandle, ReceiveOptions,
    Timestamp,
};
use postrider_provider::{Claimed, Undone, persist};
use postrider_sql::Due;
use postrider_sql::stripes::{in_order, stripe, token};

use crate::PROVIDER;
use crate::claim_history::{ClaimHistory, Floors};
use crate::connection::Answers;
use crate::dead_letters::end_lives;
use crate::lease::{Held, held};
use crate::literal::{self, fill};
use crate::rows::{self, Label, LabelColumns, columns, positions};
use crate::send::{lock_free_stripes, promote, promote_or_leave, taken_stripes};
use crate::sql::Sql;
use crate::store::{Shared, ensure_queues};

/// The priorities, most urgent first.
const URGENT_FIRST: [usize; 10] = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0];

/// The columns of `heads.sql` with the first due time of each priority.
const DUE: [&str; 10] = ["due_0", "due_1", "due_2", "due_3", "due_4", "due_5", "due_6", "due_7", "due_8", "due_9"];

/// Upper bound of one claim transaction.
const MAX_LEASES: usize = 1000;

columns! {
    /// The columns that a claim reads, but for the label's.
    ClaimColumns {
        id, ordering_key, priority, deliveries_count, attempts_count, created_at, first_attempt_at, expires_at, dedup_key,
        payload, server_time, due,
    }
}

/// A message that is leased only to be dead-lettered.
#[derive(Debug)]
pub(crate) struct DeadOnClaim {
    row: i64,
    ordering_key: Option<String>,
    reason: DeadLetterReason,
    error: Option<String>,
}

impl DeadOnClaim {
    /// A row that is leased only to be dead-lettered.
    pub(crate) fn new(row: i64, ordering_key: Option<String>, reason: DeadLetterReason, error: Option<String>) -> Self {
        Self { row, ordering_key, reason, error }
    }
}

/// The parameters of a claim.
#[derive(Debug)]
pub(crate) struct Claim {
    queue: QueueName,
    name: String,
    limit: usize,
    options: ReceiveOptions,
    lease: i64,
    /// False for dead letters: they have no order, no expiry and no delivery limit.
    is_live: bool,
    history: ClaimHistory,
}

/// What a claim can take.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    /// Whether keys wait to be promoted.
    pub(crate) has_unplaced: bool,
    /// The priorities with due messages, in the order in which they are served.
    pub(crate) priorities: Vec<usize>,
}

/// The rows of a claim.
#[derive(Debug, Default)]
pub(crate) struct ClaimResult {
    pub(crate) messages: Vec<Claimed>,
    pub(crate) dead: Vec<DeadOnClaim>,
    /// Rows that are leased uncounted.
    uncounted: Vec<i64>,
    counted: Vec<i64>,
    now: Timestamp,
}

impl Claim {
    pub(crate) fn new(shared: &Shared, queue: &QueueName, max: usize, options: &ReceiveOptions) -> Self {
        Self {
            history: shared.histories.next(queue),
            queue: queue.clone(),
            name: literal::bytes(queue.as_str().as_bytes()),
            limit: max.min(MAX_LEASES),
            options: options.clone(),
            lease: rand::random(),
            is_live: !queue.holds_dead_letters(),
        }
    }

    /// Returns the upper bound of the claim.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the statement that reads what the claim can take.
    pub(crate) fn look(&self, sql: &Sql) -> String {
        let probe = |priority: usize| fill(&sql.head_probe, &self.probe(&priority.to_string(), &self.floor(priority)));
        let probes = URGENT_FIRST.map(probe);
        fill(&sql.heads, &[("queue", &self.name), ("probes", &probes.join(",\n"))])
    }

    /// Reads the rows of `look`.
    pub(crate) fn heads(&self, found: &[Row]) -> Heads {
        let Some(row) = found.first() else { return Heads::default() };
        let is_paused = rows::flag(row, "is_paused");
        let due =
            URGENT_FIRST.into_iter().filter_map(|priority| Some((rows::optional_time(row, DUE[priority])?, priority)));
        let mut due: Vec<(Timestamp, usize)> = due.filter(|_| !is_paused).collect();
        if self.history.oldest_first {
            due.sort_by_key(|(time, _)| *time);
        }
        let priorities = due.into_iter().map(|(_, priority)| priority).collect();
        Heads { has_unplaced: rows::flag(row, "has_unplaced") && self.is_live, priorities }
    }

    /// Returns the statement that locks due rows of one priority.
    pub(crate) fn take(&self, sql: &Sql, priority: usize, limit: usize) -> String {
        let (priority, floor, limit) = (priority.to_string(), self.floor(priority), limit.to_string());
        let [queue, priority, floor] = self.probe(&priority, &floor);
        fill(&sql.claim, &[queue, priority, floor, ("limit", &limit)])
    }

    fn floor(&self, priority: usize) -> String {
        literal::time(self.history.floors.of(priority))
    }

    fn probe<'t>(&'t self, priority: &'t str, floor: &'t str) -> [(&'t str, &'t str); 3] {
        [("queue", &self.name), ("priority", priority), ("floor", floor)]
    }

    /// Removes the floors. Returns false if there were none.
    pub(crate) fn lift_floors(&mut self) -> bool {
        let had_floors = !self.history.floors.is_empty();
        self.history.floors = Floors::default();
        had_floors
    }

    /// Returns the latest due time of each priority in a full claim.
    pub(crate) fn stopped(&self, taken: &[Row]) -> HashMap<usize, Timestamp> {
        let mut stopped = HashMap::new();
        let [priority, due] = positions(taken, ["priority", "due"]);
        for row in taken {
            let (priority, time) = (rows::count(row, priority) as usize, rows::time(row, due));
            let last = stopped.entry(priority).or_insert(time);
            *last = time.max(*last);
        }
        stopped
    }

    /// Reads the rows that the statements locked.
    pub(crate) fn read(&self, taken: &[Row]) -> ClaimResult {
        let (label, columns) = (LabelColumns::of(taken), ClaimColumns::of(taken));
        let mut ordered: Vec<&Row> = taken.iter().collect();
        ordered.sort_by_key(|row| {
            let urgency = if self.history.oldest_first { 0 } else { -rows::number(row, columns.priority) };
            (urgency, rows::time(row, columns.due), rows::number(row, columns.id))
        });
        let now = ordered.iter().map(|row| rows::time(row, columns.server_time)).max().unwrap_or(Timestamp::EPOCH);
        let mut result = ClaimResult { now, ..ClaimResult::default() };
        for row in ordered {
            self.judge(row, label, columns, &mut result);
        }
        result
    }

    fn judge(&self, row: &Row, label_columns: LabelColumns, columns: ClaimColumns, result: &mut ClaimResult) {
        let id = rows::number(row, columns.id);
        let has_expired = rows::optional_time(row, columns.expires_at).is_some_and(|end| end <= result.now);
        let deliveries = rows::count(row, columns.deliveries_count);
        let reason = match self.is_live {
            true if has_expired => Some(DeadLetterReason::EXPIRED),
            true if deliveries >= self.options.max_receive_count => Some(DeadLetterReason::MAX_RECEIVE_COUNT),
            _ => None,
        };
        let key = rows::optional_text(row, columns.ordering_key);
        let dead = |reason, error| DeadOnClaim { row: id, ordering_key: key, reason, error };
        if let Some(reason) = reason {
            result.uncounted.push(id);
            result.dead.push(dead(reason, None));
            return;
        }
        result.counted.push(id);
        match Label::read(row, label_columns) {
            Err(text) if self.is_live => result.dead.push(dead(DeadLetterReason::UNDECODABLE, Some(text))),
            label => {
                let label = label.unwrap_or_else(|_| Label::read_leniently(row, label_columns));
                let claimed = self.deliver(row, label, columns, result.now);
                result.messages.push(claimed);
            }
        }
    }

    fn deliver(&self, row: &Row, label: Label, columns: ClaimColumns, now: Timestamp) -> Claimed {
        let id = rows::number(row, columns.id);
        let envelope = Envelope {
            id: label.id,
            queue: self.queue.clone(),
            content_type: label.content_type,
            headers: label.headers,
            ordering_key: label.ordering_key,
            dedup_key: rows::key(row, columns.dedup_key, "dedup key"),
            priority: label.priority,
            expires_at: rows::optional_time(row, columns.expires_at),
            receive_count: rows::count(row, columns.deliveries_count).saturating_add(1),
            attempts_count: rows::count(row, columns.attempts_count),
            enqueued_at: rows::time(row, columns.created_at),
            first_attempt_at: rows::optional_time(row, columns.first_attempt_at).unwrap_or(now),
            lease_expires_at: self.end(now),
        };
        let stripe = self.stripe(rows::optional_text(row, columns.ordering_key).as_deref());
        let token = token(self.lease, stripe, id);
        let native = NativeRef::Row(id.cast_unsigned());
        let receipt = ReceiptHandle::new(PROVIDER, self.queue.clone(), envelope.id, token, native);
        Claimed { body: rows::body(row, columns.payload), envelope, receipt }
    }

    fn end(&self, now: Timestamp) -> Timestamp {
        // Rounded up, like every duration.
        let micros = literal::micros(self.options.visibility);
        Timestamp::from_micros(now.as_micros().saturating_add(micros))
    }

    /// Returns the stripe of a key; `None` in a dead-letter queue, which has no order.
    fn stripe(&self, key: Option<&str>) -> Option<i32> {
        key.filter(|_| self.is_live).map(|key| stripe(&self.queue, key))
    }

    /// Returns the statement that leases one row to dead-letter it, uncounted.
    pub(crate) fn lease_dead(&self, sql: &Sql, row: i64, now: Timestamp) -> String {
        let (until, now) = (literal::time(self.end(now)), literal::time(now));
        let (lease, row) = (self.lease.to_string(), row.to_string());
        let values =
            [("until", until.as_str()), ("now", now.as_str()), ("lease", lease.as_str()), ("ids", row.as_str())];
        fill(&sql.lease_dead, &values)
    }

    /// Returns the statements that lease the rows and, for dead letters, read their dedup keys, which are in their
    /// records.
    pub(crate) fn lease(&self, sql: &Sql, result: &ClaimResult) -> String {
        let (until, now) = (literal::time(self.end(result.now)), literal::time(result.now));
        let lease = self.lease.to_string();
        let statement = |statement: &str, rows: &[i64]| {
            fill(statement, &[("until", &until), ("now", &now), ("lease", &lease), ("ids", &literal::list(rows))])
        };
        let mut steps = Vec::new();
        if !result.counted.is_empty() {
            steps.push(statement(&sql.lease, &result.counted));
        }
        if !result.uncounted.is_empty() {
            steps.push(statement(&sql.lease_dead, &result.uncounted));
        }
        if !self.is_live {
            steps.push(fill(&sql.dead_dedup_keys, &[("ids", &literal::list(&result.counted))]));
        }
        steps.join(";\n")
    }

    /// Adds the dedup keys of dead letters.
    pub(crate) fn add_dedup_keys(&self, result: &mut ClaimResult, answers: &Answers) {
        let keys: HashMap<u64, Option<Key>> = answers
            .iter()
            .flatten()
            .map(|row| (rows::number(row, "id").cast_unsigned(), rows::key(row, "dedup_key", "dedup key")))
            .collect();
        for claimed in &mut result.messages {
            if let Some(key) = claimed.receipt.row().ok().and_then(|row| keys.get(&row)) {
                claimed.envelope.dedup_key.clone_from(key);
            }
        }
    }
}

impl Shared {
    /// Returns when a message of a queue becomes due. Promotes keys that other transactions left without a head.
    pub(crate) async fn next_due(&self, queue: &QueueName) -> Result<Due, Undone> {
        let found = self.ask("receive", Deadline::default(), self.look_for_next_due(queue)).await?;
        let Some(row) = found.first() else { return Ok(Due::In(Duration::MAX)) };
        let has_unplaced = rows::flag(row, "has_unplaced");
        if has_unplaced && self.promote_unplaced(queue).await? {
            return Ok(Due::Now);
        }
        Ok(match rows::optional_number(row, "due_in") {
            Some(micros) if micros <= 0 => Due::Now,
            Some(micros) => Due::In(Duration::from_micros(micros.unsigned_abs())),
            None if has_unplaced => Due::Now,
            None => Due::In(Duration::MAX),
        })
    }

    pub(crate) fn look_for_next_due(&self, queue: &QueueName) -> String {
        let (sql, name) = (&self.database.sql, literal::bytes(queue.as_str().as_bytes()));
        let probe =
            |priority: usize| fill(&sql.next_due_probe, &[("queue", &name), ("priority", &priority.to_string())]);
        fill(&sql.next_due, &[("queue", &name), ("probes", &URGENT_FIRST.map(probe).join(" union all "))])
    }

    /// Dead-letters what a claim leased for that. The leases keep other claims away meanwhile; if it fails, they expire
    /// and the next claim finds the same messages.
    pub(crate) async fn dead_letter_claimed(&self, claim: &Claim, dead: &[DeadOnClaim]) -> Result<(), Undone> {
        if dead.is_empty() {
            return Ok(());
        }
        persist(|| self.try_dead_letter_claimed(claim, dead)).await?;
        self.histories.lift(&claim.queue);
        self.touch([&claim.queue, &claim.queue.dead_letters()]);
        Ok(())
    }

    async fn try_dead_letter_claimed(&self, claim: &Claim, dead: &[DeadOnClaim]) -> Result<(), Undone> {
        let stripes = in_order(dead.iter().filter_map(|dead| claim.stripe(dead.ordering_key.as_deref())).collect());
        let mut session = self.database.session("receive", Deadline::default()).await?;
        let sql = session.sql();
        let taken = taken_stripes(&session.begin(lock_free_stripes(sql, &stripes)).await?.concat());
        let ids = literal::list(dead.iter().map(|dead| dead.row));
        let found = session.query(held(sql, &ids, "for update skip locked")).await?.concat();
        let held = Held::by_row(&found);
        let is_ours = |dead: &&DeadOnClaim| {
            held.get(&dead.row).is_some_and(|held| held.is_valid && held.token == Some(claim.lease))
        };
        let ours: Vec<&DeadOnClaim> = dead.iter().filter(is_ours).collect();
        let dead: Vec<(i64, String, Option<String>)> =
            ours.iter().map(|dead| (dead.row, dead.reason.as_str().to_owned(), dead.error.clone())).collect();
        let is_ordered = |dead: &&&DeadOnClaim| claim.is_live && dead.ordering_key.is_some();
        let keys = ours.iter().filter(is_ordered);
        let keys = keys.filter_map(|dead| Some((&claim.queue, dead.ordering_key.as_deref()?))).collect();
        let steps = promote_or_leave(&mut session, end_lives(sql, &dead), &keys, &taken).await?;
        session.commit(steps.join(";\n")).await.map(drop)
    }

    /// Leases one message by its id if it can be claimed now.
    pub(crate) async fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<Claimed>, Undone> {
        let claim = Claim::new(self, queue, 1, options);
        self.promote_unplaced(queue).await?;
        let find = &[("queue", claim.name.as_str()), ("message_id", &literal::id(id))];
        let found = self.ask("receive", deadline, fill(&self.database.sql.find_by_id, find)).await?;
        if found.is_empty() {
            return Ok(None);
        }
        let ids = literal::list(found.iter().map(|row| rows::number(row, "id")));
        let mut session = self.database.session("receive", deadline).await?;
        let sql = session.sql();
        let taken = session.begin(fill(&sql.claim_by_id, &[("queue", &claim.name), ("ids", &ids)])).await?.concat();
        let mut result = claim.read(&taken);
        let leased = session.commit(claim.lease(sql, &result)).await?;
        claim.add_dedup_keys(&mut result, &leased);
        drop(session);
        self.dead_letter_claimed(&claim, &result.dead).await?;
        Ok(result.messages.pop())
    }

    /// Promotes the keys that transactions of callers have changed, and lists the queues that they created. Returns
    /// whether it promoted any; keys whose stripes others hold are left to the next claim.
    pub(crate) async fn promote_unplaced(&self, queue: &QueueName) -> Result<bool, Undone> {
        if queue.holds_dead_letters() {
            return Ok(false);
        }
        persist(|| self.try_promote_unplaced(queue)).await
    }

    async fn try_promote_unplaced(&self, queue: &QueueName) -> Result<bool, Undone> {
        let name = literal::bytes(queue.as_str().as_bytes());
        let look = fill(&self.database.sql.unplaced, &[("queue", &name)]);
        let found = self.ask("receive", Deadline::default(), look).await?;
        if found.is_empty() {
            return Ok(false);
        }
        let [id, key] = positions(&found, ["id", "ordering_key"]);
        let mut unplaced: Vec<(i64, Option<String>)> =
            found.iter().map(|row| (rows::number(row, id), rows::optional_text(row, key))).collect();
        let stripes = unplaced.iter().filter_map(|(_, key)| Some(stripe(queue, key.as_deref()?)));
        let stripes = in_order(stripes.collect());
        let mut session = self.database.session("receive", Deadline::default()).await?;
        let sql = session.sql();
        let taken = taken_stripes(&session.begin(lock_free_stripes(sql, &stripes)).await?.concat());
        unplaced.retain(|(_, key)| key.as_deref().is_none_or(|key| taken.contains(&stripe(queue, key))));
        if unplaced.is_empty() {
            session.rollback().await?;
            return Ok(false);
        }
        let ids = literal::list(unplaced.iter().map(|(id, _)| id));
        let steps = vec![ensure_queues(&sql.ensure_queue, [queue]), fill(&sql.forget_unplaced, &[("ids", &ids)])];
        let keys = unplaced.iter().filter_map(|(_, key)| Some((queue.as_str(), key.as_deref()?)));
        let steps = promote(&mut session, steps, keys).await?;
        session.commit(steps.join(";\n")).await?;
        self.histories.lift(queue);
        Ok(true)
    }
}
