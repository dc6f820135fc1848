//! The ways in which a provider can be broken.

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
    /// Takes headers that begin like its own for its own.
    DropsItsOwnHeaders, L1, l1_headers_come_back_whatever_they_are_called;
    /// Fails a whole batch for one bad row.
    FailsWholeBatches, L1, l1_a_batch_is_accepted_row_by_row;
    /// Makes a second message for a dedup key that is taken.
    IgnoresDedupKey, L1, l1_a_living_dedup_key_yields_one_message;
    /// Hands a leased message to the next who asks.
    LeasesTwice, L2, l2_a_leased_message_is_not_handed_out_again;
    /// Settles by message id: a late worker settles another worker's delivery.
    IgnoresToken, L3, l3_a_late_settle_changes_nothing_for_the_new_holder;
    /// Accepts a settle after the lease has run out, if nobody has the message.
    AcceptsExpiredLeases, L3, l3_a_lease_that_ran_out_is_over_although_nobody_took_the_message;
    /// Settles by the first row that names a lease, and answers the same to every other.
    AnswersRowsAlike, L3, l3_one_receipt_settles_once_within_a_batch;
    /// Answers a second ack as if it had done something.
    AcksTwice, L3, l3_a_settled_lease_is_over;
    /// Takes the queue's name from the receipt and not from the call.
    IgnoresQueue, L3, l3_a_receipt_of_another_queue_or_provider_is_refused;
    /// Keeps a message leased although its lease has run out.
    NeverExpires, L4, l4_a_message_comes_back_when_its_lease_runs_out;
    /// Accepts an extend and does nothing.
    ExtendsNothing, L5, l5_an_extended_lease_holds;
    /// Judges a receipt by the end that the lease had when it was received, wherever the extension was not made.
    KeepsExtensionsToItself, L5, l5_the_receipt_that_an_extend_answers_is_good_until_the_new_end;
    /// Adds the extension to what is left.
    AddsExtensions, L5, l5_an_extension_is_set_and_not_added;
    /// Cuts durations to whole seconds.
    CutsToSeconds, L5, l5_parts_of_a_second_count;
    /// Brings a retry back at once: a hot loop.
    RetriesAtOnce, L6, l6_a_retry_comes_back_after_its_delay;
    /// Leaves a retry to the end of its lease: a stall.
    IgnoresRetries, L6, l6_a_retry_without_delay_comes_back_at_once;
    /// Tells of the last failure only.
    TellsTheLastAttempt, L6, l6_failed_attempts_are_told_with_their_errors;
    /// Tells of failures in the wrong order.
    TellsAttemptsBackwards, L6, l6_failed_attempts_are_told_with_their_errors;
    /// Credits attempts to a worker that did not make them.
    CreditsAnotherWorker, L6, l6_a_failed_attempt_is_told_with_its_worker;
    /// Looks failures up by the id alone, whichever queue has a message with it.
    KeepsFailuresById, L6, l6_queues_with_one_id_have_failed_attempts_of_their_own;
    /// Keeps the first failures and forgets the last.
    ForgetsFailures, L6, l6_the_last_failed_attempts_are_kept;
    /// Counts a release as a delivery and a failure.
    ChargesReleases, L7, l7_a_released_message_is_back_at_once_and_uncounted;
    /// Leaves a release to the end of its lease.
    IgnoresReleases, L7, l7_a_released_message_is_back_at_once;
    /// Looks at the limit, but not when a message is asked for by its id.
    IgnoresLimitById, L8, l8_a_message_past_its_limit_is_not_received_by_its_id;
    /// Says that every delivery is the first, and keeps no limit.
    ForgetsCount, L8, l8_the_delivery_count_rises_with_each_lease;
    /// Keeps the count and never looks at it.
    IgnoresLimit, L8, l8_a_message_past_its_limit_is_dead_lettered_unread;
    /// Sends what cannot be decoded round again.
    RetriesBadBytes, L9, l9_an_undecodable_message_dies_alone_with_its_bytes;
    /// Drops what should be a dead letter.
    DropsDeadLetters, L10, l10_a_dead_letter_keeps_its_record;
    /// Forgets why a message died.
    ForgetsErrors, L10, l10_a_dead_letter_keeps_its_record;
    /// Fails a settle whose error has a character that its columns cannot hold.
    FailsOnOddTexts, L10, l10_no_text_fails_a_settle_or_a_listing;
    /// Finds the dead letters of an error by its beginning.
    FindsByBeginnings, L10, l10_dead_letters_are_found_by_their_errors;
    /// Leaves a copy of a dead message in its queue.
    CopiesDeadLetters, L10, l10_a_dead_letter_keeps_its_record;
    /// Lists by positions in an order that changes whenever somebody looks.
    ListsByPosition, L10, l10_dead_letters_are_listed_alike_whenever_somebody_looks;
    /// Leaves the error out where the body is left out.
    SummarizesWithoutErrors, L10, l10_dead_letters_are_listed_once_and_by_pages;
    /// Takes a message that dies again during a redrive for a copy of itself, and removes it.
    TakesTheDeadForCopies, L10, l10_a_redrive_loses_nothing_that_dies_again;
    /// Removes dead letters in two steps and counts the first: what died in between is gone without a word.
    PurgesMoreThanItCounts, L10, l10_a_purge_counts_all_that_it_removes_while_others_die;
    /// Takes any bytes for the JSON that a dead letter is to be.
    EditsBlindly, L10, l10_an_edit_leaves_no_json_that_is_none;
    /// Gives a redriven message a new id.
    RenamesOnRedrive, L10, l10_a_redrive_keeps_the_id_and_resets_the_counts;
    /// Makes a second message for a dedup key when it redrives.
    RedrivesTwins, L10, l10_a_redrive_makes_no_second_message_for_a_dedup_key;
    /// Redrives in a dry run.
    IgnoresDryRun, L10, l10_a_dry_run_changes_nothing;
    /// Keeps no message after its end, and says that it does.
    KeepsNothing, L10, l10_a_message_is_kept_after_its_end;
    /// Keeps a message after its end without the number of its failures.
    ForgetsArchivedCounts, L10, l10_a_message_is_kept_after_its_end;
    /// Answers every search of the archive with all that it has.
    IgnoresArchiveFilters, L10, l10_the_archive_is_searched;
    /// Leaves a message out between two pages of the archive.
    SkipsBetweenArchivePages, L10, l10_the_archive_is_listed_by_pages;
    /// Lists the oldest end of a page first.
    ListsOldestEndsFirst, L10, l10_the_archive_is_listed_by_pages;
    /// Sends an archived message again with the id that it had.
    SendsTheSameAgain, L10, l10_an_archived_message_is_sent_again;
    /// Leaves a waiting message out between two pages.
    SkipsBetweenPeekedPages, L10, l10_waiting_messages_are_listed_by_pages;
    /// Gives a waiting message up by hand and forgets what was said about it.
    ForgetsErrorsByHand, L10, l10_a_waiting_message_is_dead_lettered_by_hand;
    /// Answers that a leased message was given up, and leaves it.
    PassesLeasesBy, L10, l10_a_leased_message_is_not_taken_from_its_worker;
    /// Keeps no record of a message that was deleted by hand.
    DeletesWithoutRecord, L10, l10_a_deleted_message_leaves_a_record;
    /// Hands out messages of one key side by side.
    LosesOrder, L11, l11_a_key_is_handled_one_at_a_time_and_in_send_order;
    /// Sends a retry to the tail of its key.
    RetriesLosePlace, L11, l11_a_retrying_message_holds_its_key;
    /// Sends a retry to the tail of its key, once its queue has been peeked at.
    LooksLosePlace, L11, l11_a_look_does_not_change_the_order_of_a_key;
    /// Delivers a delayed message at once.
    DeliversEarly, L12, l12_a_delayed_message_is_never_early;
    /// Accepts that a message shall be delivered now, and does nothing.
    DeliversNothingNow, L12, l12_a_delayed_message_is_delivered_now;
    /// Lets an expired head hold its key for ever.
    HoldsKeysOfTheExpired, L12, l12_an_expired_head_frees_its_key;
    /// Delivers an expired message.
    DeliversExpired, L12, l12_an_expired_message_is_dead_lettered_unread;
    /// Accepts what it says it refuses.
    AcceptsWhatItRefuses, L13, l13_a_refused_feature_fails_when_it_is_used;
    /// Says that it emulates, and not at what cost.
    HidesCosts, L13, l13_an_emulation_names_its_cost;
    /// Hands out one more than it was asked for.
    HandsOutTooMany, L13, l13_a_receive_brings_at_most_what_was_asked_for;
    /// Begins what its caller no longer waits for.
    IgnoresDeadlines, L13, l13_a_passed_deadline_does_nothing;
    /// Accepts a pause and does nothing.
    PausesNothing, L13, l13_a_paused_queue_hands_nothing_out;
    /// Comes back from a restart with nothing.
    ForgetsOnRestart, L14, l14_nothing_accepted_is_lost_over_a_restart;
    /// Answers a send before the message is safe from a restart.
    AnswersTooSoon, L1, l1_an_accepted_message_survives_a_restart;
    /// Accepts a close and goes on.
    ClosesNothing, L15, l15_close_finishes_what_was_begun_and_begins_nothing_new;
    /// Lets those wait who waited when it was closed.
    ClosesWithoutWaking, L15, l15_close_ends_a_waiting_receive;
    /// Takes due times and leases from the worker's clock.
    TrustsWorkerClock, L16, l16_a_workers_clock_moves_no_lease_and_no_due_time;
    /// Delivers in the order of the ids.
    OrdersByIds, L16, l16_ids_from_a_wrong_clock_order_nothing;
}
