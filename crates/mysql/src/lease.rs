//! Leases: as a receipt names them, as the rows have them now, and locked rows.

use std::collections::HashMap;

use mysql_async::Row;
use postrider_core::{MessageId, QueueName, ReceiptHandle, RowResults};
use postrider_provider::Undone;
use postrider_sql::Lease;

use crate::connection::{PAUSES, Session};
use crate::literal::{self, fill};
use crate::rows::{self, columns};
use crate::sql::Sql;

/// Returns the statement that reads the leases of rows, with or without a lock.
pub(crate) fn held(sql: &Sql, ids: &str, lock: &str) -> String {
    fill(&sql.held, &[("ids", ids), ("lock", lock)])
}

columns! {
    /// The columns of `held.sql`.
    HeldColumns { id, lease_token, message_id, queue, is_valid, ordering_key, attempts_count }
}

/// The lease of a row, as read.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) token: Option<i64>,
    pub(crate) id: MessageId,
    queue: String,
    pub(crate) is_valid: bool,
    pub(crate) ordering_key: Option<String>,
    pub(crate) attempts_count: i64,
}

impl Held {
    pub(crate) fn read(row: &Row) -> Self {
        Self::read_by(row, HeldColumns::of(std::slice::from_ref(row)))
    }

    fn read_by(row: &Row, columns: HeldColumns) -> Self {
        Self {
            token: rows::optional_number(row, columns.lease_token),
            id: rows::message_id(row, columns.message_id),
            queue: rows::text(row, columns.queue),
            is_valid: rows::flag(row, columns.is_valid),
            ordering_key: rows::optional_text(row, columns.ordering_key),
            attempts_count: rows::number(row, columns.attempts_count),
        }
    }

    /// Returns the leases by the ids of their rows.
    pub(crate) fn by_row(found: &[Row]) -> HashMap<i64, Self> {
        let columns = HeldColumns::of(found);
        found.iter().map(|row| (rows::number(row, columns.id), Self::read_by(row, columns))).collect()
    }

    /// Whether this is the valid lease of a receipt.
    pub(crate) fn is_by(&self, lease: &Lease) -> bool {
        self.is_valid
            && self.token == Some(lease.token)
            && self.id == lease.receipt.message_id()
            && self.queue == lease.receipt.queue().as_str()
    }
}

/// Returns the leases of rows that were not taken because other transactions have locked them.
pub(crate) async fn locked(
    session: &mut Session<'_>,
    wanted: impl Iterator<Item = i64>,
    taken: &HashMap<i64, Held>,
) -> Result<HashMap<i64, Held>, Undone> {
    let missing: Vec<i64> = wanted.filter(|row| !taken.contains_key(row)).collect();
    if missing.is_empty() {
        return Ok(HashMap::new());
    }
    let look = held(session.sql(), &literal::list(missing), "");
    Ok(Held::by_row(&session.query(look).await?.concat()))
}

/// The results of a try, and the indexes of locked rows.
pub(crate) type Tried = (RowResults<()>, Vec<usize>);

/// Retries locked rows a few times.
pub(crate) async fn try_busy_again<R: Clone, F>(
    operation: &'static str,
    rows: &[R],
    receipt: impl Fn(&R) -> &ReceiptHandle,
    (mut results, mut busy): Tried,
    work: impl Fn(Vec<R>) -> F,
) -> RowResults<()>
where
    F: Future<Output = Result<Tried, Undone>>,
{
    for pause in PAUSES {
        if busy.is_empty() {
            break;
        }
        tokio::time::sleep(pause).await;
        let again: Vec<R> = busy.iter().map(|index| rows[*index].clone()).collect();
        let (answers, still) = match work(again).await {
            Ok(tried) => tried,
            Err(error) => {
                let id = |index: &usize| receipt(&rows[*index]).message_id();
                let failed = |index| Err(error.clone().into_error(operation, vec![id(index)]));
                (busy.iter().map(failed).collect(), Vec::new())
            }
        };
        busy.iter().zip(answers).for_each(|(index, answer)| results[*index] = answer);
        busy = still.into_iter().map(|index| busy[index]).collect();
    }
    results
}

/// Adds a queue to a list without duplicates.
pub(crate) fn note(queues: &mut Vec<QueueName>, queue: &QueueName) {
    if !queues.contains(queue) {
        queues.push(queue.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use postrider_core::{LeaseToken, MessagingError, NativeRef};

    use super::*;
    use crate::PROVIDER;

    fn receipt(row: u64) -> ReceiptHandle {
        let queue = QueueName::new("orders").unwrap();
        ReceiptHandle::new(PROVIDER, queue, MessageId::generate(), LeaseToken(7), NativeRef::Row(row))
    }

    /// Tries three rows of which the first and the last are locked, and retries these with the result of `work`.
    async fn tried(mut work: impl FnMut(usize) -> Result<Tried, Undone>) -> (RowResults<()>, usize) {
        let rows: Vec<ReceiptHandle> = (1..4).map(receipt).collect();
        let first = (vec![Err(rows[0].taken()), Ok(()), Err(rows[2].taken())], vec![0, 2]);
        let (tries, work) = (Mutex::new(0), Mutex::new(&mut work));
        let again = |again: Vec<ReceiptHandle>| {
            *tries.lock().unwrap() += 1;
            let answer = (work.lock().unwrap())(again.len());
            async move { answer }
        };
        let results = try_busy_again("extend", &rows, |row| row, first, again).await;
        let tries = *tries.lock().unwrap();
        (results, tries)
    }

    #[tokio::test(start_paused = true)]
    async fn locked_rows_are_retried_a_few_times_without_the_others() {
        let busy = |count: usize| {
            let leased = || Err(receipt(9).taken());
            Ok(((0..count).map(|_| leased()).collect(), (0..count).collect()))
        };
        let (results, tries) = tried(busy).await;
        assert_eq!(tries, PAUSES.len());
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_result_belongs_to_its_own_row() {
        let mut sizes = Vec::new();
        let (results, tries) = tried(|count| {
            sizes.push(count);
            Ok(match count {
                2 => (vec![Err(receipt(9).taken()), Ok(())], vec![0]),
                _ => (vec![Err(receipt(9).expired())], Vec::new()),
            })
        })
        .await;
        assert_eq!((tries, sizes), (2, vec![2, 1]));
        assert!(matches!(results[0], Err(MessagingError::VisibilityExpired { .. })), "{results:?}");
        assert!(results[1..].iter().all(Result::is_ok), "{results:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_concerns_only_the_retried_rows() {
        let lost = |_| Err(Undone::Unknown(MessagingError::Closed { provider: PROVIDER }));
        let (results, tries) = tried(lost).await;
        assert_eq!(tries, 1);
        let is_unknown =
            |result: &Result<(), MessagingError>| matches!(result, Err(MessagingError::OutcomeUnknown { .. }));
        assert_eq!(results.iter().map(is_unknown).collect::<Vec<_>>(), [true, false, true]);
    }
}
