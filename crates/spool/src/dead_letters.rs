//! Dead letters: dead-lettered, listed, edited, redriven and purged. A dead letter is a file in `failed/` with a death
//! record beside it.

use std::collections::HashSet;

use postrider_core::{
    DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason,
    DeadLetterSelection, Key, Message, MessageId, MessagingError, Redrive, RedriveReport, RedriveSkip, failpoint,
};

use crate::content::Content;
use crate::disk::Name;
use crate::error::Failure;
use crate::index::{DeadPosition, Location, Row, time};
use crate::message_file;
use crate::name::{FileName, Kind};
use crate::record::{self, Death, FileNameText};
use crate::session::{Session, Side};

/// Reason of a foreign file in `failed/`.
const FOREIGN_REASON: &str = "put_into_failed";

/// Number of dead letters read together.
const CHUNK: usize = 100;

/// A file in `failed/` with its parsed name.
#[derive(Debug, Clone)]
struct DeadFile {
    row: Row,
    name: FileName,
}

impl DeadFile {
    fn dead_position(&self) -> DeadPosition {
        (self.row.slot.order.position, self.name.id)
    }
}

impl Session<'_> {
    /// Moves a message to the dead letters. Its record is written before it moves.
    pub(crate) fn dead_letter(
        &mut self,
        location: Location,
        file: &Name,
        name: &FileName,
        reason: DeadLetterReason,
        error: Option<String>,
    ) -> Result<(), Failure> {
        let note = self.note_of(name);
        let file_name = match &name.kind {
            Kind::Message => None,
            Kind::Foreign(original) => Some(FileNameText::new(original)),
            // Never claimed, so it still has its original name.
            Kind::LongNamed => note.file_name.or_else(|| Some(FileNameText::new(file))),
        };
        let death = Death {
            reason,
            error: error.or(note.error),
            dead_at: self.now,
            enqueued_at: name.position,
            first_attempt_at: name.first,
            last_attempt_at: name.last,
            deliveries_count: name.deliveries,
            attempts_count: name.attempts,
            revision: 0,
            file_name,
        };
        let FileName { id, priority, key, dedup, expires_at, ref kind, .. } = *name;
        let position = self.reserve(1)?;
        let fresh = FileName::new(position, id, kind.clone());
        let dead = FileName { is_dead: true, priority, key, dedup, expires_at, ..fresh };
        self.write_death(&dead, &death)?;
        if self.move_row(Side::Live, location, file, Location::Failed, &dead)?.is_none() {
            // The file was removed meanwhile.
            self.remove_death(&dead);
            return Ok(());
        }
        self.remove_note(name);
        // A dead-lettered head frees its key.
        self.wake(Side::Live, self.now);
        self.wake(Side::Dead, self.now);
        Ok(())
    }

    /// Returns the selected dead letters, oldest first.
    fn dead_files(&mut self, selection: &DeadLetterSelection) -> Result<Vec<DeadFile>, Failure> {
        self.dead_files_after(selection, None, usize::MAX)
    }

    /// Returns up to `most` dead letters after a position. Selects by id, not by reason.
    fn dead_files_after(
        &mut self,
        selection: &DeadLetterSelection,
        after: Option<DeadPosition>,
        most: usize,
    ) -> Result<Vec<DeadFile>, Failure> {
        self.refresh(Side::Dead)?;
        let (queue, dead) = (self.queue, &self.known.dead);
        let dead_file = |row: &Row| {
            failpoint::reach("spool.dead_letter");
            Some(DeadFile { name: row.parsed(queue)?, row: row.clone() })
        };
        let dead_files = |files: Vec<&Row>| files.into_iter().filter_map(dead_file).collect::<Vec<_>>();
        let dead_files: Vec<DeadFile> = match selection {
            DeadLetterSelection::Ids(ids) => {
                let ids: HashSet<MessageId> = ids.iter().copied().collect();
                let is_after = |dead_file: &DeadFile| after.is_none_or(|after| dead_file.dead_position() > after);
                let all = dead.dead_of(&ids).into_iter().map(dead_files);
                all.filter(|dead_files| dead_files.first().is_some_and(is_after)).take(most).flatten().collect()
            }
            DeadLetterSelection::All | DeadLetterSelection::Reason(_) => {
                dead.dead_after(after).take(most).flat_map(dead_files).collect()
            }
        };
        // An interrupted edit leaves two files of one message; the edited one counts.
        let mut whole: Vec<DeadFile> = Vec::with_capacity(dead_files.len());
        for dead_file in dead_files {
            match whole.last_mut() {
                Some(last) if last.name.stem() == dead_file.name.stem() => {
                    let replaced = match dead_file.name.kind {
                        Kind::Message => std::mem::replace(last, dead_file),
                        Kind::Foreign(_) | Kind::LongNamed => dead_file,
                    };
                    self.remove_row(Side::Dead, &replaced.row)?;
                }
                _ => whole.push(dead_file),
            }
        }
        Ok(whole)
    }

    fn one(&mut self, id: MessageId) -> Result<DeadFile, Failure> {
        let found = self.dead_files(&DeadLetterSelection::Ids(vec![id]))?.into_iter().next();
        found.ok_or_else(|| MessagingError::MessageNotFound { queue: self.queue.dead_letters(), id }.into())
    }

    /// Returns the death record, or a default one for a foreign file.
    fn death(&self, dead_file: &DeadFile) -> Death {
        self.death_of(&dead_file.name).unwrap_or_else(|| Death {
            reason: FOREIGN_REASON.into(),
            error: None,
            dead_at: time(dead_file.row.slot.order.position),
            enqueued_at: time(dead_file.row.slot.order.position),
            first_attempt_at: None,
            last_attempt_at: None,
            deliveries_count: 0,
            attempts_count: 0,
            revision: 0,
            file_name: match &dead_file.name.kind {
                Kind::Foreign(original) => Some(FileNameText::new(original)),
                Kind::LongNamed if dead_file.row.foreign.is_some() => Some(FileNameText::new(dead_file.row.name())),
                Kind::Message | Kind::LongNamed => None,
            },
        })
    }

    /// Reads the content, and whether it is complete.
    fn read(&self, dead_file: &DeadFile, death: &Death) -> Result<Option<(Content, bool)>, Failure> {
        let original = death.file_name.as_ref().map_or(&b""[..], |name| name.as_bytes());
        let kind = &dead_file.name.kind;
        let content = self.shared.reading.read(&self.known.dirs.failed, dead_file.row.name(), kind, original)?;
        Ok(content.map(|content| match content {
            Ok(content) => (content, true),
            Err(unusable) => {
                let is_whole = unusable.reason == DeadLetterReason::UNDECODABLE && *kind != Kind::Message;
                (unusable.into_content(), is_whole)
            }
        }))
    }

    fn content(&self, dead_file: &DeadFile, death: &Death) -> Result<Option<Content>, Failure> {
        Ok(self.read(dead_file, death)?.map(|(content, _)| content))
    }

    /// Returns the dead letter; `None` when its file was removed.
    fn letter(&self, dead_file: &DeadFile) -> Result<Option<DeadLetter>, Failure> {
        let death = self.death(dead_file);
        let Some(Content { head, body }) = self.content(dead_file, &death)? else { return Ok(None) };
        let FileName { id, priority, expires_at, .. } = dead_file.name;
        Ok(Some(DeadLetter {
            id,
            origin: self.queue.clone(),
            body,
            content_type: head.content_type,
            headers: head.headers,
            ordering_key: head.ordering_key,
            dedup_key: head.dedup_key,
            priority,
            expires_at,
            reason: death.reason,
            error: death.error,
            deliveries_count: death.deliveries_count,
            attempts_count: death.attempts_count,
            enqueued_at: death.enqueued_at,
            first_attempt_at: death.first_attempt_at,
            last_attempt_at: death.last_attempt_at,
            dead_at: death.dead_at,
            revision: death.revision,
        }))
    }

    pub(crate) fn list_dead(&mut self, query: &DeadLetterQuery) -> Result<DeadLetterPage, Failure> {
        query.check()?;
        let after = query.after.as_ref().map(read_cursor).transpose()?;
        let mut page = DeadLetterPage { letters: Vec::new(), next: None };
        let (mut last, mut seen) = (None, after);
        loop {
            let dead_files = self.dead_files_after(&query.selection, seen, CHUNK)?;
            if dead_files.is_empty() {
                return Ok(page);
            }
            for dead_file in dead_files {
                seen = Some(dead_file.dead_position());
                // The reason is in the small record; the file may be large.
                if !query.selection.includes(dead_file.name.id, &self.reason(&dead_file, &query.selection)) {
                    continue;
                }
                if page.letters.len() == query.limit {
                    page.next = last.map(write_cursor);
                    return Ok(page);
                }
                if let Some(letter) = self.letter(&dead_file)? {
                    page.letters.push(letter);
                    last = seen;
                }
            }
        }
    }

    /// Returns the reason; read from the record only for a selection by reason.
    fn reason(&self, dead_file: &DeadFile, selection: &DeadLetterSelection) -> DeadLetterReason {
        match selection {
            DeadLetterSelection::Reason(_) => self.death(dead_file).reason,
            DeadLetterSelection::All | DeadLetterSelection::Ids(_) => FOREIGN_REASON.into(),
        }
    }

    pub(crate) fn get_dead(&mut self, id: MessageId) -> Result<Option<DeadLetter>, Failure> {
        match self.one(id) {
            Ok(dead_file) => self.letter(&dead_file),
            Err(Failure::Refused(MessagingError::MessageNotFound { .. })) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    pub(crate) fn edit_dead(&mut self, id: MessageId, edit: DeadLetterEdit) -> Result<DeadLetter, Failure> {
        let dead_file = self.one(id)?;
        if dead_file.name.is_leased(self.now) {
            return Err(MessagingError::MessageLeased { queue: self.queue.dead_letters(), id }.into());
        }
        let mut death = self.death(&dead_file);
        let missing = || MessagingError::MessageNotFound { queue: self.queue.dead_letters(), id };
        let (Content { mut head, body }, is_whole) = self.read(&dead_file, &death)?.ok_or_else(missing)?;
        if !is_whole && edit.body.is_none() {
            let why = "the body of this dead letter cannot be read completely, and would be lost; pass a new body with the edit";
            return Err(MessagingError::invalid("edit", why).into());
        }
        let is_rewritten = edit.content_type.is_some() || edit.headers.is_some();
        let mut message = Message::new(body).id(id).content_type(head.content_type);
        message.headers = head.headers;
        let edited = edit.apply_to(message, &self.shared.capabilities.limits)?;
        let body = edited.body;
        (head.content_type, head.headers) = (edited.content_type, edited.headers);
        death.revision = death.revision.saturating_add(1);
        self.will_change()?;
        // A foreign file becomes a message file when it gets headers or a content type, and gets a provider's name if it has
        // none.
        let is_ours = dead_file.row.foreign.is_none();
        let kind = if is_rewritten { Kind::Message } else { dead_file.name.kind.clone() };
        let name = if is_ours { dead_file.name.clone() } else { FileName { is_dead: true, ..dead_file.name.clone() } };
        let name = FileName { kind, ..name };
        self.write_death(&name, &death)?;
        let first_line =
            if name.kind == Kind::Message { message_file::write_head(&head, body.len()) } else { Vec::new() };
        let (made, dirs) = (record::temporary(), self.dirs().clone());
        let file = Name::from(name.render());
        let written = dirs.tmp.create(made.as_bytes(), &[&first_line, &body]);
        if let Err(error) = written.and_then(|()| dirs.tmp.rename(made.as_bytes(), &dirs.failed, &file)) {
            let _ = dirs.tmp.unlink(made.as_bytes());
            return Err(error.into());
        }
        if *dead_file.row.name() != file {
            dirs.failed.unlink(dead_file.row.name())?;
            self.known.dead.remove(Location::Failed, dead_file.row.name());
        }
        self.unsynced.add(Location::Failed);
        self.add_row(Row::ours(Location::Failed, file, &name, self.now));
        Ok(self.get_dead(id)?.ok_or_else(missing)?)
    }

    /// Returns the ids of the selected dead letters, oldest first, without duplicates.
    pub(crate) fn selected(&mut self, selection: &DeadLetterSelection) -> Result<Vec<MessageId>, Failure> {
        let dead_files = self.dead_files(selection)?;
        let selected = dead_files
            .iter()
            .filter(|dead_file| selection.includes(dead_file.name.id, &self.reason(dead_file, selection)));
        let mut seen = HashSet::new();
        Ok(selected.map(|dead_file| dead_file.name.id).filter(|id| seen.insert(*id)).collect())
    }

    /// Returns the dead letters to redrive, and a report with those that are skipped.
    pub(crate) fn redrivable(&mut self, redrive: &Redrive) -> Result<(Vec<Dead>, RedriveReport), Failure> {
        let mut report = RedriveReport::default();
        let mut dead = Vec::new();
        for dead_file in self.dead_files(&redrive.selection)? {
            if !redrive.selection.includes(dead_file.name.id, &self.reason(&dead_file, &redrive.selection)) {
                continue;
            }
            if dead_file.name.is_leased(self.now) {
                report.skipped.push((dead_file.name.id, RedriveSkip::Leased));
                continue;
            }
            let dedup_key = match dead_file.name.dedup {
                None => None,
                Some(_) => {
                    self.content(&dead_file, &self.death(&dead_file))?.and_then(|content| content.head.dedup_key)
                }
            };
            dead.push(Dead { dead_file, dedup_key });
        }
        Ok((dead, report))
    }

    /// Whether a dedup key is taken in this queue. A dry run does not dead-letter an expired holder.
    pub(crate) fn is_taken(&mut self, key: &Key, dry_run: bool) -> Result<bool, Failure> {
        if !dry_run {
            return Ok(self.living_holder(key)?.is_some());
        }
        let now = self.now;
        let is_over =
            |holder: &FileName| holder.expires_at.is_some_and(|expires_at| expires_at <= now) && !holder.is_leased(now);
        Ok(self.dedup_holder(key)?.is_some_and(|(_, holder)| !is_over(&holder)))
    }

    /// Redrives a dead letter of this queue into `target`, or into this queue if `target` is `None`.
    pub(crate) fn revive(&mut self, dead: &Dead, target: Option<&mut Session<'_>>) -> Result<bool, Failure> {
        let Dead { dead_file, .. } = dead;
        let file = dead_file.row.name();
        let death = self.death(dead_file);
        let key = self.key_of(Location::Failed, file, &dead_file.name, death.file_name.as_ref())?;
        let old = FileName { key, ..dead_file.name.clone() };
        self.will_change()?;
        let was_there = match target {
            None => {
                let alive = self.revived_from(&old, death.file_name)?;
                let was_there =
                    self.move_row(Side::Dead, Location::Failed, file, Location::Incoming, &alive)?.is_some();
                self.wake(Side::Live, self.now);
                was_there
            }
            Some(target) => {
                let alive = target.revived_from(&old, death.file_name)?;
                let new = Name::from(alive.render());
                let was_there = self.known.dirs.failed.rename(file, &target.known.dirs.incoming, &new)?;
                self.known.dead.remove(Location::Failed, file);
                self.unsynced.add(Location::Failed);
                if was_there {
                    target.unsynced.add(Location::Incoming);
                    target.add_row(Row::ours(Location::Incoming, new, &alive, target.now));
                    target.wake(Side::Live, target.now);
                }
                was_there
            }
        };
        self.remove_death(&dead_file.name);
        Ok(was_there)
    }

    /// Removes up to `most` of the selected dead letters.
    pub(crate) fn purge_dead(&mut self, selection: &DeadLetterSelection, most: u64) -> Result<u64, Failure> {
        let (mut purged, mut seen) = (0, None);
        loop {
            let dead_files = self.dead_files_after(selection, seen, CHUNK)?;
            if dead_files.is_empty() {
                return Ok(purged);
            }
            for dead_file in dead_files {
                if purged == most {
                    return Ok(purged);
                }
                seen = Some(dead_file.dead_position());
                let is_meant = selection.includes(dead_file.name.id, &self.reason(&dead_file, selection));
                if is_meant && !dead_file.name.is_leased(self.now) && self.remove_row(Side::Dead, &dead_file.row)? {
                    self.remove_death(&dead_file.name);
                    purged += 1;
                }
            }
        }
    }

    /// Removes a file. Returns whether it existed.
    pub(crate) fn remove_row(&mut self, side: Side, row: &Row) -> Result<bool, Failure> {
        self.will_change()?;
        let location = row.slot.location;
        let was_there = self.known.dirs.folder(location).unlink(row.name())?;
        self.index(side).remove(location, row.name());
        self.unsynced.add(location);
        Ok(was_there)
    }
}

/// A dead letter to redrive.
#[derive(Debug)]
pub(crate) struct Dead {
    dead_file: DeadFile,
    pub(crate) dedup_key: Option<Key>,
}

impl Dead {
    pub(crate) fn id(&self) -> MessageId {
        self.dead_file.name.id
    }
}

fn write_cursor((position, id): DeadPosition) -> DeadLetterCursor {
    DeadLetterCursor(format!("{position}.{id}"))
}

fn read_cursor(cursor: &DeadLetterCursor) -> Result<DeadPosition, MessagingError> {
    let parts = || {
        let (position, id) = cursor.0.split_once('.')?;
        Some((position.parse().ok()?, id.parse().ok()?))
    };
    parts().ok_or_else(|| MessagingError::invalid_cursor(&cursor.0))
}
