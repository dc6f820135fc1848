//! Extensions of leases, and the ends of leases whose messages were dropped.

use std::collections::HashSet;

use postrider_core::coalescer::ExtendRow;
use postrider_core::{Deadline, ReceiptHandle, RowResults};
use postrider_provider::{Undone, persist};
use postrider_sql::Lease;

use crate::PROVIDER;
use crate::lease::{Held, Tried, held, locked, note, try_busy_again};
use crate::literal::{self, by_row, fill, micros};
use crate::store::Shared;

impl Shared {
    /// Sets the ends of leases. Locked rows are retried for a moment after the others.
    pub(crate) async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<()>, Undone> {
        let tried = persist(|| self.try_extend(rows)).await?;
        let work = |again: Vec<ExtendRow>| async move { persist(|| self.try_extend(&again)).await };
        Ok(try_busy_again("extend", rows, |row| &row.receipt, tried, work).await)
    }

    async fn try_extend(&self, rows: &[ExtendRow]) -> Result<Tried, Undone> {
        let mut results: RowResults<()> = Vec::with_capacity(rows.len());
        let mut chosen: Vec<(usize, Lease, i64)> = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            match Lease::read(&row.receipt, PROVIDER) {
                Ok(lease) => {
                    // Of two extensions of one lease the later counts.
                    chosen.retain(|(_, other, _)| (other.row, other.token) != (lease.row, lease.token));
                    chosen.push((index, lease, micros(row.extension)));
                    results.push(Ok(()));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        if chosen.is_empty() {
            return Ok((results, Vec::new()));
        }
        let mut session = self.database.session("extend", Deadline::default()).await?;
        let sql = session.sql();
        let ids = literal::list(chosen.iter().map(|(_, lease, _)| lease.row));
        let found = session.begin(held(sql, &ids, "for update skip locked")).await?.concat();
        let held = Held::by_row(&found);
        let locked = locked(&mut session, chosen.iter().map(|(_, lease, _)| lease.row), &held).await?;
        chosen.retain(|(_, lease, _)| held.get(&lease.row).is_some_and(|held| held.is_by(lease)));
        let extensions: Vec<(i64, String)> =
            chosen.iter().map(|(_, lease, extension)| (lease.row, extension.to_string())).collect();
        if chosen.is_empty() {
            session.rollback().await?;
        } else {
            let ids = literal::list(chosen.iter().map(|(_, lease, _)| lease.row));
            session.commit(fill(&sql.extend, &[("ids", &ids), ("extensions", &by_row(&extensions))])).await?;
        }
        let done: HashSet<(i64, i64)> = chosen.iter().map(|(_, lease, _)| (lease.row, lease.token)).collect();
        let (mut touched, mut busy) = (Vec::new(), Vec::new());
        for (index, (row, result)) in rows.iter().zip(&mut results).enumerate() {
            if result.is_ok() {
                let Ok(lease) = Lease::read(&row.receipt, PROVIDER) else { continue };
                if done.contains(&(lease.row, lease.token)) {
                    note(&mut touched, row.receipt.queue());
                } else if locked.get(&lease.row).is_some_and(|held| held.is_by(&lease)) {
                    busy.push(index);
                    *result = Err(row.receipt.taken());
                } else {
                    *result = Err(row.receipt.expired());
                }
            }
        }
        // A lease may have become shorter. Only this process is woken; others look at every poll interval.
        self.wakes.tell(&touched);
        Ok((results, busy))
    }

    /// Ends the leases of messages that were dropped unsettled. Their deliveries stay counted.
    pub(crate) async fn give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), Undone> {
        persist(|| self.try_give_up(receipts)).await
    }

    async fn try_give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), Undone> {
        let mut chosen = Lease::read_all(receipts.iter(), PROVIDER);
        let mut session = self.database.session("return", Deadline::default()).await?;
        let sql = session.sql();
        let ids = literal::list(chosen.iter().map(|lease| lease.row));
        let found = session.begin(held(sql, &ids, "for update skip locked")).await?.concat();
        let held = Held::by_row(&found);
        chosen.retain(|lease| held.get(&lease.row).is_some_and(|held| held.is_by(lease)));
        let ids = literal::list(chosen.iter().map(|lease| lease.row));
        session.commit(fill(&sql.give_up, &[("ids", &ids)])).await?;
        let mut touched = Vec::new();
        receipts.iter().for_each(|receipt| note(&mut touched, receipt.queue()));
        self.touch(&touched);
        Ok(())
    }
}
