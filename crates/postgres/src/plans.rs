//! Whether each statement is carried out in the way that is written beside it.

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

/// What walks a table that can be large.
fn is_costly(step: &str) -> bool {
    ["message", "dead_letter", "message_archive", "idempotency", "unplaced"]
        .iter()
        .any(|table| step.contains(&format!("Seq Scan on {table} ")) || step.ends_with(&format!("Seq Scan on {table}")))
}

#[tokio::test]
async fn every_statement_has_the_plan_that_it_says() {
    let schema = format!("test_{:016x}", rand::random::<u64>());
    let options = PostgresOptions { schema: schema.clone(), ..PostgresOptions::default() };
    let database = options.database(&url()).unwrap();
    migrations::of(&database.sql.schema).apply(&database, "test", Deadline::default()).await.unwrap();
    let mut wrong = Vec::new();
    {
        let mut session = database.session("test", Deadline::default()).await.unwrap();
        session.begin().await.unwrap();
        // The plan that serves every parameter, as it is used after the first few times.
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
                    wrong.push(format!("{name} promises {step:?} and has {plan:#?}"));
                }
            }
            for step in plan.iter().filter(|step| is_costly(step)) {
                wrong.push(format!("{name} does not say that it will {step}: {plan:#?}"));
            }
            session.batch("deallocate judged").await.unwrap();
        }
        session.batch(&format!("drop schema {schema} cascade")).await.unwrap();
        session.commit().await.unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How many pages a statement looked at.
async fn pages(session: &Session<'_>, statement: &str, arguments: &str) -> u64 {
    session.batch(&format!("prepare judged as {statement}")).await.unwrap();
    let explain = format!("explain (analyze, buffers, costs off, timing off) execute judged({arguments})");
    // The first time, what others have left in the index is cleaned up.
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
        // The one queue that is polled has delayed ones as well.
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
    // Ten probes of a tree of three or four levels each, and a few pages beside them.
    assert!((10..=100).contains(&claim), "a claim of nothing looks at {claim} pages");
    assert!((10..=100).contains(&look), "a look for the next due message looks at {look} pages");
}

#[test]
fn every_file_is_a_statement() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    let statements = sql::Sql::new(postrider_pg::Schema::new("postrider"));
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(statements.all().iter().any(|(listed, _)| *listed == name), "{name}.sql is used by nobody");
        }
    }
}
