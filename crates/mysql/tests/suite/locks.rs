//! Locks of other transactions delay only the calls that need them, and deadlocks are retried.

use std::time::Duration;

use futures_util::future::join_all;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, TxOpts};
use postrider_conformance::locks::AT_ONCE;
use postrider_core::{
    DeadLetterReason, DeadLetterSelection, DeadLetters, Message, MessagingError, MessagingService, Nack, QueueAdmin,
    QueuedMessage, ReceiveOptions, Redrive, Settlement,
};
use postrider_mysql::{ArchivePolicy, MysqlOptions, MysqlProvider, mysql_async};
use tokio::time::Instant;

use crate::{Fixture, options, queue, soon};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Less than the time for which a locked row is retried.
const A_MOMENT: Duration = Duration::from_millis(300);

/// Waits until a session of the test's database waits for a lock. Returns its transaction.
pub(crate) async fn until_a_session_waits(fixture: &Fixture, besides: Option<u64>) -> u64 {
    let (mut looking, end) = (fixture.client().await, Instant::now() + PATIENCE);
    let waiting = format!(
        "select t.trx_id from information_schema.innodb_trx t \
         join information_schema.processlist p on p.id = t.trx_mysql_thread_id \
         where p.db = '{}' and t.trx_state = 'LOCK WAIT'",
        fixture.name
    );
    loop {
        let found: Vec<u64> = looking.query(&waiting).await.unwrap();
        if let Some(other) = found.into_iter().find(|found| Some(*found) != besides) {
            return other;
        }
        assert!(Instant::now() < end, "no session waits for a lock");
        // The server caches the table until no session has read it for a tenth of a second. Other tests read it too, so
        // the pauses are random.
        tokio::time::sleep(Duration::from_millis(rand::random_range(150..700))).await;
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

/// Leases two messages, and locks the row of the second in another transaction.
async fn two_leased(fixture: &Fixture, archive: ArchivePolicy) -> (MysqlProvider, Vec<QueuedMessage>, Conn) {
    let provider = fixture.connect_with(MysqlOptions { archive, ..options() }).await;
    provider.send_batch(&queue("orders"), vec![Message::new("1"), Message::new("2")], soon()).await.unwrap();
    let messages = received(&provider, 2).await;
    assert_eq!(messages.len(), 2);
    let mut own = fixture.client().await;
    own.query_drop("begin").await.unwrap();
    own.query_drop("select id from message where id = (select max(id) from message) for update").await.unwrap();
    (provider, messages, own)
}

fn is_taken<T>(result: &Result<T, MessagingError>) -> bool {
    matches!(result, Err(MessagingError::MessageLeased { .. }))
}

#[tokio::test]
async fn a_locked_row_delays_no_other_of_its_batch() {
    let fixture = Fixture::new();
    for archive in [ArchivePolicy::All, ArchivePolicy::None] {
        let (provider, mut messages, mut own) = two_leased(&fixture, archive).await;
        messages.sort_by_key(|message| message.message.to_vec());
        let (free, locked) = (messages[0].receipt().clone(), messages[1].receipt().clone());
        let orders = queue("orders");
        let long = Duration::from_secs(60);
        let both = async {
            tokio::join!(
                provider.extend_visibility(&orders, &free, long, soon()),
                provider.extend_visibility(&orders, &locked, long, soon())
            )
        };
        let began = Instant::now();
        let (extended, refused) = tokio::time::timeout(AT_ONCE, both).await.expect("it does not wait for the row");
        assert!(began.elapsed() > A_MOMENT, "it was not tried again");
        extended.unwrap();
        assert!(is_taken(&refused), "{refused:?}");

        let acks: Vec<Settlement> = messages.into_iter().map(Settlement::ack).collect();
        let settled = tokio::time::timeout(AT_ONCE, provider.settle(acks.clone(), soon())).await;
        let settled = settled.expect("it does not wait for the row").unwrap();
        assert!(settled[0].is_ok(), "{settled:?}");
        assert!(is_taken(&settled[1]), "{settled:?}");
        let options = ReceiveOptions::batch(1);
        let claiming = provider.settle_and_receive(acks, std::slice::from_ref(&orders), &options, soon());
        let claimed = tokio::time::timeout(AT_ONCE, claiming).await.expect("it does not wait for the row").unwrap();
        assert!(matches!(claimed.settled[0], Err(MessagingError::VisibilityExpired { .. })), "{claimed:?}");
        assert!(is_taken(&claimed.settled[1]), "{claimed:?}");
        own.query_drop("rollback").await.unwrap();
        provider.ack_message(&orders, locked, soon()).await.expect("the lease is still valid");
        let left: Option<u64> = own.query_first("select count(*) from message").await.unwrap();
        assert_eq!(left, Some(0));
    }
}

#[tokio::test]
async fn a_settle_retries_a_locked_row() {
    let fixture = Fixture::new();
    let (provider, messages, mut own) = two_leased(&fixture, ArchivePolicy::All).await;
    let acks: Vec<Settlement> = messages.into_iter().map(Settlement::ack).collect();
    let settling = provider.settle(acks, soon());
    let mut looking = fixture.client().await;
    let unlocking = async {
        let end = Instant::now() + PATIENCE;
        // The other row is gone, so this one was tried.
        while looking.query_first::<u64, _>("select count(*) from message").await.unwrap() != Some(1) {
            assert!(Instant::now() < end, "nothing was settled");
        }
        own.query_drop("rollback").await.unwrap();
    };
    let (settled, ()) = tokio::join!(settling, unlocking);
    assert!(settled.unwrap().iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_dedup_key_of_an_open_transaction_delays_no_other_send() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let with_key = |key: &str| Message::new("x").dedup_key(key).unwrap();
    let mut own = fixture.client().await;
    let mut transaction = own.start_transaction(TxOpts::default()).await.unwrap();
    let first = provider.store().send_in(&mut transaction, &orders, &with_key("busy")).await.unwrap();
    let batch = vec![
        with_key("a"),
        with_key("busy").ordering_key("k").unwrap(),
        Message::new("x").ordering_key("k").unwrap(),
        Message::new("x"),
    ];
    let sending = provider.send_batch(&orders, batch, soon());
    let sent = tokio::time::timeout(AT_ONCE, sending).await.expect("it does not wait for the key").unwrap();
    let accepted: Vec<bool> = sent.iter().map(Result::is_ok).collect();
    assert_eq!(accepted, [true, false, true, true], "{sent:?}");
    assert!(sent[1].as_ref().is_err_and(MessagingError::is_retryable), "{sent:?}");
    assert_eq!(received(&provider, 9).await.len(), 3, "the key has a head");
    transaction.commit().await.unwrap();
    assert_eq!(provider.send_message(&orders, with_key("busy"), soon()).await.unwrap(), first);
}

#[tokio::test]
async fn a_redrive_does_not_wait_for_a_locked_expired_holder_of_its_dedup_key() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let with_key = || Message::new("x").dedup_key("d").unwrap();
    provider.send_message(&orders, with_key(), soon()).await.unwrap();
    let dead = received(&provider, 1).await.remove(0);
    let nack = Nack::DeadLetter { reason: DeadLetterReason::REJECTED, error: None };
    provider.nack_message(&orders, dead, nack, soon()).await.unwrap();
    provider.send_message(&orders, with_key().expires_in(Duration::ZERO), soon()).await.unwrap();
    let mut own = fixture.client().await;
    own.query_drop("begin").await.unwrap();
    own.query_drop("select id from message where id = (select max(id) from message) for update").await.unwrap();
    let redrive = Redrive { selection: DeadLetterSelection::All, to: None, dry_run: false };
    let refused = tokio::time::timeout(PATIENCE, provider.redrive_dead_letters(&orders, &redrive, soon())).await;
    let refused = refused.expect("it is tried only so often");
    assert!(refused.as_ref().is_err_and(MessagingError::is_retryable), "{refused:?}");
    own.query_drop("rollback").await.unwrap();
    assert_eq!(provider.redrive_dead_letters(&orders, &redrive, soon()).await.unwrap().redriven.len(), 1);
}

#[tokio::test]
async fn a_purge_does_not_wait_for_a_locked_row() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let keyed = |key: &str| Message::new("x").ordering_key(key).unwrap();
    provider.send_batch(&orders, vec![keyed("a"), keyed("b")], soon()).await.unwrap();
    let mut own = fixture.client().await;
    own.query_drop("begin").await.unwrap();
    own.query_drop("select id from message where id = (select max(id) from message) for update").await.unwrap();
    let purged = tokio::time::timeout(AT_ONCE, provider.purge(&orders, soon())).await;
    assert_eq!(purged.expect("it does not wait for the row").unwrap(), 1);
    let deleted = tokio::time::timeout(AT_ONCE, provider.delete_queue(&orders, soon())).await;
    deleted.expect("it does not wait for the row").expect_err("there is still a message");
    assert!(provider.list_queues(soon()).await.unwrap().contains(&orders), "what is left can be seen");
    own.query_drop("rollback").await.unwrap();
    provider.delete_queue(&orders, soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_keyed_sends_and_settles_all_succeed() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let (orders, keys) = (&queue("orders"), 20);
    let rounds = if crate::is_long() { 100 } else { 10 };
    let worker = |number: usize| {
        let fixture = &fixture;
        async move {
            let provider = fixture.connect().await;
            for round in 0..rounds {
                // Each uses the keys in its own order.
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
    let mut client = fixture.client().await;
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
async fn a_batch_does_not_wait_for_a_locked_key() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let keyed = |body: String, key: &str| Message::new(body).ordering_key(key).unwrap();
    let pairs = ["a", "b", "c"].iter().flat_map(|key| (1..3).map(move |n| keyed(format!("{key}{n}"), key)));
    provider.send_batch(&orders, pairs.collect(), soon()).await.unwrap();
    let heads = received(&provider, 9).await;
    assert_eq!(bodies(&heads), ["a1", "b1", "c1"]);

    // A process that holds the lock of key a.
    let mut busy = fixture.client().await;
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
    let next =
        tokio::time::timeout(Duration::from_secs(4), meanwhile).await.expect("it does not wait for the locked key");
    assert_eq!(bodies(&next), ["b2", "c2"], "the other keys go on");
    busy.query_drop("rollback").await.unwrap();
    assert_eq!(bodies(&received(&provider, 9).await), ["a2"], "and the busy one when it is free");
}

#[tokio::test]
async fn a_batch_does_not_wait_for_a_transaction_that_has_sent_and_acknowledged() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let keyed = |body: String, key: &str| Message::new(body).ordering_key(key).unwrap();
    let pairs = ["a", "b", "c"].iter().flat_map(|key| (1..3).map(move |n| keyed(format!("{key}{n}"), key)));
    provider.send_batch(&orders, pairs.collect(), soon()).await.unwrap();
    let mut heads = received(&provider, 9).await;
    heads.sort_by_key(|message| message.message.to_vec());
    let first = heads.remove(0).into_receipt();

    let mut own = fixture.client().await;
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
    let next =
        tokio::time::timeout(Duration::from_secs(4), meanwhile).await.expect("it does not wait for the transaction");
    assert_eq!(bodies(&next), ["b2", "c2"]);
    transaction.commit().await.unwrap();
    assert_eq!(bodies(&received(&provider, 9).await), ["a2"]);
}
