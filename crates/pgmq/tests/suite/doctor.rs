//! What an examination finds.

use postrider_core::{Finding, Severity};
use postrider_pgmq::PgmqStore;

use crate::{Place, client, soon, url};

async fn examine(place: &Place) -> Vec<Finding> {
    PgmqStore::examine(&url(), place.options(), soon()).await.unwrap()
}

#[tokio::test]
async fn an_unlogged_queue_is_a_problem_and_its_fix_is_one() {
    let place = Place::new();
    place.connect().await;
    let queue = place.queue("quick");
    let client = client().await;
    client.execute("select pgmq.create_unlogged($1)", &[&queue.as_str()]).await.unwrap();
    let about = |findings: &[Finding]| {
        findings.iter().find(|finding| finding.found.contains(&format!("'{queue}' is unlogged"))).cloned()
    };
    let problem = about(&examine(&place).await).expect("a finding about the queue");
    assert_eq!((problem.check, problem.severity), ("durability", Severity::Problem));
    let statement = problem.fix.as_ref().unwrap().split('`').nth(1).unwrap();
    for statement in statement.split(';') {
        client.batch_execute(statement).await.unwrap();
    }
    assert_eq!(about(&examine(&place).await), None);
}

#[tokio::test]
async fn a_database_without_pgmq_is_a_problem() {
    let place = Place::new();
    let url = url().replace("/postrider_pgmq", "/postrider");
    let findings = PgmqStore::examine(&url, place.options(), soon()).await.unwrap();
    let mut problems = findings.iter().filter(|finding| finding.severity == Severity::Problem);
    // In the order in which they are to be corrected.
    let (install, migrate) = (problems.next().unwrap(), problems.next().unwrap());
    assert!(install.found.contains("create extension pgmq"), "{findings:#?}");
    assert!(install.fix.as_ref().is_some_and(|fix| fix.contains("then apply `postrider migrate")), "{findings:#?}");
    assert_eq!(migrate.check, "schema", "{findings:#?}");
}
