//! Runs the waiting calls in one transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use postrider_core::{MessagingError, QueueName, Timestamp, failpoint};
use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::Writer;
#[cfg(test)]
use super::tests;
use super::work::{WriteError, rejected};
use crate::connection::{Missing, begin, begin_error, open_writer};
use crate::error::{FileError, SharedError, concerns_file, is_full};
use crate::location::Identity;
use crate::session::Session;

/// Time after which a transaction takes no further calls: other processes wait for the lock.
const LONGEST: Duration = Duration::from_millis(20);

/// Interval at which the writer checks whether the file still has its name.
const LOOK_FOR_FILE: Duration = Duration::from_millis(2);

/// How a transaction ended.
enum Ending {
    /// It is durable, with the first `calls` calls.
    Committed { calls: usize, touched: Vec<(QueueName, Timestamp)>, now: Timestamp },
    /// Nothing was done: the last of the first `calls` calls failed by itself.
    Rejected { calls: usize, error: rusqlite::Error },
    /// Nothing was done: the call at this index panicked.
    Panicked { at: usize },
    /// Nothing was done, and no call is at fault.
    Failed(rusqlite::Error),
    /// The outcome of the first `calls` calls is unknown.
    Unknown { calls: usize, error: rusqlite::Error },
}

impl Writer {
    /// Runs waiting calls in one transaction, as many as fit.
    pub(super) fn transact(&mut self) {
        let connection = match self.ready_connection() {
            Ok(connection) => connection,
            Err(error) => return self.fail_all(&error.into()),
        };
        if self.needs_checkpoint {
            self.needs_checkpoint = !empty_log(&connection);
        }
        let timeout = self.context.options.lock_timeout;
        failpoint::reach("sqlite.begin");
        if let Err(error) = begin(&connection, &self.lock_queue, timeout) {
            let is_broken = concerns_file(&error) && !crate::error::is_busy(&error);
            self.connection = Some(connection).filter(|_| !is_broken);
            let shared = begin_error(&self.context.path, timeout, error);
            return self.fail_all(&shared);
        }
        // Further calls may have come while the writer waited for the lock.
        self.gather_work();
        let (ending, others_wrote) = match self.notice_others(&connection) {
            Ok(others_wrote) => (self.attempt(&connection), others_wrote),
            Err(error) => (Ending::Failed(error), false),
        };
        if !connection.is_autocommit() {
            // If the rollback fails, closing the connection has the same effect.
            let _ = connection.execute_batch("rollback");
        }
        self.end(connection, ending);
        if others_wrote {
            // Only now, because no receiver is woken while the lock is held.
            self.context.wakes.tell_all();
        }
    }

    /// The connection, opened again if it was dropped. A file that was removed or replaced is not written to: messages
    /// accepted there would be lost.
    fn ready_connection(&mut self) -> Result<Connection, FileError> {
        let path = &self.context.path;
        if self.identity_seen.elapsed() >= LOOK_FOR_FILE {
            self.identity_seen = Instant::now();
            if Identity::of(path) != self.identity {
                self.connection = None;
            }
        }
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        if Identity::of(path).is_none() {
            return Err(FileError::Gone(path.clone()));
        }
        let connection = open_writer(path, &self.context.options, Missing::Refuse)?;
        if !crate::migrations::pending(&connection, path, &self.context.options)?.is_empty() {
            return Err(FileError::Gone(path.clone()));
        }
        self.take(connection);
        // `take` has just stored it.
        self.connection.take().ok_or_else(|| FileError::Gone(self.context.path.clone()))
    }

