//! Many dead letters, with a worker that rejects them again.

use postrider_conformance::redrive::letters_rejected_again_are_all_there_once;

use crate::{Emulator, TestStore};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a long storm on an emulator: scripts/test --full"]
async fn letters_that_are_rejected_again_during_a_redrive_are_all_there_once() {
    let store = TestStore::new(Emulator::Ministack);
    let (provider, worker, queue) = (store.connect().await, store.connect().await, crate::queue("again"));
    letters_rejected_again_are_all_there_once(&provider, &worker, &queue).await;
    store.delete_queues().await;
}
