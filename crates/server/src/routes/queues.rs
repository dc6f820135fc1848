//! Queues: what they hold, and what is done to all of it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use postrider::{Deadline, MessagingService, QueueAdmin, QueueName};
use postrider_wire::queue::{Paused, Purged, QueueNames, QueuesPage, Stats, Verified, VerifyRequest};
use serde_json::json;

use super::{ANY_ROLE, EITHER_END, OPERATE, READ};
use crate::access::Caller;
use crate::api::schemas::{self, asks_only, limit, list, named, only, page, text};
use crate::api::{ApiError, Content, JsonBody, Params, QueuePath, Route, Verb, answer, no_content};
use crate::app::App;
use crate::audit::outcome;

/// So many queues are on one page, or asked about at once.
const MOST_QUEUES: usize = 1000;

/// So many are looked at together.
const AT_ONCE: usize = 4;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Queues";
    vec![
        Route::new(
            (Verb::Get, "/v1/queues"),
            (GROUP, "listQueues"),
            READ,
            "What every queue holds, by name.",
            list_stats,
        )
        .parameter("prefix", text(), "Only those whose name begins with this")
        .parameter("limit", limit(MOST_QUEUES), "At most so many; 100 unless told otherwise")
        .parameter("after", text(), "The 'next' of the page before")
        .answers(200, "A page of queues", Content::Json(page("queues", named("QueueStats")))),
        Route::new((Verb::Get, "/v1/queue-names"), (GROUP, "listQueueNames"), READ, "The name of every queue.", names)
            .answers(200, "The names", Content::Json(only("queues", list(text())))),
        Route::new(
            (Verb::Post, "/v1/queues/verify"),
            (GROUP, "verifyQueues"),
            ANY_ROLE,
            "Which of these queues are there and usable.",
            verify,
        )
        .takes(asks_only("queues", json!({ "type": "array", "items": schemas::queue_name(), "maxItems": MOST_QUEUES })))
        .answers(200, "What each is like", Content::Json(named("QueueHealth"))),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}"),
            (GROUP, "getQueue"),
            ANY_ROLE,
            "What a queue holds; all zero when it does not exist.",
            stats,
        )
        .answers(200, "What it holds", Content::Json(named("QueueStats"))),
        Route::new(
            (Verb::Put, "/v1/queues/{queue}"),
            (GROUP, "ensureQueue"),
            EITHER_END,
            "Makes a queue, if it is not there.",
            ensure,
        )
        .answers(204, "It is there", Content::Nothing),
        Route::new(
            (Verb::Delete, "/v1/queues/{queue}"),
            (GROUP, "deleteQueue"),
            OPERATE,
            "Removes a queue with everything in it, its dead letters included.",
            delete,
        )
        .answers(204, "It is gone", Content::Nothing),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/pause"),
            (GROUP, "pauseQueue"),
            OPERATE,
            "Holds receives back. Sends and settles go on.",
            pause,
        )
        .answers(200, "It is paused", Content::Json(named("Paused"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/resume"),
            (GROUP, "resumeQueue"),
            OPERATE,
            "Lets receives go on.",
            resume,
        )
        .answers(200, "It is not paused", Content::Json(named("Paused"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/purge"),
            (GROUP, "purgeQueue"),
            OPERATE,
            "Removes every message that nobody has leased. Dead letters stay.",
            purge,
        )
        .answers(200, "How many there were", Content::Json(named("Purged"))),
    ]
}

async fn list_stats(State(app): State<Arc<App>>, caller: Caller, params: Params) -> Result<Response, ApiError> {
    let limit = params.limit(100, MOST_QUEUES)?;
    let (prefix, after) = (params.text("prefix")?.unwrap_or_default(), params.text("after")?);
    let deadline = Deadline::default();
    let queues = app.provider.list_queues(deadline).await?;
    let wanted = |queue: &QueueName| {
        queue.as_str().starts_with(prefix) && after.is_none_or(|after| queue.as_str() > after) && caller.may_use(queue)
    };
    let mut wanted = queues.into_iter().filter(wanted);
    let look = |queue: QueueName| {
        let app = app.clone();
        async move { app.provider.queue_stats(&queue, deadline).await }
    };
    let looks: Vec<_> = wanted.by_ref().take(limit).map(look).collect();
    let shown: Vec<_> = stream::iter(looks).buffered(AT_ONCE).map_ok(|stats| Stats::from(&stats)).try_collect().await?;
    let next = wanted.next().and(shown.last()).map(|last| last.queue.as_str().to_owned());
    answer(&QueuesPage { queues: shown, next })
}

async fn names(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    let queues = app.provider.list_queues(Deadline::default()).await?;
    answer(&QueueNames { queues: queues.into_iter().filter(|queue| caller.may_use(queue)).collect() })
}

async fn verify(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(VerifyRequest { queues }): JsonBody<VerifyRequest>,
) -> Result<Response, ApiError> {
    if queues.len() > MOST_QUEUES {
        return Err(ApiError::malformed(format!("queues: name at most {MOST_QUEUES}")));
    }
    for queue in &queues {
        caller.check_queue(queue)?;
    }
    answer(&Verified::from(app.provider.verify_queues(&queues, Deadline::default()).await?))
}

async fn stats(State(app): State<Arc<App>>, QueuePath(queue): QueuePath) -> Result<Response, ApiError> {
    answer(&Stats::from(&app.provider.queue_stats(&queue, Deadline::default()).await?))
}

async fn ensure(State(app): State<Arc<App>>, QueuePath(queue): QueuePath) -> Result<Response, ApiError> {
    app.provider.ensure_queue(&queue, Deadline::default()).await?;
    Ok(no_content())
}

async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
) -> Result<Response, ApiError> {
    let stats = app.provider.queue_stats(&queue, Deadline::default()).await?;
    let held = json!({ "messages": stats.message_count(), "dead": stats.dead.value() });
    let deed = app.audit.begin(&caller, "delete_queue", queue.as_str(), held).await?;
    let done = app.provider.delete_queue(&queue, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |()| json!("deleted"))).await;
    done?;
    Ok(no_content())
}

async fn pause(State(app): State<Arc<App>>, caller: Caller, QueuePath(queue): QueuePath) -> Result<Response, ApiError> {
    let deed = app.audit.begin(&caller, "pause_queue", queue.as_str(), json!({})).await?;
    let done = app.provider.pause(&queue, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |()| json!("paused"))).await;
    done?;
    answer(&Paused { queue, paused: true })
}

async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
) -> Result<Response, ApiError> {
    let deed = app.audit.begin(&caller, "resume_queue", queue.as_str(), json!({})).await?;
    let done = app.provider.resume(&queue, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |()| json!("resumed"))).await;
    done?;
    answer(&Paused { queue, paused: false })
}

async fn purge(State(app): State<Arc<App>>, caller: Caller, QueuePath(queue): QueuePath) -> Result<Response, ApiError> {
    let deed = app.audit.begin(&caller, "purge_queue", queue.as_str(), json!({})).await?;
    let done = app.provider.purge(&queue, Deadline::default()).await;
    app.audit.done(deed, outcome(&done, |purged| json!({ "purged": purged }))).await;
    answer(&Purged { purged: done? })
}
