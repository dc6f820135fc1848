//! Over TLS, which the pooler speaks.

use postrider_core::{MessagingError, MessagingService};
use postrider_postgres::PostgresStore;

use crate::pooler::{poll_only, pooler};
use crate::{Fixture, soon, url, variable};

/// Connects with these words in the URL's query, to a name.
async fn over_tls(fixture: &Fixture, host: &str, query: &str) -> Result<(), MessagingError> {
    let url = format!("{}?{query}", pooler().replace("127.0.0.1", host));
    let provider = PostgresStore::open(&url, poll_only(&fixture.schema)).await?.connect()?;
    provider.health_check(soon()).await
}

#[tokio::test]
async fn a_certificate_is_verified_as_the_url_requires() {
    let fixture = Fixture::new();
    let authority = variable("POSTRIDER_PGBOUNCER_AUTHORITY", "postgres pgbouncer");
    for (host, query) in [
        ("127.0.0.1", "sslmode=require".to_owned()),
        ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={authority}")),
        ("localhost", format!("sslmode=verify-full&sslrootcert={authority}")),
    ] {
        over_tls(&fixture, host, &query).await.unwrap_or_else(|error| panic!("{host} {query}: {error}"));
    }
    for (host, query, told) in [
        ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={authority}"), "not valid for name"),
        // Its authority is unknown to this machine.
        ("localhost", "sslmode=verify-full".to_owned(), "UnknownIssuer"),
    ] {
        let refused = over_tls(&fixture, host, &query).await.expect_err(&query);
        assert!(!refused.is_retryable(), "{refused:?}");
        let refused = refused.to_string();
        assert!(refused.contains(told) && refused.contains("with sslrootcert= the file"), "{refused}");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let fixture = Fixture::new();
    let url = format!("{}?sslmode=require", url());
    let refused = PostgresStore::open(&url, fixture.options()).await.unwrap_err().to_string();
    assert!(refused.contains("does not support TLS") && refused.contains("sslmode=disable"), "{refused}");
}
