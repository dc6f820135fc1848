//! Extractors and answers of handlers.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use postrider::{MessageId, QueueName, TaskId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use postrider_wire::{Code, read_request};

use super::body_error;
use super::error::ApiError;
use crate::access::Caller;
use crate::app::App;
use crate::in_flight::InFlight;
use crate::options::ServerOptions;

/// A request's body as JSON. An empty body is read as an empty object.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Self::Rejection> {
        Self::read(request, &app.options).await
    }
}

/// The same with a small size limit, for callers that are not identified yet.
#[derive(Debug)]
pub(crate) struct SmallJson<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for SmallJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Self::Rejection> {
        let options = ServerOptions { max_request_bytes: 4096, ..app.options.clone() };
        Ok(Self(JsonBody::read(request, &options).await?.0))
    }
}

impl<T: DeserializeOwned> JsonBody<T> {
    async fn read(request: Request, options: &ServerOptions) -> Result<Self, ApiError> {
        let named = request.headers().get(header::CONTENT_TYPE).cloned();
        let bytes = match request.extensions().get::<WholeBody>().cloned() {
            Some(WholeBody(bytes)) => bytes,
            None => {
                let in_flight = request.extensions().get::<InFlight>().cloned();
                read_body(request.into_body(), options, in_flight.as_ref()).await?
            }
        };
        match named {
            Some(name) if !is_json(&name) => {
                let detail = "send the request as JSON, with 'Content-Type: application/json'";
                return Err(ApiError::new(Code::UnsupportedMediaType, detail));
            }
            None if !bytes.is_empty() => {
                let detail = "the request has a body and no content type; send 'Content-Type: application/json'";
                return Err(ApiError::new(Code::UnsupportedMediaType, detail));
            }
            _ => {}
        }
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        match read_request(text) {
            Ok(value) => Ok(Self(value)),
            Err(error) => {
                let why = body_error::explain::<T>(text, &error);
                Err(ApiError::malformed(format!("invalid body: {why}")))
            }
        }
    }
}

/// A request's body that a middleware has read and counted.
#[derive(Debug, Clone)]
pub(crate) struct WholeBody(pub(crate) Bytes);

/// Reads a body within its size limit, its time-out and the byte budget.
pub(crate) async fn read_body(
    body: Body,
    options: &ServerOptions,
    in_flight: Option<&InFlight>,
) -> Result<Bytes, ApiError> {
    let read = collect(body, options.max_request_bytes, in_flight);
    tokio::time::timeout(options.body_timeout, read).await.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} s", options.body_timeout.as_secs_f64());
        Err(ApiError::new(Code::RequestTimeout, detail))
    })
}

/// Upper bound of the memory that is allocated before any of the body has arrived.
const MAX_AT_FIRST: usize = 64 * 1024;

async fn collect(body: Body, most: usize, in_flight: Option<&InFlight>) -> Result<Bytes, ApiError> {
    let mut body = Limited::new(body, most);
    // An announced length alone must not take memory.
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(most).min(most);
    let mut read = Vec::with_capacity(announced.min(MAX_AT_FIRST));
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
                let detail = format!(
                    "the body has more than {most} bytes; send less at once, or raise server.max_request_bytes"
                );
                return Err(ApiError::new(Code::PayloadTooLarge, detail));
            }
            Err(error) => return Err(ApiError::malformed(format!("the body could not be read: {error}"))),
        };
        let Ok(piece) = frame.into_data() else { continue };
        if let Some(in_flight) = in_flight {
            in_flight.grow(piece.len()).await?;
        }
        read.extend_from_slice(&piece);
    }
    Ok(read.into())
}

