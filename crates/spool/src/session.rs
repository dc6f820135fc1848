//! A queue with its lock held: what is in its folders is known here, and changes only by whoever has this.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::inotify::WatchDescriptor;
use postrider_core::{DeadLetterReason, QueueName, Timestamp};

use crate::dirs::Dirs;
use crate::disk::Name;
use crate::error::Failure;
use crate::index::{Index, Place, Row};
use crate::lock::{Held, Line};
use crate::name::{Due, FileName, Kind, hash};
use crate::record::{self, Death, FileNameText, Note, OnDisk};
use crate::store::Shared;
use crate::unsynced::{Recorded, Unsynced};

/// A clock that shows so much less than before was set back: times that lay ahead of it are judged anew.
const STEP_BACK: Duration = Duration::from_secs(1);

/// The part of the number of changes that is zero when a queue is made.
const FRESH: u64 = 0xffff;

/// Whether the living messages of a queue are meant, or its dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Live,
    Dead,
}

impl Side {
    pub(crate) fn of(queue: &QueueName) -> Self {
        if queue.holds_dead_letters() { Self::Dead } else { Self::Live }
    }

    /// Where its messages wait.
    pub(crate) fn waiting(self) -> Place {
        match self {
            Self::Live => Place::Incoming,
            Self::Dead => Place::Failed,
        }
    }

    /// Where they are while somebody holds them.
    pub(crate) fn leased(self) -> Place {
        match self {
            Self::Live => Place::Processing,
            Self::Dead => Place::Failed,
        }
    }
}

/// A queue's folders, and what is known of them from one holding of the lock to the next.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) dirs: Arc<Dirs>,
    pub(crate) live: Index,
    pub(crate) dead: Index,
    /// Whether a folder has been read.
    pub(crate) is_loaded: [bool; 3],
    pub(crate) watches: [Option<WatchDescriptor>; 3],
    generation: Option<u64>,
    last_now: Timestamp,
    /// The latest place in the line that was seen.
    pub(crate) last_position: Timestamp,
    /// When `incoming/` was last read where nobody tells of changes.
    pub(crate) scan: Option<Scan>,
    /// Files of others that were read and are no messages. They go to the dead letters, so many at a time.
    pub(crate) unusable: VecDeque<UnusableFile>,
    /// So many more files of others are read before they are leased: one that was read last was no message.
    pub(crate) reads_before_lease: usize,
}

/// A file of somebody else's that is no message, and why.
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
    /// What the folder looked like before.
    pub(crate) changed: (i64, i64),
    /// Whether a change since would show: file systems have a tick, within which nothing seems to have changed.
    pub(crate) is_certain: bool,
}

impl Known {
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

    /// Everything is read anew when it is next needed.
    pub(crate) fn forget(&mut self) {
        self.is_loaded = [false; 3];
    }

    /// The same, and what was known of times that lay ahead does not count any more.
    fn forget_times(&mut self, queue: &QueueName) {
        self.forget();
        self.live = Index::live();
        self.dead = Index::dead(queue);
        self.unusable.clear();
    }

    /// Stops watching.
    pub(crate) fn leave(&mut self, shared: &Shared) {
        for watch in self.watches.iter_mut().filter_map(Option::take) {
            if let Some(watcher) = &shared.watcher {
                watcher.remove(watch);
            }
        }
    }
}

/// The lock, held.
#[derive(Debug)]
pub(crate) struct Session<'s> {
    pub(crate) shared: &'s Shared,
    /// The queue, not its dead letters.
    pub(crate) queue: &'s QueueName,
    pub(crate) known: &'s mut Known,
    held: Held<'s>,
    pub(crate) now: Timestamp,
    has_changed: bool,
    pub(crate) is_fresh: [bool; 3],
    /// Whether a claim ended because others wait for the lock.
    pub(crate) is_cut_short: bool,
    /// How many files that are no messages a claim has moved to the dead letters.
    pub(crate) buried: usize,
    pub(crate) unsynced: Unsynced,
    /// What others may be waiting for, and from when on it can be received.
    pub(crate) told: Vec<(QueueName, Timestamp)>,
}

