//! The archive.

use std::time::Duration;

use postrider_conformance::archive::{Archived, ack_one_and_purge_one, kept_by};
use postrider_postgres::{ArchivePolicy, PostgresOptions, PostgresProvider};

use crate::{Fixture, client, soon};

async fn archived(fixture: &Fixture) -> Archived {
    let (client, s) = (client().await, &fixture.schema);
    let rows =
        format!("select state::text, convert_from(payload, 'UTF8'), last_error from {s}.message_archive order by id");
    let rows = client.query(&rows, &[]).await.unwrap();
    let attempts = client.query_one(&format!("select count(*) from {s}.failed_attempt"), &[]).await.unwrap();
    (rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect(), attempts.get(0))
}

/// Handles two messages under an archive policy.
async fn two_messages(fixture: &Fixture, archive: ArchivePolicy) -> PostgresProvider {
    let options = PostgresOptions { archive, archive_retention: Duration::from_secs(600), ..fixture.options() };
    let provider = fixture.connect_with(options).await;
    ack_one_and_purge_one(&provider).await;
    provider
}

#[tokio::test]
async fn messages_are_kept_until_the_retention_has_passed() {
    let fixture = Fixture::new();
    let provider = two_messages(&fixture, ArchivePolicy::All).await;
    assert_eq!(archived(&fixture).await, kept_by(ArchivePolicy::All));
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
    assert_eq!(archived(&fixture).await, kept_by(ArchivePolicy::Failed));
}

#[tokio::test]
async fn nothing_is_kept() {
    let fixture = Fixture::new();
    two_messages(&fixture, ArchivePolicy::None).await;
    assert_eq!(archived(&fixture).await, kept_by(ArchivePolicy::None));
}
