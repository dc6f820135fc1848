//! Idempotent requests: `Idempotency-Key`.
//!
//! A record of the key is created before the request runs, and completed with its answer, so that a repetition gets
//! that answer. If the server dies in between, the record expires, and a repetition runs the request again with the
//! same ids, because ids are derived from the key. At worst a message is sent twice under one id, as with any
//! at-least-once sender.
//!
//! Of a batch, the successful rows are stored. A failed row has done nothing, so a repetition retries it and returns
//! the stored answers of the others: a client can complete a batch with one key. A row with an unknown outcome may
//! still be running, so repetitions are locked out for as long as after an unfinished request. Failed rows are not
//! stored: their problems could exceed the size of a record.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use data_encoding::HEXLOWER;
use http_body_util::BodyExt;
use postrider::state_records::{Put, RecordKey, RecordKind, StateRecord, StateRecords};
use postrider::{Deadline, ErrorSource, MessagingError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::access::{Caller, Proof};
use crate::api::{ApiError, Code, WholeBody, answer_with, read_body};
use crate::app::App;
use crate::in_flight::InFlight;
use crate::leases::run_to_completion;

static KIND: RecordKind = RecordKind::constant("answer");

/// Retention of answers.
const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Life of a running request's lock, if its server dies.
const LOCK_LIFE: Duration = Duration::from_secs(60);

/// UUID namespace of ids that are derived from keys.
const IDS: Uuid = Uuid::from_u128(0x3d1c_58a4_97b0_5c1e_8f5a_2a8d_6b0e_c1f7);

const MAX_KEY_LENGTH: usize = 200;

static KEY: HeaderName = HeaderName::from_static("idempotency-key");
static REPLAY: HeaderName = HeaderName::from_static("idempotent-replay");

/// The idempotency key of a request, and the rows that are already done.
#[derive(Debug, Clone)]
pub(crate) struct IdempotencyKey {
    seed: String,
    done: Arc<[Option<Value>]>,
}

impl IdempotencyKey {
    /// Returns the id of a row: the same for every repetition of the request.
    pub(crate) fn id(&self, row: usize) -> Uuid {
        Uuid::new_v5(&IDS, format!("{}/{row}", self.seed).as_bytes())
    }

    /// Returns the stored answer of a row; `None` if it is not done.
    pub(crate) fn done<T: DeserializeOwned>(&self, row: usize) -> Option<T> {
        T::deserialize(self.done.get(row)?.as_ref()?).ok()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredRequest {
    /// Hash of the request, so that the key cannot be used for another one.
    sha256: String,
    /// `None` while the request runs.
    answer: Option<StoredAnswer>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoredAnswer {
    status: u16,
    body: StoredBody,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredBody {
    Whole(String),
    /// The rows of a batch; `None` for those that failed.
    Rows(Vec<Option<Value>>),
}

/// Answer to a batch.
#[derive(Debug, Serialize, Deserialize)]
struct Batch {
    results: Vec<Value>,
}

impl StoredBody {
    fn of(answer: &[u8]) -> Self {
        match serde_json::from_slice::<Batch>(answer) {
            Ok(Batch { results }) => Self::Rows(
                results.into_iter().map(|row| Some(row).filter(|row| row.get("problem").is_none())).collect(),
            ),
            Err(_) => Self::Whole(String::from_utf8_lossy(answer).into_owned()),
        }
    }
}

/// Whether the outcome of a row of a batch is unknown.
fn has_unknown_outcome(answer: &[u8]) -> bool {
    let is_unknown = |row: &Value| row["problem"]["code"] == Code::OutcomeUnknown.as_str();
    serde_json::from_slice::<Batch>(answer).is_ok_and(|batch| batch.results.iter().any(is_unknown))
}

fn encoded(value: &StoredRequest) -> Bytes {
    // Text and numbers always serialize.
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Middleware that returns the stored answer to a repeated request.
pub(crate) async fn idempotent(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let Some(key) = request.headers().get(&KEY) else { return Ok(next.run(request).await) };
    let key = key.to_str().ok().filter(|key| (1..=MAX_KEY_LENGTH).contains(&key.len()));
    let Some(key) = key.filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic())).map(str::to_owned) else {
        return Err(ApiError::malformed(format!(
            "Idempotency-Key: use 1 to {MAX_KEY_LENGTH} visible ASCII characters"
        )));
    };
    let (mut parts, body) = request.into_parts();
    // On an open server callers are addresses, which may change between two tries.
    let caller = parts.extensions.get::<Caller>().filter(|caller| caller.proof != Proof::Open);
    let who = caller.map_or_else(String::new, |caller| caller.key.to_string());
    let in_flight = parts.extensions.get::<InFlight>().cloned();
    let body = read_body(body, &app.options, in_flight.as_ref()).await?;
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
    let retry_lock = RecordKey::new(format!("{record}/again"))?;
    let keyed = KeyedRequest { name: RecordKey::new(&record)?, retry_lock, sha256, app: app.clone() };
    // Runs to completion, so that a client that leaves causes neither a record without a request nor the reverse.
    parts.extensions.insert(WholeBody(body));
    let carried = keyed.run(Request::from_parts(parts, Body::empty()), next);
    run_to_completion(&app, carried).await.unwrap_or_else(|| Err(unknown("send", None)))
}

/// A request with a key.
struct KeyedRequest {
    app: Arc<App>,
    /// Key of its record.
    name: RecordKey,
    /// Key of the retry lock: the record held while failed rows are retried.
    retry_lock: RecordKey,
    sha256: String,
}

/// What to do with a request.
enum Decision {
    /// Run it, without the rows that are done.
    Run(Execution),
    /// Return this answer.
    Answer(Response),
}

/// The exclusive right to run a request.
struct Execution {
    /// Version of its record.
    version: i64,
    /// Version of the retry lock, if failed rows are retried.
    retry_lock: Option<i64>,
    done: Vec<Option<Value>>,
}

/// The result of an earlier request.
enum Earlier {
    Answered(Response),
    /// Some rows failed; the others have answers.
    InPart(Vec<Option<Value>>),
}

impl KeyedRequest {
    async fn run(self, mut request: Request, next: Next) -> Result<Response, ApiError> {
        let Execution { version, retry_lock, done } = match self.decide().await? {
            Decision::Answer(response) => return Ok(response),
            Decision::Run(own) => own,
        };
        // Includes the hash: another request with the same key, after the first has expired, gets other ids.
        let seed = format!("{}/{}", self.name, self.sha256);
        request.extensions_mut().insert(IdempotencyKey { seed, done: done.into() });
        let response = next.run(request).await;
        let status = response.status();
        let Some(error) = response.extensions().get::<ApiError>().cloned() else {
            return self.keep(response, version, retry_lock).await;
        };
        // If the outcome is unknown, the record locks repetitions out until it expires.
        if status != StatusCode::GATEWAY_TIMEOUT {
            // Nothing was done, so the key is freed.
            match retry_lock {
                None => self.remove_own(&self.name, version).await,
                Some(retry_lock) => self.remove_own(&self.retry_lock, retry_lock).await,
            }
        }
        Err(error)
    }

    async fn decide(&self) -> Result<Decision, ApiError> {
        let records = &self.app.records;
        match records.put_new(&KIND, &self.name, self.running_record(), Some(LOCK_LIFE), Deadline::default()).await? {
            Put::Made(own) => {
                return Ok(Decision::Run(Execution { version: own.version, retry_lock: None, done: Vec::new() }));
            }
            Put::Taken(other) => {
                if let Earlier::Answered(response) = self.earlier(&other)? {
                    return Ok(Decision::Answer(response));
                }
            }
        }
        let Some(retry_lock) = self.take_retry_lock().await? else { return Err(in_progress()) };
        // The previous request may have ended since the record was read.
        let decision = match records.get(&KIND, &self.name, Deadline::default()).await {
            Ok(Some(latest)) => self.earlier(&latest).map(|earlier| match earlier {
                Earlier::Answered(response) => Decision::Answer(response),
                Earlier::InPart(done) => {
                    Decision::Run(Execution { version: latest.version, retry_lock: Some(retry_lock), done })
                }
            }),
            Ok(None) => Err(in_progress()),
            Err(error) => Err(error.into()),
        };
        if !matches!(decision, Ok(Decision::Run(_))) {
            self.remove_own(&self.retry_lock, retry_lock).await;
        }
        decision
    }

    fn running_record(&self) -> Bytes {
        encoded(&StoredRequest { sha256: self.sha256.clone(), answer: None })
    }

    /// Takes the retry lock; `None` if another request holds it.
    async fn take_retry_lock(&self) -> Result<Option<i64>, MessagingError> {
        let (records, until) = (&self.app.records, Deadline::default());
        Ok(match records.put_new(&KIND, &self.retry_lock, self.running_record(), Some(LOCK_LIFE), until).await? {
            Put::Made(own) => Some(own.version),
            Put::Taken(_) => None,
        })
    }

    /// Returns the result in the record of an earlier request with this key.
    fn earlier(&self, record: &StateRecord) -> Result<Earlier, ApiError> {
        let Ok(other) = serde_json::from_slice::<StoredRequest>(&record.value) else {
            let why = "the record of this key cannot be read; use another key";
            return Err(ApiError::new(Code::IdempotencyMismatch, why));
        };
        if other.sha256 != self.sha256 {
            let why = "this key was used for another request within the last 24 hours; use a new key";
            return Err(ApiError::new(Code::IdempotencyMismatch, why));
        }
        let Some(StoredAnswer { status, body }) = other.answer else { return Err(in_progress()) };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let mut response = match body {
            StoredBody::Rows(done) if done.contains(&None) => return Ok(Earlier::InPart(done)),
            StoredBody::Rows(done) => answer_with(status, &Batch { results: done.into_iter().flatten().collect() })?,
            StoredBody::Whole(text) => {
                let mut response = (status, text).into_response();
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
        };
        response.headers_mut().insert(REPLAY.clone(), HeaderValue::from_static("true"));
        Ok(Earlier::Answered(response))
    }

    async fn keep(self, response: Response, version: i64, retry_lock: Option<i64>) -> Result<Response, ApiError> {
        let (parts, body) = response.into_parts();
        let bytes = match body.collect().await {
            Ok(collected) => collected.to_bytes(),
            // The request has run. Its record locks repetitions out until it expires.
            Err(error) => return Err(unknown("the request", Some(Arc::new(error)))),
        };
        let has_unknown_outcome = has_unknown_outcome(&bytes);
        if has_unknown_outcome
            && retry_lock.is_none()
            && let Err(error) = self.take_retry_lock().await
        {
            tracing::warn!(%error, "rows with an unknown outcome may be retried too early");
        }
        let answer = StoredAnswer { status: parts.status.as_u16(), body: StoredBody::of(&bytes) };
        // The request has run. If its answer cannot be stored, repetitions are refused for a minute, and then run again
        // with the same ids.
        match self.remember(answer, version, retry_lock.is_some()).await {
            Err(error) => tracing::warn!(%error, "the answer to an idempotent request could not be stored"),
            Ok(false) => tracing::warn!(
                "the answer to an idempotent request was not stored: it took more than {} s, and another request has its key",
                LOCK_LIFE.as_secs()
            ),
            Ok(true) => {
                if let Some(retry_lock) = retry_lock.filter(|_| !has_unknown_outcome) {
                    self.remove_own(&self.retry_lock, retry_lock).await;
                }
            }
        }
        Ok(Response::from_parts(parts, Body::from(bytes)))
    }

    /// Stores an answer in the record of that version, or merges retried rows into a later one. Returns whether it did.
    async fn remember(&self, answer: StoredAnswer, version: i64, is_retry: bool) -> Result<bool, MessagingError> {
        let (records, until) = (&self.app.records, Deadline::default());
        let replace = async |version, answer: &StoredAnswer| {
            let done = encoded(&StoredRequest { sha256: self.sha256.clone(), answer: Some(answer.clone()) });
            records.replace(&KIND, &self.name, version, done, Some(RETENTION), until).await
        };
        if replace(version, &answer).await?.is_some() {
            return Ok(true);
        }
        let StoredAnswer { status, body: StoredBody::Rows(own) } = answer else { return Ok(false) };
        let Some(latest) = records.get(&KIND, &self.name, until).await?.filter(|_| is_retry) else { return Ok(false) };
        let mut rows = match self.earlier(&latest) {
            Ok(Earlier::InPart(rows)) => rows,
            // Another request has completed the batch.
            Ok(Earlier::Answered(_)) => return Ok(true),
            Err(_) => return Ok(false),
        };
        for (row, own) in rows.iter_mut().zip(own) {
            *row = row.take().or(own);
        }
        let merged = StoredAnswer { status, body: StoredBody::Rows(rows) };
        Ok(replace(latest.version, &merged).await?.is_some())
    }

    /// Removes a record if this request still holds it. An expired one may belong to another request.
    async fn remove_own(&self, record: &RecordKey, version: i64) {
        let (records, until) = (&self.app.records, Deadline::default());
        // Renewed first, so that it cannot expire and be taken by another request before it is removed.
        let renewed = records.replace(&KIND, record, version, self.running_record(), Some(LOCK_LIFE), until).await;
        let removed = match renewed {
            Ok(Some(_)) => records.remove(&KIND, record, until).await.map(drop),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::warn!(%error, "an idempotency key stays locked for a minute");
        }
    }
}

fn unknown(operation: &'static str, source: Option<ErrorSource>) -> ApiError {
    MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source }.into()
}

fn in_progress() -> ApiError {
    let why = "the first request with this key is still running; repeat it a little later";
    ApiError::new(Code::IdempotencyInProgress, why).retry_after(1)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::post;
    use futures_util::stream;
    use postrider_wire::Problem;
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn without_its_answer_the_outcome_of_a_request_is_unknown() {
        async fn answers_in_part() -> Body {
            Body::from_stream(stream::iter([Ok("{"), Err("the rest is lost")]))
        }
        let (app, _folder) = crate::app::test_app().await;
        let router = Router::new().route("/", post(answers_in_part)).layer(from_fn_with_state(app.clone(), idempotent));
        let code = async || {
            let request = Request::post("/").header(&KEY, "k").body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            response.extensions().get::<ApiError>().map(|error| error.clone().into_problem().code)
        };
        assert_eq!(code().await, Some(Code::OutcomeUnknown));
        assert_eq!(code().await, Some(Code::IdempotencyInProgress), "a repetition could run it a second time");
    }

    #[test]
    fn a_batch_is_unknown_if_one_row_is() {
        let failed = |code: Code| json!({ "problem": Problem::new(code, "why") });
        let has_unknown_outcome = |rows: Value| has_unknown_outcome(json!({ "results": rows }).to_string().as_bytes());
        assert!(has_unknown_outcome(json!([{ "id": "a" }, failed(Code::OutcomeUnknown)])));
        assert!(!has_unknown_outcome(json!([{ "id": "a" }, failed(Code::InvalidInput)])));
    }
}
