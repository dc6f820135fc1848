//! Where dead messages lie, and how they come back. A dead letter is a file in `failed/`, with the record of its death
//! beside it.

use std::collections::HashSet;

use postrider_core::{
    DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason,
    DeadLetterSelection, Key, Message, MessageId, MessagingError, Redrive, RedriveReport, RedriveSkip, failpoint,
};

use crate::content::Content;
use crate::disk::Name;
use crate::error::Failure;
use crate::index::{Grave, Place, Row, time};
use crate::letter;
use crate::name::{FileName, Kind};
use crate::record::{self, Death, FileNameText};
use crate::session::{Session, Side};

/// The reason of a file that somebody else put into `failed/`.
const PUT_THERE: &str = "put_into_failed";

/// So many dead letters are looked at together.
const CHUNK: usize = 100;

/// A file in `failed/`, and what its name says.
#[derive(Debug, Clone)]
struct Corpse {
    row: Row,
    name: FileName,
}

impl Corpse {
    fn grave(&self) -> Grave {
        (self.row.slot.turn.position, self.name.id)
    }
}

impl Session<'_> {
    /// Moves a message to the dead letters. Its record is there before it moves.
    pub(crate) fn bury(
        &mut self,
        place: Place,
        file: &Name,
        name: &FileName,
        reason: DeadLetterReason,
        error: Option<String>,
    ) -> Result<(), Failure> {
        let note = self.note_of(name);
        let file_name = match &name.kind {
            Kind::Letter => None,
            Kind::Foreign(original) => Some(FileNameText::new(original)),
            // Never claimed, it still has the name that it came with.
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
        if self.move_row(Side::Live, place, file, Place::Failed, &dead)?.is_none() {
            // Somebody took it away by hand.
            self.remove_death(&dead);
            return Ok(());
        }
        self.remove_note(name);
        // A dead head frees its key.
        self.tell(Side::Live, self.now);
        self.tell(Side::Dead, self.now);
        Ok(())
    }

    /// The dead letters that are meant, oldest death first.
    fn corpses(&mut self, selection: &DeadLetterSelection) -> Result<Vec<Corpse>, Failure> {
        self.corpses_after(selection, None, usize::MAX)
    }

    /// The next of them, at most so many.
    fn corpses_after(
        &mut self,
        selection: &DeadLetterSelection,
        after: Option<Grave>,
        most: usize,
    ) -> Result<Vec<Corpse>, Failure> {
        self.know(Side::Dead)?;
        let (queue, dead) = (self.queue, &self.known.dead);
        let corpse = |row: &Row| {
            failpoint::reach("spool.dead_letter");
            Some(Corpse { name: row.parsed(queue)?, row: row.clone() })
        };
        let corpses = |files: Vec<&Row>| files.into_iter().filter_map(corpse).collect::<Vec<_>>();
        let corpses: Vec<Corpse> = match selection {
            DeadLetterSelection::Ids(ids) => {
                let ids: HashSet<MessageId> = ids.iter().copied().collect();
                let is_after = |corpse: &Corpse| after.is_none_or(|after| corpse.grave() > after);
                let all = dead.deaths_of(&ids).into_iter().map(corpses);
                all.filter(|corpses| corpses.first().is_some_and(is_after)).take(most).flatten().collect()
            }
            DeadLetterSelection::All | DeadLetterSelection::Reason(_) => {
                dead.deaths_after(after).take(most).flat_map(corpses).collect()
            }
        };
        // An edit that was cut off leaves two files of one message; the one that was edited counts.
        let mut whole: Vec<Corpse> = Vec::with_capacity(corpses.len());
        for corpse in corpses {
            match whole.last_mut() {
                Some(last) if last.name.stem() == corpse.name.stem() => {
                    let replaced = match corpse.name.kind {
                        Kind::Letter => std::mem::replace(last, corpse),
                        Kind::Foreign(_) | Kind::LongNamed => corpse,
                    };
                    self.remove_row(Side::Dead, &replaced.row)?;
                }
                _ => whole.push(corpse),
            }
        }
        Ok(whole)
    }

    fn one(&mut self, id: MessageId) -> Result<Corpse, Failure> {
        let found = self.corpses(&DeadLetterSelection::Ids(vec![id]))?.into_iter().next();
        found.ok_or_else(|| MessagingError::MessageNotFound { queue: self.queue.dead_letters(), id }.into())
    }

    /// How it died, as far as is known.
    fn death(&self, corpse: &Corpse) -> Death {
        self.death_of(&corpse.name).unwrap_or_else(|| Death {
            reason: PUT_THERE.into(),
            error: None,
            dead_at: time(corpse.row.slot.turn.position),
            enqueued_at: time(corpse.row.slot.turn.position),
            first_attempt_at: None,
            last_attempt_at: None,
            deliveries_count: 0,
            attempts_count: 0,
            revision: 0,
            file_name: match &corpse.name.kind {
                Kind::Foreign(original) => Some(FileNameText::new(original)),
                Kind::LongNamed if corpse.row.foreign.is_some() => Some(FileNameText::new(corpse.row.name())),
                Kind::Letter | Kind::LongNamed => None,
            },
        })
    }

    /// What it says, and whether that is all of it.
    fn read(&self, corpse: &Corpse, death: &Death) -> Result<Option<(Content, bool)>, Failure> {
        let original = death.file_name.as_ref().map_or(&b""[..], |name| name.as_bytes());
        let kind = &corpse.name.kind;
        let content = self.shared.reading.read(&self.known.dirs.failed, corpse.row.name(), kind, original)?;
        Ok(content.map(|content| match content {
            Ok(content) => (content, true),
            Err(unusable) => {
                let is_whole = unusable.reason == DeadLetterReason::UNDECODABLE && *kind != Kind::Letter;
                (unusable.into_content(), is_whole)
            }
        }))
    }

    fn content(&self, corpse: &Corpse, death: &Death) -> Result<Option<Content>, Failure> {
        Ok(self.read(corpse, death)?.map(|(content, _)| content))
    }

    /// `None` when somebody has taken it away by hand.
    fn letter(&self, corpse: &Corpse) -> Result<Option<DeadLetter>, Failure> {
        let death = self.death(corpse);
        let Some(Content { head, body }) = self.content(corpse, &death)? else { return Ok(None) };
        let FileName { id, priority, expires_at, .. } = corpse.name;
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
            let corpses = self.corpses_after(&query.selection, seen, CHUNK)?;
            if corpses.is_empty() {
                return Ok(page);
            }
            for corpse in corpses {
                seen = Some(corpse.grave());
                // The reason is in the record, which is small; the file may be large.
                if !query.selection.includes(corpse.name.id, &self.reason(&corpse, &query.selection)) {
                    continue;
                }
                if page.letters.len() == query.limit {
                    page.next = last.map(write_cursor);
                    return Ok(page);
                }
                if let Some(letter) = self.letter(&corpse)? {
                    page.letters.push(letter);
                    last = seen;
                }
            }
        }
    }

    /// Why it died; nobody asks when all are meant.
    fn reason(&self, corpse: &Corpse, selection: &DeadLetterSelection) -> DeadLetterReason {
        match selection {
            DeadLetterSelection::Reason(_) => self.death(corpse).reason,
            DeadLetterSelection::All | DeadLetterSelection::Ids(_) => PUT_THERE.into(),
        }
    }

    pub(crate) fn get_dead(&mut self, id: MessageId) -> Result<Option<DeadLetter>, Failure> {
        match self.one(id) {
            Ok(corpse) => self.letter(&corpse),
            Err(Failure::Law(MessagingError::MessageNotFound { .. })) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    pub(crate) fn edit_dead(&mut self, id: MessageId, edit: DeadLetterEdit) -> Result<DeadLetter, Failure> {
        let corpse = self.one(id)?;
        if corpse.name.is_leased(self.now) {
            return Err(MessagingError::MessageLeased { queue: self.queue.dead_letters(), id }.into());
        }
        let mut death = self.death(&corpse);
        let missing = || MessagingError::MessageNotFound { queue: self.queue.dead_letters(), id };
        let (Content { mut head, body }, is_whole) = self.read(&corpse, &death)?.ok_or_else(missing)?;
        if !is_whole && edit.body.is_none() {
            let why = "the body of this dead letter cannot be read whole, and would be lost; give another one with it";
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
        // A file of somebody's becomes a message of ours when it gets what only those have, and a name of ours when it
        // has none yet.
        let is_ours = corpse.row.foreign.is_none();
        let kind = if is_rewritten { Kind::Letter } else { corpse.name.kind.clone() };
        let name = if is_ours { corpse.name.clone() } else { FileName { is_dead: true, ..corpse.name.clone() } };
        let name = FileName { kind, ..name };
        self.write_death(&name, &death)?;
        let first_line = if name.kind == Kind::Letter { letter::write_head(&head, body.len()) } else { Vec::new() };
        let (made, dirs) = (record::temporary(), self.dirs().clone());
        let file = Name::from(name.render());
        let written = dirs.tmp.create(made.as_bytes(), &[&first_line, &body]);
        if let Err(error) = written.and_then(|()| dirs.tmp.rename(made.as_bytes(), &dirs.failed, &file)) {
            let _ = dirs.tmp.unlink(made.as_bytes());
            return Err(error.into());
        }
        if *corpse.row.name() != file {
            dirs.failed.unlink(corpse.row.name())?;
            self.known.dead.remove(Place::Failed, corpse.row.name());
        }
        self.unsynced.add(Place::Failed);
        self.learn(Row::ours(Place::Failed, file, &name, self.now));
        Ok(self.get_dead(id)?.ok_or_else(missing)?)
    }

    /// The ids of the dead letters that are meant, oldest death first, each once.
    pub(crate) fn meant(&mut self, selection: &DeadLetterSelection) -> Result<Vec<MessageId>, Failure> {
        let corpses = self.corpses(selection)?;
        let meant = corpses.iter().filter(|corpse| selection.includes(corpse.name.id, &self.reason(corpse, selection)));
        let mut seen = HashSet::new();
        Ok(meant.map(|corpse| corpse.name.id).filter(|id| seen.insert(*id)).collect())
    }

    /// What a redrive to another queue needs to know of each dead letter, and which are left alone.
    pub(crate) fn redrivable(&mut self, redrive: &Redrive) -> Result<(Vec<Dead>, RedriveReport), Failure> {
        let mut report = RedriveReport::default();
        let mut dead = Vec::new();
        for corpse in self.corpses(&redrive.selection)? {
            if !redrive.selection.includes(corpse.name.id, &self.reason(&corpse, &redrive.selection)) {
                continue;
            }
            if corpse.name.is_leased(self.now) {
                report.skipped.push((corpse.name.id, RedriveSkip::Leased));
                continue;
            }
            let dedup_key = match corpse.name.dedup {
                None => None,
                Some(_) => self.content(&corpse, &self.death(&corpse))?.and_then(|content| content.head.dedup_key),
            };
            dead.push(Dead { corpse, dedup_key });
        }
        Ok((dead, report))
    }

    /// Whether a dedup key is taken here. A dry run buries nobody.
    pub(crate) fn is_taken(&mut self, key: &Key, dry_run: bool) -> Result<bool, Failure> {
        if !dry_run {
            return Ok(self.living_holder(key)?.is_some());
        }
        let now = self.now;
        let is_over =
            |holder: &FileName| holder.expires_at.is_some_and(|expires_at| expires_at <= now) && !holder.is_leased(now);
        Ok(self.dedup_holder(key)?.is_some_and(|(_, holder)| !is_over(&holder)))
    }

    /// Brings a dead letter of this queue back, into `target` or, when that is `None`, into this one.
    pub(crate) fn revive(&mut self, dead: &Dead, target: Option<&mut Session<'_>>) -> Result<bool, Failure> {
        let Dead { corpse, .. } = dead;
        let file = corpse.row.name();
        let death = self.death(corpse);
        let key = self.key_of(Place::Failed, file, &corpse.name, death.file_name.as_ref())?;
        let old = FileName { key, ..corpse.name.clone() };
        self.will_change()?;
        let was_there = match target {
            None => {
                let alive = self.revived_from(&old, death.file_name)?;
                let was_there = self.move_row(Side::Dead, Place::Failed, file, Place::Incoming, &alive)?.is_some();
                self.tell(Side::Live, self.now);
                was_there
            }
            Some(target) => {
                let alive = target.revived_from(&old, death.file_name)?;
                let new = Name::from(alive.render());
                let was_there = self.known.dirs.failed.rename(file, &target.known.dirs.incoming, &new)?;
                self.known.dead.remove(Place::Failed, file);
                self.unsynced.add(Place::Failed);
                if was_there {
                    target.unsynced.add(Place::Incoming);
                    target.learn(Row::ours(Place::Incoming, new, &alive, target.now));
                    target.tell(Side::Live, target.now);
                }
                was_there
            }
        };
        self.remove_death(&corpse.name);
        Ok(was_there)
    }

    /// Removes up to `most` of the dead letters that are meant.
    pub(crate) fn purge_dead(&mut self, selection: &DeadLetterSelection, most: u64) -> Result<u64, Failure> {
        let (mut purged, mut seen) = (0, None);
        loop {
            let corpses = self.corpses_after(selection, seen, CHUNK)?;
            if corpses.is_empty() {
                return Ok(purged);
            }
            for corpse in corpses {
                if purged == most {
                    return Ok(purged);
                }
                seen = Some(corpse.grave());
                let is_meant = selection.includes(corpse.name.id, &self.reason(&corpse, selection));
                if is_meant && !corpse.name.is_leased(self.now) && self.remove_row(Side::Dead, &corpse.row)? {
                    self.remove_death(&corpse.name);
                    purged += 1;
                }
            }
        }
    }

    /// Removes a file for good. Answers whether it was there.
    pub(crate) fn remove_row(&mut self, side: Side, row: &Row) -> Result<bool, Failure> {
        self.will_change()?;
        let place = row.slot.place;
        let was_there = self.known.dirs.folder(place).unlink(row.name())?;
        self.index(side).remove(place, row.name());
        self.unsynced.add(place);
        Ok(was_there)
    }
}

/// A dead letter that may go back to life.
#[derive(Debug)]
pub(crate) struct Dead {
    corpse: Corpse,
    pub(crate) dedup_key: Option<Key>,
}

impl Dead {
    pub(crate) fn id(&self) -> MessageId {
        self.corpse.name.id
    }
}

fn write_cursor((position, id): Grave) -> DeadLetterCursor {
    DeadLetterCursor(format!("{position}.{id}"))
}

fn read_cursor(cursor: &DeadLetterCursor) -> Result<Grave, MessagingError> {
    let parts = || {
        let (position, id) = cursor.0.split_once('.')?;
        Some((position.parse().ok()?, id.parse().ok()?))
    };
    parts().ok_or_else(|| MessagingError::invalid("cursor", format!("'{}' ends no page", cursor.0.escape_debug())))
}
