//! Whether each statement is carried out in the way that is written beside it.

use postrider_core::Deadline;

use crate::options::PostgresOptions;
use crate::{migrations, sql};

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
