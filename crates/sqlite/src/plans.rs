//! Compares each statement's plan with the plan in its comment.

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
    let rows = explained.query_map(rusqlite::params_from_iter(parameters), |row| row.get("detail")).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

/// Whether a step scans one of the tables that can be large, or sorts.
fn is_costly(step: &str) -> bool {
    // A scan of a whole index is no better than a scan of its table.
    let tables = ["message", "dead_letter", "m", "d", "idempotency", "task", "r", "outbox", "state_record"];
    let is_walked = |table: &&str| step.strip_prefix("SCAN ").is_some_and(|walked| walked.starts_with(*table));
    tables.iter().any(is_walked) || step.starts_with("USE TEMP B-TREE")
}

#[test]
fn every_statement_has_the_plan_in_its_comment() {
    let connection = schema();
    for (name, statement) in sql::ALL {
        let plan = plan(&connection, statement);
        let promised: Vec<&str> = statement.lines().filter_map(|line| line.strip_prefix(PLAN)).collect();
        for step in &promised {
            assert!(plan.iter().any(|found| found == step), "{name} promises {step:?} and has {plan:#?}");
        }
        for step in plan.iter().filter(|step| is_costly(step)) {
            assert!(promised.contains(&step.as_str()), "the comment of {name} lacks the step {step}");
        }
    }
}

#[test]
fn every_sql_file_is_used() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(sql::ALL.iter().any(|(listed, _)| *listed == name), "{name}.sql is not used");
        }
    }
}
