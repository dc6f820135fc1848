//! A session: a queue with its lock held and its cache up to date.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::inotify::WatchDescriptor;
use postrider_core::{DeadLetterReason, QueueName, Timestamp};

use crate::dirs::Dirs;
use crate::disk::Name;
use crate::error::Failure;
use crate::index::{Index, Location, Row};
use crate::lock::{Held, LockRecord};
use crate::name::{Due, FileName, Kind, hash};
use crate::record::{self, Death, FileNameText, Note, OnDisk};
use crate::store::Shared;
use crate::unsynced::{RecordKind, Unsynced};

/// Smallest backward step that means the clock was set: due times are computed again.
const STEP_BACK: Duration = Duration::from_secs(1);

/// Mask of the part of the generation that counts changes from zero.
const FRESH: u64 = 0xffff;

/// Live messages of a queue, or its dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Live,
    Dead,
}

impl Side {
    pub(crate) fn of(queue: &QueueName) -> Self {
        if queue.holds_dead_letters() { Self::Dead } else { Self::Live }
    }

    /// The folder of waiting messages.
    pub(crate) fn waiting(self) -> Location {
        match self {
            Self::Live => Location::Incoming,
            Self::Dead => Location::Failed,
        }
    }

    /// The folder of leased messages.
    pub(crate) fn leased(self) -> Location {
        match self {
            Self::Live => Location::Processing,
            Self::Dead => Location::Failed,
        }
    }
}

/// A queue's folders and the index of their files, kept from one session to the next.
#[derive(Debug)]
pub(crate) struct QueueCache {
    pub(crate) dirs: Arc<Dirs>,
    pub(crate) live: Index,
    pub(crate) dead: Index,
    /// Whether each folder has been read.
    pub(crate) is_loaded: [bool; 3],
    pub(crate) watches: [Option<WatchDescriptor>; 3],
    generation: Option<u64>,
    last_now: Timestamp,
    /// The latest position that was seen.
    pub(crate) last_position: Timestamp,
    /// The last read of `incoming/`, where it is not watched.
    pub(crate) scan: Option<Scan>,
    /// Invalid foreign files, which are dead-lettered a few at a time.
    pub(crate) unusable: VecDeque<UnusableFile>,
    /// Number of foreign files still to be read before they are leased, after an invalid one.
    pub(crate) reads_before_lease: usize,
}

/// An invalid foreign file, with the reason.
#[derive(Debug)]
pub(crate) struct UnusableFile {
    pub(crate) row: Row,
    pub(crate) reason: DeadLetterReason,
    pub(crate) error: String,
}

#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) at: Instant,
    pub(crate) took: Duration,
    /// The folder's modification time before the read.
    pub(crate) changed: (i64, i64),
    /// Whether a later change is visible in the modification time, given the granularity of the file system's clock.
    pub(crate) is_certain: bool,
}

impl QueueCache {
    pub(crate) fn new(dirs: Dirs, queue: &QueueName) -> Self {
        Self {
            dirs: Arc::new(dirs),
            live: Index::live(),
            dead: Index::dead(queue),
            is_loaded: [false; 3],
            watches: [None; 3],
            generation: None,
            last_now: Timestamp::EPOCH,
            last_position: Timestamp::EPOCH,
            scan: None,
            unusable: VecDeque::new(),
            reads_before_lease: 0,
        }
    }

    /// Forces a complete read of all folders.
    pub(crate) fn forget(&mut self) {
        self.is_loaded = [false; 3];
    }

    /// Forces a complete read, and drops the rows with their due times.
    fn forget_times(&mut self, queue: &QueueName) {
        self.forget();
        self.live = Index::live();
        self.dead = Index::dead(queue);
        self.unusable.clear();
    }

    /// Stops watching the folders.
    pub(crate) fn stop_watching(&mut self, shared: &Shared) {
        for watch in self.watches.iter_mut().filter_map(Option::take) {
            if let Some(watcher) = &shared.watcher {
                watcher.remove(watch);
            }
        }
    }
}

/// A session under the lock.
#[derive(Debug)]
pub(crate) struct Session<'s> {
    pub(crate) shared: &'s Shared,
    /// The queue, not its dead letters.
    pub(crate) queue: &'s QueueName,
    pub(crate) known: &'s mut QueueCache,
    held: Held<'s>,
    pub(crate) now: Timestamp,
    has_changed: bool,
    pub(crate) is_fresh: [bool; 3],
    /// Whether a claim ended early because other processes wait for the lock.
    pub(crate) is_cut_short: bool,
    /// Number of invalid files that a claim has dead-lettered.
    pub(crate) dead_lettered: usize,
    pub(crate) unsynced: Unsynced,
    /// Queues to wake receivers of, with the time from which a message is due.
    pub(crate) to_wake: Vec<(QueueName, Timestamp)>,
}

