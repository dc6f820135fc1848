//! Requests that may be repeated: `Idempotency-Key`.
//!
//! A record of the key is made before the request is carried out and completed with its answer, so that a repetition is
//! answered and not carried out. A server that dies in between leaves a record that ends by itself; whoever repeats the
//! request then has it carried out again, with the same ids, because ids are made from the key. So at worst a message is
//! sent twice under one id, as with any at-least-once sender.
//!
//! Of a batch the rows that were carried out are remembered. A row that failed has done nothing, so a repetition tries it
//! again, beside the answers of the others: a client comes to an end with the key that it has. A row of which nobody knows
//! may still be under way, so repetitions are kept away for as long as from a whole request like that. An answer of
//! nothing but failures would not fit into a record either, and what was carried out of the largest batch does.

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
use postrider::{Deadline, MessagingError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::access::{Caller, Proof};
use crate::api::{ApiError, Code, WholeBody, answer_with, read_body};
use crate::app::App;
use crate::in_flight::InFlight;
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

/// What ids of a repeatable request are made from, and what of it is done already.
#[derive(Debug, Clone)]
pub(crate) struct RepeatKey {
    seed: String,
    done: Arc<[Option<Value>]>,
}

impl RepeatKey {
    /// The id of the row of that number: the same whenever the request is repeated.
    pub(crate) fn id(&self, row: usize) -> Uuid {
        Uuid::new_v5(&IDS, format!("{}/{row}", self.seed).as_bytes())
    }

    /// The answer of a row that an earlier request with the key has carried out.
    pub(crate) fn done<T: DeserializeOwned>(&self, row: usize) -> Option<T> {
        T::deserialize(self.done.get(row)?.as_ref()?).ok()
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// Of the request, so that the key is not taken for another.
    sha256: String,
    /// None while it is under way.
    answer: Option<KeptAnswer>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct KeptAnswer {
    status: u16,
    body: KeptBody,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeptBody {
    Whole(String),
    /// The rows of a batch, without those that failed.
    Rows(Vec<Option<Value>>),
}

/// The answer to a batch.
#[derive(Debug, Serialize, Deserialize)]
struct Batch {
    results: Vec<Value>,
}

impl KeptBody {
    fn of(answer: &[u8]) -> Self {
        match serde_json::from_slice::<Batch>(answer) {
            Ok(Batch { results }) => Self::Rows(
                results.into_iter().map(|row| Some(row).filter(|row| row.get("problem").is_none())).collect(),
            ),
            Err(_) => Self::Whole(String::from_utf8_lossy(answer).into_owned()),
        }
    }
}

/// Whether of some row of a batch nobody knows if it was carried out.
fn is_in_doubt(answer: &[u8]) -> bool {
    let is_unknown = |row: &Value| row["problem"]["code"] == Code::OutcomeUnknown.as_str();
    serde_json::from_slice::<Batch>(answer).is_ok_and(|batch| batch.results.iter().any(is_unknown))
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
    let again = RecordKey::new(format!("{record}/again"))?;
    let keyed = Keyed { name: RecordKey::new(&record)?, again, sha256, app: app.clone() };
    // A client that gives up must not leave a record without a request, nor a request without its answer.
    let lost = || ApiError::from(MessagingError::OutcomeUnknown { operation: "send", ids: Vec::new(), source: None });
    parts.extensions.insert(WholeBody(body));
    let carried = keyed.carry_out(Request::from_parts(parts, Body::empty()), next);
    to_its_end(&app, carried).await.unwrap_or_else(|| Err(lost()))
}

/// A request with a key.
struct Keyed {
    app: Arc<App>,
    /// Its record.
    name: RecordKey,
    /// The record that keeps others away while rows are tried again.
    again: RecordKey,
    sha256: String,
}

/// What is to be done about a request.
enum Turn {
    /// It is carried out, but for the rows that are done.
    Own(Own),
    /// Nothing: this is the answer.
    Over(Response),
}

/// A request that nobody else carries out meanwhile.
struct Own {
    /// That of its record.
    version: i64,
    /// The version of the record that keeps others away, if rows are tried again.
    again: Option<i64>,
    done: Vec<Option<Value>>,
}

/// What is known of an earlier request.
enum Earlier {
    Answered(Response),
    /// Some rows failed; these are done.
    InPart(Vec<Option<Value>>),
}

impl Keyed {
    async fn carry_out(self, mut request: Request, next: Next) -> Result<Response, ApiError> {
        let Own { version, again, done } = match self.turn().await? {
            Turn::Over(response) => return Ok(response),
            Turn::Own(own) => own,
        };
        // Another request under the same key, after the first was forgotten, has ids of its own.
        let seed = format!("{}/{}", self.name, self.sha256);
        request.extensions_mut().insert(RepeatKey { seed, done: done.into() });
        let response = next.run(request).await;
        let status = response.status();
        let Some(error) = response.extensions().get::<ApiError>().cloned() else {
            return self.keep(response, version, again).await;
        };
        // Whether it was carried out is not known: the record keeps others away until it ends.
        if status != StatusCode::GATEWAY_TIMEOUT {
            // Nothing was done, so the key is free; a request that is wrong stays wrong without being remembered.
            match again {
                None => self.give_back(&self.name, version).await,
                Some(again) => self.give_back(&self.again, again).await,
            }
        }
        Err(error)
    }

    async fn turn(&self) -> Result<Turn, ApiError> {
        let records = &self.app.records;
        match records.put_new(&KIND, &self.name, self.under_way(), Some(UNDER_WAY), Deadline::default()).await? {
            Put::Made(own) => return Ok(Turn::Own(Own { version: own.version, again: None, done: Vec::new() })),
            Put::Taken(other) => {
                if let Earlier::Answered(response) = self.earlier(&other)? {
                    return Ok(Turn::Over(response));
                }
            }
        }
        let Some(again) = self.keep_others_away().await? else { return Err(in_progress()) };
        // Whoever was here before may have ended since it was looked at.
        let turn = match records.get(&KIND, &self.name, Deadline::default()).await {
            Ok(Some(latest)) => self.earlier(&latest).map(|earlier| match earlier {
                Earlier::Answered(response) => Turn::Over(response),
                Earlier::InPart(done) => Turn::Own(Own { version: latest.version, again: Some(again), done }),
            }),
            Ok(None) => Err(in_progress()),
            Err(error) => Err(error.into()),
        };
        if !matches!(turn, Ok(Turn::Own(_))) {
            self.give_back(&self.again, again).await;
        }
        turn
    }

    fn under_way(&self) -> Bytes {
        kept(&Kept { sha256: self.sha256.clone(), answer: None })
    }

    /// Lets nobody else try rows again for a while, unless somebody does.
    async fn keep_others_away(&self) -> Result<Option<i64>, MessagingError> {
        let (records, until) = (&self.app.records, Deadline::default());
        Ok(match records.put_new(&KIND, &self.again, self.under_way(), Some(UNDER_WAY), until).await? {
            Put::Made(own) => Some(own.version),
            Put::Taken(_) => None,
        })
    }

    /// What the record of an earlier request with this key says.
    fn earlier(&self, record: &StateRecord) -> Result<Earlier, ApiError> {
        let Ok(other) = serde_json::from_slice::<Kept>(&record.value) else {
            let why = "another program has written the record of this key; use another key";
            return Err(ApiError::new(Code::IdempotencyMismatch, why));
        };
        if other.sha256 != self.sha256 {
            let why = "this key was used for another request within the last 24 hours; use a new key for a new request";
            return Err(ApiError::new(Code::IdempotencyMismatch, why));
        }
        let Some(KeptAnswer { status, body }) = other.answer else { return Err(in_progress()) };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
        let mut response = match body {
            KeptBody::Rows(done) if done.contains(&None) => return Ok(Earlier::InPart(done)),
            KeptBody::Rows(done) => answer_with(status, &Batch { results: done.into_iter().flatten().collect() })?,
            KeptBody::Whole(text) => {
                let mut response = (status, text).into_response();
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
        };
        response.headers_mut().insert(REPLAY.clone(), HeaderValue::from_static("true"));
        Ok(Earlier::Answered(response))
    }

    async fn keep(self, response: Response, version: i64, again: Option<i64>) -> Result<Response, ApiError> {
        let (parts, body) = response.into_parts();
        let bytes = match body.collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(error) => return Err(ApiError::malformed(format!("the answer could not be read: {error}"))),
        };
        let is_in_doubt = is_in_doubt(&bytes);
        if is_in_doubt
            && again.is_none()
            && let Err(error) = self.keep_others_away().await
        {
            tracing::warn!(%error, "rows whose outcome is not known may be tried again too early");
        }
        let answer = KeptAnswer { status: parts.status.as_u16(), body: KeptBody::of(&bytes) };
        // The request was carried out. If that is not kept, a repetition within a minute is refused; after that it has the
        // same ids.
        match self.remember(answer, version, again.is_some()).await {
            Err(error) => tracing::warn!(%error, "the answer to a repeatable request could not be kept"),
            Ok(false) => tracing::warn!(
                "the answer to a repeatable request was not kept: it took more than {} s, and its key went to another",
                UNDER_WAY.as_secs()
            ),
            Ok(true) => {
                if let Some(again) = again.filter(|_| !is_in_doubt) {
                    self.give_back(&self.again, again).await;
                }
            }
        }
        Ok(Response::from_parts(parts, Body::from(bytes)))
    }

    /// Keeps an answer in the record of that version, or rows that were tried again in a later one. Answers whether it did.
    async fn remember(&self, answer: KeptAnswer, version: i64, is_again: bool) -> Result<bool, MessagingError> {
        let (records, until) = (&self.app.records, Deadline::default());
        let replace = async |version, answer: &KeptAnswer| {
            let done = kept(&Kept { sha256: self.sha256.clone(), answer: Some(answer.clone()) });
            records.replace(&KIND, &self.name, version, done, Some(REMEMBERED), until).await
        };
        if replace(version, &answer).await?.is_some() {
            return Ok(true);
        }
        let KeptAnswer { status, body: KeptBody::Rows(own) } = answer else { return Ok(false) };
        let Some(latest) = records.get(&KIND, &self.name, until).await?.filter(|_| is_again) else { return Ok(false) };
        let mut rows = match self.earlier(&latest) {
            Ok(Earlier::InPart(rows)) => rows,
            // Somebody else has come to the end of it.
            Ok(Earlier::Answered(_)) => return Ok(true),
            Err(_) => return Ok(false),
        };
        for (row, own) in rows.iter_mut().zip(own) {
            *row = row.take().or(own);
        }
        let merged = KeptAnswer { status, body: KeptBody::Rows(rows) };
        Ok(replace(latest.version, &merged).await?.is_some())
    }

    /// Removes a record, if it is ours still. One that has ended may be another request's by now.
    async fn give_back(&self, record: &RecordKey, version: i64) {
        let (records, until) = (&self.app.records, Deadline::default());
        // Renewed, it lasts for longer than it takes to remove it: nobody can make another in between.
        let renewed = records.replace(&KIND, record, version, self.under_way(), Some(UNDER_WAY), until).await;
        let removed = match renewed {
            Ok(Some(_)) => records.remove(&KIND, record, until).await.map(drop),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::warn!(%error, "the key of a repeatable request is taken for a minute");
        }
    }
}

fn in_progress() -> ApiError {
    let why = "the first request with this key is still under way; repeat it a little later";
    ApiError::new(Code::IdempotencyInProgress, why).retry_after(1)
}

#[cfg(test)]
mod tests {
    use postrider_wire::Problem;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_batch_is_in_doubt_if_one_row_is() {
        let failed = |code: Code| json!({ "problem": Problem::new(code, "why") });
        let is_in_doubt = |rows: Value| is_in_doubt(json!({ "results": rows }).to_string().as_bytes());
        assert!(is_in_doubt(json!([{ "id": "a" }, failed(Code::OutcomeUnknown)])));
        assert!(!is_in_doubt(json!([{ "id": "a" }, failed(Code::InvalidInput)])));
    }
}
