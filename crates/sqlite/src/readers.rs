//! Connections that only read, a few of them, on threads that may block. They never wait for the writer, nor it for
//! them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider_core::{Deadline, MessagingError};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::PROVIDER;
use crate::connection::open_reader;
use crate::error::{Failure, FileError, not_done};
use crate::location::Identity;

/// Enough for tools; each is a few file descriptors and up to two megabytes of pages.
const MOST: usize = 4;

#[derive(Debug)]
pub(crate) struct Readers {
    path: PathBuf,
    /// How long a look waits while another process recovers the file.
    patience: Duration,
    idle: Mutex<Idle>,
    /// A permit for each connection that may be in use.
    permits: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Idle {
    readers: Vec<Reader>,
    /// How often everything was closed. A connection of an earlier round is not kept.
    round: u64,
}

#[derive(Debug)]
struct Reader {
    connection: Connection,
    /// The file that it reads, which may have lost its name since.
    file: Identity,
    round: u64,
}

impl Readers {
    pub(crate) fn new(path: PathBuf, patience: Duration) -> Self {
        Self { path, patience, idle: Mutex::default(), permits: Arc::new(Semaphore::new(MOST)) }
    }

    /// Runs a look in one read transaction: everything that it sees belongs to one moment.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        deadline: Deadline,
        look: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let too_late = || MessagingError::DeadlineExceeded { operation };
        let closed = || MessagingError::Closed { provider: PROVIDER };
        let permit = deadline.limit(self.permits.clone().acquire_owned()).await.ok_or_else(too_late)?;
        let permit = permit.map_err(|_| closed())?;
        let readers = self.clone();
        let run = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            readers.run(operation, look)
        });
        deadline.limit(run).await.ok_or_else(too_late)?.unwrap_or_else(|_| Err(closed()))
    }

    fn run<T>(
        &self,
        operation: &'static str,
        look: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, MessagingError> {
        let reader = self.ready(operation)?;
        let connection = &reader.connection;
        let failed = |failure| match failure {
            Failure::Law(error) => error,
            Failure::Sql(error) => not_done(&self.path, operation, error),
        };
        postrider_core::failpoint::reach("sqlite.read");
        connection.execute_batch("begin").map_err(|error| not_done(&self.path, operation, error))?;
        let answer = look(connection).map_err(failed);
        // A connection on which something failed is not used again; the next look opens a new one.
        let ended = connection.execute_batch("commit");
        if ended.is_ok() && !matches!(answer, Err(MessagingError::Provider { .. })) {
            let mut idle = self.idle();
            if idle.round == reader.round {
                idle.readers.push(reader);
            }
        }
        answer
    }

    /// A connection to the file that has the name now; one that was removed or replaced would answer with its past.
    fn ready(&self, operation: &'static str) -> Result<Reader, MessagingError> {
        let gone = || FileError::Gone(self.path.clone()).into_error(operation);
        let file = Identity::of(&self.path).ok_or_else(gone)?;
        let mut idle = self.idle();
        let (usable, stale) = std::mem::take(&mut idle.readers).into_iter().partition(|reader| reader.file == file);
        idle.readers = usable;
        let (reader, round) = (idle.readers.pop(), idle.round);
        drop(idle);
        // Closed outside the lock: it may take a while.
        drop::<Vec<_>>(stale);
        match reader {
            Some(reader) => Ok(reader),
            None => {
                let connection = open_reader(&self.path, self.patience).map_err(|error| error.into_error(operation))?;
                Ok(Reader { connection, file, round })
            }
        }
    }

    /// Closes what is open. Looks that are under way end by themselves.
    pub(crate) fn close(&self) {
        let mut idle = self.idle();
        idle.round += 1;
        let closing = std::mem::take(&mut idle.readers);
        drop(idle);
        drop(closing);
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        // A push or a pop leaves the list whole.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_look_that_ends_after_the_close_keeps_nothing_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queues.db");
        Connection::open(&path).unwrap().execute_batch("create table x (y)").unwrap();
        let readers = Arc::new(Readers::new(path, Duration::from_secs(1)));
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (finish, may_finish) = std::sync::mpsc::channel();
        let look = {
            let readers = readers.clone();
            tokio::spawn(async move {
                let look = move |_: &Connection| {
                    begun.send(()).unwrap();
                    may_finish.recv().unwrap();
                    Ok(())
                };
                readers.read("test", Deadline::default(), look).await
            })
        };
        has_begun.await.unwrap();
        readers.close();
        finish.send(()).unwrap();
        look.await.unwrap().unwrap();
        assert_eq!(readers.idle().readers.len(), 0);
        readers.read("test", Deadline::default(), |_| Ok(())).await.unwrap();
        assert_eq!(readers.idle().readers.len(), 1, "one of the next round is kept");
    }
}
