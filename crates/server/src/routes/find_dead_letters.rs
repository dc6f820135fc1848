//! Searching the dead letters of a queue.
//!
//! A store selects by reason or id. The rest of a filter is applied here, to summaries without bodies; only matches are
//! read with their bodies. The number of dead letters that one request reads is bounded: a page may be short, and its
//! cursor continues where the search stopped.

use postrider::dead_letter::filter::DeadLetterFilter;
use postrider::{
    DeadLetter, DeadLetterCursor, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, DeadLetterSummary,
    DeadLetterSummaryPage, DeadLetters, Deadline, MessageId, QueueName, Timestamp,
};
use postrider_wire::dead_letter::Filter;
use tokio::time::Instant;

use crate::api::{ApiError, Params};
use crate::app::App;
use crate::in_flight::InFlight;
use crate::row_sizes::{AnswerSpace, READ_AND_ENCODED};

/// Upper bounds of the dead letters that one search reads, without and with bodies.
const MAX_SUMMARIES: usize = 50_000;
const MAX_WHOLE: usize = 5_000;

/// Rows of a page of summaries, and upper bound of a page with bodies.
const PAGE: usize = 500;

/// Upper bound of a search text, in bytes.
const LONGEST_TEXT: usize = 1024;

/// Fails if a search text is too long.
pub(super) fn check(filter: DeadLetterFilter) -> Result<DeadLetterFilter, ApiError> {
    let texts = [
        ("error_contains", &filter.error_contains),
        ("fingerprint", &filter.fingerprint),
        ("id", &filter.id_contains),
        ("text", &filter.text),
    ];
    for (name, text) in texts {
        if let Some(text) = text.as_ref().filter(|text| text.len() > LONGEST_TEXT) {
            let has = text.len();
            let why = format!("filter '{name}' has {has} bytes; use at most {LONGEST_TEXT}");
            return Err(ApiError::malformed(why));
        }
    }
    Ok(filter)
}

/// Reads the filter from the parameters of a request.
pub(super) fn filter(params: &Params) -> Result<DeadLetterFilter, ApiError> {
    let text = |name: &'static str| Ok::<_, ApiError>(params.text(name)?.map(str::to_owned));
    let time = |name: &'static str| {
        let parse = |value: &str| {
            let refused = |_| {
                let value = value.escape_debug();
                ApiError::malformed(format!("invalid parameter '{name}': '{value}'; write 2026-01-31T09:00:00Z"))
            };
            value.parse::<Timestamp>().map_err(refused)
        };
        params.text(name)?.map(parse).transpose()
    };
    let filter = Filter {
        reason: text("reason")?,
        error: text("error")?,
        error_contains: text("error_contains")?,
        fingerprint: text("fingerprint")?,
        key: text("key")?,
        id: text("id")?,
        since: time("since")?,
        before: time("before")?,
        text: text("text")?,
    };
    check(filter.into())
}

/// Reads a page of dead letters, within the byte budget.
async fn read_page(
    app: &App,
    queue: &QueueName,
    query: &DeadLetterQuery,
    in_flight: &InFlight,
) -> Result<DeadLetterPage, ApiError> {
    let name = queue.dead_letters();
    let expected = query.limit.saturating_mul(app.message_sizes.size([name.as_str()], app.most_bytes()));
    in_flight.grow(expected).await?;
    let page = app.provider.list_dead_letters(queue, query, Deadline::default()).await?;
    in_flight.correct(expected, size(&page.letters));
    app.message_sizes.record(page.letters.iter().map(|letter| (name.as_str(), bytes(letter))));
    Ok(page)
}

/// Reads one dead letter, within the byte budget.
pub(super) async fn read_one(
    app: &App,
    queue: &QueueName,
    id: MessageId,
    in_flight: &InFlight,
) -> Result<DeadLetter, ApiError> {
    let name = queue.dead_letters();
    // Reserved until the actual answer is counted.
    let expected = app.message_sizes.size([name.as_str()], app.most_bytes());
    in_flight.grow(expected.saturating_mul(READ_AND_ENCODED)).await?;
    let letter = app.provider.get_dead_letter(queue, id, Deadline::default()).await?;
    in_flight.correct(expected, expected.max(bytes(&letter)));
    app.message_sizes.record([(name.as_str(), bytes(&letter))]);
    Ok(letter)
}

