//! Files that others put into `incoming/`: each has a defined fate, and none is in the way of the next.

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

use crate::{Place, queue, read_until_empty, soon};

const ORDERS: &str = "orders";

/// Short, so that a test need not wait long, and much longer than a step of a test takes.
fn short_grace() -> SpoolOptions {
    SpoolOptions { grace_period: Duration::from_millis(800), ..SpoolOptions::default() }
}

async fn made(place: &Place, options: SpoolOptions) -> (SpoolProvider, QueueName) {
    let provider = place.connect_with(options).await;
    let queue = queue(ORDERS);
    provider.ensure_queue(&queue, soon()).await.unwrap();
    (provider, queue)
}

/// Gives a file a modification time, some seconds after a fixed one that is long past.
fn date(path: &std::path::Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + seconds);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// What a script does: writes the file elsewhere, then renames it into the folder.
fn drop_in(place: &Place, name: impl AsRef<std::ffi::OsStr>, body: impl AsRef<[u8]>, seconds: Option<u64>) {
    let elsewhere = place.folder.path().join("being written");
    fs::write(&elsewhere, body).unwrap();
    if let Some(seconds) = seconds {
        date(&elsewhere, seconds);
    }
    fs::rename(elsewhere, place.incoming().join(name.as_ref())).unwrap();
}

impl Place {
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
    let place = Place::new();
    let (provider, queue) = made(&place, SpoolOptions::default()).await;
    for (name, seconds) in [("a.json", 3), ("z.json", 1), ("c.json", 2), ("b.json", 2)] {
        drop_in(&place, name, format!("\"{name}\""), Some(seconds));
    }
    let received = receive(&provider, &queue, 10).await;
    assert_eq!(bodies(&received), ["\"z.json\"", "\"b.json\"", "\"c.json\"", "\"a.json\""]);
    let message = &received[0];
    assert_eq!(message.envelope.content_type, ContentType::JSON);
    assert_eq!(message.envelope.headers.get("file-name"), Some("z.json"));
    // What a person sees: when the lease ends, and what the file was called.
    let held = place.listed("processing");
    assert!(held.iter().all(|name| name.starts_with("until-")), "{held:?}");
    assert!(held.iter().any(|name| name.ends_with("~z.json")), "{held:?}");
}

#[tokio::test]
async fn a_file_that_was_renamed_into_the_folder_is_taken_at_once() {
    let place = Place::new();
    let options = SpoolOptions { grace_period: Duration::from_secs(3600), ..SpoolOptions::default() };
    let (provider, queue) = made(&place, options).await;
    // From here on the folder is watched.
    assert!(receive(&provider, &queue, 1).await.is_empty());
    let waiting = take(&provider, &queue);
    let dropping = async {
        tokio::task::yield_now().await;
        drop_in(&place, "now.json", "1", None);
    };
    let (message, ()) = tokio::join!(waiting, dropping);
    assert_eq!(message.message, "1");
}

#[tokio::test]
async fn a_file_that_is_still_being_written_is_not_taken() {
    tokio::join!(is_not_taken_while_it_is_written(Watch::Auto), is_not_taken_while_it_is_written(Watch::Poll));
}

