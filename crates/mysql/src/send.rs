//! Sends.

use std::collections::{BTreeSet, HashMap, HashSet};

use mysql_async::Row;
use postrider_core::coalescer::SendRow;
use postrider_core::service::check_sendable;
use postrider_core::{Deadline, Expiry, Message, MessageId, MessagingError, QueueName, RowResults};

use postrider_provider::{Undone, persist};
use postrider_sql::stripes::{in_order, stripe};

use crate::connection::{PAUSES, Session, at_once};
use crate::dead_letters::end_lives;
use crate::error::busy;
use crate::literal::{self, fill, micros, optional};
use crate::rows::{self, content_type_column, headers_column};
use crate::sql::Sql;
use crate::store::{Shared, ensure_queues};

/// Attempts while the holders of dedup keys have expired.
pub(crate) const TRIES: usize = 10;

/// Makes the next statement see uncommitted changes.
pub(crate) const UNCOMMITTED: &str = "set transaction isolation level read uncommitted";

/// Dedup keys with their queues.
type DedupKeys = HashSet<(String, String)>;

/// The holder of each dedup key.
type Holders = HashMap<(String, String), MessageId>;

/// An expired row: its number, queue and ordering key.
pub(crate) type Expired = (i64, String, Option<String>);

/// Reads an expired row of `dedup_holders.sql`.
pub(crate) fn expired(row: &Row) -> Expired {
    (rows::number(row, "id"), rows::text(row, "queue"), rows::optional_text(row, "ordering_key"))
}

/// The messages of a batch that can be sent.
pub(crate) struct Sendable<'m> {
    pub(crate) rows: Vec<&'m SendRow>,
    keys: BTreeSet<(&'m QueueName, &'m str)>,
    dedup_keys: BTreeSet<(&'m str, &'m str)>,
    pub(crate) queues: BTreeSet<&'m QueueName>,
}

impl<'m> Sendable<'m> {
    fn new(rows: Vec<&'m SendRow>) -> Self {
        let keys = rows.iter().filter_map(|row| Some((&row.queue, row.message.ordering_key.as_ref()?.as_str())));
        Self {
            keys: keys.collect(),
            dedup_keys: rows.iter().filter_map(|row| dedup_key(row)).collect(),
            queues: rows.iter().map(|row| &row.queue).collect(),
            rows,
        }
    }

    fn stripes(&self) -> Vec<i32> {
        in_order(self.keys.iter().map(|(queue, key)| stripe(queue, key)).collect())
    }
}

fn dedup_key(row: &SendRow) -> Option<(&str, &str)> {
    Some((row.queue.as_str(), row.message.dedup_key.as_ref()?.as_str()))
}

fn owned((queue, key): (&str, &str)) -> (String, String) {
    (queue.to_owned(), key.to_owned())
}

