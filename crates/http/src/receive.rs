//! Receiving, and waiting for messages.
//!
//! One request waits for at most a minute, so a longer wait takes several. A request is dropped when its caller is gone or
//! the connection closes, and the server then releases what it leased for it.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{
    Deadline, MessagingError, QueueName, QueuedMessage, ReceiveOptions, RowResults, SettledAndReceived, Settlement,
};
use postrider_provider::Patience;
use postrider_wire as wire;
use postrider_wire::Code;
use postrider_wire::receive::{LONGEST_WAIT, ReceiveRequest, Received, ReceivedMessages, SettleAndReceiveRequest};
use postrider_wire::settle::Rows;
use tokio::time::Instant;

use crate::failure::{Failure, problem_error};
use crate::provider::HttpProvider;
use crate::transport::{MAX_ROWS, Request, Transport};

/// Minimum interval between requests, for a server that does not wait as requested.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Upper bound of the time before a deadline that is reserved for the answer.
const ANSWER_TIME: Duration = Duration::from_millis(250);

/// Upper bound of the queues of one request.
pub(crate) const MAX_QUEUES: usize = 100;

/// Wait of one request when the queues take several requests.
const GROUP_WAIT: Duration = Duration::from_secs(1);

/// A wait for messages of some queues.
struct Wait {
    transport: Arc<Transport>,
    queues: Vec<QueueName>,
    /// Number of empty answers. Queues that do not fit into one request are requested in groups, one after the other.
    rounds: usize,
    options: ReceiveOptions,
    worker: String,
    patience: Patience,
}

impl Wait {
    /// The wait of the next request. Requests wait only after each group was requested once.
    fn wait(&self) -> Duration {
        let left = self.patience.left().min(LONGEST_WAIT);
        match self.queues.len().div_ceil(MAX_QUEUES) {
            0 | 1 => left,
            groups if self.rounds < groups => Duration::ZERO,
            _ => left.min(GROUP_WAIT),
        }
    }

    /// Whether some groups have not been requested yet.
    fn is_first_round(&self) -> bool {
        self.rounds < self.queues.len().div_ceil(MAX_QUEUES)
    }

    fn request(&self, wait: Duration) -> Result<Request, MessagingError> {
        let max = self.options.max.min(MAX_ROWS);
        let options = ReceiveOptions { max, ..self.options.clone() }.wait(wait);
        let groups = self.queues.len().div_ceil(MAX_QUEUES).max(1);
        let first = self.rounds % groups * MAX_QUEUES;
        let request = match &self.queues[first..self.queues.len().min(first + MAX_QUEUES)] {
            [queue] => {
                let request = ReceiveRequest { worker: Some(self.worker.clone()), ..ReceiveRequest::from(&options) };
                Request::post(format!("/v1/queues/{queue}/receive"), &request)?
            }
            queues => {
                let request = SettleAndReceiveRequest::new(queues.to_vec(), &options);
                Request::post("/v1/receive", &SettleAndReceiveRequest { worker: Some(self.worker.clone()), ..request })?
            }
        };
        Ok(request.waiting(wait))
    }

    /// Sends requests until there is a message or the wait is over. A lost connection is replaced once; the server releases
    /// what it leased for the lost answer.
    async fn receive(mut self) -> Result<Vec<Received>, MessagingError> {
        let transport = self.transport.clone();
        let mut may_repeat = true;
        loop {
            let wait = self.wait();
            let (request, sent_at) = (self.request(wait)?, Instant::now());
            let answer = transport.call_once::<wire::receive::SettledAndReceived>(request);
            let Some(answer) = self.patience.unless_in_vain(answer).await else { return Ok(Vec::new()) };
            let answer = match answer {
                Err(failure) if failure.is_disconnected() && may_repeat => {
                    may_repeat = false;
                    continue;
                }
                answer => answer.map_err(|failure| failure.into_read_error("receive"))?,
            };
            may_repeat = true;
            if let Some(problem) = answer.receive_problem {
                return Err(problem_error(*problem));
            }
            self.rounds += 1;
            if !answer.messages.is_empty() || (self.patience.left().is_zero() && !self.is_first_round()) {
                return Ok(answer.messages);
            }
            // The server answered early, for example because it is stopping: no busy loop.
            let early = wait.saturating_sub(sent_at.elapsed()).min(MIN_INTERVAL);
            if self.patience.unless_in_vain(tokio::time::sleep(early)).await.is_none() {
                return Ok(Vec::new());
            }
        }
    }
}

