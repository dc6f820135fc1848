//! Work between transactions: checkpoints of the write-ahead log, and the removal of old archived messages.
//!
//! Both run after the answers, so that no caller waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use postrider_core::ArchivePolicy;
use rusqlite::{Connection, wal::CheckpointMode};

use super::Writer;
use crate::archive::{self, Sweep};
use crate::connection::begin;
use crate::error::is_busy;
use crate::free_space;
use crate::options::SqliteOptions;
use crate::session::Session;

/// Interval between sweeps when there was nothing to remove.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Interval between sweeps while there is more to remove or another process holds the lock.
const SWEEP_AGAIN: Duration = Duration::from_millis(250);

/// Archived rows removed in one transaction: other processes wait for the lock.
const SWEEP_ROWS: usize = 1000;

pub(super) struct Upkeep {
    /// Pages of the log at the last commit.
    log_pages: Arc<AtomicI32>,
    /// Pages from which on the log is checkpointed: half of the limit, because the log can start over only while no
    /// reader uses it.
    checkpoint_pages: i32,
    limit_bytes: u64,
    retention: Duration,
    /// Whether this process adds to the archive.
    archives: bool,
    next_sweep: Instant,
    /// The row after which the next sweep begins: a wrong clock can put young rows before older ones.
    sweep_after: i64,
    /// Rows to remove before sweeps slow down: twice those archived since the last sweep that left nothing. Otherwise
    /// the archive would grow faster than it is swept.
    to_remove: u64,
    sweeps: bool,
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
            to_remove: 0,
            sweeps: true,
        }
    }

    /// Records the length of the log at every commit of this connection.
    pub(super) fn watch(&mut self, connection: &mut Connection) {
        // Another program may have created the file with another page size.
        let page_bytes = connection.pragma_query_value(None, "page_size", |row| row.get::<_, i64>(0)).unwrap_or(4096);
        let pages = self.limit_bytes / page_bytes.max(512).unsigned_abs() / 2;
        self.checkpoint_pages = i32::try_from(pages.max(100)).unwrap_or(i32::MAX);
        let pages = self.log_pages.clone();
        // Without the hook the log is still checkpointed when the file is closed.
        let _ = connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, log_pages: i32| {
            pages.store(log_pages, Ordering::Relaxed);
            Ok(())
        }));
    }

    /// Counts rows added to the archive, which must be removed later.
    pub(super) fn archived(&mut self, rows: u64) {
        self.sweeps |= rows > 0;
        self.to_remove = self.to_remove.saturating_add(rows.saturating_mul(2));
    }

    /// The time from this sweep to the next one.
    fn swept(&mut self, sweep: &rusqlite::Result<Sweep>) -> Duration {
        match sweep {
            Ok(Sweep { removed, next: Some(next) }) => {
                self.to_remove = self.to_remove.saturating_sub(*removed);
                self.sweep_after = *next;
                if self.to_remove > 0 { Duration::ZERO } else { SWEEP_AGAIN }
            }
            Ok(Sweep { next: None, .. }) => {
                (self.to_remove, self.sweep_after) = (0, 0);
                SWEEP_EVERY
            }
            Err(error) if is_busy(error) => SWEEP_AGAIN,
            Err(_) => SWEEP_EVERY,
        }
    }

    /// The time until the next sweep.
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
        // Checked after each transaction: a few of them can use up the free space in milliseconds.
        if free_space::is_short(&self.context.path, self.context.rules.headroom) {
            if connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE).is_ok() {
                self.upkeep.log_pages.store(0, Ordering::Relaxed);
            }
            return;
        }
        if pages < self.upkeep.checkpoint_pages {
            return;
        }
        // Passive mode never waits. When readers have kept the log from starting over for too long, restart mode is
        // tried, which fails at once while a reader uses the log.
        let is_long = pages >= self.upkeep.checkpoint_pages.saturating_mul(2);
        let mode = if is_long { CheckpointMode::RESTART } else { CheckpointMode::PASSIVE };
        if connection.wal_checkpoint_v2(None::<&str>, mode).is_ok() {
            self.upkeep.log_pages.store(0, Ordering::Relaxed);
        }
    }

    /// Removes a chunk of old archived rows. After an error the next sweep follows later; no caller waits for it.
    fn sweep(&mut self, connection: &Connection) {
        let swept = self.sweep_once(connection);
        if !connection.is_autocommit() {
            let _ = connection.execute_batch("rollback");
        }
        self.upkeep.next_sweep = Instant::now() + self.upkeep.swept(&swept);
    }

    fn sweep_once(&mut self, connection: &Connection) -> rusqlite::Result<Sweep> {
        let (retention, after) = (self.upkeep.retention, self.upkeep.sweep_after);
        // Read without the lock first: a process with nothing to remove must not take it from others.
        let old = archive::find_old(connection, self.context.options.clock.now(), retention, SWEEP_ROWS, after)?;
        if !old.has_any() {
            if old.is_empty && after == 0 {
                // No further sweeps until this process archives something itself.
                self.upkeep.sweeps = self.upkeep.archives;
            }
            return Ok(Sweep { removed: 0, next: old.next });
        }
        begin(connection, &self.lock_queue, Duration::from_millis(20))?;
        let now = self.context.options.clock.now();
        let mut session = Session::new(connection, &self.context.rules, &mut self.cache, now);
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
        assert_eq!(upkeep.swept(&full(1000)), SWEEP_AGAIN, "old rows alone are not urgent");
        upkeep.archived(1500);
        assert_eq!(upkeep.swept(&full(2000)), Duration::ZERO);
        assert_eq!(upkeep.swept(&full(3000)), Duration::ZERO);
        assert_eq!(upkeep.swept(&full(4000)), SWEEP_AGAIN);
        assert_eq!(upkeep.sweep_after, 4000);
        upkeep.archived(1500);
        assert_eq!(upkeep.swept(&Ok(Sweep { removed: 3, next: None })), SWEEP_EVERY);
        assert_eq!((upkeep.to_remove, upkeep.sweep_after), (0, 0), "the next sweep begins at the oldest row again");
        let busy = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY), None);
        assert_eq!(upkeep.swept(&Err(busy)), SWEEP_AGAIN);
    }
}
