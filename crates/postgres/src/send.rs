//! Sends.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

use postgres_types::ToSql;
use postrider_core::coalescer::SendRow;
use postrider_core::service::check_sendable;
use postrider_core::{Deadline, Expiry, MessageId, MessagingError, QueueName, RowResults};
use postrider_pg::{Hint, HintBatch, NOTIFY, Step};
use postrider_provider::{Undone, persist};
use postrider_sql::stripes::{in_order, stripe};
use uuid::Uuid;

use crate::Session;
use crate::floor::MARGIN;
use crate::rows::{Time, content_type_column, headers_column, message_id, micros};
use crate::store::{Shared, in_the_way};

/// Attempts to send a batch while the holders of its dedup keys come and go.
const TRIES: usize = 10;

/// Number of parts into which a batch is divided when another transaction holds one of its dedup keys.
const PARTS: usize = 8;

/// The columns of a batch: one array each.
#[derive(Default)]
struct Columns<'m> {
    queues: Vec<&'m str>,
    ids: Vec<Uuid>,
    priorities: Vec<i16>,
    delays: Vec<i64>,
    expires_at: Vec<Option<Time>>,
    lifetimes: Vec<Option<i64>>,
    ordering_keys: Vec<Option<&'m str>>,
    dedup_keys: Vec<Option<&'m str>>,
    content_types: Vec<Option<&'m str>>,
    headers: Vec<Cow<'static, str>>,
    payloads: Vec<&'m [u8]>,
    /// Whether an earlier message of the batch has the same key.
    is_behind: Vec<bool>,
    keys: BTreeSet<(&'m QueueName, &'m str)>,
    names: BTreeSet<&'m QueueName>,
    /// The queues that the send lists.
    listed: Vec<&'m str>,
}

impl<'m> Columns<'m> {
    fn push(&mut self, row: &'m SendRow) {
        let message = &row.message;
        self.names.insert(&row.queue);
        self.queues.push(row.queue.as_str());
        self.ids.push(*message.id.as_uuid());
        self.priorities.push(message.priority.get().into());
        self.delays.push(micros(message.delay));
        let (at, lifetime) = match message.expires {
            Some(Expiry::At(time)) => (Some(Time(time)), None),
            Some(Expiry::In(lifetime)) => (None, Some(micros(lifetime))),
            None => (None, None),
        };
        self.expires_at.push(at);
        self.lifetimes.push(lifetime);
        let key = message.ordering_key.as_ref().map(|key| key.as_str());
        self.is_behind.push(key.is_some_and(|key| !self.keys.insert((&row.queue, key))));
        self.ordering_keys.push(key);
        self.dedup_keys.push(message.dedup_key.as_ref().map(|key| key.as_str()));
        self.content_types.push(content_type_column(&message.content_type));
        self.headers.push(headers_column(&message.headers));
        self.payloads.push(&message.body);
    }

    /// Whether the messages differ only in ids and bodies.
    fn is_alike(&self) -> bool {
        fn all_same<T: PartialEq>(values: &[T]) -> bool {
            values.windows(2).all(|pair| pair[0] == pair[1])
        }
        self.keys.is_empty()
            && all_same(&self.queues)
            && all_same(&self.priorities)
            && all_same(&self.delays)
            && all_same(&self.expires_at)
            && all_same(&self.lifetimes)
            && all_same(&self.content_types)
            && all_same(&self.headers)
    }

    fn stripes(&self) -> Vec<i32> {
        in_order(self.keys.iter().map(|(queue, key)| stripe(queue, key)).collect())
    }
}

