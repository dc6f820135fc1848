//! Where messages are accepted.

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

/// Messages of one queue as the statements take them: an array for each column.
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
            // What expires at a time has it in its headers.
            Some(Expiry::At(_)) | None => None,
        });
    }

    fn is_empty(&self) -> bool {
        self.delays.is_empty()
    }
}

/// A message that was found fit to be sent.
struct Draft<'m> {
    place: usize,
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

/// The messages of one queue, in their order.
struct Batch<'m> {
    queue: &'m QueueName,
    drafts: Vec<Draft<'m>>,
}

impl Batch<'_> {
    /// The stripes of all keys. A dedup key has one too: who looks for its holder must see what others did before.
    fn stripes(&self) -> Vec<i32> {
        let keys = self.drafts.iter().flat_map(|draft| [draft.ordering_key(), draft.dedup_key()]);
        in_order(keys.flatten().map(|key| stripe(self.queue, key)).collect())
    }

    fn has_dedup_keys(&self) -> bool {
        self.drafts.iter().any(|draft| draft.dedup_key().is_some())
    }

    /// What is due so late that it waits beside the queue. What has a key stays: a delayed head holds its key.
    fn is_aside(&self, shared: &Shared, draft: &Draft<'_>) -> bool {
        draft.row.message.delay > shared.options.long_delay
            && draft.ordering_key().is_none()
            && draft.dedup_key().is_none()
    }
}

impl Shared {
    /// Accepts messages, in their order; each answers its id, or that of the living one that has its dedup key.
    pub(crate) async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, Undone> {
        let mut results: RowResults<MessageId> = Vec::with_capacity(rows.len());
        let mut batches: BTreeMap<&QueueName, Batch<'_>> = BTreeMap::new();
        for (place, row) in rows.iter().enumerate() {
            let checked =
                names::check(&row.queue).and_then(|()| check_sendable(&self.capabilities, &row.queue, &row.message));
            results.push(checked.map(|()| row.message.id));
            if results[place].is_ok() {
                let batch = batches.entry(&row.queue).or_insert(Batch { queue: &row.queue, drafts: Vec::new() });
                batch.drafts.push(Draft { place, row, encoded: encode(&row.message) });
            }
        }
        let sent = persist(|| self.again_without_missing(batches.keys().copied(), || self.try_send(&batches)));
        for (place, answer) in sent.await? {
            results[place] = answer;
        }
        self.touch(batches.into_keys());
        Ok(results)
    }

    /// Sends everything in one transaction. Answers for those rows for which it is not simply their own id.
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
                answers.extend(batch.drafts.iter().map(|draft| (draft.place, Err(missing()))));
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

    /// Messages of which some have dedup keys. The stripes of the keys are held until the commit, so nobody else takes
    /// a key between the look for its holder and the send.
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
                answers.push((draft.place, Ok(holder)));
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

    /// Who has these dedup keys in a queue. One that has expired, and that nobody handles, does not live: it is buried.
    /// The caller holds the stripes of the keys.
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
        let over: Vec<i64> = found.iter().filter(|row| row.get(3)).map(|row| row.get(2)).collect();
        if !over.is_empty() {
            session.query(&sql.bury_expired, &[&over, &name]).await?;
            found = look().await?;
        }
        let holder = |row: &postrider_pg::tokio_postgres::Row| {
            Some((row.get::<_, String>(0), row.get::<_, &str>(1).parse::<MessageId>().ok()?))
        };
        Ok(found.iter().filter_map(holder).collect())
    }
}

/// The statements that send a batch.
struct Parts<'m> {
    sql: std::sync::Arc<crate::sql::OfQueue>,
    send_aside: &'m str,
    name: &'m str,
    /// Without keys and lifetimes, which is most.
    is_plain: bool,
    now: Columns<'m>,
    aside: Columns<'m>,
}

impl<'m> Parts<'m> {
    fn new(shared: &'m Shared, batch: &'m Batch<'_>, mut is_sent: impl FnMut(&Draft<'_>) -> bool) -> Self {
        let (mut now, mut aside, mut is_plain) = (Columns::default(), Columns::default(), true);
        for draft in &batch.drafts {
            if is_sent(draft) {
                let columns = if batch.is_aside(shared, draft) { &mut aside } else { &mut now };
                columns.push(draft);
                is_plain &= draft.dedup_key().is_none() && columns.lifetimes.last() == Some(&None);
            }
        }
        Self {
            sql: shared.database.sql.of(batch.queue),
            send_aside: &shared.database.sql.general.send_aside,
            name: batch.queue.as_str(),
            is_plain,
            now,
            aside,
        }
    }

    fn steps(&self) -> Vec<Step<'_>> {
        let mut steps = Vec::new();
        let (now, aside) = (&self.now, &self.aside);
        if !now.is_empty() {
            let text = if self.is_plain { &self.sql.send_plain } else { &self.sql.send };
            let step = Step::new(text, [&now.delays as _, &now.messages as _, &now.headers as _]);
            steps.push(if self.is_plain { step } else { step.and([&now.lifetimes, &self.name]) });
        }
        if !aside.is_empty() {
            let step = Step::new(self.send_aside, [&aside.delays as _, &aside.messages as _, &aside.headers as _]);
            steps.push(step.and([&aside.lifetimes, &self.name]));
        }
        steps
    }
}
