//! One channel with confirms, and who has to be told what.
//!
//! lapin hands a returned message to whichever confirm is completed next, and that may be another message's: taken at its
//! word, an unroutable message would count as stored. Two things are certain, because the broker returns a message before
//! it confirms it, and lapin completes one confirm after the other:
//!
//! - a confirm that carries nothing found nothing waiting, so what came back for its own message hangs on a confirm that
//!   was completed before it. Whoever looks through all confirms again after having seen this one sees that one too;
//! - once every confirm is completed, everything that came back hangs on one of them.
//!
//! So nobody is answered before a second look. As long as nothing has come back, that is all. Once something has, nothing
//! more goes out and nobody is answered until every confirm is there; then what came back is told by its id and its
//! routing key.

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

use crate::error::{PRECONDITION_FAILED, code, failed, silent, words};
use crate::link::ANSWER;
use crate::publish::{Outgoing, Published};

/// So many messages are on their way at once.
const WINDOW: usize = 256;
/// So many bytes are on their way at once, unless one message has more.
const WINDOW_BYTES: usize = 8 * 1024 * 1024;

/// Messages to be sent, and who wants to know what became of them.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) messages: Vec<Outgoing>,
    pub(crate) answer: oneshot::Sender<Vec<Published>>,
}

/// A message is known by its routing key and its id when it comes back.
type Name = (String, Option<String>);

/// What a confirm says, and what came back with it: not always the message that it is about.
type Confirmed = (Published, Option<Name>);

type Sending = Pin<Box<dyn Future<Output = Result<Confirmed, MessagingError>> + Send>>;

/// Puts a message into the line when it is looked at for the first time.
type Publish = Box<dyn Fn(Outgoing) -> Sending + Send>;

/// A message that is on its way.
struct Open {
    sending: Sending,
    /// Says when there is something new to see of it.
    bell: Arc<Bell>,
    begun: Instant,
    bytes: usize,
    whose: Whose,
}

/// Rung when a message's confirm is completed, and before the next one is. So whoever has seen a later one hears it.
#[derive(Debug)]
struct Bell {
    has_rung: AtomicBool,
    line: Waker,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Rung already, the line knows.
        if !self.has_rung.swap(true, Ordering::AcqRel) {
            self.line.wake_by_ref();
        }
    }
}

/// Whose message it is.
struct Whose {
    order: u64,
    place: usize,
    name: Name,
}

/// An order that is not answered yet.
struct Unanswered {
    fates: Vec<Published>,
    missing: usize,
    answer: oneshot::Sender<Vec<Published>>,
}

/// Sends messages on a channel.
pub(crate) struct Line {
    publish: Publish,
    orders: mpsc::UnboundedReceiver<Order>,
    /// Taken from an order and not yet sent.
    next: VecDeque<(u64, usize, Outgoing)>,
    open: Vec<Open>,
    open_bytes: usize,
    unanswered: HashMap<u64, Unanswered>,
    count: u64,
    /// What came back since everything was last confirmed.
    returned: HashSet<Name>,
    /// Confirmed since then, and not yet answered.
    held: Vec<(Whose, Published)>,
    /// Why the channel can be used no more.
    broken: Option<MessagingError>,
    /// Not confirmed when it ended.
    failed: Vec<Whose>,
    ticks: Interval,
}

impl Line {
    /// A line on a channel that confirms.
    pub(crate) fn new(channel: Channel, orders: mpsc::UnboundedReceiver<Order>) -> Self {
        let channel = Arc::new(channel);
        Self::by(Box::new(move |message| Box::pin(publish(channel.clone(), message))), orders)
    }

