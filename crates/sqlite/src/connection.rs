//! Opens connections to the file, and waits for the one write lock.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{FileError, SharedError, is_busy};
use crate::location;
use crate::lock_queue::LockQueue;
use crate::options::{Durability, SqliteOptions};

/// Capacity of the statement cache: more than there are statements, so that none is prepared twice.
const STATEMENTS: usize = 160;

/// Whether to create a missing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Refuse,
}

/// Opens a connection that writes. It changes nothing in the file except that it switches on the write-ahead log.
pub(crate) fn open_writer(path: &Path, options: &SqliteOptions, missing: Missing) -> Result<Connection, FileError> {
    let timeout = options.lock_timeout;
    let connection = open(path, missing, timeout)?;
    configure(&connection, options).map_err(|error| explain(path, timeout, error))?;
    use_write_ahead_log(&connection, path, options.lock_timeout)?;
    Ok(connection)
}

/// Opens a connection that only reads. It waits only while another process recovers the file after a crash or has the
/// file locked exclusively.
pub(crate) fn open_reader(path: &Path, timeout: Duration) -> Result<Connection, FileError> {
    let connection = open(path, Missing::Refuse, timeout)?;
    let configured = connection.execute_batch("pragma query_only = on; pragma cache_size = -2000");
    configured.map_err(|error| explain(path, timeout, error))?;
    Ok(connection)
}

fn open(path: &Path, missing: Missing, timeout: Duration) -> Result<Connection, FileError> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if missing == Missing::Create {
        location::make(path);
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let connection = Connection::open_with_flags(path, flags).map_err(|error| explain(path, timeout, error))?;
    connection.busy_timeout(timeout).map_err(|error| explain(path, timeout, error))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // A plan must not depend on the bound values: the plans are tested, and SQLite would prepare a statement again for
    // every new time that it compares with.
    let configured = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
    configured.map_err(|error| explain(path, timeout, error))?;
    // SQLite opens a file without write permission read-only and reports no error.
    if connection.is_readonly("main").map_err(|error| explain(path, timeout, error))? {
        return Err(FileError::ReadOnly(path.to_owned()));
    }
    Ok(connection)
}

fn configure(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    let synchronous = match options.durability {
        Durability::PowerLoss => "full",
        Durability::ProcessCrashOnly => "normal",
    };
    // The writer checkpoints the log after it has answered, so that no caller waits for it.
    connection.execute_batch(&format!(
        "pragma synchronous = {synchronous}; pragma wal_autocheckpoint = 0; pragma cache_size = -16000; \
         pragma temp_store = memory; pragma journal_size_limit = {}",
        options.wal_limit_bytes
    ))
}

/// Switches on the write-ahead log. The switch needs an exclusive lock, so processes that open a new file together
/// queue.
fn use_write_ahead_log(connection: &Connection, path: &Path, timeout: Duration) -> Result<(), FileError> {
    let switch = || connection.query_row("pragma journal_mode = wal", [], |row| row.get::<_, String>(0));
    match wait_in_queue(connection, path, timeout, switch) {
        Ok(mode) if mode == "wal" => Ok(()),
        Ok(_) => Err(FileError::NoWriteAheadLog(path.to_owned())),
        Err(error) => Err(explain(path, timeout, error)),
    }
}

/// Waits in the lock queue only: if SQLite also waited, each attempt would take as long as the whole wait.
pub(crate) fn wait_in_queue<T>(
    connection: &Connection,
    path: &Path,
    timeout: Duration,
    attempt: impl FnMut() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.busy_timeout(Duration::ZERO)?;
    let result = LockQueue::new(path).wait(timeout, attempt);
    connection.busy_timeout(timeout)?;
    result
}

/// Takes the write lock.
///
/// `begin immediate`, because a transaction that begins by reading and then wants to write fails at once when another
/// process wrote in between, whatever the time-out.
pub(crate) fn begin(connection: &Connection, lock_queue: &LockQueue, timeout: Duration) -> rusqlite::Result<()> {
    lock_queue.wait(timeout, || begin_now(connection))
}

/// One attempt of [`begin`].
pub(crate) fn begin_now(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("begin immediate")?.execute([]).map(|_| ())
}

/// Why the write lock was not acquired.
pub(crate) fn begin_error(path: &Path, waited: Duration, error: rusqlite::Error) -> SharedError {
    if is_busy(&error) {
        return FileError::Locked { path: path.to_owned(), waited }.into();
    }
    SharedError::new(path, error)
}

/// The meaning of an error before the file was first used. A busy file was waited for during all of `timeout`.
pub(crate) fn explain(path: &Path, timeout: Duration, error: rusqlite::Error) -> FileError {
    let path: PathBuf = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => FileError::NotADatabase(path),
        Some(ErrorCode::ReadOnly) => FileError::ReadOnly(path),
        Some(ErrorCode::DiskFull) => FileError::NoRoom(path),
        Some(ErrorCode::SystemIoFailure) => FileError::Disk { path, detail: error.to_string() },
        Some(ErrorCode::DatabaseCorrupt) => FileError::Damaged { path, detail: error.to_string() },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => FileError::Locked { path, waited: timeout },
        _ => FileError::CannotOpen { path, detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::{migrations, sql};

    #[test]
    fn a_statement_is_prepared_once_for_all_times() {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::default();
        let path = folder.path().join("queues.db");
        let connection = open_writer(&path, &options, Missing::Create).unwrap();
        migrations::apply(&connection, &path, &options).unwrap();
        let mut due = connection.prepare(sql::DUE).unwrap();
        for now in 1..10_i64 {
            assert!(due.query(("orders", 4, now, 10)).unwrap().next().unwrap().is_none());
        }
        assert_eq!(due.get_status(StatementStatus::RePrepare), 0);
    }
}
