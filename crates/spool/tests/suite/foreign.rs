//! Foreign files in `incoming/`: each becomes a message or a dead letter, and none blocks the next.

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant, SystemTime};

use postrider_core::{
    ContentType, DeadLetter, DeadLetterQuery, DeadLetters, Limits, MessagingService, Nack, QueueAdmin, QueueName,
    QueuedMessage, ReceiveOptions, Redrive,
};
use postrider_spool::{Files, SpoolOptions, SpoolProvider, Watch};

use crate::{Scratch, queue, read_until_empty, soon};

const ORDERS: &str = "orders";

/// A grace period that is short for a test, and much longer than a step of a test.
fn short_grace() -> SpoolOptions {
    SpoolOptions { grace_period: Duration::from_millis(800), ..SpoolOptions::default() }
}

async fn made(scratch: &Scratch, options: SpoolOptions) -> (SpoolProvider, QueueName) {
    let provider = scratch.connect_with(options).await;
    let queue = queue(ORDERS);
    provider.ensure_queue(&queue, soon()).await.unwrap();
    (provider, queue)
}

/// Sets a file's modification time, in seconds after a fixed time in the past.
fn date(path: &std::path::Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + seconds);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Writes a file elsewhere, then renames it into the folder, as a script does.
fn drop_in(scratch: &Scratch, name: impl AsRef<std::ffi::OsStr>, body: impl AsRef<[u8]>, seconds: Option<u64>) {
    let elsewhere = scratch.folder.path().join("being written");
    fs::write(&elsewhere, body).unwrap();
    if let Some(seconds) = seconds {
        date(&elsewhere, seconds);
    }
    fs::rename(elsewhere, scratch.incoming().join(name.as_ref())).unwrap();
}

impl Scratch {
    fn home(&self) -> std::path::PathBuf {
        self.spool().join(ORDERS)
    }

    fn incoming(&self) -> std::path::PathBuf {
        self.home().join("incoming")
    }

