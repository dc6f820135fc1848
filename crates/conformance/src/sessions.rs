//! Tests of a provider whose database sessions are ended by the server, or are all in use. A failure panics.

use std::collections::HashSet;
use std::time::Duration;

use postrider_core::{Message, MessagingError, Provider, QueueName, ReceiveOptions, Settlement};
use tokio::time::Instant;

use crate::probe::{TIME_LIMIT, soon};

const MESSAGES: usize = 300;

/// The number of looks during which sessions are ended.
const LOOKS: usize = 50;

/// Whether an error is allowed while sessions are being ended.
fn is_passing(error: &MessagingError) -> bool {
    error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })
}

/// Sends and receives while `ending` ends the sessions of both providers again and again. Every accepted message comes
/// back, and no other one.
pub async fn ended_sessions_lose_nothing<P: Provider>(
    sender: &P,
    worker: &P,
    queue: &QueueName,
    ending: impl Future<Output = ()> + Send + 'static,
) {
    let ending = tokio::spawn(ending);
    let (mut accepted, mut perhaps) = (HashSet::new(), HashSet::new());
    for n in 0..MESSAGES {
        // Some with keys: their transactions have more steps.
        let message = Message::new(format!("{n}"));
        let message = if n % 3 == 0 { message.ordering_key(format!("k{}", n % 5)).expect("a key") } else { message };
        loop {
            match sender.send_message(queue, message.clone(), soon()).await {
                Ok(id) => {
                    accepted.insert(id);
                    break;
                }
                Err(MessagingError::OutcomeUnknown { .. }) => {
                    perhaps.insert(message.id);
                    break;
                }
                Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    let (mut seen, mut looks) = (HashSet::new(), 0);
    let mut acks: Vec<Settlement> = Vec::new();
    let options = ReceiveOptions::batch(20).visibility(Duration::from_secs(3)).max_receive_count(1000);
    let options = options.wait(Duration::from_millis(200));
    // Set when the sessions are left alone: before, a receive takes as long as reconnecting on a busy machine.
    let mut end: Option<Instant> = None;
    while !accepted.is_subset(&seen) {
        let missing = accepted.difference(&seen).count();
        let is_over = end.is_some_and(|end| Instant::now() > end);
        assert!(!is_over, "{missing} of {} messages did not come back in {looks} looks", accepted.len());
        let done = worker.settle_and_receive(std::mem::take(&mut acks), std::slice::from_ref(queue), &options, soon());
        match done.await.and_then(|done| done.received) {
            Ok(messages) => {
                seen.extend(messages.iter().map(|message| message.id()));
                acks.extend(messages.into_iter().map(Settlement::ack));
            }
            Err(error) => assert!(is_passing(&error), "{error:?}"),
        }
        looks += 1;
        if looks == LOOKS {
            assert!(!ending.is_finished(), "the sessions were not ended until here");
            // Without further cuts: lost leases must expire, and no message may be stuck.
            ending.abort();
            end = Some(Instant::now() + Duration::from_secs(60));
        }
    }
    ending.abort();
    assert!(seen.iter().all(|id| accepted.contains(id) || perhaps.contains(id)));
}

/// Uses a provider whose pool has one session, while another transaction locks the messages. `waits` answers whether
/// that session waits for the lock, and `unlock` ends the lock.
pub async fn an_exhausted_pool_says_so_and_recovers<P: Provider + Clone>(
    provider: &P,
    queue: &QueueName,
    mut waits: impl AsyncFnMut() -> bool,
    unlock: impl Future<Output = ()>,
) {
    let send = {
        let (provider, queue) = (provider.clone(), queue.clone());
        tokio::spawn(async move { provider.send_message(&queue, Message::new("x"), soon()).await })
    };
    let end = Instant::now() + TIME_LIMIT;
    while !waits().await {
        assert!(Instant::now() < end, "the send does not wait for the lock");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let busy = provider.queue_stats(queue, soon()).await.expect_err("the pool is exhausted");
    assert!(matches!(busy, MessagingError::Busy { .. }) && busy.is_retryable(), "{busy:?}");
    assert!(busy.to_string().contains("pool_size"), "{busy}");
    unlock.await;
    send.await.expect("a send without a failure").expect("a send");
    assert_eq!(provider.queue_stats(queue, soon()).await.expect("an answer").message_count(), Some(1));
}
