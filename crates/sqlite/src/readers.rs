//! Connections that only read, a few of them, on threads that may block. They never wait for the writer, nor it for
//! them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use postrider_core::{Deadline, MessagingError};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::PROVIDER;
use crate::connection::open_reader;
use crate::error::{Failure, not_done};

/// Enough for tools; each is a few file descriptors and up to two megabytes of pages.
const MOST: usize = 4;

#[derive(Debug)]
pub(crate) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    /// A permit for each connection that may be in use.
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, idle: Mutex::default(), permits: Arc::new(Semaphore::new(MOST)) }
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
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => open_reader(&self.path).map_err(|error| error.into_error(operation))?,
        };
        let failed = |failure| match failure {
            Failure::Law(error) => error,
            Failure::Sql(error) => not_done(operation, error),
        };
        connection.execute_batch("begin").map_err(|error| not_done(operation, error))?;
        let answer = look(&connection).map_err(failed);
        // A connection on which something failed is not used again; the next look opens a new one.
        let ended = connection.execute_batch("commit");
        if ended.is_ok() && !matches!(answer, Err(MessagingError::Provider { .. })) {
            self.idle().push(connection);
        }
        answer
    }

    /// Closes what is open. Looks that are under way end by themselves.
    pub(crate) fn close(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // A push or a pop leaves the list whole.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
