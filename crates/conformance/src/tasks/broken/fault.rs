//! The faults of broken task stores.

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident, $($test:ident)|+;)*) => {
        /// One broken promise.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum TaskFault { $($(#[$doc])* $fault,)* }

        impl TaskFault {
            /// Every fault.
            pub const ALL: &[Self] = &[$(Self::$fault,)*];

            /// The tests that must catch it.
            pub const fn caught_by(self) -> &'static [&'static str] {
                match self { $(Self::$fault => &[$(stringify!($test)),+],)* }
            }
        }
    };
}

faults! {
    /// Cancels ended tasks.
    CancelsTheEnded, every_allowed_transition_happens_and_no_other;
    /// Drops the tags of a task.
    LosesTags, a_new_task_is_read_back_as_it_was_made
        | tasks_are_found_by_their_attributes;
    /// Allows one attempt more than `max_attempts`.
    AllowsOneMore, the_number_of_attempts_has_one_answer
        | the_last_attempt_is_final_whatever_its_outcome;
    /// Reports a failed last attempt as one that will be retried.
    HidesSpentAttempts, the_last_attempt_is_final_whatever_its_outcome;
    /// Makes the tasks of a batch in reverse order.
    ReversesBatches, five_hundred_tasks_are_made_in_one_call;
    /// Fails a whole batch for one bad row.
    FailsWholeBatches, a_task_that_is_refused_fails_alone;
    /// Returns the existing task for an id that is taken.
    AcceptsTakenIds, an_id_that_is_taken_is_refused_alone;
    /// Declares a lower payload limit than it has.
    UnderstatesItsLimit, a_payload_is_as_large_as_the_store_allows_and_no_larger;
    /// Makes a second task for an idempotency key that is taken.
    IgnoresIdempotencyKeys, an_idempotency_key_is_taken_within_a_batch;
    /// Makes a second task for an idempotency key whose task has ended.
    FreesKeysOfTheEnded, an_idempotency_key_returns_the_first_task_in_any_state;
    /// Checks the idempotency key before the insert instead of in it.
    LooksBeforeItMakes, concurrent_creations_with_one_key_make_one_task;
    /// Lets tasks be claimed before they are due.
    ClaimsEarly, a_task_is_not_claimed_before_its_time;
    /// Does not return the next due time.
    ForgetsNextDue, an_empty_claim_returns_the_next_due_time;
    /// Accepts "run now" and does nothing.
    RunsNothingNow, a_task_that_waits_for_its_time_can_be_run_now;
    /// Changes the due time of a due task on "run now".
    MovesWhatIsDue, a_task_that_is_due_or_done_is_not_changed_by_running_it_now;
    /// Does not return the time until the deadline.
    HidesDeadlines, a_claim_returns_all_that_a_worker_needs;
    /// Lets a second worker claim a claimed task.
    ClaimsTwice, every_claim_goes_to_one_worker;
    /// Claims tasks of every type.
    ClaimsEveryType, only_requested_types_are_claimed;
    /// Claims one task more than requested.
    ClaimsTooMany, a_claim_returns_at_most_its_maximum;
    /// Ignores priorities.
    IgnoresPriorities, urgent_tasks_go_first;
    /// Always claims the most urgent task, so that others starve.
    StarvesTheLeastUrgent, the_least_urgent_is_not_starved;
    /// Claims before it ends the finished attempts of the same call.
    ClaimsBeforeItEnds, attempts_are_ended_and_claimed_in_one_call;
    /// Accepts a lease of zero length.
    AcceptsEmptyLeases, a_lease_without_length_is_refused;
    /// Drops the worker of a claim by id.
    ForgetsWhoClaimed, a_task_is_claimed_by_its_id;
    /// Claims a task by id before it is due.
    ClaimsEarlyById, a_task_that_is_not_due_reports_the_time_left;
    /// Claims a leased task by id.
    ClaimsWhatIsHeld, held_ended_or_blocked_tasks_are_not_claimed_by_id
        | concurrent_claims_of_an_id_yield_one_worker;
    /// Returns the same claim for every occurrence of an id in a call.
    AnswersIdsAlike, an_id_twice_in_a_call_is_claimed_once;
    /// Drops the result of a task.
    LosesResults, a_task_that_succeeded_keeps_its_result;
    /// Makes a retry due at once: a hot loop.
    RetriesAtOnce, a_failed_attempt_is_followed_by_another_after_its_delay;
    /// Records the same reason for every dead task.
    ForgetsReasons, a_task_dies_with_a_reason;
    /// Drops the errors of attempts.
    ForgetsErrors, attempts_are_counted_and_their_history_is_whole;
    /// Keeps only the last attempt.
    ForgetsFailures, a_replayed_task_can_die_and_be_replayed_again;
    /// Counts a released attempt.
    ChargesReleases, a_released_task_is_back_at_once_and_uncounted;
    /// Accepts the second end of a lease.
    EndsTwice, a_lease_ends_once_within_a_batch;
    /// Ends only the first rows of a large batch and reports all as ended.
    EndsTheFirstHundred, many_attempts_end_in_one_call_with_their_own_outcomes;
    /// Checks the task id without the lease token.
    IgnoresTokens, a_stale_token_changes_nothing;
    /// Mixes up the answers of a batch.
    MixesAnswersUp, every_lease_of_a_batch_has_its_own_answer;
    /// Reports every lease as held.
    SaysAllIsHeld, the_worker_of_a_canceled_task_has_lost_it;
    /// Refuses a late end although no other worker has claimed the task.
    RefusesLateEnds, a_lease_that_ran_out_may_still_end_its_attempt;
    /// Adds a heartbeat's time to the remaining time.
    AddsHeartbeats, a_heartbeat_sets_the_end_of_a_lease;
    /// Drops the progress of a task.
    ForgetsProgress, a_heartbeat_keeps_progress;
    /// Reports live leases as lost.
    LosesTheLiving, only_leases_that_ran_out_are_lost;
    /// Records lost attempts as failed ones.
    ReapsAsFailures, a_lost_attempt_is_followed_by_another;
    /// Reaps a lease that was renewed after it was listed as lost.
    ReapsTheRenewed, a_lease_that_was_renewed_or_ended_is_not_reaped;
    /// Retries after a lost last attempt.
    RevivesTheLost, a_lost_last_attempt_is_a_death;
    /// Lets tasks be claimed past their deadline.
    IgnoresDeadlines, a_task_is_not_claimed_past_its_deadline;
    /// Never expires overdue tasks.
    ExpiresNothing, tasks_die_at_their_deadline_running_or_not;
    /// Expires more overdue tasks than requested.
    ExpiresTooMany, a_call_expires_at_most_its_limit;
    /// Cancels only PENDING tasks.
    CancelsOnlyPending, a_task_can_be_canceled_in_every_state_but_its_last;
    /// Reports every cancel as done.
    AcceptsEveryCancel, a_task_that_has_ended_is_not_canceled;
    /// Does not reset the attempt count of a replayed task.
    ReplaysWithCounts, a_dead_task_can_be_replayed;
    /// Reports every replay as done.
    AcceptsEveryReplay, a_task_that_is_not_dead_is_not_replayed;
    /// Keeps only the last payload.
    ForgetsRevisions, the_payload_of_a_dead_task_can_be_edited;
    /// Lets tasks of one key run concurrently.
    IgnoresOrderingKeys, tasks_of_a_key_run_one_at_a_time_and_in_order
        | a_key_is_held_over_retries_and_releases
        | a_replayed_task_joins_the_end_of_its_key
        | an_ended_key_is_free_for_a_claim_by_id
        | a_refused_or_repeated_task_takes_no_place_in_its_key
        | concurrent_creators_share_a_key;
    /// Orders only the due tasks of a key.
    PassesOverTheLater, a_key_waits_for_the_time_of_its_first_task;
    /// Lets a canceled task block its key.
    KeepsKeysOfTheCanceled, a_canceled_first_task_frees_the_key
        | a_canceled_task_in_the_middle_is_passed_over;
    /// Lets a dead task block its key.
    KeepsKeysOfTheDead, every_death_frees_the_key;
    /// Stores ordering keys and ignores them.
    OnlyRemembersKeys, concurrent_workers_never_share_a_key;
    /// Orders tasks of a key over all types.
    SharesKeysAmongTypes, other_keys_and_tasks_without_a_key_are_not_blocked;
    /// Reports every end as done.
    AcceptsEveryEnd, concurrent_ends_of_an_attempt_take_effect_once;
    /// Sometimes does not unblock the next task of a key.
    ForgetsWhoIsNext, a_key_always_makes_progress;
    /// Sends a task twice.
    SendsTwice, a_due_task_is_sent_to_its_queue_once
        | concurrent_enqueuers_send_each_task_once;
    /// Sends a task to the wrong queue.
    SendsToAnotherQueue, a_call_sends_at_most_its_limit
        | tasks_for_other_stores_wait_in_the_outbox;
    /// Retries a task without a message.
    RetriesWithoutMessage, a_retried_task_has_a_message_at_its_due_time;
    /// Replays a task without a message.
    ReplaysWithoutMessage, every_pending_task_is_sent;
    /// Gives an outbox row to a second sender while the first has it.
    GivesTakenMessages, taken_outbox_rows_are_exclusive_until_their_lease_ends
        | concurrent_takers_share_no_message;
    /// Treats an outbox row as sent when it is taken.
    ForgetsWhatItGave, taken_outbox_rows_are_exclusive_until_their_lease_ends;
    /// Accepts the confirmation of a late sender.
    BelievesLateSenders, taken_outbox_rows_are_exclusive_until_their_lease_ends;
    /// Returns the youngest outbox row first.
    GivesTheYoungestFirst, the_outbox_returns_the_oldest_first_up_to_its_limit;
    /// Returns a retry's outbox row before it is due.
    GivesEarly, a_retry_waits_in_the_outbox_for_its_time;
    /// Sends no events of dead tasks.
    DropsDeadEvents, every_dead_task_sends_one_event_to_a_queue_in_the_store
        | many_tasks_dying_in_one_call_send_an_event_each;
    /// Sends no event for a task that died of a lost lease.
    DropsEventsOfTheLost, every_dead_task_sends_one_event_through_the_outbox;
    /// Sends no event for a task that died at its deadline.
    DropsEventsOfTheOverdue, every_dead_task_sends_one_event_to_a_queue_in_the_store;
    /// Sends events although no queue is configured for them.
    TellsDeathsAnyway, no_event_is_sent_without_a_queue_for_events;
    /// Sends tasks again within the grace.
    IgnoresTheGrace, stranded_tasks_are_sent_again_once_after_the_grace;
    /// Sends tasks of every type again.
    ResendsEveryType, other_types_are_not_sent_again;
    /// Does not count outbox rows with the stranded tasks.
    HidesTheOutbox, outbox_rows_are_counted_with_stranded_tasks;
    /// Skips a task at the end of each page.
    SkipsTasks, pages_cover_everything_once_newest_first;
    /// Treats an empty page as the last.
    StopsAtEmptyPages, a_listing_continues_after_many_tasks_that_do_not_match;
    /// Lists tasks in every state.
    ListsEveryState, tasks_are_found_by_their_state;
    /// Lists tasks of types that match no pattern.
    ListsBesidePatterns, tasks_are_found_by_patterns_of_their_types;
    /// Treats an underscore in an error search as a wildcard.
    ReadsPatterns, tasks_are_found_by_how_they_died;
    /// Includes the exclusive upper bound of the creation time.
    IncludesTheEnd, tasks_are_found_by_when_they_were_made;
    /// Does not count dead tasks.
    CountsNoDeaths, tasks_are_counted_by_type_and_state;
    /// Forgets tasks that have just ended.
    ForgetsTheYoung, only_old_ended_tasks_are_forgotten_with_their_history;
    /// Sends no hints.
    WakesNobody, every_claimable_task_wakes_its_workers;
    /// Sends hints to workers and none to the enqueuer.
    WakesNoEnqueuer, every_task_to_send_wakes_the_enqueuer;
    /// Drops the task template of a schedule.
    ForgetsTemplates, a_schedule_is_read_back_as_it_was_put;
    /// Accepts the deletion of a schedule and does nothing.
    DeletesNothing, schedules_are_listed_by_name_and_deleted;
    /// Lists paused schedules as due.
    TellsThePaused, a_schedule_is_due_at_its_time_and_not_while_it_is_paused;
    /// Fires a paused schedule.
    FiresThePaused, a_schedule_is_paused_and_resumed_by_its_version;
    /// Fires a schedule without advancing it.
    FiresInPlace, a_schedule_that_fires_makes_its_tasks_and_moves_on;
    /// Fires a schedule of any version.
    FiresEveryVersion, a_schedule_fires_once_for_a_version;
}
