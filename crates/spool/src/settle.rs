//! Settles, extends and gives up leases, each by a rename from the name with the lease token. A token that is in no name, or
//! whose lease has expired, changes nothing.

use std::time::Duration;

use postrider_core::{Disposition, MessagingError, Nack, ReceiptHandle, Settlement};

use crate::PROVIDER;
use crate::claim::row_number;
use crate::disk::Name;
use crate::error::Failure;
use crate::name::{Due, FileName, Lease};
use crate::record::Note;
use crate::session::{Session, Side, unleased_name};

impl Session<'_> {
    pub(crate) fn settle(&mut self, settlement: &Settlement) -> Result<(), Failure> {
        let settlement = settlement.clone().checked(&self.shared.capabilities.limits)?;
        let Settlement { receipt, disposition, .. } = settlement;
        let (side, name, held) = self.held(&receipt)?;
        match disposition {
            Disposition::Ack => self.ack(side, &receipt, &name, &held),
            Disposition::Nack(Nack::Retry { after, error }) => {
                let due = self.now.saturating_add(after);
                let mut failed = unleased_name(&held, Due::Retry(due));
                failed.attempts = held.attempts.saturating_add(1);
                // A dead letter keeps its record.
                if let Some(error) = error.filter(|_| side == Side::Live) {
                    let note = Note { error: Some(error), ..self.note_of(&held) };
                    self.write_note(&held, &note)?;
                    failed.is_noted = true;
                }
                self.return_to_queue(side, &receipt, &name, &failed)
            }
            Disposition::Nack(Nack::Release) => {
                let mut released = unleased_name(&held, Due::From(self.now));
                released.deliveries = held.deliveries.saturating_sub(1);
                if released.deliveries == 0 {
                    // A retry strategy counts from the first delivery, and there was none.
                    (released.first, released.last) = (None, None);
                }
                self.return_to_queue(side, &receipt, &name, &released)
            }
            Disposition::Nack(Nack::DeadLetter { reason, error }) => {
                if side == Side::Dead {
                    let queue = receipt.queue();
                    let why = format!("'{queue}' has no dead letters of its own; redrive the message or purge it");
                    return Err(MessagingError::invalid("disposition", why).into());
                }
                self.will_change()?;
                self.dead_letter(side.leased(), &name, &held, reason, error)
            }
        }
    }

    pub(crate) fn extend(&mut self, receipt: &ReceiptHandle, extension: Duration) -> Result<(), Failure> {
        let (side, name, held) = self.held(receipt)?;
        let lease = Lease { until: self.now.saturating_add(extension), token: receipt.token() };
        self.will_change()?;
        let extended = FileName { lease: Some(lease), ..held };
        match self.move_row(side, side.leased(), &name, side.leased(), &extended)? {
            Some(_) => {
                self.wake(side, lease.until);
                Ok(())
            }
            None => Err(receipt.expired().into()),
        }
    }

    /// Ends the lease of a message that was dropped unsettled; its delivery stays counted.
    pub(crate) fn give_up(&mut self, receipt: &ReceiptHandle) -> Result<(), Failure> {
        let (side, name, held) = self.held(receipt)?;
        self.return_to_queue(side, receipt, &name, &unleased_name(&held, Due::From(self.now)))
    }

    fn ack(&mut self, side: Side, receipt: &ReceiptHandle, name: &Name, held: &FileName) -> Result<(), Failure> {
        self.will_change()?;
        let was_there = self.known.dirs.folder(side.leased()).unlink(name)?;
        self.index(side).remove(side.leased(), name);
        if !was_there {
            return Err(receipt.expired().into());
        }
        self.unsynced.add(side.leased());
        match side {
            Side::Live => self.remove_note(held),
            Side::Dead => self.remove_death(held),
        }
        if held.key.is_some() {
            self.wake(side, self.now);
        }
        Ok(())
    }

    fn return_to_queue(
        &mut self,
        side: Side,
        receipt: &ReceiptHandle,
        name: &Name,
        renewed: &FileName,
    ) -> Result<(), Failure> {
        self.will_change()?;
        match self.move_row(side, side.leased(), name, side.waiting(), renewed)? {
            Some(_) => {
                self.wake(side, renewed.next_attempt_at());
                Ok(())
            }
            None => Err(receipt.expired().into()),
        }
    }

    /// Returns the file of a receipt whose lease is valid.
    fn held(&mut self, receipt: &ReceiptHandle) -> Result<(Side, Name, FileName), Failure> {
        receipt.check_provider(PROVIDER)?;
        let side = Side::of(receipt.queue());
        self.refresh_leases(side)?;
        let now = self.now;
        let row = self.index(side).lease(receipt.token());
        let held = row.and_then(|row| Some((row.name().clone(), FileName::parse(row.name())?)));
        let number = receipt.row()?;
        match held {
            Some((name, held))
                if held.id == receipt.message_id() && row_number(&held) == number && held.is_leased(now) =>
            {
                Ok((side, name, held))
            }
            _ => Err(receipt.expired().into()),
        }
    }
}
