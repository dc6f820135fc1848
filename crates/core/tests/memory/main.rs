//! The provider in memory beyond the suite: its clock, its waits and its limits.

use std::future::Future;
use std::time::Duration;

use futures_util::poll;
use postrider_core::*;

const SECOND: Duration = Duration::from_secs(1);

fn soon() -> Deadline {
    Deadline::after(SECOND * 30)
}

fn queue() -> QueueName {
    QueueName::new("orders").expect("a queue's name")
}

fn with_manual_clock() -> (ManualClock, MemoryProvider) {
    let clock = ManualClock::default();
    let store = MemoryStore::builder().clock(clock.clone()).seed(7).build();
    (clock, store.open())
}

async fn receive(provider: &MemoryProvider, options: &ReceiveOptions) -> Vec<QueuedMessage> {
    provider.receive_messages(&queue(), options, soon()).await.expect("received")
}

/// Polls a future once, and asserts that it is pending.
async fn assert_pending<F: Future>(future: std::pin::Pin<&mut F>) {
    assert!(poll!(future).is_pending());
}

#[tokio::test]
async fn nothing_is_due_while_the_clock_stands_still() {
    let (clock, provider) = with_manual_clock();
    provider.send_message(&queue(), Message::new("later").delay(SECOND), soon()).await.unwrap();
    let options = ReceiveOptions::default().visibility(SECOND);
    assert!(receive(&provider, &options).await.is_empty());
    clock.advance(SECOND - Duration::from_micros(1));
    assert!(receive(&provider, &options).await.is_empty(), "a microsecond early");
    clock.advance(Duration::from_micros(1));
    let lost = receive(&provider, &options).await.pop().unwrap().into_receipt();
    clock.advance(SECOND - Duration::from_micros(1));
    provider.extend_visibility(&queue(), &lost, SECOND, soon()).await.unwrap();
    clock.advance(SECOND);
    let late = provider.ack_message(&queue(), lost, soon()).await;
    assert!(matches!(late, Err(MessagingError::VisibilityExpired { .. })), "a lease ends at its exact end");
    assert_eq!(receive(&provider, &options).await[0].receive_count(), 2);
}

#[tokio::test]
async fn a_waiting_receive_is_woken_by_a_send_a_due_time_and_an_expired_lease() {
    let (clock, provider) = with_manual_clock();
    let orders = queue();
    let wait = ReceiveOptions::default().visibility(SECOND).wait(SECOND * 3600);

    let mut waiting = std::pin::pin!(provider.receive_messages(&orders, &wait, Deadline::never()));
    assert_pending(waiting.as_mut()).await;
    provider.send_message(&queue(), Message::new("now"), soon()).await.unwrap();
    let held = waiting.await.unwrap().pop().unwrap();

    // A waiting receiver without a timer must be woken for the lease that ends in a second, and for the delay that ends
    // sooner.
    let mut waiting = std::pin::pin!(provider.receive_messages(&orders, &wait, Deadline::never()));
    assert_pending(waiting.as_mut()).await;
    let sooner = Message::new("sooner").delay(SECOND / 2);
    provider.send_message(&queue(), sooner.clone(), soon()).await.unwrap();
    assert_pending(waiting.as_mut()).await;
    clock.advance(SECOND / 2);
    let served = waiting.await.unwrap();
    assert_eq!(served[0].id(), sooner.id);

    let mut waiting = std::pin::pin!(provider.receive_messages(&orders, &wait, Deadline::never()));
    assert_pending(waiting.as_mut()).await;
    let id = held.id();
    drop(held.into_receipt());
    clock.advance(SECOND / 2);
    assert_eq!(waiting.await.unwrap()[0].id(), id);
    drop(served);
}

#[tokio::test]
async fn a_dropped_message_is_back_at_once_and_its_delivery_is_counted() {
    let (_, provider) = with_manual_clock();
    provider.send_message(&queue(), Message::new("one"), soon()).await.unwrap();
    let long = ReceiveOptions::default().visibility(SECOND * 3600);
    drop(receive(&provider, &long).await);
    let again = receive(&provider, &long).await;
    assert_eq!(again[0].receive_count(), 2, "the clock did not advance, so the drop returned the message");
}

