//! Waiting for a message: registered first, then looked, then waited, so that nothing arrives unseen.

use std::time::Duration;

use futures_util::stream;
use postrider_core::{
    Deadline, MessagingError, QueueName, QueuedMessage, ReceiveOptions, RowResults, SettledAndReceived, Settlement,
    WakeUps,
};

use crate::claim::{Brought, Claim, Claimed, probes};
use crate::connection::persist;
use crate::error::Undone;
use crate::literal::{self, fill};
use crate::provider::MysqlProvider;
use crate::rows;
use crate::settle::Settling;
use crate::store::Shared;
use crate::wakes::Listener;

/// What is due and could not be had is in somebody's hands for a moment.
const HELD_BY_OTHERS: Duration = Duration::from_millis(10);

/// So many rounds of dead messages are cleared by one look.
const MOST_ROUNDS: usize = 5;

/// What one look brought.
#[derive(Default)]
struct Look {
    settled: RowResults<()>,
    messages: Vec<QueuedMessage>,
    is_cut_short: bool,
}

impl MysqlProvider {
    /// Claims what is due; when there is nothing, waits for it as long as the options and the deadline allow.
    pub(crate) async fn claim_or_wait(
        &self,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let both = self.settle_and_claim(Vec::new(), queues, options, deadline).await?;
        both.received
    }

    /// Settles and claims in one transaction; then, if there is nothing, waits for it.
    pub(crate) async fn settle_and_claim(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let wait = deadline.at_most(options.wait);
        let listener = (!options.wait.is_zero()).then(|| self.listen(queues));
        let mut look = self.look(settlements, queues, options, deadline).await?;
        let mut in_vain = 0;
        let settled = std::mem::take(&mut look.settled);
        let received = loop {
            if !look.messages.is_empty() {
                break Ok(look.messages);
            }
            let Some(listener) = listener.as_ref().filter(|_| look.is_cut_short || !wait.has_passed()) else {
                break Ok(Vec::new());
            };
            if !look.is_cut_short && self.something_due(listener, queues, wait, &mut in_vain).await == News::Closed {
                break Ok(Vec::new());
            }
            // The wait was answered already: nothing was there. A look that the caller's own deadline cuts off takes
            // nothing away from that, because leases that nobody was there to take are given back.
            if deadline.has_passed() {
                break Ok(Vec::new());
            }
            match self.look(Vec::new(), queues, options, deadline).await {
                Ok(next) => look = next,
                Err(MessagingError::OutcomeUnknown { source: None, .. }) if deadline.has_passed() => {
                    break Ok(Vec::new());
                }
                Err(error) => break Err(error),
            }
        };
        Ok(SettledAndReceived { settled, received })
    }

