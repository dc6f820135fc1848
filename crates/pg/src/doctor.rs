//! Checks of a server, and of a provider's schema on it.

use std::time::Instant;

use postrider_core::{Deadline, Finding, Severity};
use postrider_provider::Undone;
use tokio_postgres::Row;

use crate::connection::{Database, Step};
use crate::migrations::Migrations;

/// Age, in seconds, below which a transaction is not reported.
const BRIEF_SECONDS: i64 = 5;
/// Age, in seconds, from which a transaction is a warning.
const LONG_SECONDS: i64 = 60;
/// Age, in transactions, from which a slot or a standby is a warning.
const FAR_BEHIND: i64 = 1_000_000;
/// Number of dead rows from which a table is reported.
const MANY_DEAD: i64 = 200_000;

/// Examines a database, its server, and a provider's schema. Changes nothing.
///
/// `tables` are those that the provider reads and writes; rows of the `busy` ones come and go.
pub async fn examine<Q>(
    database: &Database<Q>,
    migrations: &Migrations,
    tables: &[&str],
    busy: &[&str],
    deadline: Deadline,
) -> Vec<Finding> {
    let begin = Instant::now();
    if let Err(error) = ask(database, deadline, Step::new("select 1", [])).await {
        return vec![Finding::failed("connection", &error.into_harmless())];
    }
    let connected = format!("connected in {} ms", begin.elapsed().as_millis());
    let mut findings = vec![Finding::fine("connection", connected)];
    findings.extend(examine_server(database, deadline).await);
    let schema = schema(database, migrations, deadline).await;
    let is_usable = schema.severity < Severity::Problem;
    findings.push(schema);
    match search_path(database, migrations.schema.name(), deadline).await {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(Finding::unseen("search path", error.into_harmless())),
    }
    if is_usable {
        findings.extend(missing_tables(database, migrations.schema.name(), tables, deadline).await);
        findings.extend(rights(database, migrations.schema.name(), tables, deadline).await);
        findings.extend(indexes(database, migrations, deadline).await);
        findings.extend(examine_tables(database, migrations.schema.name(), busy, deadline).await);
    }
    findings
}

/// Examines the server: its version, settings and connections, what keeps dead rows, and the notification queue.
async fn examine_server<Q>(database: &Database<Q>, deadline: Deadline) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |check, result: Result<Vec<Finding>, Undone>| match result {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(Finding::unseen(check, error.into_harmless())),
    };
    add("server", server(database, deadline).await);
    add("durability", settings(database, deadline).await);
    add("old rows", pins(database, deadline).await);
    findings
}

async fn ask<Q>(database: &Database<Q>, deadline: Deadline, step: Step<'_>) -> Result<Vec<Row>, Undone> {
    database.session("examine", deadline).await?.ask(step).await
}

async fn server<Q>(database: &Database<Q>, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let rows = ask(database, deadline, Step::new(include_str!("../sql/server.sql"), [])).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (version, user, name): (&str, &str, &str) = (row.get("version"), row.get("user"), row.get("database"));
    let mut findings = vec![Finding::fine("server", format!("PostgreSQL {version}, database '{name}', user '{user}'"))];
    if row.get("is_standby") {
        findings.push(Finding::new(
            "server",
            Severity::Problem,
            "it is a standby, which is read-only",
            "name the primary in the URL",
        ));
    }
    let usage: f64 = row.get("notification_usage");
    let percent = format!("the notification queue is {:.1} % full", usage * 100.0);
    findings.push(if usage < 0.1 {
        Finding::fine("notifications", percent)
    } else {
        let severity = if usage < 0.5 { Severity::Warning } else { Severity::Problem };
        Finding::new(
            "notifications",
            severity,
            percent,
            "a listening session has been in a transaction for long; end that transaction (see 'old rows'). When the queue \
             is full, every commit that notifies fails",
        )
    });
    let (used, most): (i64, i64) = (row.get("connections"), row.get("max_connections"));
    let connections = format!("{used} of {most} connections are in use");
    findings.push(if used.saturating_mul(10) < most.saturating_mul(8) {
        Finding::fine("connections", connections)
    } else {
        let fix = "raise max_connections, lower pool_size, or put a pooler before the server (poll_only = true)";
        Finding::new("connections", Severity::Warning, connections, fix)
    });
    Ok(findings)
}

/// Checks whether tables that this role creates without a schema name would go to the provider's schema.
async fn search_path<Q>(database: &Database<Q>, schema: &str, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let rows = ask(database, deadline, Step::new(include_str!("../sql/search_path.sql"), [&schema as _])).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (is_ours, path, role): (bool, &str, &str) = (row.get("is_ours"), row.get("search_path"), row.get("role"));
    Ok(vec![if is_ours {
        let found = format!(
            "role '{role}' has search_path = {path}, which leads into schema '{schema}': a table that it creates without a \
             schema name goes there, among Postrider's"
        );
        let quoted = role.replace('"', "\"\"");
        let fix = format!(
            "`alter role \"{quoted}\" set search_path = public`, or connect with a role of another name; then move such \
             tables elsewhere"
        );
        Finding::new("search path", Severity::Warning, found, fix)
    } else {
        Finding::fine("search path", format!("search_path = {path} does not lead into schema '{schema}'"))
    }])
}

