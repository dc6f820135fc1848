//! A queue with its lock held: what is in its folders is known here, and changes only by whoever has this.

use std::collections::HashSet;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::inotify::WatchDescriptor;
use nix::sys::stat::FileStat;
use postrider_core::{QueueName, Timestamp, failpoint};

use crate::dirs::Dirs;
use crate::disk::Name;
use crate::error::{DiskError, Failure};
use crate::index::{Foreign, Index, Place, Row, nanos};
use crate::lock::{Held, Line};
use crate::name::{Due, FileName, Kind};
use crate::options::Files;
use crate::record::{self, Death, FileNameText, Note};
use crate::store::Shared;
use crate::watch::{Change, News};

/// A clock that shows so much less than before was set back: times that lay ahead of it are judged anew.
const STEP_BACK: Duration = Duration::from_secs(1);
/// What was left behind so long ago, by a process that died, is removed.
const LEFTOVER: i64 = 3600;

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
    is_loaded: [bool; 3],
    watches: [Option<WatchDescriptor>; 3],
    generation: Option<u64>,
    last_now: Timestamp,
    /// The latest place in the line that was seen.
    last_position: Timestamp,
    /// When `incoming/` was last read where nobody tells of changes.
    scan: Option<Scan>,
}

#[derive(Debug)]
struct Scan {
    at: Instant,
    took: Duration,
    /// What the folder looked like before.
    changed: (i64, i64),
    /// Whether a change since would show: file systems have a tick, within which nothing seems to have changed.
    is_certain: bool,
}

impl Known {
    pub(crate) fn new(dirs: Dirs) -> Self {
        Self {
            dirs: Arc::new(dirs),
            live: Index::new(true),
            dead: Index::new(false),
            is_loaded: [false; 3],
            watches: [None; 3],
            generation: None,
            last_now: Timestamp::EPOCH,
            last_position: Timestamp::EPOCH,
            scan: None,
        }
    }

