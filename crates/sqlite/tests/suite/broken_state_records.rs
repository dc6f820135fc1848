//! Shows that the suite for small records can fail, with stores that break one rule at a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_conformance::{StateRecordsHarness, exercise_state_records};
use postrider_core::{
    Bytes, Deadline, MessagingError, Put, RecordCursor, RecordKey, RecordKind, RecordOrder, RecordPage, RecordQuery,
    StateRecord, StateRecords, async_trait,
};
use postrider_sqlite::SqliteStateRecords;

use crate::state_records::ManualClockHarness;

/// The fault of a broken store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Truncates long values.
    CutsValues,
    /// A put replaces an existing record.
    Overwrites,
    /// Concurrent puts all find the key free.
    LooksBeforeItPuts,
    /// Replaces a record whatever its version.
    IgnoresVersions,
    /// Concurrent replacements all find their version current.
    LooksBeforeItReplaces,
    /// A record that was removed and created again accepts its old versions.
    CountsVersionsAnew,
    /// Records never expire.
    NeverExpires,
    /// A replacement keeps the first expiry.
    KeepsTheEnd,
    /// Lists in the order of the keys.
    ListsByKey,
    /// Cursors are offsets.
    PagesByNumber,
    /// Keeps all kinds as one.
    MixesKinds,
    /// Forgets living records too.
    ForgetsTheLiving,
    /// Accepts values and times beyond the limits.
    TakesAnything,
}

const FAULTS: &[(Fault, &str)] = &[
    (Fault::CutsValues, "a_record_is_read_as_it_was_put"),
    (Fault::Overwrites, "a_key_that_is_taken_shows_its_record"),
    (Fault::LooksBeforeItPuts, "concurrent_puts_of_one_key_make_one_record"),
    (Fault::IgnoresVersions, "a_replacement_needs_the_current_version"),
    (Fault::LooksBeforeItReplaces, "concurrent_replacements_of_one_version_yield_one"),
    (Fault::CountsVersionsAnew, "a_version_is_never_reused"),
    (Fault::NeverExpires, "an_expired_record_is_absent"),
    (Fault::KeepsTheEnd, "a_replacement_sets_a_new_end"),
    (Fault::ListsByKey, "a_listing_is_in_the_order_of_creation_either_way"),
    (Fault::PagesByNumber, "a_listing_under_writes_shows_each_record_once"),
    (Fault::MixesKinds, "kinds_do_not_touch_each_other"),
    (Fault::ForgetsTheLiving, "only_expired_records_are_forgotten"),
    (Fault::TakesAnything, "invalid_arguments_are_refused"),
];

type Names = Arc<Mutex<BTreeSet<(RecordKind, RecordKey)>>>;

struct Broken {
    inner: SqliteStateRecords,
    fault: Fault,
    /// Every created record.
    made: Names,
    /// Every record that was removed at least once.
    removed: Names,
}

impl Broken {
    fn kind<'k>(&self, kind: &'k RecordKind) -> std::borrow::Cow<'k, RecordKind> {
        match self.fault {
            Fault::MixesKinds => std::borrow::Cow::Owned(RecordKind::constant("everything")),
            _ => std::borrow::Cow::Borrowed(kind),
        }
    }

    fn lifetime(&self, lifetime: Option<Duration>) -> Option<Duration> {
        match self.fault {
            Fault::NeverExpires => None,
            Fault::TakesAnything => lifetime.map(|some| some.clamp(Duration::from_secs(1), Duration::from_secs(9999))),
            _ => lifetime,
        }
    }

    fn value(&self, value: Bytes) -> Bytes {
        match self.fault {
            Fault::CutsValues => value.slice(..value.len().min(1000)),
            Fault::TakesAnything => value.slice(..value.len().min(1024 * 1024)),
            _ => value,
        }
    }

    /// Replaces the current record.
    async fn overwrite(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        value: &Bytes,
        lifetime: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, MessagingError> {
        while let Some(there) = self.inner.get(kind, key, deadline).await? {
            let replaced = self.inner.replace(kind, key, there.version, value.clone(), lifetime, deadline).await?;
            if replaced.is_some() {
                return Ok(replaced);
            }
        }
        Ok(None)
    }

    async fn everything(
        &self,
        kind: &RecordKind,
        order: RecordOrder,
        deadline: Deadline,
    ) -> Result<Vec<StateRecord>, MessagingError> {
        let query = RecordQuery { limit: 1000, after: None, order };
        Ok(self.inner.list(kind, &query, deadline).await?.records)
    }
}

