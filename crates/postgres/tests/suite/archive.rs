//! The archive.

use std::time::Duration;

use postrider_core::{
    DeadLetterSelection, DeadLetters, Message, MessagingService, Nack, QueuedMessage, ReceiveOptions,
};
use postrider_postgres::{ArchivePolicy, PostgresOptions, PostgresProvider};

use crate::{Fixture, client, queue, soon};

/// Returns the states, bodies and errors of archived messages, and the number of failed attempts.
async fn archived(fixture: &Fixture) -> (Vec<(String, String, Option<String>)>, i64) {
    let (client, s) = (client().await, &fixture.schema);
    let rows =
        format!("select state::text, convert_from(payload, 'UTF8'), last_error from {s}.message_archive order by id");
    let rows = client.query(&rows, &[]).await.unwrap();
    let attempts = client.query_one(&format!("select count(*) from {s}.failed_attempt"), &[]).await.unwrap();
    (rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect(), attempts.get(0))
}

async fn take(provider: &PostgresProvider) -> QueuedMessage {
    let options = ReceiveOptions::default().wait(Duration::from_secs(10));
    provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap().remove(0)
}

/// Retries and acks one message; dead-letters and purges another.
async fn two_messages(fixture: &Fixture, archive: ArchivePolicy) -> PostgresProvider {
    let options = PostgresOptions { archive, archive_retention: Duration::from_secs(600), ..fixture.options() };
    let (provider, orders) = (fixture.connect_with(options).await, queue("orders"));
    provider.send_message(&orders, Message::new("done"), soon()).await.unwrap();
    let retry = Nack::retry_after(Duration::ZERO).with_error("not yet");
    provider.nack_message(&orders, take(&provider).await, retry, soon()).await.unwrap();
    provider.ack_message(&orders, take(&provider).await, soon()).await.unwrap();
    provider.send_message(&orders, Message::new("dead"), soon()).await.unwrap();
    let dead = Nack::dead_letter("rejected").with_error("never");
    provider.nack_message(&orders, take(&provider).await, dead, soon()).await.unwrap();
    assert_eq!(provider.purge_dead_letters(&orders, &DeadLetterSelection::All, soon()).await.unwrap(), 1);
    provider
}

fn kept(state: &str, body: &str, error: &str) -> (String, String, Option<String>) {
    (state.into(), body.into(), Some(error.into()))
}

#[tokio::test]
async fn messages_are_kept_until_the_retention_has_passed() {
    let fixture = Fixture::new();
    let provider = two_messages(&fixture, ArchivePolicy::All).await;
    let all = vec![kept("COMPLETED", "done", "not yet"), kept("FAILED", "dead", "never")];
    assert_eq!(archived(&fixture).await, (all, 2));
    assert_eq!(provider.store().sweep_archive(soon()).await.unwrap(), 0, "the retention has not passed");
    let older = format!("update {}.message_archive set archived_at = archived_at - interval '1 hour'", fixture.schema);
    client().await.batch_execute(&older).await.unwrap();
    assert_eq!(provider.store().sweep_archive(soon()).await.unwrap(), 2);
    assert_eq!(archived(&fixture).await, (Vec::new(), 0));
}

#[tokio::test]
async fn only_what_failed_is_kept() {
    let fixture = Fixture::new();
    two_messages(&fixture, ArchivePolicy::Failed).await;
    assert_eq!(archived(&fixture).await, (vec![kept("FAILED", "dead", "never")], 1));
}

#[tokio::test]
async fn nothing_is_kept() {
    let fixture = Fixture::new();
    two_messages(&fixture, ArchivePolicy::None).await;
    assert_eq!(archived(&fixture).await, (Vec::new(), 0));
}
