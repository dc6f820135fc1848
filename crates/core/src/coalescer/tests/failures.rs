//! The errors of callers when a batch fails.

use futures_util::future::BoxFuture;

use super::*;

/// Completes the batch in flight, and returns the one that gathered meanwhile.
async fn second_batch(fixture: &mut Fixture) -> Call {
    fixture.next().await.succeed();
    fixture.next().await
}

/// Rejects every batch that has a row of `bad`, until row `last` succeeds. Returns the rows of each batch.
async fn reject(fixture: &mut Fixture, mut call: Call, bad: &[u128], last: u128) -> Vec<Vec<u128>> {
    let mut batches = Vec::new();
    loop {
        let rows = call.sent();
        let fault = rows.iter().find(|row| bad.contains(row)).copied();
        let ends = fault.is_none() && rows.contains(&last);
        batches.push(rows);
        match fault {
            Some(row) => call.reply(Err(BatchFailure::Rejected(refused(&row.to_string())))),
            None => call.succeed(),
        }
        if ends {
            return batches;
        }
        call = fixture.next().await;
    }
}

fn connection_lost() -> MessagingError {
    MessagingError::Connection { provider: "fake", detail: "reset".into(), source: None }
}

#[tokio::test(start_paused = true)]
async fn a_rejected_batch_is_halved_until_the_bad_row_is_alone() {
    let mut fixture = Fixture::start(merged());
    let _first = fixture.send([0]).await;
    let left = fixture.send(1..5).await;
    let right = fixture.send(5..8).await;
    let call = second_batch(&mut fixture).await;
    let batches = reject(&mut fixture, call, &[3], 7).await;
    let executed: Vec<u128> = batches.iter().filter(|rows| !rows.contains(&3)).flatten().copied().collect();
    assert_eq!(executed, [1, 2, 4, 5, 6, 7], "the others were executed, once and in order");
    assert!(batches.contains(&vec![3]));
    assert!(batches.len() <= 7, "{batches:?}");
    assert_eq!(words(left.answer().await), ["ok", "ok", "3", "ok"]);
    assert_eq!(words(right.answer().await), ["ok", "ok", "ok"]);
}

#[tokio::test(start_paused = true)]
async fn two_bad_rows_each_get_their_own_error() {
    let mut fixture = Fixture::start(merged());
    let caller = fixture.send(0..8).await;
    let call = fixture.next().await;
    reject(&mut fixture, call, &[2, 5], 7).await;
    let expected = ["ok", "ok", "2", "ok", "ok", "5", "ok", "ok"];
    assert_eq!(words(caller.answer().await), expected);
}

#[tokio::test(start_paused = true)]
async fn a_merged_batch_is_halved_across_its_lanes() {
    let mut fixture = Fixture::start(merged());
    let _first = fixture.send([0]).await;
    let extend = fixture.extend(1).await;
    let settle = fixture.settle([2]).await;
    let send = fixture.send([3, 4]).await;
    second_batch(&mut fixture).await.reply(Err(BatchFailure::Rejected(refused("some"))));
    let call = fixture.next().await;
    assert_eq!((call.extended(), call.settled(), call.sent()), (vec![1], vec![2], vec![]));
    call.reply(Err(BatchFailure::Rejected(refused("some"))));
    fixture.next().await.reply(Err(BatchFailure::Rejected(refused("the extend"))));
    assert_eq!(word(&extend.error().await), "the extend");
    let call = fixture.next().await;
    assert_eq!(call.settled(), [2]);
    call.succeed();
    assert_eq!(words(settle.answer().await), ["ok"]);
    let call = fixture.next().await;
    assert_eq!(call.sent(), [3, 4]);
    call.succeed();
    assert_eq!(words(send.answer().await), ["ok", "ok"]);
}

