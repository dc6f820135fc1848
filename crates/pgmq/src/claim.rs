//! Where messages are claimed: leased, or dead-lettered because they were read too often or too late.

use std::time::Duration;

use postrider_core::{DeadLetterReason, Deadline, Envelope, MessageId, QueueName, ReceiveOptions, Settlement};
use postrider_pg::Step;
use postrider_pg::columns::{Time, micros, time};
use postrider_pg::tokio_postgres::Row;
use postrider_provider::{Claimed, Undone, persist};
use postrider_sql::{Due, Taken};

use crate::lease::Lease;
use crate::names;
use crate::rows::Stored;
use crate::settle::Settling;
use crate::sql::OfQueue;
use crate::store::Shared;

/// So many messages are leased by one statement at most, whatever was asked for.
const MOST_LEASES: usize = 1000;

/// So many messages more than are wanted are looked at by their times, before keys are asked for their heads. Where most
/// messages can be received, that is all.
const WALK: i64 = 100;

/// How many messages are looked at by their times. Dead letters have no order, so all of them can be received.
fn walk(wanted: i64, is_mortal: bool) -> i64 {
    if is_mortal { wanted + WALK } else { i64::MAX }
}

/// A message that was leased to be buried.
#[derive(Debug)]
struct Doomed {
    msg_id: i64,
    read_ct: i32,
    vt: Time,
    id: MessageId,
    reason: DeadLetterReason,
    error: Option<String>,
}

/// What a claim leaves to be done.
#[derive(Debug, Default)]
pub struct Chores {
    doomed: Vec<Doomed>,
    /// Whether messages that were kept aside are due.
    has_aside: bool,
    /// Whether nothing was claimed, because somebody was in the way of what was to be settled with it.
    must_claim: bool,
}

/// A claim, before it is sent.
#[derive(Debug)]
struct Claim {
    queue: QueueName,
    name: String,
    limit: i64,
    walk: i64,
    visibility: i64,
    /// Dead letters can be read for ever.
    is_mortal: bool,
    max_receive_count: i64,
}

