//! Comparison of sent and drained messages.

use postrider_core::MessageId;

use crate::error::Mismatch;

/// The sent messages, and which of them were drained.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Ascending.
    sent: Vec<MessageId>,
    is_drained: Vec<bool>,
    drained: usize,
    /// Probable index of the next message: queues deliver nearly in the order of the ids.
    guess: usize,
}

impl Tally {
    /// A tally of the ids returned by the sends.
    pub(crate) fn new(mut sent: Vec<MessageId>) -> Result<Self, Mismatch> {
        sent.sort_unstable();
        if let Some(pair) = sent.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Mismatch::SameId { id: pair[0] });
        }
        let is_drained = vec![false; sent.len()];
        Ok(Self { sent, is_drained, drained: 0, guess: 0 })
    }

    /// Records a message as received and acknowledged.
    pub(crate) fn drained(&mut self, id: MessageId) -> Result<(), Mismatch> {
        let index = match self.sent.get(self.guess) {
            Some(guessed) if *guessed == id => self.guess,
            _ => self.sent.binary_search(&id).map_err(|_| Mismatch::Stranger { id })?,
        };
        if std::mem::replace(&mut self.is_drained[index], true) {
            return Err(Mismatch::Twice { id });
        }
        self.drained += 1;
        self.guess = index + 1;
        Ok(())
    }

    /// Whether all messages were drained.
    pub(crate) fn is_complete(&self) -> bool {
        self.drained == self.sent.len()
    }

    /// Fails if a message was not drained.
    pub(crate) fn finish(&self) -> Result<(), Mismatch> {
        match self.is_drained.iter().position(|drained| !drained) {
            None => Ok(()),
            Some(index) => Err(Mismatch::Lost {
                missing: self.sent.len() - self.drained,
                sent: self.sent.len(),
                id: self.sent[index],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: usize) -> Vec<MessageId> {
        (0..count).map(|_| MessageId::generate()).collect()
    }

    #[test]
    fn any_order_is_accepted() {
        let mut ids = ids(5);
        let mut tally = Tally::new(ids.clone()).unwrap();
        ids.swap(1, 4);
        for id in ids {
            assert!(!tally.is_complete());
            tally.drained(id).unwrap();
        }
        assert!(tally.is_complete());
        assert_eq!(tally.finish(), Ok(()));
    }

    #[test]
    fn lost_repeated_and_unknown_messages_are_found() {
        let ids = ids(3);
        let mut tally = Tally::new(ids.clone()).unwrap();
        tally.drained(ids[0]).unwrap();
        tally.drained(ids[2]).unwrap();
        assert_eq!(tally.drained(ids[0]), Err(Mismatch::Twice { id: ids[0] }));
        let stranger = MessageId::generate();
        assert_eq!(tally.drained(stranger), Err(Mismatch::Stranger { id: stranger }));
        assert_eq!(tally.finish(), Err(Mismatch::Lost { missing: 1, sent: 3, id: ids[1] }));
        assert_eq!(Tally::new(vec![ids[0], ids[1], ids[0]]).unwrap_err(), Mismatch::SameId { id: ids[0] });
    }
}
