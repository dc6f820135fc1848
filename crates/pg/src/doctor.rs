//! What can be wrong with a server, whoever's tables are on it.

use std::time::Instant;

use postrider_core::{Deadline, Finding, Severity};
use postrider_provider::Undone;
use tokio_postgres::Row;

use crate::connection::{Database, Step};
use crate::migrations::Migrations;

/// A transaction that is open for less long holds nothing up.
const BRIEF_SECONDS: i64 = 5;
/// From here on it does.
const LONG_SECONDS: i64 = 60;
/// A slot or a standby that is so many transactions behind keeps a lot of dead rows.
const FAR_BEHIND: i64 = 1_000_000;
/// So many dead rows are worth a word.
const MANY_DEAD: i64 = 200_000;

/// Looks at a database, the server that it is on, and a provider's schema there. Changes nothing.
///
/// `tables` are those of the schema that the provider reads and writes; rows of the `busy` ones come and go.
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

/// Looks at the server: its version, its settings, who pins old rows, how full the notification queue is.
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
    let (version, user, name): (&str, &str, &str) = (row.get(0), row.get(2), row.get(3));
    let mut findings = vec![Finding::fine("server", format!("PostgreSQL {version}, database '{name}', user '{user}'"))];
    if row.get(1) {
        findings.push(Finding::new(
            "server",
            Severity::Problem,
            "it is a standby, which may only be read",
            "name the primary in the URL",
        ));
    }
    let usage: f64 = row.get(4);
    let percent = format!("the notification queue is {:.1} % full", usage * 100.0);
    findings.push(if usage < 0.1 {
        Finding::fine("notifications", percent)
    } else {
        let severity = if usage < 0.5 { Severity::Warning } else { Severity::Problem };
        Finding::new(
            "notifications",
            severity,
            percent,
            "a session that listens has been in a transaction for long; end that transaction (see 'old rows'). When the \
             queue is full, every commit that notifies fails",
        )
    });
    let (used, most): (i64, i64) = (row.get(5), row.get(6));
    let connections = format!("{used} of {most} connections are in use");
    findings.push(if used.saturating_mul(10) < most.saturating_mul(8) {
        Finding::fine("connections", connections)
    } else {
        let fix = "raise max_connections, lower pool_size, or put a pooler before the server (poll_only = true)";
        Finding::new("connections", Severity::Warning, connections, fix)
    });
    Ok(findings)
}

/// Where this role's tables go that are made without the name of a schema.
async fn search_path<Q>(database: &Database<Q>, schema: &str, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let rows = ask(database, deadline, Step::new(include_str!("../sql/search_path.sql"), [&schema as _])).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let (is_ours, path, role): (bool, &str, &str) = (row.get(0), row.get(1), row.get(2));
    Ok(vec![if is_ours {
        let found = format!(
            "role '{role}' has search_path = {path}, which leads into schema '{schema}': a table that it makes without \
             the name of a schema stands among those of Postrider"
        );
        let quoted = role.replace('"', "\"\"");
        let fix = format!(
            "`alter role \"{quoted}\" set search_path = public`, or connect with a role of another name; then move what \
             stands there by mistake"
        );
        Finding::new("search path", Severity::Warning, found, fix)
    } else {
        Finding::fine("search path", format!("search_path = {path} does not lead into schema '{schema}'"))
    }])
}

async fn settings<Q>(database: &Database<Q>, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let rows = ask(database, deadline, Step::new(include_str!("../sql/settings.sql"), [])).await?;
    let value = |name: &str| rows.iter().find(|row| row.get::<_, &str>(0) == name).map(|row| row.get::<_, &str>(1));
    let mut findings = Vec::new();
    let judged = [
        ("durability", "fsync", "off", Severity::Problem, "a crash of the machine can lose and damage everything"),
        (
            "durability",
            "full_page_writes",
            "off",
            Severity::Warning,
            "a crash in the middle of a page's write can damage it, unless the file system writes pages whole",
        ),
        (
            "durability",
            "synchronous_commit",
            "off",
            Severity::Problem,
            "a commit is answered before it is on the disk: a crash loses messages that were accepted",
        ),
        (
            "vacuum",
            "autovacuum",
            "off",
            Severity::Problem,
            "nobody removes dead rows: the tables grow and claims slow down",
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
            "set it off for this user, or name another server",
        ));
    }
    if !findings.iter().any(|finding| finding.check == "durability") {
        let commit = value("synchronous_commit").unwrap_or("on");
        findings.push(Finding::fine("durability", format!("fsync on, synchronous_commit {commit}")));
    }
    Ok(findings)
}