    fn listed(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.home().join(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

async fn receive(provider: &SpoolProvider, queue: &QueueName, max: usize) -> Vec<QueuedMessage> {
    provider.receive_messages(queue, &ReceiveOptions::batch(max), soon()).await.unwrap()
}

/// Waits for one message.
async fn take(provider: &SpoolProvider, queue: &QueueName) -> QueuedMessage {
    let options = ReceiveOptions::default().wait(Duration::from_secs(20));
    provider.receive_messages(queue, &options, soon()).await.unwrap().pop().expect("a message")
}

fn bodies(messages: &[QueuedMessage]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(&message.message).into_owned()).collect()
}

async fn dead(provider: &SpoolProvider, queue: &QueueName) -> Vec<DeadLetter> {
    provider.list_dead_letters(queue, &DeadLetterQuery::default(), soon()).await.unwrap().letters
}

#[tokio::test]
async fn files_are_received_by_their_times_and_then_by_their_names() {
    let scratch = Scratch::new();
    let (provider, queue) = made(&scratch, SpoolOptions::default()).await;
    for (name, seconds) in [("a.json", 3), ("z.json", 1), ("c.json", 2), ("b.json", 2)] {
        drop_in(&scratch, name, format!("\"{name}\""), Some(seconds));
    }
    let received = receive(&provider, &queue, 10).await;
    assert_eq!(bodies(&received), ["\"z.json\"", "\"b.json\"", "\"c.json\"", "\"a.json\""]);
    let message = &received[0];
    assert_eq!(message.envelope.content_type, ContentType::JSON);
    assert_eq!(message.envelope.headers.get("file-name"), Some("z.json"));
    // The names show the end of the lease and the original name.
    let held = scratch.listed("processing");
    assert!(held.iter().all(|name| name.starts_with("until-")), "{held:?}");
    assert!(held.iter().any(|name| name.ends_with("~z.json")), "{held:?}");
}

#[tokio::test]
async fn a_file_that_was_renamed_into_the_folder_is_received_at_once() {
    let scratch = Scratch::new();
    let options = SpoolOptions { grace_period: Duration::from_secs(3600), ..SpoolOptions::default() };
    let (provider, queue) = made(&scratch, options).await;
    // From here on the folder is watched.
    assert!(receive(&provider, &queue, 1).await.is_empty());
    let waiting = take(&provider, &queue);
    let dropping = async {
        tokio::task::yield_now().await;
        drop_in(&scratch, "now.json", "1", None);
    };
    let (message, ()) = tokio::join!(waiting, dropping);
    assert_eq!(message.message, "1");
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_received() {
    tokio::join!(is_not_taken_while_it_is_written(Watch::Auto), is_not_taken_while_it_is_written(Watch::Poll));
}

async fn is_not_taken_while_it_is_written(watch: Watch) {
    for _ in 0..5 {
        let scratch = Scratch::new();
        let poll_interval = Duration::from_millis(20);
        let (provider, queue) = made(&scratch, SpoolOptions { watch, poll_interval, ..short_grace() }).await;
        assert!(receive(&provider, &queue, 1).await.is_empty());
        let path = scratch.incoming().join("slow.json");
        // Writes much more often than the grace period, and for longer.
        let writer = tokio::task::spawn_blocking(move || {
            let mut file = fs::File::create(path).unwrap();
            let (mut written, mut longest) = (Instant::now(), Duration::ZERO);
            for part in ["[1", ",2", ",3", ",4", "]"] {
                // A quarter of a second in steps, so that the modification time advances.
                for _ in 0..5 {
                    file.write_all(b" ").unwrap();
                    std::thread::sleep(Duration::from_millis(50));
                    longest = longest.max(written.elapsed());
                    written = Instant::now();
                }
                file.write_all(part.as_bytes()).unwrap();
            }
            longest
        });
        let options = ReceiveOptions::default().wait(Duration::from_secs(20));
        let received = provider.receive_messages(&queue, &options, soon()).await.unwrap();
        // On a busy machine the writer may pause longer than the grace period, and then the file is received rightly.
        if writer.await.unwrap() >= short_grace().grace_period / 2 {
            continue;
        }
        let bodies = received.iter().map(|message| String::from_utf8_lossy(&message.message).replace(' ', ""));
        assert_eq!(bodies.collect::<Vec<_>>(), ["[1,2,3,4]"], "{watch:?}");
        assert!(dead(&provider, &queue).await.is_empty(), "{watch:?}");
        return;
    }
    panic!("no writer could write in time");
}

#[tokio::test]
async fn a_receive_without_a_wait_returns_a_file_that_was_just_created() {
    let scratch = Scratch::new();
    let (provider, queue) = made(&scratch, short_grace()).await;
    drop_in(&scratch, "a.json", "1", None);
    // It was not watched, so it may be incomplete; the receive waits for its grace period.
    let held = receive(&provider, &queue, 1).await;
    assert_eq!(bodies(&held), ["1"]);
    assert!(receive(&provider, &queue, 1).await.is_empty());
}

#[tokio::test]
async fn an_invalid_file_is_dead_lettered_alone_and_blocks_no_other() {
    let scratch = Scratch::new();
    let limits = Limits { max_body_bytes: 1000, ..Limits::default() };
    let (provider, queue) = made(&scratch, SpoolOptions { limits, ..short_grace() }).await;
    let secret = scratch.folder.path().join("secret");
    fs::write(&secret, "\"outside\"").unwrap();
    // Older than the valid ones, so that each is claimed first.
    drop_in(&scratch, "half.json", "{\"a\": [1,", Some(1));
    drop_in(&scratch, "empty.json", "", Some(2));
    drop_in(&scratch, "huge.json", format!("\"{}\"", "x".repeat(2000)), Some(3));
    drop_in(&scratch, "latin1.json", b"\"caf\xe9\"", Some(4));
    symlink(&secret, scratch.incoming().join("link.json")).unwrap();
    symlink("/no/such/file", scratch.incoming().join("dangling.json")).unwrap();
    fs::create_dir(scratch.incoming().join("folder.json")).unwrap();
    fs::write(scratch.incoming().join("folder.json/inside"), "kept").unwrap();
    nix::unistd::mkfifo(&scratch.incoming().join("pipe.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::net::UnixListener::bind(scratch.incoming().join("socket.json")).unwrap();
    drop_in(&scratch, "good.json", "\"good\"", None);

    let message = take(&provider, &queue).await;
    assert_eq!(message.message, "\"good\"");
    provider.ack_message(&queue, message, soon()).await.unwrap();
    read_until_empty(&provider, &queue).await;

    let mut fates: Vec<_> = dead(&provider, &queue)
        .await
        .into_iter()
        .map(|letter| {
            assert_eq!(letter.deliveries_count, 0, "it was never delivered");
            assert!(!letter.body.windows(7).any(|part| part == b"outside"), "a link was followed");
            (letter.reason.to_string(), letter.error.unwrap())
        })
        .collect();
    fates.sort();
    let reasons: Vec<_> = fates.iter().map(|(reason, _)| reason.as_str()).collect();
    let expected = [vec!["not_a_file"; 5], vec!["too_large"], vec!["undecodable"; 3]].concat();
    assert_eq!(reasons, expected, "{fates:#?}");
    assert!(fates.iter().any(|(_, error)| error == "the file is empty"), "{fates:#?}");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "\"outside\"");
    assert!(scratch.listed("incoming").is_empty() && scratch.listed("processing").is_empty());

    // The bytes are kept, and everything can be purged.
    let letters = dead(&provider, &queue).await;
    let half = letters.iter().find(|letter| letter.body == "{\"a\": [1,").expect("the half-written file");
    assert!(half.error.as_ref().unwrap().contains("not complete"), "{half:?}");
    assert_eq!(provider.purge_dead_letters(&queue, &Default::default(), soon()).await.unwrap(), 9);
    assert!(scratch.listed("failed").is_empty(), "{:?}", scratch.listed("failed"));
}

#[tokio::test]
async fn dot_files_and_other_suffixes_are_ignored_unless_any_file_is_a_message() {
    let scratch = Scratch::new();
    let (provider, queue) = made(&scratch, SpoolOptions::default()).await;
    for name in [".hidden.json", ".json", "notes.txt", "data.json.part", "noend"] {
        drop_in(&scratch, name, "not json", Some(1));
    }
    assert!(receive(&provider, &queue, 10).await.is_empty());
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().message_count(), Some(0));

    let any = scratch.connect_with(SpoolOptions { files: Files::Any, ..SpoolOptions::default() }).await;
    let received = receive(&any, &queue, 10).await;
    let mut names: Vec<_> = received.iter().map(|m| m.envelope.headers.get("file-name").unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["data.json.part", "noend", "notes.txt"]);
    assert_eq!(received[0].envelope.content_type, ContentType::OCTET_STREAM);
    assert_eq!(scratch.listed("incoming"), [".hidden.json", ".json"]);
}

#[tokio::test]
async fn odd_and_longest_names_are_kept() {
    let scratch = Scratch::new();
    let (provider, queue) = made(&scratch, SpoolOptions::default()).await;
    let longest = format!("{}.json", "n".repeat(250));
    let names: Vec<Vec<u8>> = vec![
        longest.clone().into_bytes(),
        b"new\nline.json".to_vec(),
        b"-rf *.json".to_vec(),
        b"\xff\xfe\x01.json".to_vec(),
        "\u{1f40e} caf\u{e9}~x.json".into(),
        b"$(reboot)`'\"\\.json".to_vec(),
        [b"20261116T220203-123456.".as_slice(), &[b'x'; 230]].concat().into_iter().take(250).chain(*b".json").collect(),
    ];
    for (seconds, name) in names.iter().enumerate() {
        drop_in(&scratch, std::ffi::OsStr::from_bytes(name), "{}", Some(seconds as u64));
    }
    // Claimed, retried, claimed, dead-lettered, redriven and claimed: the name is kept.
    let mut ids = Vec::new();
    for round in 0..2 {
        let received = receive(&provider, &queue, 10).await;
        assert_eq!(received.len(), names.len(), "round {round}");
        for message in received {
            ids.push(message.id());
            let nack =
                if round == 0 { Nack::retry_after(Duration::ZERO).with_error("no") } else { Nack::dead_letter("x") };
            provider.nack_message(&queue, message, nack, soon()).await.unwrap();
        }
    }
    let letters = dead(&provider, &queue).await;
    assert!(letters.iter().all(|letter| letter.error.as_deref() == Some("no") && letter.deliveries_count == 2));
    assert_eq!(provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await.unwrap().redriven.len(), 7);
    let received = receive(&provider, &queue, 10).await;
    let first_ids = &ids[..names.len()];
    assert!(received.iter().all(|message| first_ids.contains(&message.id()) && message.receive_count() == 1));
    let shown: Vec<_> = received.iter().filter_map(|message| message.envelope.headers.get("file-name")).collect();
    assert_eq!(shown.len(), 7);
    assert!(shown.contains(&longest.as_str()) && shown.contains(&"new\\nline.json"), "{shown:?}");
    for message in received {
        provider.ack_message(&queue, message, soon()).await.unwrap();
    }
    for folder in ["incoming", "processing", "failed", "records", "tmp"] {
        assert!(scratch.listed(folder).is_empty(), "{folder}: {:?}", scratch.listed(folder));
    }
}

#[tokio::test]
async fn a_file_keeps_its_id_and_a_later_file_of_its_name_has_another() {
    let scratch = Scratch::new();
    let (provider, queue) = made(&scratch, SpoolOptions::default()).await;
    drop_in(&scratch, "order.json", "1", Some(1));
    let first = receive(&provider, &queue, 1).await.pop().unwrap();
    let id = first.id();
    provider.nack_message(&queue, first, Nack::retry_after(Duration::ZERO), soon()).await.unwrap();
    let again = receive(&provider, &queue, 1).await.pop().unwrap();
    assert_eq!((again.id(), again.receive_count(), again.envelope.attempts_count), (id, 2, 1));
    provider.ack_message(&queue, again, soon()).await.unwrap();
    drop_in(&scratch, "order.json", "1", Some(2));
    let other = receive(&provider, &queue, 1).await.pop().unwrap();
    assert_ne!(other.id(), id);
    provider.ack_message(&queue, other, soon()).await.unwrap();
    // Two files of one name before a receive: the producer has overwritten the first.
    drop_in(&scratch, "twice.json", "1", Some(3));
    drop_in(&scratch, "twice.json", "2", Some(4));
    assert_eq!(bodies(&receive(&provider, &queue, 10).await), ["2"]);
}

#[tokio::test]
async fn a_time_in_the_future_neither_hides_nor_starves_a_file() {
    let scratch = Scratch::new();
    let (provider, queue) = made(&scratch, SpoolOptions::default()).await;
    // From here on the folder is watched.
    assert!(receive(&provider, &queue, 1).await.is_empty());
    let next_year = Duration::from_secs(365 * 24 * 3600);
    let elsewhere = scratch.folder.path().join("future");
    fs::write(&elsewhere, "\"future\"").unwrap();
    fs::File::options().write(true).open(&elsewhere).unwrap().set_modified(SystemTime::now() + next_year).unwrap();
    fs::rename(&elsewhere, scratch.incoming().join("future.json")).unwrap();
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().ready.value(), Some(1));
    // Later files do not overtake it for a year.
    let mut received = Vec::new();
    for n in 0..10 {
        drop_in(&scratch, format!("{n}.json"), format!("{n}"), None);
        let message = take(&provider, &queue).await;
        received.extend(bodies(std::slice::from_ref(&message)));
        provider.ack_message(&queue, message, soon()).await.unwrap();
    }
    assert!(received.contains(&"\"future\"".into()), "{received:?}");
}

#[tokio::test]
async fn a_file_without_read_permission_is_dead_lettered_alone() {
    let scratch = Scratch::new();
    let (provider, queue) = made(&scratch, SpoolOptions::default()).await;
    drop_in(&scratch, "locked.json", "\"locked\"", Some(1));
    drop_in(&scratch, "open.json", "\"open\"", Some(2));
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(scratch.incoming().join("locked.json"), fs::Permissions::from_mode(0o000)).unwrap();
    drop(provider);
    crate::processes::as_nobody(&scratch, "unreadable");
    let provider = scratch.connect().await;
    let letters = dead(&provider, &queue).await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason.as_str(), "unreadable");
    assert!(letters[0].error.as_ref().unwrap().contains("the permissions of the file"), "{:?}", letters[0]);
}

/// Runs in the worker of the test above, as the user `nobody`.
pub(crate) async fn receive_as_nobody(spool: &std::path::Path) {
    let provider = crate::connect(spool, SpoolOptions::default()).await;
    let queue = queue(ORDERS);
    let received = receive(&provider, &queue, 10).await;
    assert_eq!(bodies(&received), ["\"open\""]);
    for message in received {
        provider.ack_message(&queue, message, soon()).await.unwrap();
    }
    provider.close(soon()).await.unwrap();
}
