//! The tests, one file per rule. A test's name begins with the number of its rule.

mod l01_durable_send;
mod l02_one_lease;
mod l03_fencing;
mod l04_expiry;
mod l05_heartbeat;
mod l06_retry;
mod l07_release;
mod l08_poison;
mod l09_bad_bytes;
mod l10_archive;
mod l10_dead_letters;
mod l10_waiting;
mod l11_order;
mod l12_delay;
mod l12_now;
mod l13_capabilities;
mod l14_recovery;
mod l15_clean_stop;
mod l16_store_clock;

use futures_util::future::BoxFuture;
use postrider_core::Feature;

use crate::law::Rule;
use crate::probe::{Check, Probe};

/// A named test of a rule.
pub(crate) struct Test {
    pub(crate) rule: Rule,
    pub(crate) name: &'static str,
    /// Features that the test needs: without them it counts as refused.
    pub(crate) needs: &'static [Feature],
    pub(crate) run: for<'p> fn(&'p Probe<'p>) -> BoxFuture<'p, Check>,
}

impl Test {
    /// Whether it restarts the server or cuts the network while it runs.
    pub(crate) fn is_disruptive(&self) -> bool {
        self.needs.contains(&Feature::Recovery)
    }
}

macro_rules! tests {
    ($($rule:ident $module:ident { $($name:ident $([$($need:ident),*])?,)* })*) => {
        /// Every test of every rule.
        pub(crate) fn all() -> Vec<Test> {
            vec![$($(Test {
                rule: Rule::$rule,
                name: stringify!($name),
                needs: &[$($(Feature::$need),*)?],
                run: |probe| Box::pin($module::$name(probe)),
            },)*)*]
        }

        /// The rule, the name and the needs of every test.
        pub(crate) fn registry() -> Vec<(Rule, &'static str, &'static [Feature])> {
            vec![$($((Rule::$rule, stringify!($name), &[$($(Feature::$need),*)?] as &[Feature]),)*)*]
        }
    };
}

