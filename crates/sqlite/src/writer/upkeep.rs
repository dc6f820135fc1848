//! What the writer does between transactions: it works the write-ahead log into the file, and removes what has been
//! archived for long enough.
//!
//! Both come after the answers, so that no caller waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use postrider_core::ArchivePolicy;
use rusqlite::{Connection, wal::CheckpointMode};

use super::Writer;
use crate::archive::{self, Sweep};
use crate::connection::begin;
use crate::error::is_busy;
use crate::options::SqliteOptions;
use crate::room::{self, TRUSTED_FOR};
use crate::session::Session;

/// How long after the last look old archived rows are looked for, when there was nothing to remove.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The same while there is more to remove, or the lock could not be had.
const SWEEP_AGAIN: Duration = Duration::from_millis(250);

/// So many archived rows are removed at a time: every other process waits for the lock.
const SWEEP_ROWS: usize = 1000;

pub(super) struct Upkeep {
    /// How many pages the log has, as SQLite said at the last commit.
    log_pages: Arc<AtomicI32>,
    /// From how many pages on it is worked into the file: half of the limit, because it can only start over when no
    /// reader is in it.
    checkpoint_pages: i32,
    limit_bytes: u64,
    retention: Duration,
    /// Whether this process adds to the archive.
    archives: bool,
    next_sweep: Instant,
    /// Where the next look begins: behind rows that a wrong clock put before older ones.
    sweep_after: i64,
    /// Twice the rows that were archived since the last sweep that left nothing. As long as there is such a debt, sweeps
    /// follow each other closely, or the archive would grow faster than it is removed.
    debt: u64,
    sweeps: bool,
    /// When the room on the disk was last looked at, and whether it was short.
    disk: (Option<Instant>, bool),
}

impl Upkeep {
    pub(super) fn new(options: &SqliteOptions) -> Self {
        Self {
            log_pages: Arc::default(),
            checkpoint_pages: i32::MAX,
            limit_bytes: options.wal_limit_bytes,
            retention: options.archive_retention,
            archives: options.archive != ArchivePolicy::None,
            next_sweep: Instant::now(),
            sweep_after: 0,
            debt: 0,
            sweeps: true,
            disk: (None, false),
        }
    }

    /// Hears of the log's length on this connection.
    pub(super) fn watch(&mut self, connection: &mut Connection) {
        // Another program that made the file may have chosen another size.
        let page_bytes = connection.pragma_query_value(None, "page_size", |row| row.get::<_, i64>(0)).unwrap_or(4096);
        let pages = self.limit_bytes / page_bytes.max(512).unsigned_abs() / 2;
        self.checkpoint_pages = i32::try_from(pages.max(100)).unwrap_or(i32::MAX);
        let pages = self.log_pages.clone();
        // Without it the log is still worked in when the file is closed.
        let _ = connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, log_pages: i32| {
            pages.store(log_pages, Ordering::Relaxed);
            Ok(())
        }));
    }

    /// Rows were put into the archive: there will be something to remove.
    pub(super) fn archived(&mut self, rows: u64) {
        self.sweeps |= rows > 0;
        self.debt = self.debt.saturating_add(rows.saturating_mul(2));
    }

    /// How long after this sweep the next one is due.
    fn swept(&mut self, sweep: &rusqlite::Result<Sweep>) -> Duration {
        match sweep {
            Ok(Sweep { removed, next: Some(next) }) => {
                self.debt = self.debt.saturating_sub(*removed);
                self.sweep_after = *next;
                if self.debt > 0 { Duration::ZERO } else { SWEEP_AGAIN }
            }
            Ok(Sweep { next: None, .. }) => {
                (self.debt, self.sweep_after) = (0, 0);
                SWEEP_EVERY
            }
            Err(error) if is_busy(error) => SWEEP_AGAIN,
            Err(_) => SWEEP_EVERY,
        }
    }

    /// How long until there is something to do.
    pub(super) fn next(&self) -> Duration {
        if self.sweeps { self.next_sweep.saturating_duration_since(Instant::now()) } else { SWEEP_EVERY }
    }
}

