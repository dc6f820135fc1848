//! Tests of a provider whose network to the server fails.
//!
//! A provider crate passes its server's URL and a function that opens a provider by a URL; the connections go through
//! a [`FaultProxy`]. [`storm_through`] runs a storm under one kind of fault, and the checker checks its history.
//! [`lost_answers_are_told`] loses only the answers of single calls, and [`silence_is_given_up`] leaves the connection
//! open.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use postrider_core::{Feature, Message, MessageId, MessagingError, Provider, QueueName, ReceiveOptions, Settlement};
use tokio::time::Instant;

use crate::exercise::Settings;
use crate::harness::Harness;
use crate::probe::{LONG, TIME_LIMIT, soon};
use crate::proxy::FaultProxy;
use crate::storm::{StormReport, storm_under_faults};

/// Attempts to have an answer lost: a short storm can end before.
const MAX_STORMS: usize = 5;

/// Repeats a storm under lost answers until one was lost. Panics after `MAX_STORMS` storms.
pub async fn until_an_answer_is_lost<F: Future<Output = StormReport>>(storm: impl Fn() -> F) {
    for _ in 0..MAX_STORMS {
        let counts = storm().await.verdict.counts;
        if counts.unknown_sends + counts.unknown_acks > 0 {
            return;
        }
    }
    panic!("no answer was lost in {MAX_STORMS} storms");
}

/// A kind of repeated fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// All connections are cut.
    Cuts,
    /// An answer of the server is lost, and then the connection.
    LostAnswers,
    /// Latency varies, and connections are cut at times.
    Delays,
    /// The server is unreachable for this time.
    Away(Duration),
}

impl Fault {
    /// Injects the fault again and again until dropped, which restores the network.
    pub async fn befall(self, proxy: &FaultProxy) {
        let _restored = proxy.restored_at_end();
        for round in 0_u32.. {
            // Now and then long enough to be connected and get something done, on a busy machine too.
            let gap = if round % 16 == 15 { 4_000 } else { 20 + u64::from(round % 16) * 40 };
            match self {
                Self::Cuts => {
                    pause(gap).await;
                    proxy.cut();
                }
                Self::LostAnswers => {
                    pause(gap).await;
                    proxy.drop_replies();
                    // There may be no request whose reply could be lost.
                    let _ = tokio::time::timeout(Duration::from_millis(200), proxy.reply_was_lost()).await;
                    proxy.cut();
                    proxy.restore();
                }
                Self::Delays => {
                    let slow = Duration::from_millis(u64::from(round % 4) * 10);
                    proxy.delay(slow, slow / 2);
                    pause(100).await;
                    // Sometimes long enough for a connection with a long handshake.
                    if matches!(round % 32, 3 | 7 | 15 | 31) {
                        proxy.cut();
                    }
                }
                Self::Away(time) => {
                    pause(1500).await;
                    proxy.refuse();
                    tokio::time::sleep(time).await;
                    proxy.restore();
                }
            }
        }
    }
}

/// Waits between two faults.
async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// Workers whose connections all go through one proxy.
struct ProxiedHarness<F> {
    proxy: Arc<FaultProxy>,
    open: F,
}

impl<F, Fut, P> Harness for ProxiedHarness<F>
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

async fn proxy_before(url: &str) -> Result<FaultProxy, String> {
    FaultProxy::before(url).await.map_err(|error| format!("no proxy could be started: {error}"))
}

fn failed(error: MessagingError) -> String {
    error.to_string()
}

/// Runs a storm on the server at `url` under a fault. `open` opens a provider by a URL, which leads through the
/// proxy. The error is a breach, or a message that can no longer be received.
pub async fn storm_through<F, Fut, P>(
    fault: Fault,
    url: &str,
    open: F,
    settings: &Settings,
) -> Result<StormReport, String>
where
    F: Fn(String) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, MessagingError>> + Send,
    P: Provider,
{
    let proxy = Arc::new(proxy_before(url).await?);
    let harness = ProxiedHarness { proxy: proxy.clone(), open };
    let report = storm_under_faults(&harness, settings, fault.befall(&proxy)).await.map_err(failed)?;
    report.ensure_clean().map_err(|breach| format!("{fault:?}: {breach}"))?;
    Ok(report)
}

