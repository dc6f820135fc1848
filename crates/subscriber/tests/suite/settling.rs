//! The outcomes of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{DeadLetterQuery, DeadLetters, Message, MessagingService, Nack, ReceiveOptions, RetryStrategy};
use postrider_subscriber::{AckPolicy, Delivery, HandlerError, Subscriber};

use crate::fixture::{handler, queue, send, soon, start, stats, store};
use crate::scripted::Scripted;

async fn dead_reasons<P: DeadLetters>(provider: &P) -> Vec<(String, Option<String>)> {
    let page = provider.list_dead_letters(&queue(), &DeadLetterQuery::default(), soon()).await.unwrap();
    page.letters.into_iter().map(|letter| (letter.reason.to_string(), letter.error)).collect()
}

#[tokio::test(start_paused = true)]
async fn handled_messages_are_gone() {
    let provider = store();
    send(&provider, 1000).await;
    let subscriber =
        Subscriber::builder(provider.clone(), queue()).handler(handler(|_| async { Ok(()) })).build().unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 1000).await;
    let report = running.stop().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(stats(&provider).await.message_count(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_retried_by_the_strategy_and_then_dead_lettered() {
    let provider = store();
    send(&provider, 1).await;
    let attempts = Arc::new(AtomicUsize::new(0));
    let seen = attempts.clone();
    let failing = handler(move |delivery: Delivery| {
        assert_eq!(delivery.envelope.attempts_count as usize, seen.fetch_add(1, Ordering::SeqCst));
        async { Err("no paper".into()) }
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(failing)
        .retry_strategy(RetryStrategy::default().with_max_attempts(3))
        .build()
        .unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.dead == 1).await;
    assert_eq!((counts.retried, counts.failed, attempts.load(Ordering::SeqCst)), (2, 3, 3));
    running.stop().await;
    assert_eq!(dead_reasons(&provider).await, [("retries_exhausted".into(), Some("no paper".into()))]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_its_message_alone() {
    let provider = store();
    send(&provider, 100).await;
    let panicking = handler(|delivery: Delivery| async move {
        assert!(!delivery.body.ends_with(b"7"), "seven");
        Ok(())
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(panicking)
        .max_workers(3)
        .retry_strategy(RetryStrategy::NoRetry)
        .build()
        .unwrap();
    let running = start(subscriber);
    let counts = running.until(|counts| counts.acked == 90 && counts.dead == 10).await;
    assert_eq!(counts.panicked, 10);
    running.stop().await;
    let dead = dead_reasons(&provider).await;
    assert!(dead.iter().all(|(_, error)| error.as_ref().is_some_and(|text| text.contains("seven"))), "{dead:?}");
}

#[tokio::test(start_paused = true)]
async fn each_policy_has_its_effect_on_errors() {
    for (policy, expected) in [
        (AckPolicy::AckFirst, (1, 0, None)),
        (AckPolicy::Ack, (1, 0, None)),
        (AckPolicy::RejectOnError, (0, 1, Some("rejected"))),
        (AckPolicy::NackOnError, (0, 1, Some("retries_exhausted"))),
        (AckPolicy::Manual, (0, 1, Some("retries_exhausted"))),
    ] {
        let provider = store();
        send(&provider, 1).await;
        let subscriber = Subscriber::builder(provider.clone(), queue())
            .handler(handler(|_| async { Err("no".into()) }))
            .ack_policy(policy)
            .retry_strategy(RetryStrategy::default().with_max_attempts(3))
            .build()
            .unwrap();
        let running = start(subscriber);
        let counts = running.until(|counts| counts.acked + counts.dead == 1 && counts.in_flight == 0).await;
        running.stop().await;
        let reason = dead_reasons(&provider).await.pop().map(|(reason, _)| reason);
        assert_eq!((counts.acked, counts.dead, reason.as_deref()), expected, "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_acknowledged_first_is_gone_before_the_handler_begins() {
    let provider = store();
    send(&provider, 1).await;
    let seen = provider.clone();
    let looking = handler(move |delivery: Delivery| {
        let seen = seen.clone();
        async move {
            assert_eq!(stats(&seen).await.message_count(), Some(0));
            assert!(!delivery.control().release(), "it is already acknowledged");
            Ok(())
        }
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(looking)
        .ack_policy(AckPolicy::AckFirst)
        .build()
        .unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.acked == 1 && counts.in_flight == 0).await;
    let report = running.stop().await;
    assert_eq!(report.totals.panicked, 0, "the assertions in the handler hold");
}

#[tokio::test(start_paused = true)]
async fn a_handlers_decision_by_hand_wins() {
    let provider = store();
    send(&provider, 4).await;
    let settling = handler(|delivery: Delivery| async move {
        let control = delivery.control();
        let first = match &delivery.body[..] {
            b"0" => control.ack(),
            b"1" => control.reject("not ours"),
            b"2" if delivery.envelope.attempts_count == 0 => control.nack(Nack::retry_after(Duration::from_secs(5))),
            _ => control.ack(),
        };
        assert!(first && !control.release());
        Err("ignored".into())
    });
    let running = start(Subscriber::builder(provider.clone(), queue()).handler(settling).build().unwrap());
    let counts = running.until(|counts| counts.acked == 3).await;
    assert_eq!((counts.retried, counts.dead), (1, 1));
    running.stop().await;
    assert_eq!(dead_reasons(&provider).await, [("not ours".into(), None)]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_was_delivered_too_often_is_dead_lettered_unread() {
    let provider = store();
    send(&provider, 1).await;
    for _ in 0..2 {
        drop(provider.receive_messages(&queue(), &ReceiveOptions::default(), soon()).await.unwrap());
    }
    let counting = Scripted::counting(provider.clone());
    let subscriber = Subscriber::builder(counting.clone(), queue())
        .handler(handler(|_| async { panic!("no handler may run") }))
        .retry_strategy(RetryStrategy::NoRetry)
        .max_deliveries(2)
        .build()
        .unwrap();
    let running = start(subscriber);
    while dead_reasons(&provider).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let report = running.stop().await;
    assert_eq!(report.totals.received, 0);
    assert_eq!(dead_reasons(&provider).await[0].0, "max_receive_count");
    assert_eq!(counting.counts.receive_limits.lock().unwrap()[0], 2);
}

#[tokio::test(start_paused = true)]
async fn one_key_is_handled_one_at_a_time_and_in_order() {
    let provider = store();
    let message = |number: usize| Message::new(number.to_string()).ordering_key(format!("k{}", number % 3)).unwrap();
    provider.send_batch(&queue(), (0..300).map(message).collect(), soon()).await.unwrap();
    let seen = Arc::new(std::sync::Mutex::new(Vec::<(usize, usize)>::new()));
    let noted = seen.clone();
    let noting = handler(move |delivery: Delivery| {
        let noted = noted.clone();
        async move {
            let number: usize = std::str::from_utf8(&delivery.body).unwrap().parse().unwrap();
            tokio::time::sleep(Duration::from_millis(number as u64 % 7)).await;
            if number % 10 == 9 && delivery.envelope.attempts_count == 0 {
                return Err(HandlerError::retry_after(Duration::from_millis(50), "once"));
            }
            noted.lock().unwrap().push((number % 3, number));
            Ok(())
        }
    });
    let running = start(Subscriber::builder(provider.clone(), queue()).handler(noting).build().unwrap());
    running.until(|counts| counts.acked == 300).await;
    running.stop().await;
    let seen = seen.lock().unwrap();
    for key in 0..3 {
        let numbers: Vec<_> = seen.iter().filter(|(of, _)| *of == key).map(|(_, number)| *number).collect();
        assert_eq!(numbers.len(), 100);
        assert!(numbers.is_sorted(), "{numbers:?}");
    }
}
