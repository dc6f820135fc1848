//! The suite for stores of state records.
//!
//! As with providers, a store is tested only from outside. Each test has its own name and kinds; stores that break one
//! rule each, in the tests of the SQLite store, show that each test can fail.

mod listing;

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use postrider_core::state_records::{MAX_RECORD_BYTES, MAX_RECORDS_LISTED};
use postrider_core::{
    MessagingError, Put, RecordCursor, RecordKey, RecordKind, RecordOrder, RecordQuery, StateRecord, StateRecords,
};
use uuid::Uuid;

use crate::probe::{Check, Stop, ensure, ensure_same, soon, violation};
use crate::records_finding::RecordsFinding;
use listing::{a_listing_is_in_the_order_of_creation_either_way, a_listing_under_writes_shows_each_record_once};

/// How the suite reaches a store of records and advances its clock.
pub trait StateRecordsHarness: Send + Sync {
    /// The store under test.
    type Store: StateRecords;

    /// Opens a further connection to the same store: another process.
    fn open(&self) -> impl Future<Output = Result<Self::Store, MessagingError>> + Send;

    /// Lets `time` pass on the store's clock.
    fn elapse(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

const LIFETIME: Duration = Duration::from_secs(3600);
const INSTANT: Duration = Duration::from_millis(1);

/// Runs every test.
pub async fn exercise_state_records<H: StateRecordsHarness>(harness: &H) -> Vec<RecordsFinding> {
    macro_rules! run {
        ($($test:ident,)*) => {
            vec![$(RecordsFinding::of(stringify!($test), $test(&Fixture { harness, run: Uuid::new_v4() }).await),)*]
        };
    }
    run![
        a_record_is_read_as_it_was_put,
        a_key_that_is_taken_shows_its_record,
        concurrent_puts_of_one_key_make_one_record,
        a_replacement_needs_the_current_version,
        concurrent_replacements_of_one_version_yield_one,
        a_version_is_never_reused,
        an_expired_record_is_absent,
        a_replacement_sets_a_new_end,
        a_listing_is_in_the_order_of_creation_either_way,
        a_listing_under_writes_shows_each_record_once,
        kinds_do_not_touch_each_other,
        only_expired_records_are_forgotten,
        invalid_arguments_are_refused,
    ]
}

struct Fixture<'h, H> {
    harness: &'h H,
    run: Uuid,
}

impl<H: StateRecordsHarness> Fixture<'_, H> {
    /// A kind of this test.
    fn kind(&self, name: &str) -> Result<RecordKind, Stop> {
        let own: String = self.run.as_bytes().iter().take(12).map(|byte| char::from(b'a' + byte % 26)).collect();
        Ok(RecordKind::new(format!("{own}_{name}"))?)
    }

    async fn open(&self) -> Result<H::Store, Stop> {
        Ok(self.harness.open().await?)
    }
}

fn key(name: impl fmt::Display) -> Result<RecordKey, Stop> {
    Ok(RecordKey::new(name.to_string())?)
}

async fn made<S: StateRecords>(
    store: &S,
    kind: &RecordKind,
    key: &RecordKey,
    value: &'static str,
    lifetime: Option<Duration>,
) -> Result<StateRecord, Stop> {
    match store.put_new(kind, key, Bytes::from_static(value.as_bytes()), lifetime, soon()).await? {
        Put::Made(record) => Ok(record),
        Put::Taken(there) => violation(format!("{key} of {kind} is taken: {there:?}")),
    }
}

async fn replace<S: StateRecords>(
    store: &S,
    record: &StateRecord,
    value: &'static str,
    lifetime: Option<Duration>,
) -> Result<Option<StateRecord>, Stop> {
    let value = Bytes::from_static(value.as_bytes());
    Ok(store.replace(&record.kind, &record.key, record.version, value, lifetime, soon()).await?)
}

async fn replaced<S: StateRecords>(
    store: &S,
    record: &StateRecord,
    value: &'static str,
    lifetime: Option<Duration>,
) -> Result<StateRecord, Stop> {
    match replace(store, record, value, lifetime).await? {
        Some(record) => Ok(record),
        None => violation(format!("a record was not replaced although the version matched: {record:?}")),
    }
}

/// Every record of a kind, and the number of pages.
async fn listed<S: StateRecords>(
    store: &S,
    kind: &RecordKind,
    limit: usize,
    order: RecordOrder,
) -> Result<(Vec<StateRecord>, usize), Stop> {
    let (mut records, mut pages) = (Vec::new(), 0);
    let mut query = RecordQuery { limit, after: None, order };
    loop {
        let page = store.list(kind, &query, soon()).await?;
        pages += 1;
        ensure(page.records.len() <= limit, || format!("a page of {limit} has {} records", page.records.len()))?;
        records.extend(page.records);
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok((records, pages)),
        }
        ensure(pages < 10_000, || "the listing does not end".into())?;
    }
}

