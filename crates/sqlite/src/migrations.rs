//! The migrations of the schema.
//!
//! Applied migrations are recorded in a table and not in `user_version`, which belongs to the owner of a shared file. A
//! migration names the oldest schema version whose programs still work with it: an older program opens a newer file
//! when all newer migrations allow it, so that programs of two versions can run side by side during an upgrade.

use std::path::Path;

use postrider_core::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use crate::connection::{begin_now, explain, wait_in_queue};
use crate::error::FileError;
use crate::options::SqliteOptions;

/// The `application_id` in the header of our files: "PRdr".
const APPLICATION_ID: i64 = 0x5052_6472;

const CREATE_RECORD: &str = "create table if not exists postrider_migration (version integer not null primary key, \
     name text not null, works_since integer not null, applied_at integer not null)";

/// A migration of the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Its number; migrations are applied in this order.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub sql: &'static str,
    /// The schema version of the oldest program that can work with the file afterwards.
    pub works_since: i64,
}

const ALL: &[Migration] = &[
    Migration { version: 1, name: "0001_queue", sql: include_str!("../sql/migrations/0001_queue.sql"), works_since: 1 },
    Migration {
        version: 2,
        name: "0002_idempotency",
        sql: include_str!("../sql/migrations/0002_idempotency.sql"),
        works_since: 1,
    },
    Migration { version: 3, name: "0003_task", sql: include_str!("../sql/migrations/0003_task.sql"), works_since: 1 },
    Migration {
        version: 4,
        name: "0004_state_record",
        sql: include_str!("../sql/migrations/0004_state_record.sql"),
        works_since: 1,
    },
    Migration {
        version: 5,
        name: "0005_failed_attempt",
        sql: include_str!("../sql/migrations/0005_failed_attempt.sql"),
        works_since: 1,
    },
    Migration {
        version: 6,
        name: "0006_archive_search",
        sql: include_str!("../sql/migrations/0006_archive_search.sql"),
        works_since: 1,
    },
];

const KNOWN: i64 = ALL[ALL.len() - 1].version;

/// Every migration that this program has.
pub(crate) fn all() -> &'static [Migration] {
    ALL
}

/// The migrations that a file lacks. Refuses a file of another program and one that is too new.
pub(crate) fn pending(
    connection: &Connection,
    path: &Path,
    options: &SqliteOptions,
) -> Result<Vec<Migration>, FileError> {
    let applied = applied(connection, path, options)?;
    let newest = applied.iter().map(|(version, _)| *version).max().unwrap_or(0);
    if applied.iter().any(|(version, works_since)| *version > KNOWN && *works_since > KNOWN) {
        return Err(FileError::TooNew { path: path.to_owned(), found: newest, known: KNOWN });
    }
    Ok(ALL.iter().filter(|step| !applied.iter().any(|(version, _)| *version == step.version)).copied().collect())
}

/// Applies the missing migrations, all or none, and returns them.
pub(crate) fn apply(
    connection: &Connection,
    path: &Path,
    options: &SqliteOptions,
) -> Result<Vec<Migration>, FileError> {
    // A file that lacks nothing is opened without the write lock.
    if pending(connection, path, options)?.is_empty() {
        return Ok(Vec::new());
    }
    let timeout = options.lock_timeout;
    let begun = wait_in_queue(connection, path, timeout, || begin_now(connection));
    begun.map_err(|error| explain(path, timeout, error))?;
    // Read again inside the transaction: another process may have been faster.
    let result = pending(connection, path, options).and_then(|steps| {
        for step in &steps {
            run(connection, step).map_err(|source| FileError::Migration {
                path: path.to_owned(),
                name: step.name,
                source,
            })?;
        }
        connection.execute_batch("commit").map_err(|error| explain(path, timeout, error))?;
        Ok(steps)
    });
    if !connection.is_autocommit() {
        // The call has failed already; a failed rollback leaves the file unchanged too.
        let _ = connection.execute_batch("rollback");
    }
    result
}

fn run(connection: &Connection, step: &Migration) -> rusqlite::Result<()> {
    let is_empty =
        |c: &Connection| c.query_row("select count(*) = 0 from sqlite_schema", [], |row| row.get::<_, bool>(0));
    if is_empty(connection)? {
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    connection.execute_batch(CREATE_RECORD)?;
    connection.execute_batch(step.sql)?;
    connection.execute(
        "insert into postrider_migration (version, name, works_since, applied_at) values (?1, ?2, ?3, ?4)",
        (step.version, step.name, step.works_since, Timestamp::now().as_micros()),
    )?;
    Ok(())
}

/// The applied migrations: each version, and the oldest version whose programs work with it.
fn applied(connection: &Connection, path: &Path, options: &SqliteOptions) -> Result<Vec<(i64, i64)>, FileError> {
    let read = || -> rusqlite::Result<Option<Vec<(i64, i64)>>> {
        // One read transaction for all of it: another process may be creating the tables.
        let _transaction = connection.is_autocommit().then(|| connection.unchecked_transaction()).transpose()?;
        let is_ours = connection
            .query_row("select 1 from sqlite_schema where name = 'postrider_migration'", [], |_| Ok(()))
            .optional()?;
        if is_ours.is_none() {
            let id: i64 = connection.query_row("pragma application_id", [], |row| row.get(0))?;
            let tables: i64 = connection.query_row("select count(*) from sqlite_schema", [], |row| row.get(0))?;
            let is_new = id == 0 && tables == 0;
            return Ok((is_new || options.share_file).then(Vec::new));
        }
        let mut statement = connection.prepare("select version, works_since from postrider_migration")?;
        let rows = statement.query_map([], |row| Ok((row.get("version")?, row.get("works_since")?)))?;
        rows.collect::<rusqlite::Result<Vec<_>>>().map(Some)
    };
    match read() {
        Ok(Some(applied)) => Ok(applied),
        Ok(None) => Err(FileError::Foreign(path.to_owned())),
        Err(error) => Err(explain(path, options.lock_timeout, error)),
    }
}
