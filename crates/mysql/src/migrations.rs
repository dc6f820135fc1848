//! Migrations of the schema.
//!
//! A migration names the oldest program that can work with it: an older program accepts a newer schema if all newer
//! migrations allow it, so programs of two versions can run side by side during an upgrade. Any number of processes may
//! migrate at once: a named lock admits one, and the others find nothing to do. The server commits each change of a
//! table at once, so each statement can run again after an interrupted migration.

use std::sync::Arc;

use postrider_core::{Deadline, MessagingError};
use postrider_provider::Undone;
use postrider_sql::stripes::fnv1a;

use crate::PROVIDER;
use crate::connection::{Database, Session};
use crate::literal;
use crate::rows;
use crate::sql::Schema;

/// The oldest supported servers.
const OLDEST_MARIADB: (u32, u32) = (10, 6);
const OLDEST_MYSQL: (u32, u32) = (8, 0);

/// Time limit, in seconds, to wait for another process that migrates.
const LOCK_PATIENCE: u32 = 25;

/// A migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its number; migrations are applied in this order.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// Its SQL, with the name of the database.
    pub sql: String,
    /// The schema version of the oldest program that can work with the database afterwards.
    pub works_since: i64,
}

struct Known {
    version: i64,
    name: &'static str,
    sql: &'static str,
    works_since: i64,
}

const ALL: &[Known] = &[
    Known { version: 1, name: "0001_queue", sql: include_str!("../sql/migrations/0001_queue.sql"), works_since: 1 },
    Known {
        version: 2,
        name: "0002_idempotency",
        sql: include_str!("../sql/migrations/0002_idempotency.sql"),
        works_since: 1,
    },
    Known {
        version: 3,
        name: "0003_failed_attempt",
        sql: include_str!("../sql/migrations/0003_failed_attempt.sql"),
        works_since: 1,
    },
    Known {
        version: 4,
        name: "0004_archive_search",
        sql: include_str!("../sql/migrations/0004_archive_search.sql"),
        works_since: 1,
    },
];

const KNOWN: i64 = ALL[ALL.len() - 1].version;

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SchemaError {
    #[error("the server is {found}; MariaDB 10.6 or MySQL 8.0, or newer, is required")]
    OldServer { found: String },
    #[error(
        "database '{schema}' has schema version {found} and this program supports version {known}; use a newer program, or \
         another database"
    )]
    TooNew { schema: String, found: i64, known: i64 },
    #[error(
        "database '{schema}' lacks the migrations {missing} and auto_migrate is off; apply them with `postrider migrate`"
    )]
    NeedsMigration { schema: String, missing: String },
    #[error("database '{schema}' has tables of another program; use another database")]
    Foreign { schema: String },
    #[error("another process is still migrating database '{schema}'; try again when it is done")]
    Busy { schema: String },
}

impl SchemaError {
    pub(crate) fn into_error(self, operation: &'static str) -> MessagingError {
        let retryable = matches!(self, Self::Busy { .. });
        MessagingError::Provider { provider: PROVIDER, operation, source: Arc::new(self), retryable }
    }
}

/// Returns every migration that this program knows.
pub(crate) fn all(schema: &Schema) -> Vec<Migration> {
    let step = |known: &Known| Migration {
        version: known.version,
        name: known.name,
        sql: script(schema, known),
        works_since: known.works_since,
    };
    ALL.iter().map(step).collect()
}

/// An index of a migration.
pub(crate) struct Index {
    pub(crate) table: String,
    pub(crate) name: String,
    /// Its definition in the table's statement.
    pub(crate) definition: String,
}

/// Returns every index in the table statements of the migrations.
pub(crate) fn indexes(schema: &Schema) -> Vec<Index> {
    let (mut found, mut table) = (Vec::new(), String::new());
    let owner = format!("create table if not exists {}.", schema.quoted());
    for step in all(schema) {
        for line in step.sql.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix(&owner).and_then(|rest| rest.split([' ', '(']).next()) {
                table = name.to_owned();
            }
            let rest = line.strip_prefix("unique ").unwrap_or(line);
            if let Some((name, _)) = rest.strip_prefix("index ").and_then(|rest| rest.split_once(' ')) {
                let definition = line.trim_end_matches(',').to_owned();
                found.push(Index { table: table.clone(), name: name.to_owned(), definition });
            }
        }
    }
    found
}

/// Returns the script of a migration, which an operator could run too, with its record.
fn script(schema: &Schema, known: &Known) -> String {
    let (version, name, works_since) = (known.version, known.name, known.works_since);
    let before = if version == 1 { CREATE_RECORD.replace("{schema}", &schema.quoted()) } else { String::new() };
    let record = format!(
        "insert ignore into {}.postrider_migration (version, name, works_since, applied_at) values \
         ({version}, '{name}', {works_since}, utc_timestamp(6));\n",
        schema.quoted()
    );
    let sql = known.sql.replace("{schema}", &schema.quoted()).replace("{schema_text}", &literal::text(schema.name()));
    format!("{before}{sql}\n{record}")
}

