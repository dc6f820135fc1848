//! What can be wrong with a database that holds queues, and with its server.

use std::time::Instant;

use mysql_async::Row;
use postrider_core::{BoxFuture, Deadline, Finding, MessagingError, Severity};
use postrider_provider::Undone;

use crate::connection::Database;
use crate::options::MysqlOptions;
use crate::{MysqlStore, literal, migrations, rows};

/// A transaction that is open for less long holds nothing up.
const BRIEF_SECONDS: u32 = 5;
/// From here on it does.
const LONG_SECONDS: i64 = 60;
/// So many versions of rows that wait to be removed slow every look down.
const LONG_HISTORY: i64 = 1_000_000;

const TABLES: &[&str] = &["message", "message_archive", "dead_letter"];

impl MysqlStore {
    /// Looks at a database and the server that it is on, and says what is wrong and what to do about it. Changes nothing.
    /// Fails only where there is nothing to look at: for a URL or options that nobody could use.
    pub fn examine(
        url: &str,
        options: MysqlOptions,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Finding>, MessagingError>> {
        Box::pin(async move {
            options.check()?;
            let database = Database::new(url, &options)?;
            let begin = Instant::now();
            if let Err(error) = ask(&database, deadline, "select 1".to_owned()).await {
                return Ok(vec![Finding::failed("connection", &error.into_harmless())]);
            }
            let mut findings =
                vec![Finding::fine("connection", format!("connected in {} ms", begin.elapsed().as_millis()))];
            let mut add = |check, result: Result<Vec<Finding>, Undone>| match result {
                Ok(found) => findings.extend(found),
                Err(error) => findings.push(Finding::unseen(check, error.into_harmless())),
            };
            add("server", server(&database, deadline).await);
            add("durability", durability(&database, deadline).await);
            add("old rows", pins(&database, deadline).await);
            let schema = schema(&database, deadline).await;
            let is_usable = schema.severity < Severity::Problem;
            add("schema", Ok(vec![schema]));
            if is_usable {
                add("rights", rights(&database, deadline).await);
                add("indexes", indexes(&database, deadline).await);
                add("tables", tables(&database, deadline).await);
            }
            Ok(findings)
        })
    }
}

async fn ask(database: &Database, deadline: Deadline, text: String) -> Result<Vec<Row>, Undone> {
    Ok(database.session("examine", deadline).await?.ask(text).await?.concat())
}

async fn server(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let look = "select version(), @@global.read_only, @@global.max_connections, current_user(), \
                (select count(*) from information_schema.processlist)";
    let found = ask(database, deadline, look.to_owned()).await?;
    let Some(row) = found.first() else { return Ok(Vec::new()) };
    let (version, name, user) = (rows::text(row, 0), database.schema.name(), rows::text(row, 3));
    let kind = if version.to_ascii_lowercase().contains("mariadb") { "MariaDB" } else { "MySQL" };
    let mut findings = vec![Finding::fine("server", format!("{kind} {version}, database '{name}', user '{user}'"))];
    if rows::flag(row, 1) {
        let fix = "name the primary in the URL, or set read_only = off";
        findings.push(Finding::new("server", Severity::Problem, "it may only be read, as a replica is", fix));
    }
    let (most, used) = (rows::number(row, 2), rows::number(row, 4));
    let connections = format!("{used} of {most} connections are in use, as far as this user sees");
    findings.push(if used.saturating_mul(10) < most.saturating_mul(8) {
        Finding::fine("connections", connections)
    } else {
        Finding::new("connections", Severity::Warning, connections, "raise max_connections or lower pool_size")
    });
    Ok(findings)
}

async fn durability(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let look = "select @@global.innodb_flush_log_at_trx_commit, @@global.log_bin, @@global.sync_binlog, \
                @@global.innodb_doublewrite";
    let found = ask(database, deadline, look.to_owned()).await?;
    let Some(row) = found.first() else { return Ok(Vec::new()) };
    let mut findings = Vec::new();
    let flush = rows::number(row, 0);
    if flush != 1 {
        findings.push(Finding::new(
            "durability",
            Severity::Problem,
            format!(
                "innodb_flush_log_at_trx_commit = {flush}: a commit is answered before it is on the disk, and a crash \
                 loses messages that were accepted"
            ),
            "set innodb_flush_log_at_trx_commit = 1",
        ));
    }
    if rows::flag(row, 1) && rows::number(row, 2) != 1 {
        findings.push(Finding::new(
            "durability",
            Severity::Warning,
            format!(
                "sync_binlog = {}: after a crash replicas may lack, or have, what this server has not",
                rows::number(row, 2)
            ),
            "set sync_binlog = 1",
        ));
    }
    let doublewrite = rows::text(row, 3);
    if ["0", "OFF"].contains(&doublewrite.as_str()) {
        findings.push(Finding::new(
            "durability",
            Severity::Warning,
            "innodb_doublewrite is off: a crash in the middle of a page's write can damage it",
            "set innodb_doublewrite = ON, unless the file system writes pages whole",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::fine("durability", "every commit is on the disk before it is answered"));
    }
    Ok(findings)
}

/// Who keeps old versions of rows from being removed, and how many there are.
async fn pins(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let look = format!(
        "select t.trx_mysql_thread_id, timestampdiff(second, t.trx_started, now()), t.trx_state, \
         coalesce(p.user, ''), coalesce(p.host, ''), coalesce(p.command, '') \
         from information_schema.innodb_trx t \
         left join information_schema.processlist p on p.id = t.trx_mysql_thread_id \
         where t.trx_started < now() - interval {BRIEF_SECONDS} second and t.trx_mysql_thread_id <> connection_id() \
         order by t.trx_started limit 5"
    );
    let mut findings: Vec<Finding> = ask(database, deadline, look).await?.iter().map(pin).collect();
    let history = "select `count` from information_schema.innodb_metrics where name = 'trx_rseg_history_len'";
    let history = ask(database, deadline, history.to_owned()).await?.first().map_or(0, |row| rows::number(row, 0));
    let found = format!("{history} old versions of rows wait to be removed");
    findings.push(if history < LONG_HISTORY {
        Finding::fine("old rows", found)
    } else {
        Finding::new("old rows", Severity::Warning, found, "end the transactions that have been open for long")
    });
    Ok(findings)
}

fn pin(row: &Row) -> Finding {
    let (thread, seconds) = (rows::number(row, 0), rows::number(row, 1));
    let [state, user, host, command] = [2, 3, 4, 5].map(|column| rows::text(row, column));
    let found = format!(
        "session {thread} (user {user}, from {host}, {command}, {state}) has had a transaction open for {seconds} s; it \
         may keep old rows from being removed"
    );
    let severity = if seconds >= LONG_SECONDS { Severity::Warning } else { Severity::Note };
    Finding::new(
        "old rows",
        severity,
        found,
        format!("end it with `kill {thread}`; wait_timeout ends idle sessions by itself"),
    )
}

async fn schema(database: &Database, deadline: Deadline) -> Finding {
    let version = migrations::all(&database.schema).last().map_or(0, |step| step.version);
    let missing = migrations::pending(database, "examine", deadline).await;
    let missing = missing.map(|missing| missing.iter().map(|step| step.name).collect());
    Finding::schema(database.schema.name(), version, missing)
}

/// Whether the user may write. A plan is refused to whoever may not do what is planned.
async fn rights(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let schema = database.schema.quoted();
    for plan in [
        format!("explain insert into {schema}.queue_pause (queue, paused_at) values ('', utc_timestamp(6))"),
        format!("explain update {schema}.message set priority = 4 where id = 0"),
        format!("explain delete from {schema}.message where id = 0"),
    ] {
        if let Err(error) = ask(database, deadline, plan).await {
            let fix = format!("an owner grants them: `grant select, insert, update, delete on {schema}.* to USER`");
            let found = error.into_harmless().to_string();
            return Ok(vec![Finding::new("rights", Severity::Problem, found, fix)]);
        }
    }
    Ok(vec![Finding::fine("rights", "all that are needed")])
}

async fn indexes(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let look = format!(
        "select distinct table_name, index_name from information_schema.statistics where table_schema = {}",
        literal::text(database.schema.name())
    );
    let found = ask(database, deadline, look).await?;
    let there: Vec<(String, String)> = found.iter().map(|row| (rows::text(row, 0), rows::text(row, 1))).collect();
    let known = migrations::indexes(&database.schema);
    let is_missing =
        |index: &&migrations::Index| !there.iter().any(|(table, name)| *table == index.table && *name == index.name);
    let mut findings: Vec<Finding> = known
        .iter()
        .filter(is_missing)
        .map(|index| {
            let found =
                format!("index {} of {} is missing: claims and settles walk whole tables", index.name, index.table);
            let fix =
                format!("make it: `alter table {}.{} add {}`", database.schema.quoted(), index.table, index.definition);
            Finding::new("indexes", Severity::Problem, found, fix)
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::fine("indexes", format!("all {} are there", known.len())));
    }
    Ok(findings)
}

async fn tables(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let names = literal::list(TABLES.iter().map(|table| literal::text(table)));
    let look = format!(
        "select table_name, table_rows, data_length + index_length, data_free, engine from information_schema.tables \
         where table_schema = {} and table_name in ({names})",
        literal::text(database.schema.name())
    );
    let finding = |row: &Row| {
        let (name, engine) = (rows::text(row, 0), rows::text(row, 4));
        let [rows, bytes, free] = [1, 2, 3].map(|column| rows::optional_number(row, column).unwrap_or(0));
        if !engine.eq_ignore_ascii_case("innodb") {
            let found = format!("{name} is kept by {engine}, which has no transactions");
            let fix = format!("`alter table {}.{name} engine = InnoDB`", database.schema.quoted());
            return Finding::new("tables", Severity::Problem, found, fix);
        }
        let [bytes, free] = [bytes, free].map(|bytes| bytes / 1_000_000);
        Finding::fine("tables", format!("{name}: about {rows} rows, {bytes} MB, {free} MB of it free"))
    };
    Ok(ask(database, deadline, look).await?.iter().map(finding).collect())
}
