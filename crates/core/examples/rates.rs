//! The speed of the memory provider, and the cost of the coalescer for a single caller.
//!
//! `cargo run --release -p postrider-core --example rates` prints the medians of five runs. With `--check` it fails if
//! the best of up to twenty-five runs misses its limit, because other load can only make a run slower. Runs are short,
//! so that some are not interrupted.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use postrider_core::coalescer::{Batch, BatchExecutor, BatchFailure, BatchReply, Coalescer, CoalescerConfig};
use postrider_core::*;

const RUNS: usize = 5;
const MAX_RUNS: usize = 25;
const MESSAGES: usize = 50_000;
const BATCH: usize = 100;
const CALLS: u32 = 20_000;
const MIN_PER_SECOND: f64 = 300_000.0;
const MAX_ADDED: Duration = Duration::from_micros(2);

#[tokio::main]
async fn main() -> ExitCode {
    let is_check = std::env::args().any(|arg| arg == "--check");
    let mut rates: Vec<f64> = Vec::new();
    let mut added: Vec<Duration> = Vec::new();
    let mut misses_limit = true;
    while rates.len() < RUNS || (is_check && misses_limit && rates.len() < MAX_RUNS) {
        // In tasks, as callers are: the thread that blocks on the runtime is not a worker thread.
        rates.push(tokio::spawn(memory_rate()).await.expect("the memory run ends"));
        added.push(tokio::spawn(coalescer_cost()).await.expect("the coalescer run ends"));
        misses_limit = rates.iter().all(|rate| *rate < MIN_PER_SECOND) || added.iter().all(|added| *added > MAX_ADDED);
    }
    rates.sort_by(f64::total_cmp);
    added.sort_unstable();
    let median = rates.len() / 2;
    println!("memory: {:.0} messages a second through send, lease and ack in batches of {BATCH}", rates[median]);
    println!("coalescer: {:?} added to a single call", added[median]);
    if is_check && misses_limit {
        eprintln!("the limits are {MIN_PER_SECOND} messages a second and {MAX_ADDED:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn memory_rate() -> f64 {
    let provider = MemoryStore::new().open();
    let queue = QueueName::new("rates").expect("a queue's name");
    let body = Bytes::from(vec![b'x'; 200]);
    let start = Instant::now();
    for _ in 0..MESSAGES / BATCH {
        let messages = (0..BATCH).map(|_| Message::new(body.clone())).collect();
        provider.send_batch(&queue, messages, Deadline::never()).await.expect("sent");
    }
    let options = ReceiveOptions::batch(BATCH);
    let mut done = 0;
    while done < MESSAGES {
        let received = provider.receive_messages(&queue, &options, Deadline::never()).await.expect("received");
        done += received.len();
        let acks = received.into_iter().map(Settlement::ack).collect();
        for row in provider.settle(acks, Deadline::never()).await.expect("settled") {
            row.expect("acknowledged");
        }
    }
    MESSAGES as f64 / start.elapsed().as_secs_f64()
}

/// A store that returns at once, so that only the cost of the coalescer is left.
struct Instantly;

#[async_trait]
impl BatchExecutor for Instantly {
    async fn execute(&self, batch: &Batch) -> Result<BatchReply, BatchFailure> {
        Ok(BatchReply {
            extends: batch.extends.iter().map(|row| Ok(row.receipt.clone())).collect(),
            settles: batch.settles.iter().map(|_| Ok(())).collect(),
            sends: batch.sends.iter().map(|row| Ok(row.message.id)).collect(),
        })
    }
}

async fn coalescer_cost() -> Duration {
    let (coalescer, drivers) =
        Coalescer::new(Instantly, CoalescerConfig::new("rates")).expect("the default configuration is valid");
    drivers.spawn();
    let queue = QueueName::new("rates").expect("a queue's name");
    let message = Message::new("one");
    let start = Instant::now();
    for _ in 0..CALLS {
        let rows = coalescer.send(&queue, vec![message.clone()], Deadline::default()).await.expect("sent");
        std::hint::black_box(rows);
    }
    let coalesced = start.elapsed();
    let start = Instant::now();
    for _ in 0..CALLS {
        let batch = Batch {
            sends: vec![postrider_core::coalescer::SendRow { queue: queue.clone(), message: message.clone() }],
            ..Batch::default()
        };
        std::hint::black_box(Instantly.execute(&batch).await.is_ok());
    }
    coalesced.saturating_sub(start.elapsed()) / CALLS
}
