//! Receives, and how they wait.
//!
//! One request waits for a minute at most, so a longer wait is several. Each of them is dropped when nobody wants its answer
//! any more, and the server takes back what it had leased for it.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{
    Deadline, MessagingError, QueueName, QueuedMessage, ReceiveOptions, RowResults, SettledAndReceived, Settlement,
};
use postrider_wire as wire;
use postrider_wire::Code;
use postrider_wire::receive::{LONGEST_WAIT, ReceiveRequest, Received, ReceivedMessages, SettleAndReceiveRequest};
use postrider_wire::settle::Rows;
use tokio::time::Instant;

use crate::failure::{Undone, told};
use crate::patience::Patience;
use crate::provider::HttpProvider;
use crate::transport::{Ask, MOST_ROWS, Transport};

/// A server that does not wait although it was asked to is not asked again before that long.
const PAUSE: Duration = Duration::from_millis(100);

/// So many queues a server looks at with one request.
pub(crate) const MOST_QUEUES: usize = 100;

/// How long those of many queues are waited for whose turn it is.
const TURN: Duration = Duration::from_secs(1);

/// A wait for messages of some queues.
struct Wait {
    transport: Arc<Transport>,
    queues: Vec<QueueName>,
    /// How many requests were answered with nothing. More queues than a request can name are asked for in turns.
    rounds: usize,
    options: ReceiveOptions,
    worker: String,
    patience: Patience,
}

impl Wait {
    /// How long the next request waits. All queues are looked at before some are waited for.
    fn wait(&self) -> Duration {
        let left = self.patience.left().min(LONGEST_WAIT);
        match self.queues.len().div_ceil(MOST_QUEUES) {
            0 | 1 => left,
            turns if self.rounds < turns => Duration::ZERO,
            _ => left.min(TURN),
        }
    }

    /// Whether some of the queues have not been looked at.
    fn is_looking(&self) -> bool {
        self.rounds < self.queues.len().div_ceil(MOST_QUEUES)
    }

    fn ask(&self, wait: Duration) -> Result<Ask, MessagingError> {
        let max = self.options.max.min(MOST_ROWS);
        let options = ReceiveOptions { max, ..self.options.clone() }.wait(wait);
        let turns = self.queues.len().div_ceil(MOST_QUEUES).max(1);
        let first = self.rounds % turns * MOST_QUEUES;
        let ask = match &self.queues[first..self.queues.len().min(first + MOST_QUEUES)] {
            [queue] => {
                let request = ReceiveRequest { worker: Some(self.worker.clone()), ..ReceiveRequest::from(&options) };
                Ask::post(format!("/v1/queues/{queue}/receive"), &request)?
            }
            queues => {
                let request = SettleAndReceiveRequest::new(queues.to_vec(), &options);
                Ask::post("/v1/receive", &SettleAndReceiveRequest { worker: Some(self.worker.clone()), ..request })?
            }
        };
        Ok(ask.waiting(wait))
    }

    /// Asks, and asks again, until there is something or nothing to wait for. A connection that ends in between is replaced
    /// once; what the server had leased for it goes back.
    async fn receive(mut self) -> Result<Vec<Received>, MessagingError> {
        let transport = self.transport.clone();
        let mut may_repeat = true;
        loop {
            let wait = self.wait();
            let (ask, asked) = (self.ask(wait)?, Instant::now());
            let answer = transport.change::<wire::receive::SettledAndReceived>(ask);
            let Some(answer) = self.patience.unless_unwanted(answer).await else { return Ok(Vec::new()) };
            let answer = match answer {
                Err(undone) if undone.is_cut() && may_repeat => {
                    may_repeat = false;
                    continue;
                }
                answer => answer.map_err(|undone| undone.into_look_error("receive"))?,
            };
            may_repeat = true;
            if let Some(problem) = answer.receive_problem {
                return Err(told(*problem));
            }
            self.rounds += 1;
            if !answer.messages.is_empty() || (self.patience.left().is_zero() && !self.is_looking()) {
                return Ok(answer.messages);
            }
            // It may be stopping; whatever it is, it shall not be asked in a hot loop.
            let early = wait.saturating_sub(asked.elapsed()).min(PAUSE);
            if self.patience.unless_unwanted(tokio::time::sleep(early)).await.is_none() {
                return Ok(Vec::new());
            }
        }
    }
}

