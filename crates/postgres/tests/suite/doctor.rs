//! Findings of `doctor`, and their fixes.

use std::time::Duration;

use postrider_core::{Finding, Severity};
use postrider_postgres::PostgresStore;
use tokio::time::Instant;

use crate::{Fixture, client, soon, url};

async fn examine(fixture: &Fixture) -> Vec<Finding> {
    PostgresStore::examine(&url(), fixture.options(), soon()).await.unwrap()
}

/// The findings of a check that are not fine.
fn faults<'f>(findings: &'f [Finding], check: &str) -> Vec<&'f Finding> {
    findings.iter().filter(|finding| finding.check == check && finding.severity != Severity::Fine).collect()
}

#[tokio::test]
async fn a_database_in_order_has_no_problem() {
    let fixture = Fixture::new();
    fixture.connect().await;
    let findings = examine(&fixture).await;
    for check in
        ["connection", "server", "notifications", "durability", "schema", "search path", "rights", "indexes", "tables"]
    {
        assert!(findings.iter().any(|finding| finding.check == check), "{check}: {findings:#?}");
        assert!(faults(&findings, check).is_empty(), "{findings:#?}");
    }
}

#[tokio::test]
async fn a_missing_schema_is_found_and_not_made() {
    let fixture = Fixture::new();
    for _ in 0..2 {
        let findings = examine(&fixture).await;
        let fault = faults(&findings, "schema")[0];
        assert_eq!(fault.severity, Severity::Problem);
        assert!(fault.fix.as_ref().unwrap().contains("postrider migrate"), "{fault:?}");
    }
}

#[tokio::test]
async fn a_missing_index_is_found_and_its_fix_makes_it() {
    let fixture = Fixture::new();
    fixture.connect().await;
    client().await.batch_execute(&format!("drop index {}.message_claim", fixture.schema)).await.unwrap();
    let findings = examine(&fixture).await;
    let fault = faults(&findings, "indexes")[0];
    assert!(fault.found.contains("message_claim"), "{fault:?}");
    let statement = fault.fix.as_ref().unwrap().split('`').nth(1).unwrap();
    client().await.batch_execute(statement).await.unwrap();
    assert!(faults(&examine(&fixture).await, "indexes").is_empty());
}

#[tokio::test]
async fn the_session_that_pins_old_rows_is_named_with_its_age() {
    let fixture = Fixture::new();
    fixture.connect().await;
    let idle = client().await;
    let pid: i32 = idle.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    idle.batch_execute("begin isolation level repeatable read; select 1").await.unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let fault = loop {
        let findings = examine(&fixture).await;
        let ours =
            faults(&findings, "old rows").into_iter().find(|fault| fault.found.contains(&format!("session {pid} ")));
        if let Some(fault) = ours {
            break fault.clone();
        }
        assert!(Instant::now() < end, "the session is not reported: {findings:#?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(fault.found.contains("idle in transaction"), "{fault:?}");
    let statement = fault.fix.as_ref().unwrap().split('`').nth(1).unwrap().to_owned();
    client().await.batch_execute(&statement).await.unwrap();
    assert!(idle.batch_execute("select 1").await.is_err(), "its fix ends the session");
}

#[tokio::test]
async fn a_setting_that_weakens_durability_is_a_problem() {
    let fixture = Fixture::new();
    fixture.connect().await;
    let url = format!("{}?options=-c%20synchronous_commit%3Doff", url());
    let findings = PostgresStore::examine(&url, fixture.options(), soon()).await.unwrap();
    let fault = faults(&findings, "durability")[0];
    assert_eq!(fault.severity, Severity::Problem);
    assert!(fault.found.contains("synchronous_commit"), "{fault:?}");
}

#[tokio::test]
async fn a_role_whose_search_path_leads_to_the_schema_is_reported() {
    let fixture = Fixture::new();
    fixture.connect().await;
    let examine = async |path: &str| {
        let url = format!("{}?options=-c%20search_path%3D{path}", url());
        PostgresStore::examine(&url, fixture.options(), soon()).await.unwrap()
    };
    // The default search_path leads a role to the schema of its name.
    let findings = examine(&format!("{},public", fixture.schema)).await;
    let fault = faults(&findings, "search path")[0];
    assert_eq!(fault.severity, Severity::Warning);
    assert!(fault.found.contains(&format!("search_path = {},public", fixture.schema)), "{fault:?}");
    let fix = fault.fix.as_ref().unwrap();
    assert!(fix.contains("alter role \"postrider\" set search_path = public"), "{fix}");
    assert!(faults(&examine("public").await, "search path").is_empty());
    // A path whose first schemas do not exist leads on.
    let findings = examine(&format!("missing,{}", fixture.schema)).await;
    assert_eq!(faults(&findings, "search path").len(), 1, "{findings:#?}");
}

#[tokio::test]
async fn what_cannot_be_reached_is_one_finding() {
    let fixture = Fixture::new();
    for url in ["postgres://nobody:x@127.0.0.1:1/x".to_owned(), url().replace("postrider:", "nobody:")] {
        let findings = PostgresStore::examine(&url, fixture.options(), soon()).await.unwrap();
        assert_eq!(findings.len(), 1, "{findings:#?}");
        assert_eq!((findings[0].check, findings[0].severity), ("connection", Severity::Problem));
    }
}

#[tokio::test]
async fn a_missing_table_is_a_problem() {
    let fixture = Fixture::new();
    fixture.connect().await;
    client().await.batch_execute(&format!("drop table {}.queue_pause", fixture.schema)).await.unwrap();
    let findings = examine(&fixture).await;
    let fault = faults(&findings, "schema")[0];
    assert!(fault.severity == Severity::Problem && fault.found.contains("queue_pause"), "{fault:?}");
}