tests! {
    L1 l01_durable_send {
        l1_an_accepted_message_can_be_received_by_another_worker,
        l1_a_message_arrives_whole,
        l1_headers_come_back_whatever_they_are_called,
        l1_headers_of_a_message_with_a_key_come_back [OrderByKey],
        l1_a_batch_is_accepted_row_by_row,
        l1_a_living_dedup_key_yields_one_message [Dedup],
        l1_a_dedup_key_is_free_again_after_its_message [Dedup, DeadLetters],
        l1_concurrent_sends_with_one_dedup_key_yield_one_message [Dedup],
        l1_rows_of_one_batch_with_one_dedup_key_yield_one_message [Dedup],
        l1_thousands_of_rows_go_through_in_one_call,
        l1_an_accepted_message_survives_a_restart [Recovery],
    }
    L2 l02_one_lease {
        l2_a_leased_message_is_not_handed_out_again,
        l2_concurrent_receivers_share_nothing,
        l2_a_dropped_message_comes_back_with_its_delivery_counted,
        l2_a_receipt_taken_out_keeps_the_lease,
    }
    L3 l03_fencing {
        l3_a_late_settle_changes_nothing_for_the_new_holder,
        l3_a_lease_that_ran_out_is_over_although_nobody_took_the_message,
        l3_a_settled_lease_is_over,
        l3_a_receipt_of_another_queue_or_provider_is_refused,
        l3_a_receipt_survives_an_extend [ExtendLease],
        l3_one_bad_row_does_not_spoil_a_settle,
        l3_one_receipt_settles_once_within_a_batch,
        l3_a_late_receipt_beside_valid_ones_in_a_batch_is_expired,
        l3_a_receipt_can_be_used_on_another_connection [PortableReceipts],
    }
    L4 l04_expiry {
        l4_a_message_comes_back_when_its_lease_runs_out,
        l4_a_waiting_receiver_gets_what_another_lost,
    }
    L5 l05_heartbeat {
        l5_an_extended_lease_holds,
        l5_the_receipt_that_an_extend_answers_is_good_until_the_new_end,
        l5_an_extension_is_set_and_not_added,
        l5_parts_of_a_second_count,
    }
    L6 l06_retry {
        l6_a_retry_comes_back_after_its_delay,
        l6_a_retry_without_delay_comes_back_at_once,
        l6_a_long_retry_is_kept,
        l6_failures_are_counted_by_the_store,
        l6_failed_attempts_are_told_with_their_errors [AttemptHistory, DeadLetters],
        l6_a_failed_attempt_is_told_with_its_worker [AttemptHistory, DeadLetters],
        l6_queues_with_one_id_have_failed_attempts_of_their_own [AttemptHistory, DeadLetters],
        l6_the_last_failed_attempts_are_kept [AttemptHistory, DeadLetters],
    }
    L7 l07_release {
        l7_a_released_message_is_back_at_once_and_uncounted [FreeRelease],
        l7_a_released_message_is_back_at_once,
    }
    L8 l08_poison {
        l8_the_delivery_count_rises_with_each_lease,
        l8_a_message_past_its_limit_is_dead_lettered_unread,
        l8_a_worker_may_allow_more_deliveries,
        l8_a_message_past_its_limit_is_not_received_by_its_id [ReceiveById],
    }
    L9 l09_bad_bytes {
        l9_an_undecodable_message_dies_alone_with_its_bytes,
    }
    L10 l10_dead_letters {
        l10_a_dead_letter_keeps_its_record,
        l10_dead_letters_are_listed_once_and_by_pages,
        l10_dead_letters_are_listed_alike_whenever_somebody_looks,
        l10_no_text_fails_a_settle_or_a_listing,
        l10_dead_letters_are_found_by_their_errors,
        l10_a_dead_letter_can_be_edited,
        l10_an_edit_leaves_no_json_that_is_none,
        l10_a_redrive_keeps_the_id_and_resets_the_counts,
        l10_a_dry_run_changes_nothing,
        l10_a_redrive_can_go_elsewhere_and_by_reason,
        l10_a_redrive_loses_nothing_that_dies_again,
        l10_a_purge_counts_all_that_it_removes_while_others_die,
        l10_dead_letters_can_be_received_without_a_limit,
        l10_dead_letters_can_be_purged,
        l10_a_leased_dead_letter_is_left_alone,
        l10_a_redrive_makes_no_second_message_for_a_dedup_key [Dedup],
        l10_a_redrive_takes_the_dedup_key_of_an_expired_message [Dedup, Expiry],
        l10_a_redriven_message_outlives_its_old_expiry [Expiry],
        l10_nobody_can_send_to_the_dead_letters,
    }
    L10 l10_archive {
        l10_a_message_is_kept_after_its_end [Archive, DeadLetters],
        l10_the_archive_is_searched [Archive],
        l10_the_archive_is_listed_by_pages [Archive],
        l10_an_archived_message_is_sent_again [Archive],
    }
    L10 l10_waiting {
        l10_waiting_messages_are_listed_by_pages [WaitingMessages],
        l10_a_waiting_message_is_dead_lettered_by_hand [WaitingMessages, DeadLetters],
        l10_a_leased_message_is_not_taken_from_its_worker [WaitingMessages],
        l10_a_deleted_message_leaves_a_record [WaitingMessages, Archive],
    }
    L11 l11_order {
        l11_a_key_is_handled_one_at_a_time_and_in_send_order [OrderByKey],
        l11_a_retrying_message_holds_its_key [OrderByKey],
        l11_a_lost_lease_holds_its_key [OrderByKey],
        l11_a_look_does_not_change_the_order_of_a_key [OrderByKey, Peek],
        l11_other_keys_are_not_held_up [OrderByKey],
        l11_a_dead_head_frees_its_key [OrderByKey, DeadLetters],
        l11_a_redriven_message_joins_the_tail_of_its_key [OrderByKey, DeadLetters],
        l11_concurrent_workers_keep_the_order_of_every_key [OrderByKey],
        l11_a_batch_has_one_message_of_a_key [OrderByKey],
        l11_priority_does_not_overtake_within_a_key [OrderByKey, Priority],
    }
    L12 l12_delay {
        l12_a_delayed_message_is_never_early [Delay],
        l12_a_long_delay_is_kept [Delay],
        l12_a_delayed_head_holds_its_key [Delay, OrderByKey],
        l12_an_expired_message_is_dead_lettered_unread [Expiry, DeadLetters],
        l12_an_expired_head_frees_its_key [Expiry, OrderByKey],
    }
    L12 l12_now {
        l12_a_delayed_message_is_delivered_now [WaitingMessages, Delay],
        l12_a_message_that_is_delivered_now_keeps_its_turn [WaitingMessages, Delay, OrderByKey],
    }
    L13 l13_capabilities {
        l13_a_refused_feature_fails_when_it_is_used,
        l13_an_emulation_names_its_cost,
        l13_a_receive_brings_at_most_what_was_asked_for,
        l13_a_wait_ends_with_the_first_message,
        l13_a_passed_deadline_does_nothing,
        l13_a_wait_that_the_deadline_ends_finds_nothing,
        l13_limits_are_kept,
        l13_zeros_and_nonsense_are_refused,
        l13_a_missing_queue_reads_like_an_empty_one,
        l13_priority_is_served_first_and_none_is_starved [Priority],
        l13_a_paused_queue_hands_nothing_out [Pause],
        l13_peek_leases_nothing [Peek],
        l13_one_message_can_be_received_by_its_id [ReceiveById],
        l13_a_hint_follows_a_send [WakeUp],
        l13_stats_tell_what_the_queue_holds,
        l13_purge_and_queue_lists_tell_the_truth,
        l13_settle_and_receive_does_both,
    }
    L14 l14_recovery {
        l14_nothing_accepted_is_lost_over_a_restart [Recovery],
        l14_a_lease_from_before_a_restart_is_never_another_messages [Recovery],
        l14_a_waiting_receive_outlasts_a_restart [Recovery],
    }
    L15 l15_clean_stop {
        l15_close_finishes_what_was_begun_and_begins_nothing_new,
        l15_close_ends_a_waiting_receive,
    }
    L16 l16_store_clock {
        l16_ids_from_a_wrong_clock_order_nothing,
        l16_a_workers_clock_moves_no_lease_and_no_due_time,
    }
}