fn keys(records: &[StateRecord]) -> Vec<&str> {
    records.iter().map(|record| record.key.as_str()).collect()
}

async fn a_record_is_read_as_it_was_put<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, kind) = (fixture.open().await?, fixture.open().await?, fixture.kind("kept")?);
    let values = [Bytes::new(), Bytes::from_static(b"\0\xff bytes"), Bytes::from(vec![7; MAX_RECORD_BYTES])];
    let names = ["sha256:7f", "with spaces, ' quotes % and \u{e9}\u{4e16}", &"k".repeat(512)].map(key);
    let mut last = 0;
    for (value, key) in values.into_iter().zip(names) {
        let key = key?;
        let Put::Made(record) = store.put_new(&kind, &key, value.clone(), Some(LIFETIME), soon()).await? else {
            return violation("a new key is taken");
        };
        ensure(record.value == value, || format!("{} bytes became {record:?}", value.len()))?;
        ensure_same("what was put", (&record.kind, &record.key), (&kind, &key))?;
        let end = record.created_at.saturating_add(LIFETIME);
        ensure_same("the end of a lifetime", record.expires_at, Some(end))?;
        ensure(record.version > last, || format!("version {} came after {last}", record.version))?;
        last = record.version;
        ensure_same("what another reads", other.get(&kind, &key, soon()).await?, Some(record))?;
    }
    ensure_same("an unknown record", other.get(&kind, &key("another")?, soon()).await?, None)
}

async fn a_key_that_is_taken_shows_its_record<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, kind, key) = (fixture.open().await?, fixture.open().await?, fixture.kind("taken")?, key("k")?);
    let first = made(&store, &kind, &key, "first", None).await?;
    ensure_same("the end of what never ends", first.expires_at, None)?;
    let second = other.put_new(&kind, &key, Bytes::from_static(b"second"), Some(LIFETIME), soon()).await?;
    ensure_same("a second put", second, Put::Taken(first.clone()))?;
    ensure_same("the record afterwards", store.get(&kind, &key, soon()).await?, Some(first))?;
    ensure_same("a removal", other.remove(&kind, &key, soon()).await?, true)?;
    ensure_same("a second removal", store.remove(&kind, &key, soon()).await?, false)?;
    ensure_same("a removed record", store.get(&kind, &key, soon()).await?, None)?;
    made(&store, &kind, &key, "third", None).await.map(drop)
}

async fn concurrent_puts_of_one_key_make_one_record<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let stores = [fixture.open().await?, fixture.open().await?, fixture.open().await?];
    let kind = fixture.kind("race")?;
    for round in 0..20 {
        let key = key(round)?;
        // Half of the rounds replace an expired record.
        if round % 2 == 1 {
            made(&stores[0], &kind, &key, "expired", Some(INSTANT)).await?;
            fixture.harness.elapse(INSTANT * 2).await;
        }
        let puts = join_all((0..12u8).map(|number| {
            let value = Bytes::copy_from_slice(&[number]);
            stores[usize::from(number) % 3].put_new(&kind, &key, value, Some(LIFETIME), soon())
        }));
        let puts = puts.await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let winners: Vec<_> = puts.iter().filter(|put| matches!(put, Put::Made(_))).collect();
        ensure_same("the number of records that were made for one key", winners.len(), 1)?;
        let record = |put| match put {
            Put::Made(record) | Put::Taken(record) => record,
        };
        let seen: Vec<_> = puts.iter().cloned().map(record).collect();
        ensure(seen.windows(2).all(|pair| pair[0] == pair[1]), || format!("not all callers see one record: {puts:?}"))?;
    }
    Ok(())
}

async fn a_replacement_needs_the_current_version<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, kind, key) =
        (fixture.open().await?, fixture.open().await?, fixture.kind("replaced")?, key("k")?);
    let first = made(&store, &kind, &key, "first", None).await?;
    fixture.harness.elapse(LIFETIME).await;
    let second = replaced(&other, &first, "second", None).await?;
    ensure_same("the value of a replacement", &second.value[..], b"second")?;
    ensure(second.version > first.version, || format!("version {} became {}", first.version, second.version))?;
    ensure_same("the creation of what was replaced", second.created_at, first.created_at)?;
    ensure_same("a replacement of an old version", replace(&store, &first, "late", None).await?, None)?;
    ensure_same("the record afterwards", store.get(&kind, &key, soon()).await?, Some(second.clone()))?;
    let third = replaced(&store, &second, "third", None).await?;
    ensure(third.version > second.version, || format!("version {} became {}", second.version, third.version))?;
    ensure_same("a removal", store.remove(&kind, &key, soon()).await?, true)?;
    ensure_same("a replacement of a removed record", replace(&store, &third, "late", None).await?, None)?;
    ensure_same("the removed record", store.get(&kind, &key, soon()).await?, None)
}