/// Returns the requested number of selected dead letters, or as many as fit into an answer.
async fn page_of(
    app: &App,
    queue: &QueueName,
    wanted: DeadLetterQuery,
    in_flight: &InFlight,
) -> Result<DeadLetterPage, ApiError> {
    let read_page = async |limit: usize, after: Option<DeadLetterCursor>| {
        let query = DeadLetterQuery { limit, after, ..wanted.clone() };
        read_page(app, queue, &query, in_flight).await
    };
    let name = queue.dead_letters();
    let (mut letters, mut space, mut after) = (Vec::new(), AnswerSpace::default(), wanted.after.clone());
    loop {
        let chunk = app.message_sizes.rows_to_read(name.as_str(), wanted.limit - letters.len(), app.most_bytes());
        let mut page = read_page(chunk, after.clone()).await?;
        if !space.take(&mut page.letters, bytes).is_empty() {
            // A cursor points to the end of a page, so the page is read again up to the end of the answer.
            match page.letters.len() {
                0 => return Ok(DeadLetterPage { letters, next: after }),
                fits => page = read_page(fits, after).await?,
            }
            letters.append(&mut page.letters);
            return Ok(DeadLetterPage { letters, next: page.next });
        }
        letters.append(&mut page.letters);
        if page.next.is_none() || letters.len() >= wanted.limit || space.is_full() {
            return Ok(DeadLetterPage { letters, next: page.next });
        }
        after = page.next;
    }
}

fn bytes(letter: &DeadLetter) -> usize {
    letter.body.len() + letter.headers.byte_len()
}

fn size(letters: &[DeadLetter]) -> usize {
    letters.iter().map(bytes).sum()
}

/// Reads a queue's dead letters page by page.
struct Pages<'a> {
    app: &'a App,
    queue: &'a QueueName,
    in_flight: &'a InFlight,
    query: DeadLetterQuery,
    /// Whether the last page was read.
    is_over: bool,
}

impl<'a> Pages<'a> {
    fn new(
        app: &'a App,
        queue: &'a QueueName,
        selection: DeadLetterSelection,
        after: Option<DeadLetterCursor>,
        in_flight: &'a InFlight,
    ) -> Self {
        Self { app, queue, in_flight, query: DeadLetterQuery { selection, limit: PAGE, after }, is_over: false }
    }

    fn set_next(&mut self, next: Option<DeadLetterCursor>) {
        match next {
            Some(next) => self.query.after = Some(next),
            None => self.is_over = true,
        }
    }

    async fn summaries(&mut self) -> Result<Option<Vec<DeadLetterSummary>>, ApiError> {
        if self.is_over {
            return Ok(None);
        }
        let provider = &self.app.provider;
        let page = provider.list_dead_letter_summaries(self.queue, &self.query, Deadline::default()).await?;
        let DeadLetterSummaryPage { summaries, next } = page;
        self.set_next(next);
        Ok(Some(summaries))
    }

    async fn letters(&mut self) -> Result<Option<Vec<DeadLetter>>, ApiError> {
        if self.is_over {
            return Ok(None);
        }
        let name = self.queue.dead_letters();
        self.query.limit = self.app.message_sizes.rows_to_read(name.as_str(), PAGE, self.app.most_bytes());
        let page = read_page(self.app, self.queue, &self.query, self.in_flight).await?;
        self.set_next(page.next);
        Ok(Some(page.letters))
    }

    /// The cursor of the next page; `None` at the end.
    fn next(&self) -> Option<DeadLetterCursor> {
        self.query.after.clone().filter(|_| !self.is_over)
    }
}

/// A position in the dead letters: a number of rows after the cursor of a page.
struct Position {
    page: Option<DeadLetterCursor>,
    passed: usize,
}

