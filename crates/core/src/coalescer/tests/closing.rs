//! Orderly ends, and drivers that are gone.

use super::*;

fn is_closed<T>(answer: &Result<T, MessagingError>) -> bool {
    matches!(answer, Err(MessagingError::Closed { provider: "fake" }))
}

#[tokio::test(start_paused = true)]
async fn close_carries_out_what_is_queued_and_refuses_the_rest() {
    for lanes in [Lanes::Separate, Lanes::Merged] {
        let config = CoalescerConfig { queue_rows: 1, ..config(lanes) };
        let mut bench = Bench::start(config);
        let under_way = bench.send([1]).await;
        let call = bench.next().await;
        let queued = bench.send([2]).await;
        let waits_for_room = bench.send([3]).await;
        let coalescer = bench.coalescer.clone();
        let close = Caller::start(async move { coalescer.close(NEVER).await }).await;
        assert!(is_closed(&waits_for_room.answer().await));
        assert!(is_closed(&bench.send([4]).await.answer().await));
        assert!(is_closed(&bench.settle([5]).await.answer().await));
        assert!(is_closed(&bench.extend(6).await.answer().await));
        assert!(close.is_waiting());
        call.succeed();
        let call = bench.next().await;
        assert_eq!(call.sent(), [2]);
        assert!(close.is_waiting());
        call.succeed();
        close.answer().await.unwrap();
        assert_eq!(sent(under_way.answer().await), [1]);
        assert_eq!(sent(queued.answer().await), [2]);
        for driver in bench.drivers.drain(..) {
            within(driver).await.unwrap();
        }
        within(bench.coalescer.close(NEVER)).await.unwrap();
        assert!(bench.calls.recv().await.is_none(), "the executor was let go");
    }
}

#[tokio::test(start_paused = true)]
async fn close_waits_no_longer_than_its_deadline() {
    let mut bench = Bench::start(merged());
    let caller = bench.send([1]).await;
    let call = bench.next().await;
    let closed = bench.coalescer.close(Deadline::after(Duration::from_secs(1))).await;
    assert!(matches!(closed, Err(MessagingError::OutcomeUnknown { operation: "close", .. })));
    call.succeed();
    assert_eq!(sent(caller.answer().await), [1]);
    within(bench.coalescer.close(NEVER)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn when_the_last_handle_is_dropped_the_drivers_finish_and_end() {
    let mut bench = Bench::start(merged());
    let first = bench.send([1]).await;
    let call = bench.next().await;
    let queued = bench.send([2]).await;
    first.0.abort();
    queued.0.abort();
    let idle_clone = bench.coalescer.clone();
    drop(bench.coalescer);
    idle().await;
    assert!(!bench.drivers[0].is_finished());
    drop(idle_clone);
    call.succeed();
    let call = within(bench.calls.recv()).await.unwrap();
    assert_eq!(call.sent(), [2]);
    call.succeed();
    within(bench.drivers.remove(0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn idle_drivers_end_with_the_last_handle() {
    for lanes in [Lanes::Separate, Lanes::Merged] {
        let bench = Bench::start(config(lanes));
        idle().await;
        drop(bench.coalescer);
        for driver in bench.drivers {
            within(driver).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_aborted_driver_leaves_nobody_without_an_answer() {
    let mut bench = Bench::start(CoalescerConfig { queue_rows: 4, max_rows: 2, ..merged() });
    let spread = bench.send(0..3).await;
    bench.next().await.succeed();
    let _call = bench.next().await;
    let queued = bench.send(3..7).await;
    let waits_for_room = bench.send([7]).await;
    let settle = bench.settle([8]).await;
    bench.drivers[0].abort();
    assert_eq!(words(spread.answer().await), ["ok", "ok", "unknown"]);
    assert!(is_closed(&queued.answer().await));
    assert!(is_closed(&waits_for_room.answer().await));
    assert!(is_closed(&settle.answer().await));
    assert!(is_closed(&bench.send([9]).await.answer().await));
    within(bench.coalescer.close(NEVER)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_is_aborted_between_the_parts_of_a_batch_says_which_rows_were_tried() {
    let mut bench = Bench::start(CoalescerConfig { max_rows: 4, ..merged() });
    let caller = bench.send(0..6).await;
    bench.next().await.reply(Err(BatchFailure::Rejected(refused("bad"))));
    let call = bench.next().await;
    assert_eq!(call.sent(), [0, 1]);
    bench.drivers[0].abort();
    let expected = ["unknown", "unknown", "closed", "closed", "closed", "closed"];
    assert_eq!(words(caller.answer().await), expected);
}

#[tokio::test(start_paused = true)]
async fn a_lane_without_its_driver_does_not_take_the_others_down() {
    let mut bench = Bench::start(config(Lanes::Separate));
    let extends_driver = &bench.drivers[0];
    extends_driver.abort();
    idle().await;
    assert!(is_closed(&bench.extend(1).await.answer().await));
    let send = bench.send([2]).await;
    bench.next().await.succeed();
    assert_eq!(sent(send.answer().await), [2]);
}

#[tokio::test(start_paused = true)]
async fn drivers_that_were_never_run_refuse_everything() {
    let (coalescer, drivers) = Coalescer::new(Scripted(mpsc::unbounded_channel().0), merged()).unwrap();
    let queued = coalescer.clone();
    let queued = Caller::start(async move { queued.send(&queue(), vec![message(1)], NEVER).await }).await;
    drop(drivers);
    assert!(is_closed(&queued.answer().await));
    assert!(is_closed(&within(coalescer.send(&queue(), vec![message(2)], NEVER)).await));
    within(coalescer.close(NEVER)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn spawned_drivers_serve_every_lane() {
    for lanes in [Lanes::Separate, Lanes::Merged] {
        // Nobody looks at the calls, so everything succeeds.
        let scripted = Scripted(mpsc::unbounded_channel().0);
        let (coalescer, drivers) = Coalescer::new(scripted, config(lanes)).unwrap();
        drivers.spawn();
        assert_eq!(sent(within(coalescer.send(&queue(), vec![message(1)], NEVER)).await), [1]);
        let settle = coalescer.settle(vec![Settlement::ack(receipt(2))], NEVER);
        assert_eq!(words(within(settle).await), ["ok"]);
        within(coalescer.extend(receipt(3), Duration::ZERO, NEVER)).await.unwrap();
        within(coalescer.close(NEVER)).await.unwrap();
    }
}
