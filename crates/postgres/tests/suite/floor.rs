//! Lower bounds of claims: messages that become due below them are found at once after a call, by its hint after a
//! transaction of a caller, and by the next full scan in any case.

use std::time::Duration;

use postrider_core::{
    DeadLetterSelection, DeadLetters, Deadline, Message, MessageId, MessagingService, Nack, QueueAdmin, QueuedMessage,
    ReceiveOptions, Redrive, Settlement,
};
use postrider_postgres::{PostgresOptions, PostgresProvider, WakeUpMode};
use tokio::time::Instant;

use crate::wake_ups::{PATIENCE, listening, never_looking, waiting};
use crate::{Fixture, client, queue, soon};

async fn receive(provider: &PostgresProvider) -> Vec<QueuedMessage> {
    provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(10), soon()).await.unwrap()
}

async fn send(provider: &PostgresProvider, message: Message) -> MessageId {
    provider.send_message(&queue("orders"), message, soon()).await.unwrap()
}

/// Raises the lower bounds past everything that is due now.
async fn advance_bounds(provider: &PostgresProvider) {
    assert!(advance_bounds_alone(provider).await, "another message was received");
}

/// The same. Acks what it receives; returns whether that was only its own message.
async fn advance_bounds_alone(provider: &PostgresProvider) -> bool {
    // By the server's clock, and longer than the margin of the bounds.
    client().await.batch_execute("select pg_sleep(0.15)").await.unwrap();
    let id = send(provider, Message::new("later")).await;
    let received = receive(provider).await;
    let is_alone = received.iter().map(|message| message.id()).eq([id]);
    for message in received {
        provider.ack_message(&queue("orders"), message, soon()).await.unwrap();
    }
    is_alone
}

