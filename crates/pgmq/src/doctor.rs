//! `doctor`: checks of a database with PGMQ.

use postrider_core::{BoxFuture, Deadline, Finding, MessagingError, QueueName, Severity};
use postrider_pg::Step;
use postrider_pg::doctor::{examine, examine_tables, rights};
use postrider_provider::Undone;

use crate::options::PgmqOptions;
use crate::store::{database, migrations};
use crate::{Database, PgmqStore, install, names};

/// The tables beside PGMQ's that the provider reads and writes.
const TABLES: &[&str] = &["queue_pause", "dedup", "delayed"];

/// The tables whose rows come and go.
const BUSY: &[&str] = &["dedup", "delayed"];

impl PgmqStore {
    /// Examines a database and its server. Returns findings, each with its fix; changes nothing. Fails only for a URL
    /// or options that are invalid.
    pub fn examine(
        url: &str,
        options: PgmqOptions,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Finding>, MessagingError>> {
        Box::pin(async move {
            let database = database(url, &options)?;
            let mut findings = examine(&database, &migrations(&options), TABLES, BUSY, deadline).await;
            if findings.iter().any(|finding| finding.check == "connection" && finding.severity == Severity::Problem) {
                return Ok(findings);
            }
            match install::check(&database, "examine", deadline).await {
                Ok(()) => findings.extend(match queues(&database, deadline).await {
                    Ok(found) => found,
                    Err(error) => vec![Finding::unseen("pgmq", error.into_harmless())],
                }),
                Err(error) => {
                    let fix = "do that first, then run `postrider migrate URL`";
                    // Listed before the schema, because it must be fixed first.
                    let schema =
                        findings.iter().position(|finding| finding.check == "schema").unwrap_or(findings.len());
                    findings.insert(schema, Finding::new("pgmq", Severity::Problem, error.to_string(), fix));
                }
            }
            Ok(findings)
        })
    }
}

/// Checks the tables of PGMQ's queues.
async fn queues(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    // By the table itself: PGMQ's own record of it can be out of date. The record keeps the capitals of a name, and the
    // table is in lower case.
    let look = "select m.queue_name::text as name, c.relname::text as table_name, \
                format('pgmq.%I', c.relname) as qualified, c.relpersistence = 'u' as is_unlogged from pgmq.meta m \
                join pg_catalog.pg_class c on c.oid = to_regclass(format('pgmq.%I', 'q_' || lower(m.queue_name))) \
                order by m.queue_name";
    let rows = database.session("examine", deadline).await?.ask(Step::new(look, [])).await?;
    let mut findings = vec![Finding::fine("pgmq", format!("it is installed, with {} queues", rows.len()))];
    let is_usable =
        |name: &str| QueueName::for_reading(name.to_ascii_lowercase()).is_ok_and(|name| names::check(&name).is_ok());
    let names: Vec<&str> = rows.iter().map(|row| row.get("name")).collect();
    let unusable: Vec<&str> = names.iter().copied().filter(|name| !is_usable(name)).collect();
    if !unusable.is_empty() {
        let found = format!("queues that cannot be used because of their names: {}", unusable.join(", "));
        findings.push(Finding::new("pgmq", Severity::Note, found, "use them with other clients, or rename them"));
    }
    for row in rows.iter().filter(|row| row.get("is_unlogged")) {
        let (name, table): (&str, &str) = (row.get("name"), row.get("qualified"));
        findings.push(Finding::new(
            "durability",
            Severity::Problem,
            format!("queue '{name}' is unlogged: a crash of the server empties it"),
            format!("`alter table {table} set logged`"),
        ));
    }
    let tables: Vec<&str> = rows.iter().map(|row| row.get("table_name")).collect();
    let is_lacking = |finding: &Finding| finding.severity != Severity::Fine;
    findings.extend(rights(database, "pgmq", &tables, deadline).await.into_iter().filter(is_lacking));
    findings.extend(examine_tables(database, "pgmq", &tables, deadline).await);
    Ok(findings)
}
