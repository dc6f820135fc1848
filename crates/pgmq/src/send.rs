//! Sends.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use postrider_core::coalescer::SendRow;
use postrider_core::service::check_sendable;
use postrider_core::{Deadline, Expiry, MessageId, MessagingError, QueueName, RowResults};
use postrider_pg::Step;
use postrider_pg::columns::micros;
use postrider_provider::{Undone, persist};
use postrider_sql::stripes::{in_order, stripe};

use crate::codec::{Encoded, encode};
use crate::rows::Json;
use crate::store::Shared;
use crate::{Session, names};

/// The columns of messages of one queue: one array each.
#[derive(Default)]
struct Columns<'m> {
    delays: Vec<i64>,
    messages: Vec<Json<'m>>,
    headers: Vec<Json<'m>>,
    lifetimes: Vec<Option<i64>>,
}

impl<'m> Columns<'m> {
    fn push(&mut self, draft: &'m Draft<'_>) {
        let message = &draft.row.message;
        self.delays.push(micros(message.delay));
        self.messages.push(Json(&draft.encoded.message));
        self.headers.push(Json(&draft.encoded.headers));
        self.lifetimes.push(match message.expires {
            Some(Expiry::In(lifetime)) => Some(micros(lifetime)),
            // An absolute expiry is in the headers.
            Some(Expiry::At(_)) | None => None,
        });
    }

    fn is_empty(&self) -> bool {
        self.delays.is_empty()
    }
}

/// A message that passed the checks.
struct Draft<'m> {
    index: usize,
    row: &'m SendRow,
    encoded: Encoded,
}

impl Draft<'_> {
    fn dedup_key(&self) -> Option<&str> {
        self.row.message.dedup_key.as_ref().map(|key| key.as_str())
    }

    fn ordering_key(&self) -> Option<&str> {
        self.row.message.ordering_key.as_ref().map(|key| key.as_str())
    }
}

/// The messages of one queue, in order.
struct Batch<'m> {
    queue: &'m QueueName,
    drafts: Vec<Draft<'m>>,
}

impl Batch<'_> {
    /// Returns the stripes of all keys. Dedup keys have stripes too: a look for a holder must see earlier sends.
    fn stripes(&self) -> Vec<i32> {
        let keys = self.drafts.iter().flat_map(|draft| [draft.ordering_key(), draft.dedup_key()]);
        in_order(keys.flatten().map(|key| stripe(self.queue, key)).collect())
    }

    fn has_dedup_keys(&self) -> bool {
        self.drafts.iter().any(|draft| draft.dedup_key().is_some())
    }

    /// Whether a message waits beside the queue. Keyed messages stay in it: a delayed head blocks its key.
    fn is_long_delayed(&self, shared: &Shared, draft: &Draft<'_>) -> bool {
        draft.row.message.delay > shared.options.long_delay
            && draft.ordering_key().is_none()
            && draft.dedup_key().is_none()
    }
}

