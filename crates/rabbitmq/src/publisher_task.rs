//! The task behind a publisher: sends on one channel with confirms, and answers each request.
//!
//! lapin attaches a returned message to the next confirm that completes, which may be the confirm of another message:
//! taken literally, an unroutable message would count as stored. Two facts are certain, because the broker returns a
//! message before it confirms it, and lapin completes confirms one after the other:
//!
//! - if a confirm carries no returned message, then its own message, if it was returned, is attached to a confirm that
//!   completed earlier. A second pass over all confirms after this one sees that confirm too;
//! - once every confirm has completed, every returned message is attached to one of them.
//!
//! So no request is answered before a second pass. While nothing was returned, that is all. Once a message was returned,
//! nothing more is sent and nothing is answered until every confirm has completed; then the returned messages are
//! identified by id and routing key.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation};
use postrider_core::MessagingError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::connection::ANSWER_TIMEOUT;
use crate::error::{PRECONDITION_FAILED, code, failed, no_answer, words};
use crate::publish::{Outgoing, Published};

/// Maximum number of unconfirmed messages.
const WINDOW: usize = 256;
/// Maximum number of unconfirmed bytes, unless one message is larger.
const WINDOW_BYTES: usize = 8 * 1024 * 1024;

/// Messages to send, and where their outcomes go.
#[derive(Debug)]
pub(crate) struct PublishRequest {
    pub(crate) messages: Vec<Outgoing>,
    pub(crate) answer: oneshot::Sender<Vec<Published>>,
}

/// Identifies a returned message: its routing key and its id.
type ReturnKey = (String, Option<String>);

/// The outcome of a confirm, and the returned message attached to it, which may be another message.
type Confirmed = (Published, Option<ReturnKey>);

type Sending = Pin<Box<dyn Future<Output = Result<Confirmed, MessagingError>> + Send>>;

/// Sends a message when its future is first polled.
type Publish = Box<dyn Fn(Outgoing) -> Sending + Send>;

/// A message that was sent and is not confirmed yet.
struct Unconfirmed {
    sending: Sending,
    /// Records that `sending` should be polled again.
    waker: Arc<ConfirmWaker>,
    begun: Instant,
    bytes: usize,
    row: RequestRow,
}

/// Set when a message's confirm completes, and before the next confirm completes: a task that saw a later confirm sees
/// this one too.
#[derive(Debug)]
struct ConfirmWaker {
    is_set: AtomicBool,
    task: Waker,
}

impl Wake for ConfirmWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The first wake-up is enough.
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.task.wake_by_ref();
        }
    }
}

/// The request that a message belongs to.
struct RequestRow {
    request: u64,
    index: usize,
    return_key: ReturnKey,
}

/// A request that is not answered yet.
struct PendingRequest {
    outcomes: Vec<Published>,
    missing: usize,
    answer: oneshot::Sender<Vec<Published>>,
}

/// Sends the messages of all requests on one channel.
pub(crate) struct PublisherTask {
    publish: Publish,
    requests: mpsc::UnboundedReceiver<PublishRequest>,
    /// Accepted and not sent yet.
    accepted: VecDeque<(u64, usize, Outgoing)>,
    unconfirmed: Vec<Unconfirmed>,
    unconfirmed_bytes: usize,
    pending: HashMap<u64, PendingRequest>,
    count: u64,
    /// Returned since everything was last confirmed.
    returned: HashSet<ReturnKey>,
    /// Confirmed since then, and not answered yet.
    held: Vec<(RequestRow, Published)>,
    /// Why the channel cannot be used any more.
    failure: Option<MessagingError>,
    /// Not confirmed when the channel ended.
    failed: Vec<RequestRow>,
    ticks: Interval,
}

impl PublisherTask {
    /// A publisher task on a channel in confirm mode.
    pub(crate) fn new(channel: Channel, requests: mpsc::UnboundedReceiver<PublishRequest>) -> Self {
        let channel = Arc::new(channel);
        Self::with(Box::new(move |message| Box::pin(publish(channel.clone(), message))), requests)
    }