async fn settings<Q>(database: &Database<Q>, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let rows = ask(database, deadline, Step::new(include_str!("../sql/settings.sql"), [])).await?;
    let setting = |row: &Row, name: &str| row.get::<_, &str>("name") == name;
    let value = |name: &str| rows.iter().find(|row| setting(row, name)).map(|row| row.get::<_, &str>("setting"));
    let mut findings = Vec::new();
    let judged = [
        ("durability", "fsync", "off", Severity::Problem, "a crash of the machine can lose and damage everything"),
        (
            "durability",
            "full_page_writes",
            "off",
            Severity::Warning,
            "a crash during a page write can damage the page, unless the file system writes pages whole",
        ),
        (
            "durability",
            "synchronous_commit",
            "off",
            Severity::Problem,
            "a commit is answered before it is on disk: a crash loses accepted messages",
        ),
        (
            "vacuum",
            "autovacuum",
            "off",
            Severity::Problem,
            "dead rows are not removed: the tables grow and claims slow down",
        ),
        (
            "vacuum",
            "track_counts",
            "off",
            Severity::Problem,
            "autovacuum does not see dead rows: the tables grow and claims slow down",
        ),
    ];
    for (check, name, bad, severity, why) in judged {
        if value(name) == Some(bad) {
            let fix = match name {
                "synchronous_commit" => {
                    "set synchronous_commit = on, for the server or with `alter role … set` for this user".to_owned()
                }
                _ => format!("set {name} = on in postgresql.conf and reload"),
            };
            findings.push(Finding::new(check, severity, format!("{name} = {bad}: {why}"), fix));
        }
    }
    if value("default_transaction_read_only") == Some("on") {
        findings.push(Finding::new(
            "server",
            Severity::Problem,
            "default_transaction_read_only = on: nothing can be written",
            "set it off for this user, or connect to another server",
        ));
    }
    if !findings.iter().any(|finding| finding.check == "durability") {
        let commit = value("synchronous_commit").unwrap_or("on");
        findings.push(Finding::fine("durability", format!("fsync on, synchronous_commit {commit}")));
    }
    Ok(findings)
}

/// Reports what keeps dead rows from being removed, and for how long.
async fn pins<Q>(database: &Database<Q>, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let rows = ask(database, deadline, Step::new(include_str!("../sql/pins.sql"), [&BRIEF_SECONDS as _])).await?;
    let findings: Vec<Finding> = rows.iter().map(pin).collect();
    let none = || vec![Finding::fine("old rows", format!("no transaction is open for {BRIEF_SECONDS} s or longer"))];
    Ok(if findings.is_empty() { none() } else { findings })
}

fn pin(row: &Row) -> Finding {
    let (kind, name, details): (&str, &str, &str) = (row.get("kind"), row.get("name"), row.get("details"));
    let (seconds, age): (Option<i64>, Option<i64>) = (row.get("seconds"), row.get("age"));
    let (age, is_active) = (age.unwrap_or(0), row.get::<_, bool>("active"));
    let since = match seconds {
        Some(seconds) => format!("for {seconds} s ({age} transactions)"),
        None => format!("for {age} transactions"),
    };
    let idle = if is_active { "" } else { ", not in use" };
    let found = format!("{kind} {name} ({details}{idle}) keeps dead rows from being removed, {since}");
    let fix = match kind {
        "session" => format!(
            "end it with `select pg_terminate_backend({name})`; idle_in_transaction_session_timeout ends such sessions \
             automatically"
        ),
        "prepared transaction" => format!("end it with `commit prepared '{name}'` or `rollback prepared '{name}'`"),
        "replication slot" => {
            format!("let its reader catch up, or drop it with `select pg_drop_replication_slot('{name}')`")
        }
        _ => "end its long queries, or set hot_standby_feedback = off there".to_owned(),
    };
    let is_long = seconds.is_some_and(|seconds| seconds >= LONG_SECONDS) || age >= FAR_BEHIND || !is_active;
    Finding::new("old rows", if is_long { Severity::Warning } else { Severity::Note }, found, fix)
}

/// Reports dead rows and sizes of tables of a schema.
pub async fn examine_tables<Q>(
    database: &Database<Q>,
    schema: &str,
    tables: &[&str],
    deadline: Deadline,
) -> Vec<Finding> {
    let step = Step::new(include_str!("../sql/tables.sql"), [&schema as _, &tables as _]);
    match ask(database, deadline, step).await {
        Ok(rows) => rows.iter().map(|row| table(schema, row)).collect(),
        Err(error) => vec![Finding::unseen("tables", error.into_harmless())],
    }
}

