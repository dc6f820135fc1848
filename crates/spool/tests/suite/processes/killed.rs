//! Workers that are killed at random moments.

use std::path::Path;

use postrider_conformance::processes::killed::kill_workers;

use super::spawn;
use crate::{Scratch, is_long};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_is_lost_or_leased_twice_when_workers_are_killed() {
    kill(2, if is_long() { 500 } else { 30 }, |_| "killed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_share_a_folder_and_half_of_them_have_no_inotify() {
    kill(4, if is_long() { 200 } else { 12 }, |number| if number % 2 == 0 { "killed" } else { "killed, polling" })
        .await;
}

async fn kill(workers: usize, kills: u32, role: impl Fn(u32) -> &'static str) {
    let scratch = Scratch::new();
    let provider = scratch.connect().await;
    let start = |number, journal: &Path| spawn(role(number), &scratch.spool(), journal, number, "");
    kill_workers(provider, scratch.folder.path(), workers, kills, start).await;
}
