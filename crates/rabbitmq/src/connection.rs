//! The connection to the broker, which is reopened when it is lost.
//!
//! lapin can recover a connection on its own, but then the provider is not notified that the leases of the old one are
//! gone. So lapin's recovery is off, and a task opens a new connection whenever the old one ends. Channels, consumers and
//! leases die with their connection: they belong to a [`LiveConnection`], and a new connection is a new [`LiveConnection`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, DefaultConnectionBuilder, Event};
use postrider_core::{Deadline, MessagingError, QueueName};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::Instant;

use crate::PROVIDER;
use crate::consumer_channel::ConsumerChannel;
use crate::error::{connect_failed, failed, no_answer};
use crate::management::Management;
#[cfg(not(feature = "tls"))]
use crate::no_tls as tls;
use crate::options::RabbitmqOptions;
use crate::publish::Publisher;
#[cfg(feature = "tls")]
use crate::tls;
use crate::topology::KnownObjects;

/// Time limit of a call's wait for a lost connection to be reopened.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// First pause between two attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two attempts: an upper bound of the additional outage.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Time limits of the first attempts to open a connection; the last one has the rest of the time. A connection that is cut
/// during the handshake may never answer.
const CONNECT_TIMEOUTS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(4)];
/// Time limit of the broker's answer to one request.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// One AMQP connection, until it is lost.
pub(crate) struct LiveConnection {
    connection: Connection,
    /// Sends messages.
    pub(crate) publisher: Publisher,
    /// Sends the probes that read flags: their confirms must not mix with those of messages.
    pub(crate) flag_publisher: Publisher,
    /// Locked for one request at a time: a request that fails closes its channel.
    admin: AsyncMutex<Option<Channel>>,
    consumer_channels: AsyncMutex<HashMap<String, Arc<ConsumerChannel>>>,
    /// What is known to exist on the broker. Outlives the connection, as the broker's queues do.
    pub(crate) known: Arc<KnownObjects>,
    pub(crate) management: Arc<Management>,
}

impl fmt::Debug for LiveConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveConnection").field("connected", &self.is_up()).finish_non_exhaustive()
    }
}

impl LiveConnection {
    fn new(connection: Connection, known: Arc<KnownObjects>, management: Arc<Management>) -> Self {
        Self {
            connection,
            publisher: Publisher::default(),
            flag_publisher: Publisher::default(),
            admin: AsyncMutex::default(),
            consumer_channels: AsyncMutex::default(),
            known,
            management,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.connection.status().connected()
    }

    /// Opens a channel.
    pub(crate) async fn channel(&self, operation: &'static str) -> Result<Channel, MessagingError> {
        await_answer(operation, self.connection.create_channel()).await
    }

    /// Sends the broker a request that may fail, on a channel that carries no messages.
    pub(crate) async fn request<T, F>(
        &self,
        operation: &'static str,
        request: impl FnOnce(Channel) -> F,
    ) -> Result<Result<T, lapin::Error>, MessagingError>
    where
        F: Future<Output = Result<T, lapin::Error>>,
    {
        let mut admin = self.admin.lock().await;
        let channel = match admin.take() {
            Some(channel) if channel.status().connected() => channel,
            _ => self.channel(operation).await?,
        };
        let Ok(answer) = tokio::time::timeout(ANSWER_TIMEOUT, request(channel.clone())).await else {
            return Err(no_answer(operation));
        };
        if answer.is_ok() {
            *admin = Some(channel);
        }
        Ok(answer)
    }

    /// Returns how many messages of a queue are ready and how many consumers it has; `None` when it does not exist.
    pub(crate) async fn counts(&self, queue: &str) -> Result<Option<Counts>, MessagingError> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let name = queue.to_owned();
        let look =
            |channel: Channel| async move { channel.queue_declare(name.into(), options, FieldTable::default()).await };
        match self.request("count", look).await? {
            Ok(queue) => Ok(Some(Counts { ready: queue.message_count(), consumers: queue.consumer_count() })),
            Err(error) if crate::error::code(&error) == Some(crate::error::NOT_FOUND) => Ok(None),
            Err(error) => Err(failed("count", error)),
        }
    }

