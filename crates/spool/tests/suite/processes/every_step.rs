//! A worker that is killed before its first system call, before its second, and so on to the last: no message is lost,
//! duplicated or stuck.

use std::path::Path;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use postrider_conformance::history::History;
use postrider_conformance::processes::killed::{LEASE, LIMIT, judge, shared_queue};
use postrider_conformance::recorded::Recorded;
use postrider_core::{
    DeadLetterEdit, DeadLetterQuery, DeadLetterSelection, DeadLetters, Message, MessagingService, Nack, QueueAdmin,
    QueuedMessage, ReceiveOptions, Redrive,
};
use postrider_spool::SpoolProvider;

use super::spawn;
use crate::{Scratch, is_long, soon};

/// Number of steps tried in parallel.
const TOGETHER: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_can_be_killed_between_any_two_system_calls() {
    // In the short form every fifth step, from a random one.
    let stride = if is_long() { 1 } else { 5 };
    let first = 1 + rand::random::<u32>() % stride;
    let steps = (0..).map(|number| first + number * stride);
    let mut tried = stream::iter(steps).map(die_at).buffered(TOGETHER);
    let mut killed = 0;
    while let Some((step, has_ended_well)) = tried.next().await {
        if has_ended_well {
            break;
        }
        killed += 1;
        assert!(step < 2000, "the worker never ends");
    }
    println!("killed {killed} times");
    assert!(killed * stride > 100, "too few steps were tried: {killed}");
}

/// Kills a worker before that system call, and checks the result. Returns whether the worker ended before.
async fn die_at(step: u32) -> (u32, bool) {
    let scratch = Scratch::in_memory();
    let journal = scratch.folder.path().join("journal");
    let worker = spawn("every step", &scratch.spool(), &journal, 1, &format!("spool.step=kill@{step}"));
    let has_ended_well = tokio::task::spawn_blocking(move || worker.wait()).await.unwrap().unwrap();
    let provider = scratch.connect().await;
    // It may have died while the queue was paused.
    provider.resume(&shared_queue(), soon()).await.unwrap();
    if journal.exists() {
        let verdict = judge(provider.clone(), &[journal]).await;
        assert!(verdict.is_clean(), "killed before system call {step}: {verdict}");
    }
    // Nothing blocks the next worker or is left behind.
    let queue = shared_queue();
    let stats = provider.queue_stats(&queue, soon()).await.unwrap();
    assert_eq!(stats.message_count(), Some(0), "killed before system call {step}");
    provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await.unwrap();
    for folder in ["incoming", "processing"] {
        let left = std::fs::read_dir(scratch.spool().join(queue.as_str()).join(folder)).map(Iterator::count);
        assert!(left.is_err() || left.is_ok_and(|left| left == 0), "killed before system call {step}: {folder}");
    }
    // The next listing repairs an interrupted edit.
    provider.list_dead_letters(&crate::queue("files"), &DeadLetterQuery::default(), soon()).await.unwrap();
    provider.close(soon()).await.unwrap();
    assert_one_file(&scratch, step);
    (step, has_ended_well)
}

/// Checks that the foreign file is in exactly one folder, unless it was being acknowledged.
fn assert_one_file(scratch: &Scratch, step: u32) {
    let mut found = 0;
    for (queue, folder) in [
        ("files", "incoming"),
        ("files", "processing"),
        ("files", "failed"),
        ("others", "incoming"),
        ("others", "processing"),
    ] {
        let entries = std::fs::read_dir(scratch.spool().join(queue).join(folder));
        let names = entries.into_iter().flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        found += names.filter(|name| !name.ends_with(".record.json")).count();
    }
    let is_there = scratch.folder.path().join("moved in").exists();
    let may_be_gone = scratch.folder.path().join("to be acknowledged").exists();
    let is_right = if may_be_gone { found <= 1 } else { found == usize::from(is_there) };
    assert!(is_right, "killed before system call {step}: the file is in {found} folders");
}

