//! Dead letters: looking at them, and correcting them.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use postrider::{
    DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, DeadLetters,
    Deadline, QueueName,
};
use postrider_http::wire::dead_letter::{Dead, DeadGroup, DeadGroups, DeadPage, EditRequest};
use serde_json::json;

use super::{OPERATE, READ};
use crate::access::Caller;
use crate::api::schemas::{limit, named, page, text};
use crate::api::{ApiError, Content, JsonBody, MessagePath, Params, QueuePath, Route, Verb, answer};
use crate::app::App;
use crate::audit::outcome;
use crate::portions::{Room, readable};

const MOST_LISTED: usize = 1000;

/// So many are looked at to be counted by their errors.
const MOST_GROUPED: usize = 10_000;

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
        .parameter("limit", limit(MOST_LISTED), "At most so many; 100 unless told otherwise")
        .parameter("after", text(), "The 'next' of the page before")
        .answers(
            200,
            "A page of dead letters; with large ones it is short and still not the last",
            Content::Json(page("dead_letters", named("DeadLetter"))),
        ),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/dead-letters/groups"),
            (GROUP, "groupDeadLetters"),
            READ,
            "Dead letters counted by reason and error, most first. Of very many, the oldest are looked at.",
            groups,
        )
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
            "Changes a dead letter before it is redriven. What is left out stays as it is.",
            edit,
        )
        .takes(named("DeadLetterEdit"))
        .answers(200, "As it is now", Content::Json(named("DeadLetter"))),
    ]
}

async fn list(State(app): State<Arc<App>>, QueuePath(queue): QueuePath, params: Params) -> Result<Response, ApiError> {
    let reason = params.text("reason")?;
    let query = DeadLetterQuery {
        selection: reason.map_or(DeadLetterSelection::All, |reason| DeadLetterSelection::Reason(reason.into())),
        limit: params.limit(100, MOST_LISTED)?,
        after: params.text("after")?.map(|after| DeadLetterCursor(after.to_owned())),
    };
    answer(&DeadPage::from(page_of(&app, &queue, query).await?))
}

/// As many dead letters as are wanted, or as fit into an answer.
async fn page_of(app: &App, queue: &QueueName, wanted: DeadLetterQuery) -> Result<DeadLetterPage, ApiError> {
    let bytes = |letter: &DeadLetter| letter.body.len() + letter.headers.byte_len();
    let ask = async |limit: usize, after: Option<DeadLetterCursor>| {
        let query = DeadLetterQuery { limit, after, ..wanted.clone() };
        app.provider.list_dead_letters(queue, &query, Deadline::default()).await
    };
    let (mut letters, mut room, mut after) = (Vec::new(), Room::default(), wanted.after.clone());
    loop {
        let portion = (wanted.limit - letters.len()).min(readable(app.most_bytes()));
        let mut page = ask(portion, after.clone()).await?;
        if !room.take(&mut page.letters, bytes).is_empty() {
            // A cursor stands at the end of a page, so this one ends where the answer does.
            match page.letters.len() {
                0 => return Ok(DeadLetterPage { letters, next: after }),
                fits => page = ask(fits, after).await?,
            }
            letters.append(&mut page.letters);
            return Ok(DeadLetterPage { letters, next: page.next });
        }
        letters.append(&mut page.letters);
        if page.next.is_none() || letters.len() >= wanted.limit || room.is_full() {
            return Ok(DeadLetterPage { letters, next: page.next });
        }
        after = page.next;
    }
}

/// Calls `see` with every dead letter of a selection, up to `most`; answers whether those were all.
pub(super) async fn each(
    app: &App,
    queue: &QueueName,
    selection: DeadLetterSelection,
    most: usize,
    mut see: impl FnMut(DeadLetter),
) -> Result<(usize, bool), ApiError> {
    let mut query = DeadLetterQuery { selection, limit: readable(app.most_bytes()).min(500), after: None };
    let mut seen = 0;
    loop {
        let page = app.provider.list_dead_letters(queue, &query, Deadline::default()).await?;
        for letter in page.letters {
            if seen == most {
                return Ok((seen, false));
            }
            seen += 1;
            see(letter);
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok((seen, true)),
        }
    }
}

async fn groups(State(app): State<Arc<App>>, QueuePath(queue): QueuePath) -> Result<Response, ApiError> {
    let mut groups: HashMap<(String, Option<String>), DeadGroup> = HashMap::new();
    let (looked_at, complete) = each(&app, &queue, DeadLetterSelection::All, MOST_GROUPED, |letter| {
        let key = (letter.reason.as_str().to_owned(), letter.error.clone());
        let group = groups.entry(key).or_insert_with(|| DeadGroup {
            reason: letter.reason.as_str().to_owned(),
            error: letter.error.clone(),
            count: 0,
            first_dead_at: letter.dead_at,
            last_dead_at: letter.dead_at,
            example_id: letter.id,
        });
        group.count += 1;
        group.first_dead_at = group.first_dead_at.min(letter.dead_at);
        group.last_dead_at = group.last_dead_at.max(letter.dead_at);
    })
    .await?;
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| (&a.reason, &a.error).cmp(&(&b.reason, &b.error))));
    answer(&DeadGroups { groups, looked_at: looked_at as u64, complete })
}

async fn get(
    State(app): State<Arc<App>>,
    QueuePath(queue): QueuePath,
    MessagePath(id): MessagePath,
) -> Result<Response, ApiError> {
    answer(&Dead::from(app.provider.get_dead_letter(&queue, id, Deadline::default()).await?))
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
