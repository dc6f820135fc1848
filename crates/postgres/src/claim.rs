//! Where messages are claimed: leased, or dead-lettered because they were read too often or too late.

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
use crate::floor::Reach;
use crate::rows::{self, Label, micros};
use crate::settle::{Busy, Leases, Settling, lease_step};
use crate::sql::Sql;
use crate::store::Shared;

/// Every so many claims the oldest due message goes first, whatever its priority, so that none waits for ever.
const OLDEST_FIRST_EVERY: u64 = 16;

/// So many messages are leased by one statement at most, whatever was asked for.
const MOST_LEASES: usize = 1000;

/// When a key is looked at again that somebody was busy with.
const BUSY_FOR: Duration = Duration::from_millis(100);

/// A message that was leased to be buried.
#[derive(Debug)]
struct Doomed {
    row: i64,
    id: Uuid,
    ordering_key: Option<String>,
    reason: DeadLetterReason,
    error: Option<String>,
}

/// A claim, before it is sent.
#[derive(Debug)]
struct Claim {
    queue: QueueName,
    name: String,
    limit: i64,
    visibility: i64,
    lease: i64,
    /// Dead letters can be read for ever.
    is_mortal: bool,
    max_receive_count: i64,
    oldest_first: bool,
    /// Whether somebody waits when nothing comes.
    will_wait: bool,
    reach: Reach,
}

/// What a claim brought.
#[derive(Debug, Default)]
struct Brought {
    messages: Vec<Claimed>,
    doomed: Vec<Doomed>,
    /// Whether keys wait to be put in order.
    has_unplaced: bool,
}

/// What a claim leaves to be done after its transaction.
#[derive(Debug)]
pub struct Chores {
    claim: Claim,
    doomed: Vec<Doomed>,
    has_unplaced: bool,
    /// Whether the claim itself has not been made.
    must_claim: bool,
}

impl Claim {
    fn new(shared: &Shared, queue: &QueueName, max: usize, options: &ReceiveOptions, reach: Reach) -> Self {
        let turn = shared.count_claim(queue);
        Self {
            queue: queue.clone(),
            name: queue.as_str().to_owned(),
            limit: max.min(MOST_LEASES) as i64,
            visibility: micros(options.visibility),
            lease: rand::random(),
            is_mortal: !queue.holds_dead_letters(),
            max_receive_count: options.max_receive_count.into(),
            oldest_first: turn % OLDEST_FIRST_EVERY == OLDEST_FIRST_EVERY - 1,
            will_wait: !options.wait.is_zero(),
            reach,
        }
    }

    fn step<'p>(&'p self, sql: &'p Sql) -> Step<'p> {
        let text = if self.oldest_first { &sql.claim_oldest } else { &sql.claim };
        let parameters: [&(dyn postgres_types::ToSql + Sync); 7] = [
            &self.name,
            &self.limit,
            &self.visibility,
            &self.lease,
            &self.is_mortal,
            &self.max_receive_count,
            &self.reach.floors,
        ];
        Step::new(text, parameters)
    }

    /// Reads what the statement answered.
    fn read(&self, rows: &[Row]) -> Brought {
        let mut brought = Brought::default();
        // The server answers in whatever order it likes.
        let mut ordered: Vec<&Row> = rows.iter().collect();
        ordered.sort_by_key(|row| {
            let urgency = if self.oldest_first { 0 } else { -row.get::<_, i16>(5) };
            (urgency, rows::time(row, 14), row.get::<_, i64>(0))
        });
        for row in ordered {
            self.take(row, &mut brought);
        }
        brought
    }

