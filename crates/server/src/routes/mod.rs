//! Every route, and the router that is made from them.

mod archive;
mod assets;
mod bulk_tasks;
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
mod work_on_tasks;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use futures_util::FutureExt;
use postrider::MessagingError;

use crate::access::{Guarding, Role, guard};
use crate::api::{self, ApiError, Code, Need, Route, Verb};
use crate::app::App;
use crate::leases::to_its_end;
use crate::{edge, repeat};

/// Whoever has the role.
pub(crate) const READ: Need = Need::OneOf(&[Role::Read]);
pub(crate) const PRODUCE: Need = Need::OneOf(&[Role::Produce]);
pub(crate) const CONSUME: Need = Need::OneOf(&[Role::Consume]);
pub(crate) const OPERATE: Need = Need::OneOf(&[Role::Operate]);
pub(crate) const ADMIN: Need = Need::OneOf(&[Role::Admin]);

/// Whoever has any: what every client must know of the store and of a queue that its token is for.
pub(crate) const ANY_ROLE: Need = Need::OneOf(&[Role::Read, Role::Produce, Role::Consume]);

/// Whoever uses queues, from either end.
pub(crate) const EITHER_END: Need = Need::OneOf(&[Role::Produce, Role::Consume]);

/// All routes of the API, in the order in which they are described.
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
        work_on_tasks::routes(),
        schedules::routes(),
        times::routes(),
        people::routes(),
        events::routes(),
        store::routes(),
        health::routes(),
    ]
    .concat()
}

/// The whole server, but for its socket.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let routes = all();
    let document = api::document(&routes);
    let reference = api::page(&routes, &document);
    let mut router = Router::new();
    for route in routes {
        let guarding = Guarding {
            need: route.need,
            verb: route.verb,
            parameters: route.parameters.iter().map(|parameter| parameter.name).collect(),
        };
        let mut handler = route.handler;
        if route.is_repeatable {
            handler = handler.layer(from_fn_with_state(app.clone(), repeat::once));
        }
        if route.verb != Verb::Get && [OPERATE, ADMIN].contains(&route.need) {
            handler = handler.layer(from_fn_with_state(app.clone(), whole));
        }
        // The last layer is the first that a request meets.
        handler = handler.layer(from_fn_with_state((app.clone(), guarding), guard));
        router = router.route(route.path, handler);
    }
    let router = assets::add(router, &document, reference)
        .fallback(|| async { ApiError::not_found("there is nothing at this path; /reference has all that there is") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(Code::MethodNotAllowed, "this path has other methods; /reference has all that there are")
        });
    router.layer(from_fn(no_trailing_panic)).layer(from_fn_with_state(app.clone(), edge::frame)).with_state(app.clone())
}

const FAILED: &str = "the server failed at this request; its log says more";

/// Carries out what the audit log knows of to its end, also when the client leaves meanwhile: the log shall say what came
/// of it.
async fn whole(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    to_its_end(&app, async move { next.run(request).await }).await.ok_or_else(|| outcome_unknown(FAILED))
}

/// Nobody knows what a request has done.
fn outcome_unknown(why: &'static str) -> ApiError {
    let why: Box<dyn std::error::Error + Send + Sync> = why.into();
    MessagingError::OutcomeUnknown { operation: "the request", ids: Vec::new(), source: Some(why.into()) }.into()
}

/// A panic of a handler is the failure of one request. What it had done by then nobody knows.
async fn no_trailing_panic(request: Request, next: Next) -> Result<Response, ApiError> {
    let only_looks = matches!(*request.method(), Method::GET | Method::HEAD);
    let run = AssertUnwindSafe(next.run(request)).catch_unwind();
    run.await.map_err(|_| {
        tracing::error!("a request made the server panic");
        if only_looks {
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
    async fn after_a_panic_nobody_is_told_that_nothing_was_done() {
        async fn fails() -> Response {
            panic!("on purpose")
        }
        let router = Router::new()
            .route("/fails", any(fails))
            .route("/goes", any(|| async { "well".into_response() }))
            .layer(from_fn(no_trailing_panic));
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
    async fn what_is_audited_is_carried_out_to_its_end_when_its_client_leaves() {
        let (app, _folder) = crate::app::example().await;
        let (is_begun, end, is_done) =
            (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (told, awaited, done) = (is_begun.clone(), end.clone(), is_done.clone());
        let handler = move || async move {
            told.notify_one();
            awaited.notified().await;
            done.store(true, Ordering::Relaxed);
        };
        let router = Router::new().route("/", any(handler)).layer(from_fn_with_state(app.clone(), whole));
        let request = Request::builder().method(Method::POST).uri("/").body(Body::empty()).unwrap();
        tokio::select! {
            _ = router.oneshot(request) => panic!("it waits"),
            () = is_begun.notified() => {}
        }
        end.notify_one();
        app.begun.close();
        app.begun.wait().await;
        assert!(is_done.load(Ordering::Relaxed));
    }
}
