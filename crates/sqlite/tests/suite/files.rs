//! Files that cannot be used, or that go away: each gets a clear error, and no half-created file is left.

use std::path::Path;
use std::time::{Duration, Instant};

use postrider_core::{
    Message, MessageId, MessagingError, MessagingService, Nack, QueueAdmin, ReceiveOptions, Severity,
};
use postrider_sqlite::rusqlite::Connection;
use postrider_sqlite::{SqliteOptions, SqliteProvider, SqliteStore};

use crate::{TestStore, queue, soon};

async fn refused(path: &Path, options: SqliteOptions) -> MessagingError {
    SqliteStore::open(path, options).await.expect_err("the file is refused")
}

async fn text(path: &Path) -> String {
    refused(path, SqliteOptions::default()).await.to_string()
}

fn names(test_store: &TestStore) -> Vec<String> {
    let entries = std::fs::read_dir(test_store.folder.path()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn a_folder_a_missing_folder_and_no_file_at_all_are_refused() {
    let test_store = TestStore::new();
    let folder = text(test_store.folder.path()).await;
    assert!(folder.contains("is a folder") && folder.contains("postrider.db"), "{folder}");
    let missing = text(&test_store.folder.path().join("no/such/queues.db")).await;
    assert!(missing.contains("no/such' does not exist; create it"), "{missing}");
    let device = text(Path::new("/dev/null")).await;
    assert!(device.contains("not a regular file"), "{device}");
    assert_eq!(names(&test_store), [""; 0], "a file was created");
}

#[tokio::test]
async fn a_folder_that_may_not_be_written_is_refused() {
    // No user can create files there, not even the superuser.
    let text = text(Path::new("/proc/self/queues.db")).await;
    assert!(text.contains("/queues.db' cannot be opened") && text.contains("check the permissions"), "{text}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_may_not_be_written_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let test_store = TestStore::new();
    test_store.connect().await.close(soon()).await.unwrap();
    std::fs::set_permissions(test_store.file(), std::fs::Permissions::from_mode(0o444)).unwrap();
    if std::fs::OpenOptions::new().append(true).open(test_store.file()).is_ok() {
        // The superuser may write every file.
        return;
    }
    let text = text(&test_store.file()).await;
    assert!(text.contains("may not be written"), "{text}");
}

#[tokio::test]
async fn files_of_other_programs_are_refused_and_left_alone() {
    let test_store = TestStore::new();
    let noise = vec![0x5a; 8192];
    std::fs::write(test_store.file(), &noise).unwrap();
    let refusal = text(&test_store.file()).await;
    assert!(refusal.contains("is no SQLite database"), "{refusal}");
    assert_eq!(std::fs::read(test_store.file()).unwrap(), noise);

    let other = test_store.folder.path().join("other.db");
    Connection::open(&other).unwrap().execute_batch("create table theirs (x); pragma user_version = 7").unwrap();
    let before = std::fs::read(&other).unwrap();
    let refusal = text(&other).await;
    assert!(refusal.contains("belongs to another program"), "{refusal}");
    assert_eq!(std::fs::read(&other).unwrap(), before, "it was changed");

    let options = SqliteOptions { share_file: true, ..SqliteOptions::default() };
    SqliteStore::open(&other, options).await.unwrap();
    let shared = Connection::open(&other).unwrap();
    let mark = |name: &str| shared.query_row(&format!("pragma {name}"), [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((mark("application_id"), mark("user_version")), (0, 7), "the owner's values");
    shared.execute("insert into theirs values (1)", []).unwrap();
}

#[tokio::test]
async fn a_damaged_file_is_reported_as_damaged() {
    let test_store = TestStore::new();
    test_store.connect().await.close(soon()).await.unwrap();
    let mut bytes = std::fs::read(test_store.file()).unwrap();
    let page = 100..4096;
    bytes[page].fill(0xff);
    std::fs::write(test_store.file(), &bytes).unwrap();
    let text = text(&test_store.file()).await;
    assert!(text.contains("is damaged") && text.contains("restore it from a backup"), "{text}");
}

#[tokio::test]
async fn a_damaged_table_fails_calls_and_not_the_process() {
    let test_store = TestStore::new();
    test_store.connect().await.close(soon()).await.unwrap();
    // The bytes after the empty tables are rows.
    let tables = std::fs::read(test_store.file()).unwrap().len();
    let provider = test_store.connect().await;
    let messages = (0..200).map(|n| Message::new(format!("{n}"))).collect();
    provider.send_batch(&queue("orders"), messages, soon()).await.unwrap();
    provider.close(soon()).await.unwrap();
    let mut bytes = std::fs::read(test_store.file()).unwrap();
    bytes[tables..].fill(0xff);
    std::fs::write(test_store.file(), &bytes).unwrap();
    let provider = test_store.connect().await;
    let failed = provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(200), soon()).await;
    let error = failed.expect_err("the rows cannot be read");
    assert!(error.to_string().contains("queues.db': the file is damaged") && !error.is_retryable(), "{error}");
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn a_locked_file_is_waited_for_and_then_named_in_the_error() {
    let test_store = TestStore::new();
    let options = SqliteOptions { lock_timeout: Duration::from_millis(200), ..SqliteOptions::default() };
    let provider = test_store.connect_with(options).await;
    let other = Connection::open(test_store.file()).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let began = Instant::now();
    let error = provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(200));
    let text = error.to_string();
    assert!(error.is_retryable() && text.contains("locked by another process"), "{text}");
    assert!(text.contains(&format!("`fuser -v '{}'`", provider.store().path().display())), "{text}");
    other.execute_batch("rollback").unwrap();
    provider.send_message(&queue("orders"), Message::new("y"), soon()).await.unwrap();
    let received = provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(9), soon()).await.unwrap();
    assert_eq!(received.len(), 1, "the refused message is missing");
}

#[tokio::test]
async fn no_message_is_lost_with_a_removed_file() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    let aside = test_store.folder.path().join("aside.db");
    std::fs::rename(test_store.file(), &aside).unwrap();
    // The writer checks the file's name at intervals only.
    tokio::time::sleep(Duration::from_millis(10)).await;
    let error = provider.send_message(&queue("orders"), Message::new("lost"), soon()).await.unwrap_err();
    assert!(error.to_string().contains("was removed or replaced"), "{error}");
    std::fs::rename(&aside, test_store.file()).unwrap();
    provider.send_message(&queue("orders"), Message::new("y"), soon()).await.unwrap();
    let received = provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(9), soon()).await.unwrap();
    assert_eq!(received.len(), 2);
}

#[tokio::test]
async fn a_removed_or_replaced_file_is_not_read() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    assert_eq!(provider.list_queues(soon()).await.unwrap(), [queue("orders")]);
    let aside = test_store.folder.path().join("aside.db");
    std::fs::rename(test_store.file(), &aside).unwrap();
    let error = provider.list_queues(soon()).await.unwrap_err();
    assert!(error.to_string().contains("was removed or replaced"), "{error}");
    let other = test_store.folder.path().join("other.db");
    let others = crate::connect(&other).await;
    others.send_message(&queue("others"), Message::new("x"), soon()).await.unwrap();
    others.close(soon()).await.unwrap();
    for log in ["queues.db-wal", "queues.db-shm"] {
        std::fs::remove_file(test_store.folder.path().join(log)).unwrap();
    }
    std::fs::rename(&other, test_store.file()).unwrap();
    assert_eq!(provider.list_queues(soon()).await.unwrap(), [queue("others")]);
}