    /// Returns the channel that consumes a queue. Each queue has its own channel, because everything that was received on a
    /// channel is requeued when it closes.
    pub(crate) async fn consumer_channel(&self, queue: &str) -> Result<Arc<ConsumerChannel>, MessagingError> {
        let mut consumer_channels = self.consumer_channels.lock().await;
        if let Some(channel) = consumer_channels.get(queue).filter(|channel| channel.is_open()) {
            return Ok(channel.clone());
        }
        let channel = Arc::new(ConsumerChannel::new(queue, self.channel("receive").await?));
        consumer_channels.insert(queue.to_owned(), channel.clone());
        Ok(channel)
    }

    /// Makes the next receive of a queue open another channel. Messages received on the old channel stay there.
    pub(crate) async fn drop_consumer_channel(&self, queue: &str) {
        self.consumer_channels.lock().await.remove(queue);
    }

    /// Waits until the queues that belong to `queue` survive a crash of the broker, and sets their flags for other clients.
    /// Fails if the connection is lost meanwhile.
    pub(crate) async fn wait_until_crash_safe(&self, queue: &QueueName) -> Result<(), MessagingError> {
        let Some((names, crash_safe_at)) = self.known.new_queues(queue) else { return Ok(()) };
        while Instant::now() < crash_safe_at && self.is_up() {
            tokio::time::sleep_until(crash_safe_at.min(Instant::now() + Duration::from_millis(50))).await;
        }
        if !self.is_up() {
            return Err(no_answer("send"));
        }
        for name in &names {
            crate::flags::set_crash_safe(self, name, true).await?;
        }
        self.known.note_crash_safe(&names);
        Ok(())
    }

    async fn close(&self) {
        // The broker closes the connection whatever the answer is.
        let _ = tokio::time::timeout(ANSWER_TIMEOUT, self.connection.close(200, "done".into())).await;
    }
}

/// The broker's counts of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) ready: u32,
    pub(crate) consumers: u32,
}

/// Waits for the broker's answer, up to [`ANSWER_TIMEOUT`].
pub(crate) async fn await_answer<T>(
    operation: &'static str,
    request: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, MessagingError> {
    match tokio::time::timeout(ANSWER_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| failed(operation, error)),
        Err(_) => Err(no_answer(operation)),
    }
}

#[derive(Debug, Clone)]
enum State {
    Up(Arc<LiveConnection>),
    /// Not connected, with the reason.
    Down(MessagingError),
    Closed,
}

/// The connection to the broker. Clones share it; dropping the last one closes it.
#[derive(Debug, Clone)]
pub(crate) struct BrokerConnection {
    state: watch::Receiver<State>,
    /// Stops the reconnect task when dropped.
    stop: Arc<watch::Sender<bool>>,
    address: Arc<str>,
    known: Arc<KnownObjects>,
}

impl BrokerConnection {
    /// Opens the first connection and starts the task that reopens it.
    pub(crate) async fn open(
        uri: AMQPUri,
        options: &RabbitmqOptions,
        management: Arc<Management>,
    ) -> Result<Self, MessagingError> {
        let address: Arc<str> = format!("{}:{}", uri.authority.host, uri.authority.port).into();
        let known = Arc::new(KnownObjects::default());
        let connector =
            Connector { uri, options: options.clone(), address: address.clone(), known: known.clone(), management };
        let first = Arc::new(connector.connect().await?);
        let (states, state) = watch::channel(State::Up(first.clone()));
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(reconnect_loop(connector, first, states, stopped));
        Ok(Self { state, stop: Arc::new(stop), address, known })
    }

    /// Returns the current connection. Waits a while for it to be reopened.
    pub(crate) async fn live(&self, deadline: Deadline) -> Result<Arc<LiveConnection>, MessagingError> {
        let mut state = self.state.clone();
        let up = state.wait_for(|state| match state {
            State::Up(live) => live.is_up(),
            State::Down(_) => false,
            State::Closed => true,
        });
        let found = deadline.at_most(RECONNECT_TIMEOUT).limit(up).await;
        match found {
            Some(Ok(state)) => match &*state {
                State::Up(live) => Ok(live.clone()),
                _ => Err(MessagingError::Closed { provider: PROVIDER }),
            },
            Some(Err(_)) => Err(MessagingError::Closed { provider: PROVIDER }),
            None => match &*self.state.borrow() {
                State::Down(error) => Err(error.clone()),
                _ => Err(MessagingError::Connection {
                    provider: PROVIDER,
                    detail: format!("{}: the connection was lost", self.address),
                    source: None,
                }),
            },
        }
    }

