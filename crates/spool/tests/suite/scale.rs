//! Many files: a folder is read once, and the cost of a claim does not depend on the number of waiting files.

use std::fs;
use std::time::{Duration, Instant};

use postrider_core::{Message, MessagingService, QueueAdmin, QueueName, ReceiveOptions, Settlement, failpoint};
use postrider_spool::{SpoolOptions, SpoolProvider};

use crate::{Scratch, is_long, queue, soon};

/// Median time of the claim and the acknowledgement of one message.
async fn one_at_a_time(provider: &SpoolProvider, queue: &QueueName) -> Duration {
    let mut times = Vec::new();
    for _ in 0..50 {
        let began = Instant::now();
        let received = provider.receive_messages(queue, &ReceiveOptions::default(), soon()).await.unwrap();
        assert_eq!(received.len(), 1);
        for row in provider.settle(received.into_iter().map(Settlement::ack).collect(), soon()).await.unwrap() {
            row.unwrap();
        }
        times.push(began.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

#[tokio::test]
async fn a_claim_costs_the_same_with_many_files() {
    // In main memory, so that the disk does not influence the measurement.
    let scratch = Scratch::in_memory();
    let grace_period = Duration::from_millis(100);
    let provider = scratch.connect_with(SpoolOptions { grace_period, ..SpoolOptions::default() }).await;
    let (few, many) = (queue("few"), queue("many"));
    let most = if is_long() { 1_000_000 } else { 20_000 };
    for (queue, files) in [(&few, 200), (&many, most)] {
        provider.ensure_queue(queue, soon()).await.unwrap();
        let incoming = scratch.spool().join(queue.as_str()).join("incoming");
        for n in 0..files {
            fs::write(incoming.join(format!("{n:07}.json")), "{}").unwrap();
        }
        // The first scan. After the grace period all files are messages.
        let began = Instant::now();
        let stats = provider.queue_stats(queue, soon()).await.unwrap();
        assert_eq!(stats.message_count(), Some(files));
        println!("{files} files are known after {:?}", began.elapsed());
        while provider.queue_stats(queue, soon()).await.unwrap().ready.value() != Some(files) {
            assert!(began.elapsed() < Duration::from_secs(60), "files are never ready");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    // A busy machine may slow one of the two down, but not every time.
    for _ in 0..3 {
        let (with_few, with_many) = (one_at_a_time(&provider, &few).await, one_at_a_time(&provider, &many).await);
        println!("a claim and its ack take {with_few:?} with 200 files and {with_many:?} with {most}");
        // Reading all names again would take a hundred times as long.
        if with_many < with_few * 5 + Duration::from_millis(1) {
            return;
        }
    }
    panic!("the more files wait, the longer a claim takes");
}

#[tokio::test]
async fn a_send_an_ack_and_an_extend_of_a_new_process_do_not_read_waiting_files() {
    let scratch = Scratch::in_memory();
    let provider = scratch.connect().await;
    let queue = queue("many");
    provider.send_message(&queue, Message::new("held"), soon()).await.unwrap();
    let held = provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().pop().unwrap();
    let receipt = held.into_receipt();
    crate::processes::run("settles", &scratch.spool(), receipt.to_string().as_ref());
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().message_count(), Some(1));
}

/// Runs in the worker of the test above.
pub(crate) async fn send_and_settle(spool: &std::path::Path, receipt: &str) {
    let provider = crate::connect(spool, Default::default()).await;
    let queue = queue("many");
    let receipt = receipt.parse().unwrap();
    provider.send_message(&queue, Message::new("sent"), soon()).await.unwrap();
    provider.extend_visibility(&queue, &receipt, Duration::from_secs(30), soon()).await.unwrap();
    provider.ack_message(&queue, receipt, soon()).await.unwrap();
    assert_eq!(failpoint::passed("spool.scan"), 0, "the waiting files were read");
    provider.peek(&queue, 1, soon()).await.unwrap();
    assert_eq!(failpoint::passed("spool.scan"), 1, "the failpoint does not count reads");
}

#[test]
fn a_process_that_may_open_few_files_can_use_many_queues() {
    let scratch = Scratch::in_memory();
    crate::processes::run("many queues", &scratch.spool(), scratch.folder.path());
}

/// Runs in the worker of the test above.
pub(crate) async fn use_many_queues(spool: &std::path::Path) {
    use nix::sys::resource::{Resource, setrlimit};
    setrlimit(Resource::RLIMIT_NOFILE, 512, 512).unwrap();
    let provider = crate::connect(spool, Default::default()).await;
    let queues: Vec<_> = (0..200).map(|n| queue(&format!("queue_{n}"))).collect();
    // A receiver waits on the first queue all the time.
    provider.ensure_queue(&queues[0], soon()).await.unwrap();
    let (waiting, first) = (provider.clone(), queues[0].clone());
    let waiting = tokio::spawn(async move {
        let options = ReceiveOptions::default().wait(Duration::from_secs(20));
        waiting.receive_messages(&first, &options, soon()).await.unwrap().pop().map(|message| message.message.clone())
    });
    for queue in &queues[1..] {
        provider.send_message(queue, Message::new("one"), soon()).await.unwrap();
    }
    for queue in &queues[1..] {
        let received = provider.receive_messages(queue, &ReceiveOptions::default(), soon()).await.unwrap();
        assert_eq!(received.len(), 1, "{queue}");
    }
    // Sent by another store, so that only inotify reports it.
    let other = crate::connect(spool, Default::default()).await;
    other.send_message(&queues[0], Message::new("waited for"), soon()).await.unwrap();
    assert_eq!(waiting.await.unwrap().as_deref(), Some(b"waited for".as_slice()));
}

#[tokio::test]
async fn processes_that_each_claim_once_do_not_starve_low_priorities() {
    use postrider_core::Priority;
    let scratch = Scratch::in_memory();
    let queue = queue("urgent");
    let sender = scratch.connect().await;
    sender.send_message(&queue, Message::new("low").priority(Priority::LOWEST), soon()).await.unwrap();
    let mut first = None;
    for n in 0..40 {
        sender.send_message(&queue, Message::new("high").priority(Priority::HIGHEST), soon()).await.unwrap();
        let worker = scratch.connect().await;
        let message = worker.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().pop().unwrap();
        first = first.or((message.message == "low").then_some(n));
        worker.ack_message(&queue, message, soon()).await.unwrap();
        worker.close(soon()).await.unwrap();
    }
    let first = first.expect("the less urgent message was never received");
    assert!(first > 0, "the high priority goes first");
}
