//! Closing, and drivers that have ended.

use super::*;

fn is_closed<T>(answer: &Result<T, MessagingError>) -> bool {
    matches!(answer, Err(MessagingError::Closed { provider: "fake" }))
}

#[tokio::test(start_paused = true)]
async fn close_executes_what_is_queued_and_refuses_the_rest() {
    for lanes in [Lanes::Separate, Lanes::Merged] {
        let config = CoalescerConfig { queue_rows: 1, ..config(lanes) };
        let mut fixture = Fixture::start(config);
        let in_flight = fixture.send([1]).await;
        let call = fixture.next().await;
        let queued = fixture.send([2]).await;
        let waits_for_capacity = fixture.send([3]).await;
        let coalescer = fixture.coalescer.clone();
        let close = Caller::start(async move { coalescer.close(NEVER).await }).await;
        assert!(is_closed(&waits_for_capacity.answer().await));
        assert!(is_closed(&fixture.send([4]).await.answer().await));
        assert!(is_closed(&fixture.settle([5]).await.answer().await));
        assert!(is_closed(&fixture.extend(6).await.answer().await));
        assert!(close.is_waiting());
        call.succeed();
        let call = fixture.next().await;
        assert_eq!(call.sent(), [2]);
        assert!(close.is_waiting());
        call.succeed();
        close.answer().await.unwrap();
        assert_eq!(sent(in_flight.answer().await), [1]);
        assert_eq!(sent(queued.answer().await), [2]);
        for driver in fixture.drivers.drain(..) {
            within(driver).await.unwrap();
        }
        within(fixture.coalescer.close(NEVER)).await.unwrap();
        assert!(fixture.calls.recv().await.is_none(), "the executor was dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn close_waits_no_longer_than_its_deadline() {
    let mut fixture = Fixture::start(merged());
    let caller = fixture.send([1]).await;
    let call = fixture.next().await;
    let closed = fixture.coalescer.close(Deadline::after(Duration::from_secs(1))).await;
    assert!(matches!(closed, Err(MessagingError::OutcomeUnknown { operation: "close", .. })));
    call.succeed();
    assert_eq!(sent(caller.answer().await), [1]);
    within(fixture.coalescer.close(NEVER)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn when_the_last_handle_is_dropped_the_drivers_finish_and_end() {
    let mut fixture = Fixture::start(merged());
    let first = fixture.send([1]).await;
    let call = fixture.next().await;
    let queued = fixture.send([2]).await;
    first.0.abort();
    queued.0.abort();
    let idle_clone = fixture.coalescer.clone();
    drop(fixture.coalescer);
    idle().await;
    assert!(!fixture.drivers[0].is_finished());
    drop(idle_clone);
    call.succeed();
    let call = within(fixture.calls.recv()).await.unwrap();
    assert_eq!(call.sent(), [2]);
    call.succeed();
    within(fixture.drivers.remove(0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn idle_drivers_end_with_the_last_handle() {
    for lanes in [Lanes::Separate, Lanes::Merged] {
        let fixture = Fixture::start(config(lanes));
        idle().await;
        drop(fixture.coalescer);
        for driver in fixture.drivers {
            within(driver).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_aborted_driver_answers_every_caller() {
    let mut fixture = Fixture::start(CoalescerConfig { queue_rows: 4, max_rows: 2, ..merged() });
    let spread = fixture.send(0..3).await;
    fixture.next().await.succeed();
    let _call = fixture.next().await;
    let queued = fixture.send(3..7).await;
    let waits_for_capacity = fixture.send([7]).await;
    let settle = fixture.settle([8]).await;
    fixture.drivers[0].abort();
    assert_eq!(words(spread.answer().await), ["ok", "ok", "unknown"]);
    assert!(is_closed(&queued.answer().await));
    assert!(is_closed(&waits_for_capacity.answer().await));
    assert!(is_closed(&settle.answer().await));
    assert!(is_closed(&fixture.send([9]).await.answer().await));
    within(fixture.coalescer.close(NEVER)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_aborted_driver_reports_which_rows_of_a_split_batch_were_tried() {
    let mut fixture = Fixture::start(CoalescerConfig { max_rows: 4, ..merged() });
    let caller = fixture.send(0..6).await;
    fixture.next().await.reply(Err(BatchFailure::Rejected(refused("bad"))));
    let call = fixture.next().await;
    assert_eq!(call.sent(), [0, 1]);
    fixture.drivers[0].abort();
    let expected = ["unknown", "unknown", "closed", "closed", "closed", "closed"];
    assert_eq!(words(caller.answer().await), expected);
}

#[tokio::test(start_paused = true)]
async fn a_lane_without_its_driver_does_not_affect_the_others() {
    let mut fixture = Fixture::start(config(Lanes::Separate));
    let extends_driver = &fixture.drivers[0];
    extends_driver.abort();
    idle().await;
    assert!(is_closed(&fixture.extend(1).await.answer().await));
    let send = fixture.send([2]).await;
    fixture.next().await.succeed();
    assert_eq!(sent(send.answer().await), [2]);
}

#[tokio::test(start_paused = true)]
async fn drivers_that_never_ran_refuse_everything() {
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
        // No test reads the calls, so everything succeeds.
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
