//! Workers that are killed at any moment.

use postrider_conformance::processes::killed::kill_workers;

use super::spawn;
use crate::{Place, is_long};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_held_twice_when_workers_are_killed() {
    kill(2, if is_long() { 500 } else { 50 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_share_a_file() {
    kill(4, if is_long() { 100 } else { 8 }).await;
}

async fn kill(workers: usize, kills: u32) {
    let place = Place::new();
    let provider = place.connect().await;
    let start = |number, journal: &std::path::Path| spawn("killed", &place.file(), journal, number);
    kill_workers(provider, place.folder.path(), workers, kills, start).await;
}