    fn with(publish: Publish, requests: mpsc::UnboundedReceiver<PublishRequest>) -> Self {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            publish,
            requests,
            accepted: VecDeque::new(),
            unconfirmed: Vec::new(),
            unconfirmed_bytes: 0,
            pending: HashMap::new(),
            count: 0,
            returned: HashSet::new(),
            held: Vec::new(),
            failure: None,
            failed: Vec::new(),
            ticks,
        }
    }

    /// Runs until every publisher handle is dropped and every request is answered, or until the channel ends.
    pub(crate) async fn run(mut self) {
        std::future::poll_fn(|now| self.poll(now)).await;
    }

    fn poll(&mut self, now: &mut Context<'_>) -> Poll<()> {
        loop {
            let is_closed = self.send_next(now);
            let has_confirms = self.collect_confirms();
            if let Some(error) = self.failure.take() {
                self.end(&error);
                return Poll::Ready(());
            }
            // Confirms made room for more messages, or more confirms completed meanwhile.
            if has_confirms {
                continue;
            }
            if self.unconfirmed.is_empty() {
                return if is_closed { Poll::Ready(()) } else { Poll::Pending };
            }
            if self.ticks.poll_tick(now).is_pending() {
                return Poll::Pending;
            }
            if self.unconfirmed.iter().any(|unconfirmed| unconfirmed.begun.elapsed() > ANSWER_TIMEOUT) {
                self.failure = Some(no_answer("send"));
            }
        }
    }

    fn has_room(&self) -> bool {
        self.returned.is_empty() && self.unconfirmed.len() < WINDOW && self.unconfirmed_bytes < WINDOW_BYTES
    }

    /// Sends as many messages as the window allows. Returns whether all publisher handles are dropped.
    fn send_next(&mut self, now: &mut Context<'_>) -> bool {
        while self.has_room() {
            if let Some((request, index, message)) = self.accepted.pop_front() {
                self.send(request, index, message, now);
                continue;
            }
            match self.requests.poll_recv(now) {
                Poll::Ready(Some(request)) => self.accept(request),
                Poll::Ready(None) => return true,
                Poll::Pending => return false,
            }
        }
        false
    }

    fn accept(&mut self, PublishRequest { messages, answer }: PublishRequest) {
        if messages.is_empty() {
            let _ = answer.send(Vec::new());
            return;
        }
        self.count += 1;
        let missing = messages.len();
        self.pending.insert(self.count, PendingRequest { outcomes: vec![Published::Stored; missing], missing, answer });
        let request = self.count;
        self.accepted.extend(messages.into_iter().enumerate().map(|(index, message)| (request, index, message)));
    }

    fn send(&mut self, request: u64, index: usize, message: Outgoing, now: &mut Context<'_>) {
        let return_key = return_key(&message.routing_key, &message.properties);
        let bytes = message.body.len();
        let mut sending = (self.publish)(message);
        let waker = Arc::new(ConfirmWaker { is_set: AtomicBool::new(false), task: now.waker().clone() });
        // The first poll sends the message, so messages go out in the order of the first polls.
        if let Poll::Ready(confirmed) = sending.as_mut().poll(&mut Context::from_waker(&waker.clone().into())) {
            sending = Box::pin(std::future::ready(confirmed));
            waker.is_set.store(true, Ordering::Release);
        }
        self.unconfirmed_bytes += bytes;
        self.unconfirmed.push(Unconfirmed {
            sending,
            waker,
            begun: Instant::now(),
            bytes,
            row: RequestRow { request, index, return_key },
        });
    }

    /// Answers the requests whose outcomes are certain. Returns whether a confirm has completed.
    fn collect_confirms(&mut self) -> bool {
        let mut seen = self.poll_confirms();
        let has_confirms = !seen.is_empty();
        while !seen.is_empty() {
            let later = self.poll_confirms();
            match self.returned.is_empty() {
                true => seen.into_iter().for_each(|(row, outcome)| self.answer(row, outcome)),
                false => self.held.append(&mut seen),
            }
            seen = later;
        }
        if self.unconfirmed.is_empty() && self.failure.is_none() {
            self.answer_held();
        }
        has_confirms
    }

    /// Returns what was confirmed since the last pass.
    fn poll_confirms(&mut self) -> Vec<(RequestRow, Published)> {
        let mut seen = Vec::new();
        let mut index = 0;
        while let Some(unconfirmed) = self.unconfirmed.get_mut(index) {
            // Reset before the poll, so that a completion after the poll is not missed.
            if !unconfirmed.waker.is_set.load(Ordering::Relaxed)
                || !unconfirmed.waker.is_set.swap(false, Ordering::AcqRel)
            {
                index += 1;
                continue;
            }
            let waker = unconfirmed.waker.clone().into();
            let Poll::Ready(confirmed) = unconfirmed.sending.as_mut().poll(&mut Context::from_waker(&waker)) else {
                index += 1;
                continue;
            };
            let Unconfirmed { bytes, row, .. } = self.unconfirmed.swap_remove(index);
            self.unconfirmed_bytes -= bytes;
            match confirmed {
                Ok((outcome, back)) => {
                    self.returned.extend(back);
                    seen.push((row, outcome));
                }
                Err(error) => {
                    self.failure = Some(error);
                    self.failed.push(row);
                }
            }
        }
        seen
    }

    /// Answers the held messages: everything is confirmed, so every returned message is known.
    fn answer_held(&mut self) {
        for (row, outcome) in std::mem::take(&mut self.held) {
            // Two sends of the same message have the same route, so they have the same outcome.
            let is_returned = self.returned.contains(&row.return_key);
            self.answer(row, if is_returned { Published::Unroutable } else { outcome });
        }
        self.returned.clear();
    }

    /// Answers every request after the channel has failed. A message confirmed while another one was returned may itself
    /// be a returned message that was not seen yet.
    fn end(&mut self, error: &MessagingError) {
        let held = std::mem::take(&mut self.held).into_iter().map(|(row, _)| row);
        let unconfirmed = std::mem::take(&mut self.unconfirmed).into_iter().map(|unconfirmed| unconfirmed.row);
        let failed = std::mem::take(&mut self.failed);
        let all: Vec<_> = held.chain(unconfirmed).chain(failed).collect();
        // With several unconfirmed messages it is unknown which one the broker refused.
        let is_alone = all.len() == 1;
        for row in all {
            let is_returned = self.returned.contains(&row.return_key);
            let outcome = match error {
                _ if is_returned => Published::Unroutable,
                MessagingError::InvalidInput { .. } if is_alone => Published::NotSent(error.clone()),
                _ => Published::Unknown(error.clone()),
            };
            self.answer(row, outcome);
        }
        let not_sent = match error {
            MessagingError::InvalidInput { .. } => {
                MessagingError::busy("the broker closed the channel because of another message; send this one again")
            }
            error => error.clone(),
        };
        self.requests.close();
        while let Ok(request) = self.requests.try_recv() {
            self.accept(request);
        }
        for (request, index, message) in std::mem::take(&mut self.accepted) {
            let row = RequestRow { request, index, return_key: return_key(&message.routing_key, &message.properties) };
            self.answer(row, Published::NotSent(not_sent.clone()));
        }
    }

    fn answer(&mut self, RequestRow { request, index, .. }: RequestRow, outcome: Published) {
        let Entry::Occupied(mut entry) = self.pending.entry(request) else { return };
        let pending = entry.get_mut();
        pending.outcomes[index] = outcome;
        pending.missing -= 1;
        if pending.missing == 0 {
            let PendingRequest { outcomes, answer, .. } = entry.remove();
            // The caller may have stopped waiting.
            let _ = answer.send(outcomes);
        }
    }
}

