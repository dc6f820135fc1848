//! Others are in the way: nobody waits who need not, and who was in a deadlock begins again.

use std::time::Duration;

use futures_util::future::join_all;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use postrider_core::{Message, MessagingService, QueuedMessage, ReceiveOptions, Settlement};
use postrider_mysql::{MysqlProvider, mysql_async};
use tokio::time::Instant;

use crate::{Place, queue, soon};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a session of the test's database that waits for a lock, and answers the number of its transaction.
pub(crate) async fn somebody_waits(place: &Place, besides: Option<u64>) -> u64 {
    let (mut looking, end) = (place.client().await, Instant::now() + PATIENCE);
    let waiting = format!(
        "select t.trx_id from information_schema.innodb_trx t \
         join information_schema.processlist p on p.id = t.trx_mysql_thread_id \
         where p.db = '{}' and t.trx_state = 'LOCK WAIT'",
        place.name
    );
    loop {
        let found: Vec<u64> = looking.query(&waiting).await.unwrap();
        if let Some(other) = found.into_iter().find(|found| Some(*found) != besides) {
            return other;
        }
        assert!(Instant::now() < end, "nobody waits for a lock");
        // The server answers from memory until nobody has asked for a tenth of a second.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn received(provider: &MysqlProvider, max: usize) -> Vec<QueuedMessage> {
    provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(max), soon()).await.unwrap()
}

fn bodies(messages: &[QueuedMessage]) -> Vec<String> {
    let mut bodies: Vec<String> =
        messages.iter().map(|message| String::from_utf8(message.message.to_vec()).unwrap()).collect();
    bodies.sort();
    bodies
}

/// Two messages in hand, and somebody else's transaction that has the row of the second.
async fn two_in_hand(place: &Place) -> (MysqlProvider, Vec<QueuedMessage>, Conn) {
    let provider = place.connect().await;
    provider.send_batch(&queue("orders"), vec![Message::new("1"), Message::new("2")], soon()).await.unwrap();
    let messages = received(&provider, 2).await;
    assert_eq!(messages.len(), 2);
    let mut own = place.client().await;
    own.query_drop("begin").await.unwrap();
    own.query_drop("select id from message where id = (select max(id) from message) for update").await.unwrap();
    (provider, messages, own)
}