/// Runs in the worker: every operation on a message once.
pub(super) async fn work(spool: &Path, journal: &Path, number: u32) {
    let provider = crate::connect(spool, Default::default()).await;
    let history = History::journaled(journal).unwrap();
    let provider = Recorded::new(provider, history, number);
    let queue = shared_queue();
    let send = async |message: Message| provider.send_message(&queue, message, soon()).await.unwrap();
    send(Message::new("first of a key").ordering_key("key").unwrap()).await;
    let batch = vec![
        Message::new("second of a key").ordering_key("key").unwrap(),
        Message::new("single").dedup_key("single").unwrap().header("tenant", "acme").unwrap(),
        Message::new("delayed").delay(Duration::from_millis(1)),
        Message::new("plain"),
    ];
    for row in provider.send_batch(&queue, batch, soon()).await.unwrap() {
        row.unwrap();
    }
    send(Message::new("single again").dedup_key("single").unwrap()).await;
    send(Message::new("expired").expires_in(Duration::from_millis(1))).await;

    retry_release_and_reject(&provider).await;
    let letters = provider.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await.unwrap().letters;
    if let Some(letter) = letters.first() {
        let edit = DeadLetterEdit { body: Some("edited".into()), ..DeadLetterEdit::default() };
        provider.edit_dead_letter(&queue, letter.id, edit, soon()).await.unwrap();
    }
    provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await.unwrap();
    for message in receive(&provider, 2).await {
        provider.ack_message(&queue, message, soon()).await.unwrap();
    }
    provider.pause(&queue, soon()).await.unwrap();
    provider.resume(&queue, soon()).await.unwrap();
    provider.purge(&queue, soon()).await.unwrap();
    let scratch = spool.parent().unwrap();
    use_a_foreign_file(provider.provider(), scratch, &spool.join("files")).await;
    provider.close(soon()).await.unwrap();
}

/// A file with a long name: claimed, retried, dead-lettered, moved back by hand, dead-lettered, edited, redriven into
/// another queue, and acknowledged.
async fn use_a_foreign_file(provider: &SpoolProvider, scratch: &Path, home: &Path) {
    let (files, others) = (crate::queue("files"), crate::queue("others"));
    provider.ensure_queue(&files, soon()).await.unwrap();
    let name = format!("{}.json", "n".repeat(200));
    std::fs::write(scratch.join("elsewhere"), "{}").unwrap();
    std::fs::write(scratch.join("moved in"), "").unwrap();
    std::fs::rename(scratch.join("elsewhere"), home.join("incoming").join(name)).unwrap();
    let options = ReceiveOptions::default().wait(Duration::from_secs(5));
    let take = async |queue| provider.receive_messages(queue, &options, soon()).await.unwrap().pop().unwrap();
    let retry = Nack::retry_after(Duration::ZERO).with_error("failed");
    provider.nack_message(&files, take(&files).await, retry, soon()).await.unwrap();
    provider.nack_message(&files, take(&files).await, Nack::dead_letter("rejected"), soon()).await.unwrap();
    let dead = std::fs::read_dir(home.join("failed")).unwrap().map(|entry| entry.unwrap().path());
    let dead = dead.into_iter().find(|path| path.extension().is_some_and(|end| end == "file")).unwrap();
    std::fs::rename(&dead, home.join("incoming").join(dead.file_name().unwrap())).unwrap();
    provider.nack_message(&files, take(&files).await, Nack::dead_letter("rejected"), soon()).await.unwrap();
    let letter =
        provider.list_dead_letters(&files, &DeadLetterQuery::default(), soon()).await.unwrap().letters.remove(0);
    let edit = DeadLetterEdit { headers: Some(Default::default()), ..DeadLetterEdit::default() };
    provider.edit_dead_letter(&files, letter.id, edit, soon()).await.unwrap();
    let elsewhere = Redrive { to: Some(others.clone()), ..Redrive::default() };
    provider.redrive_dead_letters(&files, &elsewhere, soon()).await.unwrap();
    let message = take(&others).await;
    assert_eq!(message.id(), letter.id);
    std::fs::write(scratch.join("to be acknowledged"), "").unwrap();
    provider.ack_message(&others, message, soon()).await.unwrap();
}

async fn receive(provider: &Recorded<SpoolProvider>, max: usize) -> Vec<QueuedMessage> {
    let options = ReceiveOptions::batch(max).visibility(LEASE * 4).max_receive_count(LIMIT);
    provider.receive_messages(&shared_queue(), &options, soon()).await.unwrap()
}

async fn retry_release_and_reject(provider: &Recorded<SpoolProvider>) {
    let queue = shared_queue();
    for (number, message) in receive(provider, 4).await.into_iter().enumerate() {
        provider.extend_visibility(&queue, message.receipt(), LEASE * 4, soon()).await.unwrap();
        let nack = match number {
            0 => Nack::retry_after(Duration::ZERO).with_error("failed"),
            1 => Nack::Release,
            2 => Nack::dead_letter("rejected").with_error("bad"),
            _ => {
                provider.ack_message(&queue, message, soon()).await.unwrap();
                continue;
            }
        };
        provider.nack_message(&queue, message, nack, soon()).await.unwrap();
    }
}
