//! Settling messages and extending leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use postrider::{
    Deadline, Disposition, MessagingError, MessagingService, Nack, QueueName, ReceiptHandle, RowResults, Timestamp,
};
use postrider_wire::settle::{
    DeadLetterRequest, ExtendRequest, NackRequest, Outcome, ReceiptsRequest, Row, Rows, SettleRequest, Settlement,
};

use super::CONSUME;
use crate::access::Caller;
use crate::api::schemas::{list, named, only};
use crate::api::{ApiError, Content, JsonBody, Route, Verb, answer};
use crate::app::App;
use crate::metrics::MessageEvent;
use crate::receipts::Opened;

/// Upper bound of the receipts of one request.
pub(super) const MAX_SETTLED: usize = 10_000;

/// Number of leases extended concurrently.
const EXTENDED_TOGETHER: usize = 64;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Settling";
    let rows = || Content::Json(only("results", list(named("SettledRow"))));
    const EACH: &str = "The result of each, in their order";
    vec![
        Route::new(
            (Verb::Post, "/v1/messages/ack"),
            (GROUP, "ackMessages"),
            CONSUME,
            "Acknowledges messages.",
            ack,
        )
        .takes(named("Receipts"))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/nack"),
            (GROUP, "nackMessages"),
            CONSUME,
            "Retries messages whose handler failed, after the delay 'after' or the default backoff.",
            nack,
        )
        .takes(named("Nack"))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/release"),
            (GROUP, "releaseMessages"),
            CONSUME,
            "Releases messages whose handler was never started: they are due at once, and the delivery is not counted.",
            release,
        )
        .takes(named("Receipts"))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/dead-letter"),
            (GROUP, "deadLetterMessages"),
            CONSUME,
            "Dead-letters messages.",
            dead_letter,
        )
        .takes(named("DeadLetterMessages"))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/settle"),
            (GROUP, "settleMessages"),
            CONSUME,
            "Settles messages, each with its own outcome.",
            settle,
        )
        .takes(crate::api::schemas::request_only("settlements", list(named("Settlement"))))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/extend"),
            (GROUP, "extendMessages"),
            CONSUME,
            "Extends leases: they end after 'visibility' from now. If a row has a 'new_receipt', use it from then on: the old \
             receipt is valid until the old end of the lease.",
            extend,
        )
        .takes(named("Extend"))
        .answers(200, EACH, rows()),
    ]
}

/// A settlement, and the number of the attempt that it ends, from 1.
type Ending = (postrider::Settlement, u32);

impl App {
    /// Opens a client's receipt, if the token covers its queue.
    fn opened(&self, caller: &Caller, shown: &str) -> Result<Opened, MessagingError> {
        let shown: ReceiptHandle = shown.parse()?;
        if !caller.may_use(shown.queue()) {
            let why = format!("it is for queue '{}', which the token does not cover", shown.queue());
            return Err(MessagingError::invalid_receipt(why));
        }
        self.seal.open(&shown)
    }

    /// Returns the store's settlements for a client's, each with the attempt that it ends. An invalid one fails alone.
    pub(super) fn settlements(
        &self,
        caller: &Caller,
        requested: impl IntoIterator<Item = Settlement>,
    ) -> (Vec<String>, Vec<Result<Ending, MessagingError>>) {
        let opened = |requested: Settlement| {
            let Opened { own, attempts_count, worker } = self.opened(caller, &requested.receipt)?;
            // A retry without a delay gets the default backoff.
            let needs_backoff = requested.outcome == Outcome::Retry && requested.after.is_none();
            let mut settlement = postrider::Settlement::try_from(Settlement { receipt: own.to_string(), ..requested })?;
            if needs_backoff
                && let Disposition::Nack(Nack::Retry { after, .. }) = &mut settlement.disposition
                && let Nack::Retry { after: backed_off, .. } = Nack::requeue(true, attempts_count)
            {
                *after = backed_off;
            }
            settlement.worker = settlement.worker.or(worker);
            Ok((settlement, attempts_count.saturating_add(1)))
        };
        // Lazily, so that each parsed receipt is dropped before the next is parsed.
        requested.into_iter().map(|requested| (requested.receipt.clone(), opened(requested))).unzip()
    }

