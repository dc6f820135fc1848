//! Workers that are killed at any moment.

use std::path::Path;

use postrider_conformance::processes::killed::kill_workers;

use super::spawn;
use crate::{Place, is_long};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_held_twice_when_workers_are_killed() {
    kill(2, if is_long() { 500 } else { 30 }, |_| "killed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_share_a_folder_and_half_of_them_have_no_inotify() {
    kill(4, if is_long() { 200 } else { 12 }, |number| if number % 2 == 0 { "killed" } else { "killed, looking" })
        .await;
}

async fn kill(workers: usize, kills: u32, role: impl Fn(u32) -> &'static str) {
    let place = Place::new();
    let provider = place.connect().await;
    let start = |number, journal: &Path| spawn(role(number), &place.spool(), journal, number, "");
    kill_workers(provider, place.folder.path(), workers, kills, start).await;
}
