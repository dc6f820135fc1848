//! What is in a queue's folders: read whole once, and then brought up to date with what others did.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use nix::sys::stat::FileStat;
use postrider_core::{Timestamp, failpoint};

use crate::disk::{Folder, Name};
use crate::error::Failure;
use crate::index::{Foreign, Index, Place, Row, nanos};
use crate::name::FileName;
use crate::options::Files;
use crate::record;
use crate::session::{Scan, Session, Side};
use crate::watch::{Change, News};

/// What was left behind so long ago, by a process that died, is removed.
const LEFTOVER: i64 = 3600;

impl Session<'_> {
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
    pub(crate) fn read_place(&mut self, place: Place) -> Result<(), Failure> {
        if self.is_fresh[place as usize] {
            return Ok(());
        }
        let news = match self.known.watches[place as usize] {
            _ if !self.known.is_loaded[place as usize] => None,
            Some(watch) => self.shared.watcher.as_ref().map(|watcher| watcher.news(watch)),
            None if place == Place::Incoming && self.may_have_changed() => None,
            None => Some(News::Changes(Default::default())),
        };
        let read = match news {
            Some(News::Changes(changes)) => self.apply(place, changes),
            Some(News::Lost) | None => {
                let read = self.load(place);
                // It may have taken a while, and leases begin now.
                self.now = self.now.max(self.shared.options.clock.now());
                read
            }
        };
        // What was half done is done anew.
        self.known.is_loaded[place as usize] = read.is_ok();
        self.is_fresh[place as usize] = read.is_ok();
        read
    }

    fn apply(&mut self, place: Place, changes: HashMap<Name, Change>) -> Result<(), Failure> {
        for (name, change) in changes {
            match change {
                Change::Gone => drop(self.index_of(place).remove(place, &name)),
                Change::MovedHere => self.take_in(place, name, true, None)?,
                Change::Created => self.take_in(place, name, false, None)?,
            }
        }
        Ok(())
    }

    pub(crate) fn index_of(&mut self, place: Place) -> &mut Index {
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
        let old: Vec<Name> = self.index_of(place).names(place).cloned().collect();
        let names = dirs.folder(place).names()?;
        let index = self.index_of(place);
        let mut before: HashMap<Name, Row> =
            old.into_iter().filter_map(|name| Some((name.clone(), index.remove(place, &name)?))).collect();
        for (name, _) in &names {
            let row = before.remove(name);
            self.take_in(place, name.clone(), false, row)?;
        }
        if place == Place::Incoming {
            // A tick of the slowest clock of a file system, by the clock that the file system has.
            let wall = Timestamp::now().as_micros();
            let is_certain = wall.saturating_sub(changed.0.saturating_mul(1_000_000)) > 2_000_000;
            self.known.scan = Some(Scan { at: began, took: began.elapsed(), changed, is_certain });
        }
        self.sweep(place);
        Ok(())
    }

    /// A name that is in a folder. `is_complete` when it came there by a rename; `before` is what was known of it.
    pub(crate) fn take_in(
        &mut self,
        place: Place,
        name: Name,
        is_complete: bool,
        before: Option<Row>,
    ) -> Result<(), Failure> {
        if name.first() == Some(&b'.') || (place == Place::Failed && record::stem(&name, record::DEATH).is_some()) {
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
        let Some(parsed) = parsed else { return self.take_in_foreign(place, name, is_complete, before) };
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

    fn take_in_foreign(
        &mut self,
        place: Place,
        name: Name,
        is_complete: bool,
        before: Option<Row>,
    ) -> Result<(), Failure> {
        let grace = self.shared.options.grace_period;
        let Some(found) = self.known.dirs.folder(place).stat(&name)? else {
            self.index_of(place).remove(place, &name);
            return Ok(());
        };
        let mtime = mtime(&found);
        if let Some(before) = before.filter(|before| before.foreign.is_some_and(|foreign| foreign.mtime == mtime)) {
            // When it was first seen counts.
            self.index_of(place).insert(before);
            return Ok(());
        }
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
            match self.adopt_one(&name, &stray) {
                Err(Failure::Disk(error)) if error.concerns_one_file() => {
                    tracing::warn!(queue = %self.queue, %error, "a file that was moved back cannot be renamed");
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn adopt_one(&mut self, name: &Name, stray: &FileName) -> Result<(), Failure> {
        let renewed = match stray.is_dead {
            true => self.revived(Place::Incoming, name, stray)?,
            false => FileName { lease: None, ..stray.clone() },
        };
        self.will_change()?;
        self.move_row(Side::Live, Place::Incoming, name, Place::Incoming, &renewed)?;
        if stray.is_dead {
            self.remove_death(stray);
        }
        Ok(())
    }

    /// Removes what processes that died have left beside messages.
    fn sweep(&self, place: Place) {
        let dirs = &self.known.dirs;
        let (folder, suffix, rows) = match place {
            // Without the leases, whose notes are there, too, nobody can tell.
            Place::Incoming if !self.known.is_loaded[Place::Processing as usize] => return,
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
                let stem = record::stem(&name, suffix)?.to_owned();
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
}

fn is_left_over(folder: &Folder, name: &Name) -> bool {
    let now = Timestamp::now().as_micros() / 1_000_000;
    folder.stat(name).ok().flatten().is_some_and(|found| found.st_mtime.saturating_add(LEFTOVER) < now)
}

/// A file's modification time, in nanoseconds since the epoch.
pub(crate) fn mtime(found: &FileStat) -> i64 {
    found.st_mtime.saturating_mul(1_000_000_000).saturating_add(found.st_mtime_nsec)
}
