//! Four processes that write without pause: each gets its share, and none waits long.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use postrider_core::{Message, MessagingService, ReceiveOptions, Settlement};
use postrider_sqlite::SqliteProvider;

use super::spawn;
use crate::{TestStore, is_long, queue, soon};

const TASKS: usize = 4;

/// The promised bound if no other test runs. Among other tests on a few busy cores a process can lose its core for
/// longer, which says nothing about the lock; a starved process waited for ten seconds.
fn longest_wait() -> Duration {
    Duration::from_millis(if is_long() { 500 } else { 5000 })
}

fn length() -> Duration {
    Duration::from_secs(if is_long() { 30 } else { 8 })
}

#[tokio::test]
async fn each_of_four_processes_gets_its_share_and_none_waits_long() {
    // In memory where possible: the test judges the lock, not the disk.
    let test_store = TestStore::in_memory();
    test_store.connect().await.close(soon()).await.unwrap();
    let report = |number: u32| test_store.folder.path().join(format!("{number}.report"));
    let workers: Vec<_> = (1..=4).map(|number| spawn("fair", &test_store.file(), &report(number), number)).collect();
    for worker in workers {
        assert!(worker.wait().unwrap(), "a worker failed");
    }
    let mut shares = Vec::new();
    let mut longest = Duration::ZERO;
    for number in 1..=4 {
        let text = std::fs::read_to_string(report(number)).unwrap();
        let numbers: Vec<u64> = text.split_whitespace().map(|number| number.parse().unwrap()).collect();
        shares.push(numbers[0]);
        longest = longest.max(Duration::from_micros(numbers[1]));
    }
    let all: u64 = shares.iter().sum();
    println!("shares {shares:?}, longest wait {longest:?}");
    assert!(shares.iter().all(|share| *share * 10 >= all), "shares of the work: {shares:?}");
    assert!(longest < longest_wait(), "an operation waited {longest:?}; shares {shares:?}");
}

/// Runs a worker process: several tasks send and handle messages as fast as they can, so that there is always something
/// to write.
pub(super) async fn work(file: &Path, report: &Path) {
    let provider = crate::connect(file).await;
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(keep_busy(provider.clone()))).collect();
    let (mut handled, mut longest) = (0, Duration::ZERO);
    for task in tasks {
        let (its_handled, its_longest) = task.await.unwrap();
        handled += its_handled;
        longest = longest.max(its_longest);
    }
    std::fs::write(report, format!("{handled} {}", longest.as_micros())).unwrap();
}

async fn keep_busy(provider: SqliteProvider) -> (usize, Duration) {
    let queue = queue("shared");
    let body = Bytes::from(vec![b'x'; 200]);
    let options = ReceiveOptions::batch(20);
    let (mut handled, mut longest) = (0, Duration::ZERO);
    let mut acks = Vec::new();
    let began = Instant::now();
    while began.elapsed() < length() {
        let messages = (0..20).map(|_| Message::new(body.clone())).collect();
        let before = Instant::now();
        provider.send_batch(&queue, messages, soon()).await.unwrap();
        longest = longest.max(before.elapsed());
        let before = Instant::now();
        let done = std::mem::take(&mut acks);
        let both = provider.settle_and_receive(done, std::slice::from_ref(&queue), &options, soon()).await.unwrap();
        longest = longest.max(before.elapsed());
        handled += both.settled.into_iter().filter(Result::is_ok).count();
        acks = both.received.unwrap().into_iter().map(Settlement::ack).collect();
    }
    (handled, longest)
}