impl Shared {
    /// Stores messages, in order. Returns for each its id, or the id of the live message with its dedup key.
    pub(crate) async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, Undone> {
        let missing = self.missing_queues(rows).await?;
        let check = |row: &SendRow| {
            check_sendable(&self.capabilities, &row.queue, &row.message)?;
            match missing.contains(&row.queue) {
                true => Err(MessagingError::QueueNotFound { queue: row.queue.clone() }),
                false => Ok(row.message.id),
            }
        };
        let mut results: RowResults<MessageId> = rows.iter().map(check).collect();
        let chosen = rows.iter().zip(&results).filter(|(_, result)| result.is_ok()).map(|(row, _)| row);
        let sendable = Sendable::new(chosen.collect());
        if sendable.rows.is_empty() {
            return Ok(results);
        }
        let (holders, busy_keys) = self.insert(&sendable).await?;
        for (row, result) in rows.iter().zip(&mut results) {
            let Some(key) = dedup_key(row).map(owned).filter(|_| result.is_ok()) else { continue };
            if busy_keys.contains(&key) {
                *result = Err(busy("send", "the message that has the dedup key"));
            } else if let Some(holder) = holders.get(&key) {
                *result = Ok(*holder);
            }
        }
        self.touch(sendable.queues.iter().copied());
        Ok(results)
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

    /// Inserts a batch. Returns the holder of each dedup key, and the dedup keys of messages that were left out,
    /// because an open transaction has changed their holder: the others do not wait for its end.
    async fn insert(&self, sendable: &Sendable<'_>) -> Result<(Holders, DedupKeys), Undone> {
        if sendable.keys.is_empty() && sendable.dedup_keys.is_empty() {
            persist(|| self.insert_plain(sendable)).await?;
            return Ok((Holders::new(), DedupKeys::new()));
        }
        let (mut left_out, mut burials, mut pauses) = (DedupKeys::new(), 0, PAUSES.into_iter());
        loop {
            let is_in = |row: &&&SendRow| dedup_key(row).is_none_or(|key| !left_out.contains(&owned(key)));
            let now = Sendable::new(sendable.rows.iter().filter(is_in).copied().collect());
            if now.rows.is_empty() {
                return Ok((Holders::new(), left_out));
            }
            match persist(|| self.insert_keyed(&now)).await? {
                Inserted::Done(holders) => return Ok((holders, left_out)),
                Inserted::After(_, keys) if burials == TRIES => left_out.extend(keys),
                Inserted::After(expired, _) => {
                    burials += 1;
                    self.dead_letter_expired(&expired).await?;
                }
                Inserted::Busy(keys) => match pauses.next() {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => left_out.extend(keys),
                },
            }
        }
    }

    /// Returns the dedup keys that open transactions have taken.
    async fn busy_keys(&self, session: &mut Session<'_>, sendable: &Sendable<'_>) -> Result<DedupKeys, Undone> {
        let look = dedup_holders(&session.sql().dedup_holders, &sendable.dedup_keys);
        let mut answers = session.ask(format!("{UNCOMMITTED};\n{look};\n{look}")).await?.into_iter();
        let (latest, committed) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
        let committed: HashSet<i64> = committed.iter().map(|row| rows::number(row, "id")).collect();
        let busy = latest.iter().filter(|row| !committed.contains(&rows::number(row, "id")));
        Ok(busy.map(|row| (rows::text(row, "queue"), rows::text(row, "dedup_key"))).collect())
    }

    /// Inserts messages of which some have ordering keys or dedup keys.
    async fn insert_keyed(&self, sendable: &Sendable<'_>) -> Result<Inserted, Undone> {
        let mut session = self.database.session("send", Deadline::default()).await?;
        let sql = session.sql();
        session.begin(lock_stripes(sql, &sendable.stripes())).await?;
        let look =
            format!("{};\n{}", taken_keys(sql, sendable), dedup_holders(&sql.dedup_holders, &sendable.dedup_keys));
        let mut answers = session.query(look).await?.into_iter();
        let (taken, found) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
        let (mut holders, mut gone, mut gone_keys) = (Holders::new(), Vec::new(), DedupKeys::new());
        for row in &found {
            let (queue, key) = (rows::text(row, "queue"), rows::text(row, "dedup_key"));
            if rows::flag(row, "has_expired") {
                gone.push(expired(row));
                gone_keys.insert((queue, key));
            } else {
                holders.insert((queue, key), rows::message_id(row, "message_id"));
            }
        }
        if !gone.is_empty() {
            session.rollback().await?;
            return Ok(Inserted::After(gone, gone_keys));
        }
        let taken: HashSet<(String, String)> =
            taken.iter().map(|row| (rows::text(row, "queue"), rows::text(row, "ordering_key"))).collect();
        let mut headed: HashSet<(&str, &str)> =
            taken.iter().map(|(queue, key)| (queue.as_str(), key.as_str())).collect();
        let mut values = Vec::with_capacity(sendable.rows.len());
        for row in &sendable.rows {
            if let Some(key) = dedup_key(row) {
                if holders.contains_key(&owned(key)) {
                    continue;
                }
                holders.insert(owned(key), row.message.id);
            }
            let key = row.message.ordering_key.as_ref();
            let blocked = key.is_some_and(|key| !headed.insert((row.queue.as_str(), key.as_str())));
            values.push(send_values(&row.queue, &row.message, blocked));
        }
        let send = match values.is_empty() {
            true => String::new(),
            // Fails at once, because it holds stripes.
            false => at_once(fill(&sql.send, &[("rows", &literal::list(values))])),
        };
        match session.commit(self.with_listing(sendable, send)).await {
            Ok(_) => Ok(Inserted::Done(holders)),
            Err(Undone::InTheWay(error)) if !session.is_in_transaction() => {
                let busy = self.busy_keys(&mut session, sendable).await?;
                if busy.is_empty() { Err(Undone::InTheWay(error)) } else { Ok(Inserted::Busy(busy)) }
            }
            Err(error) => Err(error),
        }
    }

    /// Adds the listing of the queues to a send, if sends create queues.
    pub(crate) fn with_listing(&self, sendable: &Sendable<'_>, send: String) -> String {
        if !self.options.create_queues {
            return send;
        }
        let listing = ensure_queues(&self.database.sql.ensure_queue, sendable.queues.iter().copied());
        if send.is_empty() { listing } else { format!("{listing};\n{send}") }
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
        let named = |queue: &str| QueueName::for_reading(queue).ok();
        let keys: Vec<(&str, &str)> =
            expired.iter().filter_map(|(_, queue, key)| Some((queue.as_str(), key.as_deref()?))).collect();
        let stripes = in_order(keys.iter().filter_map(|(queue, key)| Some(stripe(&named(queue)?, key))).collect());
        let mut session = self.database.session("send", Deadline::default()).await?;
        let sql = session.sql();
        session.begin(lock_stripes(sql, &stripes)).await?;
        let ids = literal::list(expired.iter().map(|(id, ..)| id));
        let found = session.query(fill(&sql.expired, &[("ids", &ids)])).await?.concat();
        let dead: Vec<(i64, String, Option<String>)> =
            found.iter().map(|row| (rows::number(row, "id"), "expired".to_owned(), None)).collect();
        let steps = promote(&mut session, end_lives(sql, &dead), keys.into_iter()).await?;
        session.commit(steps.join(";\n")).await?;
        let queues: Vec<QueueName> = expired.iter().filter_map(|(_, queue, _)| named(queue)).collect();
        self.touch(queues.iter().flat_map(|queue| [queue.clone(), queue.dead_letters()]).collect::<Vec<_>>().iter());
        Ok(())
    }
}

enum Inserted {
    Done(Holders),
    /// Nothing was done; dead-letter these first, which hold these dedup keys.
    After(Vec<Expired>, DedupKeys),
    /// Nothing was done; open transactions hold these dedup keys.
    Busy(DedupKeys),
}

/// Returns the values of a new row.
pub(crate) fn send_values(queue: &QueueName, message: &Message, blocked: bool) -> String {
    let expires_at = match message.expires {
        Some(Expiry::At(time)) => literal::time(time),
        Some(Expiry::In(lifetime)) => format!("utc_timestamp(6) + interval {} microsecond", micros(lifetime)),
        None => "null".to_owned(),
    };
    let delay = match micros(message.delay) {
        0 => String::new(),
        delay => format!(" + interval {delay} microsecond"),
    };
    format!(
        "({}, {}, {}, utc_timestamp(6){delay}, utc_timestamp(6), {expires_at}, {}, {}, {}, {}, {}, {blocked})",
        literal::bytes(queue.as_str().as_bytes()),
        literal::id(message.id),
        message.priority.get(),
        optional(message.ordering_key.as_ref(), |key| literal::bytes(key.as_str().as_bytes())),
        optional(message.dedup_key.as_ref(), |key| literal::bytes(key.as_str().as_bytes())),
        optional(content_type_column(&message.content_type), literal::text),
        literal::text(&headers_column(&message.headers)),
        literal::bytes(&message.body),
    )
}

/// Returns the statement that waits for stripes, given in order; empty without stripes.
pub(crate) fn lock_stripes(sql: &Sql, stripes: &[i32]) -> String {
    match stripes.is_empty() {
        true => String::new(),
        false => fill(&sql.lock_stripes, &[("stripes", &literal::list(stripes))]),
    }
}

/// Returns the statement that takes free stripes; empty without stripes.
pub(crate) fn lock_free_stripes(sql: &Sql, stripes: &[i32]) -> String {
    match stripes.is_empty() {
        true => String::new(),
        false => fill(&sql.lock_free_stripes, &[("stripes", &literal::list(stripes))]),
    }
}

/// Reads the taken stripes.
pub(crate) fn taken_stripes(found: &[Row]) -> HashSet<i32> {
    found.iter().filter_map(|row| i32::try_from(rows::number(row, "id")).ok()).collect()
}

/// Like [`promote`], for a caller that holds only some of the stripes: the other keys are left to the next claim.
pub(crate) async fn promote_or_leave(
    session: &mut Session<'_>,
    mut steps: Vec<String>,
    keys: &BTreeSet<(&QueueName, &str)>,
    taken: &HashSet<i32>,
) -> Result<Vec<String>, Undone> {
    let (held, left): (Vec<_>, Vec<_>) = keys.iter().partition(|(queue, key)| taken.contains(&stripe(queue, key)));
    steps.extend(left.into_iter().map(|(queue, key)| unplace(session.sql(), queue, Some(key))));
    promote(session, steps, held.into_iter().map(|(queue, key)| (queue.as_str(), key))).await
}

/// Returns the statement that notes a key to be promoted by the next claim, or a queue to be listed.
pub(crate) fn unplace(sql: &Sql, queue: &QueueName, ordering_key: Option<&str>) -> String {
    let key = optional(ordering_key, |key| literal::bytes(key.as_bytes()));
    fill(&sql.unplace, &[("rows", &format!("({}, {key})", literal::bytes(queue.as_str().as_bytes())))])
}

/// Runs steps after which keys may have no head. Returns the step that promotes their next messages. The caller holds
/// the stripes.
pub(crate) async fn promote<'k>(
    session: &mut Session<'_>,
    mut steps: Vec<String>,
    keys: impl Iterator<Item = (&'k str, &'k str)>,
) -> Result<Vec<String>, Undone> {
    let (sql, keys) = (session.sql(), keys.collect::<BTreeSet<(&str, &str)>>());
    if keys.is_empty() {
        return Ok(steps);
    }
    let firsts: Vec<String> = keys.into_iter().map(|(queue, key)| with_key(&sql.first_of_key, queue, key)).collect();
    steps.push(firsts.join(" union all "));
    let found = session.query(steps.join(";\n")).await?.pop().unwrap_or_default();
    let firsts: Vec<i64> = found.iter().filter_map(|row| rows::optional_number(row, "id")).collect();
    Ok(match firsts.is_empty() {
        true => Vec::new(),
        false => vec![fill(&sql.promote, &[("ids", &literal::list(firsts))])],
    })
}

