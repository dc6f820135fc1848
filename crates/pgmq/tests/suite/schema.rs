//! The schema beside PGMQ's: its creation, and what is refused.

use futures_util::future::join_all;
use postrider_core::{Message, MessagingError, MessagingService, QueueName};
use postrider_pgmq::{PgmqOptions, PgmqStore};

use crate::{Fixture, client, soon, url};

async fn refusal(url: &str, options: PgmqOptions) -> MessagingError {
    PgmqStore::open(url, options).await.expect_err("it must be refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_can_create_it_at_once() {
    let fixture = Fixture::new();
    let opened = join_all((0..8).map(|_| async {
        let options = PgmqOptions { pool_size: 1, ..fixture.options() };
        let store = PgmqStore::open(&url(), options).await.unwrap();
        let message = Message::new("x").ordering_key("k").unwrap();
        store.connect().unwrap().send_message(&fixture.queue("orders"), message, soon()).await.unwrap();
    }));
    opened.await;
    let migrated = PgmqStore::migrate(&url(), fixture.options()).await.unwrap();
    assert_eq!(migrated, [], "nothing is left to apply");
    let rows = format!("select count(*) from {}.postrider_migration", fixture.schema);
    let applied: i64 = client().await.query_one(&rows, &[]).await.unwrap().get(0);
    assert_eq!(usize::try_from(applied).unwrap(), PgmqStore::all_migrations(&fixture.options()).len());
}

#[tokio::test]
async fn nothing_is_created_without_auto_migrate() {
    let fixture = Fixture::new();
    let options = PgmqOptions { auto_migrate: false, create_queues: false, ..fixture.options() };
    let refused = refusal(&url(), options.clone()).await;
    assert!(refused.to_string().contains("apply them with `postrider migrate`"), "{refused}");
    let pending = PgmqStore::pending_migrations(&url(), options.clone()).await.unwrap();
    assert_eq!(pending, PgmqStore::all_migrations(&options));
    PgmqStore::migrate(&url(), options.clone()).await.unwrap();
    let provider = fixture.connect_with(options).await;
    let missing = provider.send_message(&fixture.queue("orders"), Message::new("x"), soon()).await.unwrap_err();
    assert!(matches!(missing, MessagingError::QueueNotFound { .. }), "{missing}");
}

#[tokio::test]
async fn names_that_pgmq_cannot_hold_are_refused() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    for name in ["Orders", "a--b", &"x".repeat(44)] {
        let queue = QueueName::new(name).unwrap();
        let made = provider.ensure_queue(&queue, soon()).await;
        let sent = provider.send_message(&queue, Message::new("x"), soon()).await.map(drop);
        for answer in [made, sent] {
            assert!(matches!(answer, Err(MessagingError::InvalidInput { .. })), "{name}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn a_database_without_pgmq_says_how_to_install_it() {
    let fixture = Fixture::new();
    let plain = std::env::var("POSTRIDER_POSTGRES_URL").expect("POSTRIDER_POSTGRES_URL is set with POSTRIDER_PGMQ_URL");
    let missing = refusal(&plain, fixture.options()).await;
    assert!(missing.to_string().contains("create extension pgmq"), "{missing}");
    assert!(missing.to_string().contains("pgmq.sql"), "{missing}");
    assert!(!missing.is_retryable());
}

#[tokio::test]
async fn an_old_pgmq_is_refused() {
    let fixture = Fixture::new();
    let client = client().await;
    let database = format!("{}_old", fixture.schema);
    client.batch_execute(&format!("create database {database}")).await.unwrap();
    let old = url().rsplit_once('/').map(|(server, _)| format!("{server}/{database}")).unwrap();
    {
        let plain = old.strip_prefix("pgmq+").unwrap();
        let (own, connection) =
            postrider_pgmq::tokio_postgres::connect(plain, postrider_pgmq::tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let tables = "create schema pgmq; create table pgmq.meta (queue_name text); \
                      create type pgmq.message_record as (msg_id bigint, headers jsonb)";
        own.batch_execute(tables).await.unwrap();
    }
    let refused = refusal(&old, fixture.options()).await;
    client.batch_execute(&format!("drop database {database} with (force)")).await.unwrap();
    assert!(refused.to_string().contains("last_read_at"), "{refused}");
    assert!(refused.to_string().contains("1.10"), "{refused}");
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
    let forbidden = PgmqOptions { schema: "information_schema".into(), ..fixture.options() };
    let forbidden = refusal(&url, forbidden).await;
    assert!(forbidden.to_string().contains("the user lacks a right"), "{forbidden}");
}
