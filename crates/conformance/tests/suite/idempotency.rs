//! The idempotency suite on correct and on broken stores.

use std::time::Duration;

use postrider_conformance::{IdempotencyHarness, exercise_idempotency};
use postrider_core::{
    Begun, Deadline, IdempotencyKey, IdempotencyStore, IdempotencyToken, ManualClock, MemoryProvider, MemoryStore,
    MessagingError, Standing, async_trait,
};

use crate::in_paused_time;

/// The fault of a broken store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Completed work can begin again.
    ForgetsDone,
    /// Running work can begin again.
    SharesWork,
    /// Concurrent beginnings all succeed.
    LooksBeforeItTakes,
    /// The work of a crashed worker can never begin again.
    NeverExpires,
    /// An extension has no effect.
    NeverExtends,
    /// A late worker can change newer work.
    NoFence,
    /// A late worker can never complete its work.
    DropsLateWork,
    /// Abandoned work stays leased.
    KeepsAbandoned,
    /// Completed work can be abandoned.
    AbandonsDone,
    /// All records are forgotten at once.
    ForgetsAll,
    /// A lease of zero length is accepted.
    TakesAnyLease,
}

#[derive(Debug, Clone)]
struct Store {
    inner: MemoryProvider,
    clock: ManualClock,
    fault: Fault,
}

impl Store {
    fn new(fault: Fault) -> Self {
        let clock = ManualClock::default();
        Self { inner: MemoryStore::builder().clock(clock.clone()).build().open(), clock, fault }
    }

    async fn begin_again(&self, key: &IdempotencyKey, lease: Duration) -> Result<Begun, MessagingError> {
        // Removes the record in any state.
        self.inner.forget(Duration::ZERO, Deadline::default()).await?;
        self.inner.begin(key, lease, Deadline::default()).await
    }
}

#[async_trait]
impl IdempotencyStore for Store {
    async fn begin(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, MessagingError> {
        let lease = match self.fault {
            Fault::NeverExpires => lease.saturating_mul(1000),
            Fault::TakesAnyLease => lease.clamp(Duration::from_secs(1), Duration::from_secs(30)),
            _ => lease,
        };
        let begun = self.inner.begin(key, lease, deadline).await?;
        match (self.fault, &begun) {
            (Fault::ForgetsDone, Begun::Done) => self.begin_again(key, lease).await,
            (Fault::SharesWork, Begun::Busy { .. }) => Ok(Begun::Fresh(IdempotencyToken::new(key.clone(), 7))),
            (Fault::LooksBeforeItTakes, Begun::Fresh(token)) => {
                let _ = self.inner.abandon(token, deadline).await?;
                tokio::task::yield_now().await;
                let _ = self.inner.begin(key, lease, deadline).await?;
                Ok(begun)
            }
            _ => Ok(begun),
        }
    }

    async fn extend(
        &self,
        token: &IdempotencyToken,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Standing, MessagingError> {
        if self.fault == Fault::NeverExtends {
            return Ok(Standing::Held);
        }
        self.inner.extend(token, lease, deadline).await
    }

    async fn complete(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        if self.fault == Fault::DropsLateWork
            && let Begun::Fresh(newer) = self.inner.begin(token.key(), Duration::from_secs(1), deadline).await?
        {
            let _ = self.inner.abandon(&newer, deadline).await?;
        }
        let standing = self.inner.complete(token, deadline).await?;
        Ok(if self.fault == Fault::NoFence { Standing::Held } else { standing })
    }

    async fn abandon(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        match self.fault {
            Fault::KeepsAbandoned => return Ok(Standing::Held),
            Fault::AbandonsDone => drop(self.inner.forget(Duration::ZERO, deadline).await?),
            _ => {}
        }
        self.inner.abandon(token, deadline).await
    }

    async fn forget(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        let older_than = if self.fault == Fault::ForgetsAll { Duration::ZERO } else { older_than };
        self.inner.forget(older_than, deadline).await
    }
}

impl IdempotencyHarness for Store {
    type Store = Self;

    async fn open(&self) -> Result<Self, MessagingError> {
        Ok(self.clone())
    }

    async fn elapse(&self, time: Duration) {
        self.clock.advance(time);
    }
}

#[test]
fn memory_passes_every_test() {
    in_paused_time(async {
        for finding in exercise_idempotency(&Store::new(Fault::None)).await {
            assert_eq!(finding.fault, None, "{finding}");
        }
    });
}

#[test]
fn each_fault_is_found_by_its_test() {
    let faults = [
        (Fault::ForgetsDone, "completed_work_stays_done_for_every_worker"),
        (Fault::SharesWork, "running_work_has_one_worker"),
        (Fault::LooksBeforeItTakes, "concurrent_beginnings_yield_one_worker"),
        (Fault::NeverExpires, "work_of_a_crashed_worker_can_begin_again_after_its_lease"),
        (Fault::NeverExtends, "a_lease_can_be_extended"),
        (Fault::NoFence, "a_late_worker_cannot_change_work_that_another_has_begun"),
        (Fault::DropsLateWork, "a_late_worker_may_complete_work_that_no_other_has_begun"),
        (Fault::KeepsAbandoned, "abandoned_work_can_begin_again_at_once"),
        (Fault::AbandonsDone, "completed_work_cannot_be_abandoned"),
        (Fault::ForgetsAll, "only_old_records_are_forgotten"),
        (Fault::TakesAnyLease, "a_lease_without_length_is_refused"),
    ];
    in_paused_time(async {
        let tests = exercise_idempotency(&Store::new(Fault::None)).await.len();
        assert_eq!(faults.len(), tests, "each test has a fault that it finds");
        for (fault, test) in faults {
            let findings = exercise_idempotency(&Store::new(fault)).await;
            let found = findings.iter().find(|finding| finding.test == test).unwrap();
            assert!(found.fault.is_some(), "{fault:?} is not found by {test}");
        }
    });
}
