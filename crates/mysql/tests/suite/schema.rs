//! The schema: its creation, and what is refused.

use std::time::Duration;

use futures_util::future::join_all;
use mysql_async::prelude::Queryable;
use postrider_core::{Message, MessageId, MessagingError, MessagingService, Nack, QueueAdmin, ReceiveOptions};
use postrider_mysql::{MysqlOptions, MysqlProvider, MysqlStore, mysql_async};

use crate::{Fixture, database_url, options, queue, soon};

async fn refusal(url: &str, options: MysqlOptions) -> MessagingError {
    MysqlStore::open(url, options).await.expect_err("it must be refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_can_create_it_at_once() {
    let fixture = Fixture::new();
    let opened = join_all((0..8).map(|_| async {
        let options = MysqlOptions { pool_size: 1, ..options() };
        let provider = fixture.connect_with(options).await;
        provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    }));
    opened.await;
    let migrated = MysqlStore::migrate(&fixture.url(), options()).await.unwrap();
    assert_eq!(migrated, [], "nothing is left to apply");
    let applied: Option<usize> =
        fixture.client().await.query_first("select count(*) from postrider_migration").await.unwrap();
    assert_eq!(applied, Some(MysqlStore::all_migrations(&fixture.url(), &options()).unwrap().len()));
}

#[tokio::test]
async fn a_newer_schema_is_refused_unless_it_says_that_it_works() {
    let fixture = Fixture::new();
    drop(fixture.connect().await);
    let mut client = fixture.client().await;
    let newer = |works_since: i64| {
        format!(
            "replace into postrider_migration (version, name, works_since, applied_at) values \
             (999, 'x', {works_since}, utc_timestamp(6))"
        )
    };
    client.query_drop(newer(1)).await.unwrap();
    drop(fixture.connect().await);
    client.query_drop(newer(999)).await.unwrap();
    let refused = refusal(&fixture.url(), options()).await;
    assert!(!refused.is_retryable());
    assert!(refused.to_string().contains("has schema version 999"), "{refused}");
}

#[tokio::test]
async fn nothing_is_created_without_auto_migrate() {
    let fixture = Fixture::new();
    let options = MysqlOptions { auto_migrate: false, ..options() };
    let refused = refusal(&fixture.url(), options.clone()).await;
    assert!(refused.to_string().contains("apply them with `postrider migrate`"), "{refused}");
    let pending = MysqlStore::pending_migrations(&fixture.url(), options.clone()).await.unwrap();
    assert_eq!(pending, MysqlStore::all_migrations(&fixture.url(), &options).unwrap());
    MysqlStore::migrate(&fixture.url(), options.clone()).await.unwrap();
    drop(fixture.connect_with(options).await);
}

#[tokio::test]
async fn tables_of_another_program_are_left_alone() {
    let fixture = Fixture::new();
    fixture.client().await.query_drop("create table message (id int)").await.unwrap();
    let refused = refusal(&fixture.url(), options()).await;
    assert!(refused.to_string().contains("tables of another program"), "{refused}");
}

#[tokio::test]
async fn connection_errors_say_what_is_wrong() {
    let url = crate::url();
    let (start, rest) = url.split_once("://").unwrap();
    let (credentials, server) = rest.split_once('@').unwrap();
    let (user, _) = credentials.split_once(':').unwrap();
    let bad_password = refusal(&format!("{start}://{user}:wrong@{server}"), options()).await;
    assert!(bad_password.to_string().contains("does not accept this user or password"), "{bad_password}");
    let bad_database = refusal(&database_url("nowhere"), options()).await;
    assert!(bad_database.to_string().contains("the database does not exist"), "{bad_database}");
    for refused in [bad_password, bad_database] {
        assert!(!refused.is_retryable(), "{refused}");
    }
    let no_database = refusal("mysql://postrider@127.0.0.1:1", options()).await;
    assert!(no_database.to_string().contains("names no database"), "{no_database}");
    let two_names = refusal("mysql://postrider:x@127.0.0.1:1/postrider/extra?ssl-mode=DISABLED", options()).await;
    assert!(two_names.to_string().contains("'postrider/extra' is not the name of one database"), "{two_names}");
    let nobody = refusal("mysql://postrider@127.0.0.1:1/postrider", options()).await;
    assert!(matches!(nobody, MessagingError::Connection { .. }), "{nobody}");
    assert!(nobody.to_string().contains("127.0.0.1:1"), "{nobody}");
    let cut_off = refusal(&format!("mysql://postrider@{}/postrider", hangs_up().await), options()).await;
    for error in [&nobody, &cut_off] {
        let mut told = vec![error.to_string()];
        let mut cause = std::error::Error::source(error);
        while let Some(source) = cause {
            told.push(source.to_string());
            cause = source.source();
        }
        assert!(told.iter().all(|text| text.matches("nput/output error").count() < 2), "{told:#?}");
    }
}

/// Returns the address of a server that accepts connections and closes them.
async fn hangs_up() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    address
}

