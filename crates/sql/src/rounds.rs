//! Two leases of one message never share a statement: a store answers by the row of a message, and a late receipt must
//! not pass for done because the valid one stands beside it.

use std::borrow::Cow;
use std::collections::HashMap;

use postrider_core::{MessageId, MessagingError, ReceiptHandle, RowResults};

use postrider_provider::Undone;

/// Where the receipt of a row is.
pub(crate) type Receipt<T> = fn(&T) -> &ReceiptHandle;

/// Those of the places that can go together, and those that must follow.
fn divide<T>(rows: &[T], receipt: Receipt<T>, places: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
    let mut leases: HashMap<MessageId, &ReceiptHandle> = HashMap::with_capacity(places.len());
    places.into_iter().partition(|place| {
        let lease = receipt(&rows[*place]);
        *leases.entry(lease.message_id()).or_insert(lease) == lease
    })
}

/// Carries out what leases are asked for, in as many rounds as it needs.
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
    let some = |places: &[usize]| Cow::Owned(places.iter().map(|place| rows[*place].clone()).collect());
    let mut answers: Vec<(usize, Result<(), MessagingError>)> = Vec::with_capacity(rows.len());
    answers.extend(round.iter().copied().zip(work(some(&round)).await?));
    while !rest.is_empty() {
        (round, rest) = divide(rows, receipt, rest);
        // One by one, because what is wrong with one of them must not be told of the others. They are few.
        for place in round {
            let told = |error: Undone| error.into_error(operation, vec![receipt(&rows[place]).message_id()]);
            let answer = work(some(&[place])).await.map_err(told).and_then(|done| done.into_iter().collect());
            answers.push((place, answer));
        }
    }
    answers.sort_by_key(|(place, _)| *place);
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

    /// Carries rows out on a store for which only leases with the token 1 are valid, and answers what it was asked for.
    async fn carried_out(rows: &[ReceiptHandle]) -> (Result<RowResults<()>, Undone>, Vec<usize>) {
        let asked = RefCell::new(Vec::new());
        let results = in_rounds(
            "settle",
            rows,
            |row| row,
            async |rows: Cow<'_, [ReceiptHandle]>| {
                asked.borrow_mut().push(rows.len());
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
        (results, asked.into_inner())
    }

    #[tokio::test]
    async fn another_lease_of_a_message_follows_and_is_answered_at_its_place() {
        let (one, other) = (MessageId::generate(), MessageId::generate());
        let rows = [receipt(one, 7), receipt(other, 1), receipt(one, 1), receipt(one, 7)];
        let (results, asked) = carried_out(&rows).await;
        let accepted: Vec<bool> = results.unwrap().iter().map(Result::is_ok).collect();
        assert_eq!((accepted, asked), (vec![false, true, true, false], vec![3, 1]));
    }

    #[tokio::test]
    async fn without_another_lease_all_go_together() {
        let rows = [receipt(MessageId::generate(), 1), receipt(MessageId::generate(), 1)];
        assert_eq!(carried_out(&rows).await.1, [2]);
        let twice = [rows[0].clone(), rows[0].clone()];
        assert_eq!(carried_out(&twice).await.1, [2], "the store knows what to do with these");
    }

    #[tokio::test]
    async fn what_was_done_is_told_although_what_follows_fails() {
        let one = MessageId::generate();
        let (results, _) = carried_out(&[receipt(one, 1), receipt(one, 9), receipt(one, 7)]).await;
        let results = results.unwrap();
        assert!(results[0].is_ok());
        assert!(matches!(results[1], Err(MessagingError::Closed { .. })), "{results:?}");
        assert!(matches!(results[2], Err(MessagingError::VisibilityExpired { .. })), "{results:?}");
        assert!(carried_out(&[receipt(one, 9), receipt(one, 1)]).await.0.is_err(), "nothing was done");
    }
}
