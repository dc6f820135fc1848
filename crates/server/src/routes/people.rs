//! Workers, sessions, the audit log and tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use postrider::task::{TaskFilter, TaskQuery};
use postrider::{Deadline, MessagingService, QueueName, TaskState, TaskStore, Timestamp};
use postrider_wire::audit::AuditPage;
use postrider_wire::session::{LogInRequest, Session};
use postrider_wire::token::{NewToken as TokenText, NewTokenRequest, Tokens as TokenList};
use postrider_wire::worker::{Worker, WorkerKind, Workers};

use super::{ADMIN, OPERATE, READ};
use crate::access::{Caller, NewToken, Proof};
use crate::api::schemas::{limit, list as listed, named, only, page, text};
use crate::api::{
    ApiError, Content, IdPath, JsonBody, Need, Params, Route, SmallJson, Verb, answer, answer_with, no_content,
};
use crate::app::App;
use crate::edge::Peer;

const MAX_LISTED: usize = 1000;

/// Upper bound of the running tasks that are read for their workers.
const MAX_RUNNING: usize = 1000;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "People and workers";
    vec![
        Route::new(
            (Verb::Get, "/v1/workers"),
            (GROUP, "listWorkers"),
            READ,
            "Workers that receive over HTTP or run tasks, with their last activity and their leases.",
            workers,
        )
        .answers(200, "The workers", Content::Json(only("workers", listed(named("Worker"))))),
        Route::new(
            (Verb::Get, "/v1/session"),
            (GROUP, "getSession"),
            Need::Nothing,
            "The caller, and what it may do.",
            session,
        )
        .answers(200, "The session", Content::Json(named("Session"))),
        Route::new(
            (Verb::Post, "/v1/session"),
            (GROUP, "logIn"),
            Need::Nothing,
            "Begins a session with a token, for browsers: the answer sets a cookie.",
            log_in,
        )
        .takes(named("NewSession"))
        .answers(204, "The session has begun", Content::Nothing),
        Route::new((Verb::Delete, "/v1/session"), (GROUP, "logOut"), Need::Nothing, "Ends the session.", log_out)
            .answers(204, "The session has ended", Content::Nothing),
        Route::new(
            (Verb::Get, "/v1/audit"),
            (GROUP, "listAudit"),
            OPERATE,
            "Actions that changed or removed something, with caller and outcome; newest first.",
            audit,
        )
        .parameter("limit", limit(MAX_LISTED), "Rows of the page; default 100")
        .parameter("after", text(), "'next' of the previous page")
        .answers(200, "A page of entries", Content::Json(page("entries", named("AuditEntry")))),
        Route::new((Verb::Get, "/v1/tokens"), (GROUP, "listTokens"), ADMIN, "All tokens, without their secrets.", tokens)
            .answers(200, "The tokens", Content::Json(only("tokens", listed(named("Token"))))),
        Route::new(
            (Verb::Post, "/v1/tokens"),
            (GROUP, "createToken"),
            ADMIN,
            "Creates a token. Its text is in this answer only. The first token closes an open server, and must have the role \
             admin.",
            create_token,
        )
        .takes(named("NewToken"))
        .answers(201, "The token", Content::Json(named("CreatedToken"))),
        Route::new(
            (Verb::Delete, "/v1/tokens/{id}"),
            (GROUP, "revokeToken"),
            ADMIN,
            "Revokes a token. After the last one with the role admin, only `postrider token create` on the server's state \
             creates others.",
            revoke_token,
        )
        .answers(204, "The token is invalid within a second", Content::Nothing),
    ]
}

/// A task worker, as recorded in the store.
#[derive(Debug)]
struct TaskWorker {
    queues: Vec<QueueName>,
    in_flight: u64,
    first: Timestamp,
    last: Timestamp,
}