#[tokio::test(start_paused = true)]
async fn a_single_rejected_row_is_not_tried_again() {
    let mut fixture = Fixture::start(merged());
    let caller = fixture.send([1]).await;
    fixture.next().await.reply(Err(BatchFailure::Rejected(refused("bad"))));
    assert_eq!(words(caller.answer().await), ["bad"]);
    fixture.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn when_nothing_was_done_every_caller_gets_the_error() {
    let mut fixture = Fixture::start(merged());
    let _first = fixture.send([0]).await;
    let send = fixture.send([1, 2]).await;
    let settle = fixture.settle([3]).await;
    second_batch(&mut fixture).await.reply(Err(BatchFailure::NotDone(refused("down"))));
    assert_eq!(word(&send.error().await), "down");
    assert_eq!(word(&settle.error().await), "down");
    fixture.nothing_more().await;
    let later = fixture.send([4]).await;
    fixture.next().await.succeed();
    assert_eq!(sent(later.answer().await), [4]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_makes_the_whole_batch_unknown() {
    let mut fixture = Fixture::start(merged());
    let _first = fixture.send([0]).await;
    let extend = fixture.extend(1).await;
    let settle = fixture.settle([2]).await;
    let send = fixture.send([3, 4]).await;
    second_batch(&mut fixture).await.reply(Err(BatchFailure::Unknown(connection_lost())));
    let unknown = |error: &MessagingError| match error {
        MessagingError::OutcomeUnknown { operation, ids, source: Some(source) } => {
            assert!(source.to_string().contains("reset"), "{source}");
            (*operation, ids.clone())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(unknown(&extend.error().await), ("extend", vec![id(1)]));
    let row = |mut rows: Vec<MessagingError>| rows.pop().unwrap();
    let settled = settle.answer().await.unwrap().into_iter().filter_map(Result::err).collect();
    assert_eq!(unknown(&row(settled)), ("settle", vec![id(2)]));
    let sent = send.answer().await.unwrap();
    let sent: Vec<_> = sent.iter().map(|row| unknown(row.as_ref().unwrap_err())).collect();
    assert_eq!(sent, [("send", vec![id(3)]), ("send", vec![id(4)])]);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_was_not_done_ends_the_batch() {
    let mut fixture = Fixture::start(merged());
    let caller = fixture.send(0..8).await;
    fixture.next().await.reply(Err(BatchFailure::Rejected(refused("bad"))));
    let call = fixture.next().await;
    assert_eq!(call.sent(), [0, 1, 2, 3]);
    call.reply(Err(BatchFailure::Rejected(refused("bad"))));
    fixture.next().await.succeed();
    fixture.next().await.reply(Err(BatchFailure::NotDone(refused("down"))));
    let expected = ["ok", "ok", "down", "down", "down", "down", "down", "down"];
    assert_eq!(words(caller.answer().await), expected);
    fixture.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_part_in_flight_is_unknown() {
    let mut fixture = Fixture::start(merged());
    let _first = fixture.send([100]).await;
    let caller = fixture.send(0..8).await;
    let settle = fixture.settle([9]).await;
    second_batch(&mut fixture).await.reply(Err(BatchFailure::Rejected(refused("bad"))));
    let call = fixture.next().await;
    assert_eq!((call.settled(), call.sent()), (vec![9], vec![0, 1, 2]));
    call.succeed();
    let call = fixture.next().await;
    assert_eq!(call.sent(), [3, 4, 5, 6, 7]);
    call.reply(Err(BatchFailure::Rejected(refused("bad"))));
    let call = fixture.next().await;
    assert_eq!(call.sent(), [3, 4]);
    call.reply(Err(BatchFailure::Unknown(connection_lost())));
    assert_eq!(words(settle.answer().await), ["ok"]);
    let rows = caller.answer().await;
    let retryable = |row: &Result<_, MessagingError>| row.as_ref().is_err_and(MessagingError::is_retryable);
    assert!(rows.as_ref().unwrap()[5..].iter().all(retryable), "nothing was done, so it may be repeated");
    let not_sent = "not sent";
    let expected = ["ok", "ok", "ok", "unknown", "unknown", not_sent, not_sent, not_sent];
    assert_eq!(words(rows), expected);
    fixture.nothing_more().await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_over_several_batches_ends_with_its_first_failed_batch() {
    let mut fixture = Fixture::start(CoalescerConfig { max_rows: 2, ..merged() });
    let caller = fixture.send(0..6).await;
    let behind = fixture.send([6]).await;
    fixture.next().await.succeed();
    fixture.next().await.reply(Err(BatchFailure::Unknown(connection_lost())));
    let expected = ["ok", "ok", "unknown", "unknown", "not sent", "not sent"];
    assert_eq!(words(caller.answer().await), expected);
    let call = fixture.next().await;
    assert_eq!(call.sent(), [6], "the next operation is tried");
    call.succeed();
    assert_eq!(sent(behind.answer().await), [6]);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_did_not_fit_into_a_failed_batch_is_in_the_next_one() {
    let mut fixture = Fixture::start(CoalescerConfig { max_bytes: 15, ..merged() });
    let _first = fixture.send([0]).await;
    let fails = fixture.send([1]).await;
    let next = fixture.send([2]).await;
    second_batch(&mut fixture).await.reply(Err(BatchFailure::NotDone(refused("down"))));
    assert_eq!(word(&fails.error().await), "down");
    let call = fixture.next().await;
    assert_eq!(call.sent(), [2]);
    call.succeed();
    assert_eq!(sent(next.answer().await), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_reply_with_the_wrong_number_of_rows_is_unknown_for_its_lane() {
    for answered in [0, 1, 3] {
        let mut fixture = Fixture::start(merged());
        let _first = fixture.send([0]).await;
        let settle = fixture.settle([1]).await;
        let send = fixture.send([2, 3]).await;
        let sends = (0..answered).map(|_| Ok(id(2))).collect();
        second_batch(&mut fixture).await.reply(Ok(BatchReply {
            settles: vec![Ok(())],
            sends,
            ..BatchReply::default()
        }));
        assert_eq!(words(settle.answer().await), ["ok"]);
        assert_eq!(words(send.answer().await), ["unknown", "unknown"], "{answered} rows");
        let later = fixture.send([4]).await;
        fixture.next().await.succeed();
        assert_eq!(sent(later.answer().await), [4]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_the_batch_and_not_the_driver() {
    let mut fixture = Fixture::start(merged());
    let caller = fixture.send([1, 2]).await;
    fixture.next().await.panic();
    let rows = caller.answer().await;
    match &rows.as_ref().unwrap()[0] {
        Err(MessagingError::OutcomeUnknown { source: Some(source), .. }) => {
            assert!(source.to_string().contains("the test says so"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(words(rows), ["unknown", "unknown"]);
    let later = fixture.send([3]).await;
    fixture.next().await.succeed();
    assert_eq!(sent(later.answer().await), [3]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_first_await_is_caught() {
    struct Broken;
    impl BatchExecutor for Broken {
        // Not an `async fn`, because the panic must come before there is a future.
        fn execute<'a, 'b, 'f>(&'a self, _: &'b Batch) -> BoxFuture<'f, Reply>
        where
            'a: 'f,
            'b: 'f,
        {
            std::panic::resume_unwind(Box::new(String::from("broken")));
        }
    }
    let (coalescer, drivers) = Coalescer::new(Broken, merged()).unwrap();
    drivers.spawn();
    for _ in 0..2 {
        let answer = within(coalescer.send(&queue(), vec![message(1)], NEVER)).await;
        assert_eq!(words(answer), ["unknown"]);
    }
}