/// Results of calls whose answers were lost.
#[derive(Debug, Default)]
struct LostAnswers {
    /// Sends reported as unknown.
    unknown_sends: usize,
    /// Unknown sends that the server had carried out.
    carried_out: usize,
    /// Acks reported as unknown.
    unknown_acks: usize,
}

impl LostAnswers {
    /// Whether answers of every kind were lost.
    fn is_complete(&self) -> bool {
        self.unknown_sends > 0 && self.carried_out > 0 && self.unknown_acks > 0
    }
}

/// Upper bound of reply chunks that pass before an answer is lost: the steps of a transaction.
const STEPS: u64 = 6;

/// Upper bound of rounds. The number of chunks of an answer varies, so a round can miss the commit's answer.
const ROUNDS: u64 = 12;

/// Loses the answers to sends and acks, one at a time and at each step of their transactions, on one provider, which
/// `open` opens by a URL. Each call must be reported as it was: unknown with the message's id, or failed with nothing
/// done; never as done when no answer arrived. The error is the first breach.
pub async fn lost_answers_are_told<P, Fut>(url: &str, open: impl FnOnce(String) -> Fut) -> Result<(), String>
where
    Fut: Future<Output = Result<P, MessagingError>>,
    P: Provider,
{
    let proxy = &proxy_before(url).await?;
    let provider = &open(proxy.url()).await.map_err(failed)?;
    let queue = QueueName::new(format!("lost_{:08x}", rand::random::<u32>())).map_err(|error| error.to_string())?;
    provider.ensure_queue(&queue, soon()).await.map_err(failed)?;
    let mut results = LostAnswers::default();
    for (round, step) in (0..ROUNDS).flat_map(|round| (0..STEPS).map(move |step| (round, step))) {
        if round >= 2 && results.is_complete() {
            break;
        }
        warm_up(provider, &queue).await.map_err(failed)?;
        let message = Message::new(format!("{step}"));
        let id = message.id;
        let answer = without_answer(proxy, step, provider.send_message(&queue, message, soon())).await;
        let sent = Reported::of(answer, id, step, "send")?;
        results.unknown_sends += usize::from(sent == Reported::Unknown);
        let options = ReceiveOptions::batch(10).visibility(LONG).max_receive_count(1000);
        let received = until_done(|| provider.receive_messages(&queue, &options, soon())).await.map_err(failed)?;
        match (sent, received.len()) {
            (Reported::Failed, 1..) => {
                return Err(format!("message {id} was sent although the send was reported as failed"));
            }
            (Reported::Done, 0) => {
                return Err(format!("message {id} was not sent although the send was reported as done"));
            }
            _ => {}
        }
        for message in received {
            results.carried_out += usize::from(sent == Reported::Unknown);
            warm_up(provider, &queue).await.map_err(failed)?;
            let receipt = message.into_receipt();
            let ack = vec![Settlement::ack(receipt.clone())];
            let settled = without_answer(proxy, step, provider.settle(ack, soon())).await;
            let row = settled.and_then(|rows| rows.into_iter().next().unwrap_or(Ok(())));
            let acked = Reported::of(row, receipt.message_id(), step, "ack")?;
            results.unknown_acks += usize::from(acked == Reported::Unknown);
            match (acked, until_done(|| provider.ack_message(&queue, receipt.clone(), soon())).await) {
                (Reported::Failed | Reported::Unknown, Ok(())) => {}
                (Reported::Done | Reported::Unknown, Err(MessagingError::VisibilityExpired { .. })) => {}
                (_, Err(error)) => {
                    return Err(format!("an ack reported as {acked:?} was refused when repeated: {error}"));
                }
                (_, Ok(())) => return Err(format!("an ack reported as {acked:?} was carried out twice")),
            }
        }
    }
    until_done(|| provider.delete_queue(&queue, soon())).await.map_err(failed)?;
    if results.is_complete() { Ok(()) } else { Err(format!("too few answers were lost: {results:?}")) }
}

