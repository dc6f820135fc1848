//! PGMQ's archives.

use std::time::Duration;

use postrider_core::{DeadLetterSelection, DeadLetters, Message, MessagingService, Nack};
use postrider_pgmq::{ArchivePolicy, PgmqOptions, PgmqProvider};

use crate::{Fixture, client, soon, take};

/// The archived messages of the queue and of its dead letters: their bodies and states.
async fn archived(fixture: &Fixture) -> Vec<(String, Option<String>)> {
    let queue = fixture.queue("orders");
    let rows = format!(
        "select message::text, headers->'postrider-message'->>'state' from pgmq.a_{queue} \
         union all select message::text, headers->'postrider-message'->>'state' from pgmq.a_{queue}_dlq"
    );
    let rows = client().await.query(&rows, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Acks one message, dead-letters and purges one, and archives one as another client.
async fn three_messages(fixture: &Fixture, archive: ArchivePolicy) -> PgmqProvider {
    let options = PgmqOptions { archive, archive_retention: Duration::from_secs(600), ..fixture.options() };
    let (provider, queue) = (fixture.connect_with(options).await, fixture.queue("orders"));
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
async fn messages_are_kept_until_the_retention_has_passed_and_foreign_ones_for_ever() {
    let fixture = Fixture::new();
    let provider = three_messages(&fixture, ArchivePolicy::All).await;
    let foreign = ("7".to_owned(), None);
    let all = [kept("{}", "COMPLETED"), foreign.clone(), kept("[]", "FAILED")];
    assert_eq!(archived(&fixture).await, all);
    // A sweep covers every queue of the database, also of other tests, so its count is not asserted.
    provider.store().sweep_archive(soon()).await.unwrap();
    assert_eq!(archived(&fixture).await, all, "nothing is too old");
    for table in [fixture.queue("orders"), fixture.queue("orders").dead_letters()] {
        let older = format!("update pgmq.a_{table} set archived_at = archived_at - interval '1 hour'");
        client().await.batch_execute(&older).await.unwrap();
    }
    // A store does not sweep a range again; another store does.
    let options = PgmqOptions { archive_retention: Duration::from_secs(600), ..fixture.options() };
    let other = fixture.connect_with(options).await;
    assert!(other.store().sweep_archive(soon()).await.unwrap() >= 2);
    assert_eq!(archived(&fixture).await, [foreign]);
}

#[tokio::test]
async fn only_what_failed_is_kept() {
    let fixture = Fixture::new();
    three_messages(&fixture, ArchivePolicy::Failed).await;
    assert_eq!(archived(&fixture).await, [("7".to_owned(), None), kept("[]", "FAILED")]);
}

#[tokio::test]
async fn nothing_is_kept() {
    let fixture = Fixture::new();
    three_messages(&fixture, ArchivePolicy::None).await;
    assert_eq!(archived(&fixture).await, [("7".to_owned(), None)]);
}
