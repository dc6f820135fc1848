//! What can be wrong with a database that has PGMQ in it.

use postrider_core::{BoxFuture, Deadline, Finding, MessagingError, QueueName, Severity};
use postrider_pg::Step;
use postrider_pg::doctor::{examine, examine_tables, rights};
use postrider_provider::Undone;

use crate::options::PgmqOptions;
use crate::store::{database, migrations};
use crate::{Database, PgmqStore, install, names};

/// The tables beside PGMQ's that a program reads and writes.
const TABLES: &[&str] = &["queue_pause", "dedup", "delayed"];

/// Those whose rows come and go.
const BUSY: &[&str] = &["dedup", "delayed"];

impl PgmqStore {
    /// Looks at a database and the server that it is on, and says what is wrong and what to do about it. Changes nothing.
    /// Fails only where there is nothing to look at: for a URL or options that nobody could use.
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
                    let fix = "do that first, then apply `postrider migrate URL`";
                    // Whoever works through the fixes meets this one first.
                    let schema =
                        findings.iter().position(|finding| finding.check == "schema").unwrap_or(findings.len());
                    findings.insert(schema, Finding::new("pgmq", Severity::Problem, error.to_string(), fix));
                }
            }
            Ok(findings)
        })
    }
}

/// The tables of PGMQ's queues.
async fn queues(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    // By the table itself: PGMQ's own note of it is not kept up.
    let look = "select m.queue_name::text, c.relpersistence = 'u' from pgmq.meta m \
                join pg_catalog.pg_class c on c.oid = to_regclass(format('pgmq.%I', 'q_' || m.queue_name)) \
                order by m.queue_name";
    let rows = database.session("examine", deadline).await?.ask(Step::new(look, [])).await?;
    let mut findings = vec![Finding::fine("pgmq", format!("it is there, with {} queues", rows.len()))];
    let is_usable =
        |name: &str| QueueName::for_reading(name.to_ascii_lowercase()).is_ok_and(|name| names::check(&name).is_ok());
    let unusable: Vec<&str> = rows.iter().map(|row| row.get::<_, &str>(0)).filter(|name| !is_usable(name)).collect();
    if !unusable.is_empty() {
        let found = format!("queues that cannot be used because of their names: {}", unusable.join(", "));
        findings.push(Finding::new(
            "pgmq",
            Severity::Note,
            found,
            "use them with other clients, or move to other names",
        ));
    }
    for row in rows.iter().filter(|row| row.get::<_, bool>(1)) {
        let name: &str = row.get(0);
        findings.push(Finding::new(
            "durability",
            Severity::Problem,
            format!("queue '{name}' is unlogged: a crash of the server empties it"),
            format!("`alter table pgmq.q_{name} set logged`"),
        ));
    }
    let tables: Vec<String> = rows.iter().map(|row| format!("q_{}", row.get::<_, &str>(0))).collect();
    let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
    let is_lacking = |finding: &Finding| finding.severity != Severity::Fine;
    findings.extend(rights(database, "pgmq", &tables, deadline).await.into_iter().filter(is_lacking));
    findings.extend(examine_tables(database, "pgmq", &tables, deadline).await);
    Ok(findings)
}
