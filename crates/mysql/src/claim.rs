//! Where messages are claimed: leased, or dead-lettered because they were read too often or too late.

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
use crate::connection::Answers;
use crate::dead_letters::end_lives;
use crate::lease::{Held, held};
use crate::literal::{self, fill};
use crate::rows::{self, Label};
use crate::send::{lock_free_stripes, promote, promote_or_leave, taken_stripes};
use crate::sql::Sql;
use crate::store::{Shared, ensure_queues};
use crate::turns::{Floors, Turn};

/// The priorities, the most urgent first.
const URGENT_FIRST: [usize; 10] = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0];

/// So many messages are leased by one transaction at most, whatever was asked for.
const MOST_LEASES: usize = 1000;

/// A message that was leased to be buried.
#[derive(Debug)]
pub(crate) struct Doomed {
    row: i64,
    ordering_key: Option<String>,
    reason: DeadLetterReason,
    error: Option<String>,
}

impl Doomed {
    /// A row that is leased only to be buried.
    pub(crate) fn new(row: i64, ordering_key: Option<String>, reason: DeadLetterReason, error: Option<String>) -> Self {
        Self { row, ordering_key, reason, error }
    }
}

/// A claim, before it is sent.
#[derive(Debug)]
pub(crate) struct Claim {
    queue: QueueName,
    name: String,
    limit: usize,
    options: ReceiveOptions,
    lease: i64,
    /// Dead letters can be read for ever.
    is_mortal: bool,
    turn: Turn,
}

/// What a claim can take.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    /// Whether keys wait to be put in order.
    pub(crate) has_unplaced: bool,
    /// The priorities that have something due, in the order in which they are served.
    pub(crate) priorities: Vec<usize>,
}

/// What a claim brought.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    pub(crate) messages: Vec<Claimed>,
    pub(crate) doomed: Vec<Doomed>,
    /// Rows that are leased without being counted.
    uncounted: Vec<i64>,
    counted: Vec<i64>,
    now: Timestamp,
}

impl Claim {
    pub(crate) fn new(shared: &Shared, queue: &QueueName, max: usize, options: &ReceiveOptions) -> Self {
        Self {
            turn: shared.turns.next(queue),
            queue: queue.clone(),
            name: literal::bytes(queue.as_str().as_bytes()),
            limit: max.min(MOST_LEASES),
            options: options.clone(),
            lease: rand::random(),
            is_mortal: !queue.holds_dead_letters(),
        }
    }

    /// How many it takes at most.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Asks what there is to take.
    pub(crate) fn look(&self, sql: &Sql) -> String {
        let probe = |priority: usize| fill(&sql.head_probe, &self.place(&priority.to_string(), &self.floor(priority)));
        let probes = URGENT_FIRST.map(probe);
        fill(&sql.heads, &[("queue", &self.name), ("probes", &probes.join(",\n"))])
    }

    /// Reads what the look answered.
    pub(crate) fn heads(&self, found: &[Row]) -> Heads {
        let Some(row) = found.first() else { return Heads::default() };
        let is_paused = rows::flag(row, 0);
        let due = URGENT_FIRST
            .into_iter()
            .enumerate()
            .filter_map(|(n, priority)| Some((rows::optional_time(row, n + 2)?, priority)));
        let mut due: Vec<(Timestamp, usize)> = due.filter(|_| !is_paused).collect();
        if self.turn.oldest_first {
            due.sort_by_key(|(time, _)| *time);
        }
        let priorities = due.into_iter().map(|(_, priority)| priority).collect();
        Heads { has_unplaced: rows::flag(row, 1) && self.is_mortal, priorities }
    }

    /// Takes rows of one priority.
    pub(crate) fn take(&self, sql: &Sql, priority: usize, limit: usize) -> String {
        let (priority, floor, limit) = (priority.to_string(), self.floor(priority), limit.to_string());
        let [queue, priority, floor] = self.place(&priority, &floor);
        fill(&sql.claim, &[queue, priority, floor, ("limit", &limit)])
    }

