//! Which features of the law RabbitMQ keeps, and at which cost.

use postrider_core::{Capabilities, Feature, Limits, Support};

use crate::PROVIDER;
use crate::options::{QueueType, RabbitmqOptions};
use crate::topology::LONGEST_DELAY;

/// Why a receipt cannot be used on another connection, and what to do instead.
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
            "the lease is a timer in the worker, and the broker redelivers a message as soon as the worker's connection \
             ends: a worker that was frozen and thawed, has lost its connection, or was killed and left a command running \
             may still handle it when another worker receives it",
        ),
        (
            F::Fencing,
            "a receipt works on the connection that received its message and dies with it; the broker never sees a late \
             one. An acknowledgement that the broker has received and not yet made durable is lost if the broker crashes: \
             the message is delivered again",
        ),
        (F::LeaseExpiry, "a timer in the worker returns the message; if the worker dies, the broker does"),
        (F::ExtendLease, "the timer in the worker; in total no longer than the broker's consumer_timeout"),
        (
            F::StoreClock,
            "delays are timed by the broker, leases by a monotonic timer in the worker, expiry by the worker's clock",
        ),
        (
            F::Retry,
            "a copy is stored and confirmed, then the message is acknowledged: a crash between the two leaves a duplicate. \
             A message with a key stays unacknowledged at the worker instead: a long delay is refused, and the message \
             returns sooner when the worker's connection ends",
        ),
        (
            F::DeadLetters,
            "a copy is stored and confirmed, then the message is acknowledged. Listing receives the dead letters for a \
             moment: other clients do not see them meanwhile, and an edited one goes to the end",
        ),
        (
            F::OrderByKey,
            "keys share partitions (option `partitions`, 8 by default): while the first message of a partition is leased, \
             delayed or waiting for its retry, all keys of that partition wait; for a message with a key every earlier \
             delivery counts as a failure; a worker that lost its connection may still run its handler while another \
             worker receives the next message of the key",
        ),
        (
            F::Delay,
            "queues in which messages wait for fixed times, rounded up to 10 ms and to one part in 128; a message with a \
             key waits unacknowledged at a worker, from when a worker first receives it",
        ),
        (
            F::DeliveryLimit,
            "by the broker's count of returns: a message with a key that the broker delivered to a worker ahead of a receive \
             (delayed, or next of its partition) and that was returned unused counts as delivered, and so does a message \
             whose connection was lost on the way",
        ),
        (F::Expiry, "judged by the worker's clock on reading"),
        (F::Pause, "a flag on the broker, which Postrider's workers read; other clients do not"),
        (
            F::Peek,
            "the messages are received and returned: hidden for a moment, and counted as delivered; of messages with keys \
             only the first of each partition is shown",
        ),
        (F::WakeUp, "the broker is polled four times a second"),
    ];
    let refused = [
        (F::Dedup, "the broker stores no dedup keys; keep an idempotency record in the handler instead"),
        (F::PortableReceipts, NOT_PORTABLE),
        (F::FreeRelease, "the broker counts every return"),
        (F::Priority, "quorum queues have no priorities; use a separate queue for urgent messages"),
        (F::AttemptHistory, "a message carries only the number of its failures and the last error"),
        (F::Archive, "the broker removes a message that was acknowledged"),
        (F::WaitingMessages, "the broker has no access to a single message of a queue"),
        (F::ReceiveById, "the broker delivers its next message, never a chosen one"),
    ];
    let mut capabilities = Capabilities::native(PROVIDER).with_limits(limits);
    for (feature, cost) in emulated {
        capabilities = capabilities.with(feature, Support::emulated(cost));
    }
    for (feature, why) in refused {
        capabilities = capabilities.with(feature, Support::refused(why));
    }
    if options.queue_type == QueueType::Classic {
        let why = "a classic queue records whether a message was returned, not how often: a message that kills its worker \
                   counts as delivered twice and is never dead-lettered. Retries are counted. Use quorum queues";
        capabilities = capabilities.with(F::DeliveryLimit, Support::refused(why));
        let why = "a message with a key is retried by returning it, and a classic queue does not count returns: one that \
                   always fails would block its key for ever. Use quorum queues";
        capabilities = capabilities.with(F::OrderByKey, Support::refused(why));
    }
    capabilities
}
