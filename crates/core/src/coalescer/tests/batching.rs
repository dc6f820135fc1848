//! The contents of a batch.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_single_caller_is_served_at_once() {
    let mut fixture = Fixture::start(merged());
    let before = tokio::time::Instant::now();
    let coalescer = fixture.coalescer.clone();
    let caller = tokio::spawn(async move { coalescer.send(&queue(), vec![message(1)], NEVER).await });
    let call = fixture.next().await;
    assert_eq!(call.sent(), [1]);
    call.succeed();
    assert_eq!(sent(within(caller).await.unwrap()), [1]);
    assert_eq!(tokio::time::Instant::now(), before, "no timer is involved");
}

#[tokio::test(start_paused = true)]
async fn rows_that_gather_while_a_batch_is_in_flight_are_the_next_batch() {
    let mut fixture = Fixture::start(config(Lanes::Separate));
    let first = fixture.send([1]).await;
    let call = fixture.next().await;
    let second = fixture.send([2, 3]).await;
    let third = fixture.send([4]).await;
    fixture.nothing_more().await;
    call.succeed();
    let call = fixture.next().await;
    assert_eq!(call.sent(), [2, 3, 4]);
    assert!(second.is_waiting() && third.is_waiting(), "no caller is answered before the store answers");
    call.succeed();
    assert_eq!(sent(first.answer().await), [1]);
    assert_eq!(sent(second.answer().await), [2, 3]);
    assert_eq!(sent(third.answer().await), [4]);
}

#[tokio::test(start_paused = true)]
async fn separate_lanes_do_not_wait_for_each_other() {
    let mut fixture = Fixture::start(config(Lanes::Separate));
    let send = fixture.send([1]).await;
    let sends = fixture.next().await;
    let settle = fixture.settle([2]).await;
    let settles = fixture.next().await;
    let extend = fixture.extend(3).await;
    let extends = fixture.next().await;
    assert_eq!((sends.sent(), sends.batch.len()), (vec![1], 1));
    assert_eq!((settles.settled(), settles.batch.len()), (vec![2], 1));
    assert_eq!((extends.extended(), extends.batch.len()), (vec![3], 1));
    extends.succeed();
    extend.answer().await.unwrap();
    settles.succeed();
    assert_eq!(words(settle.answer().await), ["ok"]);
    assert!(send.is_waiting());
    sends.succeed();
    assert_eq!(sent(send.answer().await), [1]);
}

