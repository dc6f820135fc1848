//! Which features of the law SQS keeps, and at which cost.

use postrider_core::{Capabilities, Feature, Limits, Support};

use crate::calls::MAX_BYTES;
use crate::delay::{LONGEST_DELAY, LONGEST_HIDE};
use crate::options::SqsOptions;
use crate::{PROVIDER, dedup};

/// Maximum size of a message's headers, note and error text beside its body.
const BESIDE_BODY: usize = 128 * 1024;

/// Returns the capabilities: which features are emulated, and which are refused.
pub(crate) fn of(options: &SqsOptions) -> Capabilities {
    let emulated = [
        (
            Feature::Dedup,
            "by the FIFO queue, for five minutes from the send, even if the message is settled earlier; for a repeated send \
             the process of the first send returns the first id, another process a new one, although SQS drops the message",
        ),
        (
            Feature::SingleLease,
            "as far as SQS keeps it: a standard queue may, rarely, deliver one message to two receivers; a FIFO queue does \
             not",
        ),
        (
            Feature::Fencing,
            "by this host's clock: no call is made with a receipt whose lease has ended by it; SQS itself may accept a late \
             receipt, so a lease that another process ended is detected only as far as SQS detects it",
        ),
        (
            Feature::PortableReceipts,
            "in another process ack, release and extend work until the end that is written in the receipt: an extend \
             returns a new receipt with the new end, and the old one is valid until the old end; a retry there counts no \
             failure and waits at most 12 hours, and a dead-letter is refused, because only the receiving process has \
             the body",
        ),
        (
            Feature::Retry,
            "a copy with the failure counted, then a delete: a crash between the two leaves both; a message with a key is \
             not copied, waits at most 12 hours, keeps no error text, and every delivery before the last counts as a \
             failure",
        ),
        (
            Feature::DeliveryLimit,
            "by SQS's own approximate count, which peeks and releases raise too; after 1000 receives SQS itself moves a \
             message without a key to the dead letters",
        ),
        (
            Feature::DeadLetters,
            "a confirmed copy in {queue}_dlq, then a delete; a listing receives the dead letters: they are hidden for up to \
             a minute, and two listings at the same time return a part each",
        ),
        (
            Feature::OrderByKey,
            "a FIFO queue {queue}.fifo beside the queue, created by the first message with a key and read one message a \
             call; other processes detect it within five seconds, and then poll both in turns of a second",
        ),
        (
            Feature::Delay,
            "beyond 15 minutes a receiver must run: every 15 minutes it sends the message again with the remaining delay, \
             or hides it in its queue if it has a key",
        ),
        (Feature::Expiry, "a time in the message; other clients do not read it"),
        (Feature::Pause, "a tag of the queue; Postrider's receivers read it within two seconds, other clients do not"),
        (Feature::Peek, "a receive and a release: the messages are hidden for a moment, and the delivery is counted"),
        (
            Feature::StoreClock,
            "leases and delays are SQS's own; expiry and long delays are judged by the time in SQS's answers, and the end of \
             a lease also by this host's monotonic clock",
        ),
    ];
    let refused = [
        (Feature::FreeRelease, "SQS counts every receive, and its count cannot be lowered"),
        (Feature::Priority, "SQS has no priorities; use a queue for each priority"),
        (Feature::AttemptHistory, "a message carries only the number of its failures and the last error"),
        (Feature::Archive, "SQS removes an acknowledged message"),
        (Feature::WaitingMessages, "SQS has no access to a single message of a queue"),
        (Feature::ReceiveById, "SQS chooses the messages of a receive"),
        (
            Feature::WakeUp,
            "SQS sends no notifications of new messages; a receive that waits is a long poll, which ends with the first",
        ),
    ];
    let capabilities = Capabilities::native(PROVIDER).with_limits(limits(&options.limits));
    let capabilities = emulated
        .into_iter()
        .fold(capabilities, |capabilities, (feature, cost)| capabilities.with(feature, Support::emulated(cost)));
    refused
        .into_iter()
        .fold(capabilities, |capabilities, (feature, why)| capabilities.with(feature, Support::refused(why)))
}

/// The configured limits, or SQS's where those are lower.
fn limits(asked: &Limits) -> Limits {
    Limits {
        max_body_bytes: asked.max_body_bytes.min(MAX_BYTES - BESIDE_BODY),
        max_header_bytes: asked.max_header_bytes.min(64 * 1024),
        max_delay: asked.max_delay.min(LONGEST_DELAY),
        max_visibility: asked.max_visibility.min(LONGEST_HIDE),
        time_resolution: std::time::Duration::from_secs(1),
        dedup_window: Some(dedup::WINDOW),
    }
}
