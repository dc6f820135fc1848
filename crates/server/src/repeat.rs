//! Requests that may be repeated: `Idempotency-Key`.
//!
//! A record of the key is made before the request is carried out and completed with its answer, so that a repetition is
//! answered and not carried out. A server that dies in between leaves a record that ends by itself; whoever repeats the
//! request then has it carried out again, with the same ids, because ids are made from the key. So at worst a message is
//! sent twice under one id, as with any at-least-once sender.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use data_encoding::{BASE64, HEXLOWER};
use http_body_util::BodyExt;
use postrider::state_records::{Put, RecordKey, RecordKind, StateRecords};
use postrider::{Deadline, MessagingError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::access::{Caller, Proof};
use crate::api::{ApiError, Code, read_body};
use crate::app::App;
use crate::leases::to_its_end;

static KIND: RecordKind = RecordKind::constant("answer");

/// How long an answer is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// How long a request that is under way keeps others with its key away, if its server dies.
const UNDER_WAY: Duration = Duration::from_secs(60);

/// Names ids that are made from keys.
const IDS: Uuid = Uuid::from_u128(0x3d1c_58a4_97b0_5c1e_8f5a_2a8d_6b0e_c1f7);

const LONGEST: usize = 200;

static KEY: HeaderName = HeaderName::from_static("idempotency-key");
static REPLAY: HeaderName = HeaderName::from_static("idempotent-replay");

/// What ids of a repeatable request are made from.
#[derive(Debug, Clone)]
pub(crate) struct RepeatKey(String);

impl RepeatKey {
    /// The id of the row of that number: the same whenever the request is repeated.
    pub(crate) fn id(&self, row: usize) -> Uuid {
        Uuid::new_v5(&IDS, format!("{}/{row}", self.0).as_bytes())
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// Of the request, so that the key is not taken for another.
    sha256: String,
    answer: Option<KeptAnswer>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptAnswer {
    status: u16,
    content_type: Option<String>,
    body: String,
}

fn kept(value: &Kept) -> Bytes {
    // Text and numbers; nothing of it cannot be written.
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Answers a repeated request as the first was.
pub(crate) async fn once(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    let Some(key) = request.headers().get(&KEY) else { return Ok(next.run(request).await) };
    let key = key.to_str().ok().filter(|key| (1..=LONGEST).contains(&key.len()));
    let Some(key) = key.filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic())).map(str::to_owned) else {
        return Err(ApiError::malformed(format!("Idempotency-Key: use 1 to {LONGEST} visible ASCII characters")));
    };
    let (mut parts, body) = request.into_parts();
    // An open server knows its callers by their address, which may change between two tries.
    let caller = parts.extensions.get::<Caller>().filter(|caller| caller.proof != Proof::Open);
    let who = caller.map_or_else(String::new, |caller| caller.key.to_string());
    let body = read_body(body, &app.options).await?;
    let digest = |parts: &[&[u8]]| {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        HEXLOWER.encode(&hash.finalize())
    };
    let path = parts.uri.path().to_owned();
    let record = digest(&[who.as_bytes(), path.as_bytes(), key.as_bytes()]);
    let sha256 = digest(&[parts.method.as_str().as_bytes(), path.as_bytes(), &body]);
    let started = Kept { sha256: sha256.clone(), answer: None };
    let name = RecordKey::new(&record)?;
    let made = app.records.put_new(&KIND, &name, kept(&started), Some(UNDER_WAY), Deadline::default()).await?;
    let own = match made {
        Put::Made(own) => own,
        Put::Taken(other) => return repeated(&other.value, &sha256),
    };
    // Another request under the same key, after the first was forgotten, has ids of its own.
    parts.extensions.insert(RepeatKey(format!("{record}/{sha256}")));
    let request = Request::from_parts(parts, Body::from(body));
    let begun = Begun { app: app.clone(), name, sha256, version: own.version };
    // A client that gives up must not leave a request that was carried out without its answer.
    let lost = || ApiError::from(MessagingError::OutcomeUnknown { operation: "send", ids: Vec::new(), source: None });
    to_its_end(&app, async move { begun.finish(next.run(request).await).await }).await.unwrap_or_else(|| Err(lost()))
}

/// A request that is under way, and its record.
struct Begun {
    app: Arc<App>,
    name: RecordKey,
    sha256: String,
    version: i64,
}

impl Begun {
    /// Keeps the answer, or gives the key back where nothing was done.
    async fn finish(self, response: Response) -> Result<Response, ApiError> {
        let Self { app, name, sha256, version } = self;
        let status = response.status();
        if let Some(error) = response.extensions().get::<ApiError>() {
            // Whether it was carried out is not known: the record keeps others away until it ends.
            if status == StatusCode::GATEWAY_TIMEOUT {
                return Ok(response);
            }
            // Nothing was done, so the key is free; a request that is wrong stays wrong without being remembered.
            let error = error.clone();
            if let Err(error) = app.records.remove(&KIND, &name, Deadline::default()).await {
                tracing::warn!(%error, "the key of a request that failed is taken for a minute");
            }
            return Err(error);
        }
        let (parts, body) = response.into_parts();
        let bytes = match body.collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(error) => return Err(ApiError::malformed(format!("the answer could not be read: {error}"))),
        };
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|name| name.to_str().ok());
        let content_type = content_type.map(str::to_owned);
        let answer = KeptAnswer { status: status.as_u16(), content_type, body: BASE64.encode(&bytes) };
        let done = kept(&Kept { sha256, answer: Some(answer) });
        let replaced = app.records.replace(&KIND, &name, version, done, Some(REMEMBERED), Deadline::default()).await;
        if let Err(error) = replaced {
            // The request was carried out. A repetition within a minute is refused; after that it has the same ids.
            tracing::warn!(%error, "the answer to a repeatable request could not be kept");
        }
        Ok(Response::from_parts(parts, Body::from(bytes)))
    }
}

fn repeated(value: &[u8], sha256: &str) -> Result<Response, ApiError> {
    let Ok(other) = serde_json::from_slice::<Kept>(value) else {
        let why = "another program has written the record of this key; use another key";
        return Err(ApiError::new(Code::IdempotencyMismatch, why));
    };
    if other.sha256 != sha256 {
        let why = "this key was used for another request within the last 24 hours; use a new key for a new request";
        return Err(ApiError::new(Code::IdempotencyMismatch, why));
    }
    let Some(answer) = other.answer else {
        let why = "the first request with this key is still under way; repeat it a little later";
        return Err(ApiError::new(Code::IdempotencyInProgress, why).retry_after(1));
    };
    let body = BASE64.decode(answer.body.as_bytes()).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    if let Some(name) = answer.content_type.and_then(|name| HeaderValue::from_str(&name).ok()) {
        response.headers_mut().insert(header::CONTENT_TYPE, name);
    }
    response.headers_mut().insert(REPLAY.clone(), HeaderValue::from_static("true"));
    Ok(response)
}
