//! Over TLS.

use postrider_core::{MessagingError, MessagingService};
use postrider_mysql::MysqlStore;
use postrider_mysql::mysql_async::Conn;
use postrider_mysql::mysql_async::prelude::Queryable;

use crate::{Fixture, options, soon, variable};

/// Connects with these words in the URL's query, to a name.
async fn over_tls(fixture: &Fixture, host: &str, query: &str) -> Result<(), MessagingError> {
    let url = format!("{}?{query}", fixture.url().replace("127.0.0.1", host));
    let provider = MysqlStore::open(&url, options()).await?.connect()?;
    provider.health_check(soon()).await
}

#[tokio::test]
async fn a_certificate_is_verified_as_the_url_requires() {
    let fixture = Fixture::new();
    let authority = variable("POSTRIDER_MYSQL_AUTHORITY");
    for (host, query) in [
        ("127.0.0.1", "ssl-mode=REQUIRED".to_owned()),
        ("localhost", format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={authority}")),
    ] {
        over_tls(&fixture, host, &query).await.unwrap_or_else(|error| panic!("{host} {query}: {error}"));
    }
    for (host, query) in [
        ("127.0.0.1", format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={authority}")),
        ("localhost", "ssl-mode=VERIFY_IDENTITY".to_owned()),
    ] {
        let refused = over_tls(&fixture, host, &query).await.expect_err(&query);
        assert!(!refused.is_retryable(), "{refused:?}");
        assert!(refused.to_string().contains("with ssl-ca= the file"), "{refused}");
    }
}

#[tokio::test]
async fn a_user_who_requires_tls_gets_it() {
    let fixture = Fixture::new();
    let (name, password) = (fixture.name.clone(), "x7");
    let mut owner: Conn = fixture.client().await;
    owner.query_drop(format!("create user {name}@'127.0.0.1' identified by '{password}' require ssl")).await.unwrap();
    owner.query_drop(format!("grant all on {name}.* to {name}@'127.0.0.1'")).await.unwrap();
    let (_, server) = fixture.url().rsplit_once('@').map(|(left, right)| (left.to_owned(), right.to_owned())).unwrap();
    let url = format!("mysql://{name}:{password}@{server}");
    let plain = MysqlStore::open(&url, options()).await;
    let encrypted = MysqlStore::open(&format!("{url}?ssl-mode=REQUIRED"), options()).await;
    owner.query_drop(format!("drop user {name}@'127.0.0.1'")).await.unwrap();
    assert!(plain.is_err(), "the server asks for encryption");
    encrypted.unwrap();
}
