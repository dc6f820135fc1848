//! The provider in memory under random interleavings.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use postrider_core::*;
use shuttle::future::{block_on, spawn};

const ITERATIONS: usize = 2000;

fn never() -> Deadline {
    Deadline::never()
}

fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

/// A clock that does not advance, because shuttle has no time.
fn store() -> (ManualClock, MemoryStore) {
    let clock = ManualClock::default();
    (clock.clone(), MemoryStore::builder().clock(clock).seed(7).build())
}

#[test]
fn concurrent_receivers_lease_every_message_once() {
    shuttle::check_random(
        || {
            block_on(async {
                let (_, store) = store();
                let taken = Arc::new(Mutex::new(Vec::new()));
                let mut tasks = Vec::new();
                for sender in 0..2 {
                    let provider = store.open();
                    tasks.push(spawn(async move {
                        for n in 0..3 {
                            let message = Message::new(format!("{sender}-{n}"));
                            provider.send_message(&queue(), message, never()).await.unwrap();
                        }
                    }));
                }
                for _ in 0..3 {
                    let (provider, taken) = (store.open(), taken.clone());
                    tasks.push(spawn(async move {
                        for _ in 0..2 {
                            let options = ReceiveOptions::default().wait(Duration::MAX);
                            let received = provider.receive_messages(&queue(), &options, never()).await.unwrap();
                            for message in received {
                                let id = message.id();
                                taken.lock().unwrap().push(id);
                                provider.ack_message(&queue(), message, never()).await.unwrap();
                            }
                        }
                    }));
                }
                // Six messages for six receives: after a lost wake-up a receiver would wait for ever.
                for task in tasks {
                    task.await.unwrap();
                }
                let taken = taken.lock().unwrap();
                assert_eq!(taken.len(), 6);
                assert_eq!(taken.iter().collect::<HashSet<_>>().len(), 6, "a message was leased twice");
            });
        },
        ITERATIONS,
    );
}

#[test]
fn a_key_is_handled_in_order_by_concurrent_workers() {
    shuttle::check_random(
        || {
            block_on(async {
                let (_, store) = store();
                let provider = store.open();
                for n in 0..5 {
                    let message = Message::new(n.to_string()).ordering_key("k").unwrap();
                    provider.send_message(&queue(), message, never()).await.unwrap();
                }
                let handled = Arc::new(Mutex::new(Vec::new()));
                let mut tasks = Vec::new();
                for worker in 0..3 {
                    let (provider, handled) = (store.open(), handled.clone());
                    tasks.push(spawn(async move {
                        for turn in 0..6 {
                            let options = ReceiveOptions::batch(2).max_receive_count(100);
                            let received = provider.receive_messages(&queue(), &options, never()).await.unwrap();
                            assert!(received.len() <= 1, "two messages of one key were leased at once");
                            for message in received {
                                if (worker + turn) % 3 == 0 {
                                    let nack = Nack::retry_after(Duration::ZERO);
                                    provider.nack_message(&queue(), message, nack, never()).await.unwrap();
                                } else {
                                    handled.lock().unwrap().push(message.message.clone());
                                    provider.ack_message(&queue(), message, never()).await.unwrap();
                                }
                            }
                        }
                    }));
                }
                for task in tasks {
                    task.await.unwrap();
                }
                let handled = handled.lock().unwrap();
                assert!(handled.is_sorted(), "out of order: {handled:?}");
            });
        },
        ITERATIONS,
    );
}

#[test]
fn a_lease_has_one_end_although_many_try() {
    shuttle::check_random(
        || {
            block_on(async {
                let (clock, store) = store();
                let provider = store.open();
                provider.send_message(&queue(), Message::new("one"), never()).await.unwrap();
                let options = ReceiveOptions::default().visibility(Duration::from_secs(1)).max_receive_count(100);
                let first = provider.receive_messages(&queue(), &options, never()).await.unwrap();
                let receipt = first.into_iter().next().unwrap().into_receipt();
                let ended = Arc::new(Mutex::new(0));
                let mut tasks = Vec::new();
                for outcome in 0..3 {
                    let (provider, receipt, ended) = (store.open(), receipt.clone(), ended.clone());
                    tasks.push(spawn(async move {
                        let settlement = match outcome {
                            0 => Settlement::ack(receipt),
                            1 => Settlement::nack(receipt, Nack::retry_after(Duration::ZERO)),
                            _ => Settlement::nack(receipt, Nack::dead_letter("race")),
                        };
                        let rows = provider.settle(vec![settlement], never()).await.unwrap();
                        *ended.lock().unwrap() += usize::from(rows[0].is_ok());
                    }));
                }
                tasks.push(spawn(async move { clock.advance(Duration::from_secs(1)) }));
                for task in tasks {
                    task.await.unwrap();
                }
                assert!(*ended.lock().unwrap() <= 1, "one lease was ended twice");
                let live = provider.queue_stats(&queue(), never()).await.unwrap();
                let copies = live.message_count().unwrap() + live.dead.value().unwrap();
                assert!(copies <= 1, "one message exists {copies} times");
            });
        },
        ITERATIONS,
    );
}

#[test]
fn close_reaches_a_receive_that_begins_to_wait() {
    shuttle::check_random(
        || {
            block_on(async {
                let (_, store) = store();
                let provider = store.open();
                let waiter = provider.clone();
                let waiting = spawn(async move {
                    let options = ReceiveOptions::default().wait(Duration::MAX);
                    waiter.receive_messages(&queue(), &options, never()).await
                });
                let sender = store.open();
                let sending = spawn(async move {
                    sender.send_message(&queue(), Message::new("one"), never()).await.unwrap();
                });
                provider.close(never()).await.unwrap();
                let leased = store.open().queue_stats(&queue(), never()).await.unwrap().in_flight;
                sending.await.unwrap();
                // The receive may be served before the close, but not after it.
                let served = waiting.await.unwrap().map_or(0, |received| received.len() as u64);
                assert_eq!(Measured::Exact(served), leased);
            });
        },
        ITERATIONS,
    );
}
