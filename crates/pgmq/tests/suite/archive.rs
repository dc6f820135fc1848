//! What is kept of messages after their end, in PGMQ's own archives.

use std::time::Duration;

use postrider_core::{DeadLetterSelection, DeadLetters, Message, MessagingService, Nack};
use postrider_pgmq::{ArchivePolicy, PgmqOptions, PgmqProvider};

use crate::{Place, client, soon, take};

/// The archived messages of the queue and of its dead letters: their bodies and states.
async fn archived(place: &Place) -> Vec<(String, Option<String>)> {
    let queue = place.queue("orders");
    let rows = format!(
        "select message::text, headers->'postrider-message'->>'state' from pgmq.a_{queue} \
         union all select message::text, headers->'postrider-message'->>'state' from pgmq.a_{queue}_dlq"
    );
    let rows = client().await.query(&rows, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// One message is acknowledged, one dies and is purged, and another client archives one.
async fn three_lives(place: &Place, archive: ArchivePolicy) -> PgmqProvider {
    let options = PgmqOptions { archive, archive_retention: Duration::from_secs(600), ..place.options() };
    let (provider, queue) = (place.connect_with(options).await, place.queue("orders"));
    provider.send_message(&queue, Message::new("{}"), soon()).await.unwrap();
    let message = take(&provider, &queue).await;
    provider.ack_message(&queue, message, soon()).await.unwrap();
    provider.send_message(&queue, Message::new("[]"), soon()).await.unwrap();
    let message = take(&provider, &queue).await;
    provider.nack_message(&queue, message, Nack::dead_letter("rejected"), soon()).await.unwrap();
    assert_eq!(provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await.unwrap(), 1);
    let other = "select pgmq.archive($1, (select pgmq.send($1, '7'::jsonb)))";
    client().await.query(other, &[&queue.as_str()]).await.unwrap();
    provider
}

fn kept(body: &str, state: &str) -> (String, Option<String>) {
    (body.into(), Some(state.into()))
}

#[tokio::test]
async fn everything_is_kept_until_it_is_too_old_and_what_others_keep_for_ever() {
    let place = Place::new();
    let provider = three_lives(&place, ArchivePolicy::All).await;
    let foreign = ("7".to_owned(), None);
    let all = [kept("{}", "COMPLETED"), foreign.clone(), kept("[]", "FAILED")];
    assert_eq!(archived(&place).await, all);
    // A sweep is for every queue of the database, those of other tests included, so what it counts is not looked at.
    provider.store().sweep_archive(soon()).await.unwrap();
    assert_eq!(archived(&place).await, all, "nothing is too old");
    for table in [place.queue("orders"), place.queue("orders").dead_letters()] {
        let older = format!("update pgmq.a_{table} set archived_at = archived_at - interval '1 hour'");
        client().await.batch_execute(&older).await.unwrap();
    }
    // What a store has swept it does not look at again; another one begins anew.
    let options = PgmqOptions { archive_retention: Duration::from_secs(600), ..place.options() };
    let other = place.connect_with(options).await;
    assert!(other.store().sweep_archive(soon()).await.unwrap() >= 2);
    assert_eq!(archived(&place).await, [foreign]);
}

#[tokio::test]
async fn only_what_failed_is_kept() {
    let place = Place::new();
    three_lives(&place, ArchivePolicy::Failed).await;
    assert_eq!(archived(&place).await, [("7".to_owned(), None), kept("[]", "FAILED")]);
}

#[tokio::test]
async fn nothing_is_kept() {
    let place = Place::new();
    three_lives(&place, ArchivePolicy::None).await;
    assert_eq!(archived(&place).await, [("7".to_owned(), None)]);
}