    fn take(&self, row: &Row, brought: &mut Brought) {
        let id: i64 = row.get(0);
        let label = Label::read(row, [1, 2, 3, 4, 5]);
        let doomed = |reason, error| Doomed { row: id, id: row.get(1), ordering_key: row.get(4), reason, error };
        match (row.get::<_, Option<&str>>(15), label) {
            (Some(reason), _) => brought.doomed.push(doomed(reason.into(), None)),
            (None, Err(text)) if self.is_mortal => {
                brought.doomed.push(doomed(DeadLetterReason::UNDECODABLE, Some(text)));
            }
            (None, label) => {
                let label = label.unwrap_or_else(|_| Label::read_leniently(row, [1, 2, 3, 4, 5]));
                brought.messages.push(self.deliver(row, id, label));
            }
        }
    }

    fn deliver(&self, row: &Row, id: i64, label: Label) -> Claimed {
        let created_at = rows::time(row, 8);
        let envelope = Envelope {
            id: label.id,
            queue: self.queue.clone(),
            content_type: label.content_type,
            headers: label.headers,
            ordering_key: label.ordering_key,
            dedup_key: rows::key(row, 11, "dedup key"),
            priority: label.priority,
            expires_at: rows::optional_time(row, 10),
            receive_count: rows::count(row, 6),
            attempts_count: rows::count(row, 7),
            enqueued_at: created_at,
            first_attempt_at: rows::optional_time(row, 9).unwrap_or(created_at),
            lease_expires_at: rows::time(row, 13),
        };
        let stripe = self.stripe(row.get(4));
        let token = token(self.lease, stripe, id);
        let native = NativeRef::Row(id.cast_unsigned());
        let receipt = ReceiptHandle::new(PROVIDER, self.queue.clone(), envelope.id, token, native);
        Claimed { body: rows::body(row, 12), envelope, receipt }
    }

    /// The stripe of a key, where keys are ordered.
    fn stripe(&self, key: Option<&str>) -> Option<i32> {
        key.filter(|_| self.is_mortal).map(|key| stripe(&self.queue, key))
    }
}

