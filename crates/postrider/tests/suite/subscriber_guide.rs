//! Compares the tables of `docs/subscriber.md` with a subscriber's behaviour.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::subscriber::layers::TimeoutLayer;
use postrider::subscriber::{
    AckPolicy, Control, Counts, HandlerError, Shutdown, State, Subscriber, SubscriberOptions, handler,
};
use postrider::{
    Deadline, Json, MemoryStore, Message, MessagingService, QueueName, RetryLimits, RetryStrategy, duration_text,
};

const GUIDE: &str = include_str!("../../../../docs/subscriber.md");

/// The cells of the table after a named comment, without its head.
fn table(name: &str) -> Vec<Vec<&'static str>> {
    let mark = format!("<!-- compared with the code: {name} -->\n");
    let (_, rest) = GUIDE.split_once(&mark).unwrap();
    let rows = rest.lines().take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_guide_has_every_option_with_its_default() {
    // Named one by one, so that a new option does not compile before it is documented.
    let SubscriberOptions {
        max_workers,
        retry_strategy,
        ack_policy,
        fetch_batch_size,
        overfetch_factor,
        min_fetch_interval,
        max_fetch_interval,
        flush_interval,
        release_stuck_interval,
        release_stuck_timeout,
        max_deliveries,
        graceful_timeout,
        cancel_timeout,
        stop_when_empty,
        visibility,
    } = SubscriberOptions::default();
    let time = duration_text::show;
    let unset = |is_unset: bool| if is_unset { "unset".to_owned() } else { "set".to_owned() };
    let defaults = [
        ("max_workers", max_workers.to_string()),
        ("retry_strategy", strategy(&retry_strategy)),
        ("ack_policy", format!("`{ack_policy}`")),
        ("fetch_batch_size", fetch_batch_size.to_string()),
        ("overfetch_factor", unset(overfetch_factor.is_none())),
        ("min_fetch_interval", time(min_fetch_interval)),
        ("max_fetch_interval", time(max_fetch_interval)),
        ("flush_interval", time(flush_interval)),
        ("release_stuck_interval", time(release_stuck_interval)),
        ("release_stuck_timeout", unset(release_stuck_timeout.is_none())),
        ("max_deliveries", unset(max_deliveries.is_none())),
        ("graceful_timeout", time(graceful_timeout)),
        ("cancel_timeout", time(cancel_timeout)),
        ("stop_when_empty", if stop_when_empty { "yes" } else { "no" }.to_owned()),
        ("visibility", time(visibility)),
    ];
    let written = table("options");
    // The meaning of an unset option follows a colon; the tests of the options show it.
    let told = |row: &Vec<&'static str>| (row[0].trim_matches('`'), row[1].split(": ").next().unwrap().to_owned());
    assert_eq!(written.iter().map(told).collect::<Vec<_>>(), defaults);
    assert!(written.iter().all(|row| row.len() == 3 && !row[2].is_empty()));
}

fn strategy(strategy: &RetryStrategy) -> String {
    let RetryStrategy::ExponentialWithJitter { initial_delay, multiplier, max_delay, limits } = strategy else {
        panic!("{strategy:?}");
    };
    let RetryLimits { max_attempts: Some(attempts), max_total_delay: None } = limits else { panic!("{limits:?}") };
    let (first, most) = (duration_text::show(*initial_delay), duration_text::show(*max_delay));
    format!("{first} × {multiplier} up to {most}, with jitter, {attempts} attempts")
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    Ok,
    Error,
    Permanent,
    Panic,
    TimeOut,
    Undecodable,
    RejectedByHand,
}

/// In the order of the table's columns.
const ENDINGS: [Ending; 7] = [
    Ending::Ok,
    Ending::Error,
    Ending::Permanent,
    Ending::Panic,
    Ending::TimeOut,
    Ending::Undecodable,
    Ending::RejectedByHand,
];

async fn end(State(ending): State<Ending>, Json(_): Json<u32>, control: Control) -> Result<(), HandlerError> {
    match ending {
        Ending::Ok | Ending::Undecodable => Ok(()),
        Ending::Error => Err(HandlerError::retryable("not now")),
        Ending::Permanent => Err(HandlerError::permanent("never")),
        Ending::Panic => panic!("on purpose"),
        Ending::TimeOut => std::future::pending().await,
        Ending::RejectedByHand => {
            control.reject("by hand");
            Ok(())
        }
    }
}

/// The outcome of one message, in the words of the table.
async fn outcome(policy: AckPolicy, ending: Ending) -> &'static str {
    let provider = MemoryStore::new().open();
    let body = if matches!(ending, Ending::Undecodable) { "{" } else { "7" };
    let queue = QueueName::new("orders").unwrap();
    provider.send_message(&queue, Message::new(body), Deadline::default()).await.unwrap();
    let subscriber = Subscriber::builder(provider, queue)
        .handler(handler(end).with_state(ending))
        .layer(TimeoutLayer::new(Duration::from_secs(1)))
        .ack_policy(policy)
        .retry_strategy(RetryStrategy::constant(Duration::from_secs(3600)))
        .build()
        .unwrap();
    let (monitor, shutdown) = (subscriber.monitor(), Shutdown::new());
    let running = tokio::spawn(subscriber.run(shutdown.clone()));
    // Paused time advances when all tasks wait.
    let is_over = |counts: Counts| counts.acked + counts.retried + counts.dead == 1 && counts.in_flight == 0;
    while !is_over(monitor.counts()) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    shutdown.request();
    let totals = running.await.unwrap().totals;
    match (totals.acked, totals.retried, totals.dead) {
        (1, 0, 0) => "ack",
        (0, 1, 0) => "retry",
        (0, 0, 1) => "dead letter",
        _ => panic!("{totals:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_guide_says_what_each_policy_does() {
    let mut done = BTreeMap::new();
    for policy in AckPolicy::ALL {
        let mut row = Vec::new();
        for ending in ENDINGS {
            row.push(outcome(policy, ending).await);
        }
        done.insert(format!("`{policy}`"), row);
    }
    let written = table("policies").into_iter().map(|row| (row[0].to_owned(), row[1..].to_vec()));
    assert_eq!(written.collect::<BTreeMap<_, _>>(), done);
}