    /// Counts settlements, logs failures, and removes the leases from the list of workers.
    pub(super) fn record_settled(
        &self,
        settlements: &[postrider::Settlement],
        attempts: &[u32],
        results: &RowResults<()>,
    ) {
        for ((settlement, attempt), result) in settlements.iter().zip(attempts).zip(results) {
            if result.is_ok() {
                log_failure(settlement, *attempt);
            }
        }
        let mut counts: BTreeMap<(&QueueName, u8), (MessageEvent, u64)> = BTreeMap::new();
        for (settlement, result) in settlements.iter().zip(results) {
            let what = match (result, &settlement.disposition) {
                (Err(MessagingError::VisibilityExpired { .. }), _) => MessageEvent::LeaseLost,
                (Err(_), _) => continue,
                (Ok(()), Disposition::Ack) => MessageEvent::Acked,
                (Ok(()), Disposition::Nack(Nack::Retry { .. })) => MessageEvent::Retried,
                (Ok(()), Disposition::Nack(Nack::Release)) => MessageEvent::Released,
                (Ok(()), Disposition::Nack(Nack::DeadLetter { .. })) => MessageEvent::DeadLettered,
            };
            if !matches!(what, MessageEvent::LeaseLost | MessageEvent::Released) {
                self.durations.settled(&settlement.receipt);
            }
            counts.entry((settlement.receipt.queue(), what as u8)).or_insert((what, 0)).1 += 1;
        }
        for ((queue, _), (what, many)) in counts {
            self.metrics.count(queue, what, many);
        }
        let over = settlements
            .iter()
            .zip(results)
            .filter(|(_, result)| matches!(result, Ok(()) | Err(MessagingError::VisibilityExpired { .. })));
        let over: Vec<_> = over.collect();
        let held = self.workers.settled(over.iter().map(|(settlement, _)| &settlement.receipt));
        for ((settlement, result), held) in over.into_iter().zip(held) {
            // The handler of a released message was never started.
            let is_handled = result.is_ok() && settlement.disposition != Disposition::Nack(Nack::Release);
            if let Some(held) = held.filter(|_| is_handled) {
                self.metrics.handled(settlement.receipt.queue(), held);
            }
        }
    }
}

/// Logs a failed attempt as a subscriber does: a retry as a warning, a dead letter as an error.
fn log_failure(settlement: &postrider::Settlement, attempt: u32) {
    let (queue, id) = (settlement.receipt.queue(), settlement.receipt.message_id());
    let Disposition::Nack(nack) = &settlement.disposition else { return };
    let worker = settlement.worker.as_deref();
    match nack {
        Nack::Retry { after, error } => {
            let next_attempt_at = Timestamp::now().saturating_add(*after);
            let error = shown(error);
            tracing::warn!(%queue, %id, attempt, error, worker, %next_attempt_at, "a message failed and is retried");
        }
        Nack::DeadLetter { reason, error } => {
            let error = shown(error);
            tracing::error!(%queue, %id, attempt, error, worker, reason = reason.as_str(), "a message is dead-lettered");
        }
        Nack::Release => {}
    }
}

fn shown(error: &Option<String>) -> &str {
    error.as_deref().unwrap_or("(no error text)")
}

/// Merges the store's results with the refused rows.
pub(super) fn rows(
    receipts: Vec<String>,
    requested: Vec<Result<(), MessagingError>>,
    done: RowResults<()>,
) -> Vec<Row> {
    let results = all_results("settle", requested, done);
    receipts.into_iter().zip(&results).map(|(receipt, result)| Row::new(receipt, result)).collect()
}

fn all_results<T>(
    operation: &'static str,
    requested: Vec<Result<(), MessagingError>>,
    done: RowResults<T>,
) -> RowResults<T> {
    let mut done = done.into_iter();
    let lost = || MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: None };
    let result = |requested: Result<(), MessagingError>| match requested {
        Ok(()) => done.next().unwrap_or_else(|| Err(lost())),
        Err(error) => Err(error),
    };
    requested.into_iter().map(result).collect()
}

/// Splits rows into valid ones and a list of the refusals.
pub(super) fn split<T>(requested: Vec<Result<T, MessagingError>>) -> (Vec<T>, Vec<Result<(), MessagingError>>) {
    let mut valid = Vec::with_capacity(requested.len());
    let notes = requested.into_iter().map(|row| row.map(|row| valid.push(row))).collect();
    (valid, notes)
}

async fn apply(
    app: &App,
    caller: &Caller,
    requested: impl ExactSizeIterator<Item = Settlement>,
) -> Result<Response, ApiError> {
    if requested.len() > MAX_SETTLED {
        return Err(ApiError::malformed(format!("too many receipts; send at most {MAX_SETTLED} with one request")));
    }
    let (receipts, opened) = app.settlements(caller, requested);
    let (valid, notes) = split(opened);
    let (valid, attempts): (Vec<_>, Vec<_>) = valid.into_iter().unzip();
    let done = match valid.is_empty() {
        true => Vec::new(),
        false => app.provider.settle(valid.clone(), Deadline::default()).await?,
    };
    app.record_settled(&valid, &attempts, &done);
    answer(&Rows { results: rows(receipts, notes, done) })
}

