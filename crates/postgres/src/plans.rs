//! Tests of the plans that the statements state.

use postrider_core::Deadline;

use crate::options::PostgresOptions;
use crate::{Session, migrations, sql};

const PLAN: &str = "-- Plan: ";

fn url() -> String {
    std::env::var("POSTRIDER_POSTGRES_URL").unwrap_or_else(|_| {
        panic!(
            "POSTRIDER_POSTGRES_URL is not set: start a server with `scripts/services up postgres`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// The tables that can be large.
const TABLES: &[&str] = &[
    "message",
    "dead_letter",
    "message_archive",
    "failed_attempt",
    "idempotency",
    "unplaced",
    "task",
    "task_unplaced",
    "task_attempt",
    "task_revision",
    "outbox",
    "task_schedule",
    "state_record",
];

/// Whether a plan step walks a table that can be large.
fn is_costly(step: &str) -> bool {
    TABLES
        .iter()
        .any(|table| step.contains(&format!("Seq Scan on {table} ")) || step.ends_with(&format!("Seq Scan on {table}")))
}

#[tokio::test]
async fn every_statement_has_the_plan_that_it_states() {
    let schema = format!("test_{:016x}", rand::random::<u64>());
    let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
    let database = options.database(&url()).unwrap();
    migrations::of(&database.sql.schema).apply(&database, "test", Deadline::default()).await.unwrap();
    let mut wrong = Vec::new();
    {
        let mut session = database.session("test", Deadline::default()).await.unwrap();
        session.begin().await.unwrap();
        // The generic plan, which the server uses after the first few executions.
        session.batch("set local plan_cache_mode = force_generic_plan").await.unwrap();
        for (name, statement) in database.sql.all() {
            let bitmaps = if statement.contains("-- With: enable_bitmapscan") { "on" } else { "off" };
            session.batch(&format!("set local enable_bitmapscan = {bitmaps}")).await.unwrap();
            session.batch(&format!("prepare judged as {statement}")).await.unwrap();
            let count = "select cardinality(parameter_types) from pg_prepared_statements where name = 'judged'";
            let count: i32 = session.query(count, &[]).await.unwrap()[0].get(0);
            let nulls = vec!["null"; usize::try_from(count).unwrap()].join(", ");
            let arguments = if nulls.is_empty() { nulls } else { format!("({nulls})") };
            let explain = format!("explain (costs off) execute judged{arguments}");
            let plan: Vec<String> = session.lines(&explain).await.unwrap();
            let promised: Vec<&str> = statement.lines().filter_map(|line| line.strip_prefix(PLAN)).collect();
            for step in &promised {
                if !plan.iter().any(|found| found.contains(step)) {
                    wrong.push(format!("{name} states {step:?} and has {plan:#?}"));
                }
            }
            for step in plan.iter().filter(|step| is_costly(step)) {
                wrong.push(format!("{name} has an unstated step {step}: {plan:#?}"));
            }
            session.batch("deallocate judged").await.unwrap();
        }
        session.batch(&format!("drop schema {schema} cascade")).await.unwrap();
        session.commit().await.unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns how many pages a statement reads.
async fn pages(session: &Session<'_>, statement: &str, arguments: &str) -> u64 {
    session.batch(&format!("prepare judged as {statement}")).await.unwrap();
    let arguments = if arguments.is_empty() { String::new() } else { format!("({arguments})") };
    let explain = format!("explain (analyze, buffers, costs off, timing off) execute judged{arguments}");
    // The first execution cleans dead index entries up.
    session.lines(&explain).await.unwrap();
    let plan = session.lines(&explain).await.unwrap();
    session.batch("deallocate judged").await.unwrap();
    let line = plan.iter().find_map(|line| line.trim().strip_prefix("Buffers: shared ")).unwrap_or_default();
    let number = |part: &str| part.split_once('=').map_or(0, |(_, number)| number.parse().unwrap());
    line.split(' ').filter(|part| part.starts_with("hit=") || part.starts_with("read=")).map(number).sum()
}

#[tokio::test]
async fn messages_of_other_queues_and_delayed_ones_do_not_slow_an_empty_poll() {
    let rows = if std::env::var_os("POSTRIDER_LONG").is_some() { 300_000 } else { 30_000 };
    let schema = format!("test_{:016x}", rand::random::<u64>());
    let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
    let database = options.database(&url()).unwrap();
    migrations::of(&database.sql.schema).apply(&database, "test", Deadline::default()).await.unwrap();
    let session = database.session("test", Deadline::default()).await.unwrap();
    for (delay, queues) in [("0", 30), ("1 day", 30), ("1 day", 1)] {
        // The polled queue has delayed messages too.
        let queue = if queues == 1 { "'polled'".to_owned() } else { format!("'other' || n % {queues}") };
        let rows = format!(
            "set statement_timeout = 0; insert into {schema}.message (queue, message_id, priority, next_attempt_at, \
             created_at, payload) select {queue}, gen_random_uuid(), n % 10, now() + interval '{delay}', now(), 'x' \
             from generate_series(1, {rows}) as n"
        );
        session.batch(&rows).await.unwrap();
    }
    let everything = "array_fill('-infinity'::timestamptz, array[10])";
    let claim =
        pages(&session, &database.sql.claim, &format!("'polled', 100, 30000000, 1, true, 3, {everything}")).await;
    let look = pages(&session, &database.sql.next_due, &format!("'polled', {everything}, 1000000")).await;
    session.batch(&format!("drop schema {schema} cascade")).await.unwrap();
    // Ten probes of a tree of three or four levels, and a few other pages.
    assert!((10..=100).contains(&claim), "a claim of nothing looks at {claim} pages");
    assert!((10..=100).contains(&look), "a look for the next due message looks at {look} pages");
}

#[tokio::test]
async fn ended_and_waiting_tasks_and_other_types_slow_nothing() {
    let rows = if std::env::var_os("POSTRIDER_LONG").is_some() { 200_000 } else { 20_000 };
    let schema = format!("test_{:016x}", rand::random::<u64>());
    let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
    let database = options.database(&url()).unwrap();
    migrations::of(&database.sql.schema).apply(&database, "test", Deadline::default()).await.unwrap();
    let session = database.session("test", Deadline::default()).await.unwrap();
    for (state, task_type, due, key) in [
        ("SUCCEEDED", "'polled'", "-1 day", "null"),
        ("DEAD", "'polled'", "-1 day", "null"),
        ("PENDING", "'polled'", "1 day", "null"),
        ("ENQUEUED", "'polled'", "1 day", "null"),
        ("PENDING", "'other' || n % 5", "-1 day", "null"),
        ("ENQUEUED", "'other' || n % 5", "-1 day", "null"),
        // All of one key, and each of its own key.
        ("PENDING", "'keyed'", "-1 day", "'k'"),
        ("PENDING", "'polled'", "1 day", "'k' || n"),
    ] {
        let rows = format!(
            "set statement_timeout = 0; insert into {schema}.task (task_id, task_type, state, priority, scheduled_for, \
             created_at, max_attempts, ordering_key, position, blocked, payload) select gen_random_uuid(), {task_type}, \
             '{state}', n % 10, now() + interval '{due}', now(), 3, {key}, n, coalesce({key}::text = 'k', false), 'x' \
             from generate_series(1, {rows}) as n"
        );
        session.batch(&rows).await.unwrap();
    }
    session.batch(&format!("analyze {schema}.task")).await.unwrap();
    let (priorities, types) = ("'{9,8,7,6,5,4,3,2,1,0}'", "array_fill('polled'::text, array[10])");
    let sql = &database.sql;
    let unknown: Vec<String> = (0..100).map(|_| uuid::Uuid::now_v7().to_string()).collect();
    let ids = format!("'{{{}}}'", unknown.join(","));
    let mut looks = Vec::new();
    for (name, statement, arguments, most) in [
        ("a claim of nothing", &sql.task_claim, format!("{priorities}, {types}, 100, 30000000, 1, 'w'"), 150),
        ("a look for the next due task", &sql.task_next_due, format!("{priorities}, {types}"), 150),
        ("a look for types to send", &sql.task_types, String::new(), 60),
        // Each id costs one index search.
        ("an end of tasks that are not held", &sql.task_succeed, format!("{ids}, null, null"), 500),
        ("a claim of unknown ids", &sql.task_claim_by_id, format!("{ids}, 1000, 1, 'w'"), 500),
        ("a replay of unknown ids", &sql.task_replay, ids.clone(), 500),
        ("a look at a key of many", &sql.task_promote, "array['keyed'], array['none']".to_owned(), 30),
        ("a look for lost leases", &sql.task_lost_leases, "100".to_owned(), 10),
        ("a look for missed deadlines", &sql.task_expire, "100, '', null, true, true, null, 9".to_owned(), 10),
    ] {
        let pages = pages(&session, statement, &arguments).await;
        looks.push(format!("{name}: {pages} pages"));
        assert!(pages <= most, "{name} looks at {pages} pages, {most} should do");
    }
    // The next task of a key is found at once, however many wait behind it.
    let next = pages(&session, &sql.task_promote, "array['keyed'], array['k']").await;
    session.batch(&format!("drop schema {schema} cascade")).await.unwrap();
    assert!((1..=60).contains(&next), "the next of a key is found by {next} pages; {looks:?}");
}

#[test]
fn every_file_is_a_statement() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    let statements = sql::Sql::new(postrider_pg::Schema::new("postrider"));
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(statements.all().iter().any(|(listed, _)| *listed == name), "{name}.sql is not used");
        }
    }
}
