//! Files that users move or remove by hand.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use postrider_core::{
    DeadLetterEdit, DeadLetterQuery, DeadLetters, Headers, Message, MessagingService, Nack, QueueAdmin, QueueName,
    QueuedMessage, ReceiveOptions, Redrive,
};
use postrider_spool::SpoolProvider;

use crate::{Scratch, queue, read_until_empty, soon};

fn folder(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.spool().join("orders").join(name)
}

/// The only file in a folder that is not a record.
fn only_file(scratch: &Scratch, name: &str) -> PathBuf {
    let entries = fs::read_dir(folder(scratch, name)).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = entries.filter(|path| !path.to_string_lossy().ends_with(".record.json")).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().unwrap()
}

fn move_to(scratch: &Scratch, file: &std::path::Path, name: &str) {
    fs::rename(file, folder(scratch, name).join(file.file_name().unwrap())).unwrap();
}

async fn take(provider: &SpoolProvider, queue: &QueueName) -> QueuedMessage {
    let options = ReceiveOptions::default().wait(Duration::from_secs(20));
    provider.receive_messages(queue, &options, soon()).await.unwrap().pop().expect("a message")
}

#[tokio::test]
async fn a_dead_letter_that_is_moved_back_is_a_message_again() {
    let scratch = Scratch::new();
    let (provider, queue) = (scratch.connect().await, queue("orders"));
    let message = Message::new("poison").ordering_key("k").unwrap().header("tenant", "acme").unwrap();
    let id = provider.send_message(&queue, message, soon()).await.unwrap();
    let message = take(&provider, &queue).await;
    provider.nack_message(&queue, message, Nack::dead_letter("rejected").with_error("bad"), soon()).await.unwrap();
    // The record for users.
    let dead = only_file(&scratch, "failed");
    let record = dead.with_file_name(dead.file_name().unwrap().to_str().unwrap().split(".dead").next().unwrap());
    let record = fs::read_to_string(format!("{}.record.json", record.display())).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!((record["reason"].as_str(), record["error"].as_str()), (Some("rejected"), Some("bad")));

    provider.send_message(&queue, Message::new("later").ordering_key("k").unwrap(), soon()).await.unwrap();
    move_to(&scratch, &dead, "incoming");
    let first = take(&provider, &queue).await;
    assert_eq!(first.message, "later", "it joins the tail of its key");
    provider.ack_message(&queue, first, soon()).await.unwrap();
    let again = take(&provider, &queue).await;
    assert_eq!((again.id(), again.receive_count(), again.envelope.headers.get("tenant")), (id, 1, Some("acme")));
    provider.ack_message(&queue, again, soon()).await.unwrap();
    assert!(provider.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await.unwrap().letters.is_empty());
}

#[tokio::test]
async fn a_leased_message_can_be_moved_back_and_keeps_its_counts() {
    let scratch = Scratch::new();
    let (provider, queue) = (scratch.connect().await, queue("orders"));
    let id = provider.send_message(&queue, Message::new("held"), soon()).await.unwrap();
    let options = ReceiveOptions::default().visibility(Duration::from_secs(3600));
    let held = provider.receive_messages(&queue, &options, soon()).await.unwrap().pop().unwrap().into_receipt();
    move_to(&scratch, &only_file(&scratch, "processing"), "incoming");
    let again = take(&provider, &queue).await;
    assert_eq!((again.id(), again.receive_count()), (id, 2));
    // The lease ended with the name.
    assert!(provider.ack_message(&queue, held, soon()).await.is_err());
    provider.ack_message(&queue, again, soon()).await.unwrap();
}

#[tokio::test]
async fn a_foreign_file_in_failed_is_a_dead_letter() {
    let scratch = Scratch::new();
    let (provider, queue) = (scratch.connect().await, queue("orders"));
    provider.ensure_queue(&queue, soon()).await.unwrap();
    fs::write(folder(&scratch, "failed").join("mine.json"), "{\"n\": 1}").unwrap();
    let letter = |letters: Vec<postrider_core::DeadLetter>| letters.into_iter().next().unwrap();
    let list = async || letter(provider.list_dead_letters(&queue, &Default::default(), soon()).await.unwrap().letters);
    let found = list().await;
    assert_eq!((found.reason.as_str(), found.body.as_ref()), ("put_into_failed", b"{\"n\": 1}".as_slice()));
    // An edit makes it a message file with the same id.
    let mut headers = Headers::new();
    headers.insert("fixed", "yes").unwrap();
    let edit = DeadLetterEdit { body: Some("{\"n\": 2}".into()), headers: Some(headers), content_type: None };
    let edited = provider.edit_dead_letter(&queue, found.id, edit, soon()).await.unwrap();
    assert_eq!((edited.id, edited.revision, edited.headers.get("fixed")), (found.id, 1, Some("yes")));
    assert_eq!(list().await.id, found.id);
    provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await.unwrap();
    let message = take(&provider, &queue).await;
    assert_eq!((message.id(), message.message.as_ref()), (found.id, b"{\"n\": 2}".as_slice()));
}

