//! Requests in JSON, and what their answers say.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use postrider_core::MessagingError;
use postrider_wire::{Code, Problem, read_answer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::PROVIDER;
use crate::failure::{Odd, TOKEN, Undone};
use crate::transport::{Answer, Ask, Transport};

impl Ask {
    /// A request without a body.
    pub(crate) fn bare(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), body: None, wait: Duration::ZERO }
    }

    /// A request for something.
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self::bare(Method::GET, path)
    }

    /// A request with a body.
    pub(crate) fn json(method: Method, path: impl Into<String>, body: &impl Serialize) -> Result<Self, MessagingError> {
        let body = serde_json::to_vec(body).map_err(|error| MessagingError::Serialization {
            content_type: "application/json",
            source: Arc::new(error),
        })?;
        Ok(Self { method, path: path.into(), body: Some(body.into()), wait: Duration::ZERO })
    }

    /// A request that something be done.
    pub(crate) fn post(path: impl Into<String>, body: &impl Serialize) -> Result<Self, MessagingError> {
        Self::json(Method::POST, path, body)
    }

    /// The server waits that long before it answers.
    pub(crate) fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl Transport {
    /// Asks for something to be done. It is asked once, whatever becomes of the answer.
    pub(crate) async fn change<T: DeserializeOwned>(&self, ask: Ask) -> Result<T, Undone> {
        let answer = self.exchange(ask).await?;
        self.read(answer)
    }

    /// Asks for something that may be done twice: it only looks, or a second time does nothing more. When the answer was
    /// lost it is asked once more.
    pub(crate) async fn look<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        ask: Ask,
    ) -> Result<T, MessagingError> {
        self.look_or_refuse(ask).await.map_err(|undone| undone.into_look_error(operation))
    }

    /// The same for a caller who wants to know why the server refused it.
    pub(crate) async fn look_or_refuse<T: DeserializeOwned>(&self, ask: Ask) -> Result<T, Undone> {
        match self.change(ask.clone()).await {
            Err(undone) if undone.is_cut() => self.change(ask).await,
            answer => answer,
        }
    }

    fn read<T: DeserializeOwned>(&self, answer: Answer) -> Result<T, Undone> {
        if !answer.status.is_success() {
            return Err(self.refused(answer));
        }
        // An answer that says nothing but that it was done.
        let body = if answer.body.is_empty() { Bytes::from_static(b"null") } else { answer.body };
        read_answer(&body).map_err(|error| {
            let place = self.place().to_string();
            let odd = match error.is_syntax() {
                true => Odd::Foreign { place, status: answer.status },
                false => Odd::Garbled { place, cause: error.to_string() },
            };
            Undone::Unknown(odd.into_source())
        })
    }

    /// What an answer that is no success says about what was asked.
    pub(crate) fn refused(&self, answer: Answer) -> Undone {
        if let Ok(problem) = serde_json::from_slice::<Problem>(&answer.body) {
            return match problem.code {
                Code::OutcomeUnknown => Undone::Unknown(Arc::new(problem.into_error(PROVIDER))),
                _ => Undone::Refused(Box::new(problem)),
            };
        }
        // Somebody else answers there, or stands between.
        let status = answer.status;
        let foreign = Odd::Foreign { place: self.place().to_string(), status };
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                Undone::NotDone(MessagingError::invalid("token", format!("{foreign}. If they are right, set {TOKEN}")))
            }
            // A proxy that says so has not passed the request on; one that says 503 may have lost the server meanwhile.
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                Undone::NotDone(self.unreachable(format_args!("it answered {status}")))
            }
            _ if status.is_server_error() => Undone::Unknown(foreign.into_source()),
            _ => Undone::NotDone(foreign.into_failure("do what was asked")),
        }
    }

    /// The right number of rows, or a doubt about all of them.
    pub(crate) fn rows<T>(&self, rows: Vec<T>, asked: usize) -> Result<Vec<T>, Undone> {
        if rows.len() == asked {
            return Ok(rows);
        }
        let odd = Odd::Rows { place: self.place().to_string(), asked, said: rows.len() };
        Err(Undone::Unknown(odd.into_source()))
    }
}