#[tokio::test]
async fn opening_waits_for_a_lock_as_long_as_its_timeout() {
    let patience = Duration::from_millis(300);
    let locks = ["begin exclusive", "begin immediate", "pragma journal_mode = wal; begin immediate"];
    for lock in locks {
        let test_store = TestStore::new();
        let other = Connection::open(test_store.file()).unwrap();
        other.execute_batch("create table x (y); drop table x").unwrap();
        other.execute_batch(lock).unwrap();
        // A busy machine delays single attempts; a second wait for the lock would delay all of them.
        let mut waits = Vec::new();
        while waits.iter().all(|waited| *waited >= patience * 2) {
            assert!(waits.len() < 10, "{lock}: {waits:?}");
            let options = SqliteOptions { lock_timeout: patience, ..SqliteOptions::default() };
            let began = Instant::now();
            let text = refused(&test_store.file(), options).await.to_string();
            waits.push(began.elapsed());
            assert!(text.contains("locked by another process for 300.0ms"), "{text}");
            assert!(began.elapsed() >= patience, "{lock}: {waits:?}");
        }
    }
}

#[tokio::test]
async fn migrations_are_listed_applied_once_and_required() {
    let test_store = TestStore::new();
    let by_hand = SqliteOptions { auto_migrate: false, ..SqliteOptions::default() };
    let refusal = refused(&test_store.file(), by_hand.clone()).await.to_string();
    assert!(refusal.contains("does not exist") && refusal.contains("postrider migrate"), "{refusal}");
    let pending = SqliteStore::pending_migrations(test_store.file(), by_hand.clone()).await.unwrap();
    assert!(pending[0].name == "0001_queue" && pending[0].sql.contains("create table message"), "{pending:?}");
    assert_eq!(names(&test_store), [""; 0], "listing created a file");

    std::fs::write(test_store.file(), b"").unwrap();
    let refusal = refused(&test_store.file(), by_hand.clone()).await.to_string();
    assert!(refusal.contains("lacks the migrations 0001_queue"), "{refusal}");
    assert_eq!(SqliteStore::migrate(test_store.file(), by_hand.clone()).await.unwrap(), pending);
    assert_eq!(SqliteStore::migrate(test_store.file(), by_hand.clone()).await.unwrap(), []);
    assert_eq!(SqliteStore::pending_migrations(test_store.file(), by_hand.clone()).await.unwrap(), []);
    SqliteStore::open(test_store.file(), by_hand).await.unwrap();
}

