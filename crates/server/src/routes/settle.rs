//! Ending leases, and making them longer.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use postrider::{Deadline, Disposition, MessagingError, MessagingService, Nack, QueueName, ReceiptHandle, RowResults};
use postrider_http::wire::settle::{
    DeadLetterRequest, ExtendRequest, NackRequest, Outcome, ReceiptsRequest, Row, Rows, SettleRequest, Settlement,
};

use super::CONSUME;
use crate::access::Caller;
use crate::api::schemas::{list, named, only};
use crate::api::{ApiError, Content, JsonBody, Route, Verb, answer};
use crate::app::App;
use crate::meter::Happened;

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
            "Lets leases end so long from now.",
            extend,
        )
        .takes(named("Extend"))
        .answers(200, EACH, rows()),
    ]
}

impl App {
    /// The store's receipt in what a client showed, if the client's token is for its queue.
    fn opened(&self, caller: &Caller, shown: &str) -> Result<(ReceiptHandle, u32), MessagingError> {
        let shown: ReceiptHandle = shown.parse()?;
        if !caller.may_use(shown.queue()) {
            let why = format!("it is for queue '{}', and the token is not", shown.queue());
            return Err(MessagingError::invalid_receipt(why));
        }
        self.seal.open(&shown)
    }

    /// The store's settlements for those that clients asked for; what cannot be meant fails alone.
    pub(super) fn settlements(
        &self,
        caller: &Caller,
        asked: Vec<Settlement>,
    ) -> (Vec<String>, Vec<Result<postrider::Settlement, MessagingError>>) {
        let opened = |asked: Settlement| {
            let (own, failures) = self.opened(caller, &asked.receipt)?;
            // Without a delay, a retry waits as the default strategy says.
            let is_unsaid = asked.outcome == Outcome::Retry && asked.after.is_none();
            let mut settlement = postrider::Settlement::try_from(Settlement { receipt: own.to_string(), ..asked })?;
            if is_unsaid
                && let Disposition::Nack(Nack::Retry { after, .. }) = &mut settlement.disposition
                && let Nack::Retry { after: backed_off, .. } = Nack::requeue(true, failures)
            {
                *after = backed_off;
            }
            Ok(settlement)
        };
        let receipts = asked.iter().map(|asked| asked.receipt.clone()).collect();
        (receipts, asked.into_iter().map(opened).collect())
    }

    /// Counts what became of settlements, and forgets their leases.
    pub(super) fn note_settled(&self, settlements: &[postrider::Settlement], results: &RowResults<()>) {
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
            happened.entry((settlement.receipt.queue(), what as u8)).or_insert((what, 0)).1 += 1;
        }
        for ((queue, _), (what, many)) in happened {
            self.meter.count(queue, what, many);
        }
        let over = settlements
            .iter()
            .zip(results)
            .filter(|(_, result)| matches!(result, Ok(()) | Err(MessagingError::VisibilityExpired { .. })));
        self.workers.settled(over.map(|(settlement, _)| &settlement.receipt));
    }
}

/// Puts the answers of those that were carried out among those that were refused.
pub(super) fn rows(receipts: Vec<String>, asked: Vec<Result<(), MessagingError>>, done: RowResults<()>) -> Vec<Row> {
    let mut done = done.into_iter();
    let lost = || MessagingError::OutcomeUnknown { operation: "settle", ids: Vec::new(), source: None };
    let result = |asked: Result<(), MessagingError>| match asked {
        Ok(()) => done.next().unwrap_or_else(|| Err(lost())),
        Err(error) => Err(error),
    };
    let results: Vec<_> = asked.into_iter().map(result).collect();
    receipts.into_iter().zip(&results).map(|(receipt, result)| Row::new(receipt, result)).collect()
}

/// Those that can be carried out, and a note of which can not.
pub(super) fn split<T>(asked: Vec<Result<T, MessagingError>>) -> (Vec<T>, Vec<Result<(), MessagingError>>) {
    let mut fine = Vec::with_capacity(asked.len());
    let notes = asked.into_iter().map(|row| row.map(|row| fine.push(row))).collect();
    (fine, notes)
}

async fn carry_out(app: &App, caller: &Caller, asked: Vec<Settlement>) -> Result<Response, ApiError> {
    if asked.len() > MOST_SETTLED {
        return Err(ApiError::malformed(format!(
            "at most {MOST_SETTLED} leases are ended at once; end the rest apart"
        )));
    }
    let (receipts, opened) = app.settlements(caller, asked);
    let (fine, notes) = split(opened);
    let done = match fine.is_empty() {
        true => Vec::new(),
        false => app.provider.settle(fine.clone(), Deadline::default()).await?,
    };
    app.note_settled(&fine, &done);
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
    carry_out(&app, &caller, asked.settlements).await
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
    let opened = receipts.iter().map(|shown| app.opened(&caller, shown).map(|(own, _)| own)).collect();
    let (fine, notes) = split(opened);
    // Together, so that a provider that gathers calls makes one of them.
    let done: RowResults<()> = stream::iter(fine.clone())
        .map(|receipt| {
            let provider = app.provider.clone();
            let deadline = Deadline::default();
            async move { provider.extend_visibility(receipt.queue(), &receipt, visibility, deadline).await }
        })
        .buffered(EXTENDED_TOGETHER)
        .collect()
        .await;
    let mut held = Vec::with_capacity(fine.len());
    for (receipt, result) in fine.iter().zip(&done) {
        match result {
            Ok(()) => held.push(receipt.clone()),
            Err(MessagingError::VisibilityExpired { .. }) => {
                app.meter.count(receipt.queue(), Happened::LeaseLost, 1);
            }
            Err(_) => {}
        }
    }
    app.workers.extended(&held, visibility);
    answer(&Rows { results: rows(receipts, notes, done) })
}
