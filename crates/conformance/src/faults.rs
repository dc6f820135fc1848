//! What a provider goes through when the way to its server fails, and what must come of it.
//!
//! A provider crate hands over its server's URL and how to open a provider by a URL; the way there leads through a
//! [`FaultProxy`]. [`storm_through`] runs a storm under one kind of fault, judged by the checker.
//! [`lost_answers_are_told`] tries single calls, at the moment when only the answer is lost.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{Feature, Message, MessageId, MessagingError, Provider, QueueName, ReceiveOptions, Settlement};
use tokio::time::Instant;

use crate::exercise::Settings;
use crate::harness::Harness;
use crate::probe::{LONG, PATIENCE, soon};
use crate::proxy::FaultProxy;
use crate::storm::{StormReport, storm_under_faults};

/// So many storms in a row can be over before the fault that is tried has struck.
const STORMS: usize = 5;

/// Has a storm in which answers are lost repeated until one was: a short storm can be over before that. Panics when none
/// ever is.
pub async fn until_an_answer_is_lost<F: Future<Output = StormReport>>(storm: impl Fn() -> F) {
    for _ in 0..STORMS {
        let counts = storm().await.verdict.counts;
        if counts.unknown_sends + counts.unknown_acks > 0 {
            return;
        }
    }
    panic!("no answer was lost in {STORMS} storms");
}

/// A kind of fault, which befalls a server again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// All connections are cut.
    Cuts,
    /// What the server answers is lost, and then the connection.
    LostAnswers,
    /// Everything takes longer, now more and now less, and is cut now and then.
    Delays,
    /// The server is away for a while.
    Away(Duration),
}

impl Fault {
    /// Befalls the server for ever. When this is dropped the network is whole.
    pub async fn befall(self, proxy: &FaultProxy) {
        let _restored = proxy.restored_at_end();
        for round in 0_u32.. {
            // Now and then long enough to be connected and get something done, on a busy machine too.
            let gap = if round % 16 == 15 { 4_000 } else { 20 + u64::from(round % 16) * 40 };
            match self {
                Self::Cuts => {
                    pass(gap).await;
                    proxy.cut();
                }
                Self::LostAnswers => {
                    pass(gap).await;
                    proxy.drop_replies();
                    // Nobody may be asking anything.
                    let _ = tokio::time::timeout(Duration::from_millis(200), proxy.reply_was_lost()).await;
                    proxy.cut();
                    proxy.restore();
                }
                Self::Delays => {
                    let slow = Duration::from_millis(u64::from(round % 4) * 10);
                    proxy.delay(slow, slow / 2);
                    pass(100).await;
                    // Now and then with time enough for a connection that takes many words to open.
                    if matches!(round % 32, 3 | 7 | 15 | 31) {
                        proxy.cut();
                    }
                }
                Self::Away(time) => {
                    pass(1500).await;
                    proxy.refuse();
                    tokio::time::sleep(time).await;
                    proxy.restore();
                }
            }
        }
    }
}

