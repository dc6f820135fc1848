//! Looking for waiting messages over all of a queue's.
//!
//! A store lists pages, and a filter is compared here. The number of messages that one request looks at is bounded: a page
//! may be short, and its cursor goes on where the look ended.

use std::time::Duration;

use postrider::{
    Deadline, MessageId, PeekPage, PeekQuery, PeekedMessage, QueueAdmin, QueueName, Timestamp, WaitingFilter,
};
use tokio::time::Instant;

use super::messages::bytes;
use crate::api::ApiError;
use crate::app::App;
use crate::in_flight::InFlight;
use crate::portions::Room;

/// Bound of the messages that a page of a search looks at.
const MOST_WALKED: usize = 5_000;

/// Messages of one page of the store.
const PORTION: usize = 500;

/// Bounds of the messages that one action is of, and of the time in which they are looked for.
const MOST_CHOSEN: usize = 1_000_000;
const CHOSEN_FOR: Duration = Duration::from_secs(30);

/// Asks for a page of messages, once there is room for it. It has fewer than were wanted where they may be large.
async fn ask(app: &App, queue: &QueueName, mut query: PeekQuery, in_flight: &InFlight) -> Result<PeekPage, ApiError> {
    let name = queue.as_str();
    query.limit = app.portions.rows_to_look_at(name, query.limit, app.most_bytes());
    let expected = query.limit.saturating_mul(app.portions.size([name], app.most_bytes()));
    in_flight.grow(expected).await?;
    let page = app.provider.peek_page(queue, &query, Deadline::default()).await?;
    in_flight.correct(expected, size(&page.messages));
    app.portions.saw(page.messages.iter().map(|message| (name, bytes(message))));
    Ok(page)
}

fn size(messages: &[PeekedMessage]) -> usize {
    messages.iter().map(bytes).sum()
}

/// A page of the messages that a filter leaves.
pub(super) async fn find(
    app: &App,
    queue: &QueueName,
    filter: &WaitingFilter,
    query: PeekQuery,
    in_flight: &InFlight,
) -> Result<PeekPage, ApiError> {
    let PeekQuery { limit, mut after } = query;
    let is_everything = *filter == WaitingFilter::default();
    let (mut found, mut room, mut walked) = (Vec::new(), Room::default(), 0);
    loop {
        let portion = if is_everything { limit - found.len() } else { PORTION };
        let wanted = PeekQuery { limit: portion, after: after.clone() };
        let PeekPage { messages, next } = ask(app, queue, wanted, in_flight).await?;
        let (now, all, read, kept) = (Timestamp::now(), messages.len(), size(&messages), size(&found));
        walked += all;
        for (at, message) in messages.into_iter().enumerate() {
            if !filter.includes(&message, now) {
                continue;
            }
            let mut one = vec![message];
            let is_left_over = !room.take(&mut one, bytes).is_empty();
            found.append(&mut one);
            let passed = if is_left_over { at } else { at + 1 };
            if (is_left_over || found.len() == limit) && passed < all {
                // A cursor stands at the end of a page, so this one is asked for again, as far as it was passed.
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
        if next.is_none() || found.len() >= limit || walked >= MOST_WALKED || room.is_full() {
            return Ok(PeekPage { messages: found, next });
        }
        after = next;
    }
}

/// The ids of the waiting messages that a filter leaves and no worker has leased, in send order, and whether all messages
/// of the queue were looked at.
pub(super) async fn chosen(
    app: &App,
    queue: &QueueName,
    filter: &WaitingFilter,
    in_flight: &InFlight,
) -> Result<(Vec<MessageId>, bool), ApiError> {
    let (mut ids, end) = (Vec::new(), Instant::now() + CHOSEN_FOR);
    let mut query = PeekQuery { limit: PORTION, after: None };
    loop {
        let PeekPage { messages, next } = ask(app, queue, query.clone(), in_flight).await?;
        let now = Timestamp::now();
        ids.extend(messages.iter().filter(|message| filter.chooses(message, now)).map(|message| message.id));
        in_flight.correct(size(&messages), 0);
        match next {
            None => return Ok((ids, true)),
            Some(_) if ids.len() >= MOST_CHOSEN || Instant::now() >= end => return Ok((ids, false)),
            Some(next) => query.after = Some(next),
        }
    }
}
