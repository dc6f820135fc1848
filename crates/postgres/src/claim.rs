//! Claims: messages are leased, or dead-lettered because they were delivered too often or have expired.

use std::time::{Duration, Instant};

use postrider_core::{
    DeadLetterReason, Deadline, Envelope, MessageId, MessagingError, NativeRef, QueueName, ReceiptHandle,
    ReceiveOptions, RowResults, Settlement,
};
use postrider_provider::{Claimed, Undone, persist};
use postrider_sql::stripes::{in_order, stripe, token};
use postrider_sql::{Due, Taken};
use tokio_postgres::Row;
use uuid::Uuid;

use postrider_pg::Step;

use crate::PROVIDER;
use crate::floor::LowerBounds;
use crate::rows::{self, Label, LabelColumns, micros, positions};
use crate::settle::{Busy, Leases, Settling, lease_step};
use crate::sql::Sql;
use crate::store::Shared;

/// Each 16th claim takes the oldest due message first, whatever its priority, so that none starves.
const OLDEST_FIRST_EVERY: u64 = 16;

/// Upper bound of one claim statement.
const MAX_LEASES: usize = 1000;

/// Delay before keys whose stripes others hold are promoted again.
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(100);

postrider_pg::columns! {
    /// The columns that a claim returns, but for the label's.
    ClaimColumns {
        id, message_id, ordering_key, priority, deliveries_count, attempts_count, created_at, first_attempt_at, expires_at,
        dedup_key, payload, next_attempt_at, due, death,
    }
}

/// A message that is leased only to be dead-lettered.
#[derive(Debug)]
struct DeadOnClaim {
    row: i64,
    id: Uuid,
    ordering_key: Option<String>,
    reason: DeadLetterReason,
    error: Option<String>,
}

/// The parameters of a claim.
#[derive(Debug)]
struct Claim {
    queue: QueueName,
    name: String,
    limit: i64,
    visibility: i64,
    lease: i64,
    /// False for dead letters: they have no order, no expiry and no delivery limit.
    is_live: bool,
    max_receive_count: i64,
    oldest_first: bool,
    /// Whether the caller waits when the claim is empty.
    will_wait: bool,
    bounds: LowerBounds,
}

/// The rows of a claim.
#[derive(Debug, Default)]
struct ClaimResult {
    messages: Vec<Claimed>,
    dead: Vec<DeadOnClaim>,
    /// Whether keys wait to be promoted.
    has_unplaced: bool,
}

/// What is left to do after the transaction of a claim.
#[derive(Debug)]
pub struct Chores {
    claim: Claim,
    dead: Vec<DeadOnClaim>,
    has_unplaced: bool,
    /// Whether the claim was skipped.
    must_claim: bool,
}

impl Claim {
    fn new(shared: &Shared, queue: &QueueName, max: usize, options: &ReceiveOptions, bounds: LowerBounds) -> Self {
        let earlier_claims = shared.count_claim(queue);
        Self {
            queue: queue.clone(),
            name: queue.as_str().to_owned(),
            limit: max.min(MAX_LEASES) as i64,
            visibility: micros(options.visibility),
            lease: rand::random(),
            is_live: !queue.holds_dead_letters(),
            max_receive_count: options.max_receive_count.into(),
            oldest_first: earlier_claims % OLDEST_FIRST_EVERY == OLDEST_FIRST_EVERY - 1,
            will_wait: !options.wait.is_zero(),
            bounds,
        }
    }

    fn step<'p>(&'p self, sql: &'p Sql) -> Step<'p> {
        let text = if self.oldest_first { &sql.claim_oldest } else { &sql.claim };
        let parameters: [&(dyn postgres_types::ToSql + Sync); 7] = [
            &self.name,
            &self.limit,
            &self.visibility,
            &self.lease,
            &self.is_live,
            &self.max_receive_count,
            &self.bounds.floors,
        ];
        Step::new(text, parameters)
    }

    /// Reads the rows that the statement returned.
    fn read(&self, rows: &[Row]) -> ClaimResult {
        let mut result = ClaimResult::default();
        let (label, columns) = (LabelColumns::of(rows), ClaimColumns::of(rows));
        // `returning` guarantees no order.
        let mut ordered: Vec<&Row> = rows.iter().collect();
        ordered.sort_by_key(|row| {
            let urgency = if self.oldest_first { 0 } else { -row.get::<_, i16>(columns.priority) };
            (urgency, rows::time(row, columns.due), row.get::<_, i64>(columns.id))
        });
        for row in ordered {
            self.read_row(row, label, columns, &mut result);
        }
        result
    }

