//! `postrider send --lines`

use postrider::{Deadline, MessageId, MessagingError, MessagingService, QueueName};

use super::{Label, Sent};
use crate::failure::Failure;
use crate::input::too_long;
use crate::lines::{Made, Maker, Unmade, Words};
use crate::session::Session;

/// Sends every line as a message.
#[derive(Debug)]
pub(super) struct Sender<'a> {
    pub(super) session: &'a Session,
    pub(super) queue: &'a QueueName,
    pub(super) label: &'a Label,
}

impl<'a> Maker for Sender<'a> {
    type Row = Sent<'a>;

    const WORDS: Words = Words { thing: "message", verb: "send", done: "sent" };

    fn most(&self) -> usize {
        self.session.provider.capabilities().limits.max_body_bytes
    }

    fn too_long(&self, what: &str) -> String {
        too_long(what, self.most())
    }

    async fn make(&self, lines: Vec<Vec<u8>>) -> Result<Vec<Made<Self::Row>>, Failure> {
        let Self { session, queue, label } = *self;
        let messages = lines.into_iter().map(|body| label.message(body)).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
        let rows = match session.provider.send_batch(queue, messages, Deadline::default()).await {
            Ok(rows) => rows,
            Err(error @ MessagingError::InvalidInput { .. }) => return Err(error.into()),
            Err(error) => vec![Err(error); ids.len()],
        };
        let made = ids.into_iter().zip(rows).map(|(id, row)| match row {
            Ok(id) => Ok((Sent { id, queue: queue.as_str() }, id.to_string())),
            Err(error) => Err(unsent(id, error)),
        });
        Ok(made.collect())
    }
}

fn unsent(id: MessageId, error: MessagingError) -> Unmade {
    // A batch whose answer was lost names the rows that may have been carried out.
    let is_unknown = match &error {
        MessagingError::OutcomeUnknown { ids, .. } => ids.is_empty() || ids.contains(&id),
        _ => false,
    };
    Unmade { id: id.to_string(), is_unknown, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_answer_is_about_the_rows_that_it_names() {
        let [one, two] = [MessageId::generate(), MessageId::generate()];
        let lost = |ids| MessagingError::OutcomeUnknown { operation: "send", ids, source: None };
        assert!(unsent(one, lost(vec![one])).is_unknown && !unsent(two, lost(vec![one])).is_unknown);
        assert!(unsent(one, lost(Vec::new())).is_unknown);
    }
}
