//! Errors as `application/problem+json`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use postrider::MessagingError;
use postrider_wire::{Code, Problem};

/// Why a request failed or was refused.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    problem: Box<Problem>,
    /// `Retry-After`, in seconds.
    retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { problem: Box::new(Problem::new(code, detail)), retry_after: None }
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Code::MalformedRequest, detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(Code::Forbidden, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(Code::NotFound, detail)
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.problem.retry_after_seconds = Some(seconds as f64);
        self.retry_after = Some(seconds);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The problem, for a row of a batch.
    pub(crate) fn into_problem(self) -> Problem {
        *self.problem
    }

    /// Returns the answer, with the id of the request.
    pub(crate) fn response(mut self, request_id: &str) -> Response {
        let status = self.status();
        self.problem.request_id = Some(request_id.to_owned());
        // Text and numbers always serialize.
        let body = serde_json::to_vec(&self.problem).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"postrider\""));
        }
        response
    }
}

impl From<MessagingError> for ApiError {
    fn from(error: MessagingError) -> Self {
        let problem = Problem::of(&error);
        let retry_after = match &error {
            MessagingError::CircuitBreakerOpen { retry_after, .. } => Some(retry_after.as_secs_f64().ceil() as u64),
            _ => None,
        };
        Self { problem: Box::new(problem), retry_after }
    }
}

/// Handlers return the error in the answer's extensions; the outermost middleware turns it into the body, with the id
/// of the request.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}
