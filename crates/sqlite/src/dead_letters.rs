//! Moves messages to the dead letters; edits, redrives and purges them.

use std::collections::HashSet;
use std::sync::Arc;

use postrider_core::{
    ArchivePolicy, DeadLetter, DeadLetterEdit, DeadLetterReason, DeadLetterSelection, Limits, Message, MessageId,
    MessagingError, QueueName, RedriveReport, RedriveSkip, Timestamp,
};
use postrider_provider::DeadPart;
use rusqlite::{Connection, OptionalExtension, Row};

use crate::error::Failure;
use crate::rows::{self, Columns, DeadLetterColumns, content_type_column, headers_column};
use crate::send::dedup_holder;
use crate::session::Session;
use crate::sql;

/// A dead letter as a redrive or a purge needs it.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) death: i64,
    id: i64,
    message_id: MessageId,
    dedup_key: Option<String>,
    is_leased: bool,
}

impl Dead {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let id: i64 = row.get("id")?;
        Ok(Self {
            death: row.get("death")?,
            id,
            message_id: rows::message_id(row, "message_id", id),
            dedup_key: row.get("dedup_key").unwrap_or_default(),
            is_leased: row.get("is_leased")?,
        })
    }
}

/// The dead letters of a part of a selection.
pub(crate) fn select(connection: &Connection, part: &DeadPart, now: i64) -> rusqlite::Result<Vec<Dead>> {
    let origin = part.queue.origin();
    let reason = match &part.selection {
        DeadLetterSelection::Ids(ids) => {
            let mut dead = Vec::new();
            let mut statement = connection.prepare_cached(sql::SELECT_DEAD_BY_ID)?;
            for id in ids {
                let found = statement.query_map((id.as_uuid().as_bytes(), origin.as_str(), now), Dead::read)?;
                for found in found {
                    dead.push(found?);
                }
            }
            dead.sort_by_key(|dead| dead.death);
            dead.dedup_by_key(|dead| dead.death);
            return Ok(dead);
        }
        DeadLetterSelection::All => None,
        DeadLetterSelection::Reason(reason) => Some(reason.as_str()),
    };
    let limit = i64::try_from(part.limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(sql::SELECT_DEAD)?;
    let dead = statement.query_map((origin.as_str(), part.after, reason, now, limit), Dead::read)?;
    dead.collect()
}

/// The report of a redrive without carrying it out, on a connection that only reads.
pub(crate) fn preview_redrive(
    connection: &Connection,
    part: &DeadPart,
    target: &QueueName,
    now: Timestamp,
) -> rusqlite::Result<RedriveReport> {
    let mut report = RedriveReport::default();
    let mut redriven_keys = HashSet::new();
    for dead in select(connection, part, now.as_micros())? {
        let is_taken = match &dead.dedup_key {
            Some(key) => {
                let holder = dedup_holder(connection, target, key, now)?;
                redriven_keys.contains(key) || holder.is_some_and(|holder| holder.lives(now))
            }
            None => false,
        };
        if dead.is_leased {
            report.skipped.push((dead.message_id, RedriveSkip::Leased));
        } else if is_taken {
            report.skipped.push((dead.message_id, RedriveSkip::DedupKeyTaken));
        } else {
            redriven_keys.extend(dead.dedup_key);
            report.redriven.push(dead.message_id);
        }
    }
    Ok(report)
}

/// Reads one dead letter.
pub(crate) fn get(
    connection: &Connection,
    queue: &QueueName,
    id: MessageId,
) -> rusqlite::Result<Option<(i64, DeadLetter)>> {
    let origin = queue.origin();
    let mut statement = connection.prepare_cached(sql::GET_DEAD_LETTER)?;
    let columns = DeadLetterColumns::of(&statement)?;
    let found = statement
        .query_row((id.as_uuid().as_bytes(), origin.as_str()), |row| rows::dead_letter(row, &origin, columns))
        .optional()?;
    Ok(found.map(|(_, row, letter)| (row, letter)))
}

impl Session<'_> {
    /// Moves a message to the dead letters of its queue, with its record, in one transaction.
    pub(crate) fn move_to_dead_letters(
        &mut self,
        origin: &QueueName,
        id: i64,
        key: Option<&str>,
        reason: &DeadLetterReason,
        error: Option<&str>,
    ) -> rusqlite::Result<()> {
        let now = self.now.as_micros();
        let dead = origin.dead_letters();
        let mut record = self.connection.prepare_cached(sql::DEAD_LETTER_RECORD)?;
        record.execute((id, origin.as_str(), reason.as_str(), error, now))?;
        self.connection.prepare_cached(sql::DEAD_LETTER)?.execute((id, dead.as_str(), now))?;
        if let Some(key) = key {
            self.promote(origin, key)?;
        }
        self.touch(&dead, self.now);
        Ok(())
    }

    pub(crate) fn edit_dead(
        &mut self,
        queue: &QueueName,
        id: MessageId,
        edit: &DeadLetterEdit,
        limits: &Limits,
    ) -> Result<DeadLetter, Failure> {
        let missing = || MessagingError::MessageNotFound { queue: queue.dead_letters(), id };
        let selection = DeadLetterSelection::Ids(vec![id]);
        let part = DeadPart { queue: queue.clone(), selection, after: 0, limit: 1, revived: Arc::default() };
        let dead = select(self.connection, &part, self.now.as_micros())?.into_iter().next().ok_or_else(missing)?;
        if dead.is_leased {
            return Err(MessagingError::MessageLeased { queue: queue.dead_letters(), id }.into());
        }
        let (_, letter) = get(self.connection, queue, id)?.ok_or_else(missing)?;
        let message = Message::new(letter.body).id(id).content_type(letter.content_type);
        let edited = edit.apply_to(Message { headers: letter.headers, ..message }, limits)?;
        let headers = edit.headers.as_ref().map(headers_column);
        self.connection.prepare_cached(sql::EDIT_DEAD_LETTER)?.execute((
            dead.id,
            edit.body.as_deref(),
            content_type_column(&edited.content_type),
            headers.as_deref(),
        ))?;
        self.connection.prepare_cached(sql::COUNT_REVISION)?.execute([dead.id])?;
        let (_, letter) = get(self.connection, queue, id)?.ok_or_else(missing)?;
        Ok(letter)
    }

    /// Redrives a part of a selection. Returns the report, and where the next part begins if there is one.
    pub(crate) fn redrive(
        &mut self,
        part: &DeadPart,
        target: &QueueName,
    ) -> Result<(RedriveReport, Option<i64>), Failure> {
        let mut report = RedriveReport::default();
        let chosen = select(self.connection, part, self.now.as_micros())?;
        let next = part.next(chosen.len(), chosen.last().map(|last| last.death));
        for dead in chosen.into_iter().filter(|dead| !part.revived.contains(&dead.message_id)) {
            if dead.is_leased {
                report.skipped.push((dead.message_id, RedriveSkip::Leased));
                continue;
            }
            let is_taken = match &dead.dedup_key {
                Some(key) => self.living_holder(target, key)?.is_some(),
                None => false,
            };
            if is_taken {
                report.skipped.push((dead.message_id, RedriveSkip::DedupKeyTaken));
            } else {
                self.require_queue(target)?;
                self.redrive_one(&part.queue, &dead, target)?;
                report.redriven.push(dead.message_id);
            }
        }
        Ok((report, next))
    }

    /// Sends a dead letter again at the tail of its key: the new row number is behind everything sent meanwhile.
    fn redrive_one(&mut self, queue: &QueueName, dead: &Dead, target: &QueueName) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare_cached(sql::REDRIVE)?;
        statement.execute((dead.id, target.as_str(), self.now.as_micros()))?;
        self.forget_attempts(queue, dead.message_id)?;
        self.remove(&queue.dead_letters(), dead.id, None)?;
        self.touch(target, self.now);
        Ok(())
    }

    /// Purges a part of a selection. Returns the number of purged messages, and where the next part begins if there is
    /// one.
    pub(crate) fn purge_dead(&mut self, part: &DeadPart) -> rusqlite::Result<(u64, Option<i64>)> {
        let chosen = select(self.connection, part, self.now.as_micros())?;
        let next = part.next(chosen.len(), chosen.last().map(|last| last.death));
        let mut purged = 0;
        for dead in chosen.into_iter().filter(|dead| !dead.is_leased) {
            self.purge_one(&part.queue, &dead)?;
            purged += 1;
        }
        Ok((purged, next))
    }

    fn purge_one(&mut self, queue: &QueueName, dead: &Dead) -> rusqlite::Result<()> {
        match self.rules.archive {
            ArchivePolicy::All | ArchivePolicy::Failed => {
                self.connection.prepare_cached(sql::ARCHIVE_DEAD)?.execute((dead.id, self.now.as_micros()))?;
                self.archived += 1;
            }
            ArchivePolicy::None => self.forget_attempts(queue, dead.message_id)?,
        }
        self.remove(&queue.dead_letters(), dead.id, None)
    }
}
