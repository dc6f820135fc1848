//! What users are promised, and what they are not, in words. Everything else on the page is measured.

use crate::law::Rule;

impl Rule {
    /// What the rule promises to users.
    pub const fn promise(self) -> &'static str {
        match self {
            Self::L1 => {
                "When a send answers with a message's id, the store has made the message durable. While a message \
                 with a dedup key lives (pending, leased or retrying), another send with that key makes no second \
                 message and answers the first one's id."
            }
            Self::L2 => "At any time at most one receiver holds a valid lease on a message.",
            Self::L3 => {
                "A receipt works only as long as its lease. Once the lease has run out, was settled or was released, \
                 an ack, a nack or an extension with it changes nothing and answers `VisibilityExpired`, also when \
                 nobody has leased the message since."
            }
            Self::L4 => {
                "When a lease runs out, or the worker that holds it dies, the message can be received again without \
                 anybody's help."
            }
            Self::L5 => {
                "A lease can be extended: it then ends that long after now, whatever was left of it. Parts of a \
                 second count; a store with a coarser unit of time rounds up to it."
            }
            Self::L6 => {
                "A delivery that failed comes back after the delay that was asked for and never before, from no delay \
                 at all to the longest that the store takes. The store counts the failures; one that keeps a history of \
                 attempts tells the last of them, each with its error, as long as the message lives or is a dead letter."
            }
            Self::L7 => {
                "Work that was leased and never started can be released: it is back at once, and its delivery is not \
                 counted."
            }
            Self::L8 => {
                "Deliveries are counted by the store and the count is checked on reading: a message that was delivered \
                 `max_receive_count` times is dead-lettered by the next read, and no handler sees it again."
            }
            Self::L9 => {
                "A message that cannot be decoded is dead-lettered alone, with its bytes and the reason. The others of \
                 its batch are delivered."
            }
            Self::L10 => {
                "A message that is given up moves to `{queue}_dlq` with its body, headers, reason, error, counts and \
                 times, and stays there until it is redriven or purged. Dead letters can be listed, read, edited, \
                 received, redriven (also elsewhere, in bulk, and as a dry run) and purged. A redrive keeps the id, \
                 resets the counts, and puts the message behind the others of its key. A store with an archive keeps \
                 a message after its end, with its record; it can be searched there, and sent again as a new message."
            }
            Self::L11 => {
                "Messages with the same ordering key are handled one at a time and in the order in which they were \
                 sent, across retries, lost leases and several workers. A retrying message holds its key, a dead one \
                 frees it, and other keys are never held up."
            }
            Self::L12 => {
                "A message that was sent with a delay is never received early, and holds its key meanwhile. A message \
                 past its expiry is dead-lettered with the reason `expired` and never handled."
            }
            Self::L13 => {
                "What a provider offers works, within the limits that it names. What it refuses fails with \
                 `NotSupported` when it is used. Nothing is silently ignored."
            }
            Self::L14 => {
                "After its server was restarted or the network was cut, a provider goes on by itself, and nothing that \
                 was accepted is lost."
            }
            Self::L15 => {
                "Closing a connection finishes what was begun and begins nothing new; a receive that waits is ended."
            }
            Self::L16 => "Leases and due times are judged by the store's clock, never by a worker's.",
        }
    }
}

pub(super) const INTRODUCTION: &str = "\
<!-- Made from what the suites of the stores recorded; see crates/postrider/tests/suite/guarantees.rs. To write it anew, run
     POSTRIDER_WRITE_DOCS=1 cargo test -p postrider --all-features --test suite guarantees -- --ignored
     after them. -->

# Guarantees

Sixteen rules are the same on every store. This page says what each promises, and what the conformance suite found when
it tried them on each provider: every rule has named tests, and a storm of concurrent workers whose recorded history is
checked. `postrider verify URL` runs the same tests on a store of yours.
";

pub(super) const WORDS: &str = "\
- **native**: it holds, and the store does it by itself.
- **emulated**: it holds, and the provider does it on top of the store, at a cost that is named below.
- **refused**: the provider does not do it, and says so when it is used.
- **not exercised**: nobody has shown it; why is told below.
- An asterisk: it holds, but some of its tests could not be run there; they are named below.
";

pub(super) const LIMITS: &str = "\
What is over a limit is refused with `InvalidInput`. The largest body is the default of
`common.messaging.max_message_bytes`. Names were tried on each store.";

pub(super) const TESTS: &str = "\
They are in [crates/conformance/src](../crates/conformance/src), a file for each rule in `rules`; those of the storm in
`storm` and `checker`. That the suite can fail is shown, for every rule, by providers that break it on purpose (`broken`).";

pub(super) const NOT_PROMISED: &str = "\
- **Exactly-once delivery.** Delivery is at least once. A message comes again when its lease ran out, when its worker
  died before the ack, or when the answer to the ack was lost. A handler must be able to see a message twice.
- **Exactly-once sending.** A call whose answer was lost ends with `OutcomeUnknown`: it may or may not have happened, and
  is not repeated by itself. A repeated send makes a second message, unless both carry the same dedup key and the first
  still lives.
- **Order without a key.** Only messages with the same ordering key have an order. Others are handed out as it suits the
  store, and priorities go before age.
- **That a late worker stops.** A worker whose lease has run out can no longer settle the message, but what it does
  elsewhere is not undone or prevented. Extend the lease, or make its effects fit to be repeated.
- **Punctuality.** A delay, a retry or the end of a lease is never early. How late it is depends on the store and on who
  is waiting. An expired or worn-out message is dead-lettered when somebody reads its queue, not at a moment of its own.
- **More durability than the store has.** What was accepted is as safe as the store keeps it: one disk is one disk.
- **That dead letters go away.** Nothing removes them but a redrive, a purge or the deletion of their queue.
- **Proof.** A rule holds here when its tests and the storm found nothing against it.
";
