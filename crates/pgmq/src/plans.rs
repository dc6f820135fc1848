//! Tests of the plans that the statements state.

use postrider_core::{Deadline, QueueName};
use postrider_pg::Schema;

use crate::Session;
use crate::names::Names;
use crate::options::PgmqOptions;
use crate::sql::{General, OfQueue, REDRIVE};
use crate::store::PgmqStore;

const PLAN: &str = "-- Plan: ";

fn url() -> String {
    std::env::var("POSTRIDER_PGMQ_URL").unwrap_or_else(|_| {
        panic!(
            "POSTRIDER_PGMQ_URL is not set: start a server with `scripts/services up postgres pgmq`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// Returns every file with its statement.
fn files() -> Vec<(&'static str, &'static str)> {
    [General::files(), OfQueue::files(), vec![("redrive", REDRIVE)]].concat()
}

/// Whether a plan step walks a table that can be large. A queue has a table of its own, so statements that count all
/// its messages may walk it.
fn is_costly(name: &str, step: &str) -> bool {
    step.contains("Seq Scan") && !matches!(name, "stats" | "count_dead" | "delete_queue")
}

#[tokio::test]
async fn every_statement_has_the_plan_that_it_states() {
    let (schema, queue, store) = opened().await;
    let (names, rendered) = (Names::of(&queue), Schema::new(&schema));
    let mut wrong = Vec::new();
    {
        let mut session = store.shared.database.session("test", Deadline::default()).await.unwrap();
        session.begin().await.unwrap();
        // The generic plan, which the server uses after the first few executions.
        session.batch("set local plan_cache_mode = force_generic_plan").await.unwrap();
        for (name, file) in files() {
            let statement = rendered.render(&names.render(file));
            session.batch(&format!("prepare judged as {statement}")).await.unwrap();
            let count = "select cardinality(parameter_types) from pg_prepared_statements where name = 'judged'";
            let count: i32 = session.query(count, &[]).await.unwrap()[0].get(0);
            let nulls = vec!["null"; usize::try_from(count).unwrap()].join(", ");
            let arguments = if nulls.is_empty() { nulls } else { format!("({nulls})") };
            let plan = session.lines(&format!("explain (costs off) execute judged{arguments}")).await.unwrap();
            let promised: Vec<String> =
                file.lines().filter_map(|line| line.strip_prefix(PLAN)).map(|step| names.insert(step)).collect();
            for step in &promised {
                if !plan.iter().any(|found| found.contains(step)) {
                    wrong.push(format!("{name} states {step:?} and has {plan:#?}"));
                }
            }
            for step in plan.iter().filter(|step| is_costly(name, step)) {
                wrong.push(format!("{name} has an unstated step {step}: {plan:#?}"));
            }
            session.batch("deallocate judged").await.unwrap();
        }
        session.rollback().await.unwrap();
        drop_all(&mut session, &schema, &queue).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Opens a store with a new schema and a new queue.
pub(crate) async fn opened() -> (String, QueueName, PgmqStore) {
    let schema = format!("test_{:016x}", rand::random::<u64>());
    let queue = QueueName::new(format!("{schema}_q")).unwrap();
    let options = PgmqOptions { schema: schema.clone(), ..PgmqOptions::default() };
    let store = PgmqStore::open(&url(), options).await.unwrap();
    store.shared.ensure_queue(&queue, Deadline::default()).await.unwrap();
    (schema, queue, store)
}

pub(crate) async fn drop_all(session: &mut Session<'_>, schema: &str, queue: &QueueName) {
    let drop = format!(
        "drop schema {schema} cascade; select pgmq.drop_queue('{queue}'); select pgmq.drop_queue('{queue}_dlq')"
    );
    session.begin().await.unwrap();
    session.batch(&drop).await.unwrap();
    session.commit().await.unwrap();
}

/// Returns how many rows a statement returned, and how many pages it read.
async fn pages(session: &Session<'_>, statement: &str, arguments: &str) -> (usize, usize) {
    let number = |line: &str, name: &str| -> usize {
        let number = line.split([' ', '(', ')']).find_map(|word| word.strip_prefix(name));
        number.map_or(0, |number| number.parse().unwrap())
    };
    session.batch(&format!("prepare judged as {statement}; savepoint before")).await.unwrap();
    let explain = format!("explain (analyze, buffers, costs off, timing off) execute judged({arguments})");
    let plan = session.lines(&explain).await.unwrap();
    session.batch("rollback to before; deallocate judged").await.unwrap();
    let buffers = plan.iter().find(|line| line.contains("Buffers: shared")).expect("buffers are counted");
    (number(&plan[0], "rows="), number(buffers, "hit=") + number(buffers, "read="))
}

#[tokio::test]
async fn neither_deep_keys_nor_many_keys_make_a_claim_slow() {
    let (schema, queue, store) = opened().await;
    let (names, rendered) = (Names::of(&queue), Schema::new(&schema));
    let (claim, next_due) = (include_str!("../sql/claim.sql"), include_str!("../sql/next_due.sql"));
    let [claim, next_due] = [claim, next_due].map(|file| rendered.render(&names.render(file)));
    let fill = |vt: &str, key: &str, count: usize| {
        names.insert(&format!(
            "insert into {{queue}} (vt, message, headers) select {vt}, '{{}}', jsonb_build_object('x-pgmq-group', {key})
             from generate_series(1, {count}) n"
        ))
    };
    let deep = fill("now() - interval '1 hour' + n * interval '1 ms'", "'deep' || n % 10", 30_000);
    let lease_heads = names.insert(
        "update {queue} set vt = now() + interval '1 hour' where msg_id in
         (select min(msg_id) from {queue} group by headers->>'x-pgmq-group')",
    );
    let free = names
        .insert("insert into {queue} (vt, message) select now() - interval '1 ms', '{}' from generate_series(1, 3000)");
    let many = fill("now()", "'key' || n", 3000);
    let slow = fill("now() - interval '1 hour'", "'key' || n", 30_000);
    // A queue's content, the limit of the claim, the expected rows, and the upper bound of pages.
    let shapes = [
        ("ten deep keys", vec![&deep], 10, 10, 1500),
        ("ten deep leased keys", vec![&deep, &lease_heads], 10, 0, 1500),
        ("messages without keys behind deep leased keys", vec![&deep, &lease_heads, &free], 10, 10, 1500),
        ("more keys behind deep leased ones", vec![&deep, &lease_heads, &many], 10, 10, 20_000),
        ("more keys than messages of each", vec![&slow], 10, 10, 1500),
    ];
    let mut wrong = Vec::new();
    let mut session = store.shared.database.session("test", Deadline::default()).await.unwrap();
    for (shape, steps, wanted, expected, most) in shapes {
        session.batch(&names.insert("truncate {queue}")).await.unwrap();
        for step in steps {
            session.batch(step).await.unwrap();
        }
        // Dead row versions are not what is tested.
        session.batch(&names.insert("vacuum {queue}")).await.unwrap();
        session.begin().await.unwrap();
        let (found, claiming) = pages(&session, &claim, &format!("'{queue}', {wanted}, 30000000, true, 5, 110")).await;
        let (_, looking) = pages(&session, &next_due, &format!("'{queue}', true, 100")).await;
        session.rollback().await.unwrap();
        if found != expected || claiming > most || looking > most {
            wrong.push(format!("{shape}: {found} of {expected} for {claiming} pages, a look for {looking}"));
        }
    }
    drop_all(&mut session, &schema, &queue).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_is_a_statement() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(files().iter().any(|(listed, _)| *listed == name), "{name}.sql is not used");
        }
    }
}
