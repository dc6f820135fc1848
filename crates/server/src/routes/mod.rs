//! Every route, and the router that is made from them.

mod assets;
mod create_tasks;
mod dead_letters;
mod events;
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
mod work_on_tasks;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};

use crate::access::{Guarding, Role, guard};
use crate::api::{self, ApiError, Code, Need, Route};
use crate::app::App;
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
        receive::routes(),
        settle::routes(),
        queues::routes(),
        dead_letters::routes(),
        redrive::routes(),
        jobs::routes(),
        create_tasks::routes(),
        tasks::routes(),
        work_on_tasks::routes(),
        schedules::routes(),
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

/// A panic of a handler is the failure of one request.
async fn no_trailing_panic(
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Result<axum::response::Response, ApiError> {
    use futures_util::FutureExt;
    let run = std::panic::AssertUnwindSafe(next.run(request)).catch_unwind();
    run.await.map_err(|_| {
        tracing::error!("a request made the server panic");
        let why: Box<dyn std::error::Error + Send + Sync> =
            "the server failed at this request; its log says more".into();
        ApiError::from(postrider::MessagingError::Provider {
            provider: "server",
            operation: "answer",
            source: why.into(),
            retryable: false,
        })
    })
}
