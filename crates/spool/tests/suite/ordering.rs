//! Order by a key in foreign files.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use postrider_core::{
    Message, MessagingService, Nack, QueueAdmin, QueueName, QueuedMessage, ReceiveOptions, Settlement, failpoint,
};
use postrider_spool::{SpoolOptions, SpoolProvider, Watch};

use crate::{Scratch, queue, soon};

/// The ordering keys of a chat.
fn by_conversation(watch: Watch) -> SpoolOptions {
    let fields = ["workflowRunId", "channel,channelProfileId,conversationId"];
    SpoolOptions {
        ordering_key: fields.iter().map(|field| field.parse().unwrap()).collect(),
        watch,
        poll_interval: Duration::from_millis(10),
        ..SpoolOptions::default()
    }
}

fn drop_in(scratch: &Scratch, name: &str, conversation: &str, seconds: u64) {
    let elsewhere = scratch.folder.path().join("being written");
    let id = if conversation.is_empty() { "null".into() } else { format!("\"{conversation}\"") };
    fs::write(
        &elsewhere,
        format!(r#"{{"channel": "slack", "channelProfileId": "p", "conversationId": {id}, "name": "{name}"}}"#),
    )
    .unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + seconds);
    fs::File::options().write(true).open(&elsewhere).unwrap().set_modified(time).unwrap();
    fs::rename(elsewhere, scratch.spool().join("chat/incoming").join(format!("{name}.json"))).unwrap();
}

async fn receive(provider: &SpoolProvider, queue: &QueueName, max: usize) -> Vec<QueuedMessage> {
    provider.receive_messages(queue, &ReceiveOptions::batch(max), soon()).await.unwrap()
}

fn names(messages: &[QueuedMessage]) -> Vec<&str> {
    messages.iter().map(|message| message.envelope.headers.get("file-name").unwrap_or("ours")).collect()
}

