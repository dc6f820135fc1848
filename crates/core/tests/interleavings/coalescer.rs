//! Callers, drivers and a store in the interleavings that shuttle explores.
//!
//! Shuttle reports a hang as a failure.

mod running;

use postrider_core::coalescer::Lanes;
use postrider_core::{MessageId, MessagingError};
use shuttle::future::{block_on, spawn};

use running::{NEVER, Running, Sent, Store, join, send, start};

const ITERATIONS: usize = 500;

/// Runs `test` with both kinds of lanes.
fn explore<F: Future<Output = ()> + 'static>(test: fn(Lanes) -> F) {
    for lanes in [Lanes::Separate, Lanes::Merged] {
        shuttle::check_random(move || block_on(test(lanes)), ITERATIONS);
    }
}

#[test]
fn every_row_is_executed_once_and_answered_to_its_caller() {
    explore(|lanes| async move {
        let running = start(Store::default(), lanes);
        let coalescer = running.coalescer.clone();
        let twice = spawn(async move { [send(&coalescer, &[1, 2, 3]).await, send(&coalescer, &[4]).await] });
        let callers = vec![running.send(11..15), running.send([21])];
        let (settles, extend) = (vec![running.settle(31), running.settle(32)], running.extend(41));
        let sent: Vec<Sent> = join(callers).await.into_iter().chain(twice.await.expect("not aborted")).collect();
        for settled in join(settles).await {
            assert!(settled.expect("nothing fails")[0].is_ok());
        }
        extend.await.expect("not aborted").expect("nothing fails");
        let mut seen = running.finish().await;
        for operation in &sent {
            assert!(operation.all_done());
            operation.check(&seen);
            let in_order: Vec<u128> = seen.sends.iter().filter(|id| operation.ids.contains(id)).copied().collect();
            assert_eq!(in_order, operation.ids);
        }
        let index = |id| seen.sends.iter().position(|sent| *sent == id);
        assert!(index(3) < index(4), "the second send came after the answer to the first");
        assert_eq!(seen.most_in_flight[..3], [1, 1, 1], "one batch in flight for each lane");
        assert!(lanes == Lanes::Separate || seen.most_in_flight[3] == 1, "one batch in flight in total");
        seen.settles.sort_unstable();
        assert_eq!((seen.settles, seen.extends), (vec![31, 32], vec![41]));
    });
}

#[test]
fn a_caller_that_leaves_withdraws_all_of_its_operation_or_nothing() {
    explore(|lanes| async move {
        let running = start(Store::default(), lanes);
        let stay = vec![running.send([1, 2]), running.send([3, 4])];
        let leave = [running.send([11, 12]), running.send([13, 14])];
        let stay_longer = vec![running.send([5])];
        for caller in &leave {
            caller.abort();
        }
        let mut left = Vec::new();
        for caller in leave {
            left.push(caller.await.is_err());
        }
        let sent: Vec<Sent> = join(stay).await.into_iter().chain(join(stay_longer).await).collect();
        let seen = running.finish().await;
        for operation in &sent {
            assert!(operation.all_done());
            operation.check(&seen);
        }
        for (ids, left) in [[11, 12], [13, 14]].into_iter().zip(left) {
            let rows: Vec<u128> = seen.sends.iter().filter(|id| ids.contains(id)).copied().collect();
            assert!(rows == ids || (left && rows.is_empty()), "{rows:?}");
        }
    });
}

#[test]
fn close_executes_everything_that_was_accepted() {
    explore(|lanes| async move {
        let running = start(Store::default(), lanes);
        let callers = vec![running.send([1, 2, 3]), running.send([4, 5]), running.send([6])];
        let settle = running.settle(7);
        let coalescer = running.coalescer.clone();
        let close = spawn(async move { coalescer.close(NEVER).await });
        let store = running.store.clone();
        close.await.expect("not aborted").expect("close has no deadline");
        let batches = store.seen().batches;
        let sent = join(callers).await;
        let settled = settle.await.expect("not aborted");
        let seen = running.finish().await;
        assert_eq!(seen.batches, batches, "no batch begins after the close");
        for operation in &sent {
            operation.check(&seen);
            assert!(operation.all_done() || operation.answer.is_err(), "{operation:?}");
        }
        let closed = matches!(settled, Err(MessagingError::Closed { .. }));
        assert_eq!(seen.settles.len(), usize::from(!closed));
    });
}

