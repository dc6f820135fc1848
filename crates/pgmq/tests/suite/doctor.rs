//! Findings of `doctor`.

use postrider_core::{Finding, Severity};
use postrider_pgmq::PgmqStore;

use crate::{Fixture, client, soon, url};

async fn examine(fixture: &Fixture) -> Vec<Finding> {
    PgmqStore::examine(&url(), fixture.options(), soon()).await.unwrap()
}

#[tokio::test]
async fn an_unlogged_queue_is_a_problem_and_its_fix_is_one() {
    let fixture = Fixture::new();
    fixture.connect().await;
    let queue = fixture.queue("quick");
    let client = client().await;
    client.execute("select pgmq.create_unlogged($1)", &[&queue.as_str()]).await.unwrap();
    let about = |findings: &[Finding]| {
        findings.iter().find(|finding| finding.found.contains(&format!("'{queue}' is unlogged"))).cloned()
    };
    let problem = about(&examine(&fixture).await).expect("a finding about the queue");
    assert_eq!((problem.check, problem.severity), ("durability", Severity::Problem));
    let statement = problem.fix.as_ref().unwrap().split('`').nth(1).unwrap();
    for statement in statement.split(';') {
        client.batch_execute(statement).await.unwrap();
    }
    assert_eq!(about(&examine(&fixture).await), None);
}

#[tokio::test]
async fn the_table_of_a_queue_with_capitals_is_examined() {
    let fixture = Fixture::new();
    fixture.connect().await;
    // PGMQ records the name as it is, and writes the name of the table in lower case.
    let queue = format!("{}_Quick-1", fixture.schema);
    let client = client().await;
    client.execute("select pgmq.create_unlogged($1)", &[&queue]).await.unwrap();
    let about = |findings: &[Finding]| {
        findings.iter().find(|finding| finding.found.contains(&format!("'{queue}' is unlogged"))).cloned()
    };
    let problem = about(&examine(&fixture).await).expect("a finding about the queue");
    let statement = problem.fix.as_ref().unwrap().split('`').nth(1).unwrap();
    client.batch_execute(statement).await.unwrap();
    assert_eq!(about(&examine(&fixture).await), None);
}

#[tokio::test]
async fn a_database_without_pgmq_is_a_problem() {
    let fixture = Fixture::new();
    let url = url().replace("/postrider_pgmq", "/postrider");
    let findings = PgmqStore::examine(&url, fixture.options(), soon()).await.unwrap();
    let mut problems = findings.iter().filter(|finding| finding.severity == Severity::Problem);
    // In the order of the fixes.
    let (install, migrate) = (problems.next().unwrap(), problems.next().unwrap());
    assert!(install.found.contains("create extension pgmq"), "{findings:#?}");
    assert!(install.fix.as_ref().is_some_and(|fix| fix.contains("then run `postrider migrate")), "{findings:#?}");
    assert_eq!(migrate.check, "schema", "{findings:#?}");
}
