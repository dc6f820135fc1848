//! The schema, step by step.
//!
//! A step names the oldest program that can still work with it: a program before it uses a newer schema when all newer
//! steps allow it, so that programs of two versions can run side by side during an upgrade. Any number of processes may
//! apply them at once: a named lock lets one go first, and the others find nothing to do. The server commits every
//! change of a table at once, so each statement of a step can be carried out again after a step that was cut off.

use std::sync::Arc;

use postrider_core::{Deadline, MessagingError};
use postrider_provider::Undone;
use postrider_sql::stripes::fnv1a;

use crate::PROVIDER;
use crate::connection::{Database, Session};
use crate::literal;
use crate::rows;
use crate::sql::Schema;

/// The oldest servers that are known to have everything that is used.
const OLDEST_MARIADB: (u32, u32) = (10, 6);
const OLDEST_MYSQL: (u32, u32) = (8, 0);

/// How many seconds a process waits for another that applies migrations.
const LOCK_PATIENCE: u32 = 25;

/// A step of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its number; steps are applied in this order.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// What it does, with the database's name in it.
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

/// Why a database cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SchemaError {
    #[error("the server is {found}, and MariaDB 10.6 and MySQL 8.0 are the oldest that will do; use a newer server")]
    OldServer { found: String },
    #[error(
        "database '{schema}' has schema version {found} and this program knows version {known}; use a newer program, or \
         another database"
    )]
    TooNew { schema: String, found: i64, known: i64 },
    #[error(
        "database '{schema}' lacks the migrations {missing} and auto_migrate is off; apply them with `postrider migrate`"
    )]
    NeedsMigration { schema: String, missing: String },
    #[error("database '{schema}' has tables of another program; name another database")]
    Foreign { schema: String },
    #[error("another process has been migrating database '{schema}' for long; try again when it is done")]
    Busy { schema: String },
}

impl SchemaError {
    pub(crate) fn into_error(self, operation: &'static str) -> MessagingError {
        let retryable = matches!(self, Self::Busy { .. });
        MessagingError::Provider { provider: PROVIDER, operation, source: Arc::new(self), retryable }
    }
}

/// Every step that this program knows.
pub(crate) fn all(schema: &Schema) -> Vec<Migration> {
    let step = |known: &Known| Migration {
        version: known.version,
        name: known.name,
        sql: script(schema, known),
        works_since: known.works_since,
    };
    ALL.iter().map(step).collect()
}

/// An index that the steps make.
pub(crate) struct Index {
    pub(crate) table: String,
    pub(crate) name: String,
    /// What stands in the table's definition.
    pub(crate) definition: String,
}

/// Every index that the steps make inside a table's definition.
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

/// A step as an operator could run it too, with the record that it was.
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

/// The steps that a database lacks. Refuses a server that is too old and a schema that is too new or not ours.
pub(crate) async fn pending(
    database: &Database,
    operation: &'static str,
    deadline: Deadline,
) -> Result<Vec<Migration>, MessagingError> {
    let mut session = database.session(operation, deadline).await?;
    missing(&mut session, database, operation).await.map_err(Undone::into_harmless)
}

/// Applies what is missing, and answers what it was.
pub(crate) async fn apply(
    database: &Database,
    operation: &'static str,
    deadline: Deadline,
) -> Result<Vec<Migration>, MessagingError> {
    // Nobody needs the lock to open a database that lacks nothing.
    if pending(database, operation, deadline).await?.is_empty() {
        return Ok(Vec::new());
    }
    let mut session = database.session(operation, deadline).await?;
    // A name of at most 64 characters, the same in every process.
    let lock = format!("'postrider_{:016x}'", fnv1a(database.schema.name().as_bytes()));
    let apply = async {
        let got = session.ask(format!("select get_lock({lock}, {LOCK_PATIENCE})")).await?.concat();
        if !got.first().is_some_and(|row| rows::flag(row, 0)) {
            let schema = database.schema.name().to_owned();
            return Err(Undone::NotDone(SchemaError::Busy { schema }.into_error(operation)));
        }
        // Looked at again under the lock: another process may have been faster.
        let steps = missing(&mut session, database, operation).await?;
        for step in &steps {
            session.change(step.sql.clone()).await?;
        }
        session.ask(format!("do release_lock({lock})")).await?;
        Ok::<_, Undone>(steps)
    };
    let applied = apply.await;
    if applied.is_err() {
        // The lock ends with the connection, if it was got at all.
        session.abandon();
    }
    applied.map_err(|error| error.into_error(operation, Vec::new()))
}

const CREATE_RECORD: &str = "\
-- What was applied. A step names the schema version of the oldest program that can work with the database afterwards.
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
        "select version();\n\
         select coalesce(sum(table_name = 'postrider_migration'), 0), coalesce(sum(table_name = 'message'), 0) \
         from information_schema.tables where table_schema = {}",
        literal::text(schema)
    );
    let found = session.ask(look).await?.concat();
    if let Some(version) = found.first().map(|row| rows::text(row, 0))
        && !is_new_enough(&version)
    {
        return Err(refused(SchemaError::OldServer { found: version }));
    }
    let (is_ours, has_messages) = found.get(1).map_or((false, false), |row| (rows::flag(row, 0), rows::flag(row, 1)));
    if !is_ours && has_messages {
        return Err(refused(SchemaError::Foreign { schema: schema.to_owned() }));
    }
    let mut applied: Vec<(i64, i64)> = Vec::new();
    if is_ours {
        let look = format!("select version, works_since from {}.postrider_migration", database.schema.quoted());
        let found = session.ask(look).await?.concat();
        applied.extend(found.iter().map(|row| (rows::number(row, 0), rows::number(row, 1))));
    }
    if applied.iter().any(|(version, works_since)| *version > KNOWN && *works_since > KNOWN) {
        let found = applied.iter().map(|(version, _)| *version).max().unwrap_or(0);
        return Err(refused(SchemaError::TooNew { schema: schema.to_owned(), found, known: KNOWN }));
    }
    let mut steps = all(&database.schema);
    steps.retain(|step| !applied.iter().any(|(version, _)| *version == step.version));
    Ok(steps)
}

/// Whether a server is known to have `skip locked`. One that does not say what it is may be.
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
    fn old_servers_are_known() {
        for new in ["10.11.6-MariaDB-0+deb12u1", "10.6.0-MariaDB", "11.4.2-MariaDB", "8.0.36", "8.4.0", "unknown"] {
            assert!(is_new_enough(new), "{new}");
        }
        for old in ["10.5.23-MariaDB", "5.7.44-log"] {
            assert!(!is_new_enough(old), "{old}");
        }
    }
}
