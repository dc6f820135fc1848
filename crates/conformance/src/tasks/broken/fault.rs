//! The ways in which a store of tasks can be broken.

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
    /// Cancels what has ended.
    CancelsTheEnded, every_allowed_transition_happens_and_no_other;
    /// Forgets the tags of a task.
    LosesTags, a_new_task_is_read_back_as_it_was_made
        | tasks_are_found_by_what_they_were_made_with;
    /// Tries a task once more than was allowed.
    AllowsOneMore, the_number_of_attempts_has_one_answer
        | the_last_attempt_is_the_last_whatever_its_worker_asks_for;
    /// Tells a worker that its last attempt will be tried again.
    HidesSpentAttempts, the_last_attempt_is_the_last_whatever_its_worker_asks_for;
    /// Makes tasks in the opposite of their order.
    ReversesBatches, five_hundred_tasks_are_made_in_one_call;
    /// Fails a whole batch for one bad row.
    FailsWholeBatches, a_task_that_is_refused_fails_alone;
    /// Takes a task with an id that is taken for the first.
    AcceptsTakenIds, an_id_that_is_taken_is_refused_alone;
    /// Says that it accepts less than it does.
    UnderstatesItsLimit, a_payload_is_as_large_as_the_store_allows_and_no_larger;
    /// Makes a second task for a key that is taken.
    IgnoresIdempotencyKeys, an_idempotency_key_is_taken_within_a_batch;
    /// Makes a second task for a key whose task has ended.
    FreesKeysOfTheEnded, an_idempotency_key_answers_the_first_task_whatever_became_of_it;
    /// Looks whether a key is taken before it makes the task, and not while it does.
    LooksBeforeItMakes, concurrent_creations_with_one_key_make_one_task;
    /// Lets tasks be claimed before their time.
    ClaimsEarly, a_task_is_not_claimed_before_its_time;
    /// Does not say when something will be due.
    ForgetsNextDue, a_claim_of_nothing_tells_when_to_come_again;
    /// Accepts that a task is wanted now and does nothing.
    RunsNothingNow, a_task_that_waits_for_its_time_can_be_run_now;
    /// Changes what is due already when it is wanted now.
    MovesWhatIsDue, a_task_that_is_due_or_done_is_not_changed_by_running_it_now;
    /// Does not tell a worker how long it has.
    HidesDeadlines, a_claim_tells_a_worker_all_that_it_needs;
    /// Hands a claimed task to the next who asks.
    ClaimsTwice, every_claim_goes_to_one_worker;
    /// Hands out whatever is due.
    ClaimsEveryType, types_that_were_not_asked_for_are_not_claimed;
    /// Hands out one more than it was asked for.
    ClaimsTooMany, a_claim_brings_no_more_than_was_asked_for;
    /// Hands tasks out in the order in which they were made.
    IgnoresPriorities, urgent_tasks_go_first;
    /// Hands out the most urgent, always.
    StarvesTheLeastUrgent, the_least_urgent_is_not_starved;
    /// Claims before it ends what was to be ended.
    ClaimsBeforeItEnds, attempts_are_ended_and_claimed_in_one_call;
    /// Takes a lease of no length for a short one.
    AcceptsEmptyLeases, a_lease_without_length_is_refused;
    /// Forgets who has claimed a task by its id.
    ForgetsWhoClaimed, a_task_is_claimed_by_its_id;
    /// Hands out an id's task before its time.
    ClaimsEarlyById, a_task_that_is_not_due_tells_for_how_long;
    /// Hands out an id's task although somebody has it.
    ClaimsWhatIsHeld, what_is_held_or_over_or_waits_is_not_claimed_by_its_id
        | concurrent_claims_of_an_id_yield_one_worker;
    /// Answers an id as it answered it before in the same call.
    AnswersIdsAlike, an_id_twice_in_a_call_is_claimed_once;
    /// Forgets what a task brought.
    LosesResults, a_task_that_succeeded_keeps_its_result;
    /// Brings a retry back at once: a hot loop.
    RetriesAtOnce, a_failed_attempt_is_followed_by_another_after_its_delay;
    /// Takes every death for the same.
    ForgetsReasons, a_task_dies_with_a_reason;
    /// Forgets why attempts failed.
    ForgetsErrors, attempts_are_counted_and_their_history_is_whole;
    /// Knows the last attempt and no other.
    ForgetsFailures, a_replayed_task_can_die_and_be_replayed_again;
    /// Counts what was given back as an attempt.
    ChargesReleases, what_was_released_is_back_at_once_and_uncounted;
    /// Answers the second end of a lease as the first.
    EndsTwice, a_lease_ends_once_within_a_batch;
    /// Ends only the first rows of a large batch, and says that it ended all.
    EndsTheFirstHundred, many_attempts_end_in_one_call_each_in_its_way;
    /// Takes the word of whoever names the task.
    IgnoresTokens, a_stale_token_changes_nothing;
    /// Mixes up the answers of a batch.
    MixesAnswersUp, every_lease_of_a_batch_has_its_own_answer;
    /// Says of every lease that it is held.
    SaysAllIsHeld, the_worker_of_a_canceled_task_has_lost_it;
    /// Refuses work that was done late, although nobody else does it.
    RefusesLateEnds, a_lease_that_ran_out_may_still_end_its_attempt;
    /// Adds a heartbeat's time to what is left.
    AddsHeartbeats, a_heartbeat_sets_the_end_of_a_lease;
    /// Forgets how far a task has come.
    ForgetsProgress, a_heartbeat_keeps_progress;
    /// Takes workers for lost that are alive.
    LosesTheLiving, only_leases_that_ran_out_are_lost;
    /// Knows nothing of lost workers' attempts afterwards.
    ReapsAsFailures, a_lost_attempt_is_followed_by_another;
    /// Reaps a lease that was renewed after it was seen to be lost.
    ReapsTheRenewed, a_lease_that_was_renewed_or_ended_is_not_reaped;
    /// Tries once more when the worker of the last attempt was lost.
    RevivesTheLost, a_lost_last_attempt_is_a_death;
    /// Lets tasks be claimed that are too late.
    IgnoresDeadlines, a_task_is_not_claimed_past_its_deadline;
    /// Lets nothing die of its deadline.
    ExpiresNothing, tasks_die_at_their_deadline_worked_on_or_not;
    /// Lets everything die at once that is too late.
    ExpiresTooMany, no_more_tasks_die_at_once_than_was_asked_for;
    /// Cancels what is PENDING and nothing else.
    CancelsOnlyPending, a_task_can_be_canceled_in_every_state_but_its_last;
    /// Answers every cancel as if it had done something.
    AcceptsEveryCancel, a_task_that_has_ended_is_not_canceled;
    /// Counts a replayed task's attempts on from where they were.
    ReplaysWithCounts, a_dead_task_can_be_replayed;
    /// Answers every replay as if it had done something.
    AcceptsEveryReplay, a_task_that_is_not_dead_is_not_replayed;
    /// Keeps no payload but the last.
    ForgetsRevisions, the_payload_of_a_dead_task_can_be_edited;
    /// Hands out tasks of one key side by side.
    IgnoresOrderingKeys, tasks_of_a_key_run_one_at_a_time_and_in_order
        | a_key_is_held_over_retries_and_releases
        | a_replayed_task_joins_the_end_of_its_key
        | an_ended_key_is_free_for_a_claim_by_id
        | a_refused_or_repeated_task_takes_no_turn
        | concurrent_creators_share_a_key;
    /// Orders those tasks of a key that are due.
    PassesOverTheLater, a_key_waits_for_the_time_of_its_first_task;
    /// Keeps the key of a task that was canceled.
    KeepsKeysOfTheCanceled, a_canceled_first_task_frees_the_key
        | a_canceled_task_in_the_middle_is_passed_over;
    /// Keeps the key of a task that died.
    KeepsKeysOfTheDead, every_death_frees_the_key;
    /// Remembers keys, and does not go by them.
    OnlyRemembersKeys, concurrent_workers_never_share_a_key;
    /// Orders tasks of a key over all types.
    SharesKeysAmongTypes, other_keys_and_tasks_without_one_go_on;
    /// Answers every end as if it had done something.
    AcceptsEveryEnd, of_those_who_end_an_attempt_at_once_one_does;
    /// Forgets, now and then, whose turn it is.
    ForgetsWhoIsNext, a_key_never_stands_still;
    /// Sends a task on its way twice.
    SendsTwice, a_due_task_is_sent_to_its_queue_once
        | concurrent_enqueuers_send_each_task_once;
    /// Sends a task to another queue than its own.
    SendsToAnotherQueue, no_more_tasks_are_sent_than_was_asked_for
        | what_is_sent_elsewhere_waits_in_the_outbox;
    /// Brings a task back without a message that would deliver it.
    RetriesWithoutMessage, what_is_tried_again_has_a_message_for_its_time;
    /// Never sends again what was replayed.
    ReplaysWithoutMessage, whatever_becomes_pending_is_sent;
    /// Gives a message to a second taker while the first sends it.
    GivesTakenMessages, what_was_taken_is_nobody_elses_until_its_lease_is_over
        | concurrent_takers_share_no_message;
    /// Takes a message for sent when it was taken.
    ForgetsWhatItGave, what_was_taken_is_nobody_elses_until_its_lease_is_over;
    /// Takes the word of a sender who is late.
    BelievesLateSenders, what_was_taken_is_nobody_elses_until_its_lease_is_over;
    /// Gives the youngest message first.
    GivesTheYoungestFirst, the_outbox_gives_the_oldest_first_and_no_more_than_asked;
    /// Gives a retry's message before its time.
    GivesEarly, a_retry_waits_in_the_outbox_for_its_time;
    /// Tells nobody of deaths.
    DropsDeadEvents, every_death_is_told_once_to_a_queue_in_the_store
        | many_deaths_in_one_call_are_each_told;
    /// Tells nobody of deaths whose worker was lost.
    DropsEventsOfTheLost, every_death_is_told_once_through_the_outbox;
    /// Tells nobody of deaths by deadline.
    DropsEventsOfTheOverdue, every_death_is_told_once_to_a_queue_in_the_store;
    /// Tells deaths although nobody is to be told.
    TellsDeathsAnyway, no_death_is_told_where_nobody_listens;
    /// Sends again what was sent a moment ago.
    IgnoresTheGrace, what_is_stranded_is_sent_again_once_after_the_grace;
    /// Sends every type again.
    ResendsEveryType, other_types_are_not_sent_again;
    /// Counts nothing of what is still in the outbox.
    HidesTheOutbox, what_waits_in_the_outbox_is_told_with_what_is_stranded;
    /// Leaves a task out at the end of each page.
    SkipsTasks, pages_cover_everything_once_newest_first;
    /// Takes a page without tasks for the last.
    StopsAtEmptyPages, a_listing_goes_on_behind_many_that_are_not_meant;
    /// Lists tasks in every state.
    ListsEveryState, tasks_are_found_by_their_state;
    /// Lists tasks of types that no pattern means.
    ListsBesidePatterns, tasks_are_found_by_patterns_of_their_types;
    /// Takes the underscore of an error for any letter.
    ReadsPatterns, tasks_are_found_by_how_they_died;
    /// Takes the time before which tasks were made for the last one.
    IncludesTheEnd, tasks_are_found_by_when_they_were_made;
    /// Counts no task that died.
    CountsNoDeaths, tasks_are_counted_by_type_and_state;
    /// Forgets what has just ended.
    ForgetsTheYoung, old_ends_are_forgotten_with_their_history_and_no_others;
    /// Wakes nobody.
    WakesNobody, whatever_can_be_claimed_wakes_its_workers;
    /// Wakes those who claim and not those who send.
    WakesNoEnqueuer, whatever_is_to_be_sent_wakes_the_enqueuer;
    /// Forgets what a schedule's tasks are like.
    ForgetsTemplates, a_schedule_is_read_back_as_it_was_put;
    /// Accepts that a schedule is deleted and does nothing.
    DeletesNothing, schedules_are_listed_by_name_and_deleted;
    /// Tells schedules as due that are paused.
    TellsThePaused, a_schedule_is_due_at_its_time_and_not_while_it_is_paused;
    /// Fires a schedule that is paused.
    FiresThePaused, a_schedule_is_paused_and_resumed_by_its_version;
    /// Fires and does not move on.
    FiresInPlace, a_schedule_that_fires_makes_its_tasks_and_moves_on;
    /// Fires a schedule whatever version was seen.
    FiresEveryVersion, a_schedule_fires_once_for_a_version;
}
