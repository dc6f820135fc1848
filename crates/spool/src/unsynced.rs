//! Changes that are not durable yet.

use std::panic::resume_unwind;

use crate::dirs::Dirs;
use crate::error::DiskError;
use crate::index::Location;

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// A note, in `records/`.
    Note,
    /// A death record, in `failed/`.
    Death,
}

/// The folders and records to sync before the caller is answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unsynced {
    /// Folders that files were moved into.
    targets: [bool; 3],
    /// Folders that files were moved out of.
    sources: [bool; 3],
    records: Vec<(RecordKind, String)>,
}

impl Unsynced {
    /// Makes the changes durable. Called without the lock, so that other processes can continue.
    pub(crate) fn sync(self, dirs: &Dirs) -> Result<(), DiskError> {
        let folder = |recorded| match recorded {
            RecordKind::Note => &dirs.records,
            RecordKind::Death => &dirs.failed,
        };
        in_parallel(&self.records, |(recorded, name)| folder(*recorded).sync_file(name.as_bytes()))
            .into_iter()
            .collect::<Result<(), _>>()?;
        if self.records.iter().any(|(recorded, _)| *recorded == RecordKind::Note) {
            dirs.records.sync()?;
        }
        // Targets before sources: after a crash a file may have two names, and never none.
        let locations = [Location::Failed, Location::Processing, Location::Incoming];
        let targets = locations.into_iter().filter(|location| self.targets[*location as usize]);
        let is_source = |location: &Location| self.sources[*location as usize] && !self.targets[*location as usize];
        for location in targets.chain(locations.into_iter().filter(is_source)) {
            dirs.folder(location).sync()?;
        }
        Ok(())
    }

    /// Adds a folder with a new or removed file.
    pub(crate) fn add(&mut self, location: Location) {
        self.targets[location as usize] = true;
    }

    /// Adds the folders of a move.
    pub(crate) fn add_move(&mut self, from: Location, to: Location) {
        self.sources[from as usize] = true;
        self.targets[to as usize] = true;
    }

    /// Adds a record.
    pub(crate) fn add_record(&mut self, recorded: RecordKind, name: String) {
        self.records.push((recorded, name));
    }
}

/// Number of threads that sync in parallel, so that the disk combines their writes.
const WRITERS: usize = 16;

/// Runs a disk operation for each item, several in parallel. The results are in the order of the items.
pub(crate) fn in_parallel<T: Sync, A: Send>(all: &[T], one: impl Fn(&T) -> A + Sync) -> Vec<A> {
    if all.len() <= 1 {
        return all.iter().map(one).collect();
    }
    let (share, one) = (all.len().div_ceil(WRITERS), &one);
    std::thread::scope(|scope| {
        let shares: Vec<_> =
            all.chunks(share).map(|chunk| scope.spawn(move || chunk.iter().map(one).collect::<Vec<_>>())).collect();
        // A panic of a thread continues here.
        shares.into_iter().flat_map(|share| share.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