fn settling(provider: &MysqlProvider, messages: Vec<QueuedMessage>) -> tokio::task::JoinHandle<()> {
    let provider = provider.clone();
    tokio::spawn(async move {
        for row in provider.settle(messages.into_iter().map(Settlement::ack).collect(), soon()).await.unwrap() {
            row.unwrap();
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_that_lost_a_deadlock_is_begun_again() {
    let place = Place::new();
    let mut heavy = place.client().await;
    heavy.query_drop("create table heavy (n int primary key) engine = InnoDB").await.unwrap();
    let (provider, messages, mut own) = two_in_hand(&place).await;
    // The server ends the transaction that has done less.
    let rows = (0..1000).map(|n| format!("({n})")).collect::<Vec<_>>().join(", ");
    own.query_drop(format!("insert into heavy values {rows}")).await.unwrap();
    let settling = settling(&provider, messages);
    somebody_waits(&place, None).await;
    // It has the first row and waits for the second; now the other way round. Were nobody ended, this would wait too.
    let first: Option<u64> = own
        .query_first("select id from message order by id limit 1 for update")
        .await
        .expect("the other one was ended");
    assert!(first.is_some());
    own.query_drop("rollback").await.unwrap();
    tokio::time::timeout(PATIENCE, settling).await.unwrap().unwrap();
    let left: Option<u64> = heavy.query_first("select count(*) from message").await.unwrap();
    assert_eq!(left, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_that_waited_too_long_for_a_lock_is_begun_again() {
    let place = Place::new();
    let (provider, messages, mut own) = two_in_hand(&place).await;
    let settling = settling(&provider, messages);
    let first = somebody_waits(&place, None).await;
    somebody_waits(&place, Some(first)).await;
    own.query_drop("rollback").await.unwrap();
    tokio::time::timeout(PATIENCE, settling).await.unwrap().unwrap();
    let left: Option<u64> = own.query_first("select count(*) from message").await.unwrap();
    assert_eq!(left, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyed_senders_and_settlers_that_cross_each_other_all_succeed() {
    let place = Place::new();
    let provider = place.connect().await;
    let (orders, keys) = (&queue("orders"), 20);
    let rounds = if crate::is_long() { 100 } else { 10 };
    let worker = |number: usize| {
        let place = &place;
        async move {
            let provider = place.connect().await;
            for round in 0..rounds {
                // Each goes through the keys in an order of its own.
                let order = (0..keys).map(|key| (key * 7 + number * 5 + round) % keys);
                let messages = order.map(|key| {
                    let message = Message::new(format!("{number} {round}")).ordering_key(format!("k{key}")).unwrap();
                    message.dedup_key(format!("{number} {round} {key}")).unwrap()
                });
                for row in provider.send_batch(orders, messages.collect(), soon()).await.unwrap() {
                    row.unwrap();
                }
                let held = provider.receive_messages(orders, &ReceiveOptions::batch(9), soon()).await.unwrap();
                for row in provider.settle(held.into_iter().map(Settlement::ack).collect(), soon()).await.unwrap() {
                    row.unwrap();
                }
            }
        }
    };
    join_all((0..6).map(worker)).await;
    let options = ReceiveOptions::batch(100).wait(Duration::from_secs(10));
    let (mut left, end) = (6 * rounds * keys, Instant::now() + PATIENCE * if crate::is_long() { 10 } else { 1 });
    let mut client = place.client().await;
    while left > 0 {
        assert!(Instant::now() < end, "{left} messages are stuck");
        let held = provider.receive_messages(orders, &options, soon()).await.unwrap();
        for row in provider.settle(held.into_iter().map(Settlement::ack).collect(), soon()).await.unwrap() {
            row.unwrap();
        }
        left = client.query_first("select count(*) from message").await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_batch_does_not_wait_for_a_key_that_somebody_is_busy_with() {
    let place = Place::new();
    let (provider, orders) = (place.connect().await, queue("orders"));
    let keyed = |body: String, key: &str| Message::new(body).ordering_key(key).unwrap();
    let pairs = ["a", "b", "c"].iter().flat_map(|key| (1..3).map(move |n| keyed(format!("{key}{n}"), key)));
    provider.send_batch(&orders, pairs.collect(), soon()).await.unwrap();
    let heads = received(&provider, 9).await;
    assert_eq!(bodies(&heads), ["a1", "b1", "c1"]);

    // A process that stands still in the middle of a change to key a.
    let mut busy = place.client().await;
    busy.query_drop("begin").await.unwrap();
    let stripe = postrider_sql::stripes::stripe(&orders, "a");
    busy.query_drop(format!("select id from stripe where id = {stripe} for update")).await.unwrap();

    let meanwhile = async {
        let acks = heads.into_iter().map(Settlement::ack).collect();
        for row in provider.settle(acks, soon()).await.unwrap() {
            row.unwrap();
        }
        received(&provider, 9).await
    };
    let next = tokio::time::timeout(Duration::from_secs(4), meanwhile).await.expect("nobody waits for the busy key");
    assert_eq!(bodies(&next), ["b2", "c2"], "the other keys go on");
    busy.query_drop("rollback").await.unwrap();
    assert_eq!(bodies(&received(&provider, 9).await), ["a2"], "and the busy one when it is free");
}

#[tokio::test]
async fn a_batch_does_not_wait_for_a_transaction_that_has_sent_and_acknowledged() {
    let place = Place::new();
    let (provider, orders) = (place.connect().await, queue("orders"));
    let keyed = |body: String, key: &str| Message::new(body).ordering_key(key).unwrap();
    let pairs = ["a", "b", "c"].iter().flat_map(|key| (1..3).map(move |n| keyed(format!("{key}{n}"), key)));
    provider.send_batch(&orders, pairs.collect(), soon()).await.unwrap();
    let mut heads = received(&provider, 9).await;
    heads.sort_by_key(|message| message.message.to_vec());
    let first = heads.remove(0).into_receipt();

    let mut own = place.client().await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    provider.store().ack_in(&mut transaction, &first).await.unwrap();
    for key in ["a", "b", "c"] {
        provider.store().send_in(&mut transaction, &orders, &keyed(format!("{key}3"), key)).await.unwrap();
    }
    let meanwhile = async {
        for row in provider.settle(heads.into_iter().map(Settlement::ack).collect(), soon()).await.unwrap() {
            row.unwrap();
        }
        received(&provider, 9).await
    };
    let next = tokio::time::timeout(Duration::from_secs(4), meanwhile).await.expect("nobody waits for the transaction");
    assert_eq!(bodies(&next), ["b2", "c2"]);
    transaction.commit().await.unwrap();
    assert_eq!(bodies(&received(&provider, 9).await), ["a2"]);
}
