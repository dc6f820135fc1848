//! The archive.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use postrider_conformance::archive::{Archived, ack_one_and_purge_one, kept_by};
use postrider_mysql::{ArchivePolicy, MysqlOptions, MysqlProvider, mysql_async};

use crate::{Fixture, options, soon};

async fn archived(fixture: &Fixture) -> Archived {
    let mut client = fixture.client().await;
    let rows = "select state, cast(payload as char), last_error from message_archive order by id";
    let attempts: Option<i64> = client.query_first("select count(*) from failed_attempt").await.unwrap();
    (client.query(rows).await.unwrap(), attempts.unwrap())
}

/// Handles two messages under an archive policy.
async fn two_messages(fixture: &Fixture, archive: ArchivePolicy) -> MysqlProvider {
    let options = MysqlOptions { archive, archive_retention: Duration::from_secs(600), ..options() };
    let provider = fixture.connect_with(options).await;
    ack_one_and_purge_one(&provider).await;
    provider
}

#[tokio::test]
async fn everything_is_kept_until_it_is_too_old() {
    let fixture = Fixture::new();
    let provider = two_messages(&fixture, ArchivePolicy::All).await;
    assert_eq!(archived(&fixture).await, kept_by(ArchivePolicy::All));
    assert_eq!(provider.store().sweep_archive(soon()).await.unwrap(), 0, "nothing is too old");
    let older = "update message_archive set archived_at = archived_at - interval 1 hour";
    fixture.client().await.query_drop(older).await.unwrap();
    assert_eq!(provider.store().sweep_archive(soon()).await.unwrap(), 2);
    assert_eq!(archived(&fixture).await, (Vec::new(), 0));
}

#[tokio::test]
async fn what_is_too_old_goes_in_chunks_and_the_rest_stays() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let fill = "insert into message_archive (archived_at, id, created_at, deliveries_count, attempts_count, message_id, \
                state, priority, queue, headers, payload) \
                with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < 2505) \
                select utc_timestamp(6) - interval if(n <= 2500, 8, 6) day, n, utc_timestamp(6), 1, 0, \
                       unhex(lpad(hex(n), 32, '0')), 'COMPLETED', 4, 'orders', '{}', 'x' from numbers";
    let mut client = fixture.client().await;
    client.query_drop("set session max_recursive_iterations = 10000").await.unwrap();
    client.query_drop(fill).await.unwrap();
    assert_eq!(provider.store().sweep_archive(soon()).await.unwrap(), 2500);
    assert_eq!(archived(&fixture).await.0.len(), 5, "younger than the seven days");
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
