//! Sends of messages without keys, which is most: there is nothing to look up and nothing to conflict with.
//!
//! To read a text of a hundred rows takes the server nearly as long as to store them. So batches of a size that comes again
//! and again are sent by a statement that the server has read before, and that needs no other beside it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use mysql_async::Value;
use postrider_core::coalescer::SendRow;
use postrider_core::{Deadline, MessagingError};
use postrider_provider::Undone;

use crate::error::{is_null, is_unprepared};
use crate::literal::{self, fill};
use crate::rows::{content_type_column, headers_column};
use crate::send::{Sendable, send_values};
use crate::store::Shared;

/// So many statements stay prepared on each connection, one for each size.
pub(crate) const MOST_SIZES: usize = 8;

/// A prepared statement takes the server's memory for each of its rows, on every connection.
const MOST_ROWS: usize = 500;

/// The sizes of the last batches.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    // A lock, held for a look through a short list.
    last: Mutex<VecDeque<usize>>,
}

impl Sizes {
    /// Notes a size. Answers whether it has come lately, so that a statement for it is worth its while.
    fn comes_again(&self, size: usize) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.iter().position(|other| *other == size).and_then(|place| last.remove(place));
        last.push_front(size);
        last.truncate(MOST_SIZES);
        before.is_some()
    }
}

impl Shared {
    pub(crate) async fn insert_plain(&self, sendable: &Sendable<'_>) -> Result<(), Undone> {
        let mut session = self.database.session("send", Deadline::default()).await?;
        let (sql, rows) = (session.sql(), &sendable.rows);
        if is_uniform(sendable) && rows.len() <= MOST_ROWS && self.sizes.comes_again(rows.len()) {
            let more = ", (?, ?, ?, utc_timestamp(6), utc_timestamp(6), ?, ?, ?)".repeat(rows.len() - 1);
            let sent = session.execute(&fill(&sql.send_plain, &[("more", &more)]), values(rows)).await;
            match sent {
                // The look-up of its name found none, and none may be made.
                Err(error) if is_null(&error) && !self.options.create_queues => {
                    let queue = rows[0].queue.clone();
                    return Err(Undone::Rejected(MessagingError::QueueNotFound { queue }));
                }
                Err(error) if is_null(&error) || is_unprepared(&error) => {}
                sent => return sent,
            }
        }
        let values = literal::list(rows.iter().map(|row| send_values(&row.queue, &row.message, false)));
        session.run(self.with_listing(sendable, fill(&sql.send, &[("rows", &values)]))).await.map(drop)
    }
}

/// Whether rows differ in nothing but what a prepared statement is told.
fn is_uniform(sendable: &Sendable<'_>) -> bool {
    let is_due = |row: &&SendRow| row.message.delay.is_zero() && row.message.expires.is_none();
    sendable.queues.len() == 1 && sendable.rows.iter().all(is_due)
}

fn values(rows: &[&SendRow]) -> Vec<Value> {
    let mut values = Vec::with_capacity(rows.len() * 6);
    for SendRow { queue, message, .. } in rows {
        values.extend([
            Value::from(queue.as_str()),
            Value::from(message.id.as_uuid().as_bytes()),
            Value::from(message.priority.get()),
            Value::from(content_type_column(&message.content_type)),
            Value::from(&*headers_column(&message.headers)),
            Value::from(&*message.body),
        ]);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_has_come_lately_comes_again() {
        let sizes = Sizes::default();
        assert!(!sizes.comes_again(100));
        assert!(sizes.comes_again(100));
        (1..MOST_SIZES).for_each(|size| assert!(!sizes.comes_again(size)));
        assert!(sizes.comes_again(100), "one of the last");
        (1..=MOST_SIZES).for_each(|size| assert!(!sizes.comes_again(size + 200)));
        assert!(!sizes.comes_again(100), "too long ago");
    }
}