impl<'s> Session<'s> {
    pub(crate) fn new(shared: &'s Shared, queue: &'s QueueName, known: &'s mut QueueCache, held: Held<'s>) -> Self {
        let now = shared.options.clock.now();
        if now.saturating_add(STEP_BACK) < known.last_now {
            known.forget_times(queue);
        }
        known.last_now = now;
        let is_stale = match (held.record, known.generation) {
            (Some(record), Some(generation)) => record.generation != generation,
            _ => true,
        };
        for location in [Location::Incoming, Location::Processing, Location::Failed] {
            if is_stale && known.watches[location as usize].is_none() {
                known.is_loaded[location as usize] = false;
            }
        }
        Self {
            shared,
            queue,
            known,
            held,
            now,
            has_changed: false,
            is_fresh: [false; 3],
            is_cut_short: false,
            dead_lettered: 0,
            unsynced: Unsynced::default(),
            to_wake: Vec::new(),
        }
    }

    /// Ends the session. Returns the folders to sync and the queues to wake.
    pub(crate) fn finish(self) -> (Unsynced, Vec<(QueueName, Timestamp)>) {
        self.known.generation = self.held.record.map(|record| record.generation);
        (self.unsynced, self.to_wake)
    }

    pub(crate) fn dirs(&self) -> &Arc<Dirs> {
        &self.known.dirs
    }

    pub(crate) fn index(&mut self, side: Side) -> &mut Index {
        match side {
            Side::Live => &mut self.known.live,
            Side::Dead => &mut self.known.dead,
        }
    }

    /// Approximate number of claims of the queue: a claim and its settlement are two changes.
    pub(crate) fn claims_so_far(&self) -> u64 {
        self.held.record.map_or(0, |record| (record.generation & FRESH) / 2)
    }

    /// Wakes receivers at the end of the session: a message is due at `due`.
    pub(crate) fn wake(&mut self, side: Side, due: Timestamp) {
        let queue = if side == Side::Dead { self.queue.dead_letters() } else { self.queue.clone() };
        self.to_wake.push((queue, due));
    }

    /// Records a change of the folders before it is made, so that it is recorded even if the process dies in between.
    pub(crate) fn will_change(&mut self) -> Result<(), Failure> {
        if self.has_changed {
            return Ok(());
        }
        let position = self.last_position()?;
        self.write_record(position)
    }

    fn write_record(&mut self, position: Timestamp) -> Result<(), Failure> {
        // Random, so that it differs from a generation before the lock file was removed.
        let generation = self.held.record.map_or_else(|| rand::random::<u64>() & !FRESH, |record| record.generation);
        let generation = if self.has_changed { generation } else { generation.wrapping_add(1) };
        self.held.write(LockRecord { position, generation }, &self.known.dirs.home)?;
        self.has_changed = true;
        Ok(())
    }

    /// Returns the last position that was assigned.
    fn last_position(&mut self) -> Result<Timestamp, Failure> {
        if self.held.record.is_none() {
            for location in [Location::Processing, Location::Incoming, Location::Failed] {
                self.refresh_folder(location)?;
            }
        }
        let to_wake = self.held.record.map_or(Timestamp::EPOCH, |record| record.position);
        Ok(to_wake.max(self.known.last_position))
    }

    /// Reserves positions at the tail, and returns the first. They are later than all assigned ones, even if the clock was set
    /// back.
    pub(crate) fn reserve(&mut self, locations: usize) -> Result<Timestamp, Failure> {
        let micro = Duration::from_micros(1);
        let first = self.last_position()?.saturating_add(micro).max(self.now);
        let more = Duration::from_micros(locations.saturating_sub(1) as u64);
        self.write_record(first.saturating_add(more))?;
        self.known.last_position = first.saturating_add(more);
        Ok(first)
    }

    /// Returns the name of a redriven dead letter: at the tail, with its counts reset. The file is in `location`, under its old
    /// name.
    pub(crate) fn revived(&mut self, location: Location, file: &Name, dead: &FileName) -> Result<FileName, Failure> {
        let file_name = match &dead.kind {
            Kind::Message => None,
            Kind::Foreign(original) => Some(FileNameText::new(original)),
            Kind::LongNamed => self.death_of(dead).and_then(|death| death.file_name),
        };
        let key = self.key_of(location, file, dead, file_name.as_ref())?;
        self.revived_from(&FileName { key, ..dead.clone() }, file_name)
    }

    /// Returns the ordering key of a dead letter. That of a foreign file is read from it again, because it may have been
    /// corrected.
    pub(crate) fn key_of(
        &self,
        location: Location,
        file: &Name,
        dead: &FileName,
        file_name: Option<&FileNameText>,
    ) -> Result<Option<u64>, Failure> {
        if dead.kind == Kind::Message || self.shared.reading.ordering_key.is_empty() {
            return Ok(dead.key);
        }
        let original = file_name.map_or(&b""[..], FileNameText::as_bytes);
        let content = self.shared.reading.read(self.known.dirs.folder(location), file, &dead.kind, original)?;
        let key = content.and_then(Result::ok).and_then(|content| content.head.ordering_key);
        Ok(key.map(|key| hash(key.as_str()).max(1)))
    }

