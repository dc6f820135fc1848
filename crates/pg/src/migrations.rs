//! The schema, step by step.
//!
//! A step names the oldest program that can still work with it: a program before it uses a newer schema when all newer
//! steps allow it, so that programs of two versions can run side by side during an upgrade. Any number of processes may
//! apply them at once: an advisory lock lets one go first, and the others find nothing to do.

use std::sync::Arc;

use postrider_core::{Deadline, MessagingError};
use postrider_provider::Undone;

use crate::connection::{Database, Session};
use crate::schema::Schema;

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

/// A step as a program has it.
#[derive(Debug)]
pub struct Known {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// What it does, with `{schema}` for the schema's name.
    pub sql: &'static str,
    /// The schema version of the oldest program that can work with the database afterwards.
    pub works_since: i64,
}

/// Every step of a provider's schema, in order.
#[derive(Debug)]
pub struct Migrations {
    /// The provider's name in errors.
    pub provider: &'static str,
    /// The schema that they are for.
    pub schema: Schema,
    /// The steps.
    pub steps: &'static [Known],
    /// A table that the first step makes: where it stands without the list of steps, the schema is another program's.
    pub first_table: &'static str,
}

/// Why a database cannot be used as it is.
#[derive(Debug, thiserror::Error)]
enum SchemaError {
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

impl Migrations {
    fn refuse(&self, operation: &'static str, error: SchemaError) -> MessagingError {
        MessagingError::Provider { provider: self.provider, operation, source: Arc::new(error), retryable: false }
    }

    /// Every step that this program knows.
    pub fn all(&self) -> Vec<Migration> {
        let step = |known: &Known| Migration {
            version: known.version,
            name: known.name,
            sql: script(&self.schema, known),
            works_since: known.works_since,
        };
        self.steps.iter().map(step).collect()
    }

    /// Every index that the steps make, with the statement that does.
    pub fn indexes(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for step in self.all() {
            for statement in step.sql.split(';') {
                let lines = statement.lines().map(str::trim).filter(|line| !line.starts_with("--"));
                let statement = lines.collect::<Vec<_>>().join(" ");
                let rest = statement.trim().strip_prefix("create ").unwrap_or_default();
                let rest = rest.strip_prefix("unique ").unwrap_or(rest);
                if let Some((name, _)) = rest.strip_prefix("index ").and_then(|rest| rest.split_once(' ')) {
                    found.push((name.to_owned(), statement.trim().to_owned()));
                }
            }
        }
        found
    }

    /// Applies what is missing; when that is not allowed, refuses a schema that lacks something.
    pub async fn prepare<Q>(
        &self,
        database: &Database<Q>,
        auto_migrate: bool,
        operation: &'static str,
        deadline: Deadline,
    ) -> Result<(), MessagingError> {
        if auto_migrate {
            return self.apply(database, operation, deadline).await.map(drop);
        }
        let missing = self.pending(database, operation, deadline).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let missing = missing.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
        Err(self.refuse(operation, SchemaError::NeedsMigration { schema: self.schema.name().to_owned(), missing }))
    }

    /// The steps that a database lacks. Refuses a server that is too old and a schema that is too new or not ours.
    pub async fn pending<Q>(
        &self,
        database: &Database<Q>,
        operation: &'static str,
        deadline: Deadline,
    ) -> Result<Vec<Migration>, MessagingError> {
        let mut session = database.session(operation, deadline).await?;
        let look = async {
            session.begin().await?;
            let missing = self.missing(&session, operation).await;
            session.rollback().await?;
            missing
        };
        look.await.map_err(Undone::into_harmless)
    }

    /// Applies what is missing, all of it or nothing, and answers what it was.
    pub async fn apply<Q>(
        &self,
        database: &Database<Q>,
        operation: &'static str,
        deadline: Deadline,
    ) -> Result<Vec<Migration>, MessagingError> {
        // Nobody needs the lock to open a database that lacks nothing.
        if self.pending(database, operation, deadline).await?.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = database.session(operation, deadline).await?;
        let apply = async {
            session.begin().await?;
            // Others may take as long as a migration takes.
            session.batch("set local lock_timeout = 0; set local statement_timeout = 0").await?;
            let class = self.schema.lock_class();
            session.query("select pg_advisory_xact_lock($1, $2)", &[&class, &MIGRATION_LOCK]).await?;
            // Looked at again under the lock: another process may have been faster.
            let steps = self.missing(&session, operation).await?;
            for step in &steps {
                session.batch(&step.sql).await?;
            }
            session.commit().await?;
            Ok::<_, Undone>(steps)
        };
        apply.await.map_err(|error| error.into_error(operation, Vec::new()))
    }

    async fn missing<Q>(&self, session: &Session<'_, Q>, operation: &'static str) -> Result<Vec<Migration>, Undone> {
        let refused = |error: SchemaError| Undone::NotDone(self.refuse(operation, error));
        let version = session.query("select current_setting('server_version_num')::int, version()", &[]).await?;
        if let Some(row) = version.first()
            && row.get::<_, i32>(0) < OLDEST_SERVER * 10_000
        {
            return Err(refused(SchemaError::OldServer { found: row.get(1) }));
        }
        let schema = self.schema.name();
        // By the catalog's rows and not by a name: a name that was not found once may be remembered as such while
        // another process makes it.
        let tables = "select count(*) filter (where c.relname = 'postrider_migration') > 0, \
                             count(*) filter (where c.relname = $2) > 0 \
                      from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                      where n.nspname = $1";
        let found = session.query(tables, &[&schema, &self.first_table]).await?;
        let (is_ours, has_table) = found.first().map_or((false, false), |row| (row.get(0), row.get(1)));
        if !is_ours && has_table {
            return Err(refused(SchemaError::Foreign { schema: schema.to_owned() }));
        }
        let mut applied: Vec<(i64, i64)> = Vec::new();
        if is_ours {
            let sql = format!("select version, works_since from {}.postrider_migration", self.schema.quoted());
            applied.extend(session.query(&sql, &[]).await?.iter().map(|row| (row.get(0), row.get(1))));
        }
        let known = self.steps.last().map_or(0, |step| step.version);
        if applied.iter().any(|(version, works_since)| *version > known && *works_since > known) {
            let found = applied.iter().map(|(version, _)| *version).max().unwrap_or(0);
            return Err(refused(SchemaError::TooNew { schema: schema.to_owned(), found, known }));
        }
        let mut steps = self.all();
        steps.retain(|step| !applied.iter().any(|(version, _)| *version == step.version));
        Ok(steps)
    }
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
