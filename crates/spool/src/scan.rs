//! Reads a queue's folders: completely once, afterwards only the changes by other processes.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use nix::sys::stat::FileStat;
use postrider_core::{Timestamp, failpoint};

use crate::disk::{Folder, Name};
use crate::error::Failure;
use crate::index::{Foreign, Index, Location, Row, nanos};
use crate::name::FileName;
use crate::options::Files;
use crate::record;
use crate::session::{Scan, Session, Side};
use crate::watch::{Change, FolderChanges};

/// Age in seconds at which a leftover of a process that died is removed.
const LEFTOVER: i64 = 3600;

impl Session<'_> {
    /// Brings the index of live messages or of dead letters up to date.
    pub(crate) fn refresh(&mut self, side: Side) -> Result<(), Failure> {
        match side {
            Side::Live => {
                self.refresh_folder(Location::Processing)?;
                self.refresh_folder(Location::Incoming)?;
                self.rename_misplaced()
            }
            Side::Dead => self.refresh_folder(Location::Failed),
        }
    }

    /// Brings the index of leased messages up to date.
    pub(crate) fn refresh_leases(&mut self, side: Side) -> Result<(), Failure> {
        self.refresh_folder(side.leased())
    }

    /// Brings the index of a folder up to date.
    pub(crate) fn refresh_folder(&mut self, location: Location) -> Result<(), Failure> {
        if self.is_fresh[location as usize] {
            return Ok(());
        }
        let changes = match self.known.watches[location as usize] {
            _ if !self.known.is_loaded[location as usize] => None,
            Some(watch) => self.shared.watcher.as_ref().map(|watcher| watcher.take_changes(watch)),
            None if location == Location::Incoming && self.may_have_changed() => None,
            None => Some(FolderChanges::Changes(Default::default())),
        };
        let read = match changes {
            Some(FolderChanges::Changes(changes)) => self.apply(location, changes),
            Some(FolderChanges::Lost) | None => {
                let read = self.load(location);
                // The load may have taken a while, and leases begin now.
                self.now = self.now.max(self.shared.options.clock.now());
                read
            }
        };
        // After a failure the folder is read again.
        self.known.is_loaded[location as usize] = read.is_ok();
        self.is_fresh[location as usize] = read.is_ok();
        read
    }

    fn apply(&mut self, location: Location, changes: HashMap<Name, Change>) -> Result<(), Failure> {
        for (name, change) in changes {
            match change {
                Change::Gone => drop(self.index_of(location).remove(location, &name)),
                Change::MovedHere => self.add_file(location, name, true, None)?,
                Change::Created => self.add_file(location, name, false, None)?,
            }
        }
        Ok(())
    }

    pub(crate) fn index_of(&mut self, location: Location) -> &mut Index {
        self.index(if location == Location::Failed { Side::Dead } else { Side::Live })
    }

    /// Whether a producer without the lock may have put a file into `incoming/` since it was last read.
    fn may_have_changed(&self) -> bool {
        let Some(scan) = &self.known.scan else { return true };
        // A folder that takes longer to read is read less often.
        let pause = self.shared.options.poll_interval.max(scan.took * 10);
        scan.at.elapsed() >= pause && (!scan.is_certain || self.folder_changed() != scan.changed)
    }

    fn folder_changed(&self) -> (i64, i64) {
        match self.known.dirs.home.stat(b"incoming") {
            Ok(Some(found)) => (found.st_mtime, found.st_mtime_nsec),
            Ok(None) | Err(_) => (0, 0),
        }
    }

    /// Reads a folder completely.
    fn load(&mut self, location: Location) -> Result<(), Failure> {
        if location == Location::Incoming {
            failpoint::reach("spool.scan");
        }
        let began = Instant::now();
        let changed = self.folder_changed();
        let dirs = self.known.dirs.clone();
        if let Some(watcher) = &self.shared.watcher {
            match self.known.watches[location as usize] {
                // Earlier changes are included in the listing below.
                Some(watch) => drop(watcher.take_changes(watch)),
                None => match watcher.add(dirs.folder(location), self.queue, location) {
                    Ok(watch) => self.known.watches[location as usize] = Some(watch),
                    Err(errno) => tracing::warn!(queue = %self.queue, %errno, "inotify cannot watch one more folder \
                                                                               (fs.inotify.max_user_watches); it is polled instead"),
                },
            }
        }
        let old: Vec<Name> = self.index_of(location).names(location).cloned().collect();
        let names = dirs.folder(location).names()?;
        let index = self.index_of(location);
        let mut before: HashMap<Name, Row> =
            old.into_iter().filter_map(|name| Some((name.clone(), index.remove(location, &name)?))).collect();
        for (name, _) in &names {
            let row = before.remove(name);
            self.add_file(location, name.clone(), false, row)?;
        }
        if location == Location::Incoming {
            // Two seconds: the granularity of the coarsest file system clock.
            let wall = Timestamp::now().as_micros();
            let is_certain = wall.saturating_sub(changed.0.saturating_mul(1_000_000)) > 2_000_000;
            self.known.scan = Some(Scan { at: began, took: began.elapsed(), changed, is_certain });
        }
        self.sweep(location);
        Ok(())
    }

    /// Adds a file to the index. `is_complete` if it was renamed into the folder; `before` is its earlier row.
    pub(crate) fn add_file(
        &mut self,
        location: Location,
        name: Name,
        is_complete: bool,
        before: Option<Row>,
    ) -> Result<(), Failure> {
        if name.first() == Some(&b'.') || (location == Location::Failed && record::stem(&name, record::DEATH).is_some())
        {
            return Ok(());
        }
        let parsed = FileName::parse(&name);
        match (&parsed, location) {
            // Without a lease in its name it belongs to another program.
            (Some(FileName { lease: None, .. }) | None, Location::Processing) => return Ok(()),
            (None, Location::Incoming) if !self.is_message(&name) => return Ok(()),
            _ => {}
        }
        let now = self.now;
        let Some(parsed) = parsed else { return self.add_foreign_file(location, name, is_complete, before) };
        self.known.last_position = self.known.last_position.max(parsed.position);
        if self.index_of(location).get(location, &name).is_none() {
            self.index_of(location).insert(Row::ours(location, name, &parsed, now));
        }
        Ok(())
    }

    fn is_message(&self, name: &[u8]) -> bool {
        match self.shared.options.files {
            Files::Json => name.len() > b".json".len() && name.ends_with(b".json"),
            Files::Any => true,
        }
    }

    fn add_foreign_file(
        &mut self,
        location: Location,
        name: Name,
        is_complete: bool,
        before: Option<Row>,
    ) -> Result<(), Failure> {
        let grace = self.shared.options.grace_period;
        let Some(found) = self.known.dirs.folder(location).stat(&name)? else {
            self.index_of(location).remove(location, &name);
            return Ok(());
        };
        let mtime = mtime(&found);
        if let Some(before) = before.filter(|before| before.foreign.is_some_and(|foreign| foreign.mtime == mtime)) {
            // Keeps the time at which it was first seen.
            self.index_of(location).insert(before);
            return Ok(());
        }
        let is_old = mtime.saturating_add(i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX)) <= nanos(self.now);
        let foreign = Foreign {
            mtime,
            is_settled: is_complete || is_old || location == Location::Failed,
            is_read: self.shared.reading.ordering_key.is_empty() || location == Location::Failed,
        };
        let row = Row::foreign(location, name, foreign, grace, self.now);
        self.index_of(location).insert(row);
        Ok(())
    }

    /// Renames files that were moved back to `incoming/` by hand. A dead letter joins the tail with its counts reset; a leased
    /// message keeps its position and its counts.
    fn rename_misplaced(&mut self) -> Result<(), Failure> {
        let strays: Vec<(Name, FileName)> =
            self.known.live.misplaced().filter_map(|name| Some((name.clone(), FileName::parse(name)?))).collect();
        for (name, stray) in strays {
            match self.rename_misplaced_one(&name, &stray) {
                Err(Failure::Disk(error)) if error.concerns_one_file() => {
                    tracing::warn!(queue = %self.queue, %error, "a file that was moved back to incoming/ cannot be renamed");
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn rename_misplaced_one(&mut self, name: &Name, stray: &FileName) -> Result<(), Failure> {
        let renewed = match stray.is_dead {
            true => self.revived(Location::Incoming, name, stray)?,
            false => FileName { lease: None, ..stray.clone() },
        };
        self.will_change()?;
        self.move_row(Side::Live, Location::Incoming, name, Location::Incoming, &renewed)?;
        if stray.is_dead {
            self.remove_death(stray);
        }
        Ok(())
    }

    /// Removes leftovers of processes that died.
    fn sweep(&self, location: Location) {
        let dirs = &self.known.dirs;
        let (folder, suffix, rows) = match location {
            // Notes of leased messages are there too, so the leases must be known.
            Location::Incoming if !self.known.is_loaded[Location::Processing as usize] => return,
            Location::Incoming => (&dirs.records, record::NOTE, &self.known.live),
            Location::Failed => (&dirs.failed, record::DEATH, &self.known.dead),
            Location::Processing => {
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

/// Returns a file's modification time, in nanoseconds since the epoch.
pub(crate) fn mtime(found: &FileStat) -> i64 {
    found.st_mtime.saturating_mul(1_000_000_000).saturating_add(found.st_mtime_nsec)
}