    fn read_row(&self, row: &Row, label_columns: LabelColumns, columns: ClaimColumns, result: &mut ClaimResult) {
        let id: i64 = row.get(columns.id);
        let label = Label::read(row, label_columns);
        let dead = |reason, error| DeadOnClaim {
            row: id,
            id: row.get(columns.message_id),
            ordering_key: row.get(columns.ordering_key),
            reason,
            error,
        };
        match (row.get::<_, Option<&str>>(columns.death), label) {
            (Some(reason), _) => result.dead.push(dead(reason.into(), None)),
            (None, Err(text)) if self.is_live => {
                result.dead.push(dead(DeadLetterReason::UNDECODABLE, Some(text)));
            }
            (None, label) => {
                let label = label.unwrap_or_else(|_| Label::read_leniently(row, label_columns));
                result.messages.push(self.deliver(row, id, label, columns));
            }
        }
    }

    fn deliver(&self, row: &Row, id: i64, label: Label, columns: ClaimColumns) -> Claimed {
        let created_at = rows::time(row, columns.created_at);
        let envelope = Envelope {
            id: label.id,
            queue: self.queue.clone(),
            content_type: label.content_type,
            headers: label.headers,
            ordering_key: label.ordering_key,
            dedup_key: rows::key(row, columns.dedup_key, "dedup key"),
            priority: label.priority,
            expires_at: rows::optional_time(row, columns.expires_at),
            receive_count: rows::count(row, columns.deliveries_count),
            attempts_count: rows::count(row, columns.attempts_count),
            enqueued_at: created_at,
            first_attempt_at: rows::optional_time(row, columns.first_attempt_at).unwrap_or(created_at),
            lease_expires_at: rows::time(row, columns.next_attempt_at),
        };
        let stripe = self.stripe(row.get(columns.ordering_key));
        let token = token(self.lease, stripe, id);
        let native = NativeRef::Row(id.cast_unsigned());
        let receipt = ReceiptHandle::new(PROVIDER, self.queue.clone(), envelope.id, token, native);
        Claimed { body: rows::body(row, columns.payload), envelope, receipt }
    }

    /// Returns the stripe of a key; `None` in a dead-letter queue, which has no order.
    fn stripe(&self, key: Option<&str>) -> Option<i32> {
        key.filter(|_| self.is_live).map(|key| stripe(&self.queue, key))
    }
}