#[tokio::test(start_paused = true)]
async fn merged_lanes_share_one_batch_at_a_time() {
    let mut fixture = Fixture::start(merged());
    let first = fixture.send([1]).await;
    let call = fixture.next().await;
    let send = fixture.send([2]).await;
    let settle = fixture.settle([3]).await;
    let extend = fixture.extend(4).await;
    fixture.nothing_more().await;
    call.succeed();
    let call = fixture.next().await;
    assert_eq!((call.extended(), call.settled(), call.sent()), (vec![4], vec![3], vec![2]));
    call.succeed();
    assert_eq!(sent(first.answer().await), [1]);
    assert_eq!(sent(send.answer().await), [2]);
    assert_eq!(words(settle.answer().await), ["ok"]);
    extend.answer().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn in_a_merged_batch_no_lane_displaces_another() {
    let mut fixture = Fixture::start(CoalescerConfig { max_rows: 2, ..merged() });
    let first = fixture.send([1]).await;
    let call = fixture.next().await;
    let sends = fixture.send(10..15).await;
    let settles = fixture.settle(20..25).await;
    let extend = fixture.extend(30).await;
    call.succeed();
    let call = fixture.next().await;
    assert_eq!((call.extended(), call.settled(), call.sent()), (vec![30], vec![20, 21], vec![10, 11]));
    call.succeed();
    extend.answer().await.unwrap();
    for rest in [2, 1] {
        let call = fixture.next().await;
        assert_eq!((call.settled().len(), call.sent().len()), (rest, rest));
        call.succeed();
    }
    assert_eq!(sent(first.answer().await), [1]);
    assert_eq!(sent(sends.answer().await), [10, 11, 12, 13, 14]);
    assert_eq!(words(settles.answer().await).len(), 5);
}

#[tokio::test(start_paused = true)]
async fn an_operation_over_several_batches_keeps_its_order_and_is_answered_as_a_whole() {
    let mut fixture = Fixture::start(CoalescerConfig { max_rows: 3, ..merged() });
    let large = fixture.send(0..7).await;
    let small = fixture.send([7]).await;
    for rows in [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]] {
        let call = fixture.next().await;
        assert_eq!(call.sent(), rows);
        assert!(large.is_waiting());
        call.succeed();
    }
    assert_eq!(sent(large.answer().await), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(sent(small.answer().await), [7]);
}

#[tokio::test(start_paused = true)]
async fn operations_share_their_first_and_last_batches() {
    let mut fixture = Fixture::start(CoalescerConfig { max_rows: 3, ..merged() });
    let _first = fixture.send([0]).await;
    let call = fixture.next().await;
    let callers = [fixture.send([1, 2]).await, fixture.send([3, 4, 5]).await, fixture.send([6]).await];
    call.succeed();
    for rows in [[1, 2, 3], [4, 5, 6]] {
        let call = fixture.next().await;
        assert_eq!(call.sent(), rows);
        call.succeed();
    }
    for (caller, rows) in callers.into_iter().zip([vec![1, 2], vec![3, 4, 5], vec![6]]) {
        assert_eq!(sent(caller.answer().await), rows);
    }
}

#[tokio::test(start_paused = true)]
async fn batches_are_bounded_by_bytes_and_a_larger_row_goes_alone() {
    // Two rows of ten bytes fit; a third one does not.
    let mut fixture = Fixture::start(CoalescerConfig { max_bytes: 29, ..merged() });
    let first = fixture.send([1]).await;
    let call = fixture.next().await;
    let others = fixture.send(2..5).await;
    let coalescer = fixture.coalescer.clone();
    let large = Message::new(vec![0; 30]).id(id(5));
    let large = Caller::start(async move { coalescer.send(&queue(), vec![large, message(6)], NEVER).await }).await;
    call.succeed();
    for rows in [vec![2, 3], vec![4], vec![5], vec![6]] {
        let call = fixture.next().await;
        assert_eq!(call.sent(), rows);
        call.succeed();
    }
    for caller in [first, others, large] {
        sent(caller.answer().await);
    }
}

#[tokio::test(start_paused = true)]
async fn headers_keys_and_errors_count_as_bytes_of_a_row() {
    let heavy = message(1)
        .header("name", "value")
        .and_then(|message| message.ordering_key("key"))
        .and_then(|message| message.dedup_key("other"))
        .unwrap();
    let row = SendRow { queue: queue(), message: heavy };
    assert_eq!(batch::Row::bytes(&row), 10 + 9 + 3 + 5);
    let nack = Settlement::nack(receipt(1), crate::Nack::retry_after(Duration::ZERO).with_error("1234"));
    let ack = Settlement::ack(receipt(1));
    assert_eq!(batch::Row::bytes(&nack), batch::Row::bytes(&ack) + 4);
}

#[tokio::test(start_paused = true)]
async fn each_caller_gets_the_results_of_its_own_rows() {
    let mut fixture = Fixture::start(merged());
    let first = fixture.send([1]).await;
    let call = fixture.next().await;
    let callers = [fixture.settle([2, 3]).await, fixture.settle([4]).await];
    call.succeed();
    let call = fixture.next().await;
    let expired = |n| Err(receipt(n).expired());
    call.reply(Ok(BatchReply { settles: vec![Ok(()), expired(3), expired(4)], ..BatchReply::default() }));
    let [two, one] = callers;
    let two = two.answer().await.unwrap();
    assert!(two[0].is_ok());
    assert!(matches!(two[1], Err(MessagingError::VisibilityExpired { id: of, .. }) if of == id(3)));
    let one = one.answer().await.unwrap();
    assert!(matches!(one[0], Err(MessagingError::VisibilityExpired { id: of, .. }) if of == id(4)));
    assert_eq!(sent(first.answer().await), [1]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_operation_is_answered_at_once() {
    let (coalescer, drivers) = Coalescer::new(Scripted(mpsc::unbounded_channel().0), merged()).unwrap();
    assert!(within(coalescer.send(&queue(), vec![], NEVER)).await.unwrap().is_empty());
    assert!(within(coalescer.settle(vec![], NEVER)).await.unwrap().is_empty());
    drop(drivers);
}

#[test]
fn a_bound_of_zero_is_refused() {
    let config = CoalescerConfig { queue_rows: 0, ..merged() };
    let made = Coalescer::new(Scripted(mpsc::unbounded_channel().0), config);
    assert!(matches!(made, Err(MessagingError::InvalidInput { what: "queue_rows", .. })));
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_never_waits_lets_others_run() {
    const ENOUGH: usize = 10_000;

    /// Returns at once and queues the next send itself, so that there is always work.
    #[derive(Default)]
    struct Restless {
        coalescer: OnceLock<Coalescer>,
        batches: AtomicUsize,
    }

    #[async_trait]
    impl BatchExecutor for Arc<Restless> {
        async fn execute(&self, batch: &Batch) -> Reply {
            let batches = self.batches.fetch_add(1, Ordering::Relaxed);
            if let Some(coalescer) = self.coalescer.get().filter(|_| batches < ENOUGH) {
                // Polled once, so it is queued, and then dropped.
                let next = async { coalescer.send(&queue(), vec![message(1)], NEVER).await };
                assert!(next.now_or_never().is_none());
            }
            let sends = batch.sends.iter().map(|row| Ok(row.message.id)).collect();
            Ok(BatchReply { sends, ..BatchReply::default() })
        }
    }

    let restless = Arc::new(Restless::default());
    let (coalescer, drivers) = Coalescer::new(restless.clone(), merged()).unwrap();
    restless.coalescer.set(coalescer.clone()).unwrap();
    drivers.spawn();
    assert_eq!(sent(coalescer.send(&queue(), vec![message(1)], NEVER).await), [1]);
    assert!(restless.batches.load(Ordering::Relaxed) < ENOUGH, "the driver blocked the only thread");
}
