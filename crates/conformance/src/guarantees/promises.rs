//! The handwritten texts of the page; everything else on it is measured.

use crate::law::Rule;

impl Rule {
    /// What the rule promises to users.
    pub const fn promise(self) -> &'static str {
        match self {
            Self::L1 => {
                "When a send returns a message's id, the store has made the message durable. While a message with a \
                 dedup key lives (pending, leased or retrying), another send with that key makes no second message \
                 and returns the first one's id."
            }
            Self::L2 => "At any time at most one receiver holds a valid lease on a message.",
            Self::L3 => {
                "A receipt works only as long as its lease. Once the lease has expired, was settled or was released, \
                 an ack, a nack or an extension with it changes nothing and returns `VisibilityExpired`, also when \
                 the message was not leased again."
            }
            Self::L4 => {
                "When a lease expires, or the worker that holds it dies, the message can be received again without \
                 intervention."
            }
            Self::L5 => {
                "A lease can be extended: it then ends at now plus the extension, whatever time was left. Parts of a \
                 second count; a store with a coarser unit of time rounds up to it."
            }
            Self::L6 => {
                "A failed delivery comes back after the requested delay and never before, from zero to the longest \
                 delay of the store. The store counts the failures; a store with a history of attempts returns the \
                 last of them, each with its error, as long as the message lives or is a dead letter."
            }
            Self::L7 => {
                "Leased work that was never started can be released: it is back at once, and its delivery is not \
                 counted."
            }
            Self::L8 => {
                "The store counts deliveries and checks the count on reading: a message that was delivered \
                 `max_receive_count` times is dead-lettered by the next read, and no handler sees it again."
            }
            Self::L9 => {
                "A message that cannot be decoded is dead-lettered alone, with its bytes and the reason. The others of \
                 its batch are delivered."
            }
            Self::L10 => {
                "A dead-lettered message moves to `{queue}_dlq` with its body, headers, reason, error, counts and \
                 times, and stays there until it is redriven or purged. Dead letters can be listed, read, edited, \
                 received, redriven (also to another queue, in bulk, and as a dry run) and purged. A redrive keeps \
                 the id, resets the counts, and puts the message behind the others of its key. A store with an \
                 archive keeps a message after its end, with its record; it can be searched there, and sent again as \
                 a new message."
            }
            Self::L11 => {
                "Messages with the same ordering key are handled one at a time and in send order, across retries, \
                 lost leases and several workers. A retrying message holds its key, a dead one frees it, and other \
                 keys are not blocked."
            }
            Self::L12 => {
                "A delayed message is never received early, and holds its key meanwhile. A message past its expiry is \
                 dead-lettered with the reason `expired` and never handled."
            }
            Self::L13 => {
                "What a provider offers works, within its declared limits. What it refuses fails with `NotSupported` \
                 when it is used. Nothing is silently ignored."
            }
            Self::L14 => {
                "After a restart of its server or a cut of the network, a provider reconnects by itself, and no \
                 accepted message is lost."
            }
            Self::L15 => "Closing a connection finishes running calls and starts no new ones; a waiting receive ends.",
            Self::L16 => "Leases and due times go by the store's clock, never by a worker's.",
        }
    }
}

pub(super) const INTRODUCTION: &str = "\
<!-- Generated from the results of the stores' suites; see crates/postrider/tests/suite/guarantees.rs. To write it again, run
     POSTRIDER_WRITE_DOCS=1 cargo test -p postrider --all-features --test suite guarantees -- --ignored
     after the suites. -->

# Guarantees

Sixteen rules are the same on every store. This page has the promise of each, and the results of the
conformance suite on each provider: every rule has named tests, and a storm of concurrent workers has its history
checked. `postrider verify URL` runs the same tests on your store.
";

pub(super) const WORDS: &str = "\
- **native**: it holds, and the store itself keeps it.
- **emulated**: it holds, and the provider keeps it on top of the store, at a cost that is named below.
- **refused**: the provider does not support it and refuses its use.
- **not exercised**: no test could be run; the reason is below.
- An asterisk: it holds, but some of its tests could not be run there; they are named below.
";

pub(super) const LIMITS: &str = "\
Values over a limit are refused with `InvalidInput`. The largest body is the default of
`common.messaging.max_message_bytes`. Names were tried on each store.";

pub(super) const TESTS: &str = "\
They are in [crates/conformance/src](../crates/conformance/src), a file per rule in `rules`, and those of the storm in
`storm` and `checker`. Providers that break one rule each (`broken`) show that every rule's tests can fail.";

pub(super) const NOT_PROMISED: &str = "\
- **Exactly-once delivery.** Delivery is at least once. A message comes again when its lease expired, when its worker
  died before the ack, or when the answer to the ack was lost. A handler must tolerate a second delivery.
- **Exactly-once sending.** A call whose answer was lost ends with `OutcomeUnknown`: it may have taken effect, and is not
  repeated automatically. A repeated send makes a second message, unless both have the same dedup key and the first
  still lives.
- **Order without a key.** Only messages with the same ordering key have an order. Others are delivered in any order, and
  priority goes before age.
- **That a late worker stops.** A worker whose lease has expired can no longer settle the message, but its effects elsewhere
  are neither undone nor prevented. Extend the lease, or make the effects idempotent.
- **Punctuality.** A delay, a retry or the end of a lease is never early. How late it is depends on the store and on its
  receivers. A message past its expiry or its delivery limit is dead-lettered when its queue is read, not before.
- **More durability than the store has.** An accepted message is as safe as the store: one disk is one disk.
- **That dead letters go away.** Only a redrive, a purge or the deletion of their queue removes them.
- **Proof.** A rule holds here when its tests and the storm found nothing against it.
";
