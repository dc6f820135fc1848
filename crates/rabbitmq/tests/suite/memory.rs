//! The memory of a process is bounded by its batches, not by the length of its queue.

use std::time::Duration;

use postrider_conformance::processes::WorkerProcess;
use postrider_core::{Message, MessagingService, QueueAdmin, QueueName, ReceiveOptions, Settlement};

use crate::{connect_with, is_long, options, prefix, soon};

/// Variable with the queue and the number of messages, for the measured process.
const QUEUE: &str = "POSTRIDER_TEST_LONG_QUEUE";

const BODY: usize = 2048;
const BATCH: usize = 100;

/// Maximum growth of the process: a twelfth of all bodies of the short run.
const MOST_ADDED: usize = 4 << 20;

/// Returns a field of this process's memory statistics, in bytes.
fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

/// Measures in a process of its own, because other tests run in this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_a_process_does_not_grow_with_the_queue() {
    let queue = QueueName::new(format!("{}_long", prefix())).unwrap();
    let messages = if is_long() { 1_000_000 } else { 25_000 };
    let variable = format!("{queue} {messages}");
    let worker = WorkerProcess::start("memory::sends_all_and_then_takes_all", &[(QUEUE, variable)]).unwrap();
    let ended_well = tokio::task::spawn_blocking(|| worker.wait()).await.unwrap().unwrap();
    connect_with(options()).await.delete_queue(&queue, soon()).await.unwrap();
    assert!(ended_well, "its memory has grown, or it failed: see above");
}

/// Runs in the measured process; does nothing as a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_all_and_then_takes_all() {
    let Ok(variable) = std::env::var(QUEUE) else { return };
    let (queue, messages) = variable.split_once(' ').unwrap();
    let (queue, messages) = (QueueName::new(queue).unwrap(), messages.parse::<usize>().unwrap());
    let provider = connect_with(options()).await;
    let send = async |count: usize| {
        for _ in 0..count / BATCH {
            let batch = (0..BATCH).map(|_| Message::new(vec![b'x'; BODY])).collect();
            for sent in provider.send_batch(&queue, batch, soon()).await.unwrap() {
                sent.unwrap();
            }
        }
    };
    let take = async |count: usize| {
        let options = ReceiveOptions::batch(BATCH).wait(Duration::from_secs(30));
        let mut taken = 0;
        while taken < count {
            let received = provider.receive_messages(&queue, &options, soon()).await.unwrap();
            taken += received.len();
            assert!(!received.is_empty() && received.len() <= BATCH, "{} after {taken}", received.len());
            let acks = received.into_iter().map(Settlement::ack).collect();
            for settled in provider.settle(acks, soon()).await.unwrap() {
                settled.unwrap();
            }
        }
        assert_eq!(taken, count);
    };
    // A first round, so that fixed allocations are made before the measurement.
    send(10 * BATCH).await;
    take(10 * BATCH).await;
    let before = memory("VmRSS:");
    let peak = || memory("VmHWM:").saturating_sub(before);
    send(messages).await;
    let sent = peak();
    take(messages).await;
    let taken = peak();
    let grown = format!("{before} bytes, {sent} more after sending {messages} messages, {taken} after taking them");
    if is_long() {
        eprintln!("{grown}");
    }
    assert!(taken <= MOST_ADDED, "{grown}");
}