impl Writer {
    pub(super) fn keep_up(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        self.checkpoint(&connection);
        if self.upkeep.sweeps && self.upkeep.next_sweep <= Instant::now() {
            self.sweep(&connection);
        }
        self.connection = Some(connection);
    }

    fn checkpoint(&mut self, connection: &Connection) {
        let pages = self.upkeep.log_pages.load(Ordering::Relaxed);
        if pages == 0 {
            return;
        }
        if self.is_disk_short() {
            if connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE).is_ok() {
                self.upkeep.log_pages.store(0, Ordering::Relaxed);
            }
            return;
        }
        if pages < self.upkeep.checkpoint_pages {
            return;
        }
        // Passive waits for nobody. When readers have kept the log from starting over for too long, one that asks for
        // the log to itself is tried as well; it fails at once when somebody is in it.
        let is_long = pages >= self.upkeep.checkpoint_pages.saturating_mul(2);
        let mode = if is_long { CheckpointMode::RESTART } else { CheckpointMode::PASSIVE };
        if connection.wal_checkpoint_v2(None::<&str>, mode).is_ok() {
            self.upkeep.log_pages.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the disk was almost full at the last look, which is taken now and then.
    fn is_disk_short(&mut self) -> bool {
        let now = Instant::now();
        let (seen, is_short) = self.upkeep.disk;
        if seen.is_some_and(|seen| now.duration_since(seen) < TRUSTED_FOR) {
            return is_short;
        }
        let is_short = room::is_short(&self.desk.path, self.desk.rules.headroom);
        self.upkeep.disk = (Some(now), is_short);
        is_short
    }

    /// Removes a chunk of old archived rows. What fails is tried again later; nobody waits for it.
    fn sweep(&mut self, connection: &Connection) {
        let swept = self.sweep_once(connection);
        if !connection.is_autocommit() {
            let _ = connection.execute_batch("rollback");
        }
        self.upkeep.next_sweep = Instant::now() + self.upkeep.swept(&swept);
    }

    fn sweep_once(&mut self, connection: &Connection) -> rusqlite::Result<Sweep> {
        let (retention, after) = (self.upkeep.retention, self.upkeep.sweep_after);
        // Looked at without the lock first: a process that has nothing to remove takes it from nobody.
        let looked = archive::look(connection, self.desk.options.clock.now(), retention, SWEEP_ROWS, after)?;
        if !looked.has_old() {
            if looked.is_empty && after == 0 {
                // Until this process archives something itself.
                self.upkeep.sweeps = self.upkeep.archives;
            }
            return Ok(Sweep { removed: 0, next: looked.next });
        }
        begin(connection, &self.turns, Duration::from_millis(20))?;
        let now = self.desk.options.clock.now();
        let mut session = Session::new(connection, &self.desk.rules, &mut self.memory, now);
        let sweep = session.sweep_archive(retention, SWEEP_ROWS, after)?;
        connection.execute_batch("commit")?;
        Ok(sweep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_remove_faster_than_rows_are_archived() {
        let mut upkeep = Upkeep::new(&SqliteOptions::default());
        let full = |next| Ok(Sweep { removed: SWEEP_ROWS as u64, next: Some(next) });
        assert_eq!(upkeep.swept(&full(1000)), SWEEP_AGAIN, "a backlog alone is no hurry");
        upkeep.archived(1500);
        assert_eq!(upkeep.swept(&full(2000)), Duration::ZERO);
        assert_eq!(upkeep.swept(&full(3000)), Duration::ZERO);
        assert_eq!(upkeep.swept(&full(4000)), SWEEP_AGAIN);
        assert_eq!(upkeep.sweep_after, 4000);
        upkeep.archived(1500);
        assert_eq!(upkeep.swept(&Ok(Sweep { removed: 3, next: None })), SWEEP_EVERY);
        assert_eq!((upkeep.debt, upkeep.sweep_after), (0, 0), "the next look begins at the oldest again");
        let busy = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY), None);
        assert_eq!(upkeep.swept(&Err(busy)), SWEEP_AGAIN);
    }
}
