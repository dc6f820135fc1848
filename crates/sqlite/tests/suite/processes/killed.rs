//! Worker processes that are killed at any moment.

use postrider_conformance::processes::killed::kill_workers;

use super::spawn;
use crate::{TestStore, is_long};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_or_leased_twice_when_workers_are_killed() {
    kill(2, if is_long() { 500 } else { 50 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_share_a_file() {
    kill(4, if is_long() { 100 } else { 8 }).await;
}

async fn kill(workers: usize, kills: u32) {
    let test_store = TestStore::new();
    let provider = test_store.connect().await;
    let start = |number, journal: &std::path::Path| spawn("killed", &test_store.file(), journal, number);
    kill_workers(provider, test_store.folder.path(), workers, kills, start).await;
}