fn is_json(name: &HeaderValue) -> bool {
    let name = name.to_str().unwrap_or_default();
    let essence = name.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// The parameters of a query.
#[derive(Debug, Clone, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn read(query: Option<&str>) -> Self {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// The query without empty parameters.
    pub(crate) fn non_empty(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.0.iter().filter(|(_, value)| !value.is_empty()));
        query.finish()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// All values of a repeatable parameter, without empty ones.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.0.iter().filter(move |(own, value)| own == name && !value.is_empty());
        named.map(|(_, value)| value.as_str())
    }

    /// The only value of a parameter.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, ApiError> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            (_, Some(_)) => {
                Err(ApiError::malformed(format!("parameter '{name}' is given more than once; give it once")))
            }
        }
    }

    /// The same, read as a number.
    pub(crate) fn number(&self, name: &'static str) -> Result<Option<usize>, ApiError> {
        let read = |value: &str| {
            value.parse().map_err(|_| {
                let value = value.escape_debug();
                ApiError::malformed(format!("invalid parameter '{name}': '{value}'; use a whole number"))
            })
        };
        self.text(name)?.map(read).transpose()
    }

    /// The number of rows of a page.
    pub(crate) fn limit(&self, usual: usize, most: usize) -> Result<usize, ApiError> {
        let limit = self.number("limit")?.unwrap_or(usual);
        match (1..=most).contains(&limit) {
            true => Ok(limit),
            false => Err(ApiError::malformed(format!("invalid parameter 'limit'; use 1 to {most}"))),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::read(parts.uri.query()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let caller = parts.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| ApiError::new(Code::Unauthorized, "the caller of this request was not identified"))
    }
}

/// Returns a named part of the path.
async fn named<S: Send + Sync>(parts: &mut Parts, state: &S, name: &str) -> Result<String, ApiError> {
    let params = RawPathParams::from_request_parts(parts, state).await;
    let params = params.map_err(|error| ApiError::malformed(error.to_string()))?;
    let value = params.iter().find(|(own, _)| *own == name).map(|(_, value)| value.to_owned());
    value.ok_or_else(|| ApiError::malformed(format!("the path names no {name}")))
}

/// The queue in the path, which the caller's token covers.
#[derive(Debug, Clone)]
pub(crate) struct QueuePath(pub(crate) QueueName);

impl<S: Send + Sync> FromRequestParts<S> for QueuePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let queue = QueueName::for_reading(named(parts, state, "queue").await?)?;
        let caller = Caller::from_request_parts(parts, state).await?;
        caller.check_queue(&queue)?;
        Ok(Self(queue))
    }
}

macro_rules! from_path {
    ($(#[$doc:meta])* $name:ident, $parameter:literal, $value:ty, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub(crate) struct $name(pub(crate) $value);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
                let text = named(parts, state, $parameter).await?;
                text.parse().map(Self).map_err(|_| {
                    ApiError::malformed(format!("'{}' in the path is not a valid {}", text.escape_debug(), $what))
                })
            }
        }
    };
}

from_path! {
    /// The message id in the path.
    MessagePath, "id", MessageId, "UUID"
}
from_path! {
    /// The task id in the path.
    TaskPath, "id", TaskId, "UUID"
}
from_path! {
    /// A name in the path.
    NamePath, "name", String, "name"
}
from_path! {
    /// An id in the path.
    IdPath, "id", String, "id"
}

/// Returns a JSON answer.
pub(crate) fn answer<T: Serialize>(value: &T) -> Result<Response, ApiError> {
    answer_with(StatusCode::OK, value)
}

/// Returns a JSON answer with this status.
pub(crate) fn answer_with<T: Serialize>(status: StatusCode, value: &T) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(value).map_err(|error| {
        let source: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
        ApiError::from(postrider::MessagingError::Serialization {
            content_type: "application/json",
            source: source.into(),
        })
    })?;
    let mut response = (status, body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Returns an answer without a body.
pub(crate) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_once_or_several_times() {
        let params = Params::read(Some("state=DEAD&state=PENDING&limit=7&type=&a%20b=c+d"));
        assert_eq!(params.all("state").collect::<Vec<_>>(), ["DEAD", "PENDING"]);
        assert_eq!(params.limit(100, 1000).unwrap(), 7);
        assert_eq!(params.text("type").unwrap(), None);
        assert_eq!(params.text("a b").unwrap(), Some("c d"));
        assert!(params.text("state").is_err());
        assert!(Params::read(Some("limit=0")).limit(100, 1000).is_err());
        assert!(Params::read(Some("limit=x")).limit(100, 1000).is_err());
    }

    #[test]
    fn json_is_recognized_by_its_content_type() {
        for (name, is) in
            [("application/json", true), ("Application/JSON; charset=utf-8", true), ("text/json", false), ("", false)]
        {
            assert_eq!(is_json(&HeaderValue::from_static(name)), is, "{name}");
        }
    }
}
