//! Keys keep their order under concurrent senders and claims.

use postrider_conformance::order::{SENDERS, WORKERS, many_senders_and_many_claimers};
use postrider_conformance::transactions::Caller;

use crate::transactions::Own;
use crate::{Fixture, is_long, queue};

async fn many_of_each(senders_with_transactions: usize) {
    let fixture = Fixture::new();
    let (mut workers, mut callers) = (Vec::new(), Vec::<Box<dyn Caller>>::new());
    for _ in 0..WORKERS {
        workers.push(fixture.connect().await);
    }
    for provider in &workers[..senders_with_transactions] {
        callers.push(Box::new(Own::new(&fixture, provider).await));
    }
    many_senders_and_many_claimers(workers, callers, queue("orders"), is_long()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_senders_and_many_claimers_of_the_same_keys() {
    many_of_each(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_senders_of_which_some_send_in_transactions() {
    many_of_each(SENDERS).await;
}