impl Shared {
    /// Stores messages, in order. Returns for each its id, or the id of the live message with its dedup key.
    pub(crate) async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, Undone> {
        let began = Instant::now();
        let missing = self.missing_queues(rows).await?;
        let check = |row: &SendRow| {
            check_sendable(&self.capabilities, &row.queue, &row.message)?;
            match missing.contains(&row.queue) {
                true => Err(MessagingError::QueueNotFound { queue: row.queue.clone() }),
                false => Ok(row.message.id),
            }
        };
        let mut results: RowResults<MessageId> = rows.iter().map(check).collect();
        let chosen: Vec<&SendRow> =
            rows.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(row, _)| row).collect();
        if chosen.is_empty() {
            return Ok(results);
        }
        let columns = self.columns(&chosen);
        let mut is_announced = false;
        if columns.dedup_keys.iter().any(Option::is_some) {
            let answers = self.send_in_parts(&chosen).await?;
            results
                .iter_mut()
                .filter(|result| result.is_ok())
                .zip(answers)
                .for_each(|(result, answer)| *result = answer);
        } else {
            let hints = self.notifier.as_ref().and_then(|notifier| notifier.take_hints(columns.names.iter().copied()));
            let sent = persist(|| self.insert(&columns, hints.as_ref().map(HintBatch::payloads))).await;
            match (sent, hints) {
                (Ok(()), Some(hints)) => {
                    hints.committed();
                    // If it took too long, announce it again, as late.
                    is_announced = began.elapsed() < MARGIN;
                }
                // If the server's notification queue is full, send without hints.
                (Err(Undone::Rejected(_)), Some(_)) => persist(|| self.insert(&columns, None)).await?,
                (sent, _) => sent?,
            };
        }
        if is_announced {
            self.wake_local(&columns.names.iter().copied().collect::<Vec<_>>(), Hint::Fresh);
        } else {
            self.touch(columns.names.iter().copied(), began);
        }
        Ok(results)
    }

    fn columns<'m>(&self, rows: &[&'m SendRow]) -> Columns<'m> {
        let mut columns = Columns::default();
        rows.iter().for_each(|row| columns.push(row));
        if self.options.create_queues {
            columns.listed = columns.names.iter().map(|name| name.as_str()).collect();
        }
        columns
    }

    async fn missing_queues(&self, rows: &[SendRow]) -> Result<HashSet<QueueName>, Undone> {
        if self.options.create_queues {
            return Ok(HashSet::new());
        }
        let queues: HashSet<QueueName> = rows.iter().map(|row| row.queue.clone()).collect();
        let queues: Vec<QueueName> = queues.into_iter().collect();
        let exist = self.queues_exist(&queues, Deadline::default()).await?;
        Ok(queues.into_iter().filter(|queue| !exist.contains(queue.as_str())).collect())
    }

    /// Inserts messages without dedup keys, and sends the hints in the same transaction.
    async fn insert(&self, columns: &Columns<'_>, hints: Option<&[String]>) -> Result<(), Undone> {
        let mut session = self.database.session("send", Deadline::default()).await?;
        let sql = session.sql();
        let (class, channel) = (sql.schema.lock_class(), sql.schema.channel());
        let stripes = columns.stripes();
        let mut steps = Vec::new();
        if columns.is_alike() {
            steps.extend(alike_step(&sql.send_alike, columns));
        } else if columns.keys.is_empty() {
            steps.push(plain_step(&sql.send_plain, columns));
        } else {
            steps.push(Step::new(&sql.lock_stripes, [&class as _, &stripes as _]));
            steps.push(keyed_step(&sql.send, columns));
        }
        if let Some(hints) = &hints {
            steps.push(Step::new(NOTIFY, [&channel as _, hints as _]));
        }
        session.run(&steps).await.map(drop)
    }

    /// Sends messages of which some have dedup keys. An open transaction of a caller may hold one of the keys for any
    /// time, and which one shows only by waiting. So the batch is divided until the rows that would wait are alone:
    /// these fail with a retryable error, and the others do not wait for them.
    async fn send_in_parts(&self, rows: &[&SendRow]) -> Result<RowResults<MessageId>, Undone> {
        let (mut answers, mut parts) = (Vec::with_capacity(rows.len()), vec![rows]);
        while let Some(part) = parts.pop() {
            match self.send_deduped(&self.columns(part)).await {
                Ok(holders) => answers.extend(part.iter().map(|row| {
                    let key = row.message.dedup_key.as_ref().map(|key| (row.queue.as_str(), key.as_str()));
                    Ok(key.and_then(|key| holders.get(&key).copied()).unwrap_or(row.message.id))
                })),
                Err(Undone::InTheWay(_) | Undone::Rejected(_)) if part.len() > 1 => {
                    parts.extend(part.chunks(part.len().div_ceil(PARTS)).rev());
                }
                Err(error) if part.len() == rows.len() => return Err(error),
                // Other parts were sent; report the error for this part only.
                Err(error) => {
                    answers.extend(part.iter().map(|row| Err(error.clone().into_error("send", vec![row.message.id]))))
                }
            }
        }
        Ok(answers)
    }

    /// Returns the holder of each dedup key.
    async fn send_deduped<'m>(&self, columns: &Columns<'m>) -> Result<HashMap<(&'m str, &'m str), MessageId>, Undone> {
        for _ in 0..TRIES {
            match persist(|| self.try_deduped(columns)).await? {
                Deduped::Done(holders) => return Ok(holders),
                Deduped::Again(expired) => self.dead_letter_expired(&expired).await?,
                Deduped::Busy(error) => return Err(Undone::InTheWay(error)),
            }
        }
        Err(in_the_way("send", "messages with these dedup keys come and go too fast"))
    }

    async fn try_deduped<'m>(&self, columns: &Columns<'m>) -> Result<Deduped<'m>, Undone> {
        let mut session = self.database.session("send", Deadline::default()).await?;
        let sql = session.sql();
        session.begin().await?;
        let stripes = columns.stripes();
        if !stripes.is_empty() {
            self.lock(&session, &stripes).await?;
        }
        let step = keyed_step(&sql.send, columns);
        // Long enough for a transaction that is about to commit; other senders wait for the stripes meanwhile.
        session.query("select set_config('lock_timeout', '100ms', true)", &[]).await?;
        let inserted = match session.query(step.sql, &step.parameters).await {
            Err(Undone::InTheWay(error)) => {
                session.rollback().await?;
                return Ok(Deduped::Busy(error));
            }
            inserted => inserted?,
        };
        let inserted: HashSet<i64> = inserted.iter().map(|row| row.get("id")).collect();
        if !columns.keys.is_empty() {
            // The first of a key may have been left out; then the next one is promoted.
            self.promote(&session, columns.keys.iter().map(|(queue, key)| (queue.as_str(), *key))).await?;
        }
        let wanted: Vec<(&'m str, &'m str)> =
            columns.queues.iter().zip(&columns.dedup_keys).filter_map(|(queue, key)| Some((*queue, (*key)?))).collect();
        let (queues, keys): (Vec<&str>, Vec<&str>) = wanted.iter().copied().unzip();
        let found = session.query(&sql.dedup_holders, &[&queues, &keys]).await?;
        let (mut holders, mut expired) = (HashMap::new(), Vec::new());
        for row in &found {
            let (id, queue, key): (i64, &str, &str) = (row.get("id"), row.get("queue"), row.get("dedup_key"));
            if row.get::<_, Option<bool>>("has_expired").unwrap_or(false) && !inserted.contains(&id) {
                expired.push((id, queue.to_owned(), row.get("ordering_key")));
            } else if let Some(wanted) = wanted.iter().find(|wanted| **wanted == (queue, key)) {
                holders.insert(*wanted, message_id(row, "message_id"));
            }
        }
        // The holder of a key at the insert may be gone at the look. Then the message must be inserted after all, at
        // its position in the batch.
        if !expired.is_empty() || wanted.iter().any(|wanted| !holders.contains_key(wanted)) {
            session.rollback().await?;
            return Ok(Deduped::Again(expired));
        }
        session.commit().await?;
        Ok(Deduped::Done(holders))
    }

    /// Dead-letters expired messages that hold a dedup key: each would swallow a new message and be dead-lettered by
    /// the next claim.
    pub(crate) async fn dead_letter_expired(&self, expired: &[Expired]) -> Result<(), Undone> {
        if expired.is_empty() {
            return Ok(());
        }
        persist(|| self.try_dead_letter_expired(expired)).await
    }

    async fn try_dead_letter_expired(&self, expired: &[Expired]) -> Result<(), Undone> {
        let began = Instant::now();
        let named = |queue: &str| QueueName::for_reading(queue).ok();
        let mut ids: Vec<i64> = expired.iter().map(|(id, ..)| *id).collect();
        ids.sort_unstable();
        let keys: Vec<(&str, &str)> =
            expired.iter().filter_map(|(_, queue, key)| Some((queue.as_str(), key.as_deref()?))).collect();
        let stripes = in_order(keys.iter().filter_map(|(queue, key)| Some(stripe(&named(queue)?, key))).collect());
        let mut session = self.database.session("send", Deadline::default()).await?;
        session.begin().await?;
        self.lock(&session, &stripes).await?;
        session.query(&session.sql().dead_letter_expired, &[&ids]).await?;
        self.promote(&session, keys.into_iter()).await?;
        session.commit().await?;
        let queues: Vec<QueueName> = expired.iter().filter_map(|(_, queue, _)| named(queue)).collect();
        let touched: Vec<QueueName> = queues.iter().flat_map(|queue| [queue.clone(), queue.dead_letters()]).collect();
        self.touch(&touched, began);
        Ok(())
    }

    /// Promotes the first message of each key that has no head. The caller holds the stripes. Returns how many keys are
    /// left to the next claim, because other transactions have locked their rows.
    pub(crate) async fn promote<'k>(
        &self,
        session: &Session<'_>,
        keys: impl Iterator<Item = (&'k str, &'k str)>,
    ) -> Result<usize, Undone> {
        let keys: BTreeSet<(&str, &str)> = keys.collect();
        if keys.is_empty() {
            return Ok(0);
        }
        let (queues, keys): (Vec<&str>, Vec<&str>) = keys.into_iter().unzip();
        session.query(&session.sql().promote, &[&queues, &keys]).await.map(|left| left.len())
    }

    /// Waits for stripes, given in order.
    pub(crate) async fn lock(&self, session: &Session<'_>, stripes: &[i32]) -> Result<(), Undone> {
        if stripes.is_empty() {
            return Ok(());
        }
        let class = self.database.sql.schema.lock_class();
        session.query(&session.sql().lock_stripes, &[&class, &stripes]).await.map(drop)
    }

    /// Waits a moment for stripes, given in order. The short lock timeout holds for the rest of the transaction.
    pub(crate) async fn await_stripes(&self, session: &Session<'_>, stripes: &[i32]) -> Result<(), Undone> {
        if stripes.is_empty() {
            return Ok(());
        }
        let class = self.database.sql.schema.lock_class();
        session.query(&session.sql().await_stripes, &[&class, &stripes]).await.map(drop)
    }

    /// Takes the free stripes. Returns them.
    pub(crate) async fn lock_free_stripes(
        &self,
        session: &Session<'_>,
        stripes: &[i32],
    ) -> Result<HashSet<i32>, Undone> {
        if stripes.is_empty() {
            return Ok(HashSet::new());
        }
        let class = self.database.sql.schema.lock_class();
        let got = session.query(&session.sql().try_stripes, &[&class, &stripes]).await?;
        Ok(got.iter().map(|row| row.get("stripe")).collect())
    }
}