#[tokio::test]
async fn a_removed_file_is_skipped() {
    let scratch = Scratch::new();
    let (provider, queue) = (scratch.connect().await, queue("orders"));
    for body in ["removed", "left"] {
        provider.send_message(&queue, Message::new(body), soon()).await.unwrap();
    }
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().ready.value(), Some(2));
    let mut names: Vec<_> = fs::read_dir(folder(&scratch, "incoming")).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    fs::remove_file(&names[0]).unwrap();
    let left = take(&provider, &queue).await;
    assert_eq!(left.message, "left");
    provider.ack_message(&queue, left, soon()).await.unwrap();
    // A lease ends when its file is removed.
    let held = provider.send_message(&queue, Message::new("held"), soon()).await.unwrap();
    let message = take(&provider, &queue).await;
    assert_eq!(message.id(), held);
    for file in fs::read_dir(folder(&scratch, "processing")).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    assert!(provider.ack_message(&queue, message, soon()).await.is_err());
}

#[tokio::test]
async fn foreign_files_in_processing_are_ignored() {
    let scratch = Scratch::new();
    let (provider, queue) = (scratch.connect().await, queue("orders"));
    provider.ensure_queue(&queue, soon()).await.unwrap();
    fs::write(folder(&scratch, "processing").join("theirs.json"), "{}").unwrap();
    assert!(provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().is_empty());
    assert!(folder(&scratch, "processing").join("theirs.json").exists());
    let findings = postrider_spool::SpoolStore::examine(scratch.spool(), Default::default()).await;
    let finding = findings.iter().find(|finding| finding.found.contains("another program")).expect("a finding");
    assert!(finding.fix.as_ref().unwrap().contains("mv 'orders'/processing/FILE"), "{finding:?}");
}

#[tokio::test]
async fn a_folder_that_a_user_created_is_a_queue() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.spool().join("orders/incoming")).unwrap();
    fs::write(scratch.spool().join("orders/incoming/a.json"), "1").unwrap();
    let (provider, queue) = (scratch.connect().await, queue("orders"));
    assert_eq!(provider.list_queues(soon()).await.unwrap(), std::slice::from_ref(&queue));
    assert_eq!(take(&provider, &queue).await.message, "1");
    assert!(folder(&scratch, "outgoing").is_dir());
}

#[tokio::test]
async fn a_foreign_file_with_the_suffix_of_a_record_is_a_message() {
    let scratch = Scratch::new();
    let (provider, queue) = (scratch.connect().await, queue("orders"));
    provider.ensure_queue(&queue, soon()).await.unwrap();
    for folder_name in ["incoming", "failed"] {
        let path = folder(&scratch, folder_name).join("my.record.json");
        fs::write(&path, "not json").unwrap();
        // Old enough to be swept.
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(2 * 3600);
        fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    }
    assert!(provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().is_empty());
    // A new process reads and sweeps all folders.
    let other = scratch.connect().await;
    let letters = other.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await.unwrap().letters;
    assert_eq!(letters.len(), 2, "{letters:#?}");
    assert!(letters.iter().all(|letter| letter.body == "not json"));
}

#[tokio::test]
async fn an_edit_does_not_destroy_an_unreadable_body() {
    let scratch = Scratch::new();
    let limits = postrider_core::Limits { max_body_bytes: 10, ..Default::default() };
    let options = postrider_spool::SpoolOptions { limits, ..Default::default() };
    let (provider, queue) = (scratch.connect_with(options).await, queue("orders"));
    provider.ensure_queue(&queue, soon()).await.unwrap();
    fs::write(folder(&scratch, "failed").join("huge.json"), "\"more than ten bytes\"").unwrap();
    fs::create_dir(folder(&scratch, "failed").join("tree")).unwrap();
    fs::write(folder(&scratch, "failed").join("tree/kept"), "kept").unwrap();
    let letters = provider.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await.unwrap().letters;
    assert_eq!(letters.len(), 2);
    for letter in letters {
        let edit = DeadLetterEdit { headers: Some(Headers::new()), ..DeadLetterEdit::default() };
        let refused = provider.edit_dead_letter(&queue, letter.id, edit, soon()).await.unwrap_err().to_string();
        assert!(refused.contains("pass a new body with the edit"), "{refused}");
    }
    assert_eq!(fs::read_to_string(folder(&scratch, "failed").join("huge.json")).unwrap(), "\"more than ten bytes\"");
    assert_eq!(fs::read_to_string(folder(&scratch, "failed").join("tree/kept")).unwrap(), "kept");
}

#[tokio::test]
async fn a_corrected_file_has_its_ordering_key() {
    let scratch = Scratch::new();
    let (ordering_key, grace_period) = (vec!["k".parse().unwrap()], Duration::from_millis(200));
    let options = postrider_spool::SpoolOptions { ordering_key, grace_period, ..Default::default() };
    let (provider, queue) = (scratch.connect_with(options).await, queue("orders"));
    provider.ensure_queue(&queue, soon()).await.unwrap();
    let elsewhere = scratch.folder.path().join("broken");
    fs::write(&elsewhere, "{\"k\": \"a\",").unwrap();
    fs::rename(&elsewhere, folder(&scratch, "incoming").join("broken.json")).unwrap();
    read_until_empty(&provider, &queue).await;
    let held = provider.send_message(&queue, Message::new("held").ordering_key("a").unwrap(), soon()).await.unwrap();
    let message = take(&provider, &queue).await;
    assert_eq!(message.id(), held);
    let dead = only_file(&scratch, "failed");
    fs::write(&dead, "{\"k\": \"a\"}").unwrap();
    move_to(&scratch, &dead, "incoming");
    assert!(
        provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().is_empty(),
        "overtaken"
    );
    provider.ack_message(&queue, message, soon()).await.unwrap();
    assert_eq!(take(&provider, &queue).await.message, "{\"k\": \"a\"}");
}
