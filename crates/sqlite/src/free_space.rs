//! Free space on the disk. Sends are refused while some is left.
//!
//! Receives and acks write too: to the log, and sometimes to a new page of the file. The last free space is kept for
//! them, because they free space: a queue can be drained on a full disk, and sends succeed again afterwards. When other
//! programs use up that space, SQLite fails, and the transaction is repeated without its sends
//! (`writer/transaction.rs`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use postrider_core::MessagingError;
use rusqlite::Connection;

use crate::error::{Failure, FileError};

/// How long a measurement is valid.
const TRUSTED_FOR: Duration = Duration::from_millis(100);

/// How long sends are refused after SQLite found no free space.
const REFUSED_FOR: Duration = Duration::from_millis(500);

/// Size of a row besides its own bytes: a page in the worst case.
const PER_ROW: u64 = 4096;

/// The last measurement of the free space.
#[derive(Debug, Default)]
pub(crate) struct FreeSpace {
    measured: Option<Measured>,
    refused_until: Option<Instant>,
}

#[derive(Debug)]
struct Measured {
    at: Instant,
    /// Bytes that may be added before the next measurement.
    left: u64,
}

impl FreeSpace {
    /// Refuses sends for a moment, because SQLite found no free space.
    pub(crate) fn refuse(&mut self) {
        *self = Self { measured: None, refused_until: Some(Instant::now() + REFUSED_FOR) };
    }

    /// Reserves space for a row of this size; refuses it when only the headroom is left.
    pub(crate) fn take(&mut self, connection: &Connection, headroom: u64, bytes: u64) -> Result<(), Failure> {
        let now = Instant::now();
        if self.refused_until.is_some_and(|until| now < until) {
            return Err(full(connection));
        }
        // Once in the log and once in the file.
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

/// Whether the disk is so full that the log must stay short: the file needs the space that the log takes.
pub(crate) fn is_short(path: &Path, headroom: u64) -> bool {
    statvfs(path).is_ok_and(|disk| {
        let bytes = |blocks| bytes(blocks, disk.fragment_size());
        bytes(disk.blocks_available()) < headroom.min(bytes(disk.blocks()) / 10).saturating_mul(2)
    })
}

#[cfg(test)]
impl FreeSpace {
    /// A measurement of unlimited space.
    pub(crate) fn plenty() -> Self {
        let at = Instant::now() + Duration::from_secs(3600);
        Self { measured: Some(Measured { at, left: u64::MAX }), refused_until: None }
    }
}

fn full(connection: &Connection) -> Failure {
    let path = PathBuf::from(connection.path().unwrap_or_default());
    MessagingError::Busy { source: Arc::new(FileError::Full(path)) }.into()
}

/// The free bytes beyond the headroom, which is at most a tenth of the disk.
fn measure(connection: &Connection, headroom: u64) -> rusqlite::Result<u64> {
    let pragma = |name: &str| -> rusqlite::Result<u64> {
        let mut statement = connection.prepare_cached(&format!("pragma {name}"))?;
        Ok(statement.query_row([], |row| row.get::<_, i64>(0))?.max(0).cast_unsigned())
    };
    let page = pragma("page_size")?;
    // Free pages are used again without growing the file.
    let free = pragma("freelist_count")?.saturating_mul(page);
    let (most, count) = (pragma("max_page_count")?, pragma("page_count")?);
    let beyond = |available: u64, all: u64| available.saturating_add(free).saturating_sub(headroom.min(all / 10));
    let pages = beyond(most.saturating_sub(count).saturating_mul(page), most.saturating_mul(page));
    // When the disk cannot be measured, SQLite's own error reports that it is full.
    let disk = connection.path().and_then(|path| Some((statvfs(path).ok()?, std::fs::metadata(path).ok()?.len())));
    Ok(disk.map_or(pages, |(disk, length)| {
        let bytes = |blocks| bytes(blocks, disk.fragment_size());
        // Pages that are only in the log: the file grows by them at the next checkpoint.
        let owed = count.saturating_mul(page).saturating_sub(length);
        pages.min(beyond(bytes(disk.blocks_available()).saturating_sub(owed), bytes(disk.blocks())))
    }))
}

/// Both arguments have different types on different systems.
fn bytes(blocks: impl Into<u64>, size: impl Into<u64>) -> u64 {
    blocks.into().saturating_mul(size.into())
}