async fn ack(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(requested): JsonBody<ReceiptsRequest>,
) -> Result<Response, ApiError> {
    apply(&app, &caller, requested.into_settlements(Outcome::Ack)).await
}

async fn release(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(requested): JsonBody<ReceiptsRequest>,
) -> Result<Response, ApiError> {
    apply(&app, &caller, requested.into_settlements(Outcome::Release)).await
}

async fn nack(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(requested): JsonBody<NackRequest>,
) -> Result<Response, ApiError> {
    apply(&app, &caller, requested.into_settlements()).await
}

async fn dead_letter(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(requested): JsonBody<DeadLetterRequest>,
) -> Result<Response, ApiError> {
    apply(&app, &caller, requested.into_settlements()).await
}

async fn settle(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(requested): JsonBody<SettleRequest>,
) -> Result<Response, ApiError> {
    apply(&app, &caller, requested.settlements.into_iter()).await
}

async fn extend(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(ExtendRequest { receipts, visibility }): JsonBody<ExtendRequest>,
) -> Result<Response, ApiError> {
    use futures_util::{StreamExt, stream};
    if receipts.len() > MAX_SETTLED {
        let why = format!("too many receipts; send at most {MAX_SETTLED} with one request");
        return Err(ApiError::malformed(why));
    }
    let opened = receipts.iter().map(|shown| app.opened(&caller, shown)).collect();
    let (valid, notes) = split(opened);
    // Concurrently, so that a provider that batches calls sends one statement.
    let done: RowResults<ReceiptHandle> = stream::iter(valid.clone())
        .map(|Opened { own: receipt, .. }| {
            let provider = app.provider.clone();
            let deadline = Deadline::default();
            async move { provider.extend_visibility(receipt.queue(), &receipt, visibility, deadline).await }
        })
        .buffered(EXTENDED_TOGETHER)
        .collect()
        .await;
    let mut held = Vec::with_capacity(valid.len());
    let mut shown = Vec::with_capacity(valid.len());
    for (opened, result) in valid.iter().zip(done) {
        match &result {
            Ok(next) => held.push(next.clone()),
            Err(MessagingError::VisibilityExpired { .. }) => {
                app.metrics.count(opened.own.queue(), MessageEvent::LeaseLost, 1);
            }
            Err(_) => {}
        }
        let worker = opened.worker.as_deref().unwrap_or_default();
        shown.push(result.map(|next| app.seal.seal(&next, opened.attempts_count, worker).to_string()));
    }
    app.workers.extended(&held, visibility);
    let results = all_results("extend", notes, shown);
    let row = |(receipt, result)| Row::extended(receipt, result);
    answer(&Rows { results: receipts.into_iter().zip(results).map(row).collect() })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;
    use std::time::Duration;

    use postrider::provider::{LeaseToken, NativeRef};
    use postrider::{DeadLetterReason, MessageId};

    use super::*;

    /// Collects the log of this thread.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_retry_is_a_warning_and_a_dead_letter_an_error() {
        let log = Log::default();
        let written = log.clone();
        let listener = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || written.clone());
        let listens = tracing::subscriber::set_default(listener.with_max_level(tracing::Level::WARN).finish());
        let id = MessageId::generate();
        let queue = QueueName::new("orders").unwrap();
        let receipt = ReceiptHandle::new("sqlite", queue, id, LeaseToken(7), NativeRef::Row(3));
        let error = || Some("no paper".to_owned());
        let retry = Nack::Retry { after: Duration::from_secs(60), error: error() };
        let death = Nack::DeadLetter { reason: DeadLetterReason::MAX_RECEIVE_COUNT, error: error() };
        log_failure(&postrider::Settlement::ack(receipt.clone()), 1);
        for nack in [Nack::Release, retry, death] {
            log_failure(&postrider::Settlement::nack(receipt.clone(), nack), 2);
        }
        drop(listens);
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2, "{text}");
        for (line, level) in lines.iter().zip(["WARN", "ERROR"]) {
            assert_eq!((&line["level"], &line["queue"]), (&level.into(), &"orders".into()), "{line}");
            assert_eq!((&line["id"], &line["attempt"]), (&id.to_string().into(), &2.into()), "{line}");
            assert_eq!(line["error"], "no paper", "{line}");
        }
        assert!(lines[0]["next_attempt_at"].is_string() && lines[1]["reason"] == "max_receive_count", "{text}");
    }
}
