//! Pages of records.

use std::collections::BTreeSet;

use futures_util::future::try_join;
use postrider_core::state_records::MAX_RECORDS_LISTED;
use postrider_core::{RecordOrder, RecordQuery, StateRecords};

use super::{Fixture, StateRecordsHarness, key, keys, listed, made, replace, replaced};
use crate::probe::{Check, ensure, ensure_same, soon, violation};

pub(super) async fn a_listing_is_in_the_order_of_creation_either_way<H: StateRecordsHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, other, kind) = (fixture.open().await?, fixture.open().await?, fixture.kind("listed")?);
    // The keys are not in this order, nor, under a stopped clock, the times.
    let names: Vec<String> = (0..25).map(|number| format!("{:02}", number * 7 % 25)).collect();
    let mut records = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let store = if number % 2 == 0 { &store } else { &other };
        records.push(made(store, &kind, &key(name)?, "v", None).await?);
    }
    // A change keeps the order.
    records[3] = replaced(&store, &records[3], "changed", None).await?;
    let mut backwards = records.clone();
    backwards.reverse();
    for (order, expected) in [(RecordOrder::OldestFirst, &records), (RecordOrder::NewestFirst, &backwards)] {
        for (limit, pages) in [(1, 25), (10, 3), (25, 1), (MAX_RECORDS_LISTED, 1)] {
            let seen = listed(&other, &kind, limit, order).await?;
            ensure_same("the order of a listing", keys(&seen.0), keys(expected))?;
            ensure(seen.0 == *expected, || "a listing shows records that differ from what was answered".into())?;
            ensure_same("the number of pages", seen.1, pages)?;
        }
    }
    ensure_same("the empty listing", listed(&store, &fixture.kind("none")?, 1, RecordOrder::OldestFirst).await?.1, 1)
}

pub(super) async fn a_listing_under_writes_shows_each_record_once<H: StateRecordsHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, other, kind) = (fixture.open().await?, fixture.open().await?, fixture.kind("moving")?);
    for order in [RecordOrder::OldestFirst, RecordOrder::NewestFirst] {
        let (mut steady, mut removed) = (Vec::new(), Vec::new());
        for number in 0..60 {
            let name = if number % 3 == 0 { "removed" } else { "steady" };
            let key = key(format!("{order:?} {name} {number}"))?;
            let record = made(&store, &kind, &key, "v", None).await?;
            if number % 3 == 0 { removed.push(record) } else { steady.push(record) }
        }
        if order == RecordOrder::NewestFirst {
            steady.reverse();
            removed.reverse();
        }
        // For each page one removal, one change and two new records, on the side that was read already.
        let writes = async {
            for (number, record) in removed.iter().enumerate() {
                other.remove(&kind, &record.key, soon()).await?;
                let unchanged = replace(&other, &steady[number], "changed", None).await?;
                ensure(unchanged.is_some(), || "a record was changed by another writer".into())?;
                for half in 0..2 {
                    let key = key(format!("{order:?} new {number}.{half}"))?;
                    made(&other, &kind, &key, "v", None).await?;
                }
            }
            Ok(())
        };
        let mut seen: Vec<String> = Vec::new();
        let looks = async {
            let mut query = RecordQuery { limit: 7, after: None, order };
            for _ in 0..1000 {
                let page = store.list(&kind, &query, soon()).await?;
                seen.extend(page.records.iter().map(|record| record.key.to_string()));
                // Between two pages one of the read records is removed.
                if let Some(read) = page.records.iter().find(|record| record.key.as_str().contains("removed")) {
                    other.remove(&kind, &read.key, soon()).await?;
                }
                match page.next {
                    Some(next) => query.after = Some(next),
                    None => return Ok(()),
                }
            }
            violation("the listing has no end")
        };
        try_join(writes, looks).await?;
        let expected: Vec<_> = steady.iter().map(|record| record.key.as_str()).collect();
        let of_steady: Vec<_> = seen.iter().map(String::as_str).filter(|key| expected.contains(key)).collect();
        ensure_same("what was there all along", of_steady, expected)?;
        let once: BTreeSet<&String> = seen.iter().collect();
        ensure_same("the number of records that were shown", seen.len(), once.len())?;
    }
    Ok(())
}