/// The time between faults, in which something can be done.
async fn pass(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// Workers whose every connection leads through one proxy.
struct Behind<F> {
    proxy: Arc<FaultProxy>,
    open: F,
}

impl<F, Fut, P> Harness for Behind<F>
where
    F: Fn(String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, MessagingError>> + Send,
    P: Provider,
{
    type Provider = P;

    async fn open(&self) -> Result<P, MessagingError> {
        (self.open)(self.proxy.url()).await
    }
}

fn no_proxy(error: std::io::Error) -> MessagingError {
    MessagingError::Connection { provider: "proxy", detail: error.to_string(), source: Some(Arc::new(error)) }
}

/// Runs a storm on the server at `url` under a fault. `open` opens a provider by the URL that it is given, which leads
/// through the proxy.
pub async fn storm_through<F, Fut, P>(
    fault: Fault,
    url: &str,
    open: F,
    settings: &Settings,
) -> Result<StormReport, MessagingError>
where
    F: Fn(String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, MessagingError>> + Send,
    P: Provider,
{
    let proxy = Arc::new(FaultProxy::before(url).await.map_err(no_proxy)?);
    let behind = Behind { proxy: proxy.clone(), open };
    storm_under_faults(&behind, settings, fault.befall(&proxy)).await
}

/// What came of calls whose answers were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LostAnswers {
    /// Sends that were told to be unknown.
    pub unknown_sends: usize,
    /// Those of them that the server had carried out.
    pub carried_out: usize,
    /// Acks that were told to be unknown.
    pub unknown_acks: usize,
}

/// How many pieces of a conversation are let through at most before an answer is lost: the steps of a transaction.
pub const STEPS: u64 = 6;

/// Into how many pieces an answer is cut is chance, so the one that tells of a commit may be missed: then all is tried
/// again, so often at most.
const ROUNDS: u64 = 12;

/// Loses the answers to sends and acks, one at a time and at each step of their transactions, on one provider that is
/// never rebuilt. Each must be told as it was: unknown with the message's id, or failed with nothing done; never as done
/// when nothing arrived. Answers the first breach in a sentence.
pub async fn lost_answers_are_told<P: Provider>(proxy: &FaultProxy, provider: &P) -> Result<LostAnswers, String> {
    let queue = QueueName::new(format!("lost_{:08x}", rand::random::<u32>())).map_err(|error| error.to_string())?;
    let failed = |error: MessagingError| error.to_string();
    provider.ensure_queue(&queue, soon()).await.map_err(failed)?;
    let mut told = LostAnswers::default();
    for (round, step) in (0..ROUNDS).flat_map(|round| (0..STEPS).map(move |step| (round, step))) {
        if round >= 2 && told.unknown_sends > 0 && told.carried_out > 0 && told.unknown_acks > 0 {
            break;
        }
        warm_up(provider, &queue).await.map_err(failed)?;
        let message = Message::new(format!("{step}"));
        let id = message.id;
        let answer = without_answer(proxy, step, provider.send_message(&queue, message, soon())).await;
        let sent = Told::of(answer, id, step, "send")?;
        told.unknown_sends += usize::from(sent == Told::Unknown);
        let options = ReceiveOptions::batch(10).visibility(LONG).max_receive_count(1000);
        let received = until_done(|| provider.receive_messages(&queue, &options, soon())).await.map_err(failed)?;
        match (sent, received.len()) {
            (Told::Failed, 1..) => return Err(format!("message {id} was sent although that was told to have failed")),
            (Told::Done, 0) => return Err(format!("message {id} was not sent although that was told to be done")),
            _ => {}
        }
        for message in received {
            told.carried_out += usize::from(sent == Told::Unknown);
            warm_up(provider, &queue).await.map_err(failed)?;
            let receipt = message.into_receipt();
            let ack = vec![Settlement::ack(receipt.clone())];
            let settled = without_answer(proxy, step, provider.settle(ack, soon())).await;
            let row = settled.and_then(|rows| rows.into_iter().next().unwrap_or(Ok(())));
            let acked = Told::of(row, receipt.message_id(), step, "ack")?;
            told.unknown_acks += usize::from(acked == Told::Unknown);
            match (acked, until_done(|| provider.ack_message(&queue, receipt.clone(), soon())).await) {
                (Told::Failed | Told::Unknown, Ok(())) => {}
                (Told::Done | Told::Unknown, Err(MessagingError::VisibilityExpired { .. })) => {}
                (_, Err(error)) => return Err(format!("an ack that was told as {acked:?} was then refused: {error}")),
                (_, Ok(())) => return Err(format!("an ack that was told as {acked:?} was carried out twice")),
            }
        }
    }
    until_done(|| provider.delete_queue(&queue, soon())).await.map_err(failed)?;
    Ok(told)
}

/// Loses an answer, after so many pieces have passed, on a connection that stays open and silent from then on: as when
/// the server's machine is gone without a word. The provider must give the connection up by itself, after the time that
/// it allows the server, tell the call as it was, and go on. Answers a breach in a sentence.
pub async fn silence_is_given_up<P: Provider>(proxy: &FaultProxy, provider: &P, passing: u64) -> Result<(), String> {
    let queue = QueueName::new(format!("silent_{:08x}", rand::random::<u32>())).map_err(|error| error.to_string())?;
    let failed = |error: MessagingError| format!("after {passing} pieces: {error}");
    until_done(|| provider.ensure_queue(&queue, soon())).await.map_err(failed)?;
    warm_up(provider, &queue).await.map_err(failed)?;
    // As many steps as a send can have.
    let has_dedup = provider.capabilities().offers(Feature::Dedup);
    let message = |body: &'static str| match has_dedup {
        true => Message::new(body).ordering_key("k").and_then(|message| message.dedup_key(body)),
        false => Message::new(body).ordering_key("k"),
    };
    let (first, second) = (message("first").map_err(failed)?, message("second").map_err(failed)?);
    let id = first.id;
    let call = provider.send_message(&queue, first, soon());
    tokio::pin!(call);
    proxy.drop_replies_after(passing);
    let answer = tokio::select! {
        biased;
        answer = &mut call => answer,
        () = proxy.reply_was_lost() => {
            proxy.restore();
            call.await
        }
    };
    proxy.restore();
    Told::of(answer, id, passing, "send")?;
    until_done(|| provider.send_message(&queue, second.clone(), soon())).await.map_err(failed)?;
    until_done(|| provider.delete_queue(&queue, soon())).await.map_err(failed)
}

/// Sends, receives and acknowledges, so that the calls to come have nothing to prepare before they take effect.
async fn warm_up<P: Provider>(provider: &P, queue: &QueueName) -> Result<(), MessagingError> {
    for _ in 0..2 {
        until_done(|| provider.send_message(queue, Message::new("warm"), soon())).await?;
        let options = ReceiveOptions::batch(10).visibility(LONG).max_receive_count(1000);
        for message in until_done(|| provider.receive_messages(queue, &options, soon())).await? {
            let receipt = message.into_receipt();
            match until_done(|| provider.ack_message(queue, receipt.clone(), soon())).await {
                Ok(()) | Err(MessagingError::VisibilityExpired { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Makes a call of which an answer of the server is lost, after so many pieces have passed, and then the connection.
async fn without_answer<T>(
    proxy: &FaultProxy,
    passing: u64,
    call: impl Future<Output = Result<T, MessagingError>>,
) -> Result<T, MessagingError> {
    let _restored = proxy.restored_at_end();
    proxy.drop_replies_after(passing);
    tokio::pin!(call);
    tokio::select! {
        biased;
        answer = &mut call => return answer,
        () = proxy.reply_was_lost() => {}
    }
    proxy.cut();
    call.await
}

/// What a caller was told of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Done,
    Unknown,
    Failed,
}

impl Told {
    fn of<T>(answer: Result<T, MessagingError>, id: MessageId, passed: u64, call: &str) -> Result<Self, String> {
        match answer {
            Ok(_) if passed == 0 => Err(format!("a {call} was told to be done although no answer arrived")),
            Ok(_) => Ok(Self::Done),
            Err(MessagingError::OutcomeUnknown { ids, .. }) if ids == [id] => Ok(Self::Unknown),
            Err(MessagingError::OutcomeUnknown { ids, .. }) => {
                Err(format!("the {call} of message {id} was told to be unknown of {ids:?}"))
            }
            Err(error) if error.is_retryable() => Ok(Self::Failed),
            Err(error) => Err(format!("a {call} without an answer was told so: {error}")),
        }
    }
}

/// Tries until it is carried out, or refused for good.
async fn until_done<T, Fut>(mut call: impl FnMut() -> Fut) -> Result<T, MessagingError>
where
    Fut: Future<Output = Result<T, MessagingError>>,
{
    let end = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Err(error)
                if Instant::now() < end
                    && (error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })) =>
            {
                pass(5).await;
            }
            answer => return answer,
        }
    }
}