    fn by(publish: Publish, orders: mpsc::UnboundedReceiver<Order>) -> Self {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            publish,
            orders,
            next: VecDeque::new(),
            open: Vec::new(),
            open_bytes: 0,
            unanswered: HashMap::new(),
            count: 0,
            returned: HashSet::new(),
            held: Vec::new(),
            broken: None,
            failed: Vec::new(),
            ticks,
        }
    }

    /// Sends and answers until nobody is left to send for, or the channel has ended.
    pub(crate) async fn run(mut self) {
        std::future::poll_fn(|now| self.go_on(now)).await;
    }

    fn go_on(&mut self, now: &mut Context<'_>) -> Poll<()> {
        loop {
            let is_over = self.begin(now);
            let has_heard = self.listen();
            if let Some(error) = self.broken.take() {
                self.end(&error);
                return Poll::Ready(());
            }
            // There is room for more, or somebody else to hear of.
            if has_heard {
                continue;
            }
            if self.open.is_empty() {
                return if is_over { Poll::Ready(()) } else { Poll::Pending };
            }
            if self.ticks.poll_tick(now).is_pending() {
                return Poll::Pending;
            }
            if self.open.iter().any(|open| open.begun.elapsed() > ANSWER) {
                self.broken = Some(silent("send"));
            }
        }
    }

    fn has_room(&self) -> bool {
        self.returned.is_empty() && self.open.len() < WINDOW && self.open_bytes < WINDOW_BYTES
    }

    /// Sends what there is room for. Answers whether nobody is left who could order more.
    fn begin(&mut self, now: &mut Context<'_>) -> bool {
        while self.has_room() {
            if let Some((order, place, message)) = self.next.pop_front() {
                self.send(order, place, message, now);
                continue;
            }
            match self.orders.poll_recv(now) {
                Poll::Ready(Some(order)) => self.accept(order),
                Poll::Ready(None) => return true,
                Poll::Pending => return false,
            }
        }
        false
    }

    fn accept(&mut self, Order { messages, answer }: Order) {
        if messages.is_empty() {
            let _ = answer.send(Vec::new());
            return;
        }
        self.count += 1;
        let missing = messages.len();
        self.unanswered.insert(self.count, Unanswered { fates: vec![Published::Stored; missing], missing, answer });
        let order = self.count;
        self.next.extend(messages.into_iter().enumerate().map(|(place, message)| (order, place, message)));
    }

    fn send(&mut self, order: u64, place: usize, message: Outgoing, now: &mut Context<'_>) {
        let name = name(&message.routing_key, &message.properties);
        let bytes = message.body.len();
        let mut sending = (self.publish)(message);
        let bell = Arc::new(Bell { has_rung: AtomicBool::new(false), line: now.waker().clone() });
        // The order of the first looks is the order of the messages.
        if let Poll::Ready(confirmed) = sending.as_mut().poll(&mut Context::from_waker(&bell.clone().into())) {
            sending = Box::pin(std::future::ready(confirmed));
            bell.has_rung.store(true, Ordering::Release);
        }
        self.open_bytes += bytes;
        self.open.push(Open { sending, bell, begun: Instant::now(), bytes, whose: Whose { order, place, name } });
    }

    /// Tells everybody what is certain by now. Answers whether there was anything to hear.
    fn listen(&mut self) -> bool {
        let mut seen = self.look();
        let has_heard = !seen.is_empty();
        while !seen.is_empty() {
            let later = self.look();
            match self.returned.is_empty() {
                true => seen.into_iter().for_each(|(whose, fate)| self.answer(whose, fate)),
                false => self.held.append(&mut seen),
            }
            seen = later;
        }
        if self.open.is_empty() && self.broken.is_none() {
            self.decide();
        }
        has_heard
    }

    /// What has been confirmed since the last look.
    fn look(&mut self) -> Vec<(Whose, Published)> {
        let mut seen = Vec::new();
        let mut index = 0;
        while let Some(open) = self.open.get_mut(index) {
            // Taken down before the look, so that what happens after the look is not missed.
            if !open.bell.has_rung.load(Ordering::Relaxed) || !open.bell.has_rung.swap(false, Ordering::AcqRel) {
                index += 1;
                continue;
            }
            let waker = open.bell.clone().into();
            let Poll::Ready(confirmed) = open.sending.as_mut().poll(&mut Context::from_waker(&waker)) else {
                index += 1;
                continue;
            };
            let Open { bytes, whose, .. } = self.open.swap_remove(index);
            self.open_bytes -= bytes;
            match confirmed {
                Ok((fate, back)) => {
                    self.returned.extend(back);
                    seen.push((whose, fate));
                }
                Err(error) => {
                    self.broken = Some(error);
                    self.failed.push(whose);
                }
            }
        }
        seen
    }

    /// Everything is confirmed: what came back is known, and so is the rest.
    fn decide(&mut self) {
        for (whose, fate) in std::mem::take(&mut self.held) {
            // One and the same message sent twice has one fate: both had the same way to go.
            let is_back = self.returned.contains(&whose.name);
            self.answer(whose, if is_back { Published::Unroutable } else { fate });
        }
        self.returned.clear();
    }

    /// The channel is of no more use. What was confirmed while something had come back may itself be what has not come
    /// back yet.
    fn end(&mut self, error: &MessagingError) {
        let held = std::mem::take(&mut self.held).into_iter().map(|(whose, _)| whose);
        let open = std::mem::take(&mut self.open).into_iter().map(|open| open.whose);
        let failed = std::mem::take(&mut self.failed);
        let all: Vec<_> = held.chain(open).chain(failed).collect();
        // With others on their way, nobody knows which of them the broker would not take.
        let is_alone = all.len() == 1;
        for whose in all {
            let is_back = self.returned.contains(&whose.name);
            let fate = match error {
                _ if is_back => Published::Unroutable,
                MessagingError::InvalidInput { .. } if is_alone => Published::NotSent(error.clone()),
                _ => Published::Unknown(error.clone()),
            };
            self.answer(whose, fate);
        }
        let not_sent = match error {
            MessagingError::InvalidInput { .. } => {
                MessagingError::busy("the broker closed the channel because of another message; send this one again")
            }
            error => error.clone(),
        };
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            self.accept(order);
        }
        for (order, place, message) in std::mem::take(&mut self.next) {
            let whose = Whose { order, place, name: name(&message.routing_key, &message.properties) };
            self.answer(whose, Published::NotSent(not_sent.clone()));
        }
    }

    fn answer(&mut self, Whose { order, place, .. }: Whose, fate: Published) {
        let Entry::Occupied(mut entry) = self.unanswered.entry(order) else { return };
        let unanswered = entry.get_mut();
        unanswered.fates[place] = fate;
        unanswered.missing -= 1;
        if unanswered.missing == 0 {
            let Unanswered { fates, answer, .. } = entry.remove();
            // Whoever asked may have left.
            let _ = answer.send(fates);
        }
    }
}