impl HttpProvider {
    /// Receives from one or several queues, apart from its caller.
    pub(crate) async fn wait_for(
        &self,
        queues: Vec<QueueName>,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let (caller, patience) = Patience::new(options.wait, deadline, self.inner.under_way.closing());
        let wait = Wait {
            transport: self.transport().clone(),
            queues,
            rounds: 0,
            options: options.clone(),
            worker: self.inner.store.shared.worker.clone(),
            patience,
        };
        let deliver = self.deliver();
        // Delivered there and not by the caller, who may have left: what nobody takes is dropped, and so given back.
        let receive = async move { wait.receive().await.map(deliver) };
        let received = self.carry_out("receive", Vec::new(), deadline, receive).await;
        drop(caller);
        received
    }

    /// Asks for one message.
    pub(crate) async fn receive_one(
        &self,
        queue: &QueueName,
        id: postrider_core::MessageId,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<QueuedMessage>, MessagingError> {
        let options = options.clone().wait(Duration::ZERO);
        let worker = Some(self.inner.store.shared.worker.clone());
        let request = ReceiveRequest { id: Some(id), worker, ..ReceiveRequest::from(&options) };
        let ask = Ask::post(format!("/v1/queues/{queue}/receive"), &request)?;
        let (transport, deliver) = (self.transport().clone(), self.deliver());
        let receive = async move {
            let answer: ReceivedMessages = transport.look("receive", ask).await?;
            Ok(deliver(answer.messages).into_iter().next())
        };
        self.carry_out("receive", Vec::new(), deadline, receive).await
    }

    /// Settles and looks in one request. It does not wait there: settlements whose answer hung on the arrival of a message
    /// would be in doubt whenever the wait is given up. What is to be waited for is asked for afterwards.
    pub(crate) async fn settle_and_look(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let ids: Vec<_> = settlements.iter().map(|row| row.receipt.message_id()).collect();
        let request = SettleAndReceiveRequest {
            settlements: settlements.iter().map(Into::into).collect(),
            worker: Some(self.inner.store.shared.worker.clone()),
            ..SettleAndReceiveRequest::new(queues.to_vec(), &options.clone().wait(Duration::ZERO))
        };
        let ask = Ask::post("/v1/receive", &request)?;
        let (transport, deliver, known) = (self.transport().clone(), self.deliver(), ids.clone());
        let work = async move {
            let unknown = |undone: Undone| undone.into_error("settle", known.clone());
            let answer = match transport.change::<wire::receive::SettledAndReceived>(ask).await {
                Err(undone) if undone.code() == Some(Code::PayloadTooLarge) => return Ok(None),
                answer => answer.map_err(unknown)?,
            };
            let rows = Rows { results: answer.settled };
            let settled = transport.settled(rows, "settle", known.iter().copied()).map_err(unknown)?;
            let received = match answer.receive_problem {
                Some(problem) => Err(told(*problem)),
                None => Ok(deliver(answer.messages)),
            };
            Ok(Some(SettledAndReceived { settled, received }))
        };
        let mut done = match self.carry_out("settle", ids, deadline, work).await? {
            Some(done) => done,
            // Too much for one request. By themselves settlements go in as many as it takes.
            None => {
                let settled = self.inner.coalescer.settle(settlements, deadline).await?;
                let room = options.max.saturating_sub(still_leased(&settled));
                let at_once = ReceiveOptions { max: room, ..options.clone() }.wait(Duration::ZERO);
                let received = match room {
                    0 => Ok(Vec::new()),
                    _ => self.wait_for(queues.to_vec(), &at_once, deadline).await,
                };
                SettledAndReceived { settled, received }
            }
        };
        let is_empty = done.received.as_ref().is_ok_and(Vec::is_empty);
        let room = options.max.saturating_sub(still_leased(&done.settled));
        if is_empty && !options.wait.is_zero() && room > 0 {
            let options = ReceiveOptions { max: room, ..options.clone() };
            done.received = self.wait_for(queues.to_vec(), &options, deadline).await;
        }
        Ok(done)
    }
}

/// How many settlements may have left their leases as they were.
fn still_leased(rows: &RowResults<()>) -> usize {
    let is_leased =
        |error: &MessagingError| error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. });
    rows.iter().filter(|row| row.as_ref().is_err_and(is_leased)).count()
}
