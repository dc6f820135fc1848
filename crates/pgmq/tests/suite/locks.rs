//! Locks of other transactions delay only the calls that need them.

use std::time::Duration;

use postrider_conformance::locks::{Scene, ensure_over};
use postrider_core::{
    DeadLetterSelection, DeadLetters, Message, MessagingService, Nack, QueueAdmin, ReceiveOptions, Settlement,
};
use postrider_pgmq::{ArchivePolicy, PgmqOptions};

use crate::{Fixture, client, soon};

/// Shorter than a statement's lock timeout, and longer than a few statements take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(4);

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it does not wait for the open transaction")
}

#[tokio::test]
async fn messages_locked_by_a_transaction_do_not_stop_the_others() {
    let fixture = Fixture::new();
    for (archive, name) in [(ArchivePolicy::None, "plain"), (ArchivePolicy::All, "kept")] {
        let provider = fixture.connect_with(PgmqOptions { archive, ..fixture.options() }).await;
        let queue = fixture.queue(name);
        let scene = Scene::set(&provider, &queue).await.unwrap();
        let mut own = client().await;
        let transaction = own.transaction().await.unwrap();
        let delete = format!(
            "select pgmq.delete('{queue}', msg_id) from pgmq.q_{queue} where headers->'postrider-message'->>'id' = $1"
        );
        for receipt in scene.taken() {
            let deleted = transaction.query_one(&delete, &[&receipt.message_id().to_string()]).await.unwrap();
            assert!(deleted.get::<_, bool>(0));
        }
        let taken = scene.judge().await.unwrap();
        transaction.commit().await.unwrap();
        ensure_over(&provider, taken).await.unwrap();
    }
}

#[tokio::test]
async fn a_purge_leaves_locked_messages() {
    let fixture = Fixture::new();
    let (provider, orders) = (fixture.connect().await, fixture.queue("orders"));
    let send = async || provider.send_batch(&orders, vec![Message::new("1"), Message::new("2")], soon()).await.unwrap();
    send().await;
    let received = provider.receive_messages(&orders, &ReceiveOptions::batch(2), soon()).await.unwrap();
    let dead = received.into_iter().map(|message| Settlement::nack(message, Nack::dead_letter("unwanted")));
    for row in provider.settle(dead.collect(), soon()).await.unwrap() {
        row.unwrap();
    }
    send().await;
    let mut own = client().await;
    let transaction = own.transaction().await.unwrap();
    for table in [format!("q_{orders}"), format!("q_{orders}_dlq")] {
        let lock =
            format!("select 1 from pgmq.{table} where msg_id = (select max(msg_id) from pgmq.{table}) for update");
        transaction.query_one(&lock, &[]).await.unwrap();
    }
    assert_eq!(in_time(provider.purge(&orders, soon())).await.unwrap(), 1);
    let all = DeadLetterSelection::All;
    assert_eq!(in_time(provider.purge_dead_letters(&orders, &all, soon())).await.unwrap(), 1);
    transaction.rollback().await.unwrap();
    assert_eq!(provider.purge(&orders, soon()).await.unwrap(), 1);
    assert_eq!(provider.purge_dead_letters(&orders, &all, soon()).await.unwrap(), 1);
}
