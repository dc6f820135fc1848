//! One transaction for everything that waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use postrider_core::{MessagingError, QueueName, Timestamp, failpoint};
use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;

use super::Writer;
#[cfg(test)]
use super::tests;
use super::work::{Undone, rejected};
use crate::connection::{Missing, begin, begin_trouble, open_writer};
use crate::error::{FileError, Trouble, concerns_everybody, is_full};
use crate::location::Identity;
use crate::session::Session;

/// A transaction takes on no more work after this long: other processes wait for the lock.
const LONGEST: Duration = Duration::from_millis(20);

/// How often a look is taken at whether the file still has its name.
const LOOK_FOR_FILE: Duration = Duration::from_millis(2);

/// How a transaction ended that was begun.
enum Ending {
    /// It is durable. So many jobs were in it.
    Committed { jobs: usize, touched: Vec<(QueueName, Timestamp)>, now: Timestamp },
    /// Nothing was done: one of this many jobs failed by itself.
    Spoiled { jobs: usize, error: rusqlite::Error },
    /// Nothing was done: the job at this place panicked.
    Panicked { at: usize },
    /// Nothing was done, for everybody.
    Failed(rusqlite::Error),
    /// Nobody knows what became of this many jobs.
    Unknown { jobs: usize, error: rusqlite::Error },
}

impl Writer {
    /// Does what waits, as much as goes into one transaction.
    pub(super) fn transact(&mut self) {
        let connection = match self.ready_connection() {
            Ok(connection) => connection,
            Err(error) => return self.fail_all(&error.into()),
        };
        if self.owes_checkpoint {
            self.owes_checkpoint = !empty_log(&connection);
        }
        let patience = self.desk.options.lock_timeout;
        failpoint::reach("sqlite.begin");
        if let Err(error) = begin(&connection, &self.turns, patience) {
            let is_broken = concerns_everybody(&error) && !crate::error::is_busy(&error);
            self.connection = Some(connection).filter(|_| !is_broken);
            let trouble = begin_trouble(&self.desk.path, patience, error);
            return self.fail_all(&trouble);
        }
        // More may have come while the lock was waited for.
        self.gather_work();
        let (ending, others_wrote) = match self.notice_others(&connection) {
            Ok(others_wrote) => (self.attempt(&connection), others_wrote),
            Err(error) => (Ending::Failed(error), false),
        };
        if !connection.is_autocommit() {
            // When even that fails, closing the connection does the same.
            let _ = connection.execute_batch("rollback");
        }
        self.end(connection, ending);
        if others_wrote {
            // Not before: nobody is woken while the lock is held.
            self.desk.wakes.tell_all();
        }
    }

    /// The connection, opened again if it was given up. A file that was removed or replaced under it is not written
    /// to: what is accepted there would be lost.
    fn ready_connection(&mut self) -> Result<Connection, FileError> {
        let path = &self.desk.path;
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
        let connection = open_writer(path, &self.desk.options, Missing::Refuse)?;
        if !crate::migrations::pending(&connection, path, &self.desk.options)?.is_empty() {
            return Err(FileError::Gone(path.clone()));
        }
        self.take(connection);
        // `take` has just put it there.
        self.connection.take().ok_or_else(|| FileError::Gone(self.desk.path.clone()))
    }

