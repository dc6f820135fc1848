//! What stands before every route.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::caller::Proof;
use super::origin;
use super::role::role_name;
use crate::api::{ApiError, Code, Need, Params, Verb};
use crate::app::App;
use crate::edge::{Peer, Who};
use crate::in_flight::InFlight;

/// What the guard knows of a route.
#[derive(Debug, Clone)]
pub(crate) struct Guarding {
    pub(crate) need: Need,
    pub(crate) verb: Verb,
    /// The parameters that the route takes.
    pub(crate) parameters: Arc<[&'static str]>,
}

/// Lets a request through if its sender may do what it asks for. Nothing of its body is read before.
pub(crate) async fn guard(
    State((app, route)): State<(Arc<App>, Guarding)>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
    if route.need == Need::Unasked {
        return Ok(next.run(request).await);
    }
    origin::check_host(request.version(), request.headers()).map_err(ApiError::malformed)?;
    let caller = app.access.identify(request.headers(), &peer.address).await?;
    if caller.proof != Proof::None
        && let Some(who) = request.extensions().get::<Who>()
    {
        // Set here alone.
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
                let why = format!("this needs the role {}, and the token does not have it", names.join(" or "));
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
            let why = "this caller sends more requests than server.requests_per_second allows; wait a little";
            ApiError::new(Code::TooManyRequests, why).retry_after(seconds)
        })?;
    }
    let params = Params::read(request.uri().query());
    if let Some(unknown) = params.names().find(|name| !route.parameters.contains(name)) {
        let known = match route.parameters.len() {
            0 => "this takes no parameters".to_owned(),
            _ => format!("this takes {}", route.parameters.join(", ")),
        };
        return Err(ApiError::malformed(format!("parameter '{}' is not known; {known}", unknown.escape_debug())));
    }
    let in_flight = InFlight::new(&app.budget, &caller.key);
    // What settles leases goes on without room: it makes some. Metrics are needed most when there is none.
    if route.verb == Verb::Get && request.uri().path() != "/metrics" {
        in_flight.wait_for_room().await?;
    }
    request.extensions_mut().insert(in_flight.clone());
    request.extensions_mut().insert(caller);
    let response = next.run(request).await;
    Ok(in_flight.hold(response, peer.unflushed))
}