    async fn look(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Look, MessagingError> {
        let operation = if settlements.is_empty() { "receive" } else { "settle" };
        let ids = settlements.iter().map(|settlement| settlement.receipt.message_id()).collect();
        let mut queues = queues.to_vec();
        if queues.len() > 1 {
            // Begins with a random one, so that none is always served last.
            let first = rand::random_range(0..queues.len());
            queues.rotate_left(first);
        }
        if *self.inner.closed.borrow() {
            // What is there is left to other connections.
            queues.clear();
        }
        let (shared, options, deliver) = (self.shared().clone(), options.clone(), self.deliver());
        let work = async move {
            let mut look = Look::default();
            let mut settlements = Some(settlements);
            for queue in &queues {
                let wanted = options.max - look.messages.len().min(options.max);
                if wanted == 0 {
                    break;
                }
                let settlements = settlements.take().unwrap_or_default();
                let taken = shared.settle_and_claim_one(&settlements, queue, wanted, &options, deadline).await;
                let taken = match taken {
                    Ok(taken) => taken,
                    // What was done for other queues must be told.
                    Err(_) if !look.messages.is_empty() || !look.settled.is_empty() => break,
                    Err(error) => return Err(error),
                };
                look.settled.extend(taken.settled);
                look.messages.extend(taken.messages.into_iter().map(&deliver));
                look.is_cut_short |= taken.is_cut_short;
            }
            if let Some(settlements) = settlements.filter(|settlements| !settlements.is_empty()) {
                look.settled = shared.settle(&settlements).await?;
            }
            Ok(look)
        };
        self.carry_out(operation, ids, deadline, work).await
    }

    fn listen(&self, queues: &[QueueName]) -> Listener {
        self.shared().wakes.listen(queues)
    }

    /// Waits until a claim may find something, with one look at most for each piece of news and each poll interval.
    async fn something_due(
        &self,
        listener: &Listener,
        queues: &[QueueName],
        wait: Deadline,
        in_vain: &mut u32,
    ) -> News {
        let poll = self.shared().options.poll_interval;
        loop {
            let due = self.shared().next_due(queues).await;
            let pause = match due {
                Ok(Due::Now) => {
                    // Came between the claim and the look; or others have it in their hands, for a moment or for long.
                    let pause = in_vain.checked_sub(1).map_or(Duration::ZERO, |n| HELD_BY_OTHERS * 2u32.pow(n.min(10)));
                    *in_vain += 1;
                    pause.min(poll)
                }
                Ok(Due::In(pause)) => {
                    *in_vain = 0;
                    pause.min(poll)
                }
                // The server is away. The wait goes on, and the claim will say so if it is away for longer.
                Err(_) => poll,
            };
            match self.news(listener, pause, wait).await {
                News::TimeCame if pause == poll && !matches!(due, Ok(Due::Now)) && !wait.has_passed() => {}
                news => return news,
            }
        }
    }

    async fn news(&self, listener: &Listener, pause: Duration, wait: Deadline) -> News {
        let mut closed = self.inner.closed.subscribe();
        let news = async {
            tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => News::Closed,
                () = listener.called() => News::LookAgain,
                () = tokio::time::sleep(pause) => News::TimeCame,
            }
        };
        wait.limit(news).await.unwrap_or(News::TimeCame)
    }

    /// Hints: one for every change that could have made a message receivable, and one whenever a time comes at which
    /// one becomes due.
    pub(crate) fn wake_ups(&self, queue: &QueueName) -> WakeUps {
        let listener = self.listen(std::slice::from_ref(queue));
        let state = (self.clone(), queue.clone(), listener);
        WakeUps::new(stream::unfold(state, |(provider, queue, listener)| async move {
            match provider.hint(&listener, &queue).await {
                News::Closed => None,
                News::LookAgain | News::TimeCame => Some(((), (provider, queue, listener))),
            }
        }))
    }

    async fn hint(&self, listener: &Listener, queue: &QueueName) -> News {
        let poll = self.shared().options.poll_interval;
        loop {
            let pause = match self.shared().next_due(std::slice::from_ref(queue)).await {
                // Those who take hints have looked already; a hint for the same again would have them look for ever.
                Ok(Due::Now) | Err(_) => poll,
                Ok(Due::In(pause)) => pause.min(poll),
            };
            match self.news(listener, pause, Deadline::never()).await {
                News::TimeCame if pause == poll => {
                    if matches!(self.shared().next_due(std::slice::from_ref(queue)).await, Ok(Due::Now)) {
                        return News::LookAgain;
                    }
                }
                news => return news,
            }
        }
    }
}

/// What was done with one queue.
#[derive(Default)]
struct Taken {
    settled: RowResults<()>,
    messages: Vec<Claimed>,
    is_cut_short: bool,
}

