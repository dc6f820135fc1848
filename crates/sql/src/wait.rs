//! Waiting for a message: registered first, then looked, then waited, so that nothing arrives unseen.

use std::time::Duration;

use futures_util::stream;
use postrider_core::{
    Deadline, MessagingError, QueueName, QueuedMessage, ReceiveOptions, RowResults, SettledAndReceived, Settlement,
    WakeUps,
};

use crate::provider::SqlProvider;
use crate::store::{Claimed, Due, SqlStore};
use crate::undone::{Undone, persist};
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

impl<S: SqlStore> SqlProvider<S> {
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
        if self.inner.under_way.is_closed() {
            // What is there is left to other connections.
            queues.clear();
        }
        let (store, options, deliver) = (self.store().clone(), options.clone(), self.deliver());
        let work = async move {
            let mut look = Look::default();
            let mut settlements = Some(settlements);
            for queue in &queues {
                let wanted = options.max - look.messages.len().min(options.max);
                if wanted == 0 {
                    break;
                }
                let settlements = settlements.take().unwrap_or_default();
                let taken = settle_and_claim_one(&store, &settlements, queue, wanted, &options, deadline).await;
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
                look.settled = store.settle(&settlements).await?;
            }
            Ok(look)
        };
        self.carry_out(operation, ids, deadline, work).await
    }

    fn listen(&self, queues: &[QueueName]) -> Listener {
        self.store().listen(queues);
        self.store().wakes().listen(queues)
    }

    /// Waits until a claim may find something, with one look at most for each piece of news and each poll interval.
    async fn something_due(
        &self,
        listener: &Listener,
        queues: &[QueueName],
        wait: Deadline,
        in_vain: &mut u32,
    ) -> News {
        let poll = self.store().poll_interval();
        loop {
            let look = next_due(self.store(), listener, queues);
            let (due, age) = match self.unless_over(wait, look).await {
                Ok(Ok((due, age))) => (Ok(due), age),
                Ok(Err(error)) => (Err(error), Duration::ZERO),
                Err(news) => return news,
            };
            let until_next = poll.saturating_sub(age);
            let pause = match due {
                Ok(Due::Now) => {
                    // Came between the claim and the look; or others have it in their hands, for a moment or for long.
                    let pause = in_vain.checked_sub(1).map_or(Duration::ZERO, |n| HELD_BY_OTHERS * 2u32.pow(n.min(10)));
                    *in_vain += 1;
                    pause.min(poll)
                }
                Ok(Due::In(pause)) => {
                    *in_vain = 0;
                    pause.min(until_next)
                }
                // The server is away. The wait goes on, and the claim will say so if it is away for longer.
                Err(_) => poll,
            };
            match self.news(listener, pause, wait).await {
                News::TimeCame if pause == until_next && !matches!(due, Ok(Due::Now)) && !wait.has_passed() => {}
                news => return news,
            }
        }
    }

    /// Carries a look out, unless the wait or the connection ends before it: a server that has fallen silent holds up
    /// neither.
    async fn unless_over<T>(&self, wait: Deadline, look: impl Future<Output = T>) -> Result<T, News> {
        let mut closed = self.inner.under_way.closing();
        let looked = async {
            tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => Err(News::Closed),
                looked = look => Ok(looked),
            }
        };
        wait.limit(looked).await.unwrap_or(Err(News::TimeCame))
    }

    async fn news(&self, listener: &Listener, pause: Duration, wait: Deadline) -> News {
        let mut closed = self.inner.under_way.closing();
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

    /// Hints for what a store keeps beside messages: one for whatever is told under one of these names, and one each time
    /// that `pause` has passed without any. They end with the connection.
    pub fn hints(&self, names: &[QueueName], pause: Option<Duration>) -> WakeUps {
        let state = (self.clone(), self.listen(names));
        // A timer of tokio's may not reach further than about two years.
        let pause = pause.unwrap_or(Duration::from_secs(3600 * 24 * 365));
        WakeUps::new(stream::unfold(state, move |(provider, listener)| async move {
            match provider.news(&listener, pause, Deadline::never()).await {
                News::Closed => None,
                News::LookAgain | News::TimeCame => Some(((), (provider, listener))),
            }
        }))
    }

    async fn hint(&self, listener: &Listener, queue: &QueueName) -> News {
        let poll = self.store().poll_interval();
        let queues = std::slice::from_ref(queue);
        loop {
            let look = next_due(self.store(), listener, queues);
            let (pause, until_next) = match self.unless_over(Deadline::never(), look).await {
                Err(news) => return news,
                // Those who take hints have looked already; a hint for the same again would have them look for ever.
                Ok(Ok((Due::Now, _)) | Err(_)) => (poll, poll),
                Ok(Ok((Due::In(pause), age))) => (pause.min(poll.saturating_sub(age)), poll.saturating_sub(age)),
            };
            match self.news(listener, pause, Deadline::never()).await {
                News::TimeCame if pause == until_next => {
                    if matches!(next_due(self.store(), listener, queues).await, Ok((Due::Now, _))) {
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
struct Done {
    settled: RowResults<()>,
    messages: Vec<Claimed>,
    is_cut_short: bool,
}

/// Settles and claims from one queue in one transaction. What must die is buried then, and keys are put in order, and the
/// claim goes on as long as that makes room.
async fn settle_and_claim_one<S: SqlStore>(
    store: &S,
    settlements: &[Settlement],
    queue: &QueueName,
    wanted: usize,
    options: &ReceiveOptions,
    deadline: Deadline,
) -> Result<Done, Undone> {
    let mut done = Done::default();
    let mut taken = persist(|| store.settle_and_claim(settlements, queue, wanted, options, deadline)).await?;
    done.settled = std::mem::take(&mut taken.settled);
    for number in 1.. {
        done.messages.append(&mut taken.messages);
        let more = match store.do_chores(queue, taken.chores).await {
            Ok(more) => more,
            // What was settled and claimed before must be told.
            Err(_) if !settlements.is_empty() || !done.messages.is_empty() => break,
            Err(error) => return Err(error),
        };
        let left = wanted - done.messages.len().min(wanted);
        done.is_cut_short = more && left > 0 && number == MOST_ROUNDS;
        if !more || left == 0 || done.is_cut_short {
            break;
        }
        match persist(|| store.settle_and_claim(&[], queue, left, options, deadline)).await {
            Ok(next) => taken = next,
            Err(_) if !settlements.is_empty() || !done.messages.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    if !done.messages.is_empty() && options.visibility < store.poll_interval() {
        // Others in this process may wait for something later than the end of these leases.
        store.wakes().tell([queue]);
    }
    Ok(done)
}

/// When something in any of these queues can be received, and how long ago that was seen.
async fn next_due<S: SqlStore>(
    store: &S,
    listener: &Listener,
    queues: &[QueueName],
) -> Result<(Due, Duration), Undone> {
    let (mut earliest, mut oldest) = (Duration::MAX, Duration::ZERO);
    for queue in queues {
        match listener.due(queue, store.poll_interval(), || store.next_due(queue)).await? {
            (Due::Now, _) => return Ok((Due::Now, Duration::ZERO)),
            (Due::In(pause), age) => {
                earliest = earliest.min(pause);
                oldest = oldest.max(age);
            }
        }
    }
    Ok((Due::In(earliest), oldest))
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    /// Something has changed.
    LookAgain,
    /// The time came that was waited for.
    TimeCame,
    Closed,
}
