//! Whether each statement is carried out in the way that is written beside it.

use rusqlite::Connection;

use crate::{migrations, sql};

const PLAN: &str = "-- Plan: ";

fn schema() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    for step in migrations::all() {
        connection.execute_batch(step.sql).unwrap();
    }
    connection
}

fn plan(connection: &Connection, statement: &str) -> Vec<String> {
    let mut explained = connection.prepare(&format!("explain query plan {statement}")).unwrap();
    let parameters = vec![rusqlite::types::Null; explained.parameter_count()];
    let rows = explained.query_map(rusqlite::params_from_iter(parameters), |row| row.get(3)).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

/// What walks a table or sorts, of the tables that can be large.
fn is_costly(step: &str) -> bool {
    // An index that is walked from end to end is no better than its table.
    let tables = ["message", "dead_letter", "m", "d", "idempotency", "task", "r", "outbox", "state_record"];
    let is_walked = |table: &&str| step.strip_prefix("SCAN ").is_some_and(|walked| walked.starts_with(*table));
    tables.iter().any(is_walked) || step.starts_with("USE TEMP B-TREE")
}

#[test]
fn every_statement_has_the_plan_that_it_says() {
    let connection = schema();
    for (name, statement) in sql::ALL {
        let plan = plan(&connection, statement);
        let promised: Vec<&str> = statement.lines().filter_map(|line| line.strip_prefix(PLAN)).collect();
        for step in &promised {
            assert!(plan.iter().any(|found| found == step), "{name} promises {step:?} and has {plan:#?}");
        }
        for step in plan.iter().filter(|step| is_costly(step)) {
            assert!(promised.contains(&step.as_str()), "{name} does not say that it will {step}");
        }
    }
}

#[test]
fn every_file_is_a_statement() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(sql::ALL.iter().any(|(listed, _)| *listed == name), "{name}.sql is used by nobody");
        }
    }
}