impl Shared {
    /// Settles and claims from one queue in one transaction. What must die is buried then, and keys are put in order, and
    /// the claim goes on as long as that makes room.
    async fn settle_and_claim_one(
        &self,
        settlements: &[Settlement],
        queue: &QueueName,
        wanted: usize,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Taken, Undone> {
        let mut taken = Taken::default();
        let first = persist(|| self.settle_and_claim_once(settlements, queue, wanted, options, deadline)).await?;
        let (settled, mut round) = first;
        taken.settled = settled;
        for number in 1.. {
            let (claim, brought) = &mut round;
            taken.messages.append(&mut brought.messages);
            let more = match self.clear(claim, brought).await {
                Ok(more) => more,
                // What was settled and claimed before must be told.
                Err(_) if !settlements.is_empty() || !taken.messages.is_empty() => break,
                Err(error) => return Err(error),
            };
            let left = wanted - taken.messages.len().min(wanted);
            taken.is_cut_short = more && left > 0 && number == MOST_ROUNDS;
            if !more || left == 0 || taken.is_cut_short {
                break;
            }
            match persist(|| self.settle_and_claim_once(&[], queue, left, options, deadline)).await {
                Ok((_, next)) => round = next,
                Err(_) if !settlements.is_empty() || !taken.messages.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        if !taken.messages.is_empty() && options.visibility < self.options.poll_interval {
            // Others in this process may wait for something later than the end of these leases.
            self.wakes.tell([queue]);
        }
        Ok(taken)
    }

    /// Buries what must die and puts keys in order. Answers whether there may be more to claim now.
    async fn clear(&self, claim: &Claim, brought: &mut Brought) -> Result<bool, Undone> {
        let buried = self.bury(claim, brought).await?;
        if brought.has_unplaced {
            self.place(claim.queue()).await?;
        }
        Ok(buried > 0 || brought.has_unplaced)
    }

    async fn settle_and_claim_once(
        &self,
        settlements: &[Settlement],
        queue: &QueueName,
        wanted: usize,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<(RowResults<()>, (Claim, Brought)), Undone> {
        let mut settling = Settling::new(self, settlements);
        let claim = Claim::new(self, queue, wanted, options);
        let mut session = self.database.session("receive", deadline).await?;
        let sql = session.sql();
        let settles = !settling.is_empty();
        let mut answers = if settles {
            let mut steps = settling.carry_out(&mut session).await?;
            steps.push(claim.look(sql));
            session.query(steps.join(";\n")).await?
        } else {
            session.ask(claim.look(sql)).await?
        };
        let has_unplaced = answers.pop().and_then(|rows| Some(rows::flag(rows.first()?, 0))).unwrap_or(false);
        let take = claim.take(sql, &answers.pop().unwrap_or_default());
        let mut brought = Brought::default();
        if let Some(take) = take {
            let taken = if settles { session.query(take).await? } else { session.begin(take).await? };
            brought = claim.read(&taken);
            let leased = session.commit(claim.lease(sql, &brought)).await?;
            claim.add_dedup_keys(&mut brought, &leased);
        } else if settles {
            session.commit(String::new()).await?;
        }
        drop(session);
        brought.has_unplaced = has_unplaced && !queue.holds_dead_letters();
        let (settled, touched) = settling.finish();
        self.touch(&touched);
        Ok((settled, (claim, brought)))
    }

    /// When something in these queues can be received. Puts keys in order that others have left unplaced.
    async fn next_due(&self, queues: &[QueueName]) -> Result<Due, Undone> {
        let mut earliest = Duration::MAX;
        for queue in queues {
            let name = literal::bytes(queue.as_str().as_bytes());
            let sql = &self.database.sql;
            let probes = probes(&sql.next_due_probe, &[("queue", &name)]);
            let look = fill(&sql.next_due, &[("queue", &name), ("probes", &probes)]);
            let found = self.ask("receive", Deadline::default(), look).await?;
            let Some(row) = found.first() else { continue };
            if rows::flag(row, 1) && !queue.holds_dead_letters() {
                self.place(queue).await?;
                return Ok(Due::Now);
            }
            match rows::optional_number(row, 0) {
                Some(micros) if micros <= 0 => return Ok(Due::Now),
                Some(micros) => earliest = earliest.min(Duration::from_micros(micros.unsigned_abs())),
                None => {}
            }
        }
        Ok(Due::In(earliest))
    }
}

/// When something can be received.
enum Due {
    Now,
    In(Duration),
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    /// Something has changed.
    LookAgain,
    /// The time came that was waited for.
    TimeCame,
    Closed,
}
