use postrider_core::{MemoryProvider, MemoryStore, Message, Nack};
use tokio::time::advance;

use super::super::script::*;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn ack(receipt: &ReceiptHandle) -> Vec<Settlement> {
    vec![Settlement::ack(receipt.clone())]
}

fn is_over<T>(answer: &Result<T, MessagingError>) -> bool {
    matches!(answer, Err(MessagingError::VisibilityExpired { .. }))
}

fn is_refused<T>(answer: &Result<T, MessagingError>) -> bool {
    matches!(answer, Err(MessagingError::CircuitBreakerOpen { .. }))
}

/// A store behind a breaker, and a message that was received through it.
async fn leased(visibility: Duration) -> (Guarded<MemoryProvider>, ReceiptHandle) {
    let guarded = Guarded::new(MemoryStore::new().open(), SETTINGS);
    guarded.send_message(&orders(), Message::new("a"), Deadline::never()).await.unwrap();
    let options = ReceiveOptions::default().visibility(visibility);
    let mut received = guarded.receive_messages(&orders(), &options, Deadline::never()).await.unwrap();
    (guarded, received.remove(0).into_receipt())
}

#[tokio::test(start_paused = true)]
async fn a_settle_is_deferred_while_it_is_open_and_then_made() {
    let (script, receipt) = (Script::new(), receipt().await);
    open(&script.guarded);
    let mut settle = Box::pin(script.guarded.settle(ack(&receipt), Deadline::never()));
    assert!(begin(&mut settle).await.is_none() && script.nothing_came());
    let send = script.guarded.send_message(&orders(), Message::new("a"), Deadline::never()).await;
    assert!(is_refused(&send), "a send is not deferred");
    advance(OPEN).await;
    assert!(begin(&mut settle).await.is_none());
    script.answer(Ok(()));
    assert!(begin(&mut settle).await.is_none(), "the first call was the probe");
    script.answer(Ok(()));
    assert!(matches!(settle.await.unwrap()[..], [Ok(())]));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_still_down_is_probed_again() {
    let (script, receipt) = (Script::new(), receipt().await);
    open(&script.guarded);
    let queue = orders();
    let mut extend = Box::pin(script.guarded.extend_visibility(&queue, &receipt, SECOND, Deadline::never()));
    assert!(begin(&mut extend).await.is_none());
    for _ in 0..3 {
        advance(OPEN).await;
        assert!(begin(&mut extend).await.is_none());
        script.answer(Err(connection()));
        assert!(begin(&mut extend).await.is_none() && script.nothing_came(), "it is still deferred");
    }
    advance(OPEN).await;
    assert!(begin(&mut extend).await.is_none());
    script.answer(Ok(()));
    assert!(begin(&mut extend).await.is_none());
    script.answer(Ok(()));
    extend.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn any_successful_probe_wakes_all_deferred_calls() {
    let (script, receipt) = (Script::new(), receipt().await);
    open(&script.guarded);
    let settle = || Box::pin(script.guarded.settle(ack(&receipt), Deadline::never()));
    let mut deferred = [settle(), settle(), settle()];
    for settle in &mut deferred {
        assert!(begin(settle).await.is_none());
    }
    advance(OPEN).await;
    let mut check = Box::pin(script.guarded.health_check(Deadline::never()));
    assert!(begin(&mut check).await.is_none());
    for settle in &mut deferred {
        assert!(begin(settle).await.is_none());
    }
    script.answer(Ok(()));
    check.await.unwrap();
    // No time passes from here on: they were woken.
    for settle in &mut deferred {
        assert!(begin(settle).await.is_none());
        script.answer(Ok(()));
        assert!(begin(settle).await.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_settle_is_deferred_no_longer_than_its_lease() {
    let (guarded, receipt) = leased(SECOND * 4).await;
    open(&guarded);
    let began = Instant::now();
    let settled = guarded.settle(ack(&receipt), Deadline::never()).await.unwrap();
    assert!(is_over(&settled[0]), "{settled:?}");
    let waited = began.elapsed();
    assert!(waited >= SECOND * 4 && waited < SECOND * 5, "{waited:?}");
    let extended = guarded.extend_visibility(&orders(), &receipt, SECOND, Deadline::never()).await;
    assert!(is_over(&extended) && began.elapsed() == waited);
}

#[tokio::test(start_paused = true)]
async fn the_longest_lease_counts_and_the_store_decides_about_the_others() {
    let (guarded, long) = leased(OPEN * 2).await;
    guarded.send_message(&orders(), Message::new("b"), Deadline::never()).await.unwrap();
    let options = ReceiveOptions::default().visibility(SECOND);
    let mut received = guarded.receive_messages(&orders(), &options, Deadline::never()).await.unwrap();
    let short = received.remove(0).into_receipt();
    open(&guarded);
    let both = vec![Settlement::ack(short), Settlement::ack(long)];
    let settled = guarded.settle(both, Deadline::never()).await.unwrap();
    assert!(is_over(&settled[0]) && settled[1].is_ok(), "{settled:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deferred_extend_makes_the_lease_longer() {
    let (guarded, receipt) = leased(OPEN + SECOND).await;
    open(&guarded);
    guarded.extend_visibility(&orders(), &receipt, OPEN * 3, Deadline::never()).await.unwrap();
    open(&guarded);
    let began = Instant::now();
    guarded.nack_message(&orders(), receipt, Nack::Release, Deadline::never()).await.unwrap();
    assert!(began.elapsed() >= OPEN, "it was deferred past the first end of the lease");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_may_have_been_extended_has_no_known_end() {
    let (guarded, receipt) = leased(SECOND).await;
    let queue = orders();
    let mut extend = Box::pin(guarded.extend_visibility(&queue, &receipt, OPEN * 3, Deadline::never()));
    // The store has the call, but its answer never arrives.
    assert!(begin(&mut extend).await.is_none_or(|answer| answer.is_ok()));
    drop(extend);
    open(&guarded);
    assert!(guarded.settle(ack(&receipt), Deadline::never()).await.unwrap()[0].is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_settle_is_deferred_no_longer_than_its_deadline() {
    let (guarded, receipt) = leased(OPEN * 3).await;
    open(&guarded);
    let began = Instant::now();
    let refused = guarded.settle(ack(&receipt), Deadline::after(SECOND * 3)).await;
    assert!(is_refused(&refused), "{refused:?}");
    assert!(began.elapsed() >= SECOND * 3 && began.elapsed() < SECOND * 4);
    assert!(guarded.settle(ack(&receipt), Deadline::never()).await.unwrap()[0].is_ok(), "nothing was done before");
}

#[tokio::test(start_paused = true)]
async fn settlements_with_a_receive_are_deferred_with_it() {
    let (guarded, receipt) = leased(OPEN * 2).await;
    guarded.send_message(&orders(), Message::new("b"), Deadline::never()).await.unwrap();
    open(&guarded);
    let (queues, options) = ([orders()], ReceiveOptions::default());
    let alone = guarded.settle_and_receive(Vec::new(), &queues, &options, Deadline::never()).await;
    assert!(is_refused(&alone), "a receive is not deferred");
    let both = guarded.settle_and_receive(ack(&receipt), &queues, &options, Deadline::never()).await.unwrap();
    assert!(both.settled[0].is_ok());
    let next = both.received.unwrap().remove(0).into_receipt();
    open(&guarded);
    let began = Instant::now();
    let both = guarded.settle_and_receive(ack(&next), &queues, &options, Deadline::never()).await.unwrap();
    assert!(both.settled[0].is_ok(), "the lease of the received message is known too: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_receive_with_settlements_of_ended_leases_is_refused() {
    let (guarded, receipt) = leased(SECOND).await;
    open(&guarded);
    let (queues, options) = ([orders()], ReceiveOptions::default());
    let both = guarded.settle_and_receive(ack(&receipt), &queues, &options, Deadline::never()).await.unwrap();
    assert!(is_over(&both.settled[0]) && is_refused(&both.received));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_deferred_for_a_closed_store() {
    let (guarded, receipt) = leased(OPEN * 5).await;
    open(&guarded);
    guarded.close(Deadline::never()).await.unwrap();
    let began = Instant::now();
    let settled = guarded.settle(ack(&receipt), Deadline::never()).await;
    assert!(matches!(settled, Err(MessagingError::Closed { .. })), "{settled:?}");
    assert!(began.elapsed() <= OPEN + SECOND);
}
