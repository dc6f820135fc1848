//! What the writer does between transactions: it works the write-ahead log into the file, and removes what has been
//! archived for long enough.
//!
//! Both come after the answers, so that no caller waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rusqlite::{Connection, wal::CheckpointMode};

use super::Writer;
use crate::connection::begin;
use crate::options::SqliteOptions;
use crate::session::Session;

/// How long after the last look old archived rows are looked for, when there was nothing to remove.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The same while there is more to remove.
const SWEEP_AGAIN: Duration = Duration::from_millis(250);

/// So many archived rows are removed at a time.
pub(crate) const SWEEP_ROWS: usize = 1000;

pub(super) struct Upkeep {
    /// How many pages the log has, as SQLite said at the last commit.
    log_pages: Arc<AtomicI32>,
    /// From how many pages on it is worked into the file: half of the limit, because it can only start over when no
    /// reader is in it.
    checkpoint_pages: i32,
    limit_bytes: u64,
    retention: Duration,
    next_sweep: Instant,
    sweeps: bool,
}

impl Upkeep {
    pub(super) fn new(options: &SqliteOptions) -> Self {
        Self {
            log_pages: Arc::default(),
            checkpoint_pages: i32::MAX,
            limit_bytes: options.wal_limit_bytes,
            retention: options.archive_retention,
            next_sweep: Instant::now(),
            sweeps: true,
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

    /// Removes a chunk of old archived rows. What fails is tried again later; nobody waits for it.
    fn sweep(&mut self, connection: &Connection) {
        let removed = self.sweep_once(connection);
        if !connection.is_autocommit() {
            let _ = connection.execute_batch("rollback");
        }
        let again = matches!(removed, Ok(rows) if rows as usize == SWEEP_ROWS);
        self.upkeep.next_sweep = Instant::now() + if again { SWEEP_AGAIN } else { SWEEP_EVERY };
    }

    fn sweep_once(&mut self, connection: &Connection) -> rusqlite::Result<u64> {
        begin(connection, &self.turns, Duration::from_millis(20))?;
        let now = self.desk.options.clock.now();
        let mut session = Session::new(connection, &self.desk.rules, &mut self.memory, now);
        let removed = session.sweep_archive(self.upkeep.retention, SWEEP_ROWS)?;
        connection.execute_batch("commit")?;
        Ok(removed)
    }
}