async fn concurrent_replacements_of_one_version_yield_one<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let stores = [fixture.open().await?, fixture.open().await?, fixture.open().await?];
    let (kind, key) = (fixture.kind("contended")?, key("k")?);
    let mut record = made(&stores[0], &kind, &key, "", None).await?;
    for _ in 0..20 {
        let replacements = join_all((0..12u8).map(|number| {
            let value = Bytes::copy_from_slice(&[number]);
            stores[usize::from(number) % 3].replace(&kind, &key, record.version, value, None, soon())
        }));
        let answers = replacements.await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut won: Vec<StateRecord> = answers.into_iter().flatten().collect();
        ensure_same("the number of replacements of one version", won.len(), 1)?;
        ensure_same("the record afterwards", stores[1].get(&kind, &key, soon()).await?, won.first().cloned())?;
        record = won.remove(0);
    }
    Ok(())
}

async fn a_version_is_never_reused<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, kind, key) = (fixture.open().await?, fixture.kind("reborn")?, key("k")?);
    let mut before = Vec::new();
    for round in 0..4 {
        let lifetime = (round % 2 == 0).then_some(LIFETIME);
        let record = made(&store, &kind, &key, "a", lifetime).await?;
        for old in &before {
            ensure_same("a replacement of a removed record", replace(&store, old, "late", None).await?, None)?;
        }
        ensure_same("the record afterwards", store.get(&kind, &key, soon()).await?, Some(record.clone()))?;
        let changed = replaced(&store, &record, "b", lifetime).await?;
        before.extend([record, changed]);
        if lifetime.is_some() {
            fixture.harness.elapse(LIFETIME + INSTANT).await;
        } else {
            ensure_same("a removal", store.remove(&kind, &key, soon()).await?, true)?;
        }
    }
    let versions: BTreeSet<i64> = before.iter().map(|record| record.version).collect();
    ensure_same("the number of versions of eight changes", versions.len(), before.len())
}

async fn an_expired_record_is_absent<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, other, kind, key) = (fixture.open().await?, fixture.open().await?, fixture.kind("expired")?, key("k")?);
    let first = made(&store, &kind, &key, "first", Some(LIFETIME)).await?;
    fixture.harness.elapse(LIFETIME / 2).await;
    ensure_same("a record in its lifetime", other.get(&kind, &key, soon()).await?, Some(first.clone()))?;
    fixture.harness.elapse(LIFETIME / 2 + INSTANT).await;
    ensure_same("an expired record", other.get(&kind, &key, soon()).await?, None)?;
    for order in [RecordOrder::OldestFirst, RecordOrder::NewestFirst] {
        ensure_same("a listing of what has expired", listed(&other, &kind, 10, order).await?.0, Vec::new())?;
    }
    ensure_same("a replacement of an expired record", replace(&other, &first, "late", None).await?, None)?;
    ensure_same("a removal of an expired record", store.remove(&kind, &key, soon()).await?, false)?;
    let second = made(&other, &kind, &key, "second", None).await?;
    ensure(second.created_at > first.created_at, || format!("{second:?} was made before {first:?} expired"))?;
    ensure(second.version > first.version, || format!("version {} came after {}", second.version, first.version))?;
    ensure_same("the record afterwards", store.get(&kind, &key, soon()).await?, Some(second))
}

async fn a_replacement_sets_a_new_end<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, kind) = (fixture.open().await?, fixture.kind("renewed")?);
    let (renewed, endless, ended) = (key("renewed")?, key("endless")?, key("ended")?);
    let first = made(&store, &kind, &renewed, "a", Some(LIFETIME)).await?;
    let second = made(&store, &kind, &endless, "b", Some(LIFETIME)).await?;
    let third = made(&store, &kind, &ended, "c", None).await?;
    fixture.harness.elapse(LIFETIME / 2).await;
    replaced(&store, &first, "a", Some(LIFETIME)).await?;
    ensure_same("the end of what never ends", replaced(&store, &second, "b", None).await?.expires_at, None)?;
    replaced(&store, &third, "c", Some(LIFETIME / 4)).await?;
    fixture.harness.elapse(LIFETIME * 3 / 4).await;
    let left = listed(&store, &kind, 10, RecordOrder::OldestFirst).await?.0;
    ensure_same("what is left", keys(&left), vec!["renewed", "endless"])?;
    fixture.harness.elapse(LIFETIME / 4 + INSTANT).await;
    let left = listed(&store, &kind, 10, RecordOrder::OldestFirst).await?.0;
    ensure_same("the records without an end", keys(&left), vec!["endless"])
}

