//! Room on the disk. Sends are refused while there is still some left.
//!
//! A receive and an ack write too: to the log, and now and then to a new page of the file. The last of the room is
//! theirs, because they are what makes room: so a queue can be drained on a disk that is full, and sends go on by
//! themselves when it is not. Other programs may use that room up; then SQLite fails, and what it failed at is tried
//! again without the sends (`writer/transaction.rs`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use postrider_core::MessagingError;
use rusqlite::Connection;

use crate::error::{Failure, FileError};

/// How long a measurement is trusted.
pub(crate) const TRUSTED_FOR: Duration = Duration::from_millis(100);

/// How long sends are refused after SQLite has found no room.
const REFUSED_FOR: Duration = Duration::from_millis(500);

/// What a row takes besides its own bytes: a page in the worst case.
const PER_ROW: u64 = 4096;

/// What is known of the room on the disk.
#[derive(Debug, Default)]
pub(crate) struct Room {
    measured: Option<Measured>,
    refused_until: Option<Instant>,
}

#[derive(Debug)]
struct Measured {
    at: Instant,
    /// How many bytes may be added before it is measured again.
    left: u64,
}

impl Room {
    /// SQLite has found no room: sends are refused for a moment.
    pub(crate) fn refuse(&mut self) {
        *self = Self { measured: None, refused_until: Some(Instant::now() + REFUSED_FOR) };
    }

    /// Takes room for a row of so many bytes, if there is more than the headroom.
    pub(crate) fn take(&mut self, connection: &Connection, headroom: u64, bytes: u64) -> Result<(), Failure> {
        let now = Instant::now();
        if self.refused_until.is_some_and(|until| now < until) {
            return Err(full(connection));
        }
        // In the log, and in the file.
        let bytes = bytes.saturating_add(PER_ROW).saturating_mul(2);
        if let Some(measured) = &mut self.measured
            && now.duration_since(measured.at) < TRUSTED_FOR
            && measured.left > bytes
        {
            measured.left -= bytes;
            return Ok(());
        }
        let left = measure(connection, headroom)?;
        *self = Self::default();
        if left <= bytes {
            return Err(full(connection));
        }
        self.measured = Some(Measured { at: now, left: left - bytes });
        Ok(())
    }
}

/// Whether the disk has so little left that the log must stay short: what it takes up is room that the file needs.
pub(crate) fn is_short(path: &Path, headroom: u64) -> bool {
    statvfs(path).is_ok_and(|disk| {
        let bytes = |blocks| bytes(blocks, disk.fragment_size());
        bytes(disk.blocks_available()) < headroom.min(bytes(disk.blocks()) / 10).saturating_mul(2)
    })
}

#[cfg(test)]
impl Room {
    /// More than can be added, whatever a measurement would say.
    pub(crate) fn plenty() -> Self {
        let at = Instant::now() + Duration::from_secs(3600);
        Self { measured: Some(Measured { at, left: u64::MAX }), refused_until: None }
    }
}

fn full(connection: &Connection) -> Failure {
    let path = PathBuf::from(connection.path().unwrap_or_default());
    MessagingError::Busy { source: Arc::new(FileError::Full(path)) }.into()
}

/// How many bytes there are beyond the headroom, which is at most a tenth of all.
fn measure(connection: &Connection, headroom: u64) -> rusqlite::Result<u64> {
    let pragma = |name: &str| -> rusqlite::Result<u64> {
        let mut statement = connection.prepare_cached(&format!("pragma {name}"))?;
        Ok(statement.query_row([], |row| row.get::<_, i64>(0))?.max(0).cast_unsigned())
    };
    let page = pragma("page_size")?;
    // Pages that were used before are used again, and the file does not grow.
    let free = pragma("freelist_count")?.saturating_mul(page);
    let (most, count) = (pragma("max_page_count")?, pragma("page_count")?);
    let beyond = |available: u64, all: u64| available.saturating_add(free).saturating_sub(headroom.min(all / 10));
    let pages = beyond(most.saturating_sub(count).saturating_mul(page), most.saturating_mul(page));
    // Where it cannot be asked, SQLite is what says that the disk is full.
    let disk = connection.path().and_then(|path| Some((statvfs(path).ok()?, std::fs::metadata(path).ok()?.len())));
    Ok(disk.map_or(pages, |(disk, length)| {
        let bytes = |blocks| bytes(blocks, disk.fragment_size());
        // Pages that are in the log alone: the file grows by them when the log is worked into it.
        let owed = count.saturating_mul(page).saturating_sub(length);
        pages.min(beyond(bytes(disk.blocks_available()).saturating_sub(owed), bytes(disk.blocks())))
    }))
}

/// The types of both numbers depend on the system.
fn bytes(blocks: impl Into<u64>, size: impl Into<u64>) -> u64 {
    blocks.into().saturating_mul(size.into())
}