impl Shared {
    /// Stores messages, in order. Returns for each its id, or the id of the live message with its dedup key.
    pub(crate) async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, Undone> {
        let mut results: RowResults<MessageId> = Vec::with_capacity(rows.len());
        let mut batches: BTreeMap<&QueueName, Batch<'_>> = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            let checked =
                names::check(&row.queue).and_then(|()| check_sendable(&self.capabilities, &row.queue, &row.message));
            results.push(checked.map(|()| row.message.id));
            if results[index].is_ok() {
                let batch = batches.entry(&row.queue).or_insert(Batch { queue: &row.queue, drafts: Vec::new() });
                batch.drafts.push(Draft { index, row, encoded: encode(&row.message) });
            }
        }
        let sent = persist(|| self.again_without_missing(batches.keys().copied(), || self.try_send(&batches)));
        for (index, answer) in sent.await? {
            results[index] = answer;
        }
        self.touch(batches.into_keys());
        Ok(results)
    }

    /// Sends all messages in one transaction. Returns the results that are not the message's own id.
    async fn try_send(
        &self,
        batches: &BTreeMap<&QueueName, Batch<'_>>,
    ) -> Result<Vec<(usize, Result<MessageId, MessagingError>)>, Undone> {
        let mut answers = Vec::new();
        let mut there: Vec<&Batch<'_>> = Vec::new();
        for batch in batches.values() {
            if self.adopt(batch.queue, Deadline::default()).await? {
                there.push(batch);
            } else if self.options.create_queues {
                self.ensure_queue(batch.queue, Deadline::default()).await?;
                there.push(batch);
            } else {
                let missing = || MessagingError::QueueNotFound { queue: batch.queue.clone() };
                answers.extend(batch.drafts.iter().map(|draft| (draft.index, Err(missing()))));
            }
        }
        if there.is_empty() {
            return Ok(answers);
        }
        if there.iter().any(|batch| batch.has_dedup_keys()) {
            answers.extend(self.send_deduped(&there).await?);
            return Ok(answers);
        }
        let stripes = in_order(there.iter().flat_map(|batch| batch.stripes()).collect());
        let class = self.schema.lock_class();
        let parts: Vec<Parts<'_>> = there.iter().map(|batch| Parts::new(self, batch, |_| true)).collect();
        let mut steps = Vec::new();
        if !stripes.is_empty() {
            steps.push(Step::new(&self.database.sql.general.lock_stripes, [&class as _, &stripes as _]));
        }
        parts.iter().for_each(|parts| steps.extend(parts.steps()));
        let mut session = self.database.session("send", Deadline::default()).await?;
        session.run(&steps).await?;
        Ok(answers)
    }

    /// Sends messages of which some have dedup keys. The stripes of the keys are held until the commit, so no other
    /// send takes a key between the look for its holder and the insert.
    async fn send_deduped(
        &self,
        batches: &[&Batch<'_>],
    ) -> Result<Vec<(usize, Result<MessageId, MessagingError>)>, Undone> {
        for batch in batches.iter().filter(|batch| batch.has_dedup_keys()) {
            self.ensure_dead_letters(batch.queue).await?;
        }
        let stripes = in_order(batches.iter().flat_map(|batch| batch.stripes()).collect());
        let class = self.schema.lock_class();
        let mut session = self.database.session("send", Deadline::default()).await?;
        session.begin().await?;
        session.query(&self.database.sql.general.lock_stripes, &[&class, &stripes]).await?;
        let mut answers = Vec::new();
        for batch in batches {
            let keys: Vec<&str> = batch.drafts.iter().filter_map(Draft::dedup_key).collect();
            let mut holders = self.living_holders(&session, batch.queue, &keys).await?;
            let mut is_new = vec![true; batch.drafts.len()];
            for (draft, is_new) in batch.drafts.iter().zip(&mut is_new) {
                let Some(key) = draft.dedup_key() else { continue };
                let holder = match holders.entry(key.to_owned()) {
                    Entry::Occupied(holder) => {
                        *is_new = false;
                        *holder.get()
                    }
                    // The first of a batch is the holder for the others.
                    Entry::Vacant(free) => *free.insert(draft.row.message.id),
                };
                answers.push((draft.index, Ok(holder)));
            }
            let mut flags = is_new.into_iter();
            let parts = Parts::new(self, batch, |_| flags.next().unwrap_or(false));
            for step in parts.steps() {
                session.query(step.sql, &step.parameters).await?;
            }
        }
        session.commit().await?;
        Ok(answers)
    }

    /// Returns the holders of these dedup keys in a queue. Expired holders that are not leased are dead-lettered. The
    /// caller holds the stripes of the keys.
    pub(crate) async fn living_holders(
        &self,
        session: &Session<'_>,
        queue: &QueueName,
        keys: &[&str],
    ) -> Result<HashMap<String, MessageId>, Undone> {
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let (sql, name) = (self.database.sql.of(queue), queue.as_str());
        let look = || async { session.query(&sql.dedup_holders, &[&name, &keys]).await };
        let mut found = look().await?;
        let over: Vec<i64> = found.iter().filter(|row| row.get("has_expired")).map(|row| row.get("msg_id")).collect();
        if !over.is_empty() {
            session.query(&sql.dead_letter_expired, &[&over, &name]).await?;
            found = look().await?;
        }
        let holder = |row: &postrider_pg::tokio_postgres::Row| {
            let id = row.get::<_, &str>("message_id").parse::<MessageId>().ok()?;
            Some((row.get::<_, String>("dedup_key"), id))
        };
        Ok(found.iter().filter_map(holder).collect())
    }
}

/// The statements of a batch.
struct Parts<'m> {
    sql: std::sync::Arc<crate::sql::OfQueue>,
    send_delayed: &'m str,
    name: &'m str,
    /// Without dedup keys and lifetimes, the common case.
    is_plain: bool,
    now: Columns<'m>,
    delayed: Columns<'m>,
}

impl<'m> Parts<'m> {
    fn new(shared: &'m Shared, batch: &'m Batch<'_>, mut is_sent: impl FnMut(&Draft<'_>) -> bool) -> Self {
        let (mut now, mut delayed, mut is_plain) = (Columns::default(), Columns::default(), true);
        for draft in &batch.drafts {
            if is_sent(draft) {
                let columns = if batch.is_long_delayed(shared, draft) { &mut delayed } else { &mut now };
                columns.push(draft);
                is_plain &= draft.dedup_key().is_none() && columns.lifetimes.last() == Some(&None);
            }
        }
        Self {
            sql: shared.database.sql.of(batch.queue),
            send_delayed: &shared.database.sql.general.send_delayed,
            name: batch.queue.as_str(),
            is_plain,
            now,
            delayed,
        }
    }

    fn steps(&self) -> Vec<Step<'_>> {
        let mut steps = Vec::new();
        let (now, delayed) = (&self.now, &self.delayed);
        if !now.is_empty() {
            let text = if self.is_plain { &self.sql.send_plain } else { &self.sql.send };
            let step = Step::new(text, [&now.delays as _, &now.messages as _, &now.headers as _]);
            steps.push(if self.is_plain { step } else { step.and([&now.lifetimes, &self.name]) });
        }
        if !delayed.is_empty() {
            let step =
                Step::new(self.send_delayed, [&delayed.delays as _, &delayed.messages as _, &delayed.headers as _]);
            steps.push(step.and([&delayed.lifetimes, &self.name]));
        }
        steps
    }
}