impl Position {
    /// Returns the cursor of the position; `None` at the end of the dead letters.
    async fn cursor(
        self,
        app: &App,
        queue: &QueueName,
        selection: DeadLetterSelection,
    ) -> Result<Option<DeadLetterCursor>, ApiError> {
        if self.passed == 0 {
            return Ok(self.page);
        }
        let query = DeadLetterQuery { selection, limit: self.passed, after: self.page };
        Ok(app.provider.list_dead_letter_summaries(queue, &query, Deadline::default()).await?.next)
    }
}

/// Returns a page of the dead letters that match a filter.
pub(super) async fn find(
    app: &App,
    queue: &QueueName,
    filter: &DeadLetterFilter,
    limit: usize,
    after: Option<DeadLetterCursor>,
    in_flight: &InFlight,
) -> Result<DeadLetterPage, ApiError> {
    if filter.is_selection() {
        return page_of(app, queue, DeadLetterQuery { selection: filter.selection(), limit, after }, in_flight).await;
    }
    match filter.reads_bodies() {
        true => find_whole(app, queue, filter, limit, after, in_flight).await,
        false => find_by_summaries(app, queue, filter, limit, after, in_flight).await,
    }
}

async fn find_by_summaries(
    app: &App,
    queue: &QueueName,
    filter: &DeadLetterFilter,
    limit: usize,
    after: Option<DeadLetterCursor>,
    in_flight: &InFlight,
) -> Result<DeadLetterPage, ApiError> {
    let mut pages = Pages::new(app, queue, filter.selection(), after, in_flight);
    let mut found: Vec<(MessageId, Position)> = Vec::new();
    let mut searched = 0;
    'search: loop {
        let page = pages.query.after.clone();
        let Some(summaries) = pages.summaries().await? else { break };
        searched += summaries.len();
        for (at, summary) in summaries.iter().enumerate() {
            if filter.includes_summary(summary) {
                found.push((summary.id, Position { page: page.clone(), passed: at + 1 }));
                if found.len() == limit {
                    break 'search;
                }
            }
        }
        if searched >= MAX_SUMMARIES {
            break;
        }
    }
    let ids: Vec<MessageId> = found.iter().map(|(id, _)| *id).collect();
    if ids.is_empty() {
        return Ok(DeadLetterPage { letters: Vec::new(), next: pages.next() });
    }
    let is_full = ids.len() == limit;
    let selection = DeadLetterSelection::Ids(ids);
    let read = page_of(app, queue, DeadLetterQuery { selection, limit, after: None }, in_flight).await?;
    let end = match read.next {
        // Not all matches fit into the answer.
        Some(_) => read.letters.last().and_then(|last| found.iter().position(|(id, _)| *id == last.id)),
        None => is_full.then(|| found.len() - 1),
    };
    let next = match end {
        Some(end) => found.swap_remove(end).1.cursor(app, queue, filter.selection()).await?,
        None => pages.next(),
    };
    Ok(DeadLetterPage { letters: read.letters, next })
}

async fn find_whole(
    app: &App,
    queue: &QueueName,
    filter: &DeadLetterFilter,
    limit: usize,
    after: Option<DeadLetterCursor>,
    in_flight: &InFlight,
) -> Result<DeadLetterPage, ApiError> {
    let mut pages = Pages::new(app, queue, filter.selection(), after, in_flight);
    let (mut letters, mut space, mut searched) = (Vec::new(), AnswerSpace::default(), 0);
    while searched < MAX_WHOLE {
        let page = pages.query.after.clone();
        let Some(whole) = pages.letters().await? else { break };
        searched += whole.len();
        let (read, kept) = (size(&whole), size(&letters));
        for (at, letter) in whole.into_iter().enumerate() {
            if !filter.includes(&letter) {
                continue;
            }
            let mut one = vec![letter];
            let is_left_over = !space.take(&mut one, bytes).is_empty();
            letters.append(&mut one);
            if is_left_over || letters.len() == limit {
                let passed = if is_left_over { at } else { at + 1 };
                in_flight.correct(read, size(&letters) - kept);
                let next = Position { page, passed }.cursor(app, queue, filter.selection()).await?;
                return Ok(DeadLetterPage { letters, next });
            }
        }
        in_flight.correct(read, size(&letters) - kept);
    }
    Ok(DeadLetterPage { letters, next: pages.next() })
}

