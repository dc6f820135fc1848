//! Settling a message by hand.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use postrider_core::{DeadLetterReason, Disposition, Moment, Nack};
use tokio_util::sync::CancellationToken;

/// Settles a message from inside its handler, whatever the ack policy says. The first call counts; later ones change
/// nothing and answer `false`. Clones are the same.
///
/// It decides; the message is settled when its handler has returned. The handler's result is then only counted.
#[derive(Debug, Clone, Default)]
pub struct Control {
    // One allocation for all, because every message has one.
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    // Set once and then only read, by any number of tasks that a handler may have started: no lock is needed.
    decided: OnceLock<Disposition>,
    // Made when somebody asks: most handlers are done before anybody does.
    cancellation: OnceLock<CancellationToken>,
    /// When the store was last asked for the lease, and for how long. `None` where none is needed. A lock, held for a
    /// copy.
    lease: Mutex<Option<(Moment, Duration)>>,
}

impl Control {
    /// A message that nothing is decided about.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, for a handler that is told to give up by a token that is there already.
    pub(crate) fn with_cancellation(cancellation: CancellationToken) -> Self {
        let shared = Shared { cancellation: cancellation.into(), ..Shared::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Tells the handler to give up.
    pub(crate) fn cancellation(&self) -> &CancellationToken {
        self.shared.cancellation.get_or_init(CancellationToken::new)
    }

    /// The lease surely lasts for that time, counted from when the store was asked for it.
    pub(crate) fn is_leased_for(&self, lease: Duration, asked: Moment) {
        *self.lease() = Some((asked, lease));
    }

    /// The message was acknowledged before its handler began, and no lease is needed any more.
    pub(crate) fn needs_no_lease(&self) {
        *self.lease() = None;
    }

    pub(crate) fn is_leased(&self) -> bool {
        let lease = *self.lease();
        lease.is_none_or(|(asked, lease)| asked.elapsed() < lease)
    }

    fn lease(&self) -> MutexGuard<'_, Option<(Moment, Duration)>> {
        self.shared.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handled.
    pub fn ack(&self) -> bool {
        self.decide(Disposition::Ack)
    }

    /// Not handled: `nack` says what becomes of the message.
    pub fn nack(&self, nack: Nack) -> bool {
        self.decide(Disposition::Nack(nack))
    }

    /// To the dead letters, for that reason.
    pub fn reject(&self, reason: impl Into<DeadLetterReason>) -> bool {
        self.nack(Nack::dead_letter(reason))
    }

    /// Back to the queue at once, as if it had never been delivered.
    pub fn release(&self) -> bool {
        self.nack(Nack::Release)
    }

    /// What was decided.
    pub fn decided(&self) -> Option<Disposition> {
        self.shared.decided.get().cloned()
    }

    fn decide(&self, disposition: Disposition) -> bool {
        self.shared.decided.set(disposition).is_ok()
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
    fn each_call_decides_what_it_says() {
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
