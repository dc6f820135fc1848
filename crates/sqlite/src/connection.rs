//! Connections to the file, and how the one write lock is waited for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{FileError, Trouble, is_busy};
use crate::location;
use crate::options::{Durability, SqliteOptions};
use crate::turns::Turns;

/// More than there are, so that none is prepared twice.
const STATEMENTS: usize = 160;

/// Whether a file that is not there is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Refuse,
}

/// A connection that writes. Nothing in the file is changed by opening it, except that it uses a write-ahead log.
pub(crate) fn open_writer(path: &Path, options: &SqliteOptions, missing: Missing) -> Result<Connection, FileError> {
    let patience = options.lock_timeout;
    let connection = open(path, missing, patience)?;
    configure(&connection, options).map_err(|error| explain(path, patience, error))?;
    use_write_ahead_log(&connection, path, options.lock_timeout)?;
    Ok(connection)
}

/// A connection that only reads. It only ever waits while another process recovers the file after a crash, or has the
/// file to itself.
pub(crate) fn open_reader(path: &Path, patience: Duration) -> Result<Connection, FileError> {
    let connection = open(path, Missing::Refuse, patience)?;
    let configured = connection.execute_batch("pragma query_only = on; pragma cache_size = -2000");
    configured.map_err(|error| explain(path, patience, error))?;
    Ok(connection)
}

fn open(path: &Path, missing: Missing, patience: Duration) -> Result<Connection, FileError> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if missing == Missing::Create {
        location::make(path);
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let connection = Connection::open_with_flags(path, flags).map_err(|error| explain(path, patience, error))?;
    connection.busy_timeout(patience).map_err(|error| explain(path, patience, error))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // A plan must not depend on what is bound: the plans are tested, and SQLite would prepare a statement anew whenever
    // the time that it compares with is another one, which is always.
    let configured = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
    configured.map_err(|error| explain(path, patience, error))?;
    // SQLite opens what it may not write for reading, without a word.
    if connection.is_readonly("main").map_err(|error| explain(path, patience, error))? {
        return Err(FileError::ReadOnly(path.to_owned()));
    }
    Ok(connection)
}

fn configure(connection: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    let synchronous = match options.durability {
        Durability::PowerLoss => "full",
        Durability::ProcessCrashOnly => "normal",
    };
    // The writer works the log into the file itself, after it has answered, so that nobody waits for it.
    connection.execute_batch(&format!(
        "pragma synchronous = {synchronous}; pragma wal_autocheckpoint = 0; pragma cache_size = -16000; \
         pragma temp_store = memory; pragma journal_size_limit = {}",
        options.wal_limit_bytes
    ))
}

/// The switch needs the file for itself for a moment, so processes that open a new file together take turns.
fn use_write_ahead_log(connection: &Connection, path: &Path, patience: Duration) -> Result<(), FileError> {
    let switch = || connection.query_row("pragma journal_mode = wal", [], |row| row.get::<_, String>(0));
    match in_turn(connection, path, patience, switch) {
        Ok(mode) if mode == "wal" => Ok(()),
        Ok(_) => Err(FileError::NoWriteAheadLog(path.to_owned())),
        Err(error) => Err(explain(path, patience, error)),
    }
}

/// Waits in line, and not inside SQLite as well: each try would wait as long as the line does.
pub(crate) fn in_turn<T>(
    connection: &Connection,
    path: &Path,
    patience: Duration,
    attempt: impl FnMut() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.busy_timeout(Duration::ZERO)?;
    let result = Turns::new(path).wait(patience, attempt);
    connection.busy_timeout(patience)?;
    result
}

/// Takes the write lock.
///
/// `begin immediate`, because a transaction that begins by reading and then wants to write fails at once when another
/// process wrote in between, whatever the time-out.
pub(crate) fn begin(connection: &Connection, turns: &Turns, patience: Duration) -> rusqlite::Result<()> {
    turns.wait(patience, || begin_now(connection))
}

/// One try of [`begin`].
pub(crate) fn begin_now(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("begin immediate")?.execute([]).map(|_| ())
}

/// Why the write lock could not be had.
pub(crate) fn begin_trouble(path: &Path, waited: Duration, error: rusqlite::Error) -> Trouble {
    if is_busy(&error) {
        return FileError::Locked { path: path.to_owned(), waited }.into();
    }
    Trouble::new(path, error)
}

/// What an error means that comes before a file was ever used. A lock was waited for with all of `patience`.
pub(crate) fn explain(path: &Path, patience: Duration, error: rusqlite::Error) -> FileError {
    let path: PathBuf = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => FileError::NotADatabase(path),
        Some(ErrorCode::ReadOnly) => FileError::ReadOnly(path),
        Some(ErrorCode::DiskFull) => FileError::NoRoom(path),
        Some(ErrorCode::SystemIoFailure) => FileError::Disk { path, detail: error.to_string() },
        Some(ErrorCode::DatabaseCorrupt) => FileError::Damaged { path, detail: error.to_string() },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => FileError::Locked { path, waited: patience },
        _ => FileError::CannotOpen { path, detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::{migrations, sql};

    #[test]
    fn a_statement_is_prepared_once_whatever_times_it_is_asked_about() {
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