async fn settle(provider: &PostgresProvider, settlement: Settlement) {
    provider.settle(vec![settlement], soon()).await.unwrap().pop().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_a_call_makes_due_is_received_at_once() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let keyed = |body: &str| Message::new(body.to_owned()).ordering_key("k").unwrap();
    let (first, second) = (send(&provider, keyed("first")).await, send(&provider, keyed("second")).await);
    let mut held = receive(&provider).await.pop().unwrap();
    assert_eq!(held.id(), first);
    for nack in [Nack::Release, Nack::Retry { after: Duration::ZERO, error: None }] {
        advance_bounds(&provider).await;
        settle(&provider, Settlement::nack(held, nack)).await;
        held = receive(&provider).await.pop().expect("it was given back");
    }
    advance_bounds(&provider).await;
    settle(&provider, Settlement::ack(held)).await;
    let held = receive(&provider).await.pop().expect("the next of the key");
    assert_eq!(held.id(), second);
    let third = send(&provider, keyed("third")).await;
    advance_bounds(&provider).await;
    settle(&provider, Settlement::nack(held, Nack::DeadLetter { reason: "x".into(), error: None })).await;
    let held = receive(&provider).await.pop().expect("a dead head frees its key");
    assert_eq!(held.id(), third);
    settle(&provider, Settlement::ack(held)).await;
    advance_bounds(&provider).await;
    let redrive = Redrive { selection: DeadLetterSelection::All, to: None, dry_run: false };
    provider.redrive_dead_letters(&queue("orders"), &redrive, soon()).await.unwrap();
    let held = receive(&provider).await.pop().expect("it was redriven");
    assert_eq!(held.id(), second);
    advance_bounds(&provider).await;
    drop(held);
    let end = Instant::now() + PATIENCE;
    while receive(&provider).await.is_empty() {
        assert!(Instant::now() < end, "what was dropped did not come back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_resumed_queue_and_of_an_expired_lease_are_found() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let mut lease = Duration::from_millis(300);
    let id = loop {
        let id = send(&provider, Message::new("x")).await;
        let (options, began) = (ReceiveOptions::default().visibility(lease), Instant::now());
        let held = provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap().pop().unwrap();
        let _ = held.into_receipt();
        if advance_bounds_alone(&provider).await {
            break id;
        }
        // On a busy machine the lease may have expired: use a longer one.
        assert!(began.elapsed() >= lease, "a message was handed out although it was leased");
        lease *= 4;
    };
    let patiently = ReceiveOptions::default().wait(PATIENCE);
    let again = provider.receive_messages(&queue("orders"), &patiently, soon()).await.unwrap();
    let again = again.into_iter().next().expect("the lease has run out");
    assert_eq!(again.id(), id);
    settle(&provider, Settlement::ack(again)).await;
    provider.pause(&queue("orders"), soon()).await.unwrap();
    let id = send(&provider, Message::new("y")).await;
    client().await.batch_execute("select pg_sleep(0.15)").await.unwrap();
    assert!(receive(&provider).await.is_empty());
    provider.resume(&queue("orders"), soon()).await.unwrap();
    assert_eq!(receive(&provider).await.pop().expect("it goes on").id(), id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_commits_late_is_covered_by_its_wake_up() {
    let fixture = Fixture::new();
    // Without polls, only its hint wakes the receiver.
    let provider = fixture.connect_with(never_looking(&fixture)).await;
    let mut own = client().await;
    // The first message of a queue is also noted in `unplaced`.
    advance_bounds(&provider).await;
    for keyed in [false, true] {
        let mut transaction = own.transaction().await.unwrap();
        let message = Message::new("in a transaction");
        let message = if keyed { message.ordering_key("k").unwrap() } else { message };
        provider.store().send_in(&mut transaction, &queue("orders"), &message).await.unwrap();
        advance_bounds(&provider).await;
        let received = waiting(&provider);
        listening(&fixture).await;
        // The wait begins after an empty look, which shows only by the time it takes.
        take_a_moment(&provider).await;
        transaction.commit().await.unwrap();
        let committed = Instant::now();
        let received = received.await.unwrap();
        assert_eq!(received[0].id(), message.id);
        assert!(committed.elapsed() < PATIENCE / 2, "it came when the wait was over");
        settle(&provider, Settlement::ack(received.into_iter().next().unwrap())).await;
    }
}

/// Takes as long as a few statements do.
async fn take_a_moment(provider: &PostgresProvider) {
    for _ in 0..5 {
        provider.queue_stats(&queue("orders"), soon()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_a_hint_is_found_soon() {
    let fixture = Fixture::new();
    let options = PostgresOptions {
        wake_up: WakeUpMode::PollOnly,
        poll_interval: Duration::from_millis(100),
        ..fixture.options()
    };
    let provider = fixture.connect_with(options).await;
    let mut own = client().await;
    let delayed = send(&provider, Message::new("delayed").delay(Duration::from_secs(3600))).await;
    let mut transaction = own.transaction().await.unwrap();
    let late = Message::new("late");
    provider.store().send_in(&mut transaction, &queue("orders"), &late).await.unwrap();
    advance_bounds(&provider).await;
    let edit = format!("update {}.message set next_attempt_at = now() - interval '1 day'", fixture.schema);
    transaction.batch_execute(&edit).await.unwrap();
    transaction.commit().await.unwrap();
    let mut seen = Vec::new();
    let end = Deadline::after(PATIENCE);
    while seen.len() < 2 && !end.has_passed() {
        let options = ReceiveOptions::default().wait(PATIENCE);
        let received = provider.receive_messages(&queue("orders"), &options, end).await.unwrap();
        seen.extend(received.iter().map(|message| message.id()));
        for message in received {
            provider.ack_message(&queue("orders"), message, soon()).await.unwrap();
        }
    }
    seen.sort();
    let mut wanted = vec![delayed, late.id];
    wanted.sort();
    assert_eq!(seen, wanted);
}

#[tokio::test]
async fn what_is_sent_after_the_clock_was_set_back_is_received_at_once() {
    let fixture = Fixture::new();
    let provider = fixture.connect().await;
    let server = client().await;
    let set_clock = |shift: &'static str| {
        let clock = format!(
            "create or replace function {}.clock() returns timestamptz language sql stable parallel safe \
             as 'select pg_catalog.statement_timestamp() + interval ''{shift}'''",
            fixture.schema
        );
        let server = &server;
        async move { server.batch_execute(&clock).await.unwrap() }
    };
    let orders = queue("orders");
    for (shift, rounds) in [("1 hour", 1), ("0", 6)] {
        set_clock(shift).await;
        for round in 0..rounds {
            let id = provider.send_message(&orders, Message::new("x"), soon()).await.unwrap();
            // The first look reads the clock; it may have to wait for a full scan.
            let wait = if round == 0 { Duration::from_secs(20) } else { Duration::ZERO };
            let options = ReceiveOptions::batch(9).wait(wait);
            let mut found = provider.receive_messages(&orders, &options, soon()).await.unwrap();
            assert_eq!(found.iter().map(|message| message.id()).collect::<Vec<_>>(), [id], "{shift}, {round}");
            provider.ack_message(&orders, found.remove(0), soon()).await.unwrap();
        }
    }
}