    fn floor(&self, priority: usize) -> String {
        literal::time(self.turn.floors.of(priority))
    }

    fn place<'t>(&'t self, priority: &'t str, floor: &'t str) -> [(&'t str, &'t str); 3] {
        [("queue", &self.name), ("priority", priority), ("floor", floor)]
    }

    /// Looks at everything from now on. False when it did already.
    pub(crate) fn lift_floors(&mut self) -> bool {
        let had_floors = !self.turn.floors.is_empty();
        self.turn.floors = Floors::default();
        had_floors
    }

    /// The due times at which a full claim stopped, by priority.
    pub(crate) fn stopped(&self, taken: &[Row]) -> HashMap<usize, Timestamp> {
        let mut stopped = HashMap::new();
        for row in taken {
            let (priority, time) = (rows::count(row, 5) as usize, rows::time(row, 14));
            let last = stopped.entry(priority).or_insert(time);
            *last = time.max(*last);
        }
        stopped
    }

    /// Reads what the statements answered.
    pub(crate) fn read(&self, taken: &[Row]) -> Brought {
        let mut ordered: Vec<&Row> = taken.iter().collect();
        ordered.sort_by_key(|row| {
            let urgency = if self.turn.oldest_first { 0 } else { -rows::number(row, 5) };
            (urgency, rows::time(row, 14), rows::number(row, 0))
        });
        let now = ordered.iter().map(|row| rows::time(row, 13)).max().unwrap_or(Timestamp::EPOCH);
        let mut brought = Brought { now, ..Brought::default() };
        for row in ordered {
            self.judge(row, &mut brought);
        }
        brought
    }

    fn judge(&self, row: &Row, brought: &mut Brought) {
        let id = rows::number(row, 0);
        let has_expired = rows::optional_time(row, 10).is_some_and(|end| end <= brought.now);
        let reason = match self.is_mortal {
            true if has_expired => Some(DeadLetterReason::EXPIRED),
            true if rows::count(row, 6) >= self.options.max_receive_count => Some(DeadLetterReason::MAX_RECEIVE_COUNT),
            _ => None,
        };
        let doomed = |reason, error| Doomed { row: id, ordering_key: rows::optional_text(row, 4), reason, error };
        if let Some(reason) = reason {
            brought.uncounted.push(id);
            brought.doomed.push(doomed(reason, None));
            return;
        }
        brought.counted.push(id);
        match Label::read(row, [1, 2, 3, 4, 5]) {
            Err(text) if self.is_mortal => brought.doomed.push(doomed(DeadLetterReason::UNDECODABLE, Some(text))),
            label => {
                let label = label.unwrap_or_else(|_| Label::read_leniently(row, [1, 2, 3, 4, 5]));
                let claimed = self.deliver(row, id, label, brought.now);
                brought.messages.push(claimed);
            }
        }
    }

    fn deliver(&self, row: &Row, id: i64, label: Label, now: Timestamp) -> Claimed {
        let envelope = Envelope {
            id: label.id,
            queue: self.queue.clone(),
            content_type: label.content_type,
            headers: label.headers,
            ordering_key: label.ordering_key,
            dedup_key: rows::key(row, 11, "dedup key"),
            priority: label.priority,
            expires_at: rows::optional_time(row, 10),
            receive_count: rows::count(row, 6).saturating_add(1),
            attempts_count: rows::count(row, 7),
            enqueued_at: rows::time(row, 8),
            first_attempt_at: rows::optional_time(row, 9).unwrap_or(now),
            lease_expires_at: self.end(now),
        };
        let stripe = self.stripe(rows::optional_text(row, 4).as_deref());
        let token = token(self.lease, stripe, id);
        let native = NativeRef::Row(id.cast_unsigned());
        let receipt = ReceiptHandle::new(PROVIDER, self.queue.clone(), envelope.id, token, native);
        Claimed { body: rows::body(row, 12), envelope, receipt }
    }

    fn end(&self, now: Timestamp) -> Timestamp {
        // Rounded up, as every duration is.
        let micros = literal::micros(self.options.visibility);
        Timestamp::from_micros(now.as_micros().saturating_add(micros))
    }

    /// The stripe of a key, where keys are ordered.
    fn stripe(&self, key: Option<&str>) -> Option<i32> {
        key.filter(|_| self.is_mortal).map(|key| stripe(&self.queue, key))
    }

    /// Leases one row only to bury it, uncounted.
    pub(crate) fn lease_doomed(&self, sql: &Sql, row: i64, now: Timestamp) -> String {
        let (until, now) = (literal::time(self.end(now)), literal::time(now));
        let (lease, row) = (self.lease.to_string(), row.to_string());
        let values =
            [("until", until.as_str()), ("now", now.as_str()), ("lease", lease.as_str()), ("ids", row.as_str())];
        fill(&sql.lease_doomed, &values)
    }

    /// Leases what was read. A dead letter's dedup key is answered too: its record has it.
    pub(crate) fn lease(&self, sql: &Sql, brought: &Brought) -> String {
        let (until, now) = (literal::time(self.end(brought.now)), literal::time(brought.now));
        let lease = self.lease.to_string();
        let statement = |statement: &str, rows: &[i64]| {
            fill(statement, &[("until", &until), ("now", &now), ("lease", &lease), ("ids", &literal::list(rows))])
        };
        let mut steps = Vec::new();
        if !brought.counted.is_empty() {
            steps.push(statement(&sql.lease, &brought.counted));
        }
        if !brought.uncounted.is_empty() {
            steps.push(statement(&sql.lease_doomed, &brought.uncounted));
        }
        if !self.is_mortal {
            steps.push(fill(&sql.dead_dedup_keys, &[("ids", &literal::list(&brought.counted))]));
        }
        steps.join(";\n")
    }

    /// Takes note of what the lease answered.
    pub(crate) fn add_dedup_keys(&self, brought: &mut Brought, answers: &Answers) {
        let keys: HashMap<u64, Option<Key>> = answers
            .iter()
            .flatten()
            .map(|row| (rows::number(row, 0).cast_unsigned(), rows::key(row, 1, "dedup key")))
            .collect();
        for claimed in &mut brought.messages {
            if let Some(key) = claimed.receipt.row().ok().and_then(|row| keys.get(&row)) {
                claimed.envelope.dedup_key.clone_from(key);
            }
        }
    }
}