async fn publish(channel: Arc<Channel>, message: Outgoing) -> Result<Confirmed, MessagingError> {
    let Outgoing { exchange, routing_key, properties, body } = message;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let sent = channel.basic_publish(exchange.into(), routing_key.into(), options, &body, properties).await;
    let (outcome, back) = match sent.map_err(refused)?.await {
        Ok(Confirmation::Ack(back)) => (Published::Stored, back),
        Ok(Confirmation::Nack(back)) => (Published::Refused, back),
        // Cannot happen: the channel is in confirm mode.
        Ok(Confirmation::NotRequested) => return Err(no_answer("send")),
        Err(error) => return Err(refused(error)),
    };
    Ok((outcome, back.map(|back| return_key(&back.routing_key, &back.properties))))
}

/// Why a message was not confirmed. The broker refuses a message itself with this code only.
fn refused(error: lapin::Error) -> MessagingError {
    match code(&error) {
        Some(PRECONDITION_FAILED) => {
            MessagingError::invalid("message", format!("the broker does not accept it: {}", words(&error)))
        }
        _ => failed("send", error),
    }
}

fn return_key(routing_key: impl ToString, properties: &BasicProperties) -> ReturnKey {
    (routing_key.to_string(), properties.message_id().as_ref().map(ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A publisher task whose confirms the test completes, in any order.
    struct ManualConfirms {
        requests: Option<mpsc::UnboundedSender<PublishRequest>>,
        sent: mpsc::UnboundedReceiver<(String, oneshot::Sender<Result<Confirmed, MessagingError>>)>,
        task: tokio::task::JoinHandle<()>,
    }

    impl ManualConfirms {
        fn new() -> Self {
            let (tell, sent) = mpsc::unbounded_channel();
            let (requests, receiver) = mpsc::unbounded_channel();
            let send = move |message: Outgoing| -> Sending {
                let (confirm, confirmed) = oneshot::channel();
                tell.send((message.routing_key, confirm)).unwrap();
                Box::pin(async move { confirmed.await.unwrap_or_else(|_| Err(no_answer("send"))) })
            };
            Self {
                requests: Some(requests),
                sent,
                task: tokio::spawn(PublisherTask::with(Box::new(send), receiver).run()),
            }
        }

        fn request(&self, messages: Vec<Outgoing>) -> oneshot::Receiver<Vec<Published>> {
            let (answer, outcomes) = oneshot::channel();
            self.requests.as_ref().unwrap().send(PublishRequest { messages, answer }).unwrap();
            outcomes
        }

        async fn send_one(
            &mut self,
            key: &str,
        ) -> (oneshot::Receiver<Vec<Published>>, oneshot::Sender<Result<Confirmed, MessagingError>>) {
            let outcomes = self.request(vec![message(key, 1)]);
            let (sent, confirm) = self.sent.recv().await.unwrap();
            assert_eq!(sent, key);
            (outcomes, confirm)
        }
    }

    fn message(key: &str, size: usize) -> Outgoing {
        let body = bytes::Bytes::from(vec![0; size]);
        Outgoing { exchange: String::new(), routing_key: key.to_owned(), properties: BasicProperties::default(), body }
    }

    fn returned(key: &str) -> Option<ReturnKey> {
        Some((key.to_owned(), None))
    }

    /// Lets the publisher task run until it waits.
    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    fn outcome(outcomes: &mut oneshot::Receiver<Vec<Published>>) -> Option<String> {
        outcomes.try_recv().ok().map(|outcomes| format!("{:?}", outcomes[0]))
    }

    #[tokio::test]
    async fn a_confirm_is_answered_while_others_are_open() {
        let mut publisher = ManualConfirms::new();
        let ((mut a, _of_a), (mut b, confirm)) = (publisher.send_one("a").await, publisher.send_one("b").await);
        confirm.send(Ok((Published::Stored, None))).unwrap();
        settle().await;
        assert_eq!((outcome(&mut a), outcome(&mut b)), (None, Some("Stored".to_owned())));
    }

    #[tokio::test]
    async fn a_message_returned_with_another_confirm_is_reported_as_unroutable() {
        let mut publisher = ManualConfirms::new();
        let ((mut a, of_a), (mut b, of_b)) = (publisher.send_one("a").await, publisher.send_one("b").await);
        // Completed in this order, and seen in one pass.
        of_a.send(Ok((Published::Stored, returned("b")))).unwrap();
        of_b.send(Ok((Published::Stored, None))).unwrap();
        settle().await;
        assert_eq!((outcome(&mut a), outcome(&mut b)), (Some("Stored".to_owned()), Some("Unroutable".to_owned())));
    }

    #[tokio::test]
    async fn a_message_returned_with_a_confirm_polled_just_before_is_seen_in_time() {
        let (requests, receiver) = mpsc::unbounded_channel();
        let (of_a, a_confirmed) = oneshot::channel();
        let (of_b, mut b_confirmed) = oneshot::channel::<()>();
        let (mut of_a, mut a_confirmed) = (Some(of_a), Some(a_confirmed));
        // Both complete between the poll of the first and the poll of the second, the first one first.
        let mut second = Some(async move {
            std::future::poll_fn(|now| Pin::new(&mut b_confirmed).poll(now)).await.unwrap();
            of_a.take().unwrap().send(Ok((Published::Stored, returned("b")))).unwrap();
            Ok((Published::Stored, None))
        });
        let cell = std::sync::Mutex::new(move |key: &str| -> Sending {
            match key {
                "a" => {
                    let confirmed = a_confirmed.take().unwrap();
                    Box::pin(async move { confirmed.await.unwrap() })
                }
                _ => Box::pin(second.take().unwrap()),
            }
        });
        let publish = move |message: Outgoing| cell.lock().unwrap()(&message.routing_key);
        tokio::spawn(PublisherTask::with(Box::new(publish), receiver).run());
        let [a, b] = ["a", "b"].map(|key| {
            let (answer, outcomes) = oneshot::channel();
            requests.send(PublishRequest { messages: vec![message(key, 1)], answer }).unwrap();
            outcomes
        });
        settle().await;
        of_b.send(()).unwrap();
        assert!(matches!(b.await.unwrap()[..], [Published::Unroutable]));
        assert!(matches!(a.await.unwrap()[..], [Published::Stored]));
    }

    #[tokio::test]
    async fn after_a_returned_message_no_request_is_answered_before_everything_is_confirmed() {
        let mut publisher = ManualConfirms::new();
        let ((mut a, of_a), (mut b, of_b), (mut c, of_c)) =
            (publisher.send_one("a").await, publisher.send_one("b").await, publisher.send_one("c").await);
        // All three are returned; the last is confirmed first and carries the message returned first.
        of_c.send(Ok((Published::Stored, returned("a")))).unwrap();
        settle().await;
        let later = publisher.request(vec![message("later", 1)]);
        settle().await;
        assert!(publisher.sent.try_recv().is_err(), "nothing is sent meanwhile");
        of_b.send(Ok((Published::Stored, returned("b")))).unwrap();
        settle().await;
        assert_eq!((outcome(&mut a), outcome(&mut b), outcome(&mut c)), (None, None, None));
        of_a.send(Ok((Published::Stored, returned("c")))).unwrap();
        settle().await;
        for mut outcomes in [a, b, c] {
            assert_eq!(outcome(&mut outcomes).as_deref(), Some("Unroutable"));
        }
        let (key, confirm) = publisher.sent.recv().await.unwrap();
        assert_eq!(key, "later");
        confirm.send(Ok((Published::Stored, None))).unwrap();
        assert!(matches!(later.await.unwrap()[..], [Published::Stored]));
    }

    #[tokio::test]
    async fn a_confirm_beside_a_returned_message_is_unknown_when_the_channel_ends() {
        let mut publisher = ManualConfirms::new();
        let ((a, of_a), (b, of_b)) = (publisher.send_one("a").await, publisher.send_one("b").await);
        of_b.send(Ok((Published::Stored, returned("a")))).unwrap();
        settle().await;
        // Not sent yet, because nothing is sent after a returned message.
        let c = publisher.request(vec![message("c", 1)]);
        settle().await;
        of_a.send(Err(no_answer("send"))).unwrap();
        assert!(matches!(a.await.unwrap()[..], [Published::Unroutable]));
        assert!(matches!(b.await.unwrap()[..], [Published::Unknown(_)]));
        assert!(matches!(c.await.unwrap()[..], [Published::NotSent(_)]));
        publisher.task.await.unwrap();
    }

    #[tokio::test]
    async fn a_refused_message_is_named_if_it_was_the_only_unconfirmed_one() {
        let refused = || MessagingError::invalid("message", "too large");
        let mut publisher = ManualConfirms::new();
        let (a, of_a) = publisher.send_one("a").await;
        of_a.send(Err(refused())).unwrap();
        assert!(matches!(a.await.unwrap()[..], [Published::NotSent(MessagingError::InvalidInput { .. })]));

        let mut publisher = ManualConfirms::new();
        let mut many = publisher.request((0..WINDOW + 1).map(|n| message(&n.to_string(), 1)).collect());
        settle().await;
        let mut confirms: Vec<_> = std::iter::from_fn(|| publisher.sent.try_recv().ok()).collect();
        confirms.pop().unwrap().1.send(Err(refused())).unwrap();
        let mut outcomes = (&mut many).await.unwrap();
        assert!(
            matches!(outcomes.pop(), Some(Published::NotSent(MessagingError::Busy { .. }))),
            "it was not sent, and can be sent again"
        );
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Published::Unknown(_))), "it may be any of them");
    }

    #[tokio::test]
    async fn unconfirmed_messages_never_exceed_the_window() {
        let mut publisher = ManualConfirms::new();
        let outcomes = publisher.request((0..WINDOW + 1).map(|n| message(&n.to_string(), 1)).collect());
        settle().await;
        let mut confirms: VecDeque<_> = std::iter::from_fn(|| publisher.sent.try_recv().ok()).collect();
        assert_eq!(confirms.len(), WINDOW);
        confirms.pop_front().unwrap().1.send(Ok((Published::Stored, None))).unwrap();
        confirms.push_back(publisher.sent.recv().await.unwrap());
        for (_, confirm) in confirms {
            confirm.send(Ok((Published::Stored, None))).unwrap();
        }
        assert_eq!(outcomes.await.unwrap().len(), WINDOW + 1);

        let large = || message("large", WINDOW_BYTES);
        let _outcomes = publisher.request(vec![large(), large()]);
        settle().await;
        let (_, confirm) = publisher.sent.recv().await.unwrap();
        assert!(publisher.sent.try_recv().is_err());
        confirm.send(Ok((Published::Stored, None))).unwrap();
        assert!(publisher.sent.recv().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_does_not_answer_leaves_outcomes_unknown() {
        let mut publisher = ManualConfirms::new();
        let (outcomes, _confirm) = publisher.send_one("a").await;
        assert!(matches!(outcomes.await.unwrap()[..], [Published::Unknown(_)]));
    }

    #[tokio::test]
    async fn the_task_ends_when_all_handles_are_dropped_and_everything_is_answered() {
        let mut publisher = ManualConfirms::new();
        let (outcomes, confirm) = publisher.send_one("a").await;
        publisher.requests = None;
        settle().await;
        assert!(!publisher.task.is_finished());
        confirm.send(Ok((Published::Stored, None))).unwrap();
        assert!(matches!(outcomes.await.unwrap()[..], [Published::Stored]));
        publisher.task.await.unwrap();
    }
}