fn taken_keys(sql: &Sql, sendable: &Sendable<'_>) -> String {
    let mut probes: Vec<String> =
        sendable.keys.iter().map(|(queue, key)| with_key(&sql.taken_keys, queue.as_str(), key)).collect();
    if probes.is_empty() {
        probes.push("select null as queue, null as ordering_key from dual where false".to_owned());
    }
    probes.join(" union all ")
}

fn with_key(statement: &str, queue: &str, key: &str) -> String {
    let (queue, key) = (literal::bytes(queue.as_bytes()), literal::bytes(key.as_bytes()));
    fill(statement, &[("queue", &queue), ("ordering_key", &key)])
}

/// Returns the statement that reads the holders of dedup keys, each of a queue.
pub(crate) fn dedup_holders<'k>(statement: &str, keys: impl IntoIterator<Item = &'k (&'k str, &'k str)>) -> String {
    let pair = |(queue, key): &(&str, &str)| {
        format!("({}, {})", literal::bytes(queue.as_bytes()), literal::bytes(key.as_bytes()))
    };
    let mut pairs: Vec<String> = keys.into_iter().map(pair).collect();
    if pairs.is_empty() {
        pairs.push("(null, null)".to_owned());
    }
    fill(statement, &[("keys", &pairs.join(", "))])
}
