//! Computes from a history how many leases a worker held at the same time.

use std::collections::HashMap;

use postrider_conformance::history::{Event, LeaseOutcome, Operation, Outcome};
use postrider_core::Timestamp;

/// The time in which a lease was held for certain.
struct Lease {
    begin: Timestamp,
    /// The earliest possible time of its last end.
    runs_out: Timestamp,
    /// When its holder began to settle it.
    settled: Timestamp,
}

/// The largest number of leases that the worker of this history held at the same moment, counted cautiously: from the
/// answer of the receive until it began to settle the message, or the lease may have ended.
pub(crate) fn max_held(events: &[Event]) -> usize {
    let mut leases: HashMap<_, Lease> = HashMap::new();
    let mut in_order: Vec<_> = events.iter().collect();
    in_order.sort_by_key(|event| event.end);
    for Event { start, end, operation, .. } in in_order {
        match operation {
            Operation::Receive(call) => {
                let Outcome::Done(deliveries) = &call.outcome else { continue };
                let runs_out = start.saturating_add(call.visibility);
                for delivery in deliveries {
                    leases.insert(delivery.token, Lease { begin: *end, runs_out, settled: Timestamp::MAX });
                }
            }
            Operation::Extend(call) if call.outcome == LeaseOutcome::Done => {
                if let Some(lease) = leases.get_mut(&call.token) {
                    lease.runs_out = lease.runs_out.max(start.saturating_add(call.extension));
                }
            }
            Operation::Settle(call) => {
                if let Some(lease) = leases.get_mut(&call.token) {
                    lease.settled = lease.settled.min(*start);
                }
            }
            Operation::Dropped(dropped) => {
                if let Some(lease) = leases.get_mut(&dropped.token) {
                    lease.settled = lease.settled.min(*start);
                }
            }
            _ => {}
        }
    }
    let mut steps = Vec::new();
    for Lease { begin, runs_out, settled } in leases.into_values() {
        let end = runs_out.min(settled);
        if begin < end {
            steps.extend([(begin, 1), (end, -1)]);
        }
    }
    // Of steps at the same time, ends are sorted first.
    steps.sort_unstable();
    let (mut held, mut most) = (0_isize, 0);
    for (_, step) in steps {
        held += step;
        most = most.max(held);
    }
    most.unsigned_abs()
}
