//! What was done and is not on the disk yet.

use std::panic::resume_unwind;

use crate::dirs::Dirs;
use crate::error::DiskError;
use crate::index::Place;

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// A note, in `records/`.
    Note,
    /// A death record, in `failed/`.
    Death,
}

/// What must be written to the disk before anybody is answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unsynced {
    /// Where files went.
    targets: [bool; 3],
    /// Where they came from.
    sources: [bool; 3],
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
        let places = [Place::Failed, Place::Processing, Place::Incoming];
        let targets = places.into_iter().filter(|place| self.targets[*place as usize]);
        let is_source = |place: &Place| self.sources[*place as usize] && !self.targets[*place as usize];
        for place in targets.chain(places.into_iter().filter(is_source)) {
            dirs.folder(place).sync()?;
        }
        Ok(())
    }

    /// A folder that something was put into or removed from.
    pub(crate) fn add(&mut self, place: Place) {
        self.targets[place as usize] = true;
    }

    /// Two folders that something was moved between.
    pub(crate) fn add_move(&mut self, from: Place, to: Place) {
        self.sources[from as usize] = true;
        self.targets[to as usize] = true;
    }

    /// A record, and the folder that it is in.
    pub(crate) fn add_record(&mut self, recorded: Recorded, name: String) {
        self.records.push((recorded, name));
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
