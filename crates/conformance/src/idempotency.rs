//! The suite that judges every store of idempotency records.
//!
//! As with providers, a store is seen only from outside. Each test has a name and keys of its own; stores that break one
//! rule each, in the tests of this crate, show that each can fail.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_core::{Begun, IdempotencyKey, IdempotencyStore, IdempotencyToken, MessagingError, Standing};
use uuid::Uuid;

use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};
use crate::records_finding::RecordsFinding;

/// How the suite reaches a store of records, and lets its time pass.
pub trait IdempotencyHarness: Send + Sync {
    /// The store under test.
    type Store: IdempotencyStore;

    /// Opens one more connection to the same store: another worker.
    fn open(&self) -> impl Future<Output = Result<Self::Store, MessagingError>> + Send;

    /// Lets that much time pass by the store's clock.
    fn elapse(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

const LEASE: Duration = Duration::from_secs(30);
const INSTANT: Duration = Duration::from_millis(1);

/// Runs every test.
pub async fn exercise_idempotency<H: IdempotencyHarness>(harness: &H) -> Vec<RecordsFinding> {
    macro_rules! run {
        ($($test:ident,)*) => {
            vec![$(RecordsFinding::of(stringify!($test), $test(&Bench { harness, run: Uuid::new_v4() }).await),)*]
        };
    }
    run![
        work_that_is_done_stays_done_for_everybody,
        work_under_way_is_somebodys_alone,
        concurrent_beginnings_yield_one_worker,
        work_of_a_crashed_worker_can_be_begun_when_its_lease_has_run_out,
        a_lease_can_be_extended,
        a_late_worker_cannot_touch_what_somebody_else_has_begun,
        a_late_worker_whose_work_nobody_has_begun_may_complete_it,
        work_that_was_given_up_can_be_begun_at_once,
        work_that_is_done_cannot_be_given_up,
        old_records_are_forgotten_and_no_others,
        a_lease_without_length_is_refused,
    ]
}

struct Bench<'h, H> {
    harness: &'h H,
    run: Uuid,
}

impl<H: IdempotencyHarness> Bench<'_, H> {
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
        other => violation(format!("work that nobody does is {other:?}")),
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

async fn work_that_is_done_stays_done_for_everybody<H: IdempotencyHarness>(bench: &Bench<'_, H>) -> Check {
    let (store, other, key) = (bench.open().await?, bench.open().await?, bench.key("done")?);
    let token = fresh(&store, &key).await?;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    bench.harness.elapse(LEASE * 100).await;
    ensure_same("done work", begin(&other, &key).await?, Begun::Done)?;
    ensure_same("a second completion", other.complete(&token, soon()).await?, Standing::Held)?;
    fresh(&other, &bench.key("another")?).await.map(drop)
}

async fn work_under_way_is_somebodys_alone<H: IdempotencyHarness>(bench: &Bench<'_, H>) -> Check {
    let (store, other, key) = (bench.open().await?, bench.open().await?, bench.key("busy")?);
    let token = fresh(&store, &key).await?;
    ensure_busy(begin(&store, &key).await?, LEASE)?;
    bench.harness.elapse(LEASE / 2).await;
    ensure_busy(begin(&other, &key).await?, LEASE / 2)?;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)
}

async fn concurrent_beginnings_yield_one_worker<H: IdempotencyHarness>(bench: &Bench<'_, H>) -> Check {
    let stores = [bench.open().await?, bench.open().await?, bench.open().await?];
    for round in 0..20 {
        let key = bench.key(&format!("race {round}"))?;
        let begun = join_all((0..12).map(|worker| stores[worker % 3].begin(&key, LEASE, soon()))).await;
        let begun = begun.into_iter().collect::<Result<Vec<_>, _>>()?;
        let workers = begun.iter().filter(|begun| matches!(begun, Begun::Fresh(_))).count();
        ensure_same("the number of workers of one key", workers, 1)?;
    }
    Ok(())
}

async fn work_of_a_crashed_worker_can_be_begun_when_its_lease_has_run_out<H: IdempotencyHarness>(
    bench: &Bench<'_, H>,
) -> Check {
    let (store, key) = (bench.open().await?, bench.key("crashed")?);
    let first = fresh(&store, &key).await?;
    bench.harness.elapse(LEASE + INSTANT).await;
    let second = fresh(&store, &key).await?;
    ensure(first != second, || "both beginnings have the same token".into())
}

async fn a_lease_can_be_extended<H: IdempotencyHarness>(bench: &Bench<'_, H>) -> Check {
    let (store, other, key) = (bench.open().await?, bench.open().await?, bench.key("extended")?);
    let token = fresh(&store, &key).await?;
    bench.harness.elapse(LEASE / 2).await;
    ensure_same("an extension", store.extend(&token, LEASE, soon()).await?, Standing::Held)?;
    bench.harness.elapse(LEASE * 3 / 4).await;
    ensure_busy(begin(&other, &key).await?, LEASE / 4)?;
    bench.harness.elapse(LEASE / 4 + INSTANT).await;
    fresh(&other, &key).await?;
    ensure_same("a late extension", store.extend(&token, LEASE, soon()).await?, Standing::Lost)
}

