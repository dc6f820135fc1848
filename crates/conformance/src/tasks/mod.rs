//! The suite for task stores.
//!
//! As with providers, a store is tested only from outside: through its calls, its queues, and a clock that the harness
//! advances. All tests share one store and run one after another; each has its own types, queues and schedules and
//! leaves nothing live behind. Calls on the whole store (overdue tasks, the outbox) are filtered for the test's own
//! tasks.
//!
//! [`broken`] stores show that the suite can fail: each breaks one rule, and the tests named for the fault must catch
//! it. The work of killed workers is checked afterwards by their journals: see [`journal`].

pub mod broken;
mod cancel;
mod claim;
mod claim_by_id;
mod create;
mod dead_events;
mod deadline;
mod due;
mod finish;
mod fixture;
mod forget;
pub mod journal;
mod lease;
mod list;
mod messages;
mod ordering;
mod outbox;
mod queue_mode;
mod races;
mod replay;
mod schedules;
mod steps;
mod stranded;
mod transitions;
mod wake_ups;

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use postrider_core::task::{ScheduleStore, TaskRoutes, TaskStore};
use postrider_core::{MessagingError, Provider};

use crate::probe::{Check, Stop, TIME_LIMIT};
use fixture::Fixture;

/// How the suite reaches a task store and advances its clock.
pub trait TaskHarness: Send + Sync {
    /// The store under test.
    type Store: TaskStore + ScheduleStore;
    /// The queues in the same store, the target of [`Post::Here`](postrider_core::task::Post).
    type Queue: Provider;

    /// Opens a further connection to the same store: another worker.
    fn open(&self, routes: TaskRoutes) -> impl Future<Output = Result<Self::Store, MessagingError>> + Send;

    /// Opens a further connection to the queues in the same store, which use the same clock.
    fn queue(&self) -> impl Future<Output = Result<Self::Queue, MessagingError>> + Send;

    /// Lets `time` pass on the store's clock.
    fn elapse(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

/// The result of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFinding {
    /// The test's name.
    pub test: &'static str,
    /// What is wrong; `None` when the test passes.
    pub fault: Option<String>,
}

impl fmt::Display for TaskFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.test, self.fault.as_deref().unwrap_or("holds"))
    }
}

macro_rules! tests {
    ($($noun:ident { $($test:ident,)* })*) => {
        /// The names of all tests, in the order in which they run.
        pub const TASK_TESTS: &[&str] = &[$($(stringify!($test),)*)*];

        async fn run<H: TaskHarness>(fixture: &Fixture<'_, H>, test: &'static str) -> Check {
            // Boxed: one future of all tests would be large.
            match test {
                $($(stringify!($test) => Box::pin($noun::$test(fixture)).await,)*)*
                unknown => Err(Stop::NotExercised(format!("unknown test {unknown}"))),
            }
        }
    };
}

