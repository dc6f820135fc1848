//! The route table, and the router made from it.

mod archive;
mod assets;
mod bulk_tasks;
mod claim_tasks;
mod create_tasks;
mod dead_letters;
mod events;
mod find_dead_letters;
mod find_waiting;
mod health;
mod jobs;
mod messages;
mod people;
mod queues;
mod receive;
mod redrive;
mod schedules;
mod settle;
mod store;
mod tasks;
mod times;
mod waiting;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use futures_util::FutureExt;
use postrider::MessagingError;

use crate::access::{GuardedRoute, Role, guard};
use crate::api::{self, ApiError, Code, Need, Route, Verb};
use crate::app::App;
use crate::leases::run_to_completion;
use crate::{edge, idempotency};

/// Routes that require one role.
pub(crate) const READ: Need = Need::OneOf(&[Role::Read]);
pub(crate) const PRODUCE: Need = Need::OneOf(&[Role::Produce]);
pub(crate) const CONSUME: Need = Need::OneOf(&[Role::Consume]);
pub(crate) const OPERATE: Need = Need::OneOf(&[Role::Operate]);
pub(crate) const ADMIN: Need = Need::OneOf(&[Role::Admin]);

/// Routes that every client needs.
pub(crate) const ANY_ROLE: Need = Need::OneOf(&[Role::Read, Role::Produce, Role::Consume]);

/// Routes for senders and receivers.
pub(crate) const EITHER_END: Need = Need::OneOf(&[Role::Produce, Role::Consume]);

/// All routes of the API, in the order of the reference.
pub(crate) fn all() -> Vec<Route> {
    [
        messages::routes(),
        waiting::routes(),
        receive::routes(),
        settle::routes(),
        queues::routes(),
        dead_letters::routes(),
        redrive::routes(),
        archive::routes(),
        jobs::routes(),
        create_tasks::routes(),
        tasks::routes(),
        bulk_tasks::routes(),
        claim_tasks::routes(),
        schedules::routes(),
        times::routes(),
        people::routes(),
        events::routes(),
        store::routes(),
        health::routes(),
    ]
    .concat()
}

/// Returns the router with all middleware.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let routes = all();
    let document = api::document(&routes);
    let reference = api::page(&routes, &document);
    let mut router = Router::new();
    for route in routes {
        let guarded = GuardedRoute {
            need: route.need,
            verb: route.verb,
            parameters: route.parameters.iter().map(|parameter| parameter.name).collect(),
        };
        let mut handler = route.handler;
        if route.is_repeatable {
            handler = handler.layer(from_fn_with_state(app.clone(), idempotency::idempotent));
        }
        if route.verb != Verb::Get && [OPERATE, ADMIN].contains(&route.need) {
            handler = handler.layer(from_fn_with_state(app.clone(), run_audited));
        }
        // The layer added last runs first.
        handler = handler.layer(from_fn_with_state((app.clone(), guarded), guard));
        router = router.route(route.path, handler);
    }
    let router = assets::add(router, &document, reference)
        .fallback(|| async { ApiError::not_found("no such path; see /reference") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(Code::MethodNotAllowed, "this path has other methods; see /reference")
        });
    router.layer(from_fn(catch_panic)).layer(from_fn_with_state(app.clone(), edge::outermost)).with_state(app.clone())
}

const FAILED: &str = "the server failed at this request; see its log";

/// Runs an audited request to completion even if the client leaves, so that the log gets its outcome.
async fn run_audited(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    run_to_completion(&app, async move { next.run(request).await }).await.ok_or_else(|| outcome_unknown(FAILED))
}

/// Returns the error of a request with an unknown outcome.
fn outcome_unknown(why: &'static str) -> ApiError {
    let why: Box<dyn std::error::Error + Send + Sync> = why.into();
    MessagingError::OutcomeUnknown { operation: "the request", ids: Vec::new(), source: Some(why.into()) }.into()
}

/// Turns a panic of a handler into an error answer; the outcome of a request that may have changed something is
/// unknown.
async fn catch_panic(request: Request, next: Next) -> Result<Response, ApiError> {
    let is_read_only = matches!(*request.method(), Method::GET | Method::HEAD);
    let run = AssertUnwindSafe(next.run(request)).catch_unwind();
    run.await.map_err(|_| {
        tracing::error!("a request made the server panic");
        if is_read_only {
            return ApiError::new(Code::InternalError, FAILED);
        }
        outcome_unknown(FAILED)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::body::Body;
    use axum::response::IntoResponse;
    use axum::routing::any;
    use tokio::sync::Notify;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn after_a_panic_the_outcome_of_a_change_is_unknown() {
        async fn fails() -> Response {
            panic!("on purpose")
        }
        let router = Router::new()
            .route("/fails", any(fails))
            .route("/goes", any(|| async { "well".into_response() }))
            .layer(from_fn(catch_panic));
        let ask = async |method: Method, path: &str| {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            let problem = response.extensions().get::<ApiError>().map(|error| format!("{error:?}"));
            (response.status().as_u16(), problem.unwrap_or_default())
        };
        for method in [Method::GET, Method::HEAD] {
            let (status, problem) = ask(method, "/fails").await;
            assert!(status == 500 && problem.contains("InternalError"), "{status} {problem}");
        }
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let (status, problem) = ask(method, "/fails").await;
            assert!(status == 504 && problem.contains("OutcomeUnknown"), "{status} {problem}");
        }
        assert_eq!(ask(Method::POST, "/goes").await.0, 200);
    }

    #[tokio::test]
    async fn audited_requests_run_to_completion_when_their_client_leaves() {
        let (app, _folder) = crate::app::test_app().await;
        let (is_begun, end, is_done) =
            (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (begun, awaited, done) = (is_begun.clone(), end.clone(), is_done.clone());
        let handler = move || async move {
            begun.notify_one();
            awaited.notified().await;
            done.store(true, Ordering::Relaxed);
        };
        let router = Router::new().route("/", any(handler)).layer(from_fn_with_state(app.clone(), run_audited));
        let request = Request::builder().method(Method::POST).uri("/").body(Body::empty()).unwrap();
        tokio::select! {
            _ = router.oneshot(request) => panic!("it waits"),
            () = is_begun.notified() => {}
        }
        end.notify_one();
        app.background.close();
        app.background.wait().await;
        assert!(is_done.load(Ordering::Relaxed));
    }
}
