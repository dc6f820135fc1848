//! Requests in JSON, and their answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use postrider_core::MessagingError;
use postrider_wire::{Code, Problem, read_answer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::PROVIDER;
use crate::failure::{AnswerError, Failure, TOKEN};
use crate::transport::{Answer, Request, Transport};

impl Request {
    /// A request without a body.
    pub(crate) fn bare(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: None, wait: Duration::ZERO }
    }

    /// A GET request.
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::bare(Method::GET, path)
    }

    /// A request with a JSON body.
    pub(crate) fn json(method: Method, path: impl Into<String>, body: &impl Serialize) -> Result<Self, MessagingError> {
        let body = serde_json::to_vec(body).map_err(|error| MessagingError::Serialization {
            content_type: "application/json",
            source: Arc::new(error),
        })?;
        Ok(Self { method, path: path.into(), body: Some(body.into()), wait: Duration::ZERO })
    }

    /// A POST request.
    pub(crate) fn post(path: impl Into<String>, body: &impl Serialize) -> Result<Self, MessagingError> {
        Self::json(Method::POST, path, body)
    }

    /// The request may wait this long at the server.
    pub(crate) fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl Transport {
    /// Sends a request once, even if the answer is lost.
    pub(crate) async fn call_once<T: DeserializeOwned>(&self, request: Request) -> Result<T, Failure> {
        let answer = self.exchange(request).await?;
        self.decode(answer)
    }

    /// Sends an idempotent request. If the answer is lost, sends it once more.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        request: Request,
    ) -> Result<T, MessagingError> {
        self.try_call(request).await.map_err(|failure| failure.into_read_error(operation))
    }

    /// The same, with the reason of a failure.
    pub(crate) async fn try_call<T: DeserializeOwned>(&self, request: Request) -> Result<T, Failure> {
        match self.call_once(request.clone()).await {
            Err(failure) if failure.is_disconnected() => self.call_once(request).await,
            answer => answer,
        }
    }

    fn decode<T: DeserializeOwned>(&self, answer: Answer) -> Result<T, Failure> {
        if !answer.status.is_success() {
            return Err(self.refused(answer));
        }
        // An empty answer means success.
        let body = if answer.body.is_empty() { Bytes::from_static(b"null") } else { answer.body };
        read_answer(&body).map_err(|error| {
            let server = self.server().to_string();
            let unusable = match error.is_syntax() {
                true => AnswerError::NotPostrider { server, status: answer.status },
                false => AnswerError::Malformed { server, cause: error.to_string() },
            };
            Failure::Unknown(unusable.into_source())
        })
    }

    /// The error for an answer without success.
    pub(crate) fn refused(&self, answer: Answer) -> Failure {
        if let Ok(problem) = serde_json::from_slice::<Problem>(&answer.body) {
            return match problem.code {
                Code::OutcomeUnknown => Failure::Unknown(Arc::new(problem.into_error(PROVIDER))),
                _ => Failure::Refused(Box::new(problem)),
            };
        }
        // Not a Postrider server: another one, or a proxy.
        let status = answer.status;
        let foreign = AnswerError::NotPostrider { server: self.server().to_string(), status };
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                Failure::NotDone(MessagingError::invalid("token", format!("{foreign}. If both are right, set {TOKEN}")))
            }
            // With these a proxy has not forwarded the request; with 503 it may have.
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                Failure::NotDone(self.unreachable(format_args!("it answered {status}")))
            }
            _ if status.is_server_error() => Failure::Unknown(foreign.into_source()),
            _ => Failure::NotDone(foreign.into_error("handle the request")),
        }
    }

    /// The rows of an answer. With a wrong number of rows all outcomes are unknown.
    pub(crate) fn rows<T>(&self, rows: Vec<T>, expected: usize) -> Result<Vec<T>, Failure> {
        if rows.len() == expected {
            return Ok(rows);
        }
        let unusable = AnswerError::RowCount { server: self.server().to_string(), expected, received: rows.len() };
        Err(Failure::Unknown(unusable.into_source()))
    }
}
