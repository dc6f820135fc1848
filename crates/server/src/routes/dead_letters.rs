//! Dead letters: looking at them, and correcting them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use postrider::dead_letter::groups::{DeadLetterGroups, LargestGroups};
use postrider::{DeadLetterCursor, DeadLetterEdit, DeadLetterSelection, DeadLetters, Deadline};
use postrider_wire::dead_letter::{Dead, DeadGroup, DeadGroups, DeadPage, EditRequest};
use serde_json::json;
use tokio::time::Instant;

use super::find_dead_letters::{each_summary, filter, find, one};
use super::{OPERATE, READ};
use crate::access::Caller;
use crate::api::schemas::{self, limit, named, page, text};
use crate::api::{ApiError, Content, JsonBody, MessagePath, Params, QueuePath, Route, Verb, answer};
use crate::app::App;
use crate::audit::outcome;
use crate::in_flight::InFlight;

const MOST_LISTED: usize = 1000;

/// Bounds of what is looked at to be counted by errors.
const MOST_GROUPED: usize = 200_000;
const GROUPED_FOR: Duration = Duration::from_secs(10);

/// Groups of one answer.
const MOST_GROUPS: usize = 20;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Dead letters";
    vec![
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/dead-letters"),
            (GROUP, "listDeadLetters"),
            READ,
            "The dead letters of a queue, oldest death first.",
            list,
        )
        .parameter("reason", text(), "Only those that died for this reason")
        .parameter("error", text(), "Only those with exactly this error text")
        .parameter("error_contains", text(), "Only those whose error has this in it, in upper or lower case")
        .parameter("fingerprint", text(), "Only those whose error is of this kind, as a group tells it")
        .parameter("key", text(), "Only those with this ordering key")
        .parameter("id", text(), "Only those whose id has this in it")
        .parameter("since", schemas::time(), "Only those that died at this time or later")
        .parameter("before", schemas::time(), "Only those that died before this time")
        .parameter("text", text(), "Only those with this in id, key, error, headers or body, in upper or lower case")
        .parameter("limit", limit(MOST_LISTED), "At most so many; 100 unless told otherwise")
        .parameter("after", text(), "The 'next' of the page before")
        .answers(
            200,
            "A page of dead letters; with large ones, or few that match, it is short and still not the last",
            Content::Json(page("dead_letters", named("DeadLetter"))),
        ),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/dead-letters/groups"),
            (GROUP, "groupDeadLetters"),
            READ,
            "Dead letters counted by reason and kind of error, most first. Errors that differ only in numbers, ids, quoted \
             values, paths and times are of one kind. Of very many, the oldest are looked at.",
            groups,
        )
        .parameter("limit", limit(MOST_GROUPS), "At most so many groups; the other kinds are counted together")
        .answers(200, "The groups", Content::Json(named("DeadLetterGroups"))),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/dead-letters/{id}"),
            (GROUP, "getDeadLetter"),
            READ,
            "One dead letter.",
            get,
        )
        .answers(200, "It", Content::Json(named("DeadLetter"))),
        Route::new(
            (Verb::Patch, "/v1/queues/{queue}/dead-letters/{id}"),
            (GROUP, "editDeadLetter"),
            OPERATE,
            "Changes a dead letter before it is redriven. What is left out stays as it is. A body of the content type \
             application/json must be JSON; a refusal tells line and column.",
            edit,
        )
        .takes(named("DeadLetterEdit"))
        .answers(200, "As it is now", Content::Json(named("DeadLetter"))),
    ]
}

async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    params: Params,
) -> Result<Response, ApiError> {
    // A store may number the letters of all queues together.
    let listing = format!("dead letters of {}", queue.origin());
    let after = app.seal.shown_cursor(&caller, &listing, params.text("after")?)?;
    let limit = params.limit(100, MOST_LISTED)?;
    let mut page = find(&app, &queue, &filter(&params)?, limit, after.map(DeadLetterCursor), &in_flight).await?;
    page.next =
        page.next.map(|DeadLetterCursor(next)| DeadLetterCursor(app.seal.cursor_to_show(&caller, &listing, next)));
    answer(&DeadPage::from(page))
}

async fn groups(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    params: Params,
) -> Result<Response, ApiError> {
    let most = params.limit(MOST_GROUPS, MOST_GROUPS)?;
    let mut counted = DeadLetterGroups::default();
    let bounds = (MOST_GROUPED, Some(Instant::now() + GROUPED_FOR));
    let see = |summary| counted.add(summary);
    let all = DeadLetterSelection::All;
    let (looked_at, complete) = each_summary(&app, &queue, all, bounds, &in_flight, see).await?;
    let LargestGroups { groups, more_kinds, more_count } = counted.largest(most);
    let groups = groups.into_iter().map(DeadGroup::from).collect();
    answer(&DeadGroups { groups, more_kinds, more_count, looked_at: looked_at as u64, complete })
}

async fn get(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
    in_flight: InFlight,
) -> Result<Response, ApiError> {
    answer(&Dead::from(one(&app, &queue, id, &in_flight).await?))
}

async fn edit(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
    JsonBody(asked): JsonBody<EditRequest>,
) -> Result<Response, ApiError> {
    let edit = DeadLetterEdit::try_from(asked)?;
    // What it says is nobody's business who reads the log; what was changed is.
    let changed = json!({
        "id": id,
        "body": edit.body.is_some(),
        "content_type": edit.content_type.is_some(),
        "headers": edit.headers.is_some(),
    });
    let deed = app.audit.begin(&caller, "edit_dead_letter", queue.as_str(), changed).await?;
    let done = app.provider.edit_dead_letter(&queue, id, edit, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |letter| json!({ "revision": letter.revision }))).await;
    answer(&Dead::from(done?))
}
