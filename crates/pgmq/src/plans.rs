//! Whether each statement is carried out in the way that is written beside it.

use postrider_core::{Deadline, QueueName};
use postrider_pg::Schema;

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

/// Every file with its statement.
fn files() -> Vec<(&'static str, &'static str)> {
    [General::files(), OfQueue::files(), vec![("redrive", REDRIVE)]].concat()
}

/// What walks a table that can be large. All messages of a queue are in a table of their own, so only what counts them
/// may.
fn is_costly(name: &str, step: &str) -> bool {
    step.contains("Seq Scan") && !matches!(name, "stats" | "count_dead" | "delete_queue")
}

#[tokio::test]
async fn every_statement_has_the_plan_that_it_says() {
    let schema = format!("test_{:016x}", rand::random::<u64>());
    let queue = QueueName::new(format!("{schema}_q")).unwrap();
    let options = PgmqOptions { schema: schema.clone(), ..PgmqOptions::default() };
    let store = PgmqStore::open(&url(), options).await.unwrap();
    store.shared.ensure_queue(&queue, Deadline::default()).await.unwrap();
    let (names, rendered) = (Names::of(&queue), Schema::new(&schema));
    let mut wrong = Vec::new();
    {
        let mut session = store.shared.database.session("test", Deadline::default()).await.unwrap();
        session.begin().await.unwrap();
        // The plan that serves every parameter, as it is used after the first few times.
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
                    wrong.push(format!("{name} promises {step:?} and has {plan:#?}"));
                }
            }
            for step in plan.iter().filter(|step| is_costly(name, step)) {
                wrong.push(format!("{name} does not say that it will {step}: {plan:#?}"));
            }
            session.batch("deallocate judged").await.unwrap();
        }
        session.rollback().await.unwrap();
        session.begin().await.unwrap();
        session
            .batch(&format!(
                "drop schema {schema} cascade; select pgmq.drop_queue('{queue}'); select pgmq.drop_queue('{queue}_dlq')"
            ))
            .await
            .unwrap();
        session.commit().await.unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_file_is_a_statement() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(files().iter().any(|(listed, _)| *listed == name), "{name}.sql is used by nobody");
        }
    }
}
