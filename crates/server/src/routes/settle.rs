//! Ending leases, and making them longer.

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
use crate::meter::Happened;
use crate::receipts::Opened;

/// So many leases are ended with one request.
pub(super) const MOST_SETTLED: usize = 10_000;

/// So many leases are extended at the same time.
const EXTENDED_TOGETHER: usize = 64;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Settling";
    let rows = || Content::Json(only("results", list(named("SettledRow"))));
    const EACH: &str = "What became of each, in their order";
    vec![
        Route::new(
            (Verb::Post, "/v1/messages/ack"),
            (GROUP, "ackMessages"),
            CONSUME,
            "Acknowledges messages: they are handled.",
            ack,
        )
        .takes(named("Receipts"))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/nack"),
            (GROUP, "nackMessages"),
            CONSUME,
            "The handler failed: the messages come back after a while. Without 'after', the default backoff decides.",
            nack,
        )
        .takes(named("Nack"))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/release"),
            (GROUP, "releaseMessages"),
            CONSUME,
            "The work was never started: the messages go back at once, and the delivery does not count.",
            release,
        )
        .takes(named("Receipts"))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/dead-letter"),
            (GROUP, "deadLetterMessages"),
            CONSUME,
            "Gives messages up: they go to the dead letters now.",
            dead_letter,
        )
        .takes(named("DeadLetterMessages"))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/settle"),
            (GROUP, "settleMessages"),
            CONSUME,
            "Ends leases, each in its own way.",
            settle,
        )
        .takes(crate::api::schemas::asks_only("settlements", list(named("Settlement"))))
        .answers(200, EACH, rows()),
        Route::new(
            (Verb::Post, "/v1/messages/extend"),
            (GROUP, "extendMessages"),
            CONSUME,
            "Lets leases end so long from now. A row with a 'new_receipt' goes on by that one: on such a store the old receipt \
             ends when its lease would have.",
            extend,
        )
        .takes(named("Extend"))
        .answers(200, EACH, rows()),
    ]
}

/// A settlement, and the attempt that it ends: 1 for the first.
type Ending = (postrider::Settlement, u32);

impl App {
    /// The store's receipt in what a client showed, if the client's token is for its queue.
    fn opened(&self, caller: &Caller, shown: &str) -> Result<Opened, MessagingError> {
        let shown: ReceiptHandle = shown.parse()?;
        if !caller.may_use(shown.queue()) {
            let why = format!("it is for queue '{}', and the token is not", shown.queue());
            return Err(MessagingError::invalid_receipt(why));
        }
        self.seal.open(&shown)
    }

    /// The store's settlements for those that clients asked for, each with the attempt that it ends; what cannot be meant
    /// fails alone.
    pub(super) fn settlements(
        &self,
        caller: &Caller,
        asked: impl IntoIterator<Item = Settlement>,
    ) -> (Vec<String>, Vec<Result<Ending, MessagingError>>) {
        let opened = |asked: Settlement| {
            let Opened { own, attempts_count, worker } = self.opened(caller, &asked.receipt)?;
            // Without a delay, a retry waits as the default strategy says.
            let is_unsaid = asked.outcome == Outcome::Retry && asked.after.is_none();
            let mut settlement = postrider::Settlement::try_from(Settlement { receipt: own.to_string(), ..asked })?;
            if is_unsaid
                && let Disposition::Nack(Nack::Retry { after, .. }) = &mut settlement.disposition
                && let Nack::Retry { after: backed_off, .. } = Nack::requeue(true, attempts_count)
            {
                *after = backed_off;
            }
            settlement.worker = settlement.worker.or(worker);
            Ok((settlement, attempts_count.saturating_add(1)))
        };
        // One after the other, so that what is refused is gone before the next is made.
        asked.into_iter().map(|asked| (asked.receipt.clone(), opened(asked))).unzip()
    }

    /// Counts what became of settlements, logs failures, and forgets their leases.
    pub(super) fn note_settled(
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
        let mut happened: BTreeMap<(&QueueName, u8), (Happened, u64)> = BTreeMap::new();
        for (settlement, result) in settlements.iter().zip(results) {
            let what = match (result, &settlement.disposition) {
                (Err(MessagingError::VisibilityExpired { .. }), _) => Happened::LeaseLost,
                (Err(_), _) => continue,
                (Ok(()), Disposition::Ack) => Happened::Acked,
                (Ok(()), Disposition::Nack(Nack::Retry { .. })) => Happened::Retried,
                (Ok(()), Disposition::Nack(Nack::Release)) => Happened::Released,
                (Ok(()), Disposition::Nack(Nack::DeadLetter { .. })) => Happened::DeadLettered,
            };
            if !matches!(what, Happened::LeaseLost | Happened::Released) {
                self.durations.settled(&settlement.receipt);
            }
            happened.entry((settlement.receipt.queue(), what as u8)).or_insert((what, 0)).1 += 1;
        }
        for ((queue, _), (what, many)) in happened {
            self.meter.count(queue, what, many);
        }
        let over = settlements
            .iter()
            .zip(results)
            .filter(|(_, result)| matches!(result, Ok(()) | Err(MessagingError::VisibilityExpired { .. })));
        let over: Vec<_> = over.collect();
        let held = self.workers.settled(over.iter().map(|(settlement, _)| &settlement.receipt));
        for ((settlement, result), held) in over.into_iter().zip(held) {
            // What was released was never begun.
            let is_handled = result.is_ok() && settlement.disposition != Disposition::Nack(Nack::Release);
            if let Some(held) = held.filter(|_| is_handled) {
                self.meter.handled(settlement.receipt.queue(), held);
            }
        }
    }
}