impl Claim {
    fn new(queue: &QueueName, wanted: usize, options: &ReceiveOptions) -> Self {
        let (limit, is_mortal) = (wanted.min(MOST_LEASES) as i64, !queue.holds_dead_letters());
        Self {
            queue: queue.clone(),
            name: queue.as_str().to_owned(),
            limit,
            walk: walk(limit, is_mortal),
            visibility: micros(options.visibility),
            is_mortal,
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
                &self.is_mortal as _,
                &self.max_receive_count as _,
                &self.walk as _,
            ],
        )
    }

    /// Reads what the statement answered.
    fn read(&self, rows: &[Row]) -> (Vec<Claimed>, Chores) {
        let (mut messages, mut chores) = (Vec::new(), Chores::default());
        // The server answers in whatever order it likes.
        let mut ordered: Vec<&Row> = rows.iter().filter(|row| row.get::<_, Option<i64>>(0).is_some()).collect();
        chores.has_aside = ordered.len() < rows.len();
        ordered.sort_by_key(|row| (time(row, 7), row.get::<_, i64>(0)));
        for row in ordered {
            let stored = Stored::read(&self.queue, row);
            let problem = stored.decoded.problem.clone().filter(|_| self.is_mortal);
            match (row.get::<_, Option<&str>>(8), problem) {
                (Some(reason), _) => chores.doomed.push(doomed(&stored, reason.into(), None)),
                (None, Some(problem)) => {
                    chores.doomed.push(doomed(&stored, DeadLetterReason::UNDECODABLE, Some(problem)));
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

fn doomed(stored: &Stored, reason: DeadLetterReason, error: Option<String>) -> Doomed {
    let (msg_id, read_ct, vt) = (stored.msg_id, stored.read_ct, Time(stored.vt));
    Doomed { msg_id, read_ct, vt, id: stored.decoded.id, reason, error }
}

impl Shared {
    /// Settles and claims from one queue in one transaction. A queue that does not exist is like an empty one.
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
            // Somebody has one of the rows, and the others must not wait for it.
            Err(Undone::InTheWay(_)) if !settlements.is_empty() => {
                let chores = Chores { must_claim: true, ..Chores::default() };
                Ok(Taken { settled: self.settle_free(settlements).await?, messages: Vec::new(), chores })
            }
            taken => taken,
        }
    }

    /// Buries what must die and fetches what is due. Answers whether there may be more to claim now.
    pub(crate) async fn do_chores(&self, queue: &QueueName, chores: Chores) -> Result<bool, Undone> {
        self.bury(queue, &chores.doomed).await?;
        let has_moved = chores.has_aside && self.move_due(queue).await? > 0;
        Ok(chores.must_claim || !chores.doomed.is_empty() || has_moved)
    }

    /// Buries what a claim leased only for that. Until it is done the leases keep everybody else away; if it fails, they
    /// run out and the next claim finds the same.
    async fn bury(&self, queue: &QueueName, doomed: &[Doomed]) -> Result<(), Undone> {
        if doomed.is_empty() {
            return Ok(());
        }
        self.ensure_dead_letters(queue).await?;
        let mut doomed: Vec<&Doomed> = doomed.iter().collect();
        doomed.sort_by_key(|doomed| doomed.msg_id);
        let rows: Vec<i64> = doomed.iter().map(|doomed| doomed.msg_id).collect();
        let counts: Vec<i32> = doomed.iter().map(|doomed| doomed.read_ct).collect();
        let ends: Vec<Time> = doomed.iter().map(|doomed| doomed.vt).collect();
        let ids: Vec<String> = doomed.iter().map(|doomed| doomed.id.to_string()).collect();
        let reasons: Vec<&str> = doomed.iter().map(|doomed| doomed.reason.as_str()).collect();
        let errors: Vec<Option<&str>> = doomed.iter().map(|doomed| doomed.error.as_deref()).collect();
        let (sql, name) = (self.database.sql.of(queue), queue.as_str());
        persist(|| async {
            let mut session = self.database.session("receive", Deadline::default()).await?;
            let parameters: [&(dyn postgres_types::ToSql + Sync); 7] =
                [&rows, &counts, &ends, &ids, &reasons, &errors, &name];
            session.ask(Step::new(&sql.bury, parameters)).await
        })
        .await?;
        self.touch([queue, &queue.dead_letters()]);
        Ok(())
    }

    /// Moves what was kept aside and is due into its queue, and answers how many messages that were.
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

    /// When something in a queue can be received.
    pub(crate) async fn next_due(&self, queue: &QueueName) -> Result<Due, Undone> {
        names::check(queue)?;
        let (sql, name, is_mortal) = (self.database.sql.of(queue), queue.as_str(), !queue.holds_dead_letters());
        let walk = walk(0, is_mortal);
        let look =
            || async { self.ask("receive", Deadline::default(), &sql.next_due, vec![&name, &is_mortal, &walk]).await };
        let found = self.if_exists(queue, Deadline::default(), look).await?.unwrap_or_default();
        Ok(match found.first().and_then(|row| row.get::<_, Option<i64>>(0)) {
            Some(micros) if micros <= 0 => Due::Now,
            Some(micros) => Due::In(Duration::from_micros(micros.unsigned_abs())),
            None => Due::In(Duration::MAX),
        })
    }

    /// Leases one message by its id, if it may be received now.
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
                let (msg_id, is_foreign): (i64, bool) = (row.get(0), row.get(1));
                let is_it = !is_foreign || crate::codec::derived_id(queue, msg_id) == id;
                is_it.then_some(msg_id)
            };
            let rows: Vec<i64> = found.iter().filter_map(is_it).collect();
            self.claim_rows(queue, &rows, options, deadline).await
        };
        Ok(self.if_exists(queue, deadline, claim).await?.flatten())
    }

    /// Leases the first of these messages that may be received now.
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
            vec![&claim.name, &rows, &claim.visibility, &claim.is_mortal, &claim.max_receive_count];
        let found = self.ask("receive", deadline, &sql.claim_by_id, parameters).await?;
        let (mut messages, chores) = claim.read(&found);
        self.bury(queue, &chores.doomed).await?;
        Ok(messages.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::{drop_all, opened};

    #[tokio::test]
    async fn what_a_transaction_has_is_buried_later_and_the_rest_at_once() {
        let (schema, queue, store) = opened().await;
        let shared = &store.shared;
        let fill = format!(
            "insert into pgmq.q_{queue} (vt, message) select now() + interval '1 hour', '{{}}' \
             from generate_series(1, 2) returning msg_id, read_ct, vt"
        );
        let rows = shared.ask("test", Deadline::default(), &fill, Vec::new()).await.unwrap();
        let doomed = |row: &Row| Doomed {
            msg_id: row.get(0),
            read_ct: row.get(1),
            vt: Time(time(row, 2)),
            id: MessageId::generate(),
            reason: DeadLetterReason::UNDECODABLE,
            error: None,
        };
        let doomed: Vec<Doomed> = rows.iter().map(doomed).collect();
        let mut own = shared.database.session("test", Deadline::default()).await.unwrap();
        own.begin().await.unwrap();
        own.batch(&format!("select 1 from pgmq.q_{queue} where msg_id = 1 for update")).await.unwrap();
        let left = async || -> Vec<i64> {
            let look = format!("select msg_id from pgmq.q_{queue}");
            let rows = shared.ask("test", Deadline::default(), &look, Vec::new()).await.unwrap();
            rows.iter().map(|row| row.get(0)).collect()
        };
        // Less than a statement waits for a lock.
        let burying = tokio::time::timeout(Duration::from_secs(4), shared.bury(&queue, &doomed));
        burying.await.expect("nobody waits for the open transaction").unwrap();
        assert_eq!(left().await, [1]);
        own.rollback().await.unwrap();
        shared.bury(&queue, &doomed).await.unwrap();
        assert_eq!(left().await, [0_i64; 0]);
        drop_all(&mut own, &schema, &queue).await;
    }
}
