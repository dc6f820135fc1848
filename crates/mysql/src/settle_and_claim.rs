//! Settling the last batch and claiming the next in one transaction.

use mysql_async::Row;
use postrider_core::{Deadline, QueueName, ReceiveOptions, Settlement};
use postrider_provider::Undone;
use postrider_sql::Taken;

use crate::claim::{Claim, Doomed, Heads};
use crate::connection::Session;
use crate::settle::Settling;
use crate::store::Shared;

/// What a claim leaves to be done after its transaction.
#[derive(Debug)]
pub struct Chores {
    claim: Claim,
    doomed: Vec<Doomed>,
    /// Whether keys wait to be put in order.
    has_unplaced: bool,
}

impl Shared {
    /// Settles and claims from one queue in one transaction. Three round trips when all goes well: settle and look, take,
    /// lease and commit. One when there is nothing.
    pub(crate) async fn settle_and_claim(
        &self,
        settlements: &[Settlement],
        queue: &QueueName,
        wanted: usize,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Taken<Chores>, Undone> {
        let mut settling = Settling::new(self, settlements);
        if settling.frees_keys() {
            self.turns.lift(queue);
        }
        let mut claim = Claim::new(self, queue, wanted, options);
        let mut session = self.database.session("receive", deadline).await?;
        let (sql, look) = (session.sql(), claim.look(session.sql()));
        let found = match settling.is_empty() {
            true => session.ask(look).await?.concat(),
            false => settling.carry_out_and_ask(&mut session, look).await?,
        };
        let mut heads = claim.heads(&found);
        let mut taken = take(&mut session, &claim, &heads).await?;
        if taken.len() < claim.limit() && claim.lift_floors() {
            self.turns.lift(queue);
            // What was taken is taken again: it is locked, and nothing was done with it yet.
            heads = claim.heads(&session.look_again(claim.look(sql)).await?.concat());
            taken = take(&mut session, &claim, &heads).await?;
        }
        let mut brought = claim.read(&taken);
        if !taken.is_empty() {
            let leased = session.commit(claim.lease(sql, &brought)).await?;
            claim.add_dedup_keys(&mut brought, &leased);
        } else if session.is_in_transaction() {
            session.commit(String::new()).await?;
        }
        drop(session);
        if taken.len() == claim.limit() {
            self.turns.raise(queue, taken.len(), claim.stopped(&taken));
        }
        let (tried, touched) = settling.finish();
        self.touch(&touched);
        let settled = self.settle_busy(settlements, tried).await;
        let chores = Chores { claim, doomed: brought.doomed, has_unplaced: heads.has_unplaced };
        Ok(Taken { settled, messages: brought.messages, chores })
    }

    /// Buries what must die and puts keys in order. Answers whether there may be more to claim now.
    pub(crate) async fn do_chores(&self, queue: &QueueName, chores: Chores) -> Result<bool, Undone> {
        self.bury(&chores.claim, &chores.doomed).await?;
        let is_placed = chores.has_unplaced && self.place(queue).await?;
        Ok(!chores.doomed.is_empty() || is_placed)
    }
}

/// Takes one priority after the other until there is enough. Nothing is begun for nothing.
async fn take(session: &mut Session<'_>, claim: &Claim, heads: &Heads) -> Result<Vec<Row>, Undone> {
    let (sql, mut taken) = (session.sql(), Vec::new());
    for priority in &heads.priorities {
        let left = claim.limit() - taken.len().min(claim.limit());
        if left == 0 {
            break;
        }
        let text = claim.take(sql, *priority, left);
        let answers =
            if session.is_in_transaction() { session.query(text).await? } else { session.begin(text).await? };
        taken.extend(answers.concat());
    }
    Ok(taken)
}
