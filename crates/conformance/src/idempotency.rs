//! The suite for stores of idempotency records.
//!
//! As with providers, a store is tested only from outside. Each test has its own name and keys; stores that break one
//! rule each, in the tests of this crate, show that each test can fail.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::{Begun, IdempotencyKey, IdempotencyStore, IdempotencyToken, MessagingError, Standing};
use uuid::Uuid;

use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};
use crate::records_finding::RecordsFinding;

/// How the suite reaches a store of records and advances its clock.
pub trait IdempotencyHarness: Send + Sync {
    /// The store under test.
    type Store: IdempotencyStore;

    /// Opens a further connection to the same store: another worker.
    fn open(&self) -> impl Future<Output = Result<Self::Store, MessagingError>> + Send;

    /// Lets `time` pass on the store's clock.
    fn elapse(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

const LEASE: Duration = Duration::from_secs(30);
const INSTANT: Duration = Duration::from_millis(1);

/// Runs every test.
pub async fn exercise_idempotency<H: IdempotencyHarness>(harness: &H) -> Vec<RecordsFinding> {
    macro_rules! run {
        ($($test:ident,)*) => {
            vec![$(RecordsFinding::of(stringify!($test), $test(&Fixture { harness, run: Uuid::new_v4() }).await),)*]
        };
    }
    run![
        completed_work_stays_done_for_every_worker,
        running_work_has_one_worker,
        concurrent_beginnings_yield_one_worker,
        work_of_a_crashed_worker_can_begin_again_after_its_lease,
        a_lease_can_be_extended,
        a_late_worker_cannot_change_work_that_another_has_begun,
        a_late_worker_may_complete_work_that_no_other_has_begun,
        abandoned_work_can_begin_again_at_once,
        completed_work_cannot_be_abandoned,
        only_old_records_are_forgotten,
        a_lease_without_length_is_refused,
    ]
}

struct Fixture<'h, H> {
    harness: &'h H,
    run: Uuid,
}

impl<H: IdempotencyHarness> Fixture<'_, H> {
    fn key(&self, name: &str) -> Result<IdempotencyKey, Stop> {
        Ok(IdempotencyKey::new(format!("{}/{name}", self.run))?)
    }

    async fn open(&self) -> Result<H::Store, Stop> {
        Ok(self.harness.open().await?)
    }
}

async fn begin<S: IdempotencyStore>(store: &S, key: &IdempotencyKey) -> Result<Begun, Stop> {
    Ok(store.begin(key, LEASE, soon()).await?)
}

async fn fresh<S: IdempotencyStore>(store: &S, key: &IdempotencyKey) -> Result<IdempotencyToken, Stop> {
    match begin(store, key).await? {
        Begun::Fresh(token) => {
            ensure_same("the token's key", token.key(), key)?;
            Ok(token)
        }
        other => violation(format!("new work is {other:?}")),
    }
}

fn ensure_busy(begun: Begun, at_most: Duration) -> Check {
    match begun {
        Begun::Busy { remaining } => ensure(!remaining.is_zero() && remaining <= at_most, || {
            format!("a lease of {at_most:?} still lasts {remaining:?}")
        }),
        other => violation(format!("work under way is {other:?}")),
    }
}

async fn completed_work_stays_done_for_every_worker<H: IdempotencyHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, key) = (fixture.open().await?, fixture.open().await?, fixture.key("done")?);
    let token = fresh(&store, &key).await?;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    fixture.harness.elapse(LEASE * 100).await;
    ensure_same("done work", begin(&other, &key).await?, Begun::Done)?;
    ensure_same("a second completion", other.complete(&token, soon()).await?, Standing::Held)?;
    fresh(&other, &fixture.key("another")?).await.map(drop)
}

async fn running_work_has_one_worker<H: IdempotencyHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, key) = (fixture.open().await?, fixture.open().await?, fixture.key("busy")?);
    let token = fresh(&store, &key).await?;
    ensure_busy(begin(&store, &key).await?, LEASE)?;
    fixture.harness.elapse(LEASE / 2).await;
    ensure_busy(begin(&other, &key).await?, LEASE / 2)?;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)
}

async fn concurrent_beginnings_yield_one_worker<H: IdempotencyHarness>(fixture: &Fixture<'_, H>) -> Check {
    let stores = [fixture.open().await?, fixture.open().await?, fixture.open().await?];
    for round in 0..20 {
        let key = fixture.key(&format!("race {round}"))?;
        let begun = join_all((0..12).map(|worker| stores[worker % 3].begin(&key, LEASE, soon()))).await;
        let begun = begun.into_iter().collect::<Result<Vec<_>, _>>()?;
        let workers = begun.iter().filter(|begun| matches!(begun, Begun::Fresh(_))).count();
        ensure_same("the number of workers of one key", workers, 1)?;
    }
    Ok(())
}

