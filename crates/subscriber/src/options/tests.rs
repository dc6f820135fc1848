use std::num::NonZeroU32;

use postrider_core::{MemoryStore, MessagingService};

use super::*;

fn capabilities() -> Capabilities {
    MemoryStore::new().open().capabilities().clone()
}

#[tokio::test]
async fn the_defaults_are_allowed() {
    let plan = SubscriberOptions::default().plan(1, &capabilities()).unwrap();
    assert_eq!((plan.capacity, plan.max_deliveries), (24, 26));
    assert_eq!(plan.release_stuck_timeout, Duration::from_secs(300));
}

#[tokio::test]
async fn the_capacity_is_rounded_down_and_never_below_the_workers() {
    let capacity = |max_workers, overfetch_factor, at_a_time| {
        let options = SubscriberOptions { max_workers, overfetch_factor, ..SubscriberOptions::default() };
        options.plan(at_a_time, &capabilities()).unwrap().capacity
    };
    assert_eq!(capacity(1, None, 1), 1);
    assert_eq!(capacity(3, None, 1), 4);
    assert_eq!(capacity(3, Some(1.0), 1), 3);
    assert_eq!(capacity(2, None, 10), 30);
}

#[tokio::test]
async fn a_provider_that_counts_releases_is_not_overfetched_from() {
    let charging = capabilities().with(Feature::FreeRelease, Support::refused("it counts them"));
    let plan = SubscriberOptions::default().plan(1, &charging).unwrap();
    assert_eq!(plan.capacity, plan.workers);
    let by_hand = SubscriberOptions { overfetch_factor: Some(2.0), ..SubscriberOptions::default() };
    assert_eq!(by_hand.plan(1, &charging).unwrap().capacity, 32, "but it may be set");
}

#[tokio::test]
async fn the_delivery_limit_leaves_room_for_every_attempt() {
    let limit = |retry_strategy| {
        let options = SubscriberOptions { retry_strategy, ..SubscriberOptions::default() };
        options.plan(1, &capabilities()).unwrap().max_deliveries
    };
    assert_eq!(limit(RetryStrategy::NoRetry), 3);
    assert_eq!(limit(RetryStrategy::default().with_max_attempts(10)), 12);
    assert_eq!(limit(RetryStrategy::default().without_limits()), u32::MAX);
}

#[tokio::test]
async fn a_lower_delivery_limit_limits_the_attempts() {
    let attempts = |max_deliveries, strategy: RetryStrategy| {
        let options = SubscriberOptions { retry_strategy: strategy, max_deliveries, ..SubscriberOptions::default() };
        let plan = options.plan(1, &capabilities()).unwrap();
        (plan.retry_strategy.max_attempts().map(NonZeroU32::get), plan.max_deliveries)
    };
    assert_eq!(attempts(Some(5), RetryStrategy::default()), (Some(5), 5));
    assert_eq!(attempts(Some(30), RetryStrategy::default()), (Some(24), 30));
    assert_eq!(attempts(Some(5), RetryStrategy::default().without_limits()), (None, 5));
    assert_eq!(attempts(Some(5), RetryStrategy::NoRetry), (Some(1), 5));
}

#[test]
fn policies_are_read_by_name() {
    for policy in AckPolicy::ALL {
        assert_eq!(policy.to_string().parse::<AckPolicy>().unwrap(), policy);
    }
}