async fn a_late_worker_cannot_touch_what_somebody_else_has_begun<H: IdempotencyHarness>(bench: &Bench<'_, H>) -> Check {
    let (store, other, key) = (bench.open().await?, bench.open().await?, bench.key("fenced")?);
    let late = fresh(&store, &key).await?;
    bench.harness.elapse(LEASE + INSTANT).await;
    let newer = fresh(&other, &key).await?;
    ensure_same("a late completion", store.complete(&late, soon()).await?, Standing::Lost)?;
    ensure_same("a late abandonment", store.abandon(&late, soon()).await?, Standing::Lost)?;
    ensure_busy(begin(&store, &key).await?, LEASE)?;
    ensure_same("the newer completion", other.complete(&newer, soon()).await?, Standing::Held)?;
    ensure_same("a late completion of done work", store.complete(&late, soon()).await?, Standing::Lost)
}

async fn a_late_worker_whose_work_nobody_has_begun_may_complete_it<H: IdempotencyHarness>(
    bench: &Bench<'_, H>,
) -> Check {
    let (store, key) = (bench.open().await?, bench.key("late")?);
    let token = fresh(&store, &key).await?;
    bench.harness.elapse(LEASE * 2).await;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    ensure_same("done work", begin(&store, &key).await?, Begun::Done)
}

async fn work_that_was_given_up_can_be_begun_at_once<H: IdempotencyHarness>(bench: &Bench<'_, H>) -> Check {
    let (store, key) = (bench.open().await?, bench.key("given up")?);
    let token = fresh(&store, &key).await?;
    ensure_same("an abandonment", store.abandon(&token, soon()).await?, Standing::Held)?;
    ensure_same("a second abandonment", store.abandon(&token, soon()).await?, Standing::Lost)?;
    fresh(&store, &key).await?;
    ensure_same("a completion of what was given up", store.complete(&token, soon()).await?, Standing::Lost)
}

async fn work_that_is_done_cannot_be_given_up<H: IdempotencyHarness>(bench: &Bench<'_, H>) -> Check {
    let (store, key) = (bench.open().await?, bench.key("finished")?);
    let token = fresh(&store, &key).await?;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    ensure_same("an abandonment", store.abandon(&token, soon()).await?, Standing::Held)?;
    ensure_same("an extension", store.extend(&token, LEASE, soon()).await?, Standing::Held)?;
    bench.harness.elapse(LEASE * 2).await;
    ensure_same("done work", begin(&store, &key).await?, Begun::Done)
}

async fn old_records_are_forgotten_and_no_others<H: IdempotencyHarness>(bench: &Bench<'_, H>) -> Check {
    let store = bench.open().await?;
    // What other tests have left is older than anything here.
    store.forget(Duration::ZERO, soon()).await?;
    for number in 0..2500 {
        let token = fresh(&store, &bench.key(&format!("old {number}"))?).await?;
        ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    }
    let crashed = bench.key("crashed")?;
    fresh(&store, &crashed).await?;
    bench.harness.elapse(LEASE * 10).await;
    let (young, running) = (bench.key("young")?, bench.key("running")?);
    let token = fresh(&store, &young).await?;
    ensure_same("a completion", store.complete(&token, soon()).await?, Standing::Held)?;
    bench.harness.elapse(LEASE).await;
    fresh(&store, &running).await?;
    ensure_same("the number of forgotten records", store.forget(LEASE * 5, soon()).await?, 2501)?;
    ensure_same("young work", begin(&store, &young).await?, Begun::Done)?;
    ensure_busy(begin(&store, &running).await?, LEASE)?;
    fresh(&store, &bench.key("old 7")?).await?;
    ensure_same("what is left to forget", store.forget(LEASE * 5, soon()).await?, 0)
}

async fn a_lease_without_length_is_refused<H: IdempotencyHarness>(bench: &Bench<'_, H>) -> Check {
    let (store, key) = (bench.open().await?, bench.key("zero")?);
    for lease in [Duration::ZERO, Duration::MAX] {
        let refused = store.begin(&key, lease, soon()).await;
        ensure(matches!(refused, Err(MessagingError::InvalidInput { .. })), || format!("{lease:?}: {refused:?}"))?;
    }
    let token = fresh(&store, &key).await?;
    let refused = store.extend(&token, Duration::ZERO, soon()).await;
    ensure(matches!(refused, Err(MessagingError::InvalidInput { .. })), || format!("an extension: {refused:?}"))
}