fn table(schema: &str, row: &Row) -> Finding {
    let (name, live, dead, bytes): (&str, i64, i64, i64) =
        (row.get("name"), row.get("live"), row.get("dead"), row.get("bytes"));
    let vacuum = match row.get::<_, Option<i64>>("vacuum_seconds") {
        Some(seconds) => format!("vacuumed {seconds} s ago"),
        None => "never vacuumed".to_owned(),
    };
    let share = if dead == 0 { 0 } else { 100 * dead / (live + dead) };
    // Smaller units are noise.
    let megabytes = bytes / 1_000_000;
    let found = format!("{schema}.{name}: {live} rows, {dead} dead ({share} %), {megabytes} MB, {vacuum}");
    if dead < MANY_DEAD || dead < live {
        return Finding::fine("tables", found);
    }
    let fix = format!(
        "see 'old rows' for what keeps them; if nothing does, `vacuum {schema}.{name}`, and let autovacuum run more often \
         (autovacuum_naptime, autovacuum_max_workers)"
    );
    Finding::new("tables", if dead < 10 * MANY_DEAD { Severity::Note } else { Severity::Warning }, found, fix)
}

async fn schema<Q>(database: &Database<Q>, migrations: &Migrations, deadline: Deadline) -> Finding {
    let version = migrations.all().last().map_or(0, |step| step.version);
    let missing = migrations.pending(database, "examine", deadline).await;
    let missing = missing.map(|missing| missing.iter().map(|step| step.name).collect());
    Finding::schema(migrations.schema.name(), version, missing)
}

async fn missing_tables<Q>(database: &Database<Q>, name: &str, tables: &[&str], deadline: Deadline) -> Vec<Finding> {
    let look = "select t as name from unnest($2::text[]) as t \
                where to_regclass(format('%I.%I', $1::text, t)) is null";
    match ask(database, deadline, Step::new(look, [&name as _, &tables as _])).await {
        Ok(rows) if rows.is_empty() => Vec::new(),
        Ok(rows) => {
            let missing: Vec<&str> = rows.iter().map(|row| row.get("name")).collect();
            let found =
                format!("'{name}' lacks the tables {}, although its migrations are recorded", missing.join(", "));
            let fix = "restore them from a backup; or drop the schema with everything in it: `drop schema … cascade`, then \
                       `postrider migrate URL`";
            vec![Finding::new("schema", Severity::Problem, found, fix)]
        }
        Err(error) => vec![Finding::unseen("schema", error.into_harmless())],
    }
}

/// Reports the rights on tables that the user lacks.
pub async fn rights<Q>(database: &Database<Q>, name: &str, tables: &[&str], deadline: Deadline) -> Vec<Finding> {
    let step = Step::new(include_str!("../sql/lacking_rights.sql"), [&name as _, &tables as _]);
    match ask(database, deadline, step).await {
        Ok(rows) if rows.is_empty() => vec![Finding::fine("rights", "all that are needed")],
        Ok(rows) => {
            let lacking: Vec<String> = rows.iter().map(|row| row.get("lacking")).collect();
            let fix = format!(
                "an owner grants them: `grant usage on schema {name} to USER; grant select, insert, update, delete on all \
                 tables in schema {name} to USER`"
            );
            vec![Finding::new("rights", Severity::Problem, format!("lacking on {}", lacking.join(", ")), fix)]
        }
        Err(error) => vec![Finding::unseen("rights", error.into_harmless())],
    }
}

async fn indexes<Q>(database: &Database<Q>, migrations: &Migrations, deadline: Deadline) -> Vec<Finding> {
    let name = migrations.schema.name();
    let there = ask(database, deadline, Step::new(include_str!("../sql/index_state.sql"), [&name as _])).await;
    let there: Vec<(String, bool)> = match there {
        Ok(rows) => rows.iter().map(|row| (row.get("name"), row.get("is_valid"))).collect(),
        Err(error) => return vec![Finding::unseen("indexes", error.into_harmless())],
    };
    let known = migrations.indexes();
    let mut findings = Vec::new();
    for (index, statement) in &known {
        let found = match there.iter().find(|(name, _)| name == index) {
            Some((_, true)) => continue,
            Some((_, false)) => format!("index {index} is invalid: it is maintained and never used"),
            None => format!("index {index} is missing: claims and settles read whole tables"),
        };
        let again = if there.iter().any(|(name, _)| name == index) {
            format!("drop index {}.{index}; {statement}", migrations.schema.quoted())
        } else {
            statement.clone()
        };
        findings.push(Finding::new("indexes", Severity::Problem, found, format!("create it: `{again}`")));
    }
    if findings.is_empty() {
        findings.push(Finding::fine("indexes", format!("all {} exist and are valid", known.len())));
    }
    findings
}