impl HttpProvider {
    /// Receives from one or several queues, independently of its caller.
    pub(crate) async fn receive_from(
        &self,
        queues: Vec<QueueName>,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Vec<QueuedMessage>, MessagingError> {
        let wait = match deadline.remaining() {
            Some(left) => options.wait.min(left - (left / 2).min(ANSWER_TIME)),
            None => options.wait,
        };
        let (caller, patience) = Patience::new(wait, deadline, self.inner.under_way.closing());
        let wait = Wait {
            transport: self.transport().clone(),
            queues,
            rounds: 0,
            options: options.clone(),
            worker: self.inner.store.shared.worker.clone(),
            patience,
        };
        let deliver = self.deliver();
        // Delivered inside the task: if the caller is gone, the messages are dropped and so returned.
        let receive = async move { wait.receive().await.map(deliver) };
        let received = self.carry_out("receive", Vec::new(), deadline, receive).await;
        drop(caller);
        received
    }

    /// Receives one message by id.
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
        let request = Request::post(format!("/v1/queues/{queue}/receive"), &request)?;
        let (transport, deliver) = (self.transport().clone(), self.deliver());
        let receive = async move {
            let answer: ReceivedMessages = transport.call("receive", request).await?;
            Ok(deliver(answer.messages).into_iter().next())
        };
        self.carry_out("receive", Vec::new(), deadline, receive).await
    }

    /// Settles and receives in one request. That request does not wait: if it were canceled, the outcome of the settlements
    /// would be unknown. A second request waits for messages.
    pub(crate) async fn settle_and_receive_now(
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
        let request = Request::post("/v1/receive", &request)?;
        let (transport, deliver, known) = (self.transport().clone(), self.deliver(), ids.clone());
        let work = async move {
            let settle_error = |failure: Failure| failure.into_error("settle", known.clone());
            let answer = match transport.call_once::<wire::receive::SettledAndReceived>(request).await {
                Err(failure) if failure.code() == Some(Code::PayloadTooLarge) => return Ok(None),
                answer => answer.map_err(settle_error)?,
            };
            let rows = Rows { results: answer.settled };
            let settled = transport.settled(rows, "settle", known.iter().copied()).map_err(settle_error)?;
            let received = match answer.receive_problem {
                Some(problem) => Err(problem_error(*problem)),
                None => Ok(deliver(answer.messages)),
            };
            Ok(Some(SettledAndReceived { settled, received }))
        };
        let mut result = match self.carry_out("settle", ids, deadline, work).await? {
            Some(result) => result,
            // Too large for one request: the coalescer splits the settlements.
            None => {
                let settled = self.inner.coalescer.settle(settlements, deadline).await?;
                let room = options.max.saturating_sub(still_leased(&settled));
                let at_once = ReceiveOptions { max: room, ..options.clone() }.wait(Duration::ZERO);
                let received = match room {
                    0 => Ok(Vec::new()),
                    _ => self.receive_from(queues.to_vec(), &at_once, deadline).await,
                };
                SettledAndReceived { settled, received }
            }
        };
        let is_empty = result.received.as_ref().is_ok_and(Vec::is_empty);
        let room = options.max.saturating_sub(still_leased(&result.settled));
        if is_empty && !options.wait.is_zero() && room > 0 {
            let options = ReceiveOptions { max: room, ..options.clone() };
            result.received = self.receive_from(queues.to_vec(), &options, deadline).await;
        }
        Ok(result)
    }
}

/// Number of failed settlements whose messages may still be leased.
fn still_leased(rows: &RowResults<()>) -> usize {
    let is_leased =
        |error: &MessagingError| error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. });
    rows.iter().filter(|row| row.as_ref().is_err_and(is_leased)).count()
}
