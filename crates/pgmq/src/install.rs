//! Checks that PGMQ is installed and new enough.

use std::sync::Arc;

use postrider_core::{Deadline, MessagingError};
use postrider_pg::Step;
use postrider_provider::Undone;

use crate::{Database, PROVIDER};

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
enum InstallError {
    #[error(
        "this database has no PGMQ; run `create extension pgmq` in it or, if the server lacks the extension, load PGMQ's \
         file pgmq.sql with psql, then try again"
    )]
    Missing,
    #[error(
        "this database has a schema 'pgmq' that is not PGMQ's or lacks its {lacks}; PGMQ 1.10 or newer is required: run \
         `alter extension pgmq update`, or load the file pgmq.sql of a newer version into a new database"
    )]
    TooOld { lacks: String },
}

/// Reads only the catalog: a user without the right to use the schema gets the server's error later.
const LOOK: &str = "\
select to_regnamespace('pgmq') is not null as is_installed,
       array(select needed.name from (values ('meta', 'queue_name'), ('message_record', 'headers'),
                                             ('message_record', 'last_read_at')) as needed (relation, name)
             where not exists (select 1 from pg_catalog.pg_class c
                               join pg_catalog.pg_namespace n on n.oid = c.relnamespace
                               join pg_catalog.pg_attribute a on a.attrelid = c.oid
                               where n.nspname = 'pgmq' and c.relname = needed.relation and a.attname = needed.name)) as lacks";

/// Refuses a database without PGMQ.
pub(crate) async fn check(
    database: &Database,
    operation: &'static str,
    deadline: Deadline,
) -> Result<(), MessagingError> {
    let mut session = database.session(operation, deadline).await?;
    let found = session.ask(Step::new(LOOK, [])).await.map_err(Undone::into_harmless)?;
    let (is_there, lacks) =
        found.first().map_or((false, Vec::new()), |row| (row.get("is_installed"), row.get::<_, Vec<String>>("lacks")));
    let error = match (is_there, lacks.is_empty()) {
        (true, true) => return Ok(()),
        (true, false) => InstallError::TooOld { lacks: lacks.join(" and ") },
        (false, _) => InstallError::Missing,
    };
    Err(MessagingError::Provider { provider: PROVIDER, operation, source: Arc::new(error), retryable: false })
}