impl Shared {
    /// Settles, and claims from one queue, in one transaction.
    pub(crate) async fn settle_and_claim(
        &self,
        settlements: &[Settlement],
        queue: &QueueName,
        wanted: usize,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Taken<Chores>, Undone> {
        let began = Instant::now();
        let settling = Settling::new(self, settlements, &Busy::default());
        let claim = Claim::new(self, queue, wanted, options, self.floors.lower_bounds(queue));
        let taken = self.try_settle_and_claim(settling, &claim, began, deadline).await;
        let taken = taken.inspect_err(|_| self.floors.failed(queue, &claim.bounds));
        let (settled, ClaimResult { messages, dead, has_unplaced }, must_claim) = match taken {
            Ok((settled, result)) => (settled, result, false),
            // Another transaction has locked one of the rows; the others must not wait for it.
            Err(Undone::InTheWay(_)) if !settlements.is_empty() => {
                (self.settle_free(settlements).await?, ClaimResult::default(), true)
            }
            Err(error) => return Err(error),
        };
        Ok(Taken { settled, messages, chores: Chores { claim, dead, has_unplaced, must_claim } })
    }

    async fn try_settle_and_claim(
        &self,
        settling: Settling,
        claim: &Claim,
        began: Instant,
        deadline: Deadline,
    ) -> Result<(RowResults<()>, ClaimResult), Undone> {
        let class = self.database.sql.schema.lock_class();
        let mut session = self.database.session("receive", deadline).await?;
        let mut steps = Vec::new();
        let locks = usize::from(!settling.stripes.is_empty());
        if locks > 0 {
            steps.push(Step::new(&session.sql().await_stripes, [&class as _, &settling.stripes as _]));
        }
        steps.extend(settling.steps(session.sql()));
        steps.push(claim.step(session.sql()));
        let mut answers = session.run(&steps).await?;
        drop((steps, session));
        let rows = answers.pop().unwrap_or_default();
        let mut result = claim.read(&rows);
        // An empty claim returns no flag. A caller that waits reads it in `next_due`; for one that does not, assume it
        // is set.
        result.has_unplaced = rows.first().map_or(!claim.will_wait, |row| row.get("has_unplaced"));
        let [priority, due] = positions(&rows, ["priority", "due"]);
        let taken = rows
            .iter()
            .filter_map(|row| Some((usize::try_from(row.get::<_, i16>(priority)).ok()?, rows::time(row, due))));
        let is_full = result.messages.len() + result.dead.len() >= usize::try_from(claim.limit).unwrap_or(0);
        if let Some(row) = rows.first() {
            // The end of a lease is the server's clock plus the visibility.
            let visibility = Duration::from_micros(claim.visibility.unsigned_abs());
            let now = rows::time(row, "next_attempt_at").saturating_sub(visibility);
            self.floors.note_clock(&claim.queue, now);
        }
        self.floors.claimed(&claim.queue, &claim.bounds, taken, is_full);
        let (settled, touched) = settling.finish(answers.iter().skip(locks));
        self.touch(&touched, began);
        Ok((settled, result))
    }

    /// Dead-letters what the claim found dead and promotes keys. Returns whether there may be more to claim now.
    pub(crate) async fn do_chores(&self, queue: &QueueName, chores: Chores) -> Result<bool, Undone> {
        self.dead_letter_claimed(&chores.claim, &chores.dead).await?;
        let has_promoted = chores.has_unplaced && self.promote_unplaced(queue).await?;
        Ok(chores.must_claim || !chores.dead.is_empty() || has_promoted)
    }

    /// Returns when a message of a queue becomes due. Promotes keys that other transactions left without a head.
    pub(crate) async fn next_due(&self, queue: &QueueName) -> Result<Due, Undone> {
        let bounds = self.floors.lower_bounds(queue);
        let due = self.look_for_due(queue, &bounds).await;
        match &due {
            Ok(due) => self.floors.note_look(queue, &bounds, *due == Due::Now),
            Err(_) => self.floors.failed(queue, &bounds),
        }
        due
    }

    async fn look_for_due(&self, queue: &QueueName, bounds: &LowerBounds) -> Result<Due, Undone> {
        let (name, horizon) = (queue.as_str(), micros(self.options.poll_interval));
        let statement = &self.database.sql.next_due;
        let parameters: Vec<&(dyn postgres_types::ToSql + Sync)> = vec![&name, &bounds.floors, &horizon];
        let found = self.ask("receive", Deadline::default(), statement, parameters).await?;
        let Some(row) = found.first() else { return Ok(Due::In(Duration::MAX)) };
        self.floors.note_clock(queue, rows::time(row, "now"));
        let has_unplaced = row.get::<_, bool>("has_unplaced") && !queue.holds_dead_letters();
        if has_unplaced && self.promote_unplaced(queue).await? {
            return Ok(Due::Now);
        }
        let again = if has_unplaced { BUSY_RETRY_DELAY } else { Duration::MAX };
        Ok(match row.get::<_, Option<i64>>("due_in") {
            Some(micros) if micros <= 0 => Due::Now,
            Some(micros) => Due::In(again.min(Duration::from_micros(micros.unsigned_abs()))),
            None => Due::In(again),
        })
    }

    /// Dead-letters what a claim leased for that. The leases keep other claims away meanwhile; if it fails, they expire
    /// and the next claim finds the same messages.
    async fn dead_letter_claimed(&self, claim: &Claim, dead: &[DeadOnClaim]) -> Result<(), Undone> {
        if dead.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        persist(|| self.try_dead_letter_claimed(claim, dead)).await?;
        self.touch([&claim.queue, &claim.queue.dead_letters()], began);
        Ok(())
    }

    async fn try_dead_letter_claimed(&self, claim: &Claim, dead: &[DeadOnClaim]) -> Result<(), Undone> {
        let mut dead: Vec<&DeadOnClaim> = dead.iter().collect();
        dead.sort_by_key(|dead| dead.row);
        let leases = Leases {
            rows: dead.iter().map(|dead| dead.row).collect(),
            tokens: vec![claim.lease; dead.len()],
            ids: dead.iter().map(|dead| dead.id).collect(),
            queues: vec![claim.name.clone(); dead.len()],
        };
        let reasons: Vec<&str> = dead.iter().map(|dead| dead.reason.as_str()).collect();
        let errors: Vec<Option<&str>> = dead.iter().map(|dead| dead.error.as_deref()).collect();
        let is_read = vec![false; dead.len()];
        let stripes: Vec<Option<i32>> = dead.iter().map(|dead| claim.stripe(dead.ordering_key.as_deref())).collect();
        let mut session = self.database.session("receive", Deadline::default()).await?;
        session.begin().await?;
        let got = self.lock_free_stripes(&session, &in_order(stripes.iter().flatten().copied().collect())).await?;
        let holds_stripe: Vec<bool> =
            stripes.iter().map(|stripe| stripe.is_some_and(|stripe| got.contains(&stripe))).collect();
        let step = lease_step(&session.sql().dead_letter, &leases);
        let step = step.and([&holds_stripe, &reasons, &errors, &is_read, &self.worker]);
        session.query(step.sql, &step.parameters).await?;
        session.commit().await
    }

    /// Dead-letters the first of these rows that exists and is not leased. It is leased first, as in a claim: if the
    /// move fails, the lease expires and the message becomes due again.
    pub(crate) async fn lease_and_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        rows: &[i64],
        reason: DeadLetterReason,
        error: Option<String>,
    ) -> Result<(), Undone> {
        const DEAD_LETTER: &str = "dead-letter";
        let claim = Claim::new(self, queue, 1, &ReceiveOptions::default(), LowerBounds::none());
        let statement = &self.database.sql.lease_dead;
        let parameters: [&(dyn postgres_types::ToSql + Sync); 5] =
            [&rows, &claim.name, id.as_uuid(), &claim.lease, &claim.visibility];
        let found = persist(|| self.ask(DEAD_LETTER, Deadline::default(), statement, parameters.to_vec())).await?;
        let (row, ordering_key) = match found.first() {
            None => return Err(MessagingError::MessageNotFound { queue: queue.clone(), id }.into()),
            Some(row) if row.get("is_leased") => {
                return Err(MessagingError::MessageLeased { queue: queue.clone(), id }.into());
            }
            Some(row) => (row.get("id"), row.get("ordering_key")),
        };
        let dead = DeadOnClaim { row, id: *id.as_uuid(), ordering_key, reason, error };
        self.dead_letter_claimed(&claim, &[dead]).await
    }