#[tokio::test]
async fn a_user_who_lacks_rights_gets_the_fix() {
    let fixture = Fixture::new();
    let user = format!("reader_{:08x}", rand::random::<u32>());
    let mut client = fixture.client().await;
    client.query_drop(format!("create user '{user}'@'%' identified by 'secret'")).await.unwrap();
    let (_, address) = database_url(&fixture.name).rsplit_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let url = format!("mysql://{user}:secret@{address}");
    let shut_out = refusal(&url, options()).await;
    assert!(shut_out.to_string().contains("the user lacks a right"), "{shut_out}");
    client.query_drop(format!("grant select on {}.* to '{user}'@'%'", fixture.name)).await.unwrap();
    let cannot_make = refusal(&url, options()).await;
    assert!(cannot_make.to_string().contains("let an owner run `postrider migrate`"), "{cannot_make}");
    drop(fixture.connect().await);
    let reader = MysqlStore::open(&url, options()).await.unwrap().connect().unwrap();
    let cannot_send = reader.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap_err();
    assert!(cannot_send.to_string().contains("the user lacks a right"), "{cannot_send}");
    // With these an application can do everything but migrate.
    let rights = "select, insert, update, delete";
    client.query_drop(format!("grant {rights} on {}.* to '{user}'@'%'", fixture.name)).await.unwrap();
    let writer = MysqlStore::open(&url, options()).await.unwrap().connect().unwrap();
    let id = writer.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    let mut found = writer.receive_messages(&queue("orders"), &ReceiveOptions::default(), soon()).await.unwrap();
    assert_eq!(found[0].id(), id);
    writer.ack_message(&queue("orders"), found.remove(0), soon()).await.unwrap();
    for refused in [shut_out, cannot_make, cannot_send] {
        assert!(!refused.is_retryable() && !refused.to_string().contains('\n'), "{refused}");
    }
    client.query_drop(format!("drop user '{user}'@'%'")).await.unwrap();
}

/// Sends a message with an id and lets its handler fail.
async fn fail(provider: &MysqlProvider, name: &str, id: MessageId, nack: Nack) {
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
    let mut client = fixture.client().await;
    for step in [
        "replace into message_attempt \
         select message_id, attempt, started_at, failed_at, worker, error from failed_attempt",
        "drop table failed_attempt",
        "delete from postrider_migration where version = 3",
    ] {
        client.query_drop(step).await.unwrap();
    }
    let provider = fixture.connect().await;
    let told = async |name: &str, id: MessageId| {
        let attempts = provider.message_attempts(&queue(name), id, soon()).await.unwrap();
        attempts.into_iter().map(|attempt| (attempt.attempt, attempt.error.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(told("living", living).await, [(1, "living".to_owned())]);
    assert_eq!(told("dead", dead).await, [(1, "dead".to_owned())]);
    assert_eq!(told("one", twice).await, [], "whose failures these are is not known");
    assert_eq!(told("two", twice).await, []);
    // That program still works beside this one.
    let note = "insert into message_attempt (message_id, attempt, started_at, failed_at, worker, error) \
                values (repeat('x', 16), 1, null, utc_timestamp(6), 'w', null) \
                on duplicate key update failed_at = values(failed_at)";
    client.query_drop(note).await.unwrap();
}
