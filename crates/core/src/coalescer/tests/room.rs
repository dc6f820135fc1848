//! Full lanes, deadlines, and callers who leave or are not polled.

use futures_util::FutureExt;

use super::*;

fn small() -> CoalescerConfig {
    CoalescerConfig { queue_rows: 2, max_rows: 2, ..merged() }
}

/// Row 1 is under way, and rows 2 and 3 fill the lane behind it.
async fn full(bench: &mut Bench) -> (Call, [Caller<RowResults<MessageId>>; 3]) {
    let first = bench.send([1]).await;
    let call = bench.next().await;
    (call, [first, bench.send([2]).await, bench.send([3]).await])
}

#[tokio::test(start_paused = true)]
async fn callers_wait_for_room_in_their_order() {
    let mut bench = Bench::start(small());
    let (call, _others) = full(&mut bench).await;
    // The pair does not fit when one row leaves, and the single one behind it may not overtake it.
    let pair = bench.send([4, 5]).await;
    let single = bench.send([6]).await;
    call.succeed();
    for rows in [vec![2, 3], vec![4, 5], vec![6]] {
        let call = bench.next().await;
        assert_eq!(call.sent(), rows);
        call.succeed();
    }
    assert_eq!(sent(pair.answer().await), [4, 5]);
    assert_eq!(sent(single.answer().await), [6]);
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_admits_no_more_than_its_bound() {
    let mut bench = Bench::start(small());
    let (call, _others) = full(&mut bench).await;
    let deadline = Deadline::after(Duration::from_secs(5));
    let waiting = bench.send_until([4], deadline).await;
    assert!(waiting.is_waiting());
    assert!(matches!(waiting.error().await, MessagingError::DeadlineExceeded { operation: "send" }));
    assert!(deadline.has_passed());
    call.succeed();
    let call = bench.next().await;
    assert_eq!(call.sent(), [2, 3]);
    call.succeed();
    bench.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_full_by_its_bytes_too() {
    let mut bench = Bench::start(CoalescerConfig { queue_bytes: 1, max_rows: 1, ..merged() });
    let _first = bench.send([1]).await;
    let call = bench.next().await;
    // An empty lane has room for one, whatever its size; the next must wait.
    let _second = bench.send([2]).await;
    let third = bench.send_until([3], Deadline::after(Duration::from_secs(5))).await;
    assert!(matches!(third.error().await, MessagingError::DeadlineExceeded { operation: "send" }));
    call.succeed();
    let call = bench.next().await;
    assert_eq!(call.sent(), [2]);
    call.succeed();
    bench.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_has_passed_does_nothing() {
    let mut bench = Bench::start(merged());
    let caller = bench.send_until([1], Deadline::after(Duration::ZERO)).await;
    assert!(matches!(caller.error().await, MessagingError::DeadlineExceeded { operation: "send" }));
    bench.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_does_not_withdraw_what_is_queued() {
    let mut bench = Bench::start(merged());
    let first = bench.send_until([1], Deadline::after(Duration::from_secs(5))).await;
    let call = bench.next().await;
    let queued = bench.send_until([2, 3], Deadline::after(Duration::from_secs(5))).await;
    for (caller, expected) in [(first, vec![id(1)]), (queued, vec![id(2), id(3)])] {
        match caller.error().await {
            MessagingError::OutcomeUnknown { operation: "send", ids, .. } => assert_eq!(ids, expected),
            other => panic!("{other:?}"),
        }
    }
    call.succeed();
    let call = bench.next().await;
    assert_eq!(call.sent(), [2, 3]);
    call.succeed();
}

#[tokio::test(start_paused = true)]
async fn a_deadline_after_the_wait_for_room_does_not_withdraw_either() {
    let mut bench = Bench::start(small());
    let (call, _others) = full(&mut bench).await;
    let waiting = bench.send_until([4], Deadline::after(Duration::from_secs(5))).await;
    call.succeed();
    let call = bench.next().await;
    assert!(matches!(waiting.error().await, MessagingError::OutcomeUnknown { .. }));
    call.succeed();
    let call = bench.next().await;
    assert_eq!(call.sent(), [4]);
    call.succeed();
}

#[tokio::test(start_paused = true)]
async fn an_operation_larger_than_the_lane_is_admitted_when_the_lane_is_empty() {
    let mut bench = Bench::start(small());
    let (call, _others) = full(&mut bench).await;
    let large = bench.send(10..15).await;
    let behind = bench.send_until([20], Deadline::after(Duration::from_secs(5))).await;
    assert!(matches!(behind.error().await, MessagingError::DeadlineExceeded { .. }));
    call.succeed();
    for rows in [vec![2, 3], vec![10, 11], vec![12, 13], vec![14]] {
        let call = bench.next().await;
        assert_eq!(call.sent(), rows);
        call.succeed();
    }
    assert_eq!(sent(large.answer().await), [10, 11, 12, 13, 14]);
    // And when nothing at all is going on.
    let large = bench.send(30..33).await;
    bench.next().await.succeed();
    bench.next().await.succeed();
    assert_eq!(sent(large.answer().await), [30, 31, 32]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_does_not_withdraw_what_is_queued() {
    let mut bench = Bench::start(merged());
    let under_way = bench.send([1]).await;
    let call = bench.next().await;
    let queued = bench.settle([2]).await;
    under_way.0.abort();
    queued.0.abort();
    idle().await;
    call.succeed();
    let call = bench.next().await;
    assert_eq!(call.settled(), [2]);
    call.succeed();
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_while_waiting_for_room_withdraws_and_the_next_one_moves_up() {
    let mut bench = Bench::start(CoalescerConfig { queue_rows: 3, max_rows: 3, ..merged() });
    let (call, _others) = full(&mut bench).await;
    let large = bench.send([4, 5]).await;
    let next = bench.send_until([6], Deadline::after(Duration::from_secs(5))).await;
    let left_behind = bench.send_until([7], Deadline::after(Duration::from_secs(5))).await;
    large.0.abort();
    idle().await;
    assert!(matches!(next.error().await, MessagingError::OutcomeUnknown { .. }), "it was queued");
    assert!(matches!(left_behind.error().await, MessagingError::DeadlineExceeded { .. }));
    call.succeed();
    let call = bench.next().await;
    assert_eq!(call.sent(), [2, 3, 6]);
    call.succeed();
    bench.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn callers_who_left_leave_nothing_behind() {
    let mut bench = Bench::start(small());
    let (call, _others) = full(&mut bench).await;
    for n in 0..100 {
        let deadline = Deadline::after(Duration::from_secs(1));
        assert!(bench.coalescer.send(&queue(), vec![message(n)], deadline).await.is_err());
    }
    let shown = format!("{:?}", bench.coalescer);
    assert!(shown.contains("\"send\", queued_rows: 2, callers_waiting_for_room: 0"), "{shown}");
    call.succeed();
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_is_not_polled_holds_nobody_up() {
    let mut bench = Bench::start(small());
    // Polled once each: one is under way, two are queued, one waits for room. None is polled again.
    let mut held = Vec::new();
    for n in 1..5 {
        let coalescer = bench.coalescer.clone();
        let mut call = Box::pin(async move { coalescer.send(&queue(), vec![message(n)], NEVER).await });
        assert!((&mut call).now_or_never().is_none());
        held.push(call);
        idle().await;
    }
    let other = bench.send([5]).await;
    for rows in [vec![1], vec![2, 3], vec![4, 5]] {
        let call = bench.next().await;
        assert_eq!(call.sent(), rows);
        call.succeed();
    }
    assert_eq!(sent(other.answer().await), [5]);
    for (n, call) in (1..).zip(held) {
        assert_eq!(sent(within(call).await), [n], "the answer was kept");
    }
}