    fn attempt(&mut self, connection: &Connection) -> Ending {
        let began = Instant::now();
        let now = self.desk.options.clock.now();
        let most = if self.apart > 0 { 1 } else { usize::MAX };
        let mut session = Session::new(connection, &self.desk.rules, &mut self.memory, now);
        let mut jobs = 0;
        for job in self.jobs.iter_mut().take(most) {
            if !job.is_withdrawn() {
                match catch_unwind(AssertUnwindSafe(|| job.run(&mut session))) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) if concerns_everybody(&error) => return Ending::Failed(error),
                    Ok(Err(error)) => return Ending::Spoiled { jobs: jobs + 1, error },
                    Err(_) => return Ending::Panicked { at: jobs },
                }
            }
            jobs += 1;
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
        let commit = if self.memory.commit_fails { Err(tests::disk_failed()) } else { commit };
        match commit {
            Ok(_) => Ending::Committed { jobs, touched, now },
            // The end of the log could not be written, so the transaction is not in it.
            Err(error) if is_full(&error) => Ending::Failed(error),
            Err(error) if !connection.is_autocommit() && !concerns_everybody(&error) => Ending::Failed(error),
            // It may have reached the disk: whoever reads the log next decides.
            Err(error) => Ending::Unknown { jobs, error },
        }
    }

    fn end(&mut self, connection: Connection, ending: Ending) {
        match ending {
            Ending::Committed { jobs, touched, now } => {
                self.connection = Some(connection);
                self.apart = self.apart.saturating_sub(1);
                self.is_short_of_room &= self.apart > 0;
                let mut unclaimed = Vec::new();
                for job in self.jobs.drain(..jobs) {
                    unclaimed.extend(job.committed());
                }
                self.desk.wakes.tell(&touched, now);
                self.release(unclaimed);
            }
            Ending::Spoiled { jobs, error } => {
                self.connection = Some(connection);
                self.memory = Default::default();
                if jobs == 1 {
                    self.apart = self.apart.saturating_sub(1);
                    if let Some(job) = self.jobs.pop_front() {
                        let why = rejected(&self.desk.path, &*job, error);
                        job.undone(why);
                    }
                } else {
                    // Each gets a transaction of its own, so that the others do not fail with it.
                    self.apart = jobs;
                }
            }
            Ending::Panicked { at } => {
                self.connection = Some(connection);
                self.memory = Default::default();
                self.apart = self.apart.saturating_sub(1);
                // Dropped, it tells its caller that there will be no answer.
                drop(self.jobs.remove(at));
            }
            Ending::Failed(error) if is_full(&error) => self.make_do(connection, error),
            Ending::Failed(error) => {
                self.memory = Default::default();
                drop(connection);
                self.fail_all(&Trouble::new(&self.desk.path, error));
            }
            Ending::Unknown { jobs, error } => {
                self.memory = Default::default();
                drop(connection);
                let trouble = Trouble::new(&self.desk.path, error);
                for job in self.jobs.drain(..jobs) {
                    let why = Undone::Unknown(trouble.error(job.operation()));
                    job.undone(why);
                }
            }
        }
    }

    /// There was no room for a transaction, which is not the end of the connection. It is tried again without sends, then
    /// piece by piece; what has no room by itself is refused.
    fn make_do(&mut self, connection: Connection, error: rusqlite::Error) {
        self.memory = Default::default();
        self.memory.room.refuse();
        // What the log holds twice is given back, so that the next transaction may fit.
        self.owes_checkpoint = !empty_log(&connection);
        self.connection = Some(connection);
        if !self.is_short_of_room {
            self.is_short_of_room = true;
        } else if self.apart == 0 && self.jobs.len() > 1 {
            self.apart = self.jobs.len();
        } else if let Some(job) = self.jobs.pop_front() {
            self.apart = self.apart.saturating_sub(1);
            let trouble = Trouble::new(&self.desk.path, error);
            let refused = trouble.error(job.operation());
            job.undone(Undone::NotDone(refused));
        }
    }

    /// Tells everybody that nothing was done.
    fn fail_all(&mut self, trouble: &Trouble) {
        self.apart = 0;
        for job in self.jobs.drain(..) {
            let error: MessagingError = trouble.error(job.operation());
            job.undone(Undone::NotDone(error));
        }
    }

    /// Looks whether another connection has written since the last look.
    fn notice_others(&mut self, connection: &Connection) -> rusqlite::Result<bool> {
        let version = data_version(connection)?;
        let others_wrote = version != self.seen_version;
        if others_wrote {
            self.seen_version = version;
            self.memory.queues.clear();
        }
        Ok(others_wrote)
    }

    /// The same look while nothing is done here.
    pub(super) fn look_for_others(&mut self) {
        // Opened again if a transaction has failed: whoever waits must hear of others all the same. A look that fails is
        // taken again soon.
        let Ok(connection) = self.ready_connection() else { return };
        if self.notice_others(&connection).unwrap_or_default() {
            self.desk.wakes.tell_all();
        }
        self.connection = Some(connection);
    }
}

/// Works the log into the file and gives its room back; answers whether it could.
fn empty_log(connection: &Connection) -> bool {
    connection.wal_checkpoint_v2(None::<&str>, CheckpointMode::TRUNCATE).is_ok()
}

fn data_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("pragma data_version")?.query_row([], |row| row.get(0))
}
