//! Dead letters: list, edit, redrive and purge.

use std::collections::{HashSet, VecDeque};

use super::lifecycle::{Failed, Lifecycle, Waiting};
use crate::archive::ArchivedState;
use crate::capabilities::Limits;
use crate::clock::Timestamp;
use crate::dead_letter::{
    DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason,
    DeadLetterSelection, Redrive, RedriveReport, RedriveSkip,
};
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::service::MessageAttempt;

use super::queue::{Death, Phase, Queue, Row, RowId};
use super::store::State;

impl State {
    /// Moves a message and its record to the dead letters of its queue, in one critical section.
    pub(super) fn dead_letter(
        &mut self,
        origin: &QueueName,
        message: Message,
        expires_at: Option<Timestamp>,
        failures: VecDeque<MessageAttempt>,
        lifecycle: Lifecycle<Failed>,
        now: Timestamp,
    ) {
        let death = Death { lifecycle, revision: 0 };
        let phase = Phase::Waiting(Waiting::Pending(Lifecycle::begin(now, now)));
        let id = self.next_row();
        let dead = self.queue(&origin.dead_letters());
        dead.exists = true;
        dead.insert(id, Row { message, expires_at, phase, death: Some(death), failures }, now);
    }

    /// Moves a row to the dead letters that has expired or was delivered too often.
    pub(super) fn dead_letter_unread(&mut self, name: &QueueName, id: RowId, reason: DeadLetterReason, now: Timestamp) {
        let Some(row) = self.queues.get_mut(name).and_then(|queue| queue.remove(id, now)) else { return };
        if let Phase::Waiting(waiting) = row.phase.expire(now) {
            self.dead_letter(
                name,
                row.message,
                row.expires_at,
                row.failures,
                waiting.dead_letter_unread(reason, now),
                now,
            );
        }
    }

    fn dead(&self, queue: &QueueName) -> Option<&Queue> {
        self.queues.get(&queue.dead_letters())
    }

