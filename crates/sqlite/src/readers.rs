//! A small pool of connections that only read, used on blocking threads. Readers and the writer never wait for each
//! other.

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

/// Upper bound of open readers; each holds a few file descriptors and up to two megabytes of pages.
const MAX_READERS: usize = 4;

#[derive(Debug)]
pub(crate) struct Readers {
    path: PathBuf,
    /// How long a query waits while another process recovers the file.
    timeout: Duration,
    idle: Mutex<Idle>,
    /// A permit for each connection that may be in use.
    permits: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Idle {
    readers: Vec<Reader>,
    /// Number of times that all readers were closed. A reader of an earlier generation is not kept.
    generation: u64,
}

#[derive(Debug)]
struct Reader {
    connection: Connection,
    /// The file that the connection has open; the name may belong to another file by now.
    file: Identity,
    generation: u64,
}

impl Readers {
    pub(crate) fn new(path: PathBuf, timeout: Duration) -> Self {
        Self { path, timeout, idle: Mutex::default(), permits: Arc::new(Semaphore::new(MAX_READERS)) }
    }

    /// Runs a query in one read transaction: everything that it reads belongs to one moment.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        deadline: Deadline,
        query: impl FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, MessagingError> {
        let too_late = || MessagingError::DeadlineExceeded { operation };
        let closed = || MessagingError::Closed { provider: PROVIDER };
        let permit = deadline.limit(self.permits.clone().acquire_owned()).await.ok_or_else(too_late)?;
        let permit = permit.map_err(|_| closed())?;
        let readers = self.clone();
        let run = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            readers.run(operation, query)
        });
        deadline.limit(run).await.ok_or_else(too_late)?.unwrap_or_else(|_| Err(closed()))
    }

    fn run<T>(
        &self,
        operation: &'static str,
        query: impl FnOnce(&Connection) -> Result<T, Failure>,
    ) -> Result<T, MessagingError> {
        let reader = self.ready(operation)?;
        let connection = &reader.connection;
        let failed = |failure| match failure {
            Failure::Refused(error) => error,
            Failure::Sql(error) => not_done(&self.path, operation, error),
        };
        postrider_core::failpoint::reach("sqlite.read");
        connection.execute_batch("begin").map_err(|error| not_done(&self.path, operation, error))?;
        let answer = query(connection).map_err(failed);
        // A connection that failed is not used again; the next query opens a new one.
        let ended = connection.execute_batch("commit");
        if ended.is_ok() && !matches!(answer, Err(MessagingError::Provider { .. })) {
            let mut idle = self.idle();
            if idle.generation == reader.generation {
                idle.readers.push(reader);
            }
        }
        answer
    }

    /// A reader of the file that has the name now; a reader of a removed or replaced file would return old data.
    fn ready(&self, operation: &'static str) -> Result<Reader, MessagingError> {
        let gone = || FileError::Gone(self.path.clone()).into_error(operation);
        let file = Identity::of(&self.path).ok_or_else(gone)?;
        let mut idle = self.idle();
        let (usable, stale) = std::mem::take(&mut idle.readers).into_iter().partition(|reader| reader.file == file);
        idle.readers = usable;
        let (reader, generation) = (idle.readers.pop(), idle.generation);
        drop(idle);
        // Closed outside the mutex, because a close may take a while.
        drop::<Vec<_>>(stale);
        match reader {
            Some(reader) => Ok(reader),
            None => {
                let connection = open_reader(&self.path, self.timeout).map_err(|error| error.into_error(operation))?;
                Ok(Reader { connection, file, generation })
            }
        }
    }

    /// Closes the idle readers. Running queries close theirs when they end.
    pub(crate) fn close(&self) {
        let mut idle = self.idle();
        idle.generation += 1;
        let closing = std::mem::take(&mut idle.readers);
        drop(idle);
        drop(closing);
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        // A panic cannot leave the list half changed: it changes by single pushes and pops.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_query_that_ends_after_the_close_keeps_no_reader_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queues.db");
        Connection::open(&path).unwrap().execute_batch("create table x (y)").unwrap();
        let readers = Arc::new(Readers::new(path, Duration::from_secs(1)));
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (finish, may_finish) = std::sync::mpsc::channel();
        let query = {
            let readers = readers.clone();
            tokio::spawn(async move {
                let query = move |_: &Connection| {
                    begun.send(()).unwrap();
                    may_finish.recv().unwrap();
                    Ok(())
                };
                readers.read("test", Deadline::default(), query).await
            })
        };
        has_begun.await.unwrap();
        readers.close();
        finish.send(()).unwrap();
        query.await.unwrap().unwrap();
        assert_eq!(readers.idle().readers.len(), 0);
        readers.read("test", Deadline::default(), |_| Ok(())).await.unwrap();
        assert_eq!(readers.idle().readers.len(), 1, "a reader of the new generation is kept");
    }
}
