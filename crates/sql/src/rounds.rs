//! Keeps two leases of one message out of one statement. A store reports results by the row of a message, so an expired
//! receipt would get the result of the valid one.

use std::borrow::Cow;
use std::collections::HashMap;

use postrider_core::{MessageId, MessagingError, ReceiptHandle, RowResults};

use postrider_provider::Undone;

/// Returns the receipt of a row.
pub(crate) type Receipt<T> = fn(&T) -> &ReceiptHandle;

/// Splits row indexes into those that can go together and those that must follow.
fn divide<T>(rows: &[T], receipt: Receipt<T>, indexes: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
    let mut leases: HashMap<MessageId, &ReceiptHandle> = HashMap::with_capacity(indexes.len());
    indexes.into_iter().partition(|index| {
        let lease = receipt(&rows[*index]);
        *leases.entry(lease.message_id()).or_insert(lease) == lease
    })
}

/// Runs `work` on the rows, in as many rounds as necessary.
pub(crate) async fn in_rounds<'r, T, F>(
    operation: &'static str,
    rows: &'r [T],
    receipt: Receipt<T>,
    work: impl Fn(Cow<'r, [T]>) -> F,
) -> Result<RowResults<()>, Undone>
where
    T: Clone,
    F: Future<Output = Result<RowResults<()>, Undone>>,
{
    let (mut round, mut rest) = divide(rows, receipt, (0..rows.len()).collect());
    if rest.is_empty() {
        return work(Cow::Borrowed(rows)).await;
    }
    let copy = |indexes: &[usize]| Cow::Owned(indexes.iter().map(|index| rows[*index].clone()).collect());
    let mut answers: Vec<(usize, Result<(), MessagingError>)> = Vec::with_capacity(rows.len());
    answers.extend(round.iter().copied().zip(work(copy(&round)).await?));
    while !rest.is_empty() {
        (round, rest) = divide(rows, receipt, rest);
        // One by one, because a failure of one row says nothing about the others. These rows are rare.
        for index in round {
            let unknown = |error: Undone| error.into_error(operation, vec![receipt(&rows[index]).message_id()]);
            let answer = work(copy(&[index])).await.map_err(unknown).and_then(|done| done.into_iter().collect());
            answers.push((index, answer));
        }
    }
    answers.sort_by_key(|(index, _)| *index);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use postrider_core::{LeaseToken, NativeRef, QueueName};

    use super::*;

    fn receipt(id: MessageId, token: u128) -> ReceiptHandle {
        ReceiptHandle::new("test", QueueName::new("orders").unwrap(), id, LeaseToken(token), NativeRef::Row(1))
    }

    /// Runs rows on a store for which only leases with the token 1 are valid. Returns the results and the sizes of the
    /// rounds.
    async fn run(rows: &[ReceiptHandle]) -> (Result<RowResults<()>, Undone>, Vec<usize>) {
        let rounds = RefCell::new(Vec::new());
        let results = in_rounds(
            "settle",
            rows,
            |row| row,
            async |rows: Cow<'_, [ReceiptHandle]>| {
                rounds.borrow_mut().push(rows.len());
                match rows.iter().any(|row| row.token() == LeaseToken(9)) {
                    true => Err(Undone::NotDone(MessagingError::Closed { provider: "test" })),
                    false => Ok(rows
                        .iter()
                        .map(|row| if row.token() == LeaseToken(1) { Ok(()) } else { Err(row.expired()) })
                        .collect()),
                }
            },
        )
        .await;
        (results, rounds.into_inner())
    }

    #[tokio::test]
    async fn another_lease_of_a_message_follows_and_is_answered_at_its_index() {
        let (one, other) = (MessageId::generate(), MessageId::generate());
        let rows = [receipt(one, 7), receipt(other, 1), receipt(one, 1), receipt(one, 7)];
        let (results, rounds) = run(&rows).await;
        let accepted: Vec<bool> = results.unwrap().iter().map(Result::is_ok).collect();
        assert_eq!((accepted, rounds), (vec![false, true, true, false], vec![3, 1]));
    }

    #[tokio::test]
    async fn without_a_second_lease_all_rows_go_together() {
        let rows = [receipt(MessageId::generate(), 1), receipt(MessageId::generate(), 1)];
        assert_eq!(run(&rows).await.1, [2]);
        let twice = [rows[0].clone(), rows[0].clone()];
        assert_eq!(run(&twice).await.1, [2], "the same lease twice is left to the store");
    }

    #[tokio::test]
    async fn results_are_reported_although_a_later_round_fails() {
        let one = MessageId::generate();
        let (results, _) = run(&[receipt(one, 1), receipt(one, 9), receipt(one, 7)]).await;
        let results = results.unwrap();
        assert!(results[0].is_ok());
        assert!(matches!(results[1], Err(MessagingError::Closed { .. })), "{results:?}");
        assert!(matches!(results[2], Err(MessagingError::VisibilityExpired { .. })), "{results:?}");
        assert!(run(&[receipt(one, 9), receipt(one, 1)]).await.0.is_err(), "nothing was done");
    }
}
