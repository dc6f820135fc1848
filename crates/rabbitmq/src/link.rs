//! The connection to the broker, which comes back by itself.
//!
//! lapin can recover a connection on its own, but then nobody is told that the leases of the old one are gone. So it is
//! told not to, and a task here opens a new connection whenever the old one ends. What was opened on a connection dies
//! with it: channels, consumers and leases are held by a [`Live`], and a new connection is a new [`Live`].

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
use crate::error::{failed, silent, unreached};
use crate::feed::Feed;
use crate::management::Management;
use crate::options::RabbitmqOptions;
#[cfg(not(feature = "tls"))]
use crate::plain as trust;
use crate::publish::Publisher;
use crate::topology::Known;
#[cfg(feature = "tls")]
use crate::trust;

/// How long a call waits for a connection that is being opened again.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first pause between two tries.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two tries: what an outage may last longer for us than it does.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long the first try to open a connection waits for the broker; each further one waits twice as long. A connection
/// that is cut while it is being opened may never answer.
const FIRST_PATIENCE: Duration = Duration::from_secs(2);
/// How long the broker may take to answer one request.
pub(crate) const ANSWER: Duration = Duration::from_secs(20);

/// One connection, as long as it lasts.
pub(crate) struct Live {
    connection: Connection,
    /// Messages go out here.
    pub(crate) publisher: Publisher,
    /// Flags are asked for here: their answers must not mix with those of messages.
    pub(crate) asker: Publisher,
    /// One at a time: a request that fails takes its channel with it.
    admin: AsyncMutex<Option<Channel>>,
    feeds: AsyncMutex<HashMap<String, Arc<Feed>>>,
    /// What is known to be there. It outlives the connection: the broker keeps it.
    pub(crate) known: Arc<Known>,
    pub(crate) management: Arc<Management>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("connected", &self.is_up()).finish_non_exhaustive()
    }
}

impl Live {
    fn new(connection: Connection, known: Arc<Known>, management: Arc<Management>) -> Self {
        Self {
            connection,
            publisher: Publisher::default(),
            asker: Publisher::default(),
            admin: AsyncMutex::default(),
            feeds: AsyncMutex::default(),
            known,
            management,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.connection.status().connected()
    }

    /// One more channel.
    pub(crate) async fn channel(&self, operation: &'static str) -> Result<Channel, MessagingError> {
        answered(operation, self.connection.create_channel()).await
    }

    /// Asks the broker for something that may fail, on a channel that nobody's messages depend on.
    pub(crate) async fn ask<T, F>(
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
        let Ok(answer) = tokio::time::timeout(ANSWER, request(channel.clone())).await else {
            return Err(silent(operation));
        };
        if answer.is_ok() {
            *admin = Some(channel);
        }
        Ok(answer)
    }

    /// How many messages of a queue are ready, and how many consumers it has; `None` when it is not there.
    pub(crate) async fn counts(&self, queue: &str) -> Result<Option<Counts>, MessagingError> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let name = queue.to_owned();
        let look =
            |channel: Channel| async move { channel.queue_declare(name.into(), options, FieldTable::default()).await };
        match self.ask("count", look).await? {
            Ok(queue) => Ok(Some(Counts { ready: queue.message_count(), consumers: queue.consumer_count() })),
            Err(error) if crate::error::code(&error) == Some(crate::error::NOT_FOUND) => Ok(None),
            Err(error) => Err(failed("count", error)),
        }
    }

    /// Where messages of a queue are received: one channel for each queue, because everything that was received on a
    /// channel goes when it does.
    pub(crate) async fn feed(&self, queue: &str) -> Result<Arc<Feed>, MessagingError> {
        let mut feeds = self.feeds.lock().await;
        if let Some(feed) = feeds.get(queue).filter(|feed| feed.is_open()) {
            return Ok(feed.clone());
        }
        let feed = Arc::new(Feed::new(queue, self.channel("receive").await?));
        feeds.insert(queue.to_owned(), feed.clone());
        Ok(feed)
    }

    /// From now on messages of a queue are received on another channel. What was received on the old one stays there.
    pub(crate) async fn leave_feed(&self, queue: &str) {
        self.feeds.lock().await.remove(queue);
    }

    /// Waits until what there is for a queue outlasts a crash of the broker, and says so for everybody. Answers whether
    /// the connection held so long.
    pub(crate) async fn wait_until_lasting(&self, queue: &QueueName) -> Result<(), MessagingError> {
        let Some((names, lasts)) = self.known.young(queue) else { return Ok(()) };
        while Instant::now() < lasts && self.is_up() {
            tokio::time::sleep_until(lasts.min(Instant::now() + Duration::from_millis(50))).await;
        }
        if !self.is_up() {
            return Err(silent("send"));
        }
        for name in &names {
            crate::flags::set_lasting(self, name, true).await?;
        }
        self.known.note_lasting(&names);
        Ok(())
    }

    async fn close(&self) {
        // Whatever it answers, the broker ends the connection.
        let _ = tokio::time::timeout(ANSWER, self.connection.close(200, "done".into())).await;
    }
}

/// What the broker tells of a queue at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) ready: u32,
    pub(crate) consumers: u32,
}

