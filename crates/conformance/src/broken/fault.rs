//! The faults of broken providers.

use crate::law::Rule;

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident, $rule:ident, $test:ident;)*) => {
        /// One broken promise.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Fault { $($(#[$doc])* $fault,)* }

        impl Fault {
            /// Every fault.
            pub const ALL: &[Self] = &[$(Self::$fault,)*];

            /// The rule that it breaks.
            pub const fn rule(self) -> Rule {
                match self { $(Self::$fault => Rule::$rule,)* }
            }

            /// The test that must catch it.
            pub const fn caught_by(self) -> &'static str {
                match self { $(Self::$fault => stringify!($test),)* }
            }
        }
    };
}

faults! {
    /// Answers a send and forgets the message.
    LosesSends, L1, l1_an_accepted_message_can_be_received_by_another_worker;
    /// Keeps the body and forgets the headers.
    LosesHeaders, L1, l1_a_message_arrives_whole;
    /// Drops user headers that share a prefix with the provider's own.
    DropsItsOwnHeaders, L1, l1_headers_come_back_whatever_they_are_called;
    /// Fails a whole batch for one bad row.
    FailsWholeBatches, L1, l1_a_batch_is_accepted_row_by_row;
    /// Makes a second message for a dedup key that is taken.
    IgnoresDedupKey, L1, l1_a_living_dedup_key_yields_one_message;
    /// Delivers a leased message to a second receiver.
    LeasesTwice, L2, l2_a_leased_message_is_not_handed_out_again;
    /// Settles by message id, so that a late worker settles another worker's delivery.
    IgnoresToken, L3, l3_a_late_settle_changes_nothing_for_the_new_holder;
    /// Accepts a settle after the lease has expired, if the message is not leased again.
    AcceptsExpiredLeases, L3, l3_a_lease_that_ran_out_is_over_although_nobody_took_the_message;
    /// Settles the first row of a lease and repeats its result for every later row of that lease.
    AnswersRowsAlike, L3, l3_one_receipt_settles_once_within_a_batch;
    /// Reports a second ack as done.
    AcksTwice, L3, l3_a_settled_lease_is_over;
    /// Takes the queue from the receipt instead of the call.
    IgnoresQueue, L3, l3_a_receipt_of_another_queue_or_provider_is_refused;
    /// Keeps a message leased after its lease has expired.
    NeverExpires, L4, l4_a_message_comes_back_when_its_lease_runs_out;
    /// Accepts an extend and does nothing.
    ExtendsNothing, L5, l5_an_extended_lease_holds;
    /// Applies an extension only on the connection that made it.
    KeepsExtensionsToItself, L5, l5_the_receipt_that_an_extend_answers_is_good_until_the_new_end;
    /// Adds the extension to the remaining time.
    AddsExtensions, L5, l5_an_extension_is_set_and_not_added;
    /// Truncates durations to whole seconds.
    CutsToSeconds, L5, l5_parts_of_a_second_count;
    /// Redelivers a retry at once: a hot loop.
    RetriesAtOnce, L6, l6_a_retry_comes_back_after_its_delay;
    /// Redelivers a retry only when its lease expires: a stall.
    IgnoresRetries, L6, l6_a_retry_without_delay_comes_back_at_once;
    /// Reports only the last failed attempt.
    TellsTheLastAttempt, L6, l6_failed_attempts_are_told_with_their_errors;
    /// Reports failed attempts in reverse order.
    TellsAttemptsBackwards, L6, l6_failed_attempts_are_told_with_their_errors;
    /// Records attempts under another worker's name.
    CreditsAnotherWorker, L6, l6_a_failed_attempt_is_told_with_its_worker;
    /// Looks up failed attempts by message id alone, without the queue.
    KeepsFailuresById, L6, l6_queues_with_one_id_have_failed_attempts_of_their_own;
    /// Keeps the first failed attempts and drops the last.
    ForgetsFailures, L6, l6_the_last_failed_attempts_are_kept;
    /// Counts a release as a delivery and a failure.
    ChargesReleases, L7, l7_a_released_message_is_back_at_once_and_uncounted;
    /// Ignores a release: the message returns when its lease expires.
    IgnoresReleases, L7, l7_a_released_message_is_back_at_once;
    /// Checks the delivery limit, except on a receive by id.
    IgnoresLimitById, L8, l8_a_message_past_its_limit_is_not_received_by_its_id;
    /// Reports every delivery as the first and enforces no limit.
    ForgetsCount, L8, l8_the_delivery_count_rises_with_each_lease;
    /// Counts deliveries but never enforces the limit.
    IgnoresLimit, L8, l8_a_message_past_its_limit_is_dead_lettered_unread;
    /// Retries a message that cannot be decoded.
    RetriesBadBytes, L9, l9_an_undecodable_message_dies_alone_with_its_bytes;
    /// Deletes a message instead of dead-lettering it.
    DropsDeadLetters, L10, l10_a_dead_letter_keeps_its_record;
    /// Drops the error of a dead letter.
    ForgetsErrors, L10, l10_a_dead_letter_keeps_its_record;
    /// Fails a settle whose error text contains a NUL.
    FailsOnOddTexts, L10, l10_no_text_fails_a_settle_or_a_listing;
    /// Finds dead letters by a prefix of their error.
    FindsByBeginnings, L10, l10_dead_letters_are_found_by_their_errors;
    /// Leaves a copy of a dead-lettered message in its queue.
    CopiesDeadLetters, L10, l10_a_dead_letter_keeps_its_record;
    /// Pages by position in an order that changes with each listing.
    ListsByPosition, L10, l10_dead_letters_are_listed_alike_whenever_somebody_looks;
    /// Omits the error from summaries.
    SummarizesWithoutErrors, L10, l10_dead_letters_are_listed_once_and_by_pages;
    /// Deletes a message that is dead-lettered again during its redrive, as if it were a leftover copy.
    TakesTheDeadForCopies, L10, l10_a_redrive_loses_nothing_that_dies_again;
    /// Purges in two steps and counts only the first: dead letters that arrive in between are removed uncounted.
    PurgesMoreThanItCounts, L10, l10_a_purge_counts_all_that_it_removes_while_others_die;
    /// Accepts invalid JSON in an edit that declares JSON.
    EditsBlindly, L10, l10_an_edit_leaves_no_json_that_is_none;
    /// Gives a redriven message a new id.
    RenamesOnRedrive, L10, l10_a_redrive_keeps_the_id_and_resets_the_counts;
    /// Redrives a message although its dedup key is taken.
    RedrivesTwins, L10, l10_a_redrive_makes_no_second_message_for_a_dedup_key;
    /// Redrives in a dry run.
    IgnoresDryRun, L10, l10_a_dry_run_changes_nothing;
    /// Declares an archive and keeps no message in it.
    KeepsNothing, L10, l10_a_message_is_kept_after_its_end;
    /// Archives a message without its number of failed attempts.
    ForgetsArchivedCounts, L10, l10_a_message_is_kept_after_its_end;
    /// Returns the whole archive for every search.
    IgnoresArchiveFilters, L10, l10_the_archive_is_searched;
    /// Skips a message between two pages of the archive.
    SkipsBetweenArchivePages, L10, l10_the_archive_is_listed_by_pages;
    /// Lists the oldest message of an archive page first.
    ListsOldestEndsFirst, L10, l10_the_archive_is_listed_by_pages;
    /// Sends an archived message again with its old id.
    SendsTheSameAgain, L10, l10_an_archived_message_is_sent_again;
    /// Skips a waiting message between two pages.
    SkipsBetweenPeekedPages, L10, l10_waiting_messages_are_listed_by_pages;
    /// Drops the error when an operator dead-letters a waiting message.
    ForgetsErrorsByHand, L10, l10_a_waiting_message_is_dead_lettered_by_hand;
    /// Reports a leased message as dead-lettered and leaves it as it is.
    PassesLeasesBy, L10, l10_a_leased_message_is_not_taken_from_its_worker;
    /// Keeps no record of a message that an operator deleted.
    DeletesWithoutRecord, L10, l10_a_deleted_message_leaves_a_record;
    /// Delivers messages of one key concurrently.
    LosesOrder, L11, l11_a_key_is_handled_one_at_a_time_and_in_send_order;
    /// Sends a retry to the tail of its key.
    RetriesLosePlace, L11, l11_a_retrying_message_holds_its_key;
    /// Sends a retry to the tail of its key after a peek at the queue.
    LooksLosePlace, L11, l11_a_look_does_not_change_the_order_of_a_key;
    /// Delivers a delayed message at once.
    DeliversEarly, L12, l12_a_delayed_message_is_never_early;
    /// Accepts "deliver now" and does nothing.
    DeliversNothingNow, L12, l12_a_delayed_message_is_delivered_now;
    /// Lets an expired head block its key forever.
    HoldsKeysOfTheExpired, L12, l12_an_expired_head_frees_its_key;
    /// Delivers an expired message.
    DeliversExpired, L12, l12_an_expired_message_is_dead_lettered_unread;
    /// Accepts a feature that it declares refused.
    AcceptsWhatItRefuses, L13, l13_a_refused_feature_fails_when_it_is_used;
    /// Declares an emulation without its cost.
    HidesCosts, L13, l13_an_emulation_names_its_cost;
    /// Delivers one message more than requested.
    HandsOutTooMany, L13, l13_a_receive_brings_at_most_what_was_asked_for;
    /// Starts a call whose deadline has passed.
    IgnoresDeadlines, L13, l13_a_passed_deadline_does_nothing;
    /// Accepts a pause and does nothing.
    PausesNothing, L13, l13_a_paused_queue_hands_nothing_out;
    /// Loses every message on a restart.
    ForgetsOnRestart, L14, l14_nothing_accepted_is_lost_over_a_restart;
    /// Answers a send before the message is durable.
    AnswersTooSoon, L1, l1_an_accepted_message_survives_a_restart;
    /// Accepts a close and continues to work.
    ClosesNothing, L15, l15_close_finishes_what_was_begun_and_begins_nothing_new;
    /// Does not wake waiting receives on a close.
    ClosesWithoutWaking, L15, l15_close_ends_a_waiting_receive;
    /// Takes due times and leases from the worker's clock.
    TrustsWorkerClock, L16, l16_a_workers_clock_moves_no_lease_and_no_due_time;
    /// Delivers in the order of the ids.
    OrdersByIds, L16, l16_ids_from_a_wrong_clock_order_nothing;
}