#[async_trait]
impl StateRecords for Broken {
    async fn put_new(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        value: Bytes,
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Put, MessagingError> {
        let (kind, value, lifetime) = (self.kind(kind), self.value(value), self.lifetime(expires_in));
        self.made.lock().unwrap().insert((kind.clone().into_owned(), key.clone()));
        if self.fault == Fault::LooksBeforeItPuts && self.inner.get(&kind, key, deadline).await?.is_none() {
            tokio::task::yield_now().await;
            self.inner.remove(&kind, key, deadline).await?;
        }
        match self.inner.put_new(&kind, key, value.clone(), lifetime, deadline).await? {
            Put::Taken(there) if self.fault == Fault::Overwrites => {
                Ok(Put::Made(self.overwrite(&kind, key, &value, lifetime, deadline).await?.unwrap_or(there)))
            }
            put => Ok(put),
        }
    }

    async fn replace(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        version: i64,
        value: Bytes,
        expires_in: Option<Duration>,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, MessagingError> {
        let (kind, value, mut lifetime) = (self.kind(kind), self.value(value), self.lifetime(expires_in));
        let there = self.inner.get(&kind, key, deadline).await?;
        if self.fault == Fault::KeepsTheEnd {
            let left = there.as_ref().and_then(|there| Some(there.expires_at?.since(there.created_at)));
            lifetime = left;
        }
        let was_removed = self.removed.lock().unwrap().contains(&(kind.clone().into_owned(), key.clone()));
        let ignores = match self.fault {
            Fault::IgnoresVersions => true,
            Fault::LooksBeforeItReplaces => there.is_some_and(|there| there.version == version),
            Fault::CountsVersionsAnew => was_removed,
            _ => false,
        };
        if ignores {
            tokio::task::yield_now().await;
            return self.overwrite(&kind, key, &value, lifetime, deadline).await;
        }
        self.inner.replace(&kind, key, version, value, lifetime, deadline).await
    }

    async fn get(
        &self,
        kind: &RecordKind,
        key: &RecordKey,
        deadline: Deadline,
    ) -> Result<Option<StateRecord>, MessagingError> {
        self.inner.get(&self.kind(kind), key, deadline).await
    }

    async fn remove(&self, kind: &RecordKind, key: &RecordKey, deadline: Deadline) -> Result<bool, MessagingError> {
        let kind = self.kind(kind);
        self.removed.lock().unwrap().insert((kind.clone().into_owned(), key.clone()));
        self.inner.remove(&kind, key, deadline).await
    }

    async fn list(
        &self,
        kind: &RecordKind,
        query: &RecordQuery,
        deadline: Deadline,
    ) -> Result<RecordPage, MessagingError> {
        let kind = self.kind(kind);
        match self.fault {
            Fault::ListsByKey => {
                let mut records = self.everything(&kind, query.order, deadline).await?;
                records.sort_by(|a, b| a.key.cmp(&b.key));
                Ok(RecordPage { records, next: None })
            }
            Fault::PagesByNumber => {
                let before = query.after.as_ref().map_or(Ok(0), RecordCursor::sequence)?;
                let records = self.everything(&kind, query.order, deadline).await?;
                let skipped = usize::try_from(before).unwrap();
                let records: Vec<_> = records.into_iter().skip(skipped).take(query.limit).collect();
                let is_full = records.len() == query.limit;
                let next = is_full.then(|| RecordCursor::at(before + i64::try_from(query.limit).unwrap()));
                Ok(RecordPage { records, next })
            }
            Fault::TakesAnything => {
                let query = RecordQuery { limit: query.limit.clamp(1, 1000), after: None, order: query.order };
                self.inner.list(&kind, &query, deadline).await
            }
            _ => self.inner.list(&kind, query, deadline).await,
        }
    }

    async fn forget_expired(&self, deadline: Deadline) -> Result<u64, MessagingError> {
        let forgotten = self.inner.forget_expired(deadline).await?;
        if self.fault == Fault::ForgetsTheLiving && forgotten > 0 {
            let made = std::mem::take(&mut *self.made.lock().unwrap());
            for (kind, key) in made {
                self.inner.remove(&kind, &key, deadline).await?;
            }
        }
        Ok(forgotten)
    }
}

struct BrokenHarness {
    inner: ManualClockHarness,
    fault: Fault,
    made: Names,
    removed: Names,
}

impl BrokenHarness {
    fn new(fault: Fault) -> Self {
        Self { inner: ManualClockHarness::new(), fault, made: Names::default(), removed: Names::default() }
    }
}

impl StateRecordsHarness for BrokenHarness {
    type Store = Broken;

    async fn open(&self) -> Result<Broken, MessagingError> {
        let inner = self.inner.open().await?;
        Ok(Broken { inner, fault: self.fault, made: self.made.clone(), removed: self.removed.clone() })
    }

    async fn elapse(&self, time: Duration) {
        self.inner.elapse(time).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_is_found_by_its_test() {
    let tests = exercise_state_records(&BrokenHarness::new(Fault::None)).await;
    assert_eq!(tests.iter().filter(|test| test.fault.is_some()).collect::<Vec<_>>(), Vec::<&_>::new());
    let named: BTreeSet<_> = FAULTS.iter().map(|(_, test)| *test).collect();
    assert_eq!(named, tests.iter().map(|test| test.test).collect(), "each test must have a fault");
    for (fault, test) in FAULTS {
        let findings = exercise_state_records(&BrokenHarness::new(*fault)).await;
        let found = findings.into_iter().find(|finding| finding.test == *test).unwrap();
        // The test must see a wrong answer; a failed call would only show that the wrapper is useless.
        let caught = found.fault.as_deref().is_some_and(|why| !why.starts_with("a call failed"));
        assert!(caught, "{fault:?} is not found by {test}: {:?}", found.fault);
    }
}