async fn a_conversation_is_handled_in_order(watch: Watch) {
    let scratch = Scratch::new();
    let provider = scratch.connect_with(by_conversation(watch)).await;
    let queue = queue("chat");
    provider.ensure_queue(&queue, soon()).await.unwrap();
    for (name, conversation, seconds) in
        [("a1", "a", 1), ("a2", "a", 2), ("b1", "b", 3), ("alone1", "", 4), ("alone2", "", 5), ("a3", "a", 6)]
    {
        drop_in(&scratch, name, conversation, seconds);
    }
    let mut first = receive(&provider, &queue, 10).await;
    assert_eq!(names(&first), ["a1.json", "b1.json", "alone1.json", "alone2.json"]);
    assert_eq!(first[0].envelope.ordering_key.as_ref().map(|key| key.as_str()), Some("slack/p/a"));
    assert_eq!(first[2].envelope.ordering_key, None);

    // A failing head blocks its conversation, also for a new worker.
    let (head, delay, failed) = (first.remove(0), Duration::from_millis(500), Instant::now());
    provider.nack_message(&queue, head, Nack::retry_after(delay), soon()).await.unwrap();
    let other = scratch.connect_with(by_conversation(watch)).await;
    let options = ReceiveOptions::batch(10).wait(Duration::from_secs(20));
    let again = other.receive_messages(&queue, &options, soon()).await.unwrap();
    assert!(failed.elapsed() >= delay, "{:?} came after {:?}", names(&again), failed.elapsed());
    assert_eq!((names(&again), again[0].envelope.attempts_count), (vec!["a1.json"], 1));
    // A sent message with the same key comes after the files, which are older.
    provider.send_message(&queue, Message::new("ours").ordering_key("slack/p/a").unwrap(), soon()).await.unwrap();
    let mut held = again;
    for expected in ["a2.json", "a3.json", "ours"] {
        assert!(receive(&provider, &queue, 10).await.is_empty(), "before {expected}");
        let settlements: Vec<_> = held.drain(..).map(Settlement::ack).collect();
        other.settle(settlements, soon()).await.unwrap().into_iter().for_each(|row| row.unwrap());
        held = other.receive_messages(&queue, &options, soon()).await.unwrap();
        assert_eq!(names(&held), [expected]);
    }
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn a_conversation_is_handled_in_order_with_inotify() {
    a_conversation_is_handled_in_order(Watch::Auto).await;
}

#[tokio::test]
async fn a_conversation_is_handled_in_order_without_inotify() {
    a_conversation_is_handled_in_order(Watch::Poll).await;
}

#[tokio::test]
async fn a_file_from_before_the_worker_keeps_its_order_in_its_conversation() {
    let scratch = Scratch::new();
    let queue = queue("chat");
    fs::create_dir_all(scratch.spool().join("chat/incoming")).unwrap();
    // Complete but not watched: it is received after the grace period, and blocks its key until then.
    let incoming = scratch.spool().join("chat/incoming");
    let first = r#"{"channel": "slack", "channelProfileId": "p", "conversationId": "a", "name": "first"}"#;
    fs::write(incoming.join("first.json"), first).unwrap();
    let grace_period = Duration::from_secs(3);
    let provider = scratch.connect_with(SpoolOptions { grace_period, ..by_conversation(Watch::Auto) }).await;
    // From here on the folder is watched.
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().delayed.value(), Some(1));
    let elsewhere = scratch.folder.path().join("second");
    fs::write(&elsewhere, first.replace("first", "second")).unwrap();
    fs::rename(&elsewhere, incoming.join("second.json")).unwrap();
    provider.send_message(&queue, Message::new("third").ordering_key("slack/p/a").unwrap(), soon()).await.unwrap();
    for expected in ["first.json", "second.json", "ours"] {
        let options = ReceiveOptions::batch(10).wait(Duration::from_secs(20));
        let received = provider.receive_messages(&queue, &options, soon()).await.unwrap();
        assert_eq!(names(&received), [expected]);
        for message in received {
            provider.ack_message(&queue, message, soon()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_file_with_an_earlier_time_does_not_overtake_a_leased_one() {
    let scratch = Scratch::new();
    let provider = scratch.connect_with(by_conversation(Watch::Auto)).await;
    let queue = queue("chat");
    provider.ensure_queue(&queue, soon()).await.unwrap();
    drop_in(&scratch, "begun", "a", 10);
    let held = receive(&provider, &queue, 10).await;
    assert_eq!(names(&held), ["begun.json"]);
    drop_in(&scratch, "earlier", "a", 5);
    assert!(receive(&provider, &queue, 10).await.is_empty(), "two of one conversation at once");
    for message in held {
        provider.nack_message(&queue, message, Nack::retry_after(Duration::ZERO), soon()).await.unwrap();
    }
    let again = receive(&provider, &queue, 10).await;
    assert_eq!(names(&again), ["begun.json"]);
    for message in again {
        provider.ack_message(&queue, message, soon()).await.unwrap();
    }
    assert_eq!(names(&receive(&provider, &queue, 10).await), ["earlier.json"]);
}

#[test]
fn a_claim_reads_only_the_files_that_the_order_needs() {
    let scratch = Scratch::in_memory();
    crate::processes::run("reads keys", &scratch.spool(), scratch.folder.path());
}

/// Runs in the worker of the test above, alone in its process, where reads are counted.
pub(crate) async fn read_few_keys() {
    let scratch = Scratch::in_memory();
    let provider = scratch.connect_with(by_conversation(Watch::Auto)).await;
    let queue = queue("chat");
    provider.ensure_queue(&queue, soon()).await.unwrap();
    for n in 0..50 {
        drop_in(&scratch, &format!("{n:02}"), &format!("c{n}"), n);
    }
    assert_eq!(names(&receive(&provider, &queue, 3).await), ["00.json", "01.json", "02.json"]);
    assert_eq!(failpoint::passed("spool.read_key"), 3);
}
