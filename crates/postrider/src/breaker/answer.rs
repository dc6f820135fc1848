//! Verdicts on answers: success, failure or nothing.

use postrider_core::{
    ArchivePage, DeadLetter, DeadLetterPage, DeadLetterSummaryPage, MessageAttempt, MessageId, MessagingError,
    PeekPage, PeekedMessage, QueueHealthReport, QueueName, QueueStats, QueuedMessage, ReceiptHandle, RedriveReport,
    RowResults, SettledAndReceived, WakeUps,
};

use super::Verdict;

/// A successful answer, which may contain errors.
pub(super) trait Answer {
    fn verdict(&self) -> Verdict {
        Verdict::Success
    }
}

/// The verdict on the outcome of a call.
pub(super) fn verdict<T: Answer>(outcome: &Result<T, MessagingError>) -> Verdict {
    match outcome {
        Ok(answer) => answer.verdict(),
        Err(error) => verdict_of_error(error),
    }
}

fn verdict_of_error(error: &MessagingError) -> Verdict {
    match error {
        // The store has answered: it refuses one of the messages.
        MessagingError::OutcomeUnknown { source: Some(source), .. } if is_invalid_input(&**source) => Verdict::Nothing,
        MessagingError::Connection { .. }
        | MessagingError::Provider { retryable: true, .. }
        | MessagingError::OutcomeUnknown { source: Some(_), .. } => Verdict::Failure,
        // Without a cause the caller's own deadline ended it.
        _ => Verdict::Nothing,
    }
}

fn is_invalid_input(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(MessagingError::InvalidInput { .. }))
}

/// One row that failed with the connection is a failure, whatever the other rows are. No rows count as nothing: the
/// store may not have been asked.
fn verdict_of_rows<T>(rows: &RowResults<T>) -> Verdict {
    let verdicts = rows.iter().map(|row| match row {
        Ok(_) => Verdict::Success,
        Err(error) => verdict_of_error(error),
    });
    verdicts.fold(Verdict::Nothing, together)
}

fn together(a: Verdict, b: Verdict) -> Verdict {
    match (a, b) {
        (Verdict::Failure, _) | (_, Verdict::Failure) => Verdict::Failure,
        (Verdict::Success, _) | (_, Verdict::Success) => Verdict::Success,
        (Verdict::Nothing, Verdict::Nothing) => Verdict::Nothing,
    }
}

impl Answer for RowResults<MessageId> {
    fn verdict(&self) -> Verdict {
        verdict_of_rows(self)
    }
}

impl Answer for RowResults<()> {
    fn verdict(&self) -> Verdict {
        verdict_of_rows(self)
    }
}

impl Answer for SettledAndReceived {
    fn verdict(&self) -> Verdict {
        together(verdict_of_rows(&self.settled), verdict(&self.received))
    }
}

impl Answer for () {}
impl Answer for u64 {}
impl Answer for MessageId {}
impl Answer for ReceiptHandle {}
impl Answer for Vec<QueuedMessage> {}
impl Answer for Option<QueuedMessage> {}
impl Answer for WakeUps {}
impl Answer for Vec<QueueName> {}
impl Answer for QueueStats {}
impl Answer for QueueHealthReport {}
impl Answer for Vec<PeekedMessage> {}
impl Answer for PeekPage {}
impl Answer for Vec<MessageAttempt> {}
impl Answer for ArchivePage {}
impl Answer for DeadLetterPage {}
impl Answer for Vec<MessageId> {}
impl Answer for DeadLetterSummaryPage {}
impl Answer for DeadLetter {}
impl Answer for RedriveReport {}
