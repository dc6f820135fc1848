//! Sends of messages without keys, the common case: no lookups and no conflicts.
//!
//! The server takes nearly as long to parse a text of a hundred rows as to store them. So batches of a recurring size
//! are sent by a prepared statement, which needs no other beside it.

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

/// Upper bound of prepared statements per connection: one for each size.
pub(crate) const MAX_SIZES: usize = 8;

/// Upper bound of rows in a prepared statement, which takes server memory for each of them, on every connection.
const MAX_ROWS: usize = 500;

/// The sizes of recent batches.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    // Held for a search of a short list.
    last: Mutex<VecDeque<usize>>,
}

impl Sizes {
    /// Notes a size. Returns whether it is a recent one, so that preparing a statement pays off.
    fn comes_again(&self, size: usize) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.iter().position(|other| *other == size).and_then(|index| last.remove(index));
        last.push_front(size);
        last.truncate(MAX_SIZES);
        before.is_some()
    }
}

impl Shared {
    pub(crate) async fn insert_plain(&self, sendable: &Sendable<'_>) -> Result<(), Undone> {
        let mut session = self.database.session("send", Deadline::default()).await?;
        let (sql, rows) = (session.sql(), &sendable.rows);
        if is_uniform(sendable) && rows.len() <= MAX_ROWS && self.sizes.comes_again(rows.len()) {
            let more = ", (?, ?, ?, utc_timestamp(6), utc_timestamp(6), ?, ?, ?)".repeat(rows.len() - 1);
            let sent = session.execute(&fill(&sql.send_plain, &[("more", &more)]), values(rows)).await;
            match sent {
                // The queue is not listed, and must not be created.
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

/// Whether rows differ only in what the prepared statement takes.
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
    fn a_recent_size_is_recognized() {
        let sizes = Sizes::default();
        assert!(!sizes.comes_again(100));
        assert!(sizes.comes_again(100));
        (1..MAX_SIZES).for_each(|size| assert!(!sizes.comes_again(size)));
        assert!(sizes.comes_again(100), "one of the last");
        (1..=MAX_SIZES).for_each(|size| assert!(!sizes.comes_again(size + 200)));
        assert!(!sizes.comes_again(100), "too long ago");
    }
}
