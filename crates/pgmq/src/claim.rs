//! Claims: messages are leased, or dead-lettered because they were delivered too often or have expired.

use std::time::Duration;

use postrider_core::{DeadLetterReason, Deadline, Envelope, MessageId, QueueName, ReceiveOptions, Settlement};
use postrider_pg::Step;
use postrider_pg::columns::{Time, micros, time};
use postrider_pg::tokio_postgres::Row;
use postrider_provider::{Claimed, Undone, persist};
use postrider_sql::{Due, Taken};

use crate::lease::Lease;
use crate::names;
use crate::rows::{Stored, StoredColumns};
use crate::settle::Settling;
use crate::sql::OfQueue;
use crate::store::Shared;

/// Upper bound of one claim statement.
const MAX_LEASES: usize = 1000;

/// Messages that a claim reads by due time beyond the wanted ones, before it reads the heads of keys. Usually they
/// suffice.
const WALK: i64 = 100;

/// Returns how many messages are read by due time. Dead letters have no order, so it is unlimited for them.
fn walk(wanted: i64, is_live: bool) -> i64 {
    if is_live { wanted + WALK } else { i64::MAX }
}

postrider_pg::columns! {
    /// The columns that a claim returns, but for those of the row.
    ClaimColumns { msg_id, due, death }
}

/// A message that is leased only to be dead-lettered.
#[derive(Debug)]
struct DeadOnClaim {
    msg_id: i64,
    read_ct: i32,
    vt: Time,
    id: MessageId,
    reason: DeadLetterReason,
    error: Option<String>,
}

/// What is left to do after the transaction of a claim.
#[derive(Debug, Default)]
pub struct Chores {
    dead: Vec<DeadOnClaim>,
    /// Whether delayed messages are due.
    has_delayed: bool,
    /// Whether the claim was skipped, because a row to settle was locked.
    must_claim: bool,
}

/// The parameters of a claim.
#[derive(Debug)]
struct Claim {
    queue: QueueName,
    name: String,
    limit: i64,
    walk: i64,
    visibility: i64,
    /// False for dead letters: they have no order, no expiry and no delivery limit.
    is_live: bool,
    max_receive_count: i64,
}

impl Claim {
    fn new(queue: &QueueName, wanted: usize, options: &ReceiveOptions) -> Self {
        let (limit, is_live) = (wanted.min(MAX_LEASES) as i64, !queue.holds_dead_letters());
        Self {
            queue: queue.clone(),
            name: queue.as_str().to_owned(),
            limit,
            walk: walk(limit, is_live),
            visibility: micros(options.visibility),
            is_live,
            max_receive_count: options.max_receive_count.into(),
        }
    }

    fn step<'p>(&'p self, sql: &'p OfQueue) -> Step<'p> {
        Step::new(
            &sql.claim,
            [
                &self.name as _,
                &self.limit as _,
                &self.visibility as _,
                &self.is_live as _,
                &self.max_receive_count as _,
                &self.walk as _,
            ],
        )
    }

    /// Reads the rows that the statement returned.
    fn read(&self, rows: &[Row]) -> (Vec<Claimed>, Chores) {
        let (mut messages, mut chores) = (Vec::new(), Chores::default());
        let (columns, stored_columns) = (ClaimColumns::of(rows), StoredColumns::of(rows));
        // `returning` guarantees no order.
        let mut ordered: Vec<&Row> =
            rows.iter().filter(|row| row.get::<_, Option<i64>>(columns.msg_id).is_some()).collect();
        chores.has_delayed = ordered.len() < rows.len();
        ordered.sort_by_key(|row| (time(row, columns.due), row.get::<_, i64>(columns.msg_id)));
        for row in ordered {
            let stored = Stored::read(&self.queue, row, stored_columns);
            let problem = stored.decoded.problem.clone().filter(|_| self.is_live);
            match (row.get::<_, Option<&str>>(columns.death), problem) {
                (Some(reason), _) => chores.dead.push(dead_on_claim(&stored, reason.into(), None)),
                (None, Some(problem)) => {
                    chores.dead.push(dead_on_claim(&stored, DeadLetterReason::UNDECODABLE, Some(problem)));
                }
                (None, None) => messages.push(self.deliver(stored)),
            }
        }
        (messages, chores)
    }

    fn deliver(&self, stored: Stored) -> Claimed {
        let last_read_at = stored.last_read_at.unwrap_or(stored.enqueued_at);
        let lease = Lease { msg_id: stored.msg_id, read_ct: stored.read_ct, last_read_at, vt: stored.vt };
        let receive_count = stored.deliveries();
        let decoded = stored.decoded;
        let envelope = Envelope {
            id: decoded.id,
            queue: self.queue.clone(),
            content_type: decoded.content_type,
            headers: decoded.headers,
            ordering_key: decoded.ordering_key,
            dedup_key: decoded.dedup_key,
            priority: postrider_core::Priority::default(),
            expires_at: decoded.expires_at,
            receive_count,
            attempts_count: decoded.attempts,
            enqueued_at: stored.enqueued_at,
            first_attempt_at: decoded.first_read_at.unwrap_or(last_read_at),
            lease_expires_at: stored.vt,
        };
        Claimed { body: decoded.body, receipt: lease.receipt(&self.queue, envelope.id), envelope }
    }
}