/// An expired row: its number, queue and ordering key.
pub(crate) type Expired = (i64, String, Option<String>);

enum Deduped<'m> {
    Done(HashMap<(&'m str, &'m str), MessageId>),
    /// Nothing was done; dead-letter these first.
    Again(Vec<Expired>),
    /// Nothing was done: an open transaction holds a key.
    Busy(MessagingError),
}

/// `None` without messages.
fn alike_step<'p>(sql: &'p str, columns: &'p Columns<'_>) -> Option<Step<'p>> {
    let c = columns;
    let parameters: [&(dyn ToSql + Sync); 10] = [
        c.queues.first()?,
        c.priorities.first()?,
        c.delays.first()?,
        c.expires_at.first()?,
        c.lifetimes.first()?,
        c.content_types.first()?,
        c.headers.first()?,
        &c.ids,
        &c.listed,
        &c.payloads,
    ];
    Some(Step::new(sql, parameters))
}

fn plain_step<'p>(sql: &'p str, columns: &'p Columns<'_>) -> Step<'p> {
    let c = columns;
    Step::new(
        sql,
        [
            &c.queues as _,
            &c.ids as _,
            &c.priorities as _,
            &c.delays as _,
            &c.expires_at as _,
            &c.lifetimes as _,
            &c.content_types as _,
            &c.headers as _,
            &c.payloads as _,
            &c.listed as _,
        ],
    )
}

fn keyed_step<'p>(sql: &'p str, columns: &'p Columns<'_>) -> Step<'p> {
    let c = columns;
    Step::new(
        sql,
        [
            &c.queues as _,
            &c.ids as _,
            &c.priorities as _,
            &c.delays as _,
            &c.expires_at as _,
            &c.lifetimes as _,
            &c.ordering_keys as _,
            &c.dedup_keys as _,
            &c.content_types as _,
            &c.headers as _,
            &c.payloads as _,
            &c.is_behind as _,
            &c.listed as _,
        ],
    )
}