async fn is_not_taken_while_it_is_written(watch: Watch) {
    for _ in 0..5 {
        let place = Place::new();
        let poll_interval = Duration::from_millis(20);
        let (provider, queue) = made(&place, SpoolOptions { watch, poll_interval, ..short_grace() }).await;
        assert!(receive(&provider, &queue, 1).await.is_empty());
        let path = place.incoming().join("slow.json");
        // Much more often than the grace period, and for longer.
        let writer = tokio::task::spawn_blocking(move || {
            let mut file = fs::File::create(path).unwrap();
            let (mut written, mut longest) = (Instant::now(), Duration::ZERO);
            for part in ["[1", ",2", ",3", ",4", "]"] {
                // A quarter of a second, in pieces: the file's time goes on.
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
        // A writer that a busy machine held up for that long has left the file alone, and it was taken rightly.
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
async fn whoever_only_looks_gets_a_file_that_came_a_moment_ago() {
    let place = Place::new();
    let (provider, queue) = made(&place, short_grace()).await;
    drop_in(&place, "a.json", "1", None);
    // Nobody has watched it come, so it may still be written to, and is as good as there.
    let held = receive(&provider, &queue, 1).await;
    assert_eq!(bodies(&held), ["1"]);
    assert!(receive(&provider, &queue, 1).await.is_empty());
}

#[tokio::test]
async fn what_is_no_message_dies_alone_and_blocks_nobody() {
    let place = Place::new();
    let limits = Limits { max_body_bytes: 1000, ..Limits::default() };
    let (provider, queue) = made(&place, SpoolOptions { limits, ..short_grace() }).await;
    let secret = place.folder.path().join("secret");
    fs::write(&secret, "\"outside\"").unwrap();
    // Older than the good ones, so that each would be in the way.
    drop_in(&place, "half.json", "{\"a\": [1,", Some(1));
    drop_in(&place, "empty.json", "", Some(2));
    drop_in(&place, "huge.json", format!("\"{}\"", "x".repeat(2000)), Some(3));
    drop_in(&place, "latin1.json", b"\"caf\xe9\"", Some(4));
    symlink(&secret, place.incoming().join("link.json")).unwrap();
    symlink("/no/such/file", place.incoming().join("dangling.json")).unwrap();
    fs::create_dir(place.incoming().join("folder.json")).unwrap();
    fs::write(place.incoming().join("folder.json/inside"), "kept").unwrap();
    nix::unistd::mkfifo(&place.incoming().join("pipe.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::net::UnixListener::bind(place.incoming().join("socket.json")).unwrap();
    drop_in(&place, "good.json", "\"good\"", None);

    let message = take(&provider, &queue).await;
    assert_eq!(message.message, "\"good\"");
    provider.ack_message(&queue, message, soon()).await.unwrap();
    read_until_empty(&provider, &queue).await;

    let mut fates: Vec<_> = dead(&provider, &queue)
        .await
        .into_iter()
        .map(|letter| {
            assert_eq!(letter.deliveries_count, 0, "nobody has seen it");
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
    assert!(place.listed("incoming").is_empty() && place.listed("processing").is_empty());

    // The bytes are there, whatever they are, and all of it can be purged.
    let letters = dead(&provider, &queue).await;
    let half = letters.iter().find(|letter| letter.body == "{\"a\": [1,").expect("the half-written file");
    assert!(half.error.as_ref().unwrap().contains("not complete"), "{half:?}");
    assert_eq!(provider.purge_dead_letters(&queue, &Default::default(), soon()).await.unwrap(), 9);
    assert!(place.listed("failed").is_empty(), "{:?}", place.listed("failed"));
}

#[tokio::test]
async fn dot_files_and_other_endings_are_left_alone_unless_any_file_is_a_message() {
    let place = Place::new();
    let (provider, queue) = made(&place, SpoolOptions::default()).await;
    for name in [".hidden.json", ".json", "notes.txt", "data.json.part", "noend"] {
        drop_in(&place, name, "not json", Some(1));
    }
    assert!(receive(&provider, &queue, 10).await.is_empty());
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().message_count(), Some(0));

    let any = place.connect_with(SpoolOptions { files: Files::Any, ..SpoolOptions::default() }).await;
    let received = receive(&any, &queue, 10).await;
    let mut names: Vec<_> = received.iter().map(|m| m.envelope.headers.get("file-name").unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["data.json.part", "noend", "notes.txt"]);
    assert_eq!(received[0].envelope.content_type, ContentType::OCTET_STREAM);
    assert_eq!(place.listed("incoming"), [".hidden.json", ".json"]);
}

#[tokio::test]
async fn names_may_be_odd_and_as_long_as_names_can_be() {
    let place = Place::new();
    let (provider, queue) = made(&place, SpoolOptions::default()).await;
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
        drop_in(&place, std::ffi::OsStr::from_bytes(name), "{}", Some(seconds as u64));
    }
    // Claimed, failed, claimed, buried, brought back and claimed: the name goes along.
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
        assert!(place.listed(folder).is_empty(), "{folder}: {:?}", place.listed(folder));
    }
}

#[tokio::test]
async fn the_id_of_a_file_stays_and_is_not_that_of_the_next_file_of_its_name() {
    let place = Place::new();
    let (provider, queue) = made(&place, SpoolOptions::default()).await;
    drop_in(&place, "order.json", "1", Some(1));
    let first = receive(&provider, &queue, 1).await.pop().unwrap();
    let id = first.id();
    provider.nack_message(&queue, first, Nack::retry_after(Duration::ZERO), soon()).await.unwrap();
    let again = receive(&provider, &queue, 1).await.pop().unwrap();
    assert_eq!((again.id(), again.receive_count(), again.envelope.attempts_count), (id, 2, 1));
    provider.ack_message(&queue, again, soon()).await.unwrap();
    drop_in(&place, "order.json", "1", Some(2));
    let other = receive(&provider, &queue, 1).await.pop().unwrap();
    assert_ne!(other.id(), id);
    provider.ack_message(&queue, other, soon()).await.unwrap();
    // Two of one name, one after the other, before anybody looks: the first was overwritten by its producer.
    drop_in(&place, "twice.json", "1", Some(3));
    drop_in(&place, "twice.json", "2", Some(4));
    assert_eq!(bodies(&receive(&provider, &queue, 10).await), ["2"]);
}

#[tokio::test]
async fn a_time_in_the_future_neither_hides_nor_starves_a_file() {
    let place = Place::new();
    let (provider, queue) = made(&place, SpoolOptions::default()).await;
    // From here on the folder is watched.
    assert!(receive(&provider, &queue, 1).await.is_empty());
    let next_year = Duration::from_secs(365 * 24 * 3600);
    let elsewhere = place.folder.path().join("future");
    fs::write(&elsewhere, "\"future\"").unwrap();
    fs::File::options().write(true).open(&elsewhere).unwrap().set_modified(SystemTime::now() + next_year).unwrap();
    fs::rename(&elsewhere, place.incoming().join("future.json")).unwrap();
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().ready.value(), Some(1));
    // It has been seen, and what comes later does not overtake it for a year.
    let mut received = Vec::new();
    for n in 0..10 {
        drop_in(&place, format!("{n}.json"), format!("{n}"), None);
        let message = take(&provider, &queue).await;
        received.extend(bodies(std::slice::from_ref(&message)));
        provider.ack_message(&queue, message, soon()).await.unwrap();
    }
    assert!(received.contains(&"\"future\"".into()), "{received:?}");
}

#[tokio::test]
async fn a_file_that_may_not_be_read_dies_alone() {
    let place = Place::new();
    let (provider, queue) = made(&place, SpoolOptions::default()).await;
    drop_in(&place, "locked.json", "\"locked\"", Some(1));
    drop_in(&place, "open.json", "\"open\"", Some(2));
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(place.incoming().join("locked.json"), fs::Permissions::from_mode(0o000)).unwrap();
    drop(provider);
    crate::processes::as_nobody(&place, "unreadable");
    let provider = place.connect().await;
    let letters = dead(&provider, &queue).await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason.as_str(), "unreadable");
    assert!(letters[0].error.as_ref().unwrap().contains("the permissions of the file"), "{:?}", letters[0]);
}

/// The worker's side of the test above: it is nobody, who may not read everything.
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