fn dead_on_claim(stored: &Stored, reason: DeadLetterReason, error: Option<String>) -> DeadOnClaim {
    let (msg_id, read_ct, vt) = (stored.msg_id, stored.read_ct, Time(stored.vt));
    DeadOnClaim { msg_id, read_ct, vt, id: stored.decoded.id, reason, error }
}

impl Shared {
    /// Settles, and claims from one queue, in one transaction. A missing queue is like an empty one.
    pub(crate) async fn settle_and_claim(
        &self,
        settlements: &[Settlement],
        queue: &QueueName,
        wanted: usize,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Taken<Chores>, Undone> {
        names::check(queue)?;
        let claim = Claim::new(queue, wanted, options);
        let sql = self.database.sql.of(queue);
        let adopted = self.adopt(queue, deadline).await?;
        let run = || async {
            let settling = Settling::new(self, settlements).await?;
            let is_there = adopted && self.exists(queue, deadline).await?;
            let mut steps = settling.steps();
            if is_there {
                steps.push(claim.step(&sql));
            }
            if steps.is_empty() {
                let (settled, _) = settling.finish(&[]);
                return Ok(Taken { settled, messages: Vec::new(), chores: Chores::default() });
            }
            let mut session = self.database.session("receive", deadline).await?;
            let mut answers = session.run(&steps).await?;
            drop((steps, session));
            let claimed = if is_there { answers.pop().unwrap_or_default() } else { Vec::new() };
            let (messages, chores) = claim.read(&claimed);
            let (settled, touched) = settling.finish(&answers);
            self.touch(&touched);
            Ok(Taken { settled, messages, chores })
        };
        let named = settlements.iter().map(|settlement| settlement.receipt.queue()).chain([queue]);
        match self.again_without_missing(named, run).await {
            // Another transaction has locked one of the rows; the others must not wait for it.
            Err(Undone::InTheWay(_)) if !settlements.is_empty() => {
                let chores = Chores { must_claim: true, ..Chores::default() };
                Ok(Taken { settled: self.settle_free(settlements).await?, messages: Vec::new(), chores })
            }
            taken => taken,
        }
    }

    /// Dead-letters what the claim found dead and moves due messages. Returns whether there may be more to claim now.
    pub(crate) async fn do_chores(&self, queue: &QueueName, chores: Chores) -> Result<bool, Undone> {
        self.dead_letter_claimed(queue, &chores.dead).await?;
        let has_moved = chores.has_delayed && self.move_due(queue).await? > 0;
        Ok(chores.must_claim || !chores.dead.is_empty() || has_moved)
    }

    /// Dead-letters what a claim leased for that. The leases keep other claims away meanwhile; if it fails, they expire
    /// and the next claim finds the same messages.
    async fn dead_letter_claimed(&self, queue: &QueueName, dead: &[DeadOnClaim]) -> Result<(), Undone> {
        if dead.is_empty() {
            return Ok(());
        }
        self.ensure_dead_letters(queue).await?;
        let mut dead: Vec<&DeadOnClaim> = dead.iter().collect();
        dead.sort_by_key(|dead| dead.msg_id);
        let rows: Vec<i64> = dead.iter().map(|dead| dead.msg_id).collect();
        let counts: Vec<i32> = dead.iter().map(|dead| dead.read_ct).collect();
        let ends: Vec<Time> = dead.iter().map(|dead| dead.vt).collect();
        let ids: Vec<String> = dead.iter().map(|dead| dead.id.to_string()).collect();
        let reasons: Vec<&str> = dead.iter().map(|dead| dead.reason.as_str()).collect();
        let errors: Vec<Option<&str>> = dead.iter().map(|dead| dead.error.as_deref()).collect();
        let (sql, name) = (self.database.sql.of(queue), queue.as_str());
        persist(|| async {
            let mut session = self.database.session("receive", Deadline::default()).await?;
            let parameters: [&(dyn postgres_types::ToSql + Sync); 7] =
                [&rows, &counts, &ends, &ids, &reasons, &errors, &name];
            session.ask(Step::new(&sql.dead_letter_claimed, parameters)).await
        })
        .await?;
        self.touch([queue, &queue.dead_letters()]);
        Ok(())
    }

    /// Moves due messages from `delayed` into their queue. Returns how many.
    pub(crate) async fn move_due(&self, queue: &QueueName) -> Result<usize, Undone> {
        if queue.holds_dead_letters() {
            return Ok(0);
        }
        let (sql, name) = (self.database.sql.of(queue), queue.as_str());
        let moved = self.ask("receive", Deadline::default(), &sql.move_due, vec![&name]).await?.len();
        if moved > 0 {
            self.touch([queue]);
        }
        Ok(moved)
    }

    /// Returns when a message of a queue becomes due.
    pub(crate) async fn next_due(&self, queue: &QueueName) -> Result<Due, Undone> {
        names::check(queue)?;
        let (sql, name, is_live) = (self.database.sql.of(queue), queue.as_str(), !queue.holds_dead_letters());
        let walk = walk(0, is_live);
        let look =
            || async { self.ask("receive", Deadline::default(), &sql.next_due, vec![&name, &is_live, &walk]).await };
        let found = self.if_exists(queue, Deadline::default(), look).await?.unwrap_or_default();
        Ok(match found.first().and_then(|row| row.get::<_, Option<i64>>("due_in")) {
            Some(micros) if micros <= 0 => Due::Now,
            Some(micros) => Due::In(Duration::from_micros(micros.unsigned_abs())),
            None => Due::In(Duration::MAX),
        })
    }

    /// Leases one message by its id if it can be claimed now.
    pub(crate) async fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<Claimed>, Undone> {
        names::check(queue)?;
        let (sql, wanted) = (self.database.sql.of(queue), id.to_string());
        let claim = || async {
            self.move_due(queue).await?;
            let found = self.ask("receive", deadline, &sql.find_by_id, vec![&wanted]).await?;
            let is_it = |row: &Row| {
                let (msg_id, is_foreign): (i64, bool) = (row.get("msg_id"), row.get("is_foreign"));
                let is_it = !is_foreign || crate::codec::derived_id(queue, msg_id) == id;
                is_it.then_some(msg_id)
            };
            let rows: Vec<i64> = found.iter().filter_map(is_it).collect();
            self.claim_rows(queue, &rows, options, deadline).await
        };
        Ok(self.if_exists(queue, deadline, claim).await?.flatten())
    }

    /// Leases the first of these messages that can be claimed now.
    pub(crate) async fn claim_rows(
        &self,
        queue: &QueueName,
        rows: &[i64],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<Claimed>, Undone> {
        if rows.is_empty() {
            return Ok(None);
        }
        let (sql, claim) = (self.database.sql.of(queue), Claim::new(queue, 1, options));
        let parameters: Vec<&(dyn postgres_types::ToSql + Sync)> =
            vec![&claim.name, &rows, &claim.visibility, &claim.is_live, &claim.max_receive_count];
        let found = self.ask("receive", deadline, &sql.claim_by_id, parameters).await?;
        let (mut messages, chores) = claim.read(&found);
        self.dead_letter_claimed(queue, &chores.dead).await?;
        Ok(messages.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::{drop_all, opened};

    #[tokio::test]
    async fn a_locked_message_is_dead_lettered_later_and_the_rest_at_once() {
        let (schema, queue, store) = opened().await;
        let shared = &store.shared;
        let fill = format!(
            "insert into pgmq.q_{queue} (vt, message) select now() + interval '1 hour', '{{}}' \
             from generate_series(1, 2) returning msg_id, read_ct, vt"
        );
        let rows = shared.ask("test", Deadline::default(), &fill, Vec::new()).await.unwrap();
        let dead = |row: &Row| DeadOnClaim {
            msg_id: row.get("msg_id"),
            read_ct: row.get("read_ct"),
            vt: Time(time(row, "vt")),
            id: MessageId::generate(),
            reason: DeadLetterReason::UNDECODABLE,
            error: None,
        };
        let dead: Vec<DeadOnClaim> = rows.iter().map(dead).collect();
        let mut own = shared.database.session("test", Deadline::default()).await.unwrap();
        own.begin().await.unwrap();
        own.batch(&format!("select 1 from pgmq.q_{queue} where msg_id = 1 for update")).await.unwrap();
        let left = async || -> Vec<i64> {
            let look = format!("select msg_id from pgmq.q_{queue}");
            let rows = shared.ask("test", Deadline::default(), &look, Vec::new()).await.unwrap();
            rows.iter().map(|row| row.get("msg_id")).collect()
        };
        // Shorter than the lock timeout of a statement.
        let moving = tokio::time::timeout(Duration::from_secs(4), shared.dead_letter_claimed(&queue, &dead));
        moving.await.expect("it does not wait for the open transaction").unwrap();
        assert_eq!(left().await, [1]);
        own.rollback().await.unwrap();
        shared.dead_letter_claimed(&queue, &dead).await.unwrap();
        assert_eq!(left().await, [0_i64; 0]);
        drop_all(&mut own, &schema, &queue).await;
    }
}