    /// Returns what is known to exist on the broker.
    pub(crate) fn known(&self) -> &KnownObjects {
        &self.known
    }

    /// Closes the connection.
    pub(crate) async fn close(&self) {
        self.stop.send_replace(true);
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| matches!(state, State::Closed)).await;
    }
}

struct Connector {
    uri: AMQPUri,
    options: RabbitmqOptions,
    address: Arc<str>,
    known: Arc<KnownObjects>,
    management: Arc<Management>,
}

impl Connector {
    async fn connect(&self) -> Result<LiveConnection, MessagingError> {
        let properties =
            ConnectionProperties::default().with_connection_name(self.options.connection_name.clone().into());
        let trusted = tls::config(&self.uri, &self.options)?;
        let end = Instant::now() + self.options.connection_timeout;
        let mut limits = CONNECT_TIMEOUTS.into_iter();
        loop {
            let limit = limits.next().map_or(end, |limit| end.min(Instant::now() + limit));
            let connect = async {
                let mut builder =
                    DefaultConnectionBuilder::new()?.with_uri(self.uri.clone()).with_properties(properties.clone());
                if let Some(trusted) = trusted.clone() {
                    builder = builder.with_tls_config(trusted);
                }
                builder.connect().await
            };
            match tokio::time::timeout_at(limit, connect).await {
                Ok(Ok(connection)) => {
                    return Ok(LiveConnection::new(connection, self.known.clone(), self.management.clone()));
                }
                Ok(Err(error)) => return Err(connect_failed(&self.address, &self.uri, error)),
                Err(_) if Instant::now() < end => {}
                Err(_) => {
                    return Err(MessagingError::Connection {
                        provider: PROVIDER,
                        detail: format!("{}: no answer within {:?}", self.address, self.options.connection_timeout),
                        source: None,
                    });
                }
            }
        }
    }
}

/// Opens a new connection whenever the old one ends, until it is stopped or every handle is dropped.
async fn reconnect_loop(
    connector: Connector,
    first: Arc<LiveConnection>,
    states: watch::Sender<State>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut live = first;
    loop {
        let is_stopped = tokio::select! {
            () = until_lost(&live) => false,
            // An error means that every handle is dropped.
            _ = stopped.wait_for(|stopped| *stopped) => true,
        };
        if is_stopped {
            live.close().await;
            states.send_replace(State::Closed);
            return;
        }
        tracing::warn!(broker = %connector.address, "the connection was lost; reconnecting");
        states.send_replace(State::Down(MessagingError::Connection {
            provider: PROVIDER,
            detail: format!("{}: the connection was lost; reconnecting", connector.address),
            source: None,
        }));
        let mut pause = FIRST_PAUSE;
        live = loop {
            let connect = async {
                let connected = connector.connect().await;
                if connected.is_err() {
                    tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
                }
                connected
            };
            tokio::select! {
                connected = connect => match connected {
                    Ok(live) => break Arc::new(live),
                    Err(error) => {
                        pause = (pause * 2).min(LONGEST_PAUSE);
                        states.send_replace(State::Down(error));
                    }
                },
                _ = stopped.wait_for(|stopped| *stopped) => {
                    states.send_replace(State::Closed);
                    return;
                }
            }
        };
        tracing::warn!(broker = %connector.address, "reconnected");
        states.send_replace(State::Up(live.clone()));
    }
}

/// Waits until a connection is lost. Its events report that at once; the poll catches an event that was missed.
async fn until_lost(live: &LiveConnection) {
    let mut events = live.connection.events_listener();
    while live.is_up() {
        match tokio::time::timeout(Duration::from_millis(500), events.next()).await {
            Ok(Some(Event::ConnectionBlocked(why))) => {
                tracing::warn!(%why, "the broker has blocked the connection and accepts no messages for now");
            }
            // The event arrives a moment before the connection's state changes.
            Ok(Some(Event::Error(_)) | None) => tokio::time::sleep(Duration::from_millis(5)).await,
            Ok(Some(_)) | Err(_) => {}
        }
    }
}

/// Locks a mutex, poisoned or not: it is never held across an `await`.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