impl Shared {
    /// When something in a queue can be received. Puts keys in order that others have left unplaced.
    pub(crate) async fn next_due(&self, queue: &QueueName) -> Result<Due, Undone> {
        let found = self.ask("receive", Deadline::default(), self.look_for_next_due(queue)).await?;
        let Some(row) = found.first() else { return Ok(Due::In(Duration::MAX)) };
        if rows::flag(row, 1) && self.place(queue).await? {
            return Ok(Due::Now);
        }
        Ok(match rows::optional_number(row, 0) {
            Some(micros) if micros <= 0 => Due::Now,
            Some(micros) => Due::In(Duration::from_micros(micros.unsigned_abs())),
            None if rows::flag(row, 1) => Due::Now,
            None => Due::In(Duration::MAX),
        })
    }

    pub(crate) fn look_for_next_due(&self, queue: &QueueName) -> String {
        let (sql, name) = (&self.database.sql, literal::bytes(queue.as_str().as_bytes()));
        let probe =
            |priority: usize| fill(&sql.next_due_probe, &[("queue", &name), ("priority", &priority.to_string())]);
        fill(&sql.next_due, &[("queue", &name), ("probes", &URGENT_FIRST.map(probe).join(" union all "))])
    }

    /// Buries what a claim leased only for that. Until it is done the leases keep everybody else away; if it fails, they
    /// run out and the next claim finds the same.
    pub(crate) async fn bury(&self, claim: &Claim, doomed: &[Doomed]) -> Result<(), Undone> {
        if doomed.is_empty() {
            return Ok(());
        }
        persist(|| self.try_bury(claim, doomed)).await?;
        self.turns.lift(&claim.queue);
        self.touch([&claim.queue, &claim.queue.dead_letters()]);
        Ok(())
    }