/// Writes into the log that an attempt failed, as a subscriber does: a retry is a warning, a death an error.
fn log_failure(settlement: &postrider::Settlement, attempt: u32) {
    let (queue, id) = (settlement.receipt.queue(), settlement.receipt.message_id());
    let Disposition::Nack(nack) = &settlement.disposition else { return };
    let worker = settlement.worker.as_deref();
    match nack {
        Nack::Retry { after, error } => {
            let next_attempt_at = Timestamp::now().saturating_add(*after);
            let error = shown(error);
            tracing::warn!(%queue, %id, attempt, error, worker, %next_attempt_at, "a message failed and is tried again");
        }
        Nack::DeadLetter { reason, error } => {
            let error = shown(error);
            tracing::error!(%queue, %id, attempt, error, worker, reason = reason.as_str(), "a message is dead");
        }
        Nack::Release => {}
    }
}

fn shown(error: &Option<String>) -> &str {
    error.as_deref().unwrap_or("none was told")
}

/// Puts the answers of those that were carried out among those that were refused.
pub(super) fn rows(receipts: Vec<String>, asked: Vec<Result<(), MessagingError>>, done: RowResults<()>) -> Vec<Row> {
    let results = all_results("settle", asked, done);
    receipts.into_iter().zip(&results).map(|(receipt, result)| Row::new(receipt, result)).collect()
}

fn all_results<T>(
    operation: &'static str,
    asked: Vec<Result<(), MessagingError>>,
    done: RowResults<T>,
) -> RowResults<T> {
    let mut done = done.into_iter();
    let lost = || MessagingError::OutcomeUnknown { operation, ids: Vec::new(), source: None };
    let result = |asked: Result<(), MessagingError>| match asked {
        Ok(()) => done.next().unwrap_or_else(|| Err(lost())),
        Err(error) => Err(error),
    };
    asked.into_iter().map(result).collect()
}

/// Those that can be carried out, and a note of which can not.
pub(super) fn split<T>(asked: Vec<Result<T, MessagingError>>) -> (Vec<T>, Vec<Result<(), MessagingError>>) {
    let mut fine = Vec::with_capacity(asked.len());
    let notes = asked.into_iter().map(|row| row.map(|row| fine.push(row))).collect();
    (fine, notes)
}

async fn carry_out(
    app: &App,
    caller: &Caller,
    asked: impl ExactSizeIterator<Item = Settlement>,
) -> Result<Response, ApiError> {
    if asked.len() > MOST_SETTLED {
        return Err(ApiError::malformed(format!(
            "at most {MOST_SETTLED} leases are ended at once; end the rest apart"
        )));
    }
    let (receipts, opened) = app.settlements(caller, asked);
    let (fine, notes) = split(opened);
    let (fine, attempts): (Vec<_>, Vec<_>) = fine.into_iter().unzip();
    let done = match fine.is_empty() {
        true => Vec::new(),
        false => app.provider.settle(fine.clone(), Deadline::default()).await?,
    };
    app.note_settled(&fine, &attempts, &done);
    answer(&Rows { results: rows(receipts, notes, done) })
}

async fn ack(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<ReceiptsRequest>,
) -> Result<Response, ApiError> {
    carry_out(&app, &caller, asked.into_settlements(Outcome::Ack)).await
}

async fn release(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<ReceiptsRequest>,
) -> Result<Response, ApiError> {
    carry_out(&app, &caller, asked.into_settlements(Outcome::Release)).await
}

async fn nack(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<NackRequest>,
) -> Result<Response, ApiError> {
    carry_out(&app, &caller, asked.into_settlements()).await
}

async fn dead_letter(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<DeadLetterRequest>,
) -> Result<Response, ApiError> {
    carry_out(&app, &caller, asked.into_settlements()).await
}

async fn settle(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(asked): JsonBody<SettleRequest>,
) -> Result<Response, ApiError> {
    carry_out(&app, &caller, asked.settlements.into_iter()).await
}

async fn extend(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(ExtendRequest { receipts, visibility }): JsonBody<ExtendRequest>,
) -> Result<Response, ApiError> {
    use futures_util::{StreamExt, stream};
    if receipts.len() > MOST_SETTLED {
        let why = format!("at most {MOST_SETTLED} leases are extended at once; extend the rest apart");
        return Err(ApiError::malformed(why));
    }
    let opened = receipts.iter().map(|shown| app.opened(&caller, shown)).collect();
    let (fine, notes) = split(opened);
    // Together, so that a provider that gathers calls makes one of them.
    let done: RowResults<ReceiptHandle> = stream::iter(fine.clone())
        .map(|Opened { own: receipt, .. }| {
            let provider = app.provider.clone();
            let deadline = Deadline::default();
            async move { provider.extend_visibility(receipt.queue(), &receipt, visibility, deadline).await }
        })
        .buffered(EXTENDED_TOGETHER)
        .collect()
        .await;
    let mut held = Vec::with_capacity(fine.len());
    let mut shown = Vec::with_capacity(fine.len());
    for (opened, result) in fine.iter().zip(done) {
        match &result {
            Ok(next) => held.push(next.clone()),
            Err(MessagingError::VisibilityExpired { .. }) => {
                app.meter.count(opened.own.queue(), Happened::LeaseLost, 1);
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

    use postrider::{DeadLetterReason, LeaseToken, MessageId, NativeRef};

    use super::*;

    /// Everything that is logged on this thread.
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
    fn a_retry_is_a_warning_and_a_death_an_error() {
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