/// Who keeps dead rows from being removed, and for how long.
async fn pins<Q>(database: &Database<Q>, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let rows = ask(database, deadline, Step::new(include_str!("../sql/pins.sql"), [&BRIEF_SECONDS as _])).await?;
    let findings: Vec<Finding> = rows.iter().map(pin).collect();
    let none = || vec![Finding::fine("old rows", format!("no transaction is open for {BRIEF_SECONDS} s or longer"))];
    Ok(if findings.is_empty() { none() } else { findings })
}

fn pin(row: &Row) -> Finding {
    let (kind, name, told): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
    let (seconds, age): (Option<i64>, Option<i64>) = (row.get(3), row.get(4));
    let (age, is_active) = (age.unwrap_or(0), row.get::<_, bool>(5));
    let since = match seconds {
        Some(seconds) => format!("for {seconds} s ({age} transactions)"),
        None => format!("for {age} transactions"),
    };
    let idle = if is_active { "" } else { ", used by nobody" };
    let found = format!("{kind} {name} ({told}{idle}) keeps dead rows from being removed, {since}");
    let fix = match kind {
        "session" => format!(
            "end it with `select pg_terminate_backend({name})`; idle_in_transaction_session_timeout ends such sessions \
             by itself"
        ),
        "prepared transaction" => format!("end it with `commit prepared '{name}'` or `rollback prepared '{name}'`"),
        "replication slot" => {
            format!("have its reader catch up, or remove it with `select pg_drop_replication_slot('{name}')`")
        }
        _ => "end its long queries, or set hot_standby_feedback = off there".to_owned(),
    };
    let is_long = seconds.is_some_and(|seconds| seconds >= LONG_SECONDS) || age >= FAR_BEHIND || !is_active;
    Finding::new("old rows", if is_long { Severity::Warning } else { Severity::Note }, found, fix)
}

/// How many dead rows some tables of a schema have, and how large they are.
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
    let (name, live, dead, bytes): (&str, i64, i64, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
    let vacuum = match row.get::<_, Option<i64>>(4) {
        Some(seconds) => format!("vacuumed {seconds} s ago"),
        None => "never vacuumed".to_owned(),
    };
    let share = if dead == 0 { 0 } else { 100 * dead / (live + dead) };
    // In megabytes, because nobody acts on less.
    let megabytes = bytes / 1_000_000;
    let found = format!("{schema}.{name}: {live} rows, {dead} dead ({share} %), {megabytes} MB, {vacuum}");
    if dead < MANY_DEAD || dead < live {
        return Finding::fine("tables", found);
    }
    let fix = format!(
        "see 'old rows' for who keeps them; if nobody does, `vacuum {schema}.{name}`, and let autovacuum run more often \
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
    let look = "select t from unnest($2::text[]) as t \
                where to_regclass(format('%I.%I', $1::text, t)) is null";
    match ask(database, deadline, Step::new(look, [&name as _, &tables as _])).await {
        Ok(rows) if rows.is_empty() => Vec::new(),
        Ok(rows) => {
            let missing: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
            let found = format!("'{name}' lacks the tables {}, although its migrations are noted", missing.join(", "));
            let fix = "restore them from a backup; or give the schema up, with what is in it: `drop schema … cascade`, \
                       then `postrider migrate URL`";
            vec![Finding::new("schema", Severity::Problem, found, fix)]
        }
        Err(error) => vec![Finding::unseen("schema", error.into_harmless())],
    }
}

/// The rights on tables that the user lacks.
pub async fn rights<Q>(database: &Database<Q>, name: &str, tables: &[&str], deadline: Deadline) -> Vec<Finding> {
    let step = Step::new(include_str!("../sql/lacking_rights.sql"), [&name as _, &tables as _]);
    match ask(database, deadline, step).await {
        Ok(rows) if rows.is_empty() => vec![Finding::fine("rights", "all that are needed")],
        Ok(rows) => {
            let lacking: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
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
        Ok(rows) => rows.iter().map(|row| (row.get(0), row.get(1))).collect(),
        Err(error) => return vec![Finding::unseen("indexes", error.into_harmless())],
    };
    let known = migrations.indexes();
    let mut findings = Vec::new();
    for (index, statement) in &known {
        let found = match there.iter().find(|(name, _)| name == index) {
            Some((_, true)) => continue,
            Some((_, false)) => format!("index {index} is not valid, so that it is kept up and never used"),
            None => format!("index {index} is missing: claims and settles walk whole tables"),
        };
        let again = if there.iter().any(|(name, _)| name == index) {
            format!("drop index {}.{index}; {statement}", migrations.schema.quoted())
        } else {
            statement.clone()
        };
        findings.push(Finding::new("indexes", Severity::Problem, found, format!("make it: `{again}`")));
    }
    if findings.is_empty() {
        findings.push(Finding::fine("indexes", format!("all {} are there and valid", known.len())));
    }
    findings
}