#[test]
fn drivers_finish_after_the_last_handle_is_dropped() {
    explore(|lanes| async move {
        let running = start(Store::default(), lanes);
        let callers = vec![running.send([1, 2, 3]), running.send([4, 5])];
        let left = running.send([6]);
        left.abort();
        let Running { store, coalescer, drivers } = running;
        drop(coalescer);
        let sent = join(callers).await;
        join(drivers).await;
        assert!(left.await.is_err() || store.seen().sends.contains(&6));
        for operation in &sent {
            assert!(operation.all_done());
            operation.check(&store.seen());
        }
    });
}

#[test]
fn a_full_lane_admits_waiting_callers_in_order() {
    explore(|lanes| async move {
        let running = start(Store::default(), lanes);
        // One operation larger than the lane, one as large as the lane, and small ones between them.
        let sizes: [u128; 5] = [4, 1, 3, 2, 1];
        let callers = (1..).zip(sizes).map(|(n, size)| running.send(n * 10..n * 10 + size)).collect();
        let leaves = running.send([90, 91, 92]);
        leaves.abort();
        let sent = join(callers).await;
        let seen = running.finish().await;
        for operation in &sent {
            assert!(operation.all_done());
            operation.check(&seen);
        }
        // The rows of an operation are adjacent: no other operation was admitted in between.
        let tens: Vec<u128> = seen.sends.iter().map(|id| id / 10).collect();
        let groups = tens.chunk_by(|a, b| a == b).count();
        let operations = if tens.contains(&9) { 6 } else { 5 };
        assert_eq!(groups, operations, "{:?}", seen.sends);
    });
}

#[test]
fn a_panic_of_the_store_fails_its_batch_only() {
    explore(|lanes| async move {
        let store = Store { panics_in: Some(2), ..Store::default() };
        let running = start(store, lanes);
        let callers = vec![running.send([1, 2]), running.send([3]), running.send([4, 5])];
        let settle = running.settle(6);
        let sent = join(callers).await;
        let settled = settle.await.expect("not aborted").expect("it was begun");
        let seen = running.finish().await;
        let unknown = |error: &MessagingError| matches!(error, MessagingError::OutcomeUnknown { .. });
        let lost = settled.iter().filter(|row| row.as_ref().is_err_and(unknown)).count()
            + sent.iter().map(|operation| operation.count(unknown)).sum::<usize>();
        // A batch has at most two rows of each lane, and there is only one settle.
        assert!((1..=3).contains(&lost) || seen.batches == 1, "{lost} of {seen:?}");
        for operation in &sent {
            operation.check(&seen);
        }
    });
}

#[test]
fn a_row_that_the_store_rejects_fails_alone() {
    explore(|lanes| async move {
        let store = Store { rejects: Some(2), ..Store::default() };
        let running = start(store, lanes);
        let callers = vec![running.send([1, 2, 3]), running.send([4])];
        let (settle, extend) = (running.settle(5), running.extend(6));
        let sent = join(callers).await;
        assert!(settle.await.expect("not aborted").expect("nothing else fails")[0].is_ok());
        extend.await.expect("not aborted").expect("nothing else fails");
        let seen = running.finish().await;
        let bad = |row: &Result<MessageId, MessagingError>| match row {
            Ok(_) => false,
            Err(MessagingError::InvalidInput { .. }) => true,
            Err(other) => panic!("{other:?}"),
        };
        let rows: Vec<bool> =
            sent.iter().flat_map(|operation| operation.answer.as_ref().expect("not closed").iter().map(bad)).collect();
        assert_eq!(rows, [false, true, false, false]);
        for operation in &sent {
            operation.check(&seen);
        }
    });
}

#[test]
fn an_aborted_driver_answers_every_caller() {
    explore(|lanes| async move {
        let running = start(Store::default(), lanes);
        let callers = vec![running.send([1, 2, 3]), running.send([4, 5]), running.send([6])];
        for driver in &running.drivers {
            driver.abort();
        }
        let late = running.send([7]);
        let sent: Vec<Sent> = join(callers).await.into_iter().chain(join(vec![late]).await).collect();
        running.coalescer.close(NEVER).await.expect("close has no deadline");
        let seen = running.store.seen();
        for operation in &sent {
            operation.check(&seen);
        }
    });
}
