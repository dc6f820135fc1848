//! `postrider send --lines`

use postrider::{Deadline, MessageId, MessagingError, MessagingService, QueueName};

use super::{MessageOptions, Sent};
use crate::failure::Failure;
use crate::input::too_long;
use crate::lines::{Created, Creator, NotCreated, Words};
use crate::session::Session;

/// Sends every line as a message.
#[derive(Debug)]
pub(super) struct Sender<'a> {
    pub(super) session: &'a Session,
    pub(super) queue: &'a QueueName,
    pub(super) options: &'a MessageOptions,
}

impl<'a> Creator for Sender<'a> {
    type Row = Sent<'a>;

    const WORDS: Words = Words { thing: "message", verb: "send", done: "sent" };

    fn max_line(&self) -> usize {
        self.session.provider.capabilities().limits.max_body_bytes
    }

    fn too_long(&self, what: &str) -> String {
        too_long(what, self.max_line())
    }

    async fn create(&self, lines: Vec<Vec<u8>>) -> Result<Vec<Created<Self::Row>>, Failure> {
        let Self { session, queue, options } = *self;
        let messages = lines.into_iter().map(|body| options.message(body)).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
        let rows = match session.provider.send_batch(queue, messages, Deadline::default()).await {
            Ok(rows) => rows,
            Err(error @ MessagingError::InvalidInput { .. }) => return Err(error.into()),
            Err(error) => vec![Err(error); ids.len()],
        };
        let sent = ids.into_iter().zip(rows).map(|(id, row)| match row {
            Ok(id) => Ok((Sent { id, queue: queue.as_str() }, id.to_string())),
            Err(error) => Err(unsent(id, error)),
        });
        Ok(sent.collect())
    }
}

fn unsent(id: MessageId, error: MessagingError) -> NotCreated {
    // The error names the rows of the batch whose outcome is unknown; without ids it is all of them.
    let is_unknown = match &error {
        MessagingError::OutcomeUnknown { ids, .. } => ids.is_empty() || ids.contains(&id),
        _ => false,
    };
    NotCreated { id: id.to_string(), is_unknown, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_answer_concerns_the_rows_it_names_or_all() {
        let [one, two] = [MessageId::generate(), MessageId::generate()];
        let lost = |ids| MessagingError::OutcomeUnknown { operation: "send", ids, source: None };
        assert!(unsent(one, lost(vec![one])).is_unknown && !unsent(two, lost(vec![one])).is_unknown);
        assert!(unsent(one, lost(Vec::new())).is_unknown);
    }
}
