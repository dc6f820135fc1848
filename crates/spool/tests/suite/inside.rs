//! No name, header or link reads or writes files outside the spool.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use postrider_core::{
    DeadLetterQuery, DeadLetters, Message, MessagingService, Nack, QueueAdmin, QueueName, ReceiveOptions, Redrive,
};
use postrider_spool::{Files, SpoolOptions};

use crate::{Scratch, queue, read_until_empty, soon};

/// Collects every file below a folder, with its content.
fn contents(folder: &Path, into: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            contents(&path, into);
        } else {
            into.insert(path.display().to_string(), fs::read(&path).unwrap_or_default());
        }
    }
}

fn outside(scratch: &Scratch) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    contents(&scratch.folder.path().join("outside"), &mut found);
    found
}

#[tokio::test]
async fn no_queue_name_leads_outside() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.folder.path().join("outside/incoming")).unwrap();
    // Makes the folder above the spool look like a queue.
    fs::create_dir_all(scratch.folder.path().join("incoming")).unwrap();
    let provider = scratch.connect().await;
    for name in [".hidden", "..outside"] {
        let name = QueueName::new(name).unwrap();
        assert!(provider.send_message(&name, Message::new("x"), soon()).await.is_err(), "{name}");
        assert!(provider.receive_messages(&name, &ReceiveOptions::default(), soon()).await.is_err(), "{name}");
        assert!(provider.delete_queue(&name, soon()).await.is_err(), "{name}");
        assert!(provider.pause(&name, soon()).await.is_err(), "{name}");
        assert!(provider.ensure_queue(&name, soon()).await.is_err(), "{name}");
        let report = provider.verify_queues(std::slice::from_ref(&name), soon()).await.unwrap();
        assert_eq!(report.errors.len(), 1, "{name}: {report:?}");
        let elsewhere = Redrive { to: Some(name), ..Redrive::default() };
        assert!(provider.redrive_dead_letters(&queue("orders"), &elsewhere, soon()).await.is_err());
    }
    assert_eq!(fs::read_dir(scratch.folder.path().join("outside")).unwrap().count(), 1, "something was made outside");
    for name in [".", "..", "../outside", "a/b"] {
        assert!(QueueName::new(name).is_err(), "{name}");
    }
    assert!(provider.list_queues(soon()).await.unwrap().is_empty());
}

#[tokio::test]
async fn folders_that_are_links_are_not_used() {
    let scratch = Scratch::new();
    let outside_folder = scratch.folder.path().join("outside");
    for folder in ["incoming", "processing", "failed", "records", "tmp", "outgoing"] {
        fs::create_dir_all(outside_folder.join(folder)).unwrap();
    }
    fs::write(outside_folder.join("incoming/bait.json"), "1").unwrap();
    let provider = scratch.connect().await;
    let before = outside(&scratch);
    // The queue itself, then each of its folders.
    symlink(&outside_folder, scratch.spool().join("linked")).unwrap();
    for (n, folder) in ["incoming", "processing", "failed", "records", "tmp", "outgoing"].into_iter().enumerate() {
        let home = scratch.spool().join(format!("q{n}"));
        fs::create_dir_all(home.join("incoming")).unwrap();
        let _ = fs::remove_dir(home.join(folder));
        symlink(outside_folder.join(folder), home.join(folder)).unwrap();
    }
    for name in ["linked", "q0", "q1", "q2", "q3", "q4", "q5"] {
        let queue = queue(name);
        let sent = provider.send_message(&queue, Message::new("x"), soon()).await;
        let error = sent.expect_err(name).to_string();
        assert!(error.contains("link") || error.contains("not a folder"), "{name}: {error}");
        assert!(provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.is_err(), "{name}");
        assert!(provider.purge(&queue, soon()).await.is_err(), "{name}");
    }
    assert_eq!(outside(&scratch), before);
}

#[tokio::test]
async fn links_in_a_queue_are_moved_and_removed_but_never_followed() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.folder.path().join("outside/folder")).unwrap();
    fs::write(scratch.folder.path().join("outside/secret"), "\"secret\"").unwrap();
    fs::write(scratch.folder.path().join("outside/folder/kept"), "kept").unwrap();
    let before = outside(&scratch);
    let grace_period = std::time::Duration::from_millis(200);
    let options = SpoolOptions { files: Files::Any, grace_period, ..SpoolOptions::default() };
    let provider = scratch.connect_with(options).await;
    let queue = queue("orders");
    provider.send_message(&queue, Message::new("ours"), soon()).await.unwrap();
    let home = scratch.spool().join("orders");
    let ours = fs::read_dir(home.join("incoming")).unwrap().next().unwrap().unwrap().path();
    // A link with a provider's name, links with foreign names, and links among the dead letters.
    fs::remove_file(&ours).unwrap();
    symlink(scratch.folder.path().join("outside/secret"), &ours).unwrap();
    symlink(scratch.folder.path().join("outside/secret"), home.join("incoming/theirs.json")).unwrap();
    symlink(scratch.folder.path().join("outside/folder"), home.join("incoming/folder.json")).unwrap();
    symlink(scratch.folder.path().join("outside/secret"), home.join("failed/dead.json")).unwrap();
    fs::create_dir(home.join("incoming/tree")).unwrap();
    symlink(scratch.folder.path().join("outside/folder"), home.join("incoming/tree/deep")).unwrap();

    read_until_empty(&provider, &queue).await;
    let letters = provider.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await.unwrap().letters;
    assert_eq!(letters.len(), 5, "{letters:#?}");
    assert!(letters.iter().all(|letter| letter.body.is_empty()), "{letters:#?}");
    // Redriven they are dead-lettered again, and everything can be removed.
    provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await.unwrap();
    read_until_empty(&provider, &queue).await;
    assert!(provider.purge_dead_letters(&queue, &Default::default(), soon()).await.unwrap() > 0);
    provider.delete_queue(&queue, soon()).await.unwrap();
    assert_eq!(outside(&scratch), before);
    assert!(!home.exists());
}

#[tokio::test]
async fn headers_and_keys_are_never_used_as_paths() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.folder.path().join("outside")).unwrap();
    let provider = scratch.connect().await;
    let queue = queue("orders");
    let evil = "../../../outside/evil";
    let message = Message::new(evil)
        .header("file-name", evil)
        .unwrap()
        .header("path", "/etc/passwd")
        .unwrap()
        .ordering_key(evil)
        .unwrap()
        .dedup_key(evil)
        .unwrap();
    provider.send_message(&queue, message, soon()).await.unwrap();
    let message = provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().pop().unwrap();
    assert_eq!(message.envelope.headers.get("file-name"), Some(evil));
    let nack = Nack::dead_letter(evil).with_error(evil);
    provider.nack_message(&queue, message, nack, soon()).await.unwrap();
    provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await.unwrap();
    assert!(outside(&scratch).is_empty());
    let mut all = BTreeMap::new();
    contents(scratch.folder.path(), &mut all);
    let spool = scratch.spool().display().to_string();
    assert!(all.keys().all(|path| path.starts_with(&spool)), "{all:?}");
}