async fn workers(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    let seen = app.workers.list(|queue| caller.may_use(queue));
    let mut all: Vec<Worker> = seen
        .into_iter()
        .map(|seen| Worker {
            name: seen.name,
            kind: seen.kind,
            address: Some(seen.address),
            queues: seen.queues,
            in_flight: seen.in_flight as u64,
            waiting: seen.is_waiting,
            first_seen_at: seen.first_seen_at,
            last_seen_at: seen.last_seen_at,
            idle_seconds: seen.idle.as_secs_f64(),
        })
        .collect();
    let filter = TaskFilter { states: vec![TaskState::Processing], ..TaskFilter::default() };
    let query = TaskQuery { filter, limit: MAX_RUNNING, after: None };
    let running = app.visible_tasks(&caller, &query).await?;
    let (routes, now) = (app.client().store().routes().clone(), Timestamp::now());
    let mut of_tasks: BTreeMap<String, TaskWorker> = BTreeMap::new();
    for task in running.tasks {
        let (Some(name), Ok(queue)) = (task.worker, routes.queue(&task.task_type)) else { continue };
        let began = task.started_at.unwrap_or(now);
        let worker = of_tasks.entry(name).or_insert_with(|| TaskWorker {
            queues: Vec::new(),
            in_flight: 0,
            first: began,
            last: began,
        });
        worker.in_flight += 1;
        worker.first = worker.first.min(began);
        // The store records no heartbeat times, so the start of the task is the last known activity.
        worker.last = worker.last.max(began);
        if !worker.queues.contains(&queue) {
            worker.queues.push(queue);
        }
    }
    // The store has the leases of all task workers, also of those that do not use this server.
    for worker in all.iter_mut().filter(|worker| worker.kind == WorkerKind::Task) {
        let Some(held) = of_tasks.remove(&worker.name) else { continue };
        worker.in_flight = held.in_flight;
        worker.first_seen_at = worker.first_seen_at.min(held.first);
        worker.last_seen_at = worker.last_seen_at.max(held.last);
        worker.idle_seconds = 0.0;
        worker.queues.extend(held.queues);
        worker.queues.sort();
        worker.queues.dedup();
    }
    all.extend(of_tasks.into_iter().map(|(name, worker)| Worker {
        name,
        kind: WorkerKind::Task,
        address: None,
        queues: worker.queues,
        in_flight: worker.in_flight,
        waiting: false,
        first_seen_at: worker.first,
        last_seen_at: worker.last,
        // Each of them runs a task.
        idle_seconds: 0.0,
    }));
    answer(&Workers { workers: all })
}

async fn session(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    let is_known = caller.proof != Proof::None;
    let queues = caller.queues.as_ref().map(|queues| queues.iter().map(ToString::to_string).collect());
    answer(&Session {
        open: app.access.is_open().await?,
        authenticated: is_known,
        name: is_known.then(|| caller.name.to_string()),
        roles: caller.roles.to_vec(),
        queues,
        // Provider and store are shown to identified callers only.
        provider: is_known.then(|| app.provider.provider_name().to_owned()),
        store: is_known.then(|| app.context.config.url().to_string()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        now: Timestamp::now(),
    })
}

async fn log_in(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    SmallJson(LogInRequest { token }): SmallJson<LogInRequest>,
) -> Result<Response, ApiError> {
    let peer = peer.map(|Extension(peer)| peer).unwrap_or_default();
    let cookie = app.access.log_in(&token, &peer.address).await?;
    let mut response = no_content();
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

async fn log_out(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let mut response = no_content();
    if let Some(cookie) = app.access.log_out(&headers).await? {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

async fn audit(State(app): State<Arc<App>>, caller: Caller, params: Params) -> Result<Response, ApiError> {
    // Entries concern all queues.
    caller.check_everywhere()?;
    let limit = params.limit(100, MAX_LISTED)?;
    let (entries, next) = app.audit.list(limit, params.text("after")?.map(str::to_owned)).await?;
    answer(&AuditPage { entries, next })
}

async fn tokens(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    answer(&TokenList { tokens: app.access.tokens().list(Deadline::default()).await? })
}

async fn create_token(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(request): JsonBody<NewTokenRequest>,
) -> Result<Response, ApiError> {
    let new = NewToken::try_from(request)?;
    let created = app.access.tokens().create(new, &caller.name, Deadline::default()).await;
    app.access.expire_cache();
    let (info, token) = created?;
    answer_with(StatusCode::CREATED, &TokenText { token, info })
}

async fn revoke_token(State(app): State<Arc<App>>, caller: Caller, IdPath(id): IdPath) -> Result<Response, ApiError> {
    let id = id.parse().map_err(|_| ApiError::malformed("the id of a token is a UUID; see GET /v1/tokens"))?;
    let revoked = app.access.tokens().revoke(id, &caller.name, Deadline::default()).await;
    app.access.expire_cache();
    match revoked? {
        true => Ok(no_content()),
        false => Err(ApiError::not_found("no such token; see GET /v1/tokens")),
    }
}
