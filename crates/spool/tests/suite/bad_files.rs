//! Many invalid files: they delay no message, and each of them becomes a dead letter.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use postrider_core::{
    DeadLetterQuery, DeadLetterReason, DeadLetters, MessageId, MessagingService, QueueAdmin, QueueName, ReceiveOptions,
    Settlement, failpoint,
};
use postrider_spool::{SpoolOptions, SpoolProvider};

use crate::{Scratch, queue, read_until_empty, soon};

const BAD: usize = 5_000;

/// A queue with `count` invalid files, all older than later files.
async fn with_bad_files(scratch: &Scratch, count: usize) -> (SpoolProvider, QueueName) {
    let provider = scratch.connect_with(SpoolOptions { grace_period: Duration::ZERO, ..SpoolOptions::default() }).await;
    let queue = queue("orders");
    provider.ensure_queue(&queue, soon()).await.unwrap();
    for number in 0..count {
        drop_in(scratch, &format!("bad-{number:06}.json"), "{\"cut\": ", 1_600_000_000);
    }
    (provider, queue)
}

fn incoming(scratch: &Scratch) -> std::path::PathBuf {
    scratch.spool().join("orders").join("incoming")
}

fn drop_in(scratch: &Scratch, name: &str, body: &str, time: u64) {
    write(&incoming(scratch).join(name), body, time);
}

fn write(file: &Path, body: &str, time: u64) {
    fs::write(file, body).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(time);
    fs::File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
}

#[tokio::test]
async fn a_message_behind_bad_files_is_received_before_all_of_them_are_moved() {
    let scratch = Scratch::in_memory();
    let (provider, queue) = with_bad_files(&scratch, BAD).await;
    drop_in(&scratch, "good.json", "{}", 1_700_000_000);
    let before = failpoint::passed("spool.lock");
    let received = provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap();
    assert_eq!(received.len(), 1);
    let turns = failpoint::passed("spool.lock") - before;
    // Thousands are read under one lock, and moved with later claims.
    assert!(turns < 20, "the lock was taken {turns} times for one message");
    let moved = provider.queue_stats(&queue, soon()).await.unwrap().dead.value().unwrap();
    assert!(moved < BAD as u64 / 2, "{moved} bad files were moved before the message was returned");
    for row in provider.settle(received.into_iter().map(Settlement::ack).collect(), soon()).await.unwrap() {
        row.unwrap();
    }
    // All of them become dead letters.
    read_until_empty(&provider, &queue).await;
    let stats = provider.queue_stats(&queue, soon()).await.unwrap();
    assert_eq!((stats.dead.value(), stats.message_count()), (Some(BAD as u64), Some(0)));
    let page = provider.list_dead_letters(&queue, &DeadLetterQuery::default(), soon()).await.unwrap();
    let letter = &page.letters[0];
    assert_eq!((&letter.reason, &letter.body[..]), (&DeadLetterReason::UNDECODABLE, &b"{\"cut\": "[..]));
    assert_eq!(letter.headers.get("file-name"), None, "an invalid file has no headers");
}

#[tokio::test]
async fn a_bad_file_that_is_corrected_before_it_is_moved_is_a_message() {
    let scratch = Scratch::in_memory();
    let (provider, queue) = with_bad_files(&scratch, 2_000).await;
    drop_in(&scratch, "good.json", "1", 1_700_000_000);
    let receive = || async {
        let received = provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap();
        let message = received.into_iter().next().unwrap();
        let body = String::from_utf8(message.message.to_vec()).unwrap();
        provider.ack_message(&queue, message, soon()).await.unwrap();
        body
    };
    assert_eq!(receive().await, "1");
    let is_left = |name: &str| incoming(&scratch).join(name).exists();
    assert!(is_left("bad-001999.json"), "it was moved already");
    write(&incoming(&scratch).join("bad-001999.json"), "2", 1_600_000_001);
    assert_eq!(receive().await, "2");
}

#[tokio::test]
async fn a_page_of_dead_letters_costs_no_more_than_its_entries() {
    const LETTERS: u64 = 2_000;
    let scratch = Scratch::in_memory();
    let (provider, queue) = with_bad_files(&scratch, LETTERS as usize).await;
    read_until_empty(&provider, &queue).await;
    let before = failpoint::passed("spool.dead_letter");
    let mut query = DeadLetterQuery { limit: 50, ..DeadLetterQuery::default() };
    let mut listed: Vec<MessageId> = Vec::new();
    loop {
        let page = provider.list_dead_letters(&queue, &query, soon()).await.unwrap();
        listed.extend(page.letters.iter().map(|letter| letter.id));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    let looked_at = failpoint::passed("spool.dead_letter") - before;
    assert!(looked_at <= 4 * LETTERS, "{looked_at} reads at {LETTERS} dead letters");
    let different: std::collections::HashSet<_> = listed.iter().collect();
    assert_eq!((listed.len(), different.len()), (LETTERS as usize, LETTERS as usize));
    // One by its id, then a purge of all.
    let before = failpoint::passed("spool.dead_letter");
    provider.get_dead_letter(&queue, listed[1_000], soon()).await.unwrap();
    assert_eq!(failpoint::passed("spool.dead_letter") - before, 1);
    let all = postrider_core::DeadLetterSelection::All;
    assert_eq!(provider.purge_dead_letters(&queue, &all, soon()).await.unwrap(), LETTERS);
    let looked_at = failpoint::passed("spool.dead_letter") - before;
    assert!(looked_at <= 4 * LETTERS, "{looked_at} reads to remove {LETTERS} dead letters");
}
