//! Locks of other transactions delay only the calls that need them.

use std::time::Duration;

use postrider_conformance::locks::{Scene, ensure_over};
use postrider_core::{
    DeadLetterSelection, DeadLetters, Disposition, Message, MessagingError, MessagingService, Nack, QueueAdmin,
    QueuedMessage, ReceiveOptions, Redrive, Settlement,
};
use postrider_pg::Schema;
use postrider_postgres::{ArchivePolicy, PostgresOptions, PostgresProvider};
use postrider_sql::stripes::stripe;

use crate::{Fixture, client, queue, soon};

/// Shorter than a statement's lock timeout, and longer than a few statements take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(4);

/// Time limit of calls that retry.
const LONGER: Duration = Duration::from_secs(20);

async fn received(provider: &PostgresProvider, max: usize) -> Vec<QueuedMessage> {
    let mut found = provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(max), soon()).await.unwrap();
    found.sort_by_key(|message| message.message.to_vec());
    found
}

fn bodies(messages: &[QueuedMessage]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8(message.message.to_vec()).unwrap()).collect()
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it does not wait for the open transaction")
}

#[tokio::test]
async fn messages_locked_by_a_transaction_do_not_stop_the_others() {
    let fixture = Fixture::new();
    for (archive, name) in [(ArchivePolicy::None, "plain"), (ArchivePolicy::All, "kept")] {
        let provider = fixture.connect_with(PostgresOptions { archive, ..fixture.options() }).await;
        let scene = Scene::set(&provider, &queue(name)).await.unwrap();
        let mut own = client().await;
        let mut transaction = own.transaction().await.unwrap();
        for receipt in scene.taken() {
            provider.store().ack_in(&mut transaction, receipt).await.unwrap();
        }
        let taken = scene.judge().await.unwrap();
        transaction.commit().await.unwrap();
        ensure_over(&provider, taken).await.unwrap();
    }
}

#[tokio::test]
async fn a_batch_does_not_wait_for_a_locked_key() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let keyed = |body: String, key: &str| Message::new(body).ordering_key(key).unwrap();
    for archive in [ArchivePolicy::None, ArchivePolicy::All] {
        let pairs = ["a", "b", "c", "d"].iter().flat_map(|key| (1..3).map(move |n| keyed(format!("{key}{n}"), key)));
        provider.send_batch(&orders, pairs.collect(), soon()).await.unwrap();
        let settler = fixture.connect_with(PostgresOptions { archive, ..fixture.options() }).await;
        let heads = received(&settler, 9).await;
        assert_eq!(bodies(&heads), ["a1", "b1", "c1", "d1"]);

        // A process that holds the locks of keys a and d.
        let mut busy = client().await;
        let transaction = busy.transaction().await.unwrap();
        let class = Schema::new(&fixture.schema).lock_class();
        for key in ["a", "d"] {
            let lock = "select pg_advisory_xact_lock($1, $2)";
            transaction.query(lock, &[&class, &stripe(&orders, key)]).await.unwrap();
        }

        let mut ends: Vec<Settlement> = heads.into_iter().map(Settlement::ack).collect();
        ends[3].disposition = Disposition::Nack(Nack::dead_letter("unwanted"));
        for row in in_time(settler.settle(ends, soon())).await.unwrap() {
            row.unwrap();
        }
        let next = in_time(received(&settler, 9)).await;
        assert_eq!(bodies(&next), ["b2", "c2"], "the other keys are promoted");
        // A waiting receiver gets the messages of freed keys.
        let waiting = {
            let (settler, options) = (settler.clone(), ReceiveOptions::batch(9).wait(Duration::from_secs(20)));
            tokio::spawn(async move { settler.receive_messages(&queue("orders"), &options, soon()).await.unwrap() })
        };
        transaction.rollback().await.unwrap();
        let mut last = waiting.await.unwrap();
        last.extend(received(&settler, 9).await);
        last.sort_by_key(|message| message.message.to_vec());
        assert_eq!(bodies(&last), ["a2", "d2"], "the locked ones when they are free");
        for row in settler.settle(last.into_iter().chain(next).map(Settlement::ack).collect(), soon()).await.unwrap() {
            row.unwrap();
        }
    }
}

#[tokio::test]
async fn a_settle_does_not_wait_for_a_transaction_that_dead_letters_the_next_of_the_key() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let keyed = |body: &'static str| Message::new(body).ordering_key("k").unwrap();
    for is_kept in [false, true] {
        let over = keyed("over").dedup_key("d").unwrap().expires_in(Duration::ZERO);
        provider.send_batch(&orders, vec![keyed("head"), over, keyed("next")], soon()).await.unwrap();
        let head = received(&provider, 9).await;
        assert_eq!(bodies(&head), ["head"]);
        let mut own = client().await;
        let transaction = own.transaction().await.unwrap();
        let send = format!("select {}.send('orders', 'new', dedup_key => 'd')", fixture.schema);
        transaction.query(&send, &[]).await.unwrap();
        for row in in_time(provider.settle(head.into_iter().map(Settlement::ack).collect(), soon())).await.unwrap() {
            row.unwrap();
        }
        assert!(in_time(received(&provider, 9)).await.is_empty(), "whether there is a next one is not known yet");
        if is_kept { transaction.commit().await } else { transaction.rollback().await }.unwrap();
        let mut left = received(&provider, 9).await;
        assert_eq!(bodies(&left), if is_kept { vec!["new", "next"] } else { vec!["next"] });
        for row in provider.settle(left.drain(..).map(Settlement::ack).collect(), soon()).await.unwrap() {
            row.unwrap();
        }
    }
}

