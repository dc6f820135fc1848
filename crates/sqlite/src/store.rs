//! What all connections to one file share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use postrider_core::{BoxFuture, Capabilities, Feature, MessagingError, Support};
use postrider_provider::Provider;
use rusqlite::Connection;

use crate::connection::{Missing, open_writer};
use crate::error::FileError;
use crate::location;
use crate::migrations::{self, Migration};
use crate::options::SqliteOptions;
use crate::provider;
use crate::readers::Readers;
use crate::session::Rules;
use crate::writer::{StoreContext, WriterHandle};
use crate::{PROVIDER, SqliteProvider};
use postrider_core::wakes::Wakes;

const OPEN: &str = "open the file";

/// A file that holds queues. Clones are the same store.
///
/// Several processes can have the file open at once, and one process can open it several times.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) context: StoreContext,
    pub(crate) readers: Arc<Readers>,
    /// The writer, while a connection is open.
    writer: Mutex<Weak<WriterHandle>>,
    /// The connection that the file was checked with; the first writer uses it.
    checked: Mutex<Option<Connection>>,
}

impl SqliteStore {
    /// Opens a file; creates it and applies missing migrations unless `auto_migrate` is off.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> BoxFuture<'static, Result<Self, MessagingError>> {
        let path = path.as_ref().to_owned();
        Box::pin(async move { blocking(OPEN, move || Self::open_now(&path, options)).await })
    }

    fn open_now(path: &Path, options: SqliteOptions) -> Result<Self, FileError> {
        let path = location::check(path)?;
        if !options.auto_migrate && !path.exists() {
            return Err(FileError::Missing(path));
        }
        let connection = open_checked(&path, &options)?;
        if options.auto_migrate {
            migrations::apply(&connection, &path, &options)?;
        } else {
            let missing = migrations::pending(&connection, &path, &options)?;
            if !missing.is_empty() {
                let missing = missing.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
                return Err(FileError::NeedsMigration { path, missing });
            }
        }
        let rules = Rules {
            capabilities: capabilities().with_limits(options.limits.clone()),
            create_queues: options.create_queues,
            archive: options.archive,
            worker: options.worker_name(),
            // The log can grow by this much before it is checkpointed.
            headroom: options.wal_limit_bytes,
        };
        let context =
            StoreContext { path: path.clone(), options, rules: Arc::new(rules), wakes: Arc::new(Wakes::default()) };
        let readers = Arc::new(Readers::new(path, context.options.lock_timeout));
        let shared = Shared { context, readers, writer: Mutex::default(), checked: Mutex::new(Some(connection)) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Every migration that this program has: those that a new file needs.
    pub fn all_migrations() -> Vec<Migration> {
        migrations::all().to_vec()
    }

    /// The migrations that a file lacks; all of them when it does not exist. Changes nothing.
    pub fn pending_migrations(
        path: impl AsRef<Path>,
        options: SqliteOptions,
    ) -> BoxFuture<'static, Result<Vec<Migration>, MessagingError>> {
        let path = path.as_ref().to_owned();
        Box::pin(async move {
            blocking(OPEN, move || {
                let path = location::check(&path)?;
                if !path.exists() {
                    return Ok(migrations::all().to_vec());
                }
                let connection = crate::connection::open_reader(&path, options.lock_timeout)?;
                migrations::pending(&connection, &path, &options)
            })
            .await
        })
    }

    /// Creates a missing file, applies its missing migrations and returns them.
    pub fn migrate(
        path: impl AsRef<Path>,
        options: SqliteOptions,
    ) -> BoxFuture<'static, Result<Vec<Migration>, MessagingError>> {
        let path = path.as_ref().to_owned();
        Box::pin(async move {
            blocking("migrate the file", move || {
                let path = location::check(&path)?;
                let connection = open_checked(&path, &options)?;
                migrations::apply(&connection, &path, &options)
            })
            .await
        })
    }

    /// Opens a connection. Each is closed separately; the file is closed with the last one.
    pub fn connect(&self) -> BoxFuture<'_, Result<SqliteProvider, MessagingError>> {
        Box::pin(async move {
            let store = self.clone();
            let writer = blocking(OPEN, move || store.writer()).await?;
            Ok(SqliteProvider(Provider::new(provider::Connection::new(self.clone(), writer))?))
        })
    }

    /// The file's full path.
    pub fn path(&self) -> &PathBuf {
        &self.shared.context.path
    }

    fn writer(&self) -> Result<Arc<WriterHandle>, FileError> {
        let mut writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = writer.upgrade() {
            return Ok(running);
        }
        let context = self.shared.context.clone();
        let checked = self.shared.checked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let connection = match checked {
            Some(connection) => connection,
            None => open_writer(&context.path, &context.options, Missing::Refuse)?,
        };
        let path = context.path.clone();
        let started = WriterHandle::start(context, connection)
            .map_err(|error| FileError::CannotOpen { path, detail: format!("no thread could be started: {error}") })?;
        let started = Arc::new(started);
        *writer = Arc::downgrade(&started);
        Ok(started)
    }
}

/// A connection that writes, to a new file or one of ours. Refuses a file of another program before it changes anything.
fn open_checked(path: &Path, options: &SqliteOptions) -> Result<Connection, FileError> {
    if path.exists() {
        let reader = crate::connection::open_reader(path, options.lock_timeout)?;
        migrations::pending(&reader, path, options)?;
    }
    open_writer(path, options, Missing::Create)
}

fn capabilities() -> Capabilities {
    Capabilities::native(PROVIDER).with(
        Feature::WakeUp,
        Support::emulated("messages of other processes are noticed by polling the file twenty times a second"),
    )
}

/// Runs file operations on a blocking thread.
async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, MessagingError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| error.into_error(operation)),
        Err(_) => Err(MessagingError::Closed { provider: PROVIDER }),
    }
}