    fn attempt(&mut self, connection: &Connection) -> Ending {
        let began = Instant::now();
        let now = self.context.options.clock.now();
        let max = if self.isolated > 0 { 1 } else { usize::MAX };
        let mut session = Session::new(connection, &self.context.rules, &mut self.cache, now);
        let mut calls = 0;
        for work in self.waiting.iter_mut().take(max) {
            if !work.can_be_skipped() {
                match catch_unwind(AssertUnwindSafe(|| work.run(&mut session))) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) if concerns_file(&error) => return Ending::Failed(error),
                    Ok(Err(error)) => return Ending::Rejected { calls: calls + 1, error },
                    Err(_) => return Ending::Panicked { at: calls },
                }
            }
            calls += 1;
            if began.elapsed() >= LONGEST {
                break;
            }
        }
        let archived = session.archived;
        let touched = session.into_touched();
        self.upkeep.archived(archived);
        failpoint::reach("sqlite.commit");
        let commit = connection.prepare_cached("commit").and_then(|mut commit| commit.execute([]));
        #[cfg(test)]
        let commit = if self.cache.commit_fails { Err(tests::disk_failed()) } else { commit };
        match commit {
            Ok(_) => Ending::Committed { calls, touched, now },
            // The commit record could not be written to the log, so the transaction is not in it.
            Err(error) if is_full(&error) => Ending::Failed(error),
            Err(error) if !connection.is_autocommit() && !concerns_file(&error) => Ending::Failed(error),
            // It may have reached the disk; the next connection that reads the log decides.
            Err(error) => Ending::Unknown { calls, error },
        }
    }

    fn end(&mut self, connection: Connection, ending: Ending) {
        match ending {
            Ending::Committed { calls, touched, now } => {
                self.connection = Some(connection);
                self.isolated = self.isolated.saturating_sub(1);
                self.is_full &= self.isolated > 0;
                let mut undelivered = Vec::new();
                for work in self.waiting.drain(..calls) {
                    undelivered.extend(work.committed());
                }
                self.context.wakes.tell(&touched, now);
                self.release(undelivered);
            }
            Ending::Rejected { calls, error } => {
                self.connection = Some(connection);
                self.cache = Default::default();
                if calls == 1 {
                    self.isolated = self.isolated.saturating_sub(1);
                    if let Some(work) = self.waiting.pop_front() {
                        let why = rejected(&self.context.path, &*work, error);
                        work.undone(why);
                    }
                } else {
                    // Each gets a transaction of its own, so that the others do not fail with it.
                    self.isolated = calls;
                }
            }
            Ending::Panicked { at } => {
                self.connection = Some(connection);
                self.cache = Default::default();
                self.isolated = self.isolated.saturating_sub(1);
                // Dropping the call closes its reply channel.
                drop(self.waiting.remove(at));
            }
            Ending::Failed(error) if is_full(&error) => self.retry_without_sends(connection, error),
            Ending::Failed(error) => {
                self.cache = Default::default();
                drop(connection);
                self.fail_all(&SharedError::new(&self.context.path, error));
            }
            Ending::Unknown { calls, error } => {
                self.cache = Default::default();
                drop(connection);
                let shared = SharedError::new(&self.context.path, error);
                for work in self.waiting.drain(..calls) {
                    let why = WriteError::Unknown(shared.error(work.operation()));
                    work.undone(why);
                }
            }
        }
    }

    /// After a transaction that found no free space: it is repeated without its sends, then call by call; a call that
    /// has no space by itself is refused. The connection stays usable.
    fn retry_without_sends(&mut self, connection: Connection, error: rusqlite::Error) {
        self.cache = Default::default();
        self.cache.free_space.refuse();
        // Emptying the log frees space, so that the next transaction may fit.
        self.needs_checkpoint = !empty_log(&connection);
        self.connection = Some(connection);
        if !self.is_full {
            self.is_full = true;
        } else if self.isolated == 0 && self.waiting.len() > 1 {
            self.isolated = self.waiting.len();
        } else if let Some(work) = self.waiting.pop_front() {
            self.isolated = self.isolated.saturating_sub(1);
            let shared = SharedError::new(&self.context.path, error);
            let refused = shared.error(work.operation());
            work.undone(WriteError::NotDone(refused));
        }
    }

    /// Answers every waiting call that nothing was done.
    fn fail_all(&mut self, shared: &SharedError) {
        self.isolated = 0;
        for work in self.waiting.drain(..) {
            let error: MessagingError = shared.error(work.operation());
            work.undone(WriteError::NotDone(error));
        }
    }

    /// Whether another connection has written since the last check.
    fn notice_others(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        let version = data_version(connection)?;
        let others_wrote = version != self.seen_version;
        if others_wrote {
            self.seen_version = version;
            self.cache.queues.clear();
        }
        Ok(others_wrote)
    }

    /// Wakes receivers if another process has written, while the writer is idle.
    pub(super) fn look_for_others(&mut self) {
        // Opened again if a transaction has failed, because receivers still wait for other processes. After an error
        // the next check follows soon.
        let Ok(connection) = self.ready_connection() else { return };
        if self.notice_others(&connection).unwrap_or_default() {
            self.context.wakes.tell_all();
        }
        self.connection = Some(connection);
    }
}

/// Checkpoints the log and truncates it; returns whether that succeeded.
fn empty_log(connection: &Connection) -> bool {
    connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE).is_ok()
}

fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("pragma data_version")?.query_row([], |row| row.get(0))
}
