//! Findings of `doctor`, and their fixes.

use std::time::Duration;

use postrider_core::{Finding, Severity};
use postrider_mysql::MysqlStore;
use postrider_mysql::mysql_async::prelude::Queryable;
use tokio::time::Instant;

use crate::{Fixture, options, soon};

async fn examine(fixture: &Fixture) -> Vec<Finding> {
    MysqlStore::examine(&fixture.url(), options(), soon()).await.unwrap()
}

/// The findings of a check that are not fine.
fn faults<'f>(findings: &'f [Finding], check: &str) -> Vec<&'f Finding> {
    findings.iter().filter(|finding| finding.check == check && finding.severity != Severity::Fine).collect()
}

/// The statement in a fix, which may itself quote a name.
fn fix(finding: &Finding) -> String {
    let fix = finding.fix.clone().unwrap();
    let (begin, end) = (fix.find('`').unwrap() + 1, fix.rfind('`').unwrap());
    fix[begin..end].to_owned()
}

#[tokio::test]
async fn a_database_in_order_has_no_problem() {
    let fixture = Fixture::new();
    fixture.connect().await;
    let findings = examine(&fixture).await;
    for check in ["connection", "server", "durability", "schema", "indexes", "tables"] {
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
        assert!(fault.fix.as_ref().unwrap().contains("postrider migrate"), "{fault:?}");
    }
}

#[tokio::test]
async fn a_missing_index_is_found_and_its_fix_makes_it() {
    let fixture = Fixture::new();
    fixture.connect().await;
    fixture.client().await.query_drop("alter table message drop index message_claim").await.unwrap();
    let findings = examine(&fixture).await;
    let fault = faults(&findings, "indexes")[0];
    assert!(fault.found.contains("message_claim"), "{fault:?}");
    fixture.client().await.query_drop(fix(fault)).await.unwrap();
    assert!(faults(&examine(&fixture).await, "indexes").is_empty());
}

#[tokio::test]
async fn a_session_with_an_old_transaction_is_named() {
    let fixture = Fixture::new();
    fixture.connect().await;
    let mut idle = fixture.client().await;
    idle.query_drop("start transaction with consistent snapshot; select count(*) from message").await.unwrap();
    let name = format!("session {} ", idle.id());
    let end = Instant::now() + Duration::from_secs(30);
    let fault = loop {
        let findings = examine(&fixture).await;
        if let Some(fault) = faults(&findings, "old rows").into_iter().find(|fault| fault.found.contains(&name)) {
            break fault.clone();
        }
        assert!(Instant::now() < end, "the session is not reported: {findings:#?}");
        // The server caches the table until no session has read it for a tenth of a second; other tests read it too.
        tokio::time::sleep(Duration::from_millis(rand::random_range(150..700))).await;
    };
    let kill = fault.fix.as_ref().unwrap().split('`').nth(1).unwrap().to_owned();
    fixture.client().await.query_drop(kill).await.unwrap();
    assert!(idle.query_drop("select 1").await.is_err(), "its fix ends the session");
}

#[tokio::test]
async fn what_cannot_be_reached_is_one_finding() {
    let findings = MysqlStore::examine("mysql://nobody:x@127.0.0.1:1/x", options(), soon()).await.unwrap();
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!((findings[0].check, findings[0].severity), ("connection", Severity::Problem));
}

#[tokio::test]
async fn a_user_who_may_only_read_is_a_problem() {
    let fixture = Fixture::new();
    fixture.connect().await;
    let name = fixture.name.clone();
    let mut owner = fixture.client().await;
    owner.query_drop(format!("create user {name}@'127.0.0.1' identified by 'x7'")).await.unwrap();
    owner.query_drop(format!("grant select on {name}.* to {name}@'127.0.0.1'")).await.unwrap();
    let url = fixture.url();
    let (_, server) = url.rsplit_once('@').unwrap();
    let findings = MysqlStore::examine(&format!("mysql://{name}:x7@{server}"), options(), soon()).await.unwrap();
    owner.query_drop(format!("drop user {name}@'127.0.0.1'")).await.unwrap();
    let fault = faults(&findings, "rights")[0];
    assert!(fault.severity == Severity::Problem && fault.fix.as_ref().unwrap().contains("grant"), "{fault:?}");
}