#[tokio::test]
async fn an_expired_message_gives_its_dedup_key_up() {
    let (clock, provider) = with_manual_clock();
    let keyed = |body: &'static str| Message::new(body).dedup_key("k").unwrap();
    let old = keyed("old").expires_in(SECOND);
    provider.send_message(&queue(), old.clone(), soon()).await.unwrap();
    clock.advance(SECOND);
    let new = keyed("new");
    assert_eq!(provider.send_message(&queue(), new.clone(), soon()).await.unwrap(), new.id);
    assert_eq!(receive(&provider, &ReceiveOptions::default()).await[0].id(), new.id);
    let dead = provider.get_dead_letter(&queue(), old.id, soon()).await.unwrap();
    assert_eq!(dead.reason, DeadLetterReason::EXPIRED);
}

#[tokio::test]
async fn after_close_nothing_is_leased() {
    let (_, provider) = with_manual_clock();
    let other = provider.store().open();
    let orders = queue();
    let wait = ReceiveOptions::default().wait(SECOND * 3600);
    let mut waiting = std::pin::pin!(provider.receive_messages(&orders, &wait, Deadline::never()));
    assert_pending(waiting.as_mut()).await;
    other.send_message(&orders, Message::new("one"), soon()).await.unwrap();
    provider.close(soon()).await.unwrap();
    assert!(waiting.await.unwrap().is_empty());
    assert_eq!(receive(&other, &ReceiveOptions::default()).await[0].receive_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_receive_waits_for_several_queues() {
    let provider = MemoryStore::new().open();
    let queues = [queue(), QueueName::new("payments").unwrap()];
    let wait = ReceiveOptions::batch(3).wait(SECOND * 60);
    let receive = async |deadline| {
        provider.settle_and_receive(Vec::new(), &queues, &wait, deadline).await.unwrap().received.unwrap()
    };
    let start = tokio::time::Instant::now();
    assert!(receive(Deadline::after(SECOND * 5)).await.is_empty(), "the deadline ends the wait");
    assert_eq!(start.elapsed(), SECOND * 5);

    let sending = async {
        tokio::time::advance(SECOND * 2).await;
        let messages = (0..5).map(|n| Message::new(n.to_string())).collect();
        provider.send_batch(&queues[1], messages, soon()).await.unwrap();
        provider.send_message(&queues[0], Message::new("x"), soon()).await.unwrap();
    };
    let (received, ()) = futures_util::future::join(receive(Deadline::never()), sending).await;
    assert!((1..=3).contains(&received.len()), "`max` is for all queues together");
    assert_eq!(start.elapsed(), SECOND * 7);

    provider.purge(&queues[1], soon()).await.unwrap();
    provider.purge(&queues[0], soon()).await.unwrap();
    let closing = async {
        tokio::time::advance(SECOND / 2).await;
        provider.close(soon()).await.unwrap();
    };
    let (received, ()) = futures_util::future::join(receive(Deadline::never()), closing).await;
    assert!(received.is_empty(), "close ends the wait");
    assert_eq!(start.elapsed(), SECOND * 15 / 2);
}

#[tokio::test]
async fn a_dead_letter_queue_is_deleted_only_with_its_origin() {
    let (_, provider) = with_manual_clock();
    provider.send_message(&queue(), Message::new("one"), soon()).await.unwrap();
    let refused = provider.delete_queue(&queue().dead_letters(), soon()).await;
    assert!(matches!(refused, Err(MessagingError::InvalidInput { .. })), "{refused:?}");
    assert_eq!(receive(&provider, &ReceiveOptions::default()).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_time_or_its_deadline() {
    let provider = MemoryStore::new().open();
    let start = tokio::time::Instant::now();
    let wait = ReceiveOptions::default().wait(SECOND * 5);
    assert!(receive(&provider, &wait).await.is_empty());
    assert_eq!(start.elapsed(), SECOND * 5);
    let received = provider.receive_messages(&queue(), &wait, Deadline::after(SECOND)).await.unwrap();
    assert!(received.is_empty());
    assert_eq!(start.elapsed(), SECOND * 6);
}

#[tokio::test]
async fn all_waiting_receivers_are_served() {
    let provider = MemoryStore::new().open();
    let wait = ReceiveOptions::default().wait(SECOND * 3600);
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let (provider, wait) = (provider.clone(), wait.clone());
            tokio::spawn(async move {
                let received = provider.receive_messages(&queue(), &wait, Deadline::never()).await.unwrap();
                // The receipt is kept, or the message would go back when the task ends.
                received.into_iter().next().unwrap().into_receipt().message_id()
            })
        })
        .collect();
    let messages: Vec<_> = (0..10).map(|n| Message::new(n.to_string())).collect();
    let mut sent: Vec<_> = messages.iter().map(|message| message.id).collect();
    for message in messages {
        provider.send_message(&queue(), message, soon()).await.unwrap();
    }
    let mut seen = Vec::new();
    for waiter in waiters {
        seen.push(waiter.await.unwrap());
    }
    seen.sort_unstable();
    sent.sort_unstable();
    assert_eq!(seen, sent);
}

#[tokio::test]
async fn hints_follow_changes_and_due_times_once() {
    let (clock, provider) = with_manual_clock();
    let mut hints = provider.subscribe(&queue(), soon()).await.unwrap();
    assert!(poll!(std::pin::pin!(hints.next())).is_pending(), "there is no change");
    provider.send_message(&queue(), Message::new("now"), soon()).await.unwrap();
    hints.next().await.unwrap();
    assert!(
        poll!(std::pin::pin!(hints.next())).is_pending(),
        "one hint for one change, although the message is still there"
    );
    provider.send_message(&queue(), Message::new("later").delay(SECOND), soon()).await.unwrap();
    while poll!(std::pin::pin!(hints.next())).is_ready() {}
    clock.advance(SECOND);
    hints.next().await.unwrap();
    assert!(poll!(std::pin::pin!(hints.next())).is_pending());
    provider.close(soon()).await.unwrap();
    assert_eq!(hints.next().await, None, "a closed connection gives no more hints");
}

#[tokio::test]
async fn a_receipt_of_another_store_is_refused_and_changes_nothing() {
    let (a, b) = (MemoryStore::new().open(), MemoryStore::new().open());
    for provider in [&a, &b] {
        provider.send_message(&queue(), Message::new("one"), soon()).await.unwrap();
    }
    let held = receive(&a, &ReceiveOptions::default()).await.pop().unwrap();
    let foreign = receive(&b, &ReceiveOptions::default()).await.pop().unwrap();
    let refused = a.ack_message(&queue(), foreign.receipt().clone(), soon()).await;
    assert!(matches!(refused, Err(MessagingError::InvalidReceipt { .. })), "{refused:?}");
    a.ack_message(&queue(), held, soon()).await.unwrap();
    b.ack_message(&queue(), foreign, soon()).await.unwrap();
}

#[tokio::test]
async fn sends_do_not_create_queues_when_that_is_forbidden() {
    let provider = MemoryStore::builder().create_queues(false).build().open();
    let refused = provider.send_message(&queue(), Message::new("one"), soon()).await;
    assert!(matches!(refused, Err(MessagingError::QueueNotFound { .. })), "{refused:?}");
    provider.ensure_queue(&queue(), soon()).await.unwrap();
    provider.send_message(&queue(), Message::new("one"), soon()).await.unwrap();
    let elsewhere = Redrive { to: Some(QueueName::new("typo").unwrap()), ..Redrive::default() };
    let refused = provider.redrive_dead_letters(&queue(), &elsewhere, soon()).await;
    assert!(matches!(refused, Err(MessagingError::QueueNotFound { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_call_whose_deadline_has_passed_does_nothing() {
    let provider = MemoryStore::new().open();
    let late = provider.send_message(&queue(), Message::new("one"), Deadline::after(Duration::ZERO)).await;
    assert!(matches!(late, Err(MessagingError::DeadlineExceeded { operation: "send" })), "{late:?}");
    assert!(provider.list_queues(soon()).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_leases_of_a_deleted_queue_end() {
    let provider = MemoryStore::new().open();
    provider.send_message(&queue(), Message::new("one"), soon()).await.unwrap();
    let held = receive(&provider, &ReceiveOptions::default()).await.pop().unwrap().into_receipt();
    provider.delete_queue(&queue(), soon()).await.unwrap();
    let gone = provider.ack_message(&queue(), held, soon()).await;
    assert!(matches!(gone, Err(MessagingError::VisibilityExpired { .. })), "{gone:?}");
}

#[tokio::test]
async fn two_stores_with_one_seed_and_one_clock_behave_the_same() {
    let run = async || {
        let (clock, provider) = with_manual_clock();
        let mut receipts = Vec::new();
        for n in 0..20_u128 {
            let id = MessageId::from_uuid(uuid::Uuid::from_u128(n));
            let message = Message::new("x").id(id).priority(Priority::new((n % 10) as u8).unwrap());
            provider.send_message(&queue(), message, soon()).await.unwrap();
            clock.advance(SECOND);
            if n % 3 == 0 {
                let options = ReceiveOptions::batch(2).visibility(SECOND * 2);
                for message in receive(&provider, &options).await {
                    receipts.push(message.into_receipt().to_string());
                }
            }
        }
        receipts
    };
    assert_eq!(run().await, run().await);
}