async fn kinds_do_not_touch_each_other<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, key) = (fixture.open().await?, key("k")?);
    let (kind, other) = (fixture.kind("one")?, fixture.kind("two")?);
    let first = made(&store, &kind, &key, "first", None).await?;
    let second = made(&store, &other, &key, "second", None).await?;
    let misplaced = store.replace(&other, &key, first.version, Bytes::new(), None, soon()).await?;
    ensure_same("a replacement by another kind's version", misplaced, None)?;
    let third = replaced(&store, &first, "third", None).await?;
    ensure_same("the other kind's record", store.get(&other, &key, soon()).await?, Some(second.clone()))?;
    for (kind, record) in [(&kind, &third), (&other, &second)] {
        let seen = listed(&store, kind, 10, RecordOrder::NewestFirst).await?.0;
        ensure(seen == [record.clone()], || format!("the listing of {kind} has {seen:?}"))?;
    }
    ensure_same("a removal", store.remove(&kind, &key, soon()).await?, true)?;
    ensure_same("the other kind's record", store.get(&other, &key, soon()).await?, Some(second))
}

async fn only_expired_records_are_forgotten<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, kind, other) = (fixture.open().await?, fixture.kind("old")?, fixture.kind("older")?);
    // Removes the records of other tests first.
    store.forget_expired(soon()).await?;
    for number in 0..2500 {
        made(&store, &kind, &key(number)?, "v", Some(LIFETIME)).await?;
    }
    made(&store, &other, &key("k")?, "v", Some(LIFETIME)).await?;
    let endless = made(&store, &other, &key("endless")?, "v", None).await?;
    ensure_same("the number of forgotten records before their end", store.forget_expired(soon()).await?, 0)?;
    fixture.harness.elapse(LIFETIME + INSTANT).await;
    let young = made(&store, &kind, &key("young")?, "v", Some(LIFETIME)).await?;
    // A record that had expired and was put again.
    let again = made(&store, &kind, &key(7)?, "v", Some(LIFETIME)).await?;
    ensure_same("the number of forgotten records", store.forget_expired(soon()).await?, 2500)?;
    ensure_same("what is left to forget", store.forget_expired(soon()).await?, 0)?;
    let left = listed(&store, &kind, 10, RecordOrder::OldestFirst).await?.0;
    ensure(left == [young, again], || format!("{left:?} are left"))?;
    ensure_same("what never ends", store.get(&other, &endless.key, soon()).await?, Some(endless))
}

async fn invalid_arguments_are_refused<H: StateRecordsHarness>(fixture: &Fixture<'_, H>) -> Check {
    fn ensure_refused<T: fmt::Debug>(what: &str, answer: Result<T, MessagingError>) -> Check {
        ensure(matches!(answer, Err(MessagingError::InvalidInput { .. })), || format!("{what}: {answer:?}"))
    }
    let (store, kind, key) = (fixture.open().await?, fixture.kind("refused")?, key("k")?);
    let large = Bytes::from(vec![0; MAX_RECORD_BYTES + 1]);
    ensure_refused("a large value", store.put_new(&kind, &key, large.clone(), None, soon()).await)?;
    for lifetime in [Duration::ZERO, Duration::MAX] {
        ensure_refused("a lifetime", store.put_new(&kind, &key, Bytes::new(), Some(lifetime), soon()).await)?;
    }
    let record = made(&store, &kind, &key, "v", None).await?;
    ensure_refused("a large replacement", store.replace(&kind, &key, record.version, large, None, soon()).await)?;
    let short = store.replace(&kind, &key, record.version, Bytes::new(), Some(Duration::ZERO), soon()).await;
    ensure_refused("a replacement's lifetime", short)?;
    for limit in [0, MAX_RECORDS_LISTED + 1] {
        let query = RecordQuery { limit, ..RecordQuery::default() };
        ensure_refused("a page's length", store.list(&kind, &query, soon()).await)?;
    }
    let query = RecordQuery { after: Some(RecordCursor("nowhere".into())), ..RecordQuery::default() };
    ensure_refused("a cursor", store.list(&kind, &query, soon()).await)?;
    ensure_same("the record afterwards", store.get(&kind, &key, soon()).await?, Some(record))
}
