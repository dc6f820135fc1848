//! The middleware that checks every request before its handler.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::caller::Proof;
use super::origin;
use super::role::role_name;
use crate::api::{ApiError, Code, Need, Params, Verb};
use crate::app::App;
use crate::edge::{CallerName, Peer};
use crate::in_flight::InFlight;

/// What the middleware checks for a route.
#[derive(Debug, Clone)]
pub(crate) struct GuardedRoute {
    pub(crate) need: Need,
    pub(crate) verb: Verb,
    /// The parameters that the route takes.
    pub(crate) parameters: Arc<[&'static str]>,
}

/// Passes a request on if its caller has a required role. The body is not read before.
pub(crate) async fn guard(
    State((app, route)): State<(Arc<App>, GuardedRoute)>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
    if route.need == Need::Unidentified {
        return Ok(next.run(request).await);
    }
    origin::check_host(request.version(), request.headers()).map_err(ApiError::malformed)?;
    let caller = app.access.identify(request.headers(), &peer.address).await?;
    if caller.proof != Proof::None
        && let Some(who) = request.extensions().get::<CallerName>()
    {
        // The only place that sets it.
        let _ = who.0.set(caller.name.clone());
    }
    if let Need::OneOf(roles) = route.need
        && !roles.iter().any(|role| caller.has(*role))
    {
        return Err(match caller.proof {
            Proof::None => {
                let why = "send a token as 'Authorization: Bearer prt_…'; `postrider token create` makes one";
                ApiError::new(Code::Unauthorized, why)
            }
            _ => {
                let names: Vec<_> = roles.iter().map(|role| format!("'{}'", role_name(*role))).collect();
                let why = format!("this needs the role {}, which the token does not have", names.join(" or "));
                ApiError::forbidden(why)
            }
        });
    }
    if route.verb != Verb::Get {
        origin::check(request.headers(), caller.proof)
            .map_err(|why| ApiError::forbidden(format!("{why}; nothing was done")))?;
    }
    if let Some(rate) = &app.rate {
        rate.take(&caller.key).map_err(|seconds| {
            let why = "this caller exceeds server.requests_per_second; wait as Retry-After says";
            ApiError::new(Code::TooManyRequests, why).retry_after(seconds)
        })?;
    }
    let params = Params::read(request.uri().query());
    if let Some(unknown) = params.names().find(|name| !route.parameters.contains(name)) {
        let known = match route.parameters.len() {
            0 => "this takes no parameters".to_owned(),
            _ => format!("this takes {}", route.parameters.join(", ")),
        };
        return Err(ApiError::malformed(format!("unknown parameter '{}'; {known}", unknown.escape_debug())));
    }
    let in_flight = InFlight::new(&app.budget, &caller.key);
    // Settles are let through, as they free memory, and metrics, as they are needed most when memory is short.
    if route.verb == Verb::Get && request.uri().path() != "/metrics" {
        in_flight.wait_for_room().await?;
    }
    request.extensions_mut().insert(in_flight.clone());
    request.extensions_mut().insert(caller);
    let response = next.run(request).await;
    Ok(in_flight.hold(response, peer.unflushed))
}
