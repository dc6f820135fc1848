//! Settling a message by hand.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use postrider_core::{DeadLetterReason, Disposition, Moment, Nack};
use tokio_util::sync::CancellationToken;

/// Settles a message from inside its handler, whatever the ack policy. The first call counts; later calls change
/// nothing and return `false`. Clones are the same.
///
/// The message is settled when its handler has returned. The handler's result is then only counted.
#[derive(Debug, Clone, Default)]
pub struct Control {
    // One allocation for all, because every message has one.
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    // Set once and then only read, by any number of tasks that a handler may have started: no lock is needed.
    decided: OnceLock<Disposition>,
    // Created on first use: most handlers never need it.
    cancellation: OnceLock<CancellationToken>,
    /// When the lease was last requested, and its length; `None` if no lease is needed. A mutex, held only to copy.
    lease: Mutex<Option<(Moment, Duration)>>,
}

impl Control {
    /// The control of a message that is not decided.
    pub fn new() -> Self {
        Self::default()
    }

    /// The token that cancels the handler.
    pub fn cancellation(&self) -> &CancellationToken {
        self.shared.cancellation.get_or_init(CancellationToken::new)
    }

    /// Records that the lease lasts at least this long from its request. For what runs handlers; a handler never calls it.
    #[doc(hidden)]
    pub fn is_leased_for(&self, lease: Duration, requested: Moment) {
        *self.lease() = Some((requested, lease));
    }

    /// Records that the message was acknowledged before its handler began, and needs no lease.
    pub(crate) fn needs_no_lease(&self) {
        *self.lease() = None;
    }

    /// Whether the message is certainly still leased, by the clock of this process.
    pub fn is_leased(&self) -> bool {
        let lease = *self.lease();
        lease.is_none_or(|(requested, lease)| requested.elapsed() < lease)
    }

    fn lease(&self) -> MutexGuard<'_, Option<(Moment, Duration)>> {
        self.shared.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides that the message is done.
    pub fn ack(&self) -> bool {
        self.decide(Disposition::Ack)
    }

    /// Decides that the message is not done; `nack` is the outcome.
    pub fn nack(&self, nack: Nack) -> bool {
        self.decide(Disposition::Nack(nack))
    }

    /// Dead-letters the message for this reason.
    pub fn reject(&self, reason: impl Into<DeadLetterReason>) -> bool {
        self.nack(Nack::dead_letter(reason))
    }

    /// Releases the message, as if it had not been delivered.
    pub fn release(&self) -> bool {
        self.nack(Nack::Release)
    }

    /// The decision, if there is one.
    pub fn decided(&self) -> Option<Disposition> {
        self.shared.decided.get().cloned()
    }

    fn decide(&self, disposition: Disposition) -> bool {
        self.shared.decided.set(disposition).is_ok()
    }
}

/// The control of a message whose handler is cancelled by this token.
impl From<CancellationToken> for Control {
    fn from(cancellation: CancellationToken) -> Self {
        let shared = Shared { cancellation: cancellation.into(), ..Shared::default() };
        Self { shared: Arc::new(shared) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_call_counts_on_every_clone() {
        let control = Control::new();
        let clone = control.clone();
        assert_eq!(control.decided(), None);
        assert!(clone.nack(Nack::retry_after(Duration::from_secs(1))));
        assert!(!control.ack());
        assert!(!clone.reject("bad"));
        assert_eq!(control.decided(), Some(Disposition::Nack(Nack::retry_after(Duration::from_secs(1)))));
    }

    #[test]
    fn each_call_decides_its_outcome() {
        let decided = |decide: fn(&Control) -> bool| {
            let control = Control::new();
            assert!(decide(&control));
            control.decided().unwrap()
        };
        assert_eq!(decided(Control::ack), Disposition::Ack);
        assert_eq!(decided(Control::release), Disposition::Nack(Nack::Release));
        assert_eq!(decided(|control| control.reject("bad")), Disposition::Nack(Nack::dead_letter("bad")));
    }
}