tests! {
    transitions {
        every_allowed_transition_happens_and_no_other,
    }
    create {
        a_new_task_is_read_back_as_it_was_made,
        the_number_of_attempts_has_one_answer,
        five_hundred_tasks_are_made_in_one_call,
        a_task_that_is_refused_fails_alone,
        an_id_that_is_taken_is_refused_alone,
        a_payload_is_as_large_as_the_store_allows_and_no_larger,
        an_idempotency_key_returns_the_first_task_in_any_state,
        an_idempotency_key_is_taken_within_a_batch,
        concurrent_creations_with_one_key_make_one_task,
    }
    due {
        a_task_is_not_claimed_before_its_time,
        an_empty_claim_returns_the_next_due_time,
        a_task_that_waits_for_its_time_can_be_run_now,
        a_task_that_is_due_or_done_is_not_changed_by_running_it_now,
    }
    claim {
        a_claim_returns_all_that_a_worker_needs,
        every_claim_goes_to_one_worker,
        only_requested_types_are_claimed,
        a_claim_returns_at_most_its_maximum,
        urgent_tasks_go_first,
        the_least_urgent_is_not_starved,
        attempts_are_ended_and_claimed_in_one_call,
        a_lease_without_length_is_refused,
    }
    claim_by_id {
        a_task_is_claimed_by_its_id,
        a_task_that_is_not_due_reports_the_time_left,
        held_ended_or_blocked_tasks_are_not_claimed_by_id,
        an_id_twice_in_a_call_is_claimed_once,
        concurrent_claims_of_an_id_yield_one_worker,
    }
    finish {
        a_task_that_succeeded_keeps_its_result,
        a_failed_attempt_is_followed_by_another_after_its_delay,
        a_task_dies_with_a_reason,
        the_last_attempt_is_final_whatever_its_outcome,
        attempts_are_counted_and_their_history_is_whole,
        a_released_task_is_back_at_once_and_uncounted,
        a_lease_ends_once_within_a_batch,
        many_attempts_end_in_one_call_with_their_own_outcomes,
    }
    lease {
        a_stale_token_changes_nothing,
        every_lease_of_a_batch_has_its_own_answer,
        a_lease_that_ran_out_may_still_end_its_attempt,
        a_heartbeat_sets_the_end_of_a_lease,
        a_heartbeat_keeps_progress,
        only_leases_that_ran_out_are_lost,
        a_lost_attempt_is_followed_by_another,
        a_lease_that_was_renewed_or_ended_is_not_reaped,
        a_lost_last_attempt_is_a_death,
    }
    deadline {
        a_task_is_not_claimed_past_its_deadline,
        tasks_die_at_their_deadline_running_or_not,
        a_call_expires_at_most_its_limit,
    }
    cancel {
        a_task_can_be_canceled_in_every_state_but_its_last,
        the_worker_of_a_canceled_task_has_lost_it,
        a_task_that_has_ended_is_not_canceled,
    }
    replay {
        a_dead_task_can_be_replayed,
        a_task_that_is_not_dead_is_not_replayed,
        a_replayed_task_can_die_and_be_replayed_again,
        the_payload_of_a_dead_task_can_be_edited,
    }
    ordering {
        tasks_of_a_key_run_one_at_a_time_and_in_order,
        a_key_is_held_over_retries_and_releases,
        a_key_waits_for_the_time_of_its_first_task,
        every_death_frees_the_key,
        a_canceled_first_task_frees_the_key,
        a_canceled_task_in_the_middle_is_passed_over,
        a_replayed_task_joins_the_end_of_its_key,
        other_keys_and_tasks_without_a_key_are_not_blocked,
        an_ended_key_is_free_for_a_claim_by_id,
        a_refused_or_repeated_task_takes_no_place_in_its_key,
        concurrent_creators_share_a_key,
        concurrent_workers_never_share_a_key,
    }
    races {
        concurrent_ends_of_an_attempt_take_effect_once,
        a_key_always_makes_progress,
    }
    queue_mode {
        a_due_task_is_sent_to_its_queue_once,
        a_call_sends_at_most_its_limit,
        concurrent_enqueuers_send_each_task_once,
        a_retried_task_has_a_message_at_its_due_time,
        every_pending_task_is_sent,
    }
    outbox {
        tasks_for_other_stores_wait_in_the_outbox,
        taken_outbox_rows_are_exclusive_until_their_lease_ends,
        the_outbox_returns_the_oldest_first_up_to_its_limit,
        a_retry_waits_in_the_outbox_for_its_time,
        concurrent_takers_share_no_message,
    }
    dead_events {
        every_dead_task_sends_one_event_to_a_queue_in_the_store,
        every_dead_task_sends_one_event_through_the_outbox,
        many_tasks_dying_in_one_call_send_an_event_each,
        no_event_is_sent_without_a_queue_for_events,
    }
    stranded {
        stranded_tasks_are_sent_again_once_after_the_grace,
        other_types_are_not_sent_again,
        outbox_rows_are_counted_with_stranded_tasks,
    }
    list {
        pages_cover_everything_once_newest_first,
        a_listing_continues_after_many_tasks_that_do_not_match,
        tasks_are_found_by_their_state,
        tasks_are_found_by_their_attributes,
        tasks_are_found_by_patterns_of_their_types,
        tasks_are_found_by_how_they_died,
        tasks_are_found_by_when_they_were_made,
        tasks_are_counted_by_type_and_state,
    }
    forget {
        only_old_ended_tasks_are_forgotten_with_their_history,
    }
    wake_ups {
        every_claimable_task_wakes_its_workers,
        every_task_to_send_wakes_the_enqueuer,
    }
    schedules {
        a_schedule_is_read_back_as_it_was_put,
        schedules_are_listed_by_name_and_deleted,
        a_schedule_is_due_at_its_time_and_not_while_it_is_paused,
        a_schedule_is_paused_and_resumed_by_its_version,
        a_schedule_that_fires_makes_its_tasks_and_moves_on,
        a_schedule_fires_once_for_a_version,
    }
}

/// Time limit of one test: more than all its calls take.
const TEST_LIMIT: Duration = Duration::from_secs(8 * TIME_LIMIT.as_secs());

/// Runs every test.
pub async fn exercise_tasks<H: TaskHarness>(harness: &H) -> Vec<TaskFinding> {
    let mut findings = Vec::with_capacity(TASK_TESTS.len());
    for test in TASK_TESTS {
        findings.push(find(harness, test).await);
    }
    findings
}

/// Runs the test of that name alone.
pub async fn exercise_task_test<H: TaskHarness>(harness: &H, name: &str) -> TaskFinding {
    match TASK_TESTS.iter().find(|test| **test == name) {
        Some(test) => find(harness, test).await,
        None => TaskFinding { test: "no test", fault: Some(format!("no test is called {name}")) },
    }
}

async fn find<H: TaskHarness>(harness: &H, test: &'static str) -> TaskFinding {
    let fixture = Fixture::new(harness);
    let run = AssertUnwindSafe(run(&fixture, test)).catch_unwind();
    let mut fault = match tokio::time::timeout(TEST_LIMIT, run).await {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(Stop::Violation(fault) | Stop::NotExercised(fault)))) => Some(fault),
        Ok(Err(_)) => Some("a call panicked".to_owned()),
        Err(_) => Some(format!("it did not end within {TEST_LIMIT:?}: a call ignores its deadline")),
    };
    if let Err(error) = fixture.clean_up().await {
        // What a test found is worth more than what it could not clear away.
        fault = fault.or_else(|| Some(format!("what it left could not be removed: {error}")));
    }
    TaskFinding { test, fault }
}
