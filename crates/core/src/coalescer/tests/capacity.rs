//! Full lanes, deadlines, and callers that leave or are not polled.

use futures_util::FutureExt;

use super::*;

fn small() -> CoalescerConfig {
    CoalescerConfig { queue_rows: 2, max_rows: 2, ..merged() }
}

/// Row 1 is in flight, and rows 2 and 3 fill the lane.
async fn full(fixture: &mut Fixture) -> (Call, [Caller<RowResults<MessageId>>; 3]) {
    let first = fixture.send([1]).await;
    let call = fixture.next().await;
    (call, [first, fixture.send([2]).await, fixture.send([3]).await])
}

#[tokio::test(start_paused = true)]
async fn callers_wait_for_capacity_in_order() {
    let mut fixture = Fixture::start(small());
    let (call, _others) = full(&mut fixture).await;
    // The pair does not fit when one row leaves, and the single row behind it must not overtake it.
    let pair = fixture.send([4, 5]).await;
    let single = fixture.send([6]).await;
    call.succeed();
    for rows in [vec![2, 3], vec![4, 5], vec![6]] {
        let call = fixture.next().await;
        assert_eq!(call.sent(), rows);
        call.succeed();
    }
    assert_eq!(sent(pair.answer().await), [4, 5]);
    assert_eq!(sent(single.answer().await), [6]);
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_admits_no_more_than_its_bound() {
    let mut fixture = Fixture::start(small());
    let (call, _others) = full(&mut fixture).await;
    let deadline = Deadline::after(Duration::from_secs(5));
    let waiting = fixture.send_until([4], deadline).await;
    assert!(waiting.is_waiting());
    assert!(matches!(waiting.error().await, MessagingError::DeadlineExceeded { operation: "send" }));
    assert!(deadline.has_passed());
    call.succeed();
    let call = fixture.next().await;
    assert_eq!(call.sent(), [2, 3]);
    call.succeed();
    fixture.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_bounded_by_bytes() {
    let mut fixture = Fixture::start(CoalescerConfig { queue_bytes: 1, max_rows: 1, ..merged() });
    let _first = fixture.send([1]).await;
    let call = fixture.next().await;
    // An empty lane admits one row of any size; the next row must wait.
    let _second = fixture.send([2]).await;
    let third = fixture.send_until([3], Deadline::after(Duration::from_secs(5))).await;
    assert!(matches!(third.error().await, MessagingError::DeadlineExceeded { operation: "send" }));
    call.succeed();
    let call = fixture.next().await;
    assert_eq!(call.sent(), [2]);
    call.succeed();
    fixture.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_has_passed_does_nothing() {
    let mut fixture = Fixture::start(merged());
    let caller = fixture.send_until([1], Deadline::after(Duration::ZERO)).await;
    assert!(matches!(caller.error().await, MessagingError::DeadlineExceeded { operation: "send" }));
    fixture.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_does_not_withdraw_what_is_queued() {
    let mut fixture = Fixture::start(merged());
    let first = fixture.send_until([1], Deadline::after(Duration::from_secs(5))).await;
    let call = fixture.next().await;
    let queued = fixture.send_until([2, 3], Deadline::after(Duration::from_secs(5))).await;
    for (caller, expected) in [(first, vec![id(1)]), (queued, vec![id(2), id(3)])] {
        match caller.error().await {
            MessagingError::OutcomeUnknown { operation: "send", ids, .. } => assert_eq!(ids, expected),
            other => panic!("{other:?}"),
        }
    }
    call.succeed();
    let call = fixture.next().await;
    assert_eq!(call.sent(), [2, 3]);
    call.succeed();
}

#[tokio::test(start_paused = true)]
async fn a_deadline_after_the_wait_for_capacity_does_not_withdraw() {
    let mut fixture = Fixture::start(small());
    let (call, _others) = full(&mut fixture).await;
    let waiting = fixture.send_until([4], Deadline::after(Duration::from_secs(5))).await;
    call.succeed();
    let call = fixture.next().await;
    assert!(matches!(waiting.error().await, MessagingError::OutcomeUnknown { .. }));
    call.succeed();
    let call = fixture.next().await;
    assert_eq!(call.sent(), [4]);
    call.succeed();
}

#[tokio::test(start_paused = true)]
async fn an_operation_larger_than_the_lane_is_admitted_when_the_lane_is_empty() {
    let mut fixture = Fixture::start(small());
    let (call, _others) = full(&mut fixture).await;
    let large = fixture.send(10..15).await;
    let behind = fixture.send_until([20], Deadline::after(Duration::from_secs(5))).await;
    assert!(matches!(behind.error().await, MessagingError::DeadlineExceeded { .. }));
    call.succeed();
    for rows in [vec![2, 3], vec![10, 11], vec![12, 13], vec![14]] {
        let call = fixture.next().await;
        assert_eq!(call.sent(), rows);
        call.succeed();
    }
    assert_eq!(sent(large.answer().await), [10, 11, 12, 13, 14]);
    // The same on an idle lane.
    let large = fixture.send(30..33).await;
    fixture.next().await.succeed();
    fixture.next().await.succeed();
    assert_eq!(sent(large.answer().await), [30, 31, 32]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_does_not_withdraw_what_is_queued() {
    let mut fixture = Fixture::start(merged());
    let in_flight = fixture.send([1]).await;
    let call = fixture.next().await;
    let queued = fixture.settle([2]).await;
    in_flight.0.abort();
    queued.0.abort();
    idle().await;
    call.succeed();
    let call = fixture.next().await;
    assert_eq!(call.settled(), [2]);
    call.succeed();
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_while_it_waits_for_capacity_withdraws() {
    let mut fixture = Fixture::start(CoalescerConfig { queue_rows: 3, max_rows: 3, ..merged() });
    let (call, _others) = full(&mut fixture).await;
    let large = fixture.send([4, 5]).await;
    let next = fixture.send_until([6], Deadline::after(Duration::from_secs(5))).await;
    let left_behind = fixture.send_until([7], Deadline::after(Duration::from_secs(5))).await;
    large.0.abort();
    idle().await;
    assert!(matches!(next.error().await, MessagingError::OutcomeUnknown { .. }), "it was queued");
    assert!(matches!(left_behind.error().await, MessagingError::DeadlineExceeded { .. }));
    call.succeed();
    let call = fixture.next().await;
    assert_eq!(call.sent(), [2, 3, 6]);
    call.succeed();
    fixture.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn callers_that_left_keep_no_entry() {
    let mut fixture = Fixture::start(small());
    let (call, _others) = full(&mut fixture).await;
    for n in 0..100 {
        let deadline = Deadline::after(Duration::from_secs(1));
        assert!(fixture.coalescer.send(&queue(), vec![message(n)], deadline).await.is_err());
    }
    let shown = format!("{:?}", fixture.coalescer);
    assert!(shown.contains("\"send\", queued_rows: 2, callers_waiting_for_capacity: 0"), "{shown}");
    call.succeed();
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_not_polled_delays_no_other() {
    let mut fixture = Fixture::start(small());
    // Each is polled once: one is in flight, two are queued, one waits for capacity.
    let mut held = Vec::new();
    for n in 1..5 {
        let coalescer = fixture.coalescer.clone();
        let mut call = Box::pin(async move { coalescer.send(&queue(), vec![message(n)], NEVER).await });
        assert!((&mut call).now_or_never().is_none());
        held.push(call);
        idle().await;
    }
    let other = fixture.send([5]).await;
    for rows in [vec![1], vec![2, 3], vec![4, 5]] {
        let call = fixture.next().await;
        assert_eq!(call.sent(), rows);
        call.succeed();
    }
    assert_eq!(sent(other.answer().await), [5]);
    for (n, call) in (1..).zip(held) {
        assert_eq!(sent(within(call).await), [n], "the answer is kept");
    }
}
