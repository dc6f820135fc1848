//! Settles and claims in one transaction.

use mysql_async::Row;
use postrider_core::{Deadline, QueueName, ReceiveOptions, Settlement};
use postrider_provider::Undone;
use postrider_sql::Taken;

use crate::claim::{Claim, DeadOnClaim, Heads};
use crate::connection::Session;
use crate::settle::Settling;
use crate::store::Shared;

/// What is left to do after the transaction of a claim.
#[derive(Debug)]
pub struct Chores {
    claim: Claim,
    dead: Vec<DeadOnClaim>,
    /// Whether keys wait to be promoted.
    has_unplaced: bool,
}

impl Shared {
    /// Settles, and claims from one queue, in one transaction. Usually three round trips: settle and look, lock, lease
    /// and commit. One if there is nothing.
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
            self.histories.lift(queue);
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
            self.histories.lift(queue);
            // The rows are locked again; nothing was done with them yet.
            heads = claim.heads(&session.look_again(claim.look(sql)).await?.concat());
            taken = take(&mut session, &claim, &heads).await?;
        }
        let mut result = claim.read(&taken);
        if !taken.is_empty() {
            let leased = session.commit(claim.lease(sql, &result)).await?;
            claim.add_dedup_keys(&mut result, &leased);
        } else if session.is_in_transaction() {
            session.commit(String::new()).await?;
        }
        drop(session);
        if taken.len() == claim.limit() {
            self.histories.raise(queue, taken.len(), claim.stopped(&taken));
        }
        let (tried, touched) = settling.finish();
        self.touch(&touched);
        let settled = self.settle_busy(settlements, tried).await;
        let chores = Chores { claim, dead: result.dead, has_unplaced: heads.has_unplaced };
        Ok(Taken { settled, messages: result.messages, chores })
    }

    /// Dead-letters what the claim found dead and promotes keys. Returns whether there may be more to claim now.
    pub(crate) async fn do_chores(&self, queue: &QueueName, chores: Chores) -> Result<bool, Undone> {
        self.dead_letter_claimed(&chores.claim, &chores.dead).await?;
        let has_promoted = chores.has_unplaced && self.promote_unplaced(queue).await?;
        Ok(!chores.dead.is_empty() || has_promoted)
    }
}

/// Locks rows of one priority after the other until there are enough. Begins no transaction without due rows.
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
