use tokio::time::advance;

use super::super::script::*;
use super::super::{BreakerState, FIRST_HOLD};
use super::*;

#[tokio::test(start_paused = true)]
async fn failures_of_the_store_open_it_and_then_no_call_reaches_the_store() {
    let script = Script::new();
    for _ in 0..2 {
        let mut check = Box::pin(script.guarded.health_check(Deadline::default()));
        assert!(begin(&mut check).await.is_none());
        script.answer(Err(connection()));
        assert!(matches!(check.await, Err(MessagingError::Connection { .. })));
    }
    let refused = begin(&mut Box::pin(script.guarded.health_check(Deadline::default()))).await;
    let refused = refused.unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "calls to scripted are held back after repeated failures; next try in 0.1 s");
    assert!(refused.is_retryable() && script.nothing_came());
}

#[tokio::test(start_paused = true)]
async fn rows_that_fail_with_the_connection_open_it_too() {
    let (script, queue) = (Script::new(), orders());
    for _ in 0..2 {
        let mut send = Box::pin(script.guarded.send_batch(&queue, vec![Message::new("a")], Deadline::default()));
        begin(&mut send).await;
        script.answer(Err(connection()));
        assert!(matches!(send.await.unwrap()[..], [Err(MessagingError::Connection { .. })]));
    }
    assert_eq!(script.state(), BreakerState::Open { retry_after: FIRST_HOLD });
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_cancelled_lets_the_next_call_try() {
    let script = Script::half_open().await;
    let mut probe = Box::pin(script.guarded.health_check(Deadline::default()));
    begin(&mut probe).await;
    let first = script.call();
    let second = begin(&mut Box::pin(script.guarded.health_check(Deadline::default()))).await;
    assert!(matches!(second, Some(Err(MessagingError::CircuitBreakerOpen { .. }))), "one probe at a time");
    drop(probe);
    assert!(first.answer.is_closed());

    let mut next = Box::pin(script.guarded.health_check(Deadline::default()));
    assert!(begin(&mut next).await.is_none());
    script.answer(Ok(()));
    next.await.unwrap();
    assert_eq!(script.state(), BreakerState::Closed { failures: 0 });
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_counts_as_nothing() {
    let script = Script::new();
    for _ in 0..5 {
        let mut check = Box::pin(script.guarded.health_check(Deadline::default()));
        begin(&mut check).await;
        drop(check);
    }
    assert_eq!(script.state(), BreakerState::Closed { failures: 0 });
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_of_a_receive_is_no_failure() {
    let script = Script::new();
    let (queue, options) = (orders(), ReceiveOptions::default().wait(Duration::from_secs(3600)));
    let mut receive = Box::pin(script.guarded.receive_messages(&queue, &options, Deadline::never()));
    begin(&mut receive).await;
    advance(Duration::from_secs(3600)).await;
    assert_eq!(script.state(), BreakerState::Closed { failures: 0 });
    script.answer(Ok(()));
    assert!(receive.await.unwrap().is_empty());
    assert_eq!(script.state(), BreakerState::Closed { failures: 0 });
}

#[tokio::test(start_paused = true)]
async fn a_call_follows_its_probe_and_does_not_block_others() {
    let wait = Duration::from_secs(20);
    let (queue, options) = (orders(), ReceiveOptions::default().wait(wait));
    let script = Script::half_open().await;
    let mut receive = Box::pin(script.guarded.receive_messages(&queue, &options, Deadline::never()));
    begin(&mut receive).await;
    let probe = script.call();
    assert_eq!((probe.wait, probe.time_left), (Duration::ZERO, Some(OPEN)));
    probe.answer.send(Ok(())).unwrap();
    begin(&mut receive).await;
    assert_eq!(script.state(), BreakerState::Closed { failures: 0 });
    let call = script.call();
    assert_eq!((call.wait, call.time_left), (wait, None), "it keeps its own wait and deadline");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_probe_fails_is_not_made() {
    let queue = orders();
    for (failure, expected) in [
        (connection(), "cannot reach scripted"),
        (MessagingError::OutcomeUnknown { operation: "health check", ids: Vec::new(), source: None }, "held back"),
    ] {
        let script = Script::half_open().await;
        let mut send = Box::pin(script.guarded.send_batch(&queue, vec![Message::new("a")], Deadline::never()));
        begin(&mut send).await;
        script.answer(Err(failure));
        let error = send.await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(script.nothing_came());
        assert_eq!(script.state(), BreakerState::Open { retry_after: OPEN });
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_with_too_short_a_deadline_counts_as_nothing() {
    let (queue, script) = (orders(), Script::half_open().await);
    let second = Duration::from_secs(1);
    let mut send = Box::pin(script.guarded.send_batch(&queue, vec![Message::new("a")], Deadline::after(second)));
    begin(&mut send).await;
    advance(second).await;
    let unknown = MessagingError::OutcomeUnknown { operation: "health check", ids: Vec::new(), source: None };
    script.answer(Err(unknown));
    assert!(matches!(send.await, Err(MessagingError::DeadlineExceeded { .. })), "nothing was sent, and that is known");
    assert_eq!(script.state(), BreakerState::HalfOpen, "the next call may try");
}

#[tokio::test(start_paused = true)]
async fn a_callers_own_deadline_is_no_failure_of_the_store() {
    let script = Script::new();
    for _ in 0..5 {
        let mut check = Box::pin(script.guarded.health_check(Deadline::default()));
        begin(&mut check).await;
        script.answer(Err(MessagingError::OutcomeUnknown { operation: "send", ids: Vec::new(), source: None }));
        check.await.unwrap_err();
    }
    assert_eq!(script.state(), BreakerState::Closed { failures: 0 });
}

#[tokio::test(start_paused = true)]
async fn a_probe_has_a_time_limit_although_its_caller_has_none() {
    let script = Script::half_open().await;
    let mut probe = Box::pin(script.guarded.health_check(Deadline::never()));
    begin(&mut probe).await;
    assert_eq!(script.call().time_left, Some(OPEN));
}

#[tokio::test(start_paused = true)]
async fn a_closed_breaker_leaves_deadlines_alone() {
    let script = Script::new();
    let mut check = Box::pin(script.guarded.health_check(Deadline::never()));
    begin(&mut check).await;
    assert_eq!(script.call().time_left, None);
}

#[tokio::test(start_paused = true)]
async fn every_call_but_close_settle_and_extend_is_refused() {
    let guarded = Guarded::new(MemoryStore::new().open(), SETTINGS);
    let (queue, queues, options) = (orders(), [orders()], ReceiveOptions::default());
    let (id, deadline) = (MessageId::generate(), Deadline::never());
    open(&guarded);
    let clone = guarded.clone();
    let refused = [
        clone.ensure_queue(&queue, deadline).await.err(),
        clone.ensure_queues(&queues, deadline).await.err(),
        clone.send_batch(&queue, vec![Message::new("a")], deadline).await.err(),
        clone.send_message(&queue, Message::new("a"), deadline).await.err(),
        clone.receive_messages(&queue, &options, deadline).await.err(),
        clone.settle(Vec::new(), deadline).await.err(),
        clone.settle_and_receive(Vec::new(), &queues, &options, deadline).await.err(),
        clone.receive_by_id(&queue, id, &options, deadline).await.err(),
        clone.subscribe(&queue, deadline).await.err(),
        clone.health_check(deadline).await.err(),
        clone.list_queues(deadline).await.err(),
        clone.queue_stats(&queue, deadline).await.err(),
        clone.verify_queues(&queues, deadline).await.err(),
        clone.peek(&queue, 1, deadline).await.err(),
        clone.peek_page(&queue, &PeekQuery::default(), deadline).await.err(),
        clone.message_attempts(&queue, id, deadline).await.err(),
        clone.archived(&queue, &ArchiveQuery::default(), deadline).await.err(),
        clone.send_again(&queue, id, deadline).await.err(),
        clone.deliver_now(&queue, id, deadline).await.err(),
        clone.dead_letter_waiting(&queue, id, "by hand".into(), None, deadline).await.err(),
        clone.delete_waiting(&queue, id, deadline).await.err(),
        clone.purge(&queue, deadline).await.err(),
        clone.pause(&queue, deadline).await.err(),
        clone.resume(&queue, deadline).await.err(),
        clone.delete_queue(&queue, deadline).await.err(),
        clone.list_dead_letters(&queue, &DeadLetterQuery::default(), deadline).await.err(),
        clone.get_dead_letter(&queue, id, deadline).await.err(),
        clone.edit_dead_letter(&queue, id, DeadLetterEdit::default(), deadline).await.err(),
        clone.redrive_dead_letters(&queue, &Redrive::default(), deadline).await.err(),
        clone.purge_dead_letters(&queue, &DeadLetterSelection::All, deadline).await.err(),
    ];
    for (call, error) in refused.iter().enumerate() {
        assert!(
            matches!(error, Some(MessagingError::CircuitBreakerOpen { provider: "memory", .. })),
            "{call}: {error:?}"
        );
    }
    guarded.close(deadline).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_behind_a_breaker_keeps_the_law() {
    let store = MemoryStore::new();
    let open = move || {
        let store = store.clone();
        async move { Ok(Guarded::new(store.open(), SETTINGS)) }
    };
    let settings = postrider_conformance::Settings { seed: 7, ..Default::default() };
    let report = postrider_conformance::exercise(open, settings).await.unwrap();
    assert!(report.is_lawful(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_hint_of_the_store_ends_the_hold() {
    let memory = MemoryStore::new().open();
    let guarded = Guarded::new(memory.clone(), SETTINGS);
    let mut hints = guarded.subscribe(&orders(), Deadline::never()).await.unwrap();
    open(&guarded);
    memory.send_message(&orders(), Message::new("a"), Deadline::never()).await.unwrap();
    assert_eq!(guarded.breaker().state(), BreakerState::Open { retry_after: OPEN });
    hints.next().await.unwrap();
    assert_eq!(guarded.breaker().state(), BreakerState::HalfOpen);
    let began = tokio::time::Instant::now();
    guarded.receive_messages(&orders(), &ReceiveOptions::default(), Deadline::never()).await.unwrap();
    assert!(began.elapsed().is_zero());
}
