//! Load of an idle queue on the server.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, TxOpts};
use postrider_core::{Message, MessagingService, ReceiveOptions};
use postrider_mysql::{MysqlProvider, MysqlStore, mysql_async};

use crate::{Fixture, options, queue, soon};

/// Statements with which a connection begins.
const SETTINGS: u64 = 3;

/// A user of the test's own, whose statements the server counts.
struct Counted {
    user: String,
    client: Conn,
}

impl Counted {
    async fn new(fixture: &Fixture) -> (Self, MysqlProvider) {
        let user = format!("counted_{:08x}", rand::random::<u32>());
        let mut client = fixture.client().await;
        client.query_drop("set global userstat = 1").await.expect("the right to have statements counted");
        client.query_drop(format!("create user '{user}'@'%' identified by 'secret'")).await.unwrap();
        client.query_drop(format!("grant all on {}.* to '{user}'@'%'", fixture.name)).await.unwrap();
        let port = Opts::from_url(&fixture.url()).unwrap().tcp_port();
        let url = format!("mysql://{user}:secret@127.0.0.1:{port}/{}", fixture.name);
        let provider = MysqlStore::open(&url, options()).await.unwrap().connect().unwrap();
        (Self { user, client }, provider)
    }

    /// The user's statements, without the settings of its connections: a busy pool opens another one at any time.
    async fn statements(&mut self) -> u64 {
        let counted = format!(
            "select select_commands + update_commands + other_commands - {SETTINGS} * total_connections \
             from information_schema.user_statistics where user = '{}'",
            self.user
        );
        self.client.query_first(counted).await.unwrap().expect("the server counts")
    }

    async fn end(mut self) {
        self.client.query_drop(format!("drop user '{}'@'%'", self.user)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_waits_looks_once_a_second() {
    let fixture = Fixture::new();
    let (mut counted, provider) = Counted::new(&fixture).await;
    let before = counted.statements().await;
    let options = ReceiveOptions::default().wait(Duration::from_secs(3));
    let messages = provider.receive_messages(&queue("idle"), &options, soon()).await.unwrap();
    assert_eq!(messages.len(), 0);
    let statements = counted.statements().await - before;
    // A claim at its start and at its end, and a look each second.
    assert!((2..=6).contains(&statements), "{statements} statements in 3 s");
    counted.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_hints_looks_once_a_second() {
    let fixture = Fixture::new();
    let (mut counted, provider) = Counted::new(&fixture).await;
    let before = counted.statements().await;
    let mut hints = provider.subscribe(&queue("idle"), soon()).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_millis(2500), hints.next()).await;
    assert!(heard.is_err(), "there was nothing to hear of");
    let statements = counted.statements().await - before;
    assert!((2..=4).contains(&statements), "{statements} statements in 2.5 s");
    counted.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_tries_locked_stripes_ten_times_a_second() {
    let fixture = Fixture::new();
    let (mut counted, provider) = Counted::new(&fixture).await;
    let mut own = fixture.client().await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    let message = Message::new("1").ordering_key("k").unwrap();
    provider.store().send_in(&mut transaction, &queue("orders"), &message).await.unwrap();
    transaction.commit().await.unwrap();
    let mut other = own.start_transaction(TxOpts::default()).await.unwrap();
    other.query_drop("select id from stripe for update").await.unwrap();

    let before = counted.statements().await;
    let options = ReceiveOptions::default().wait(Duration::from_secs(2));
    let messages = provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap();
    assert_eq!(messages.len(), 0);
    let statements = counted.statements().await - before;
    assert!(statements <= 150, "{statements} statements in 2 s");
    other.rollback().await.unwrap();
    counted.end().await;
}
