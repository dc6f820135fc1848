//! The schema, step by step.
//!
//! A step names the oldest program that can still work with it: a program before it uses a newer schema when all newer
//! steps allow it, so that programs of two versions can run side by side during an upgrade. Any number of processes may
//! apply them at once: an advisory lock lets one go first, and the others find nothing to do.

use std::sync::Arc;

use postrider_core::{Deadline, MessagingError};
use postrider_sql::Undone;

use crate::sql::Schema;
use crate::{Database, PROVIDER, Session};

/// The oldest server that is known to have everything that is used.
const OLDEST_SERVER: i32 = 13;

/// A step of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its number; steps are applied in this order.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// What it does, with the schema's name in it.
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
        name: "0003_functions",
        sql: include_str!("../sql/migrations/0003_functions.sql"),
        works_since: 1,
    },
];

const KNOWN: i64 = ALL[ALL.len() - 1].version;

/// Why a database cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SchemaError {
    #[error("the server is PostgreSQL {found}, and {OLDEST_SERVER} is the oldest that will do; use a newer server")]
    OldServer { found: String },
    #[error(
        "schema '{schema}' has version {found} and this program knows version {known}; use a newer program, or another \
         schema"
    )]
    TooNew { schema: String, found: i64, known: i64 },
    #[error(
        "schema '{schema}' lacks the migrations {missing} and auto_migrate is off; apply them with `postrider migrate`"
    )]
    NeedsMigration { schema: String, missing: String },
    #[error("schema '{schema}' has tables of another program; name another schema")]
    Foreign { schema: String },
}

impl SchemaError {
    pub(crate) fn into_error(self, operation: &'static str) -> MessagingError {
        MessagingError::Provider { provider: PROVIDER, operation, source: Arc::new(self), retryable: false }
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

/// A step as an operator could run it too, with the record that it was.
fn script(schema: &Schema, known: &Known) -> String {
    let (version, name, works_since) = (known.version, known.name, known.works_since);
    let before =
        if version == 1 { schema.render(CREATE_SCHEMA).replace("{name}", schema.name()) } else { String::new() };
    let record = format!(
        "insert into {}.postrider_migration (version, name, works_since) values ({version}, '{name}', {works_since});\n",
        schema.quoted()
    );
    format!("{before}{}\n{record}", schema.render(known.sql))
}

/// The steps that a database lacks. Refuses a server that is too old and a schema that is too new or not ours.
pub(crate) async fn pending(
    database: &Database,
    operation: &'static str,
    deadline: Deadline,
) -> Result<Vec<Migration>, MessagingError> {
    let mut session = database.session(operation, deadline).await?;
    let look = async {
        session.begin().await?;
        let missing = missing(&session, database, operation).await;
        session.rollback().await?;
        missing
    };
    look.await.map_err(Undone::into_harmless)
}

/// Applies what is missing, all of it or nothing, and answers what it was.
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
    let apply = async {
        session.begin().await?;
        // Others may take as long as a migration takes.
        session.batch("set local lock_timeout = 0").await?;
        let class = database.sql.schema.lock_class();
        session.query("select pg_advisory_xact_lock($1, $2)", &[&class, &MIGRATION_LOCK]).await?;
        // Looked at again under the lock: another process may have been faster.
        let steps = missing(&session, database, operation).await?;
        for step in &steps {
            session.batch(&step.sql).await?;
        }
        session.commit().await?;
        Ok::<_, Undone>(steps)
    };
    apply.await.map_err(|error| error.into_error(operation, Vec::new()))
}

/// Beyond the stripes, which are the other locks of the class.
const MIGRATION_LOCK: i32 = 1000;

/// Made only when it is missing: who owns the schema need not have the right to make one.
const CREATE_SCHEMA: &str = "\
do $$ begin
  if not exists (select 1 from pg_catalog.pg_namespace where nspname = '{name}') then create schema {schema}; end if;
end $$;

-- What was applied. A step names the schema version of the oldest program that can work with the database afterwards.
create table {schema}.postrider_migration (
  version bigint primary key,
  name text not null,
  works_since bigint not null,
  applied_at timestamptz not null default now()
);

";

async fn missing(
    session: &Session<'_>,
    database: &Database,
    operation: &'static str,
) -> Result<Vec<Migration>, Undone> {
    let refused = |error: SchemaError| Undone::NotDone(error.into_error(operation));
    let version = session.query("select current_setting('server_version_num')::int, version()", &[]).await?;
    if let Some(row) = version.first()
        && row.get::<_, i32>(0) < OLDEST_SERVER * 10_000
    {
        return Err(refused(SchemaError::OldServer { found: row.get(1) }));
    }
    let schema = database.sql.schema.name();
    // By the catalog's rows and not by a name: a name that was not found once may be remembered as such while another
    // process makes it.
    let tables = "select count(*) filter (where c.relname = 'postrider_migration') > 0, \
                         count(*) filter (where c.relname = 'message') > 0 \
                  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                  where n.nspname = $1";
    let found = session.query(tables, &[&schema]).await?;
    let (is_ours, has_messages) = found.first().map_or((false, false), |row| (row.get(0), row.get(1)));
    if !is_ours && has_messages {
        return Err(refused(SchemaError::Foreign { schema: schema.to_owned() }));
    }
    let mut applied: Vec<(i64, i64)> = Vec::new();
    if is_ours {
        let sql = format!("select version, works_since from {}.postrider_migration", database.sql.schema.quoted());
        applied.extend(session.query(&sql, &[]).await?.iter().map(|row| (row.get(0), row.get(1))));
    }
    if applied.iter().any(|(version, works_since)| *version > KNOWN && *works_since > KNOWN) {
        let found = applied.iter().map(|(version, _)| *version).max().unwrap_or(0);
        return Err(refused(SchemaError::TooNew { schema: schema.to_owned(), found, known: KNOWN }));
    }
    let mut steps = all(&database.sql.schema);
    steps.retain(|step| !applied.iter().any(|(version, _)| *version == step.version));
    Ok(steps)
}