    /// As [`Self::revived`], also for a dead letter of another queue.
    pub(crate) fn revived_from(
        &mut self,
        dead: &FileName,
        file_name: Option<FileNameText>,
    ) -> Result<FileName, Failure> {
        let position = self.reserve(1)?;
        // With an expiry in the past it would be dead-lettered again unread.
        let expires_at = dead.expires_at.filter(|expires_at| *expires_at > self.now);
        let FileName { id, priority, key, dedup, ref kind, .. } = *dead;
        let mut alive = FileName { priority, key, dedup, expires_at, ..FileName::new(position, id, kind.clone()) };
        if *kind == Kind::LongNamed {
            self.write_note(&alive, &Note { error: None, file_name: file_name.clone() })?;
            alive.is_noted = true;
        }
        Ok(alive)
    }

    /// Renames a row's file and updates the index. Returns the new name; `None` if the file did not exist.
    pub(crate) fn move_row(
        &mut self,
        side: Side,
        from: Location,
        name: &Name,
        to: Location,
        renewed: &FileName,
    ) -> Result<Option<Name>, Failure> {
        let new = Name::from(renewed.render());
        let dirs = &self.known.dirs;
        let was_there = dirs.folder(from).rename(name, dirs.folder(to), &new)?;
        let now = self.now;
        self.index(side).remove(from, name);
        if !was_there {
            return Ok(None);
        }
        self.unsynced.add_move(from, to);
        self.add_row(Row::ours(to, new.clone(), renewed, now));
        Ok(Some(new))
    }

    /// Adds a file to the index, if its folder is loaded.
    pub(crate) fn add_row(&mut self, row: Row) {
        if self.known.is_loaded[row.slot.location as usize] {
            self.index_of(row.slot.location).insert(row);
        }
    }

    pub(crate) fn note_of(&self, name: &FileName) -> Note {
        if !name.is_noted {
            return Note::default();
        }
        record::read(&self.known.dirs.records, &note_name(name)).unwrap_or_default()
    }

    pub(crate) fn write_note(&mut self, name: &FileName, note: &Note) -> Result<(), Failure> {
        let file = note_name(name);
        // The note has the only copy of the name.
        let on_disk = if note.file_name.is_some() { OnDisk::Before } else { OnDisk::Later };
        record::write(&self.known.dirs.tmp, &self.known.dirs.records, &file, note, on_disk)?;
        self.unsynced.add_record(RecordKind::Note, file);
        Ok(())
    }

    pub(crate) fn write_death(&mut self, name: &FileName, death: &Death) -> Result<(), Failure> {
        let file = death_name(name);
        // The record has the only copy of a long name; a short one is part of the new name.
        let on_disk = if name.kind == Kind::LongNamed { OnDisk::Before } else { OnDisk::Later };
        record::write(&self.known.dirs.tmp, &self.known.dirs.failed, &file, death, on_disk)?;
        self.unsynced.add_record(RecordKind::Death, file);
        Ok(())
    }

    pub(crate) fn death_of(&self, name: &FileName) -> Option<Death> {
        record::read(&self.known.dirs.failed, &death_name(name))
    }

    pub(crate) fn remove_death(&self, name: &FileName) {
        // Best effort: a record without a message is ignored and swept later.
        let _ = self.known.dirs.failed.unlink(death_name(name).as_bytes());
    }

    pub(crate) fn remove_note(&self, name: &FileName) {
        if name.is_noted {
            // Best effort: a record without a message is ignored and swept later.
            let _ = self.known.dirs.records.unlink(note_name(name).as_bytes());
        }
    }

    /// Whether the folders are watched.
    pub(crate) fn is_watched(&self, side: Side) -> bool {
        [side.waiting(), side.leased()].into_iter().all(|location| self.known.watches[location as usize].is_some())
    }

    /// Whether the queue is paused.
    pub(crate) fn is_paused(&self, side: Side) -> Result<bool, Failure> {
        Ok(self.known.dirs.home.stat(paused_file(side).as_bytes())?.is_some())
    }

    /// Returns the first time after `after` at which a message becomes due.
    pub(crate) fn next_wake_up(&mut self, side: Side, after: Timestamp) -> Timestamp {
        self.index(side).next_wake_up(after)
    }
}

/// The file that exists while the queue is paused.
pub(crate) fn paused_file(side: Side) -> &'static str {
    match side {
        Side::Live => "paused",
        Side::Dead => "paused_dlq",
    }
}

fn note_name(name: &FileName) -> String {
    format!("{}{}", name.stem(), record::NOTE)
}

fn death_name(name: &FileName) -> String {
    format!("{}{}", name.stem(), record::DEATH)
}

/// Returns the name without its lease, due at `due`.
pub(crate) fn unleased_name(name: &FileName, due: Due) -> FileName {
    FileName { lease: None, due, ..name.clone() }
}
