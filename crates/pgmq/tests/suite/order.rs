//! Keys keep their order under concurrent senders and claims.

use postrider_conformance::order::{WORKERS, many_senders_and_many_claimers};
use postrider_core::MessagingService;

use crate::{Fixture, is_long, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_senders_and_many_claimers_of_the_same_keys() {
    let fixture = Fixture::new();
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(fixture.connect().await);
    }
    // Create the queue once; that is not what is tested.
    workers[0].ensure_queue(&fixture.queue("orders"), soon()).await.unwrap();
    many_senders_and_many_claimers(workers, Vec::new(), fixture.queue("orders"), is_long()).await;
}