    /// Everything is read anew when it is next needed.
    pub(crate) fn forget(&mut self) {
        self.is_loaded = [false; 3];
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

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recorded {
    /// A note, in `records/`.
    Note,
    /// A death record, in `failed/`.
    Death,
}

/// What must be written to the disk before anybody is answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unsynced {
    places: [bool; 3],
    records: Vec<(Recorded, String)>,
}

impl Unsynced {
    /// Writes it. Not under the lock: others may go on meanwhile.
    pub(crate) fn sync(self, dirs: &Dirs) -> Result<(), DiskError> {
        let folder = |recorded| match recorded {
            Recorded::Note => &dirs.records,
            Recorded::Death => &dirs.failed,
        };
        together(&self.records, |(recorded, name)| folder(*recorded).sync_file(name.as_bytes()))
            .into_iter()
            .collect::<Result<(), _>>()?;
        if self.records.iter().any(|(recorded, _)| *recorded == Recorded::Note) {
            dirs.records.sync()?;
        }
        // Where a file went comes before where it came from: of two names one is better than none.
        for place in [Place::Failed, Place::Incoming, Place::Processing] {
            if self.places[place as usize] {
                dirs.folder(place).sync()?;
            }
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, place: Place) {
        self.places[place as usize] = true;
    }
}

/// So many threads wait for the disk at once. It takes the writes of all that wait together.
const WRITERS: usize = 16;

/// Does something that waits for the disk with each of these, several at a time. The answers are in their order.
pub(crate) fn together<T: Sync, A: Send>(all: &[T], one: impl Fn(&T) -> A + Sync) -> Vec<A> {
    if all.len() <= 1 {
        return all.iter().map(one).collect();
    }
    let (share, one) = (all.len().div_ceil(WRITERS), &one);
    std::thread::scope(|scope| {
        let shares: Vec<_> =
            all.chunks(share).map(|chunk| scope.spawn(move || chunk.iter().map(one).collect::<Vec<_>>())).collect();
        // A panic on one of them is one here.
        shares.into_iter().flat_map(|share| share.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
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
    is_fresh: [bool; 3],
    pub(crate) unsynced: Unsynced,
    /// What others may be waiting for, and from when on it can be received.
    pub(crate) told: Vec<(QueueName, Timestamp)>,
}

impl<'s> Session<'s> {
    pub(crate) fn new(shared: &'s Shared, queue: &'s QueueName, known: &'s mut Known, held: Held<'s>) -> Self {
        let now = shared.options.clock.now();
        if now.saturating_add(STEP_BACK) < known.last_now {
            known.forget();
        }
        known.last_now = now;
        let is_stale = held.line.map(|line| line.generation) != known.generation;
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
        let generation = self.held.line.map_or(0, |line| line.generation);
        let generation = if self.has_changed { generation } else { generation.wrapping_add(1) };
        self.held.write(Line { position, generation }, &self.known.dirs.home)?;
        self.has_changed = true;
        Ok(())
    }

    /// The last place in the line that was given out.
    fn last_position(&mut self) -> Result<Timestamp, Failure> {
        if self.held.line.is_none() {
            for place in [Place::Incoming, Place::Processing, Place::Failed] {
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

    /// Has the living messages known, all of them.
    pub(crate) fn know(&mut self, side: Side) -> Result<(), Failure> {
        match side {
            Side::Live => {
                self.read_place(Place::Processing)?;
                self.read_place(Place::Incoming)?;
                self.adopt()
            }
            Side::Dead => self.read_place(Place::Failed),
        }
    }

    /// Has the leases known.
    pub(crate) fn know_leases(&mut self, side: Side) -> Result<(), Failure> {
        self.read_place(side.leased())
    }

    /// Brings what is known of a folder up to date.
    fn read_place(&mut self, place: Place) -> Result<(), Failure> {
        if self.is_fresh[place as usize] {
            return Ok(());
        }
        let news = match self.known.watches[place as usize] {
            _ if !self.known.is_loaded[place as usize] => None,
            Some(watch) => self.shared.watcher.as_ref().map(|watcher| watcher.news(watch)),
            None if place == Place::Incoming && self.may_have_changed() => None,
            None => Some(News::Changes(Default::default())),
        };
        match news {
            Some(News::Changes(changes)) => {
                for (name, change) in changes {
                    match change {
                        Change::Gone => drop(self.index_of(place).remove(place, &name)),
                        Change::MovedHere => self.take_in(place, name, true)?,
                        Change::Created => self.take_in(place, name, false)?,
                    }
                }
            }
            Some(News::Lost) | None => self.load(place)?,
        }
        self.is_fresh[place as usize] = true;
        Ok(())
    }

    fn index_of(&mut self, place: Place) -> &mut Index {
        self.index(if place == Place::Failed { Side::Dead } else { Side::Live })
    }

    /// Whether somebody who has no lock may have put a file into `incoming/` since it was last read.
    fn may_have_changed(&self) -> bool {
        let Some(scan) = &self.known.scan else { return true };
        // A folder that takes long to read is read less often.
        let pause = self.shared.options.poll_interval.max(scan.took * 10);
        scan.at.elapsed() >= pause && (!scan.is_certain || self.folder_changed() != scan.changed)
    }

    fn folder_changed(&self) -> (i64, i64) {
        match self.known.dirs.home.stat(b"incoming") {
            Ok(Some(found)) => (found.st_mtime, found.st_mtime_nsec),
            Ok(None) | Err(_) => (0, 0),
        }
    }

    /// Reads a folder, all of it.
    fn load(&mut self, place: Place) -> Result<(), Failure> {
        if place == Place::Incoming {
            failpoint::reach("spool.scan");
        }
        let began = Instant::now();
        let changed = self.folder_changed();
        let dirs = self.known.dirs.clone();
        if let Some(watcher) = &self.shared.watcher {
            match self.known.watches[place as usize] {
                // What happened before is about to be seen.
                Some(watch) => drop(watcher.news(watch)),
                None => match watcher.add(dirs.folder(place), self.queue, place) {
                    Ok(watch) => self.known.watches[place as usize] = Some(watch),
                    Err(errno) => tracing::warn!(queue = %self.queue, %errno, "inotify cannot watch one more folder \
                        (fs.inotify.max_user_watches); it is read again and again instead"),
                },
            }
        }
        self.known.is_loaded[place as usize] = false;
        let old: Vec<Name> = self.index_of(place).names(place).cloned().collect();
        let names = dirs.folder(place).names()?;
        let index = self.index_of(place);
        for name in old {
            index.remove(place, &name);
        }
        for (name, _) in &names {
            self.take_in(place, name.clone(), false)?;
        }
        self.known.is_loaded[place as usize] = true;
        if place == Place::Incoming {
            // A tick of the slowest clock of a file system, by the clock that the file system has.
            let wall = Timestamp::now().as_micros();
            let is_certain = wall.saturating_sub(changed.0.saturating_mul(1_000_000)) > 2_000_000;
            self.known.scan = Some(Scan { at: began, took: began.elapsed(), changed, is_certain });
        }
        self.sweep(place);
        Ok(())
    }

    /// A name that is in a folder. `is_complete` when it came there by a rename.
    fn take_in(&mut self, place: Place, name: Name, is_complete: bool) -> Result<(), Failure> {
        if name.first() == Some(&b'.') || (place == Place::Failed && record::is_death(&name)) {
            return Ok(());
        }
        let parsed = FileName::parse(&name);
        match (&parsed, place) {
            // Not named by a lease: it is somebody else's business.
            (Some(FileName { lease: None, .. }) | None, Place::Processing) => return Ok(()),
            (None, Place::Incoming) if !self.is_message(&name) => return Ok(()),
            _ => {}
        }
        let now = self.now;
        let Some(parsed) = parsed else { return self.take_in_foreign(place, name, is_complete) };
        self.known.last_position = self.known.last_position.max(parsed.position);
        if self.index_of(place).get(place, &name).is_none() {
            self.index_of(place).insert(Row::ours(place, name, &parsed, now));
        }
        Ok(())
    }

    fn is_message(&self, name: &[u8]) -> bool {
        match self.shared.options.files {
            Files::Json => name.len() > b".json".len() && name.ends_with(b".json"),
            Files::Any => true,
        }
    }

    fn take_in_foreign(&mut self, place: Place, name: Name, is_complete: bool) -> Result<(), Failure> {
        let grace = self.shared.options.grace_period;
        let Some(found) = self.known.dirs.folder(place).stat(&name)? else {
            self.index_of(place).remove(place, &name);
            return Ok(());
        };
        let mtime = mtime(&found);
        let is_old = mtime.saturating_add(i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX)) <= nanos(self.now);
        let foreign = Foreign {
            mtime,
            is_settled: is_complete || is_old || place == Place::Failed,
            is_read: self.shared.reading.ordering_key.is_empty() || place == Place::Failed,
        };
        let row = Row::foreign(place, name, foreign, grace, self.now);
        self.index_of(place).insert(row);
        Ok(())
    }

    /// Files that somebody moved back to `incoming/` by hand get names of living messages. A dead letter joins the tail
    /// with its counts at zero; what was leased keeps its place and its counts.
    fn adopt(&mut self) -> Result<(), Failure> {
        let strays: Vec<(Name, FileName)> =
            self.known.live.misplaced().filter_map(|name| Some((name.clone(), FileName::parse(name)?))).collect();
        for (name, stray) in strays {
            let renewed = if stray.is_dead { self.revived(&stray)? } else { FileName { lease: None, ..stray } };
            self.will_change()?;
            self.move_row(Side::Live, Place::Incoming, &name, Place::Incoming, &renewed)?;
        }
        Ok(())
    }

    /// A dead letter's name in its next life: at the tail of the line, with nothing counted.
    pub(crate) fn revived(&mut self, dead: &FileName) -> Result<FileName, Failure> {
        let file_name = match dead.kind {
            Kind::LongNamed => self.death_of(dead).and_then(|death| death.file_name),
            Kind::Letter | Kind::Foreign(_) => None,
        };
        self.revived_from(dead, file_name)
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
            self.write_note(&alive, &Note { error: None, file_name })?;
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
        self.unsynced.add(from);
        self.unsynced.add(to);
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
        record::write(&self.known.dirs.tmp, &self.known.dirs.records, &file, note)?;
        self.unsynced.records.push((Recorded::Note, file));
        Ok(())
    }

    pub(crate) fn write_death(&mut self, name: &FileName, death: &Death) -> Result<(), Failure> {
        let file = death_name(name);
        record::write(&self.known.dirs.tmp, &self.known.dirs.failed, &file, death)?;
        self.unsynced.records.push((Recorded::Death, file));
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

    /// Removes what processes that died have left beside messages.
    fn sweep(&self, place: Place) {
        let dirs = &self.known.dirs;
        let (folder, suffix, rows) = match place {
            Place::Incoming => (&dirs.records, record::NOTE, &self.known.live),
            Place::Failed => (&dirs.failed, record::DEATH, &self.known.dead),
            Place::Processing => {
                let left = dirs.tmp.names().unwrap_or_default();
                left.iter().filter(|(name, _)| is_left_over(&dirs.tmp, name)).for_each(|(name, _)| {
                    let _ = dirs.tmp.unlink(name);
                });
                return;
            }
        };
        let records: Vec<(Name, String)> = folder
            .names()
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(name, _)| {
                let stem = std::str::from_utf8(&name).ok()?.strip_suffix(suffix)?.to_owned();
                Some((name, stem))
            })
            .collect();
        if records.is_empty() {
            return;
        }
        let living: HashSet<String> =
            rows.rows().filter_map(|row| FileName::parse(row.name())).map(|name| name.stem()).collect();
        for (name, stem) in records {
            if !living.contains(&stem) && is_left_over(folder, &name) {
                let _ = folder.unlink(&name);
            }
        }
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

fn is_left_over(folder: &crate::disk::Folder, name: &Name) -> bool {
    let now = Timestamp::now().as_micros() / 1_000_000;
    folder.stat(name).ok().flatten().is_some_and(|found| found.st_mtime.saturating_add(LEFTOVER) < now)
}

/// A file's modification time, in nanoseconds since the epoch.
pub(crate) fn mtime(found: &FileStat) -> i64 {
    found.st_mtime.saturating_mul(1_000_000_000).saturating_add(found.st_mtime_nsec)
}

/// A name that waits from `due` on, and holds nothing back from whoever claims it next.
pub(crate) fn given_back(name: &FileName, due: Due) -> FileName {
    FileName { lease: None, due, ..name.clone() }
}