impl<'s> Session<'s> {
    pub(crate) fn new(shared: &'s Shared, queue: &'s QueueName, known: &'s mut Known, held: Held<'s>) -> Self {
        let now = shared.options.clock.now();
        if now.saturating_add(STEP_BACK) < known.last_now {
            known.forget_times(queue);
        }
        known.last_now = now;
        let is_stale = match (held.line, known.generation) {
            (Some(line), Some(generation)) => line.generation != generation,
            _ => true,
        };
        for place in [Place::Incoming, Place::Processing, Place::Failed] {
            if is_stale && known.watches[place as usize].is_none() {
                known.is_loaded[place as usize] = false;
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
            buried: 0,
            unsynced: Unsynced::default(),
            told: Vec::new(),
        }
    }

    /// What a session leaves behind: the folders to be written, and whom to tell of what.
    pub(crate) fn finish(self) -> (Unsynced, Vec<(QueueName, Timestamp)>) {
        self.known.generation = self.held.line.map(|line| line.generation);
        (self.unsynced, self.told)
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

    /// About how many claims there have been since the queue was made: a claim and its end are two changes.
    pub(crate) fn claims_so_far(&self) -> u64 {
        self.held.line.map_or(0, |line| (line.generation & FRESH) / 2)
    }

    /// What can be received may be different now, from `due` on.
    pub(crate) fn tell(&mut self, side: Side, due: Timestamp) {
        let queue = if side == Side::Dead { self.queue.dead_letters() } else { self.queue.clone() };
        self.told.push((queue, due));
    }

    /// Says that the folders change, before they do: whoever dies in between has said it.
    pub(crate) fn will_change(&mut self) -> Result<(), Failure> {
        if self.has_changed {
            return Ok(());
        }
        let position = self.last_position()?;
        self.leave_line(position)
    }

    fn leave_line(&mut self, position: Timestamp) -> Result<(), Failure> {
        // Begins anywhere, so that it is not taken for one that was known before the lock's file was removed.
        let generation = self.held.line.map_or_else(|| rand::random::<u64>() & !FRESH, |line| line.generation);
        let generation = if self.has_changed { generation } else { generation.wrapping_add(1) };
        self.held.write(Line { position, generation }, &self.known.dirs.home)?;
        self.has_changed = true;
        Ok(())
    }

    /// The last place in the line that was given out.
    fn last_position(&mut self) -> Result<Timestamp, Failure> {
        if self.held.line.is_none() {
            for place in [Place::Processing, Place::Incoming, Place::Failed] {
                self.read_place(place)?;
            }
        }
        let told = self.held.line.map_or(Timestamp::EPOCH, |line| line.position);
        Ok(told.max(self.known.last_position))
    }

    /// So many places at the end of the line, the first of them answered. They are later than all that were ever given
    /// out, whatever the clock says.
    pub(crate) fn reserve(&mut self, places: usize) -> Result<Timestamp, Failure> {
        let micro = Duration::from_micros(1);
        let first = self.last_position()?.saturating_add(micro).max(self.now);
        let more = Duration::from_micros(places.saturating_sub(1) as u64);
        self.leave_line(first.saturating_add(more))?;
        self.known.last_position = first.saturating_add(more);
        Ok(first)
    }

    /// A dead letter's name in its next life: at the tail of the line, with nothing counted. The file is in `place`, under
    /// its old name.
    pub(crate) fn revived(&mut self, place: Place, file: &Name, dead: &FileName) -> Result<FileName, Failure> {
        let file_name = match &dead.kind {
            Kind::Letter => None,
            Kind::Foreign(original) => Some(FileNameText::new(original)),
            Kind::LongNamed => self.death_of(dead).and_then(|death| death.file_name),
        };
        let key = self.key_of(place, file, dead, file_name.as_ref())?;
        self.revived_from(&FileName { key, ..dead.clone() }, file_name)
    }

    /// The ordering key of a dead letter: that of a file of somebody's is what the file says now, because it may have been
    /// mended.
    pub(crate) fn key_of(
        &self,
        place: Place,
        file: &Name,
        dead: &FileName,
        file_name: Option<&FileNameText>,
    ) -> Result<Option<u64>, Failure> {
        if dead.kind == Kind::Letter || self.shared.reading.ordering_key.is_empty() {
            return Ok(dead.key);
        }
        let original = file_name.map_or(&b""[..], FileNameText::as_bytes);
        let content = self.shared.reading.read(self.known.dirs.folder(place), file, &dead.kind, original)?;
        let key = content.and_then(Result::ok).and_then(|content| content.head.ordering_key);
        Ok(key.map(|key| hash(key.as_str()).max(1)))
    }

    /// The same, for a dead letter of another queue.
    pub(crate) fn revived_from(
        &mut self,
        dead: &FileName,
        file_name: Option<FileNameText>,
    ) -> Result<FileName, Failure> {
        let position = self.reserve(1)?;
        // An expiry that has passed would kill it again unread, and nobody redrives for that.
        let expires_at = dead.expires_at.filter(|expires_at| *expires_at > self.now);
        let FileName { id, priority, key, dedup, ref kind, .. } = *dead;
        let mut alive = FileName { priority, key, dedup, expires_at, ..FileName::new(position, id, kind.clone()) };
        if *kind == Kind::LongNamed {
            self.write_note(&alive, &Note { error: None, file_name: file_name.clone() })?;
            alive.is_noted = true;
        }
        Ok(alive)
    }

    /// Renames a row's file and knows it by its new name. Answers whether it was there.
    pub(crate) fn move_row(
        &mut self,
        side: Side,
        from: Place,
        name: &Name,
        to: Place,
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
        self.learn(Row::ours(to, new.clone(), renewed, now));
        Ok(Some(new))
    }

    /// Knows of a file that was put into a folder, if the folder is known.
    pub(crate) fn learn(&mut self, row: Row) {
        if self.known.is_loaded[row.slot.place as usize] {
            self.index_of(row.slot.place).insert(row);
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
        // A name that is nowhere else is not put at risk.
        let on_disk = if note.file_name.is_some() { OnDisk::Before } else { OnDisk::Later };
        record::write(&self.known.dirs.tmp, &self.known.dirs.records, &file, note, on_disk)?;
        self.unsynced.add_record(Recorded::Note, file);
        Ok(())
    }

    pub(crate) fn write_death(&mut self, name: &FileName, death: &Death) -> Result<(), Failure> {
        let file = death_name(name);
        // A name that is nowhere else is not put at risk; a short one is part of the new name.
        let on_disk = if name.kind == Kind::LongNamed { OnDisk::Before } else { OnDisk::Later };
        record::write(&self.known.dirs.tmp, &self.known.dirs.failed, &file, death, on_disk)?;
        self.unsynced.add_record(Recorded::Death, file);
        Ok(())
    }

    pub(crate) fn death_of(&self, name: &FileName) -> Option<Death> {
        record::read(&self.known.dirs.failed, &death_name(name))
    }

    pub(crate) fn remove_death(&self, name: &FileName) {
        // What stays behind means nothing, and is swept when the folder is next read.
        let _ = self.known.dirs.failed.unlink(death_name(name).as_bytes());
    }

    pub(crate) fn remove_note(&self, name: &FileName) {
        if name.is_noted {
            // What stays behind means nothing, and is swept when the folder is next read.
            let _ = self.known.dirs.records.unlink(note_name(name).as_bytes());
        }
    }

    /// Whether somebody tells of changes in the folders.
    pub(crate) fn is_watched(&self, side: Side) -> bool {
        [side.waiting(), side.leased()].into_iter().all(|place| self.known.watches[place as usize].is_some())
    }

    /// Whether receives are held back.
    pub(crate) fn is_paused(&self, side: Side) -> Result<bool, Failure> {
        Ok(self.known.dirs.home.stat(paused_file(side).as_bytes())?.is_some())
    }

    /// The first time at which a message becomes due.
    pub(crate) fn next_wake_up(&mut self, side: Side, after: Timestamp) -> Timestamp {
        self.index(side).next_wake_up(after)
    }
}

/// The file that holds receives back while it is there.
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

/// A name that waits from `due` on, and holds nothing back from whoever claims it next.
pub(crate) fn given_back(name: &FileName, due: Due) -> FileName {
    FileName { lease: None, due, ..name.clone() }
}
