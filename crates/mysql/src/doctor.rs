//! `doctor`: checks of a database that holds queues, and of its server.

use std::time::Instant;

use mysql_async::Row;
use postrider_core::{BoxFuture, Deadline, Finding, MessagingError, Severity};
use postrider_provider::Undone;

use crate::connection::Database;
use crate::options::MysqlOptions;
use crate::{MysqlStore, literal, migrations, rows};

/// Age, in seconds, below which a transaction is not reported.
const BRIEF_SECONDS: u32 = 5;
/// Age, in seconds, from which a transaction is a warning.
const LONG_SECONDS: i64 = 60;
/// Number of old row versions from which they are a warning, because they slow every statement.
const LONG_HISTORY: i64 = 1_000_000;

const TABLES: &[&str] = &["message", "message_archive", "dead_letter"];

impl MysqlStore {
    /// Examines a database and its server. Returns findings, each with its fix; changes nothing. Fails only for a URL
    /// or options that are invalid.
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
    let look = "select version() as version, @@global.read_only as is_read_only, \
                @@global.max_connections as max_connections, current_user() as user_name, \
                (select count(*) from information_schema.processlist) as connections";
    let found = ask(database, deadline, look.to_owned()).await?;
    let Some(row) = found.first() else { return Ok(Vec::new()) };
    let (version, name, user) = (rows::text(row, "version"), database.schema.name(), rows::text(row, "user_name"));
    let kind = if version.to_ascii_lowercase().contains("mariadb") { "MariaDB" } else { "MySQL" };
    let mut findings = vec![Finding::fine("server", format!("{kind} {version}, database '{name}', user '{user}'"))];
    if rows::flag(row, "is_read_only") {
        let fix = "use the primary in the URL, or set read_only = off";
        findings.push(Finding::new("server", Severity::Problem, "it is read-only, as a replica is", fix));
    }
    let (most, used) = (rows::number(row, "max_connections"), rows::number(row, "connections"));
    let connections = format!("{used} of {most} connections are in use, as far as this user sees");
    findings.push(if used.saturating_mul(10) < most.saturating_mul(8) {
        Finding::fine("connections", connections)
    } else {
        Finding::new("connections", Severity::Warning, connections, "raise max_connections or lower pool_size")
    });
    Ok(findings)
}