#[tokio::test]
async fn a_newer_file_is_opened_only_if_its_migrations_allow_it() {
    let test_store = TestStore::new();
    test_store.connect().await.close(soon()).await.unwrap();
    let add = |version: i64, works_since: i64| {
        let file = Connection::open(test_store.file()).unwrap();
        file.execute("insert into postrider_migration values (?1, 'later', ?2, 0)", (version, works_since)).unwrap();
    };
    add(1001, 1);
    test_store.connect().await.close(soon()).await.unwrap();
    add(1002, 1002);
    let text = text(&test_store.file()).await;
    assert!(text.contains("schema version 1002") && text.contains("use a newer program"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_can_open_a_new_file_at_once() {
    let test_store = TestStore::new();
    let steps = SqliteStore::pending_migrations(test_store.file(), SqliteOptions::default()).await.unwrap().len();
    let opens: Vec<_> = (0..8)
        .map(|_| {
            let file = test_store.file();
            tokio::spawn(async move { SqliteStore::open(file, SqliteOptions::default()).await.map(|_| ()) })
        })
        .collect();
    for open in opens {
        open.await.unwrap().unwrap();
    }
    let file = Connection::open(test_store.file()).unwrap();
    let applied: i64 = file.query_row("select count(*) from postrider_migration", [], |row| row.get(0)).unwrap();
    assert_eq!(applied, steps as i64);
}

/// Sends a message with this id, receives it and nacks it.
async fn fail(provider: &SqliteProvider, name: &str, id: MessageId, nack: Nack) {
    provider.send_message(&queue(name), Message::new("x").id(id), soon()).await.unwrap();
    let message = provider.receive_messages(&queue(name), &ReceiveOptions::default(), soon()).await.unwrap().remove(0);
    provider.nack_message(&queue(name), message, nack.with_error(name), soon()).await.unwrap();
}

#[tokio::test]
async fn attempts_recorded_by_a_program_before_migration_five_are_kept() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let (living, dead, twice) = (MessageId::generate(), MessageId::generate(), MessageId::generate());
    let later = || Nack::retry_after(Duration::from_secs(3600));
    fail(&provider, "living", living, later()).await;
    fail(&provider, "dead", dead, Nack::dead_letter("rejected")).await;
    fail(&provider, "one", twice, later()).await;
    fail(&provider, "two", twice, later()).await;
    provider.close(soon()).await.unwrap();
    // The file as that program left it.
    let file = Connection::open(test_store.file()).unwrap();
    file.execute_batch(
        "insert or replace into message_attempt \
         select message_id, attempt, started_at, failed_at, worker, error from failed_attempt; \
         drop table failed_attempt; delete from postrider_migration where version = 5",
    )
    .unwrap();
    let provider = test_store.connect().await;
    let attempts = async |name: &str, id: MessageId| {
        let attempts = provider.message_attempts(&queue(name), id, soon()).await.unwrap();
        attempts.into_iter().map(|attempt| (attempt.attempt, attempt.error.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(attempts("living", living).await, [(1, "living".to_owned())]);
    assert_eq!(attempts("dead", dead).await, [(1, "dead".to_owned())]);
    assert_eq!(attempts("one", twice).await, [], "the queue of these attempts is unknown");
    assert_eq!(attempts("two", twice).await, []);
    // The older program can still use the file.
    let note = "insert or replace into message_attempt (message_id, attempt, started_at, failed_at, worker, error) \
                values (zeroblob(16), 1, 0, 0, 'w', null)";
    file.execute(note, []).unwrap();
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_new_file_is_for_its_owner_only() {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    let mut made = names(&test_store);
    made.sort();
    assert_eq!(made, ["queues.db", "queues.db-shm", "queues.db-wal"]);
    for name in made {
        assert_eq!(mode(&test_store.folder.path().join(&name)), 0o600, "{name}");
    }
    let found = SqliteStore::examine(test_store.file(), SqliteOptions::default()).await;
    assert!(found.iter().all(|finding| finding.severity == Severity::Fine), "{found:?}");
}

#[tokio::test]
async fn the_mode_of_an_existing_file_is_kept_and_reported() {
    let test_store = TestStore::new();
    std::fs::write(test_store.file(), b"").unwrap();
    set_mode(&test_store.file(), 0o640);
    let provider = test_store.connect().await;
    provider.send_message(&queue("orders"), Message::new("x"), soon()).await.unwrap();
    assert_eq!(mode(&test_store.file()), 0o640);
    let access = async || {
        let found = SqliteStore::examine(test_store.file(), SqliteOptions::default()).await;
        found.into_iter().find(|finding| finding.check == "access").unwrap()
    };
    let finding = access().await;
    assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
    assert!(finding.found.contains("mode 640"), "{finding:?}");
    let fix = finding.fix.unwrap();
    for name in ["queues.db", "queues.db-wal", "queues.db-shm"] {
        let file = test_store.folder.path().join(name);
        assert!(fix.starts_with("chmod 600 ") && fix.contains(&format!("'{}'", file.display())), "{fix}");
        set_mode(&file, 0o600);
    }
    assert_eq!(access().await.severity, Severity::Fine);
}