async fn work_of_a_crashed_worker_can_begin_again_after_its_lease<H: IdempotencyHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, key) = (fixture.open().await?, fixture.key("crashed")?);
    let first = fresh(&store, &key).await?;
    fixture.harness.elapse(LEASE + INSTANT).await;
    let second = fresh(&store, &key).await?;
    ensure(first != second, || "both beginnings have the same token".into())
}

async fn a_lease_can_be_extended<H: IdempotencyHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, key) = (fixture.open().await?, fixture.open().await?, fixture.key("extended")?);
    let token = fresh(&store, &key).await?;
    fixture.harness.elapse(LEASE / 2).await;
    ensure_same("an extension", store.extend(&token, LEASE, soon()).await?, Standing::Held)?;
    fixture.harness.elapse(LEASE * 3 / 4).await;
    ensure_busy(begin(&other, &key).await?, LEASE / 4)?;
    fixture.harness.elapse(LEASE / 4 + INSTANT).await;
    fresh(&other, &key).await?;
    ensure_same("a late extension", store.extend(&token, LEASE, soon()).await?, Standing::Lost)
}

async fn a_late_worker_cannot_change_work_that_another_has_begun<H: IdempotencyHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, other, key) = (fixture.open().await?, fixture.open().await?, fixture.key("fenced")?);
    let late = fresh(&store, &key).await?;
    fixture.harness.elapse(LEASE + INSTANT).await;
    let newer = fresh(&other, &key).await?;
    ensure_same("a late completion", store.complete(&late, soon()).await?, Standing::Lost)?;
    ensure_same("a late abandonment", store.abandon(&late, soon()).await?, Standing::Lost)?;
    ensure_busy(begin(&store, &key).await?, LEASE)?;
    ensure_same("the newer completion", other.complete(&newer, soon()).await?, Standing::Held)?;
    ensure_same("a late completion of done work", store.complete(&late, soon()).await?, Standing::Lost)
}

async fn a_late_worker_may_complete_work_that_no_other_has_begun<H: IdempotencyHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, key) = (fixture.open().await?, fixture.key("late")?);
    let token = fresh(&store, &key).await?;
    fixture.harness.elapse(LEASE * 2).await;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    ensure_same("done work", begin(&store, &key).await?, Begun::Done)
}

async fn abandoned_work_can_begin_again_at_once<H: IdempotencyHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, key) = (fixture.open().await?, fixture.key("given up")?);
    let token = fresh(&store, &key).await?;
    ensure_same("an abandonment", store.abandon(&token, soon()).await?, Standing::Held)?;
    ensure_same("a second abandonment", store.abandon(&token, soon()).await?, Standing::Lost)?;
    fresh(&store, &key).await?;
    ensure_same("a completion of abandoned work", store.complete(&token, soon()).await?, Standing::Lost)
}

async fn completed_work_cannot_be_abandoned<H: IdempotencyHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, key) = (fixture.open().await?, fixture.key("finished")?);
    let token = fresh(&store, &key).await?;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    ensure_same("an abandonment", store.abandon(&token, soon()).await?, Standing::Held)?;
    ensure_same("an extension", store.extend(&token, LEASE, soon()).await?, Standing::Held)?;
    fixture.harness.elapse(LEASE * 2).await;
    ensure_same("done work", begin(&store, &key).await?, Begun::Done)
}

async fn only_old_records_are_forgotten<H: IdempotencyHarness>(fixture: &Fixture<'_, H>) -> Check {
    let store = fixture.open().await?;
    // Records of other tests are older than any here.
    store.forget(Duration::ZERO, soon()).await?;
    for number in 0..2500 {
        let token = fresh(&store, &fixture.key(&format!("old {number}"))?).await?;
        ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    }
    let crashed = fixture.key("crashed")?;
    fresh(&store, &crashed).await?;
    fixture.harness.elapse(LEASE * 10).await;
    let (young, running) = (fixture.key("young")?, fixture.key("running")?);
    let token = fresh(&store, &young).await?;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    fixture.harness.elapse(LEASE).await;
    fresh(&store, &running).await?;
    ensure_same("the number of forgotten records", store.forget(LEASE * 5, soon()).await?, 2501)?;
    ensure_same("young work", begin(&store, &young).await?, Begun::Done)?;
    ensure_busy(begin(&store, &running).await?, LEASE)?;
    fresh(&store, &fixture.key("old 7")?).await?;
    ensure_same("the number of records left to forget", store.forget(LEASE * 5, soon()).await?, 0)
}

async fn a_lease_without_length_is_refused<H: IdempotencyHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, key) = (fixture.open().await?, fixture.key("zero")?);
    for lease in [Duration::ZERO, Duration::MAX] {
        let refused = store.begin(&key, lease, soon()).await;
        ensure(matches!(refused, Err(MessagingError::InvalidInput { .. })), || format!("{lease:?}: {refused:?}"))?;
    }
    let token = fresh(&store, &key).await?;
    let refused = store.extend(&token, Duration::ZERO, soon()).await;
    ensure(matches!(refused, Err(MessagingError::InvalidInput { .. })), || format!("an extension: {refused:?}"))
}
