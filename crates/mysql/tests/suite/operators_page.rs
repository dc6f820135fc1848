//! Checks of `docs/mysql.md`.

use std::collections::BTreeSet;

use mysql_async::Row;
use mysql_async::prelude::Queryable;
use postrider_core::{Message, MessagingService, ReceiveOptions};
use postrider_mysql::mysql_async;

use crate::{Fixture, queue, soon};

const PAGE: &str = include_str!("../../../../docs/mysql.md");

#[tokio::test]
async fn every_table_is_on_the_page() {
    let fixture = Fixture::new();
    drop(fixture.connect().await);
    let tables: Vec<String> = fixture.client().await.query("show tables").await.unwrap();
    let (_, listed) = PAGE.split_once("| table |").unwrap();
    let (listed, _) = listed.split_once("\n\n").unwrap();
    let names = listed.lines().filter_map(|row| row.strip_prefix("| `")?.split(" | ").next());
    let named: BTreeSet<String> =
        names.flat_map(|names| names.split(", ").map(|name| name.trim_matches('`').to_owned())).collect();
    assert_eq!(named, tables.into_iter().collect());
}

#[tokio::test]
async fn the_queries_of_the_page_run_beside_workers() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let orders = queue("orders");
    provider.send_batch(&orders, vec![Message::new("a"), Message::new("b")], soon()).await.unwrap();
    let held = provider.receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap();
    assert_eq!(held.len(), 1);
    let queries = PAGE.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let (mut client, mut rows) = (fixture.client().await, Vec::new());
    for query in queries.split_terminator(";\n") {
        let found: Vec<Row> = client.query(query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
        rows.push(found.len());
    }
    assert_eq!(rows, [2, 1, 0, 0, 0], "two states, one lease, no dead letter, no failure, nothing archived");
}

#[tokio::test]
async fn the_servers_defaults_are_those_of_the_page() {
    let fixture = Fixture::new();
    let mut client = fixture.client().await;
    for (setting, value) in
        [("innodb_flush_log_at_trx_commit", "1"), ("innodb_doublewrite", "ON"), ("max_allowed_packet", "16777216")]
    {
        let found: Option<(String, String)> =
            client.query_first(format!("show global variables like '{setting}'")).await.unwrap();
        assert_eq!(found, Some((setting.to_owned(), value.to_owned())));
    }
}
