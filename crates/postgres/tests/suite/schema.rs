//! The schema: how it comes into being, and what is refused.

use futures_util::future::join_all;
use postrider_core::{Message, MessagingError, MessagingService};
use postrider_postgres::{PostgresOptions, PostgresStore};

use crate::{Place, client, queue, soon, url};

async fn refusal(url: &str, options: PostgresOptions) -> MessagingError {
    PostgresStore::open(url, options).await.expect_err("it must be refused")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_can_make_it_at_once() {
    let place = Place::new();
    let opened = join_all((0..8).map(|_| async {
        let options = PostgresOptions { pool_size: 1, ..place.options() };
        let store = PostgresStore::open(&url(), options).await.unwrap();
        store.connect().unwrap().send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    }));
    opened.await;
    let migrated = PostgresStore::migrate(&url(), place.options()).await.unwrap();
    assert_eq!(migrated, [], "nothing is left to apply");
    let rows = format!("select count(*) from {}.postrider_migration", place.schema);
    let applied: i64 = client().await.query_one(&rows, &[]).await.unwrap().get(0);
    assert_eq!(usize::try_from(applied).unwrap(), PostgresStore::all_migrations(&place.options()).len());
}

#[tokio::test]
async fn a_newer_schema_is_refused_unless_it_says_that_it_works() {
    let place = Place::new();
    drop(place.connect().await);
    let client = client().await;
    let newer = |works_since: i64| {
        format!(
            "delete from {0}.postrider_migration where version = 999;
             insert into {0}.postrider_migration (version, name, works_since) values (999, 'x', {works_since})",
            place.schema
        )
    };
    client.batch_execute(&newer(1)).await.unwrap();
    drop(place.connect().await);
    client.batch_execute(&newer(999)).await.unwrap();
    let refused = refusal(&url(), place.options()).await;
    assert!(!refused.is_retryable());
    assert!(refused.to_string().contains("has version 999"), "{refused}");
}

#[tokio::test]
async fn nothing_is_made_when_nobody_asked() {
    let place = Place::new();
    let options = PostgresOptions { auto_migrate: false, ..place.options() };
    let refused = refusal(&url(), options.clone()).await;
    assert!(refused.to_string().contains("apply them with `postrider migrate`"), "{refused}");
    let pending = PostgresStore::pending_migrations(&url(), options.clone()).await.unwrap();
    assert_eq!(pending, PostgresStore::all_migrations(&options));
    PostgresStore::migrate(&url(), options.clone()).await.unwrap();
    drop(place.connect_with(options).await);
}

#[tokio::test]
async fn tables_of_another_program_are_left_alone() {
    let place = Place::new();
    let own = format!("create schema {0}; create table {0}.message (id int)", place.schema);
    client().await.batch_execute(&own).await.unwrap();
    let refused = refusal(&url(), place.options()).await;
    assert!(refused.to_string().contains("tables of another program"), "{refused}");
}

#[tokio::test]
async fn what_is_wrong_with_the_way_to_the_server_is_said() {
    let place = Place::new();
    let url = url();
    let (start, rest) = url.split_once("://").unwrap();
    let (credentials, server) = rest.split_once('@').unwrap();
    let (user, _) = credentials.split_once(':').unwrap();
    let bad_password = refusal(&format!("{start}://{user}:wrong@{server}"), place.options()).await;
    assert!(bad_password.to_string().contains("does not accept this user or password"), "{bad_password}");
    let (address, _) = server.split_once('/').unwrap();
    let bad_database = refusal(&format!("{start}://{credentials}@{address}/nowhere"), place.options()).await;
    assert!(bad_database.to_string().contains("the database does not exist"), "{bad_database}");
    for refused in [bad_password, bad_database] {
        assert!(!refused.is_retryable(), "{refused}");
    }
    let nobody = refusal("postgres://postrider@127.0.0.1:1/postrider", place.options()).await;
    assert!(matches!(nobody, MessagingError::Connection { .. }), "{nobody}");
    assert!(nobody.to_string().contains("127.0.0.1:1"), "{nobody}");
    let forbidden = PostgresOptions { schema: "information_schema".into(), ..place.options() };
    let forbidden = refusal(&url, forbidden).await;
    assert!(forbidden.to_string().contains("the user lacks a right"), "{forbidden}");
}
