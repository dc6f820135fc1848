//! What RabbitMQ can do for the law, and at which cost.

use postrider_core::{Capabilities, Feature, Limits, Support};

use crate::PROVIDER;
use crate::options::{QueueType, RabbitmqOptions};
use crate::topology::LONGEST_DELAY;

/// Why a receipt is of no use elsewhere, and what to do instead.
pub(crate) const NOT_PORTABLE: &str = "on AMQP only the connection that received a message can settle it. Receive and \
                                       settle in one program: `postrider work`, or `postrider receive --ack`";

pub(crate) fn capabilities(options: &RabbitmqOptions) -> Capabilities {
    use Feature as F;
    let limits = Limits {
        max_delay: options.limits.max_delay.min(LONGEST_DELAY),
        max_visibility: options.limits.max_visibility.min(options.longest_hold()),
        ..options.limits.clone()
    };
    let emulated = [
        (
            F::SingleLease,
            "the lease is a timer in the worker, and the broker hands a message on as soon as the worker's connection \
             ends: one that is frozen and thawed, has lost its connection, or was killed and left a command running may \
             still be at it when another has it",
        ),
        (
            F::Fencing,
            "a receipt works on the connection that received its message and dies with it; the broker never sees a late \
             one. An acknowledgement that the broker had taken and not yet written down is forgotten if it crashes then: \
             the message comes again",
        ),
        (F::LeaseExpiry, "a timer in the worker returns the message; the broker does when the worker dies"),
        (F::ExtendLease, "the timer in the worker; no longer than the broker's consumer_timeout in all"),
        (F::StoreClock, "delays are the broker's, leases a monotonic timer in the worker, expiry the worker's clock"),
        (
            F::Retry,
            "a copy is stored, confirmed, and the message acknowledged then: a crash between the two leaves a duplicate. A \
             message with a key waits in the worker's hand instead: it is refused a long delay, and comes back sooner \
             when the worker's connection ends",
        ),
        (
            F::DeadLetters,
            "a copy is stored, confirmed, and the message acknowledged then. Listing receives them for a moment: others do \
             not see them meanwhile, and an edited one goes to the end",
        ),
        (
            F::OrderByKey,
            "keys share partitions, 8 unless the option `partitions` says otherwise: while the first message of a partition \
             is leased, delayed or waits for its retry, all keys of that partition wait; a message with a key counts every \
             delivery before as a failure; what a worker without its connection still does is not waited for",
        ),
        (
            F::Delay,
            "queues in which messages wait for fixed times, rounded up to 10 ms and to one part in 128; a message with a \
             key waits in a worker's hand, from when a worker first sees it",
        ),
        (
            F::DeliveryLimit,
            "by the broker's count of returns: a message with a key that a worker had in hand, delayed or next in turn, and \
             gave back unwanted counts as delivered, and so does a message that was lost on its way with its connection",
        ),
        (F::Expiry, "judged by the worker's clock on reading"),
        (F::Pause, "a flag at the broker, which Postrider's workers ask for; other clients do not"),
        (
            F::Peek,
            "the messages are received and returned: hidden for a moment, and counted as delivered; of the messages with \
             keys the first of each partition is shown",
        ),
        (F::WakeUp, "the broker is asked once in a while"),
    ];
    let refused = [
        (F::Dedup, "the broker remembers no keys; keep an idempotency record in the handler instead"),
        (F::PortableReceipts, NOT_PORTABLE),
        (F::FreeRelease, "the broker counts every return"),
        (F::Priority, "quorum queues know none; use a queue for what is urgent"),
        (F::AttemptHistory, "a message carries the number of its failures and the last error, and no more"),
        (F::Archive, "the broker forgets a message that was acknowledged"),
        (F::WaitingMessages, "the broker reaches no single message of a queue"),
        (F::ReceiveById, "the broker hands out its next message, never a chosen one"),
    ];
    let mut capabilities = Capabilities::native(PROVIDER).with_limits(limits);
    for (feature, cost) in emulated {
        capabilities = capabilities.with(feature, Support::emulated(cost));
    }
    for (feature, why) in refused {
        capabilities = capabilities.with(feature, Support::refused(why));
    }
    if options.queue_type == QueueType::Classic {
        let why = "a classic queue tells whether a message came back, not how often: a message that kills its worker \
                   counts as delivered twice and is never given up. Retries are counted. Use quorum queues";
        capabilities = capabilities.with(F::DeliveryLimit, Support::refused(why));
        let why = "a message with a key is retried by giving it back, and a classic queue does not count that: one that always \
                   fails would hold its key for ever. Use quorum queues";
        capabilities = capabilities.with(F::OrderByKey, Support::refused(why));
    }
    capabilities
}
