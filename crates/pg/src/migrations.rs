//! Migrations of a schema.
//!
//! A migration names the oldest program that can work with it: an older program accepts a newer schema if all newer
//! migrations allow it, so programs of two versions can run side by side during an upgrade. Any number of processes may
//! migrate at once: an advisory lock admits one, and the others find nothing to do.

use std::sync::Arc;

use postrider_core::{Deadline, MessagingError};
use postrider_provider::Undone;

use crate::connection::{Database, Session};
use crate::schema::Schema;

/// The oldest supported server.
const OLDEST_SERVER: i32 = 13;

/// A migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its number; migrations are applied in this order.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// Its SQL, with the name of the schema.
    pub sql: String,
    /// The schema version of the oldest program that can work with the database afterwards.
    pub works_since: i64,
}

/// A migration in a program.
#[derive(Debug)]
pub struct Known {
    /// Its number.
    pub version: i64,
    /// Its name.
    pub name: &'static str,
    /// Its SQL, with `{schema}` for the name of the schema.
    pub sql: &'static str,
    /// The schema version of the oldest program that can work with the database afterwards.
    pub works_since: i64,
}

/// The migrations of a provider's schema, in order.
#[derive(Debug)]
pub struct Migrations {
    /// The provider's name in errors.
    pub provider: &'static str,
    /// The schema.
    pub schema: Schema,
    /// The migrations.
    pub steps: &'static [Known],
    /// A table of the first migration. If it exists without the table of migrations, the schema is another program's.
    pub first_table: &'static str,
}

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
enum SchemaError {
    #[error("the server is PostgreSQL {found}; version {OLDEST_SERVER} or newer is required")]
    OldServer { found: String },
    #[error(
        "schema '{schema}' has version {found} and this program supports version {known}; use a newer program, or another \
         schema"
    )]
    TooNew { schema: String, found: i64, known: i64 },
    #[error(
        "schema '{schema}' lacks the migrations {missing} and auto_migrate is off; apply them with `postrider migrate`"
    )]
    NeedsMigration { schema: String, missing: String },
    #[error("schema '{schema}' has tables of another program; use another schema")]
    Foreign { schema: String },
}

impl Migrations {
    fn refuse(&self, operation: &'static str, error: SchemaError) -> MessagingError {
        MessagingError::Provider { provider: self.provider, operation, source: Arc::new(error), retryable: false }
    }

    /// Returns every migration that this program knows.
    pub fn all(&self) -> Vec<Migration> {
        let step = |known: &Known| Migration {
            version: known.version,
            name: known.name,
            sql: script(&self.schema, known),
            works_since: known.works_since,
        };
        self.steps.iter().map(step).collect()
    }

    /// Returns every index that the migrations create, with its statement.
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

    /// Applies missing migrations or, if that is off, refuses a schema that lacks some.
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

    /// Returns the migrations that a database lacks. Refuses a server that is too old and a schema that is too new or
    /// foreign.
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

    /// Applies the missing migrations, all or none. Returns them.
    pub async fn apply<Q>(
        &self,
        database: &Database<Q>,
        operation: &'static str,
        deadline: Deadline,
    ) -> Result<Vec<Migration>, MessagingError> {
        // Without the lock: most databases lack nothing.
        if self.pending(database, operation, deadline).await?.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = database.session(operation, deadline).await?;
        let apply = async {
            session.begin().await?;
            // A migration of another process may take any time.
            session.batch("set local lock_timeout = 0; set local statement_timeout = 0").await?;
            let class = self.schema.lock_class();
            session.query("select pg_advisory_xact_lock($1, $2)", &[&class, &MIGRATION_LOCK]).await?;
            // Read again under the lock: another process may have migrated.
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
        let version = "select current_setting('server_version_num')::int as number, version() as version";
        let version = session.query(version, &[]).await?;
        if let Some(row) = version.first()
            && row.get::<_, i32>("number") < OLDEST_SERVER * 10_000
        {
            return Err(refused(SchemaError::OldServer { found: row.get("version") }));
        }
        let schema = self.schema.name();
        // By the catalog and not by `to_regclass`: a failed lookup may be cached while another process creates the
        // table.
        let tables = "select count(*) filter (where c.relname = 'postrider_migration') > 0 as is_ours, \
                             count(*) filter (where c.relname = $2) > 0 as has_table \
                      from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                      where n.nspname = $1";
        let found = session.query(tables, &[&schema, &self.first_table]).await?;
        let (is_ours, has_table) =
            found.first().map_or((false, false), |row| (row.get("is_ours"), row.get("has_table")));
        if !is_ours && has_table {
            return Err(refused(SchemaError::Foreign { schema: schema.to_owned() }));
        }
        let mut applied: Vec<(i64, i64)> = Vec::new();
        if is_ours {
            let sql = format!("select version, works_since from {}.postrider_migration", self.schema.quoted());
            let rows = session.query(&sql, &[]).await?;
            applied.extend(rows.iter().map(|row| (row.get("version"), row.get("works_since"))));
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

/// Returns the script of a migration, which an operator could run too, with its record.
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

/// Lock number of migrations, after the stripes in the same class.
const MIGRATION_LOCK: i32 = 1000;

/// Created only if missing: the owner of the schema need not have the right to create one.
const CREATE_SCHEMA: &str = "\
do $$ begin
  if not exists (select 1 from pg_catalog.pg_namespace where nspname = '{name}') then create schema {schema}; end if;
end $$;

-- Applied migrations. Each names the schema version of the oldest program that can work with the database afterwards.
create table {schema}.postrider_migration (
  version bigint primary key,
  name text not null,
  works_since bigint not null,
  applied_at timestamptz not null default now()
);

";