/// Calls `visit` with the summaries of the selected dead letters, up to `most` and until `end`. Returns their number, and
/// whether those are all.
pub(super) async fn for_each_summary(
    app: &App,
    queue: &QueueName,
    selection: DeadLetterSelection,
    (most, end): (usize, Option<Instant>),
    in_flight: &InFlight,
    mut visit: impl FnMut(DeadLetterSummary),
) -> Result<(usize, bool), ApiError> {
    let mut pages = Pages::new(app, queue, selection, None, in_flight);
    let mut seen = 0;
    while let Some(summaries) = pages.summaries().await? {
        seen += summaries.len();
        summaries.into_iter().for_each(&mut visit);
        if pages.is_over {
            break;
        }
        if seen >= most || end.is_some_and(|end| Instant::now() >= end) {
            return Ok((seen, false));
        }
    }
    Ok((seen, true))
}

/// Returns the ids of all dead letters that match a filter.
pub(super) async fn matching(
    app: &App,
    queue: &QueueName,
    filter: &DeadLetterFilter,
    in_flight: &InFlight,
) -> Result<Vec<MessageId>, ApiError> {
    if let Some(error) = filter.only_error() {
        let selection = filter.selection();
        return Ok(app.provider.find_dead_letters(queue, &selection, Some(error), Deadline::default()).await?);
    }
    let mut ids = Vec::new();
    if filter.reads_bodies() {
        let mut pages = Pages::new(app, queue, filter.selection(), None, in_flight);
        while let Some(letters) = pages.letters().await? {
            ids.extend(letters.iter().filter(|letter| filter.includes(letter)).map(|letter| letter.id));
            in_flight.correct(size(&letters), 0);
        }
        return Ok(ids);
    }
    let visit = |summary: DeadLetterSummary| {
        if filter.includes_summary(&summary) {
            ids.push(summary.id);
        }
    };
    for_each_summary(app, queue, filter.selection(), (usize::MAX, None), in_flight, visit).await?;
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider::{Message, MessagingService, Nack, ReceiveOptions, Settlement};

    use super::*;

    #[test]
    fn a_search_text_is_bounded() {
        let filter = |length: usize| DeadLetterFilter { text: Some("x".repeat(length)), ..DeadLetterFilter::default() };
        assert!(check(filter(LONGEST_TEXT)).is_ok());
        let refused = format!("{:?}", check(filter(LONGEST_TEXT + 1)).unwrap_err());
        assert!(refused.contains("filter 'text' has 1025 bytes; use at most 1024"), "{refused}");
    }

    #[tokio::test]
    async fn pages_of_summaries_do_not_shrink_for_large_dead_letters() {
        let (app, _folder) = crate::app::test_app().await;
        let (queue, until) = (QueueName::new("orders").unwrap(), Deadline::after(Duration::from_secs(60)));
        let messages = (0..PAGE + 1).map(|_| Message::new("a")).collect();
        app.provider.send_batch(&queue, messages, until).await.unwrap();
        loop {
            let got = app.provider.receive_messages(&queue, &ReceiveOptions::batch(1000), until).await.unwrap();
            if got.is_empty() {
                break;
            }
            let dead_letter = |message| Settlement::nack(message, Nack::dead_letter("rejected"));
            app.provider.settle(got.into_iter().map(dead_letter).collect(), until).await.unwrap();
        }
        let in_flight = InFlight::new(&app.budget, &"anna".into());
        let mut pages = Pages::new(&app, &queue, DeadLetterSelection::All, None, &in_flight);
        let mut rows = Vec::new();
        while let Some(page) = pages.summaries().await.unwrap() {
            rows.push(page.len());
        }
        assert_eq!(rows, [PAGE, 1]);
    }
}