/// Returns the migrations that a database lacks. Refuses a server that is too old and a schema that is too new or
/// foreign.
pub(crate) async fn pending(
    database: &Database,
    operation: &'static str,
    deadline: Deadline,
) -> Result<Vec<Migration>, MessagingError> {
    let mut session = database.session(operation, deadline).await?;
    missing(&mut session, database, operation).await.map_err(Undone::into_harmless)
}

/// Applies the missing migrations. Returns them.
pub(crate) async fn apply(
    database: &Database,
    operation: &'static str,
    deadline: Deadline,
) -> Result<Vec<Migration>, MessagingError> {
    // Without the lock: most databases lack nothing.
    if pending(database, operation, deadline).await?.is_empty() {
        return Ok(Vec::new());
    }
    let mut session = database.session(operation, deadline).await?;
    // At most 64 characters, the same in every process.
    let lock = format!("'postrider_{:016x}'", fnv1a(database.schema.name().as_bytes()));
    let apply = async {
        let got = session.ask(format!("select get_lock({lock}, {LOCK_PATIENCE}) as is_locked")).await?.concat();
        if !got.first().is_some_and(|row| rows::flag(row, "is_locked")) {
            let schema = database.schema.name().to_owned();
            return Err(Undone::NotDone(SchemaError::Busy { schema }.into_error(operation)));
        }
        // Read again under the lock: another process may have migrated.
        let steps = missing(&mut session, database, operation).await?;
        for step in &steps {
            session.change(step.sql.clone()).await?;
        }
        session.ask(format!("do release_lock({lock})")).await?;
        Ok::<_, Undone>(steps)
    };
    let applied = apply.await;
    if applied.is_err() {
        // The lock, if it was taken, ends with the connection.
        session.abandon();
    }
    applied.map_err(|error| error.into_error(operation, Vec::new()))
}

const CREATE_RECORD: &str = "\
-- Applied migrations. Each names the schema version of the oldest program that can work with the database afterwards.
create table if not exists {schema}.postrider_migration (
  version bigint not null primary key,
  name varchar(255) character set utf8mb4 not null,
  works_since bigint not null,
  applied_at datetime(6) not null
) engine = InnoDB;

";

async fn missing(
    session: &mut Session<'_>,
    database: &Database,
    operation: &'static str,
) -> Result<Vec<Migration>, Undone> {
    let refused = |error: SchemaError| Undone::NotDone(error.into_error(operation));
    let schema = database.schema.name();
    let look = format!(
        "select version() as version;\n\
         select coalesce(sum(table_name = 'postrider_migration'), 0) as is_ours, \
         coalesce(sum(table_name = 'message'), 0) as has_messages \
         from information_schema.tables where table_schema = {}",
        literal::text(schema)
    );
    let found = session.ask(look).await?.concat();
    if let Some(version) = found.first().map(|row| rows::text(row, "version"))
        && !is_new_enough(&version)
    {
        return Err(refused(SchemaError::OldServer { found: version }));
    }
    let (is_ours, has_messages) =
        found.get(1).map_or((false, false), |row| (rows::flag(row, "is_ours"), rows::flag(row, "has_messages")));
    if !is_ours && has_messages {
        return Err(refused(SchemaError::Foreign { schema: schema.to_owned() }));
    }
    let mut applied: Vec<(i64, i64)> = Vec::new();
    if is_ours {
        let look = format!("select version, works_since from {}.postrider_migration", database.schema.quoted());
        let found = session.ask(look).await?.concat();
        applied.extend(found.iter().map(|row| (rows::number(row, "version"), rows::number(row, "works_since"))));
    }
    if applied.iter().any(|(version, works_since)| *version > KNOWN && *works_since > KNOWN) {
        let found = applied.iter().map(|(version, _)| *version).max().unwrap_or(0);
        return Err(refused(SchemaError::TooNew { schema: schema.to_owned(), found, known: KNOWN }));
    }
    let mut steps = all(&database.schema);
    steps.retain(|step| !applied.iter().any(|(version, _)| *version == step.version));
    Ok(steps)
}

/// Whether a server has `skip locked`. A server with an unknown version is accepted.
fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else { return true };
    let oldest = if version.to_ascii_lowercase().contains("mariadb") { OLDEST_MARIADB } else { OLDEST_MYSQL };
    (major, minor) >= oldest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        for new in ["10.11.6-MariaDB-0+deb12u1", "10.6.0-MariaDB", "11.4.2-MariaDB", "8.0.36", "8.4.0", "unknown"] {
            assert!(is_new_enough(new), "{new}");
        }
        for old in ["10.5.23-MariaDB", "5.7.44-log"] {
            assert!(!is_new_enough(old), "{old}");
        }
    }
}