    /// Leases one message by its id if it can be claimed now.
    pub(crate) async fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<Claimed>, Undone> {
        let claim = Claim { oldest_first: false, ..Claim::new(self, queue, 1, options, LowerBounds::none()) };
        self.promote_unplaced(queue).await?;
        let mut session = self.database.session("receive", deadline).await?;
        let find = Step::new(&session.sql().find_by_id, [&claim.name as _, id.as_uuid() as _]);
        let found = session.run(&[find]).await?;
        let mut rows: Vec<i64> = found.iter().flatten().map(|row| row.get("id")).collect();
        rows.sort_unstable();
        if rows.is_empty() {
            return Ok(None);
        }
        let parameters: [&(dyn postgres_types::ToSql + Sync); 6] =
            [&claim.name, &rows, &claim.visibility, &claim.lease, &claim.is_live, &claim.max_receive_count];
        let step = Step::new(&session.sql().claim_by_id, parameters);
        let rows = session.ask(step).await?;
        drop(session);
        let mut result = claim.read(&rows);
        self.dead_letter_claimed(&claim, &result.dead).await?;
        Ok(result.messages.pop())
    }

    /// Promotes the keys that transactions of callers have changed, and lists the queues that they created. Returns
    /// whether it promoted any; keys whose stripes others hold are left.
    async fn promote_unplaced(&self, queue: &QueueName) -> Result<bool, Undone> {
        if queue.holds_dead_letters() {
            return Ok(false);
        }
        let has_promoted = persist(|| self.try_promote_unplaced(queue)).await?;
        if has_promoted {
            // Their messages without keys may have been due long before the commit made them visible.
            self.floors.request_full_scan(queue);
        }
        Ok(has_promoted)
    }

    async fn try_promote_unplaced(&self, queue: &QueueName) -> Result<bool, Undone> {
        let name = queue.as_str();
        let mut session = self.database.session("receive", Deadline::default()).await?;
        let look = Step::new(&session.sql().unplaced, [&name as _]);
        let found = session.ask(look).await?;
        if found.is_empty() {
            return Ok(false);
        }
        let [id, key] = positions(&found, ["id", "ordering_key"]);
        let mut unplaced: Vec<(i64, Option<&str>)> = found.iter().map(|row| (row.get(id), row.get(key))).collect();
        let stripes = in_order(unplaced.iter().filter_map(|(_, key)| Some(stripe(queue, (*key)?))).collect());
        session.begin().await?;
        let mut got = self.lock_free_stripes(&session, &stripes).await?;
        if got.is_empty() && !stripes.is_empty() {
            // Wait for one of them, or busy senders could starve the key. This transaction holds no other lock yet.
            let one = stripes[rand::random_range(0..stripes.len())];
            match self.await_stripes(&session, &[one]).await {
                Err(Undone::InTheWay(_)) => {
                    session.rollback().await?;
                    return Ok(false);
                }
                waited => waited?,
            }
            got.insert(one);
        }
        unplaced.retain(|(_, key)| key.is_none_or(|key| got.contains(&stripe(queue, key))));
        let left = self.promote(&session, unplaced.iter().filter_map(|(_, key)| Some((name, (*key)?)))).await?;
        if unplaced.len() <= left {
            session.rollback().await?;
            return Ok(false);
        }
        let mut rows: Vec<i64> = unplaced.iter().map(|(row, _)| *row).collect();
        rows.sort_unstable();
        session.query(&session.sql().ensure_queue, &[&name]).await?;
        session.query(&session.sql().forget_unplaced, &[&rows]).await?;
        session.commit().await?;
        Ok(true)
    }
}