    async fn try_bury(&self, claim: &Claim, doomed: &[Doomed]) -> Result<(), Undone> {
        let stripes =
            in_order(doomed.iter().filter_map(|doomed| claim.stripe(doomed.ordering_key.as_deref())).collect());
        let mut session = self.database.session("receive", Deadline::default()).await?;
        let sql = session.sql();
        let taken = taken_stripes(&session.begin(lock_free_stripes(sql, &stripes)).await?.concat());
        let ids = literal::list(doomed.iter().map(|doomed| doomed.row));
        let found = session.query(held(sql, &ids, "for update skip locked")).await?.concat();
        let held = Held::by_row(&found);
        let is_ours = |doomed: &&Doomed| {
            held.get(&doomed.row).is_some_and(|held| held.is_valid && held.token == Some(claim.lease))
        };
        let ours: Vec<&Doomed> = doomed.iter().filter(is_ours).collect();
        let dead: Vec<(i64, String, Option<String>)> =
            ours.iter().map(|doomed| (doomed.row, doomed.reason.as_str().to_owned(), doomed.error.clone())).collect();
        let is_ordered = |doomed: &&&Doomed| claim.is_mortal && doomed.ordering_key.is_some();
        let keys = ours.iter().filter(is_ordered);
        let keys = keys.filter_map(|doomed| Some((&claim.queue, doomed.ordering_key.as_deref()?))).collect();
        let steps = promote_or_leave(&mut session, end_lives(sql, &dead), &keys, &taken).await?;
        session.commit(steps.join(";\n")).await.map(drop)
    }

    /// Leases one message by its id, if it may be received now.
    pub(crate) async fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<Claimed>, Undone> {
        let claim = Claim::new(self, queue, 1, options);
        self.place(queue).await?;
        let find = &[("queue", claim.name.as_str()), ("message_id", &literal::id(id))];
        let found = self.ask("receive", deadline, fill(&self.database.sql.find_by_id, find)).await?;
        if found.is_empty() {
            return Ok(None);
        }
        let ids = literal::list(found.iter().map(|row| rows::number(row, 0)));
        let mut session = self.database.session("receive", deadline).await?;
        let sql = session.sql();
        let taken = session.begin(fill(&sql.claim_by_id, &[("queue", &claim.name), ("ids", &ids)])).await?.concat();
        let mut brought = claim.read(&taken);
        let leased = session.commit(claim.lease(sql, &brought)).await?;
        claim.add_dedup_keys(&mut brought, &leased);
        drop(session);
        self.bury(&claim, &brought.doomed).await?;
        Ok(brought.messages.pop())
    }

    /// Puts keys in order that transactions of others have changed, and lists the queues that they made. Keys that
    /// somebody is busy with are left to the next claim. Answers whether anything was done.
    pub(crate) async fn place(&self, queue: &QueueName) -> Result<bool, Undone> {
        if queue.holds_dead_letters() {
            return Ok(false);
        }
        persist(|| self.try_place(queue)).await
    }

    async fn try_place(&self, queue: &QueueName) -> Result<bool, Undone> {
        let name = literal::bytes(queue.as_str().as_bytes());
        let look = fill(&self.database.sql.unplaced, &[("queue", &name)]);
        let found = self.ask("receive", Deadline::default(), look).await?;
        if found.is_empty() {
            return Ok(false);
        }
        let mut unplaced: Vec<(i64, Option<String>)> =
            found.iter().map(|row| (rows::number(row, 0), rows::optional_text(row, 1))).collect();
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
        self.turns.lift(queue);
        Ok(true)
    }
}
