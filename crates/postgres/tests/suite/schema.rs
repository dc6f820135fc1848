//! The schema: its creation, and what is refused.

use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::{Message, MessageId, MessagingError, MessagingService, Nack, QueueAdmin, ReceiveOptions};
use postrider_postgres::{PostgresOptions, PostgresProvider, PostgresStore};

use crate::{Fixture, client, queue, soon, url};

async fn refusal(url: &str, options: PostgresOptions) -> MessagingError {
    PostgresStore::open(url, options).await.expect_err("it must be refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_can_create_it_at_once() {
    let fixture = Fixture::new();
    let opened = join_all((0..8).map(|_| async {
        let options = PostgresOptions { pool_size: 1, ..fixture.options() };
        let store = PostgresStore::open(&url(), options).await.unwrap();
        store.connect().unwrap().send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    }));
    opened.await;
    let migrated = PostgresStore::migrate(&url(), fixture.options()).await.unwrap();
    assert_eq!(migrated, [], "nothing is left to apply");
    let rows = format!("select count(*) from {}.postrider_migration", fixture.schema);
    let applied: i64 = client().await.query_one(&rows, &[]).await.unwrap().get(0);
    assert_eq!(usize::try_from(applied).unwrap(), PostgresStore::all_migrations(&fixture.options()).len());
}

#[tokio::test]
async fn a_newer_schema_is_refused_unless_it_says_that_it_works() {
    let fixture = Fixture::new();
    drop(fixture.connect().await);
    let client = client().await;
    let newer = |works_since: i64| {
        format!(
            "delete from {0}.postrider_migration where version = 999;
             insert into {0}.postrider_migration (version, name, works_since) values (999, 'x', {works_since})",
            fixture.schema
        )
    };
    client.batch_execute(&newer(1)).await.unwrap();
    drop(fixture.connect().await);
    client.batch_execute(&newer(999)).await.unwrap();
    let refused = refusal(&url(), fixture.options()).await;
    assert!(!refused.is_retryable());
    assert!(refused.to_string().contains("has version 999"), "{refused}");
}

#[tokio::test]
async fn nothing_is_created_without_auto_migrate() {
    let fixture = Fixture::new();
    let options = PostgresOptions { auto_migrate: false, ..fixture.options() };
    let refused = refusal(&url(), options.clone()).await;
    assert!(refused.to_string().contains("apply them with `postrider migrate`"), "{refused}");
    let pending = PostgresStore::pending_migrations(&url(), options.clone()).await.unwrap();
    assert_eq!(pending, PostgresStore::all_migrations(&options));
    PostgresStore::migrate(&url(), options.clone()).await.unwrap();
    drop(fixture.connect_with(options).await);
}

#[tokio::test]
async fn tables_of_another_program_are_left_alone() {
    let fixture = Fixture::new();
    let own = format!("create schema {0}; create table {0}.message (id int)", fixture.schema);
    client().await.batch_execute(&own).await.unwrap();
    let refused = refusal(&url(), fixture.options()).await;
    assert!(refused.to_string().contains("tables of another program"), "{refused}");
}

#[tokio::test]
async fn connection_errors_say_what_is_wrong() {
    let fixture = Fixture::new();
    let url = url();
    let (start, rest) = url.split_once("://").unwrap();
    let (credentials, server) = rest.split_once('@').unwrap();
    let (user, _) = credentials.split_once(':').unwrap();
    let bad_password = refusal(&format!("{start}://{user}:wrong@{server}"), fixture.options()).await;
    assert!(bad_password.to_string().contains("does not accept this user or password"), "{bad_password}");
    let (address, _) = server.split_once('/').unwrap();
    let bad_database = refusal(&format!("{start}://{credentials}@{address}/nowhere"), fixture.options()).await;
    assert!(bad_database.to_string().contains("the database does not exist"), "{bad_database}");
    for refused in [bad_password, bad_database] {
        assert!(!refused.is_retryable(), "{refused}");
    }
    let nobody = refusal("postgres://postrider@127.0.0.1:1/postrider", fixture.options()).await;
    assert!(matches!(nobody, MessagingError::Connection { .. }), "{nobody}");
    assert!(nobody.to_string().contains("127.0.0.1:1"), "{nobody}");
    let forbidden = PostgresOptions { schema: "information_schema".into(), ..fixture.options() };
    let forbidden = refusal(&url, forbidden).await;
    assert!(forbidden.to_string().contains("the user lacks a right"), "{forbidden}");
}

/// Sends a message with an id and lets its handler fail.
async fn fail(provider: &PostgresProvider, name: &str, id: MessageId, nack: Nack) {
    provider.send_message(&queue(name), Message::new("x").id(id), soon()).await.unwrap();
    let message = provider.receive_messages(&queue(name), &ReceiveOptions::default(), soon()).await.unwrap().remove(0);
    provider.nack_message(&queue(name), message, nack.with_error(name), soon()).await.unwrap();
}

#[tokio::test]
async fn failures_of_a_program_before_the_migration_are_kept() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let (living, dead, twice) = (MessageId::generate(), MessageId::generate(), MessageId::generate());
    let later = || Nack::retry_after(Duration::from_secs(3600));
    fail(&provider, "living", living, later()).await;
    fail(&provider, "dead", dead, Nack::dead_letter("rejected")).await;
    fail(&provider, "one", twice, later()).await;
    fail(&provider, "two", twice, later()).await;
    provider.close(soon()).await.unwrap();
    // Restores the tables of that program.
    let (client, s) = (client().await, &fixture.schema);
    let undo = format!(
        "insert into {s}.message_attempt \
         select message_id, attempt, started_at, failed_at, worker, error from {s}.failed_attempt on conflict do nothing; \
         drop table {s}.failed_attempt; delete from {s}.postrider_migration where version = 7"
    );
    client.batch_execute(&undo).await.unwrap();
    let provider = fixture.connect().await;
    let told = async |name: &str, id: MessageId| {
        let attempts = provider.message_attempts(&queue(name), id, soon()).await.unwrap();
        attempts.into_iter().map(|attempt| (attempt.attempt, attempt.error.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(told("living", living).await, [(1, "living".to_owned())]);
    assert_eq!(told("dead", dead).await, [(1, "dead".to_owned())]);
    assert_eq!(told("one", twice).await, [], "the queue of these failures is unknown");
    assert_eq!(told("two", twice).await, []);
    // That program still works beside this one.
    let note = format!(
        "insert into {s}.message_attempt (message_id, attempt, started_at, failed_at, worker, error) \
         values (gen_random_uuid(), 1, null, now(), 'w', null) \
         on conflict (message_id, attempt) do update set failed_at = excluded.failed_at"
    );
    client.batch_execute(&note).await.unwrap();
}