#[tokio::test]
async fn sends_do_not_wait_for_a_dedup_key_that_a_transaction_has() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let deduped = |key: &str| Message::new("x").dedup_key(key).unwrap();
    let keyed = |message: Message| message.ordering_key("k").unwrap();
    let mut own = client().await;
    let mut transaction = own.transaction().await.unwrap();
    let first = provider.store().send_in(&mut transaction, &orders, &deduped("taken")).await.unwrap();

    let many = (0..100).map(|n| if n == 70 { keyed(deduped("taken")) } else { deduped(&format!("free {n}")) });
    let rows = in_time(provider.send_batch(&orders, many.collect(), soon())).await.unwrap();
    for (n, row) in rows.iter().enumerate() {
        match row {
            Ok(_) => assert_ne!(n, 70),
            Err(error) => assert!(n == 70 && error.is_retryable(), "{n}: {error:?}"),
        }
    }
    // Other sends go on while one retries, even with the stripe of its key.
    let again = provider.send_message(&orders, keyed(deduped("taken")), soon());
    let other = fixture.connect().await;
    let (again, meanwhile) =
        in_time(async { tokio::join!(again, other.send_message(&orders, keyed(Message::new("y")), soon())) }).await;
    assert!(again.is_err_and(|error| error.is_retryable()));
    meanwhile.unwrap();

    transaction.commit().await.unwrap();
    assert_eq!(provider.send_message(&orders, deduped("taken"), soon()).await.unwrap(), first);
    let stats = provider.queue_stats(&orders, soon()).await.unwrap();
    assert_eq!(stats.ready.value(), Some(101));
}

#[tokio::test]
async fn a_purge_leaves_what_a_transaction_has_and_a_deletion_says_so() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let keyed = |body: &'static str| Message::new(body).ordering_key("k").unwrap();
    provider.send_batch(&orders, vec![Message::new("1"), keyed("2"), keyed("3")], soon()).await.unwrap();
    let mut own = client().await;
    let transaction = own.transaction().await.unwrap();
    let lock = format!("select id from {}.message where payload = '1' for update", fixture.schema);
    transaction.query(&lock, &[]).await.unwrap();
    assert_eq!(in_time(provider.purge(&orders, soon())).await.unwrap(), 2);

    provider.send_message(&orders, keyed("4"), soon()).await.unwrap();
    let deleting = provider.delete_queue(&orders, soon());
    let other = fixture.connect().await;
    let meanwhile = in_time(other.send_message(&orders, keyed("5"), soon()));
    let (deleted, meanwhile) =
        tokio::time::timeout(LONGER, async { tokio::join!(deleting, meanwhile) }).await.expect("it gives up soon");
    assert!(matches!(deleted, Err(MessagingError::Busy { .. })), "{deleted:?}");
    meanwhile.unwrap();
    transaction.rollback().await.unwrap();
    provider.delete_queue(&orders, soon()).await.unwrap();
    assert!(received(&provider, 9).await.is_empty());
}

#[tokio::test]
async fn a_redrive_gives_up_when_an_expired_message_stays_locked() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, queue("orders"));
    let deduped = |body: &'static str| Message::new(body).dedup_key("d").unwrap();
    let id = provider.send_message(&orders, deduped("dead"), soon()).await.unwrap();
    let mut end = Settlement::ack(received(&provider, 1).await.remove(0));
    end.disposition = Disposition::Nack(Nack::dead_letter("unwanted"));
    provider.settle(vec![end], soon()).await.unwrap().remove(0).unwrap();
    provider.send_message(&orders, deduped("over").expires_in(Duration::ZERO), soon()).await.unwrap();
    let mut own = client().await;
    let transaction = own.transaction().await.unwrap();
    let lock = format!("select id from {}.message where payload = 'over' for update", fixture.schema);
    transaction.query(&lock, &[]).await.unwrap();
    let all = Redrive { selection: DeadLetterSelection::All, to: None, dry_run: false };
    let redriving = provider.redrive_dead_letters(&orders, &all, soon());
    let refused = tokio::time::timeout(LONGER, redriving).await.expect("it gives up soon");
    assert!(refused.as_ref().is_err_and(MessagingError::is_retryable), "{refused:?}");
    transaction.rollback().await.unwrap();
    let report = provider.redrive_dead_letters(&orders, &all, soon()).await.unwrap();
    assert_eq!(report.redriven, [id]);
}