/// Loses an answer at each step of a send, each on a provider of its own, whose connection stays open and silent, as
/// when the server's machine disappears. The provider must give the connection up after its own time-out, report the
/// call as it was, and continue. `open` opens a provider by a URL. The error is a breach.
pub async fn silence_is_given_up<P, Fut>(url: &str, open: impl Fn(String) -> Fut) -> Result<(), String>
where
    Fut: Future<Output = Result<P, MessagingError>>,
    P: Provider,
{
    let open = &open;
    let tries = (0..STEPS).map(|chunks| async move {
        let proxy = proxy_before(url).await?;
        let provider = open(proxy.url()).await.map_err(failed)?;
        silence_after(&proxy, &provider, chunks).await
    });
    try_join_all(tries).await.map(drop)
}

/// Loses an answer after `chunks` reply chunks.
async fn silence_after<P: Provider>(proxy: &FaultProxy, provider: &P, chunks: u64) -> Result<(), String> {
    let queue = QueueName::new(format!("silent_{:08x}", rand::random::<u32>())).map_err(|error| error.to_string())?;
    let failed = |error: MessagingError| format!("after {chunks} reply chunks: {error}");
    until_done(|| provider.ensure_queue(&queue, soon())).await.map_err(failed)?;
    warm_up(provider, &queue).await.map_err(failed)?;
    // A dedup key gives the send its largest number of steps.
    let has_dedup = provider.capabilities().offers(Feature::Dedup);
    let message = |body: &'static str| match has_dedup {
        true => Message::new(body).ordering_key("k").and_then(|message| message.dedup_key(body)),
        false => Message::new(body).ordering_key("k"),
    };
    let (first, second) = (message("first").map_err(failed)?, message("second").map_err(failed)?);
    let id = first.id;
    let call = provider.send_message(&queue, first, soon());
    tokio::pin!(call);
    proxy.drop_replies_after(chunks);
    let answer = tokio::select! {
        biased;
        answer = &mut call => answer,
        () = proxy.reply_was_lost() => {
            proxy.restore();
            call.await
        }
    };
    proxy.restore();
    Reported::of(answer, id, chunks, "send")?;
    until_done(|| provider.send_message(&queue, second.clone(), soon())).await.map_err(failed)?;
    until_done(|| provider.delete_queue(&queue, soon())).await.map_err(failed)
}

/// Sends, receives and acknowledges, so that later calls have no preparation to do.
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

/// Makes a call whose answer is lost after `chunks` reply chunks; the connection is cut afterwards.
async fn without_answer<T>(
    proxy: &FaultProxy,
    chunks: u64,
    call: impl Future<Output = Result<T, MessagingError>>,
) -> Result<T, MessagingError> {
    let _restored = proxy.restored_at_end();
    proxy.drop_replies_after(chunks);
    tokio::pin!(call);
    tokio::select! {
        biased;
        answer = &mut call => return answer,
        () = proxy.reply_was_lost() => {}
    }
    proxy.cut();
    call.await
}

/// What a call reported to its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reported {
    Done,
    Unknown,
    Failed,
}

impl Reported {
    fn of<T>(answer: Result<T, MessagingError>, id: MessageId, passed: u64, call: &str) -> Result<Self, String> {
        match answer {
            Ok(_) if passed == 0 => Err(format!("a {call} was reported as done although no answer arrived")),
            Ok(_) => Ok(Self::Done),
            Err(MessagingError::OutcomeUnknown { ids, .. }) if ids == [id] => Ok(Self::Unknown),
            Err(MessagingError::OutcomeUnknown { ids, .. }) => {
                Err(format!("the {call} of message {id} was reported as unknown for {ids:?}"))
            }
            Err(error) if error.is_retryable() => Ok(Self::Failed),
            Err(error) => Err(format!("a {call} without an answer was reported as: {error}")),
        }
    }
}

/// Repeats a call until it succeeds or fails for good.
async fn until_done<T, Fut>(mut call: impl FnMut() -> Fut) -> Result<T, MessagingError>
where
    Fut: Future<Output = Result<T, MessagingError>>,
{
    let end = Instant::now() + TIME_LIMIT;
    loop {
        match call().await {
            Err(error)
                if Instant::now() < end
                    && (error.is_retryable() || matches!(error, MessagingError::OutcomeUnknown { .. })) =>
            {
                pause(5).await;
            }
            answer => return answer,
        }
    }
}
