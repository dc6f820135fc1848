//! The suite that judges every store of tasks.
//!
//! As with providers, a store is seen only from outside: through its calls, the queues in it, and a clock that can be
//! moved. All tests share one store and run one after another; each has types, queues and schedules of its own, and
//! leaves nothing live behind. What is asked of the whole store (who is overdue, what waits in the outbox) is looked
//! through for what is the test's own.
//!
//! That the suite can accuse at all is shown by [`broken`] stores: each breaks one rule, and the test that is named for
//! it must catch it. What many workers did while they were killed is judged afterwards, by what they wrote down: see
//! [`journal`].

mod bench;
pub mod broken;
mod cancel;
mod claim;
mod claim_by_id;
mod create;
mod dead_events;
mod deadline;
mod due;
mod finish;
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

use crate::probe::{Check, PATIENCE, Stop};
use bench::Bench;

/// How the suite reaches a store of tasks, and lets its time pass.
pub trait TaskHarness: Send + Sync {
    /// The store under test.
    type Store: TaskStore + ScheduleStore;
    /// The queues in the same store, where messages go that are sent with [`Post::Here`](postrider_core::task::Post).
    type Queue: Provider;

    /// Opens one more connection to the same store: another worker.
    fn open(&self, routes: TaskRoutes) -> impl Future<Output = Result<Self::Store, MessagingError>> + Send;

    /// Opens one more connection to the queues in the same store. They go by the same clock.
    fn queue(&self) -> impl Future<Output = Result<Self::Queue, MessagingError>> + Send;

    /// Lets that much time pass by the store's clock.
    fn elapse(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

/// What a test found: `None` when the store behaves, else what it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFinding {
    /// The test's name.
    pub test: &'static str,
    /// What is wrong.
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

        async fn run<H: TaskHarness>(bench: &Bench<'_, H>, test: &'static str) -> Check {
            // In boxes: the futures of all tests in one would be large.
            match test {
                $($(stringify!($test) => Box::pin($noun::$test(bench)).await,)*)*
                unknown => Err(Stop::NotExercised(format!("there is no test {unknown}"))),
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
        an_idempotency_key_answers_the_first_task_whatever_became_of_it,
        an_idempotency_key_is_taken_within_a_batch,
        concurrent_creations_with_one_key_make_one_task,
    }
    due {
        a_task_is_not_claimed_before_its_time,
        a_claim_of_nothing_tells_when_to_come_again,
        a_task_that_waits_for_its_time_can_be_run_now,
        a_task_that_is_due_or_done_is_not_changed_by_running_it_now,
    }
    claim {
        a_claim_tells_a_worker_all_that_it_needs,
        every_claim_goes_to_one_worker,
        types_that_were_not_asked_for_are_not_claimed,
        a_claim_brings_no_more_than_was_asked_for,
        urgent_tasks_go_first,
        the_least_urgent_is_not_starved,
        attempts_are_ended_and_claimed_in_one_call,
        a_lease_without_length_is_refused,
    }
    claim_by_id {
        a_task_is_claimed_by_its_id,
        a_task_that_is_not_due_tells_for_how_long,
        what_is_held_or_over_or_waits_is_not_claimed_by_its_id,
        an_id_twice_in_a_call_is_claimed_once,
        concurrent_claims_of_an_id_yield_one_worker,
    }
    finish {
        a_task_that_succeeded_keeps_its_result,
        a_failed_attempt_is_followed_by_another_after_its_delay,
        a_task_dies_with_a_reason,
        the_last_attempt_is_the_last_whatever_its_worker_asks_for,
        attempts_are_counted_and_their_history_is_whole,
        what_was_released_is_back_at_once_and_uncounted,
        a_lease_ends_once_within_a_batch,
        many_attempts_end_in_one_call_each_in_its_way,
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
        tasks_die_at_their_deadline_worked_on_or_not,
        no_more_tasks_die_at_once_than_was_asked_for,
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
        other_keys_and_tasks_without_one_go_on,
        an_ended_key_is_free_for_a_claim_by_id,
        a_refused_or_repeated_task_takes_no_turn,
        concurrent_creators_share_a_key,
        concurrent_workers_never_share_a_key,
    }
    races {
        of_those_who_end_an_attempt_at_once_one_does,
        a_key_never_stands_still,
    }
    queue_mode {
        a_due_task_is_sent_to_its_queue_once,
        no_more_tasks_are_sent_than_was_asked_for,
        concurrent_enqueuers_send_each_task_once,
        what_is_tried_again_has_a_message_for_its_time,
        whatever_becomes_pending_is_sent,
    }
    outbox {
        what_is_sent_elsewhere_waits_in_the_outbox,
        what_was_taken_is_nobody_elses_until_its_lease_is_over,
        the_outbox_gives_the_oldest_first_and_no_more_than_asked,
        a_retry_waits_in_the_outbox_for_its_time,
        concurrent_takers_share_no_message,
    }
    dead_events {
        every_death_is_told_once_to_a_queue_in_the_store,
        every_death_is_told_once_through_the_outbox,
        many_deaths_in_one_call_are_each_told,
        no_death_is_told_where_nobody_listens,
    }
    stranded {
        what_is_stranded_is_sent_again_once_after_the_grace,
        other_types_are_not_sent_again,
        what_waits_in_the_outbox_is_told_with_what_is_stranded,
    }
    list {
        pages_cover_everything_once_newest_first,
        a_listing_goes_on_behind_many_that_are_not_meant,
        tasks_are_found_by_their_state,
        tasks_are_found_by_what_they_were_made_with,
        tasks_are_found_by_patterns_of_their_types,
        tasks_are_found_by_how_they_died,
        tasks_are_found_by_when_they_were_made,
        tasks_are_counted_by_type_and_state,
    }
    forget {
        old_ends_are_forgotten_with_their_history_and_no_others,
    }
    wake_ups {
        whatever_can_be_claimed_wakes_its_workers,
        whatever_is_to_be_sent_wakes_the_enqueuer,
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

/// A test that has not ended by then will not end: no test makes so many calls that are all slow.
const TEST_LIMIT: Duration = Duration::from_secs(8 * PATIENCE.as_secs());

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
    let bench = Bench::new(harness);
    let run = AssertUnwindSafe(run(&bench, test)).catch_unwind();
    let mut fault = match tokio::time::timeout(TEST_LIMIT, run).await {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(Stop::Violation(fault) | Stop::NotExercised(fault)))) => Some(fault),
        Ok(Err(_)) => Some("a call panicked".to_owned()),
        Err(_) => Some(format!("it did not end within {TEST_LIMIT:?}: a call ignores its deadline")),
    };
    if let Err(error) = bench.clean_up().await {
        // What a test found is worth more than what it could not clear away.
        fault = fault.or_else(|| Some(format!("what it left could not be removed: {error}")));
    }
    TaskFinding { test, fault }
}