impl Shared {
    /// Settles and claims from one queue in one transaction.
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
        let claim = Claim::new(self, queue, wanted, options, self.floors.reach(queue));
        let taken = self.try_settle_and_claim(settling, &claim, began, deadline).await;
        let taken = taken.inspect_err(|_| self.floors.failed(queue, &claim.reach));
        let (settled, Brought { messages, doomed, has_unplaced }, must_claim) = match taken {
            Ok((settled, brought)) => (settled, brought, false),
            // Somebody has one of the rows, and the others must not wait for it.
            Err(Undone::InTheWay(_)) if !settlements.is_empty() => {
                (self.settle_free(settlements).await?, Brought::default(), true)
            }
            Err(error) => return Err(error),
        };
        Ok(Taken { settled, messages, chores: Chores { claim, doomed, has_unplaced, must_claim } })
    }

    async fn try_settle_and_claim(
        &self,
        settling: Settling,
        claim: &Claim,
        began: Instant,
        deadline: Deadline,
    ) -> Result<(RowResults<()>, Brought), Undone> {
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
        let mut brought = claim.read(&rows);
        // An empty answer does not say it. Whoever waits looks for it; whoever does not must be told.
        brought.has_unplaced = rows.first().map_or(!claim.will_wait, |row| row.get(16));
        let taken =
            rows.iter().filter_map(|row| Some((usize::try_from(row.get::<_, i16>(5)).ok()?, rows::time(row, 14))));
        let is_full = brought.messages.len() + brought.doomed.len() >= usize::try_from(claim.limit).unwrap_or(0);
        if let Some(row) = rows.first() {
            // The lease was counted from it.
            let visibility = Duration::from_micros(claim.visibility.unsigned_abs());
            self.floors.see_clock(&claim.queue, rows::time(row, 13).saturating_sub(visibility));
        }
        self.floors.claimed(&claim.queue, &claim.reach, taken, is_full);
        let (settled, touched) = settling.finish(answers.iter().skip(locks));
        self.touch(&touched, began);
        Ok((settled, brought))
    }

    /// Buries what must die and puts keys in order. Answers whether there may be more to claim now.
    pub(crate) async fn do_chores(&self, queue: &QueueName, chores: Chores) -> Result<bool, Undone> {
        self.bury(&chores.claim, &chores.doomed).await?;
        let is_placed = chores.has_unplaced && self.place(queue).await?;
        Ok(chores.must_claim || !chores.doomed.is_empty() || is_placed)
    }

    /// When something in a queue can be received. Puts keys in order that others have left unplaced.
    pub(crate) async fn next_due(&self, queue: &QueueName) -> Result<Due, Undone> {
        let reach = self.floors.reach(queue);
        let due = self.look_for_due(queue, &reach).await;
        match &due {
            Ok(due) => self.floors.looked(queue, &reach, *due == Due::Now),
            Err(_) => self.floors.failed(queue, &reach),
        }
        due
    }

    async fn look_for_due(&self, queue: &QueueName, reach: &Reach) -> Result<Due, Undone> {
        let (name, horizon) = (queue.as_str(), micros(self.options.poll_interval));
        let statement = &self.database.sql.next_due;
        let parameters: Vec<&(dyn postgres_types::ToSql + Sync)> = vec![&name, &reach.floors, &horizon];
        let found = self.ask("receive", Deadline::default(), statement, parameters).await?;
        let Some(row) = found.first() else { return Ok(Due::In(Duration::MAX)) };
        self.floors.see_clock(queue, rows::time(row, 2));
        let has_unplaced = row.get::<_, bool>(1) && !queue.holds_dead_letters();
        if has_unplaced && self.place(queue).await? {
            return Ok(Due::Now);
        }
        let again = if has_unplaced { BUSY_FOR } else { Duration::MAX };
        Ok(match row.get::<_, Option<i64>>(0) {
            Some(micros) if micros <= 0 => Due::Now,
            Some(micros) => Due::In(again.min(Duration::from_micros(micros.unsigned_abs()))),
            None => Due::In(again),
        })
    }

    /// Buries what a claim leased only for that. Until it is done the leases keep everybody else away; if it fails, they
    /// run out and the next claim finds the same.
    async fn bury(&self, claim: &Claim, doomed: &[Doomed]) -> Result<(), Undone> {
        if doomed.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        persist(|| self.try_bury(claim, doomed)).await?;
        self.touch([&claim.queue, &claim.queue.dead_letters()], began);
        Ok(())
    }

    async fn try_bury(&self, claim: &Claim, doomed: &[Doomed]) -> Result<(), Undone> {
        let mut doomed: Vec<&Doomed> = doomed.iter().collect();
        doomed.sort_by_key(|doomed| doomed.row);
        let leases = Leases {
            rows: doomed.iter().map(|doomed| doomed.row).collect(),
            tokens: vec![claim.lease; doomed.len()],
            ids: doomed.iter().map(|doomed| doomed.id).collect(),
            queues: vec![claim.name.clone(); doomed.len()],
        };
        let reasons: Vec<&str> = doomed.iter().map(|doomed| doomed.reason.as_str()).collect();
        let errors: Vec<Option<&str>> = doomed.iter().map(|doomed| doomed.error.as_deref()).collect();
        let is_read = vec![false; doomed.len()];
        let stripes: Vec<Option<i32>> =
            doomed.iter().map(|doomed| claim.stripe(doomed.ordering_key.as_deref())).collect();
        let mut session = self.database.session("receive", Deadline::default()).await?;
        session.begin().await?;
        let got = self.lock_free_stripes(&session, &in_order(stripes.iter().flatten().copied().collect())).await?;
        let is_placed: Vec<bool> =
            stripes.iter().map(|stripe| stripe.is_some_and(|stripe| got.contains(&stripe))).collect();
        let bury = lease_step(&session.sql().dead_letter, &leases);
        let bury = bury.and([&is_placed, &reasons, &errors, &is_read, &self.worker]);
        session.query(bury.sql, &bury.parameters).await?;
        session.commit().await
    }

    /// Buries the first of these rows that is there and that no worker has. It is leased for that first, as what a claim
    /// buries is: if the burial fails, the lease runs out and the message waits again.
    pub(crate) async fn lease_and_bury(
        &self,
        queue: &QueueName,
        id: MessageId,
        rows: &[i64],
        reason: DeadLetterReason,
        error: Option<String>,
    ) -> Result<(), Undone> {
        const BURY: &str = "dead-letter";
        let claim = Claim::new(self, queue, 1, &ReceiveOptions::default(), Reach::none());
        let statement = &self.database.sql.lease_doomed;
        let parameters: [&(dyn postgres_types::ToSql + Sync); 5] =
            [&rows, &claim.name, id.as_uuid(), &claim.lease, &claim.visibility];
        let found = persist(|| self.ask(BURY, Deadline::default(), statement, parameters.to_vec())).await?;
        let (row, ordering_key) = match found.first() {
            None => return Err(MessagingError::MessageNotFound { queue: queue.clone(), id }.into()),
            Some(row) if row.get(0) => {
                return Err(MessagingError::MessageLeased { queue: queue.clone(), id }.into());
            }
            Some(row) => (row.get(1), row.get(2)),
        };
        let doomed = Doomed { row, id: *id.as_uuid(), ordering_key, reason, error };
        self.bury(&claim, &[doomed]).await
    }

    /// Leases one message by its id, if it may be received now.
    pub(crate) async fn claim_by_id(
        &self,
        queue: &QueueName,
        id: MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<Claimed>, Undone> {
        let claim = Claim { oldest_first: false, ..Claim::new(self, queue, 1, options, Reach::none()) };
        self.place(queue).await?;
        let mut session = self.database.session("receive", deadline).await?;
        let find = Step::new(&session.sql().find_by_id, [&claim.name as _, id.as_uuid() as _]);
        let found = session.run(&[find]).await?;
        let mut rows: Vec<i64> = found.iter().flatten().map(|row| row.get(0)).collect();
        rows.sort_unstable();
        if rows.is_empty() {
            return Ok(None);
        }
        let parameters: [&(dyn postgres_types::ToSql + Sync); 6] =
            [&claim.name, &rows, &claim.visibility, &claim.lease, &claim.is_mortal, &claim.max_receive_count];
        let step = Step::new(&session.sql().claim_by_id, parameters);
        let rows = session.ask(step).await?;
        drop(session);
        let mut brought = claim.read(&rows);
        self.bury(&claim, &brought.doomed).await?;
        Ok(brought.messages.pop())
    }

    /// Puts keys in order that transactions of others have changed, and lists the queues that they made. Answers whether
    /// there were any that nobody else was busy with.
    async fn place(&self, queue: &QueueName) -> Result<bool, Undone> {
        if queue.holds_dead_letters() {
            return Ok(false);
        }
        let is_placed = persist(|| self.try_place(queue)).await?;
        if is_placed {
            // What else they did without a key may have been due long before it could be seen.
            self.floors.sweep(queue);
        }
        Ok(is_placed)
    }

    async fn try_place(&self, queue: &QueueName) -> Result<bool, Undone> {
        let name = queue.as_str();
        let mut session = self.database.session("receive", Deadline::default()).await?;
        let look = Step::new(&session.sql().unplaced, [&name as _]);
        let found = session.ask(look).await?;
        if found.is_empty() {
            return Ok(false);
        }
        let mut unplaced: Vec<(i64, Option<&str>)> = found.iter().map(|row| (row.get(0), row.get(1))).collect();
        let stripes = in_order(unplaced.iter().filter_map(|(_, key)| Some(stripe(queue, (*key)?))).collect());
        session.begin().await?;
        let mut got = self.lock_free_stripes(&session, &stripes).await?;
        if got.is_empty() && !stripes.is_empty() {
            // Those who come all the time must not keep it away for ever. While it waits it has nothing that others need.
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
