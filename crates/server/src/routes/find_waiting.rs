//! Searching the waiting messages of a queue.
//!
//! The store lists pages, and filters are applied here. The number of messages that one request reads is bounded: a
//! page may be short, and its cursor continues where the search stopped.

use std::time::Duration;

use postrider::{
    Deadline, MessageId, PeekPage, PeekQuery, PeekedMessage, QueueAdmin, QueueName, Timestamp, WaitingFilter,
};
use tokio::time::Instant;

use super::messages::bytes;
use crate::api::ApiError;
use crate::app::App;
use crate::in_flight::InFlight;
use crate::row_sizes::AnswerSpace;

/// Upper bound of the messages that one search reads.
const MAX_SEARCHED: usize = 5_000;

/// Rows of a page of the store.
const PAGE: usize = 500;

/// Upper bounds of the messages of one job, and of the time to find them.
const MAX_CHOSEN: usize = 1_000_000;
const SEARCH_TIME: Duration = Duration::from_secs(30);

/// Reads a page of messages, within the byte budget; of possibly large ones fewer than requested.
async fn read_page(
    app: &App,
    queue: &QueueName,
    mut query: PeekQuery,
    in_flight: &InFlight,
) -> Result<PeekPage, ApiError> {
    let name = queue.as_str();
    query.limit = app.message_sizes.rows_to_read(name, query.limit, app.most_bytes());
    let expected = query.limit.saturating_mul(app.message_sizes.size([name], app.most_bytes()));
    in_flight.grow(expected).await?;
    let page = app.provider.peek_page(queue, &query, Deadline::default()).await?;
    in_flight.correct(expected, size(&page.messages));
    app.message_sizes.record(page.messages.iter().map(|message| (name, bytes(message))));
    Ok(page)
}

fn size(messages: &[PeekedMessage]) -> usize {
    messages.iter().map(bytes).sum()
}

/// Returns a page of the messages that match a filter.
pub(super) async fn find(
    app: &App,
    queue: &QueueName,
    filter: &WaitingFilter,
    query: PeekQuery,
    in_flight: &InFlight,
) -> Result<PeekPage, ApiError> {
    let PeekQuery { limit, mut after } = query;
    let is_everything = *filter == WaitingFilter::default();
    let (mut found, mut space, mut searched) = (Vec::new(), AnswerSpace::default(), 0);
    loop {
        let chunk = if is_everything { limit - found.len() } else { PAGE };
        let wanted = PeekQuery { limit: chunk, after: after.clone() };
        let PeekPage { messages, next } = read_page(app, queue, wanted, in_flight).await?;
        let (now, all, read, kept) = (Timestamp::now(), messages.len(), size(&messages), size(&found));
        searched += all;
        for (at, message) in messages.into_iter().enumerate() {
            if !filter.includes(&message, now) {
                continue;
            }
            let mut one = vec![message];
            let is_left_over = !space.take(&mut one, bytes).is_empty();
            found.append(&mut one);
            let passed = if is_left_over { at } else { at + 1 };
            if (is_left_over || found.len() == limit) && passed < all {
                // A cursor points to the end of a page, so the page is read again up to the last row used.
                let next = match passed {
                    0 => after,
                    passed => {
                        let query = PeekQuery { limit: passed, after };
                        app.provider.peek_page(queue, &query, Deadline::default()).await?.next
                    }
                };
                in_flight.correct(read, size(&found) - kept);
                return Ok(PeekPage { messages: found, next });
            }
        }
        in_flight.correct(read, size(&found) - kept);
        if next.is_none() || found.len() >= limit || searched >= MAX_SEARCHED || space.is_full() {
            return Ok(PeekPage { messages: found, next });
        }
        after = next;
    }
}

/// Returns the ids of the unleased waiting messages that match a filter, in send order, and whether the whole queue was
/// searched.
pub(super) async fn chosen(
    app: &App,
    queue: &QueueName,
    filter: &WaitingFilter,
    in_flight: &InFlight,
) -> Result<(Vec<MessageId>, bool), ApiError> {
    let (mut ids, end) = (Vec::new(), Instant::now() + SEARCH_TIME);
    let mut query = PeekQuery { limit: PAGE, after: None };
    loop {
        let PeekPage { messages, next } = read_page(app, queue, query.clone(), in_flight).await?;
        let now = Timestamp::now();
        ids.extend(messages.iter().filter(|message| filter.chooses(message, now)).map(|message| message.id));
        in_flight.correct(size(&messages), 0);
        match next {
            None => return Ok((ids, true)),
            Some(_) if ids.len() >= MAX_CHOSEN || Instant::now() >= end => return Ok((ids, false)),
            Some(next) => query.after = Some(next),
        }
    }
}
