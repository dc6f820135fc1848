//! Dead letters: list, group, edit.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use postrider::dead_letter::groups::{DeadLetterGroups, LargestGroups};
use postrider::{DeadLetterCursor, DeadLetterEdit, DeadLetterSelection, DeadLetters, Deadline};
use postrider_wire::dead_letter::{Dead, DeadGroup, DeadGroups, DeadPage, EditRequest};
use serde_json::json;
use tokio::time::Instant;

use super::find_dead_letters::{filter, find, for_each_summary, read_one};
use super::{OPERATE, READ};
use crate::access::Caller;
use crate::api::schemas::{self, limit, named, page, text};
use crate::api::{ApiError, Content, JsonBody, MessagePath, Params, QueuePath, Route, Verb, answer};
use crate::app::App;
use crate::audit::outcome;
use crate::in_flight::InFlight;

const MAX_LISTED: usize = 1000;

/// Upper bounds of the dead letters that a grouping reads, and of its time.
const MAX_GROUPED: usize = 200_000;
const GROUPING_TIME: Duration = Duration::from_secs(10);

/// Upper bound of the groups of an answer.
const MAX_GROUPS: usize = 20;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Dead letters";
    vec![
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/dead-letters"),
            (GROUP, "listDeadLetters"),
            READ,
            "The dead letters of a queue, by the time of death, oldest first.",
            list,
        )
        .parameter("reason", text(), "Only those that died for this reason")
        .parameter("error", text(), "Only those with exactly this error text")
        .parameter("error_contains", text(), "Only those whose error contains this text, ignoring case")
        .parameter("fingerprint", text(), "Only those with this kind of error, as a group names it")
        .parameter("key", text(), "Only those with this ordering key")
        .parameter("id", text(), "Only those whose id contains this text")
        .parameter("since", schemas::time(), "Only those that died at this time or later")
        .parameter("before", schemas::time(), "Only those that died before this time")
        .parameter("text", text(), "Only those with this text in id, key, error, headers or body, ignoring case")
        .parameter("limit", limit(MAX_LISTED), "Rows of the page; default 100")
        .parameter("after", text(), "'next' of the previous page")
        .answers(
            200,
            "A page of dead letters; if they are large or few match, it can be short and not the last",
            Content::Json(page("dead_letters", named("DeadLetter"))),
        ),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/dead-letters/groups"),
            (GROUP, "groupDeadLetters"),
            READ,
            "Counts dead letters by reason and kind of error, largest group first. Errors that differ only in numbers, \
             ids, quoted values, paths and times are of one kind. Of very many, only the oldest are counted.",
            groups,
        )
        .parameter("limit", limit(MAX_GROUPS), "Number of groups; the other kinds are counted together")
        .answers(200, "The groups", Content::Json(named("DeadLetterGroups"))),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/dead-letters/{id}"),
            (GROUP, "getDeadLetter"),
            READ,
            "One dead letter.",
            get,
        )
        .answers(200, "The dead letter", Content::Json(named("DeadLetter"))),
        Route::new(
            (Verb::Patch, "/v1/queues/{queue}/dead-letters/{id}"),
            (GROUP, "editDeadLetter"),
            OPERATE,
            "Edits a dead letter before it is redriven. Omitted fields stay unchanged. A body of the content type \
             application/json must be valid JSON; a refusal names line and column.",
            edit,
        )
        .takes(named("DeadLetterEdit"))
        .answers(200, "The edited dead letter", Content::Json(named("DeadLetter"))),
    ]
}

async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    params: Params,
) -> Result<Response, ApiError> {
    // A store's cursor may count the dead letters of all queues.
    let listing = format!("dead letters of {}", queue.origin());
    let after = app.seal.store_cursor(&caller, &listing, params.text("after")?)?;
    let limit = params.limit(100, MAX_LISTED)?;
    let mut page = find(&app, &queue, &filter(&params)?, limit, after.map(DeadLetterCursor), &in_flight).await?;
    page.next =
        page.next.map(|DeadLetterCursor(next)| DeadLetterCursor(app.seal.visible_cursor(&caller, &listing, next)));
    answer(&DeadPage::from(page))
}

async fn groups(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    in_flight: InFlight,
    params: Params,
) -> Result<Response, ApiError> {
    let most = params.limit(MAX_GROUPS, MAX_GROUPS)?;
    let mut counted = DeadLetterGroups::default();
    let bounds = (MAX_GROUPED, Some(Instant::now() + GROUPING_TIME));
    let visit = |summary| counted.add(summary);
    let all = DeadLetterSelection::All;
    let (looked_at, complete) = for_each_summary(&app, &queue, all, bounds, &in_flight, visit).await?;
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
    answer(&Dead::from(read_one(&app, &queue, id, &in_flight).await?))
}

async fn edit(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
    JsonBody(request): JsonBody<EditRequest>,
) -> Result<Response, ApiError> {
    let edit = DeadLetterEdit::try_from(request)?;
    // The log shows which fields were changed, not their content.
    let changed = json!({
        "id": id,
        "body": edit.body.is_some(),
        "content_type": edit.content_type.is_some(),
        "headers": edit.headers.is_some(),
    });
    let audited = app.audit.begin(&caller, "edit_dead_letter", queue.as_str(), changed).await?;
    let done = app.provider.edit_dead_letter(&queue, id, edit, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |letter| json!({ "revision": letter.revision }))).await;
    answer(&Dead::from(done?))
}
