//! Queues: stats, create, delete, pause, purge.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use postrider::{Deadline, MessagingService, QueueAdmin, QueueName};
use postrider_wire::queue::{Paused, Purged, QueueNames, QueuesPage, Stats, Verified, VerifyRequest};
use serde_json::json;

use super::{ANY_ROLE, EITHER_END, OPERATE, READ};
use crate::access::Caller;
use crate::api::schemas::{self, limit, list, named, only, page, request_only, text};
use crate::api::{ApiError, Content, JsonBody, Params, QueuePath, Route, Verb, answer, no_content};
use crate::app::App;
use crate::audit::outcome;

/// Upper bound of the queues of a page, and of one request.
const MAX_QUEUES: usize = 1000;

/// Number of queues read concurrently.
const CONCURRENT: usize = 4;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Queues";
    vec![
        Route::new(
            (Verb::Get, "/v1/queues"),
            (GROUP, "listQueues"),
            READ,
            "The stats of all queues, by name.",
            list_stats,
        )
        .parameter("prefix", text(), "Only those whose name begins with this")
        .parameter("limit", limit(MAX_QUEUES), "Rows of the page; default 100")
        .parameter("after", text(), "'next' of the previous page")
        .answers(200, "A page of queues", Content::Json(page("queues", named("QueueStats")))),
        Route::new((Verb::Get, "/v1/queue-names"), (GROUP, "listQueueNames"), READ, "The names of all queues.", names)
            .answers(200, "The names", Content::Json(only("queues", list(text())))),
        Route::new(
            (Verb::Post, "/v1/queues/verify"),
            (GROUP, "verifyQueues"),
            ANY_ROLE,
            "Which of these queues exist and are usable.",
            verify,
        )
        .takes(request_only(
            "queues",
            json!({ "type": "array", "items": schemas::queue_name(), "maxItems": MAX_QUEUES }),
        ))
        .answers(200, "The health of each", Content::Json(named("QueueHealth"))),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}"),
            (GROUP, "getQueue"),
            ANY_ROLE,
            "The stats of a queue; all zero if it does not exist.",
            stats,
        )
        .answers(200, "The stats", Content::Json(named("QueueStats"))),
        Route::new(
            (Verb::Put, "/v1/queues/{queue}"),
            (GROUP, "ensureQueue"),
            EITHER_END,
            "Creates a queue if it does not exist.",
            ensure,
        )
        .answers(204, "The queue exists", Content::Nothing),
        Route::new(
            (Verb::Delete, "/v1/queues/{queue}"),
            (GROUP, "deleteQueue"),
            OPERATE,
            "Deletes a queue with all its messages and dead letters.",
            delete,
        )
        .answers(204, "The queue is deleted", Content::Nothing),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/pause"),
            (GROUP, "pauseQueue"),
            OPERATE,
            "Pauses receives. Sends and settles continue.",
            pause,
        )
        .answers(200, "The queue is paused", Content::Json(named("Paused"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/resume"),
            (GROUP, "resumeQueue"),
            OPERATE,
            "Resumes receives.",
            resume,
        )
        .answers(200, "The queue is not paused", Content::Json(named("Paused"))),
        Route::new(
            (Verb::Post, "/v1/queues/{queue}/purge"),
            (GROUP, "purgeQueue"),
            OPERATE,
            "Removes all messages that are not leased. Dead letters stay.",
            purge,
        )
        .answers(200, "The number of removed messages", Content::Json(named("Purged"))),
    ]
}

async fn list_stats(State(app): State<Arc<App>>, caller: Caller, params: Params) -> Result<Response, ApiError> {
    let limit = params.limit(100, MAX_QUEUES)?;
    let (prefix, after) = (params.text("prefix")?.unwrap_or_default(), params.text("after")?);
    let deadline = Deadline::default();
    let queues = app.provider.list_queues(deadline).await?;
    let wanted = |queue: &QueueName| {
        queue.as_str().starts_with(prefix) && after.is_none_or(|after| queue.as_str() > after) && caller.may_use(queue)
    };
    let mut wanted = queues.into_iter().filter(wanted);
    let read_stats = |queue: QueueName| {
        let app = app.clone();
        async move { app.provider.queue_stats(&queue, deadline).await }
    };
    let reads: Vec<_> = wanted.by_ref().take(limit).map(read_stats).collect();
    let shown: Vec<_> =
        stream::iter(reads).buffered(CONCURRENT).map_ok(|stats| Stats::from(&stats)).try_collect().await?;
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
    if queues.len() > MAX_QUEUES {
        return Err(ApiError::malformed(format!("too many queues; name at most {MAX_QUEUES}")));
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
    let audited = app.audit.begin(&caller, "delete_queue", queue.as_str(), held).await?;
    let done = app.provider.delete_queue(&queue, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |()| json!("deleted"))).await;
    done?;
    Ok(no_content())
}

async fn pause(State(app): State<Arc<App>>, caller: Caller, QueuePath(queue): QueuePath) -> Result<Response, ApiError> {
    let audited = app.audit.begin(&caller, "pause_queue", queue.as_str(), json!({})).await?;
    let done = app.provider.pause(&queue, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |()| json!("paused"))).await;
    done?;
    answer(&Paused { queue, paused: true })
}

async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
) -> Result<Response, ApiError> {
    let audited = app.audit.begin(&caller, "resume_queue", queue.as_str(), json!({})).await?;
    let done = app.provider.resume(&queue, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |()| json!("resumed"))).await;
    done?;
    answer(&Paused { queue, paused: false })
}

async fn purge(State(app): State<Arc<App>>, caller: Caller, QueuePath(queue): QueuePath) -> Result<Response, ApiError> {
    let audited = app.audit.begin(&caller, "purge_queue", queue.as_str(), json!({})).await?;
    let done = app.provider.purge(&queue, Deadline::default()).await;
    app.audit.finish(audited, outcome(&done, |purged| json!({ "purged": purged }))).await;
    answer(&Purged { purged: done?, dry_run: false })
}