/// Waits for the broker's answer, for a while.
pub(crate) async fn answered<T>(
    operation: &'static str,
    request: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, MessagingError> {
    match tokio::time::timeout(ANSWER, request).await {
        Ok(answer) => answer.map_err(|error| failed(operation, error)),
        Err(_) => Err(silent(operation)),
    }
}

#[derive(Debug, Clone)]
enum State {
    Up(Arc<Live>),
    /// Why there is none at the moment.
    Down(MessagingError),
    Closed,
}

/// The way to the broker. Clones are the same; the last one to go ends it.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    state: watch::Receiver<State>,
    /// Dropped, it tells the task to end.
    stop: Arc<watch::Sender<bool>>,
    place: Arc<str>,
    known: Arc<Known>,
}

impl Link {
    /// Opens the first connection, and fails when that fails.
    pub(crate) async fn open(
        uri: AMQPUri,
        options: &RabbitmqOptions,
        management: Arc<Management>,
    ) -> Result<Self, MessagingError> {
        let place: Arc<str> = format!("{}:{}", uri.authority.host, uri.authority.port).into();
        let known = Arc::new(Known::default());
        let way = Way { uri, options: options.clone(), place: place.clone(), known: known.clone(), management };
        let first = Arc::new(way.connect().await?);
        let (tell, state) = watch::channel(State::Up(first.clone()));
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(keep_open(way, first, tell, stopped));
        Ok(Self { state, stop: Arc::new(stop), place, known })
    }

    /// The connection, once there is one.
    pub(crate) async fn live(&self, deadline: Deadline) -> Result<Arc<Live>, MessagingError> {
        let mut state = self.state.clone();
        let up = state.wait_for(|state| match state {
            State::Up(live) => live.is_up(),
            State::Down(_) => false,
            State::Closed => true,
        });
        let found = deadline.at_most(PATIENCE).limit(up).await;
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
                    detail: format!("{}: the connection was lost", self.place),
                    source: None,
                }),
            },
        }
    }

    /// What is known to be there.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// Ends the connection.
    pub(crate) async fn close(&self) {
        self.stop.send_replace(true);
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| matches!(state, State::Closed)).await;
    }
}

struct Way {
    uri: AMQPUri,
    options: RabbitmqOptions,
    place: Arc<str>,
    known: Arc<Known>,
    management: Arc<Management>,
}

impl Way {
    async fn connect(&self) -> Result<Live, MessagingError> {
        let properties =
            ConnectionProperties::default().with_connection_name(self.options.connection_name.clone().into());
        let trusted = trust::config(&self.uri, &self.options)?;
        let end = Instant::now() + self.options.connection_timeout;
        let mut patience = FIRST_PATIENCE;
        loop {
            let connect = async {
                let mut builder =
                    DefaultConnectionBuilder::new()?.with_uri(self.uri.clone()).with_properties(properties.clone());
                if let Some(trusted) = trusted.clone() {
                    builder = builder.with_tls_config(trusted);
                }
                builder.connect().await
            };
            match tokio::time::timeout_at(end.min(Instant::now() + patience), connect).await {
                Ok(Ok(connection)) => return Ok(Live::new(connection, self.known.clone(), self.management.clone())),
                Ok(Err(error)) => return Err(unreached(&self.place, &self.uri, error)),
                Err(_) if Instant::now() < end => patience *= 2,
                Err(_) => {
                    return Err(MessagingError::Connection {
                        provider: PROVIDER,
                        detail: format!("{}: no answer within {:?}", self.place, self.options.connection_timeout),
                        source: None,
                    });
                }
            }
        }
    }
}

/// Opens a new connection whenever the old one ends, until it is told to stop or nobody is left.
async fn keep_open(way: Way, first: Arc<Live>, tell: watch::Sender<State>, mut stopped: watch::Receiver<bool>) {
    let mut live = first;
    loop {
        let is_stopped = tokio::select! {
            () = lost(&live) => false,
            // An error means that every handle is gone.
            _ = stopped.wait_for(|stopped| *stopped) => true,
        };
        if is_stopped {
            live.close().await;
            tell.send_replace(State::Closed);
            return;
        }
        tracing::warn!(broker = %way.place, "the connection was lost; opening it again");
        tell.send_replace(State::Down(MessagingError::Connection {
            provider: PROVIDER,
            detail: format!("{}: the connection was lost and is being opened again", way.place),
            source: None,
        }));
        let mut pause = FIRST_PAUSE;
        live = loop {
            let connect = async {
                let connected = way.connect().await;
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
                        tell.send_replace(State::Down(error));
                    }
                },
                _ = stopped.wait_for(|stopped| *stopped) => {
                    tell.send_replace(State::Closed);
                    return;
                }
            }
        };
        tracing::warn!(broker = %way.place, "connected again");
        tell.send_replace(State::Up(live.clone()));
    }
}

/// Waits for the end of a connection. Its events tell of it at once; looking as well costs nothing and misses nothing.
async fn lost(live: &Live) {
    let mut events = live.connection.events_listener();
    while live.is_up() {
        match tokio::time::timeout(Duration::from_millis(500), events.next()).await {
            Ok(Some(Event::ConnectionBlocked(why))) => {
                tracing::warn!(%why, "the broker takes no messages for now");
            }
            // It is told a moment before the connection's state changes.
            Ok(Some(Event::Error(_)) | None) => tokio::time::sleep(Duration::from_millis(5)).await,
            Ok(Some(_)) | Err(_) => {}
        }
    }
}

/// Locks what is held for a few moves only.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