async fn publish(channel: Arc<Channel>, message: Outgoing) -> Result<Confirmed, MessagingError> {
    let Outgoing { exchange, routing_key, properties, body } = message;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let sent = channel.basic_publish(exchange.into(), routing_key.into(), options, &body, properties).await;
    let (fate, back) = match sent.map_err(refused)?.await {
        Ok(Confirmation::Ack(back)) => (Published::Stored, back),
        Ok(Confirmation::Nack(back)) => (Published::Refused, back),
        // Only a channel without confirms says so, and ours have them.
        Ok(Confirmation::NotRequested) => return Err(silent("send")),
        Err(error) => return Err(refused(error)),
    };
    Ok((fate, back.map(|back| name(&back.routing_key, &back.properties))))
}

/// Why a message was not confirmed. All that the broker has against a message itself has this number.
fn refused(error: lapin::Error) -> MessagingError {
    match code(&error) {
        Some(PRECONDITION_FAILED) => {
            MessagingError::invalid("message", format!("the broker does not take it: {}", words(&error)))
        }
        _ => failed("send", error),
    }
}

fn name(routing_key: impl ToString, properties: &BasicProperties) -> Name {
    (routing_key.to_string(), properties.message_id().as_ref().map(ToString::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line whose confirms are given by hand, in any order.
    struct ByHand {
        orders: Option<mpsc::UnboundedSender<Order>>,
        sent: mpsc::UnboundedReceiver<(String, oneshot::Sender<Result<Confirmed, MessagingError>>)>,
        line: tokio::task::JoinHandle<()>,
    }

    impl ByHand {
        fn new() -> Self {
            let (tell, sent) = mpsc::unbounded_channel();
            let (orders, receiver) = mpsc::unbounded_channel();
            let send = move |message: Outgoing| -> Sending {
                let (confirm, confirmed) = oneshot::channel();
                tell.send((message.routing_key, confirm)).unwrap();
                Box::pin(async move { confirmed.await.unwrap_or_else(|_| Err(silent("send"))) })
            };
            Self { orders: Some(orders), sent, line: tokio::spawn(Line::by(Box::new(send), receiver).run()) }
        }

        fn order(&self, messages: Vec<Outgoing>) -> oneshot::Receiver<Vec<Published>> {
            let (answer, fates) = oneshot::channel();
            self.orders.as_ref().unwrap().send(Order { messages, answer }).unwrap();
            fates
        }

        async fn one(
            &mut self,
            key: &str,
        ) -> (oneshot::Receiver<Vec<Published>>, oneshot::Sender<Result<Confirmed, MessagingError>>) {
            let fates = self.order(vec![message(key, 1)]);
            let (sent, confirm) = self.sent.recv().await.unwrap();
            assert_eq!(sent, key);
            (fates, confirm)
        }
    }

    fn message(key: &str, size: usize) -> Outgoing {
        let body = bytes::Bytes::from(vec![0; size]);
        Outgoing { exchange: String::new(), routing_key: key.to_owned(), properties: BasicProperties::default(), body }
    }

    fn back(key: &str) -> Option<Name> {
        Some((key.to_owned(), None))
    }

    /// Lets the line do what it can.
    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    fn fate(fates: &mut oneshot::Receiver<Vec<Published>>) -> Option<String> {
        fates.try_recv().ok().map(|fates| format!("{:?}", fates[0]))
    }

    #[tokio::test]
    async fn a_confirm_is_answered_while_others_are_open() {
        let mut line = ByHand::new();
        let ((mut a, _open), (mut b, confirm)) = (line.one("a").await, line.one("b").await);
        confirm.send(Ok((Published::Stored, None))).unwrap();
        settle().await;
        assert_eq!((fate(&mut a), fate(&mut b)), (None, Some("Stored".to_owned())));
    }

    #[tokio::test]
    async fn what_comes_back_on_anothers_confirm_is_told_of_the_right_one() {
        let mut line = ByHand::new();
        let ((mut a, of_a), (mut b, of_b)) = (line.one("a").await, line.one("b").await);
        // Completed in this order, and seen at once.
        of_a.send(Ok((Published::Stored, back("b")))).unwrap();
        of_b.send(Ok((Published::Stored, None))).unwrap();
        settle().await;
        assert_eq!((fate(&mut a), fate(&mut b)), (Some("Stored".to_owned()), Some("Unroutable".to_owned())));
    }

    #[tokio::test]
    async fn what_came_back_on_a_confirm_that_was_just_passed_by_is_seen_in_time() {
        let (orders, receiver) = mpsc::unbounded_channel();
        let (of_a, a_confirmed) = oneshot::channel();
        let (of_b, mut b_confirmed) = oneshot::channel::<()>();
        let (mut of_a, mut a_confirmed) = (Some(of_a), Some(a_confirmed));
        // Between the look at the first and the look at the second both are completed, the first one first.
        let mut second = Some(async move {
            std::future::poll_fn(|now| Pin::new(&mut b_confirmed).poll(now)).await.unwrap();
            of_a.take().unwrap().send(Ok((Published::Stored, back("b")))).unwrap();
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
        tokio::spawn(Line::by(Box::new(publish), receiver).run());
        let [a, b] = ["a", "b"].map(|key| {
            let (answer, fates) = oneshot::channel();
            orders.send(Order { messages: vec![message(key, 1)], answer }).unwrap();
            fates
        });
        settle().await;
        of_b.send(()).unwrap();
        assert!(matches!(b.await.unwrap()[..], [Published::Unroutable]));
        assert!(matches!(a.await.unwrap()[..], [Published::Stored]));
    }

    #[tokio::test]
    async fn once_something_came_back_nobody_is_answered_before_everything_is_confirmed() {
        let mut line = ByHand::new();
        let ((mut a, of_a), (mut b, of_b), (mut c, of_c)) =
            (line.one("a").await, line.one("b").await, line.one("c").await);
        // All three come back; the last is confirmed first and carries what came back first.
        of_c.send(Ok((Published::Stored, back("a")))).unwrap();
        settle().await;
        let later = line.order(vec![message("later", 1)]);
        settle().await;
        assert!(line.sent.try_recv().is_err(), "nothing goes out meanwhile");
        of_b.send(Ok((Published::Stored, back("b")))).unwrap();
        settle().await;
        assert_eq!((fate(&mut a), fate(&mut b), fate(&mut c)), (None, None, None));
        of_a.send(Ok((Published::Stored, back("c")))).unwrap();
        settle().await;
        for mut fates in [a, b, c] {
            assert_eq!(fate(&mut fates).as_deref(), Some("Unroutable"));
        }
        let (key, confirm) = line.sent.recv().await.unwrap();
        assert_eq!(key, "later");
        confirm.send(Ok((Published::Stored, None))).unwrap();
        assert!(matches!(later.await.unwrap()[..], [Published::Stored]));
    }

    #[tokio::test]
    async fn a_confirm_beside_something_that_came_back_is_unknown_when_the_channel_ends() {
        let mut line = ByHand::new();
        let ((a, of_a), (b, of_b)) = (line.one("a").await, line.one("b").await);
        of_b.send(Ok((Published::Stored, back("a")))).unwrap();
        settle().await;
        // Waits in the line, because nothing goes out.
        let c = line.order(vec![message("c", 1)]);
        settle().await;
        of_a.send(Err(silent("send"))).unwrap();
        assert!(matches!(a.await.unwrap()[..], [Published::Unroutable]));
        assert!(matches!(b.await.unwrap()[..], [Published::Unknown(_)]));
        assert!(matches!(c.await.unwrap()[..], [Published::NotSent(_)]));
        line.line.await.unwrap();
    }

    #[tokio::test]
    async fn a_message_that_the_broker_does_not_take_is_told_of_if_it_was_alone() {
        let refused = || MessagingError::invalid("message", "too large");
        let mut line = ByHand::new();
        let (a, of_a) = line.one("a").await;
        of_a.send(Err(refused())).unwrap();
        assert!(matches!(a.await.unwrap()[..], [Published::NotSent(MessagingError::InvalidInput { .. })]));

        let mut line = ByHand::new();
        let mut many = line.order((0..WINDOW + 1).map(|n| message(&n.to_string(), 1)).collect());
        settle().await;
        let mut confirms: Vec<_> = std::iter::from_fn(|| line.sent.try_recv().ok()).collect();
        confirms.pop().unwrap().1.send(Err(refused())).unwrap();
        let mut fates = (&mut many).await.unwrap();
        assert!(
            matches!(fates.pop(), Some(Published::NotSent(MessagingError::Busy { .. }))),
            "it was not on its way, and can be sent again"
        );
        assert!(fates.iter().all(|fate| matches!(fate, Published::Unknown(_))), "it may be any of them");
    }

    #[tokio::test]
    async fn no_more_is_on_its_way_than_the_window_holds() {
        let mut line = ByHand::new();
        let fates = line.order((0..WINDOW + 1).map(|n| message(&n.to_string(), 1)).collect());
        settle().await;
        let mut confirms: VecDeque<_> = std::iter::from_fn(|| line.sent.try_recv().ok()).collect();
        assert_eq!(confirms.len(), WINDOW);
        confirms.pop_front().unwrap().1.send(Ok((Published::Stored, None))).unwrap();
        confirms.push_back(line.sent.recv().await.unwrap());
        for (_, confirm) in confirms {
            confirm.send(Ok((Published::Stored, None))).unwrap();
        }
        assert_eq!(fates.await.unwrap().len(), WINDOW + 1);

        let large = || message("large", WINDOW_BYTES);
        let _fates = line.order(vec![large(), large()]);
        settle().await;
        let (_, confirm) = line.sent.recv().await.unwrap();
        assert!(line.sent.try_recv().is_err());
        confirm.send(Ok((Published::Stored, None))).unwrap();
        assert!(line.sent.recv().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_does_not_answer_leaves_unknown_what_was_sent() {
        let mut line = ByHand::new();
        let (fates, _confirm) = line.one("a").await;
        assert!(matches!(fates.await.unwrap()[..], [Published::Unknown(_)]));
    }

    #[tokio::test]
    async fn the_line_ends_when_nobody_is_left_and_everything_is_answered() {
        let mut line = ByHand::new();
        let (fates, confirm) = line.one("a").await;
        line.orders = None;
        settle().await;
        assert!(!line.line.is_finished());
        confirm.send(Ok((Published::Stored, None))).unwrap();
        assert!(matches!(fates.await.unwrap()[..], [Published::Stored]));
        line.line.await.unwrap();
    }
}
