//! What SQS can do, and what is done on top of it.

use postrider_core::{Capabilities, Feature, Limits, Support};

use crate::calls::MOST_BYTES;
use crate::options::SqsOptions;
use crate::waiting::{LONGEST_HIDE, LONGEST_WAIT};
use crate::{PROVIDER, dedup};

/// What a message's headers, note and the error that it dies of take besides its body, at most.
const BESIDE_THE_BODY: usize = 128 * 1024;

/// Where SQS alone would not keep the law.
pub(crate) fn of(options: &SqsOptions) -> Capabilities {
    let emulated = [
        (
            Feature::Dedup,
            "by the FIFO queue, for five minutes from the send, whatever becomes of the message; the process that sent \
             first answers a repetition with the first one's id, another process with one of its own, although SQS drops \
             the message",
        ),
        (
            Feature::SingleLease,
            "as far as SQS keeps it: a standard queue may, rarely, hand one message to two receivers; a FIFO queue does \
             not",
        ),
        (
            Feature::Fencing,
            "by this host's clock: nothing is asked of SQS with a receipt whose lease is over here; SQS itself may accept \
             a late receipt, so a lease that another process ended is noticed only as far as SQS notices it",
        ),
        (
            Feature::PortableReceipts,
            "in another process ack, release and extend work until the end that the receipt says: an extend answers a new \
             receipt with the new end, and the old one is good until the old end; a retry there counts no failure and waits 12 hours at most, and a dead-letter is refused, because only the \
             process that received the message has its body",
        ),
        (
            Feature::Retry,
            "a copy with the failure counted, and then a delete: a crash between the two leaves both; a message with a \
             key keeps its place instead, waits 12 hours at most, keeps no error text, and counts every delivery before \
             the last as a failure",
        ),
        (
            Feature::DeliveryLimit,
            "by SQS's own approximate count, which looks at a queue and releases raise too; 1000 receives send a message \
             without a key to the dead letters whoever reads it",
        ),
        (
            Feature::DeadLetters,
            "a confirmed copy in {queue}_dlq, and then a delete; looking at them receives them: they are hidden for up to \
             a minute, and two who look at once see a part each",
        ),
        (
            Feature::OrderByKey,
            "a FIFO queue {queue}.fifo beside the queue, made by the first message with a key and read one message a \
             call; other processes notice it within five seconds, and then both are polled in turns of a second",
        ),
        (
            Feature::Delay,
            "beyond 15 minutes a receiver has to run: it sends a message on every 15 minutes, and hides one with a key \
             where it lies",
        ),
        (Feature::Expiry, "a time in the message; other clients do not look at it"),
        (
            Feature::Pause,
            "a tag of the queue; other clients do not look at it, and Postrider's notice it within two seconds",
        ),
        (Feature::Peek, "a receive and a release: the messages are hidden for a moment, and the delivery is counted"),
        (
            Feature::StoreClock,
            "leases and delays are SQS's own; expiries and long delays are judged by the time that SQS writes on its \
             answers, and the end of a lease by this host's monotonic clock as well",
        ),
    ];
    let refused = [
        (Feature::FreeRelease, "SQS counts every receive, and nobody can lower its count"),
        (Feature::Priority, "SQS has one order; use a queue for each priority"),
        (Feature::AttemptHistory, "a message carries the number of its failures and the last error, and no more"),
        (Feature::Archive, "SQS forgets a message that was deleted, and a deletion is its acknowledgement"),
        (Feature::WaitingMessages, "SQS reaches no single message of a queue"),
        (Feature::ReceiveById, "SQS hands out what it chooses"),
        (
            Feature::WakeUp,
            "SQS tells nobody of new messages; a receive that waits is a long poll, and ends with the first",
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

/// What SQS can hold, and no more than was asked for.
fn limits(asked: &Limits) -> Limits {
    Limits {
        max_body_bytes: asked.max_body_bytes.min(MOST_BYTES - BESIDE_THE_BODY),
        max_header_bytes: asked.max_header_bytes.min(64 * 1024),
        max_delay: asked.max_delay.min(LONGEST_WAIT),
        max_visibility: asked.max_visibility.min(LONGEST_HIDE),
        time_resolution: std::time::Duration::from_secs(1),
        dedup_window: Some(dedup::WINDOW),
    }
}
