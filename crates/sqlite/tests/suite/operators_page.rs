//! Checks the statements of `docs/sqlite.md`.

use std::collections::BTreeSet;

use postrider_core::{Message, MessagingService, ReceiveOptions};
use postrider_sqlite::rusqlite::backup::Progress;
use postrider_sqlite::rusqlite::{Connection, OpenFlags};

use crate::{TestStore, connect, queue, soon};

const PAGE: &str = include_str!("../../../../docs/sqlite.md");

/// The part of the page from a heading to the next one of the same kind.
fn part<'a>(page: &'a str, kind: &str, title: &str) -> &'a str {
    let heading = format!("\n{kind} {title}\n");
    let (_, rest) = page.split_once(&heading).unwrap_or_else(|| panic!("the page has no '{kind} {title}'"));
    rest.split_once(&format!("\n{kind} ")).map_or(rest, |(part, _)| part)
}

fn texts(file: &Connection, sql: &str) -> BTreeSet<String> {
    let mut statement = file.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(|row| row.expect("a row")).collect()
}

#[tokio::test]
async fn every_table_and_every_column_is_on_the_page() {
    let test_store = TestStore::new();
    test_store.connect().await.close(soon()).await.unwrap();
    let file = Connection::open(test_store.file()).unwrap();
    let listed = part(PAGE, "##", "Tables");
    let tables = texts(&file, "select name from sqlite_schema where type = 'table' and name not like 'sqlite_%'");
    let headings: BTreeSet<_> =
        listed.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`').map(str::to_owned)).collect();
    assert_eq!(headings, tables);
    for table in tables {
        let columns = texts(&file, &format!("select name from pragma_table_xinfo('{table}')"));
        let rows = part(listed, "###", &format!("`{table}`")).lines();
        let named = rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next().map(str::to_owned));
        assert_eq!(named.collect::<BTreeSet<_>>(), columns, "{table}");
    }
}

#[tokio::test]
async fn the_queries_of_the_page_run_beside_workers() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let orders = queue("orders");
    provider.send_batch(&orders, vec![Message::new("a"), Message::new("b")], soon()).await.unwrap();
    let held = provider.receive_messages(&orders, &ReceiveOptions::default(), soon()).await.unwrap();
    assert_eq!(held.len(), 1);

    let file = Connection::open_with_flags(test_store.file(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let queries = PAGE.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let mut rows = Vec::new();
    for query in queries.split_terminator(";\n") {
        let mut statement = file.prepare(query).unwrap_or_else(|error| panic!("{query}: {error}"));
        rows.push(statement.query_map([], |_| Ok(())).unwrap().count());
    }
    assert_eq!(rows, [2, 1, 0, 0, 0], "two states, one lease, no dead letter, no failure, nothing archived");
}

#[tokio::test]
async fn a_backup_of_a_file_in_use_is_whole_and_a_plain_copy_is_not() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let orders = queue("orders");
    let messages = (0..100).map(|n| Message::new(format!("{n}"))).collect();
    provider.send_batch(&orders, messages, soon()).await.unwrap();
    let held = provider.receive_messages(&orders, &ReceiveOptions::batch(10), soon()).await.unwrap();
    assert_eq!(held.len(), 10);

    let at = |name: &str| test_store.folder.path().join(name);
    let file = Connection::open(test_store.file()).unwrap();
    // The same as the shell's `.backup`.
    file.backup("main", at("backup.db"), None::<fn(Progress)>).unwrap();
    file.execute("vacuum into ?1", [at("vacuum.db").to_str().unwrap()]).unwrap();
    std::fs::copy(test_store.file(), at("copy.db")).unwrap();

    for name in ["backup.db", "vacuum.db"] {
        let restored = connect(&at(name)).await;
        let received = restored.receive_messages(&orders, &ReceiveOptions::batch(200), soon()).await.unwrap();
        assert_eq!(received.len(), 90, "{name}: the leases are in it too");
        restored.close(soon()).await.unwrap();
    }
    let copied = connect(&at("copy.db")).await;
    let received = copied.receive_messages(&orders, &ReceiveOptions::batch(200), soon()).await.unwrap();
    assert_eq!(received.len(), 0, "the messages are in the log and not in the file");
}