async fn durability(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let look = "select @@global.innodb_flush_log_at_trx_commit as flush_log, @@global.log_bin as log_bin, \
                @@global.sync_binlog as sync_binlog, @@global.innodb_doublewrite as doublewrite";
    let found = ask(database, deadline, look.to_owned()).await?;
    let Some(row) = found.first() else { return Ok(Vec::new()) };
    let mut findings = Vec::new();
    let flush = rows::number(row, "flush_log");
    if flush != 1 {
        findings.push(Finding::new(
            "durability",
            Severity::Problem,
            format!(
                "innodb_flush_log_at_trx_commit = {flush}: a commit is answered before it is on disk, and a crash loses \
                 accepted messages"
            ),
            "set innodb_flush_log_at_trx_commit = 1",
        ));
    }
    if rows::flag(row, "log_bin") && rows::number(row, "sync_binlog") != 1 {
        findings.push(Finding::new(
            "durability",
            Severity::Warning,
            format!(
                "sync_binlog = {}: after a crash replicas may have lost, or kept, what this server has not",
                rows::number(row, "sync_binlog")
            ),
            "set sync_binlog = 1",
        ));
    }
    let doublewrite = rows::text(row, "doublewrite");
    if ["0", "OFF"].contains(&doublewrite.as_str()) {
        findings.push(Finding::new(
            "durability",
            Severity::Warning,
            "innodb_doublewrite is off: a crash during a page write can damage the page",
            "set innodb_doublewrite = ON, unless the file system writes pages whole",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::fine("durability", "every commit is on disk before it is answered"));
    }
    Ok(findings)
}

/// Reports what keeps old row versions from being removed, and how many there are.
async fn pins(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let look = format!(
        "select t.trx_mysql_thread_id as thread, timestampdiff(second, t.trx_started, now()) as seconds, \
         t.trx_state as state, coalesce(p.user, '') as user_name, coalesce(p.host, '') as host_name, \
         coalesce(p.command, '') as command \
         from information_schema.innodb_trx t \
         left join information_schema.processlist p on p.id = t.trx_mysql_thread_id \
         where t.trx_started < now() - interval {BRIEF_SECONDS} second and t.trx_mysql_thread_id <> connection_id() \
         order by t.trx_started limit 5"
    );
    let mut findings: Vec<Finding> = ask(database, deadline, look).await?.iter().map(pin).collect();
    let history = "select `count` as length from information_schema.innodb_metrics where name = 'trx_rseg_history_len'";
    let history = ask(database, deadline, history.to_owned()).await?;
    let history = history.first().map_or(0, |row| rows::number(row, "length"));
    let found = format!("{history} old row versions wait to be removed");
    findings.push(if history < LONG_HISTORY {
        Finding::fine("old rows", found)
    } else {
        Finding::new("old rows", Severity::Warning, found, "end the transactions that have been open for long")
    });
    Ok(findings)
}

fn pin(row: &Row) -> Finding {
    let (thread, seconds) = (rows::number(row, "thread"), rows::number(row, "seconds"));
    let [state, user, host, command] =
        ["state", "user_name", "host_name", "command"].map(|column| rows::text(row, column));
    let found = format!(
        "session {thread} (user {user}, from {host}, {command}, {state}) has had a transaction open for {seconds} s, which \
         may keep old rows from being removed"
    );
    let severity = if seconds >= LONG_SECONDS { Severity::Warning } else { Severity::Note };
    Finding::new(
        "old rows",
        severity,
        found,
        format!("end it with `kill {thread}`; wait_timeout ends idle sessions automatically"),
    )
}

async fn schema(database: &Database, deadline: Deadline) -> Finding {
    let version = migrations::all(&database.schema).last().map_or(0, |step| step.version);
    let missing = migrations::pending(database, "examine", deadline).await;
    let missing = missing.map(|missing| missing.iter().map(|step| step.name).collect());
    Finding::schema(database.schema.name(), version, missing)
}

/// Checks whether the user may write: `explain` needs the rights of the statement.
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
        "select distinct table_name as table_name, index_name as index_name from information_schema.statistics \
         where table_schema = {}",
        literal::text(database.schema.name())
    );
    let found = ask(database, deadline, look).await?;
    let there: Vec<(String, String)> =
        found.iter().map(|row| (rows::text(row, "table_name"), rows::text(row, "index_name"))).collect();
    let known = migrations::indexes(&database.schema);
    let is_missing =
        |index: &&migrations::Index| !there.iter().any(|(table, name)| *table == index.table && *name == index.name);
    let mut findings: Vec<Finding> = known
        .iter()
        .filter(is_missing)
        .map(|index| {
            let found =
                format!("index {} of {} is missing: claims and settles read whole tables", index.name, index.table);
            let fix = format!(
                "create it: `alter table {}.{} add {}`",
                database.schema.quoted(),
                index.table,
                index.definition
            );
            Finding::new("indexes", Severity::Problem, found, fix)
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::fine("indexes", format!("all {} exist", known.len())));
    }
    Ok(findings)
}

async fn tables(database: &Database, deadline: Deadline) -> Result<Vec<Finding>, Undone> {
    let names = literal::list(TABLES.iter().map(|table| literal::text(table)));
    let look = format!(
        "select table_name as name, table_rows as row_count, data_length + index_length as bytes, data_free as free_bytes, \
         engine as engine from information_schema.tables \
         where table_schema = {} and table_name in ({names})",
        literal::text(database.schema.name())
    );
    let finding = |row: &Row| {
        let (name, engine) = (rows::text(row, "name"), rows::text(row, "engine"));
        let [rows, bytes, free] =
            ["row_count", "bytes", "free_bytes"].map(|column| rows::optional_number(row, column).unwrap_or(0));
        if !engine.eq_ignore_ascii_case("innodb") {
            let found = format!("{name} has the engine {engine}, which has no transactions");
            let fix = format!("`alter table {}.{name} engine = InnoDB`", database.schema.quoted());
            return Finding::new("tables", Severity::Problem, found, fix);
        }
        let [bytes, free] = [bytes, free].map(|bytes| bytes / 1_000_000);
        Finding::fine("tables", format!("{name}: about {rows} rows, {bytes} MB, {free} MB of it free"))
    };
    Ok(ask(database, deadline, look).await?.iter().map(finding).collect())
}