    pub(super) fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
    ) -> Result<DeadLetterPage, MessagingError> {
        query.check()?;
        let after = match &query.after {
            None => 0,
            Some(cursor) => cursor.0.parse::<RowId>().map_err(|_| MessagingError::invalid_cursor(&cursor.0))?,
        };
        let mut page = DeadLetterPage { letters: Vec::new(), next: None };
        let Some(dead) = self.dead(queue) else { return Ok(page) };
        let mut last = after;
        for (id, row) in dead.rows.range(after.saturating_add(1)..) {
            let Some(letter) = letter(dead, row) else { continue };
            if !query.selection.includes(letter.id, &letter.reason) {
                continue;
            }
            if page.letters.len() == query.limit {
                page.next = Some(DeadLetterCursor(last.to_string()));
                break;
            }
            page.letters.push(letter);
            last = *id;
        }
        Ok(page)
    }

    pub(super) fn get_dead(&self, queue: &QueueName, id: MessageId) -> Result<DeadLetter, MessagingError> {
        self.dead(queue)
            .and_then(|dead| dead.rows_of(id).next().and_then(|row| letter(dead, dead.rows.get(&row)?)))
            .ok_or_else(|| MessagingError::MessageNotFound { queue: queue.dead_letters(), id })
    }

    pub(super) fn edit_dead(
        &mut self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        limits: &Limits,
        now: Timestamp,
    ) -> Result<DeadLetter, MessagingError> {
        let missing = || MessagingError::MessageNotFound { queue: queue.dead_letters(), id };
        let dead = self.queues.get_mut(&queue.dead_letters()).ok_or_else(missing)?;
        let row_id = dead.rows_of(id).next().ok_or_else(missing)?;
        let row = dead.rows.get_mut(&row_id).ok_or_else(missing)?;
        if row.is_leased(now) {
            return Err(MessagingError::MessageLeased { queue: queue.dead_letters(), id });
        }
        row.message = edit.apply_to(row.message.clone(), limits)?;
        if let Some(death) = &mut row.death {
            death.revision = death.revision.saturating_add(1);
        }
        self.get_dead(queue, id)
    }

    pub(super) fn redrive(
        &mut self,
        queue: &QueueName,
        redrive: &Redrive,
        now: Timestamp,
    ) -> Result<RedriveReport, MessagingError> {
        let target = redrive.to.clone().unwrap_or_else(|| queue.origin());
        if target.holds_dead_letters() {
            return Err(MessagingError::invalid(
                "redrive target",
                format!("'{target}' holds dead letters; redrive to '{}' or another queue", target.origin()),
            ));
        }
        let mut report = RedriveReport::default();
        // Dedup keys of the messages redriven so far, so that a dry run reports what a redrive does.
        let mut revived_keys = HashSet::new();
        for (row_id, id) in self.selected(queue, &redrive.selection) {
            let Some(row) = self.dead(queue).and_then(|dead| dead.rows.get(&row_id)) else { continue };
            let key = row.message.dedup_key.clone();
            if row.is_leased(now) {
                report.skipped.push((id, RedriveSkip::Leased));
                continue;
            }
            let taken = key.as_ref().is_some_and(|key| {
                revived_keys.contains(key)
                    || match redrive.dry_run {
                        true => self.dedup_holder(&target, key).is_some_and(|(_, holder)| !holder.is_over(now)),
                        false => self.living_holder(&target, key, now).is_some(),
                    }
            });
            if taken {
                report.skipped.push((id, RedriveSkip::DedupKeyTaken));
                continue;
            }
            revived_keys.extend(key);
            if !redrive.dry_run {
                self.revive(queue, row_id, &target, now);
            }
            report.redriven.push(id);
        }
        report.add_missing(&redrive.selection);
        Ok(report)
    }

    fn revive(&mut self, queue: &QueueName, row_id: RowId, target: &QueueName, now: Timestamp) {
        let Some(row) = self.queues.get_mut(&queue.dead_letters()).and_then(|dead| dead.remove(row_id, now)) else {
            return;
        };
        // A redriven message gets a new row number, so it joins the tail of its key.
        let id = self.next_row();
        let Some(Death { lifecycle, .. }) = row.death else { return };
        let phase = Phase::Waiting(Waiting::Pending(lifecycle.redrive(now)));
        // A message whose expiry has passed would be dead-lettered again at once.
        let expires_at = row.expires_at.filter(|expires_at| *expires_at > now);
        let queue = self.queue(target);
        queue.exists = true;
        queue.insert(id, Row { message: row.message, expires_at, phase, death: None, failures: VecDeque::new() }, now);
    }

    pub(super) fn purge_dead(&mut self, queue: &QueueName, selection: &DeadLetterSelection, now: Timestamp) -> u64 {
        let selected = self.selected(queue, selection);
        let Some(dead) = self.queues.get_mut(&queue.dead_letters()) else { return 0 };
        let mut removed = Vec::new();
        for (row_id, _) in selected {
            if dead.rows.get(&row_id).is_some_and(|row| !row.is_leased(now))
                && let Some(row) = dead.remove(row_id, now)
            {
                removed.push(row);
            }
        }
        let purged = removed.len() as u64;
        for row in removed {
            if let Some(death) = row.death {
                self.keep(queue, row.message, death.lifecycle.record(), ArchivedState::Failed, now);
            }
        }
        purged
    }

    /// The rows of a selection, oldest death first.
    fn selected(&self, queue: &QueueName, selection: &DeadLetterSelection) -> Vec<(RowId, MessageId)> {
        let Some(dead) = self.dead(queue) else { return Vec::new() };
        if let DeadLetterSelection::Ids(ids) = selection {
            let mut rows: Vec<_> = ids.iter().flat_map(|id| dead.rows_of(*id).map(|row| (row, *id))).collect();
            rows.sort_unstable();
            rows.dedup();
            return rows;
        }
        let matches = |row: &Row| {
            row.death.as_ref().is_some_and(|death| selection.includes(row.message.id, &death.lifecycle.state().reason))
        };
        dead.rows.iter().filter(|(_, row)| matches(row)).map(|(id, row)| (*id, row.message.id)).collect()
    }
}

fn letter(dead: &Queue, row: &Row) -> Option<DeadLetter> {
    let death = row.death.as_ref()?;
    let (record, state) = (death.lifecycle.record(), death.lifecycle.state());
    let message = row.message.clone();
    Some(DeadLetter {
        id: message.id,
        origin: dead.name.origin(),
        body: message.body,
        content_type: message.content_type,
        headers: message.headers,
        ordering_key: message.ordering_key,
        dedup_key: message.dedup_key,
        priority: message.priority,
        expires_at: row.expires_at,
        reason: state.reason.clone(),
        error: record.last_error.clone(),
        deliveries_count: record.deliveries_count,
        attempts_count: record.attempts_count,
        enqueued_at: record.created_at,
        first_attempt_at: record.first_attempt_at,
        last_attempt_at: record.last_attempt_at,
        dead_at: state.dead_at,
        revision: death.revision,
    })
}
