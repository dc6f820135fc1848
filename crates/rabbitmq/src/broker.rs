//! One connection to the broker with its leases; `impl Broker` says where each operation is.

use std::sync::Arc;
use std::time::Duration;

use lapin::uri::AMQPUri;
use postrider_broker::{Broker, Stored};
use postrider_core::coalescer::{BatchFailure, ExtendRow, SendRow, with_same_receipts};
use postrider_core::{
    Capabilities, Deadline, MessageId, MessagingError, QueueName, QueueStats, ReceiptHandle, ReceiveOptions,
    RowResults, Settlement, WakeUps, spawn,
};
use postrider_provider::{Claimed, Patience};
use tokio::sync::{mpsc, watch};

use crate::PROVIDER;
use crate::connection::BrokerConnection;
use crate::flags::{self, Flag};
use crate::hold::RabbitmqHold;
use crate::leases::Leases;
use crate::management::Management;
use crate::options::RabbitmqOptions;
use crate::partitions::AllPartitions;
use crate::topology::{self, all_levels, check_name, delay_queue, partition_queue};

/// Number of batches sent at the same time. They share a channel that pipelines its messages, so small batches cost no more
/// than large ones, and a caller waits for fewer other messages.
const SENDERS: usize = 65;

/// Polling interval of hints.
const HINT_INTERVAL: Duration = Duration::from_millis(250);

/// A connection to a broker. Clones are the same connection.
#[derive(Debug, Clone)]
pub struct RabbitmqBroker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: BrokerConnection,
    options: RabbitmqOptions,
    capabilities: Capabilities,
    management: Arc<Management>,
    leases: Arc<Leases>,
    keyed: AllPartitions,
    /// Random number that marks the receipts of this connection.
    instance: u64,
    /// Stops the lease timer when dropped.
    _open: watch::Sender<()>,
}

impl RabbitmqBroker {
    pub(crate) async fn connect(uri: AMQPUri, options: RabbitmqOptions) -> Result<Self, MessagingError> {
        let management = Arc::new(Management::new(&uri, &options)?);
        let connection = BrokerConnection::open(uri, &options, management.clone()).await?;
        let (open, is_open) = watch::channel(());
        let leases = Arc::new(Leases::default());
        let broker = Self(Arc::new(Inner {
            connection,
            capabilities: crate::capabilities::capabilities(&options),
            management,
            options,
            leases: leases.clone(),
            keyed: AllPartitions::default(),
            instance: rand::random(),
            _open: open,
        }));
        spawn(requeue_expired(Arc::downgrade(&broker.0), leases, is_open));
        Ok(broker)
    }

    pub(crate) fn connection(&self) -> &BrokerConnection {
        &self.0.connection
    }

    pub(crate) fn options(&self) -> &RabbitmqOptions {
        &self.0.options
    }

    pub(crate) fn known_capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.0.leases
    }

    pub(crate) fn keyed(&self) -> &AllPartitions {
        &self.0.keyed
    }

    pub(crate) fn instance(&self) -> u64 {
        self.0.instance
    }

    pub(crate) fn management(&self) -> &Management {
        &self.0.management
    }

    /// The broker's queues with the ready messages of a queue: the queue itself, and its partitions if it has any.
    pub(crate) async fn sources(
        &self,
        live: &crate::connection::LiveConnection,
        queue: &QueueName,
    ) -> Result<Vec<String>, MessagingError> {
        let mut sources = vec![queue.to_string()];
        if flags::are_set(live, queue, &[Flag::Keyed]).await?[0] {
            sources.extend((0..self.options().partitions).map(|index| partition_queue(queue, index)));
        }
        Ok(sources)
    }

    /// The delay queues of a queue.
    pub(crate) async fn delay_queues(
        &self,
        live: &crate::connection::LiveConnection,
        queue: &QueueName,
    ) -> Result<Vec<String>, MessagingError> {
        let flags: Vec<_> = all_levels().map(Flag::Delay).collect();
        let set = flags::are_set(live, queue, &flags).await?;
        Ok(all_levels().zip(set).filter(|(_, set)| *set).map(|(level, _)| delay_queue(queue, level)).collect())
    }
}

/// Requeues the messages of expired leases until the connection is closed.
async fn requeue_expired(broker: std::sync::Weak<Inner>, leases: Arc<Leases>, mut open: watch::Receiver<()>) {
    loop {
        let expired = tokio::select! {
            expired = leases.next_expired() => expired,
            // Nothing is ever sent: the sender was dropped.
            _ = open.changed() => return,
        };
        let Some(broker) = broker.upgrade().map(RabbitmqBroker) else { return };
        let queues: Vec<_> = expired.iter().map(|lease| lease.queue.clone()).collect();
        // In a task of its own: one channel that does not answer must not delay the messages of other channels.
        spawn(async move {
            if let Err(error) = broker.requeue_leases(expired).await {
                tracing::debug!(
                    ?error,
                    "messages were not requeued; the broker requeues them when the connection ends"
                );
            }
            for queue in queues {
                broker.keyed().notify(&queue);
            }
        });
    }
}

impl Broker for RabbitmqBroker {
    const PROVIDER: &'static str = PROVIDER;

    type Hold = RabbitmqHold;

    fn capabilities(&self) -> &Capabilities {
        self.known_capabilities()
    }

    fn creates_queues(&self) -> bool {
        self.options().create_queues
    }

    fn senders(&self) -> usize {
        SENDERS
    }

    async fn health_check(&self, deadline: Deadline) -> Result<(), MessagingError> {
        let live = self.connection().live(deadline).await?;
        // Any request with an answer serves.
        let open = |channel: lapin::Channel| async move { channel.basic_qos(0, Default::default()).await };
        live.request("health check", open).await?.map_err(|error| crate::error::failed("health check", error))
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        check_name(queue)?;
        let live = self.connection().live(deadline).await?;
        // It may have been deleted since it was last seen.
        live.known.forget(queue);
        self.builder(&live).queue(queue).await?;
        live.wait_until_crash_safe(queue).await
    }

    async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, BatchFailure> {
        let results = self.send_rows(rows).await;
        for row in rows.iter().filter(|row| row.message.ordering_key.is_some()) {
            self.keyed().notify(&row.queue);
        }
        results
    }

    async fn sent(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        // Almost always there is nothing to wait for; then no connection is needed.
        if self.connection().known().new_queues(queue).is_none() {
            return Ok(());
        }
        let (connection, queue) = (self.connection().clone(), queue.clone());
        // A task, because a caller may not poll for long, and other requests use the same channel.
        let wait = tokio::spawn(async move { connection.live(deadline).await?.wait_until_crash_safe(&queue).await });
        match deadline.limit(wait).await {
            Some(Ok(waited)) => waited,
            Some(Err(_)) | None => Err(crate::error::no_answer("send")),
        }
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, BatchFailure> {
        self.settle_rows(settlements).await
    }

    async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<ReceiptHandle>, BatchFailure> {
        Ok(with_same_receipts(rows, self.extend_leases(rows)))
    }

    async fn give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), MessagingError> {
        let leases = receipts.iter().filter_map(|receipt| self.leases().take(receipt)).collect();
        self.requeue_leases(leases).await
    }

    async fn receive(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
        patience: Patience,
    ) -> Result<Vec<Claimed>, MessagingError> {
        check_name(queue)?;
        self.claim(queue, options, deadline, patience).await
    }

    async fn wake_ups(&self, queue: &QueueName, _: Deadline) -> Result<WakeUps, MessagingError> {
        check_name(queue)?;
        let (broker, queue) = (self.clone(), queue.clone());
        let (sender, hints) = mpsc::channel(1);
        // A task, because the receiver of the hints may not poll for long, and a request that is not polled would block the
        // channel that all requests share.
        spawn(async move {
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    () = tokio::time::sleep(HINT_INTERVAL) => {}
                }
                match broker.has_ready(&queue).await {
                    // A hint that was not read yet is enough.
                    Ok(true) => drop(sender.try_send(())),
                    Err(MessagingError::Closed { .. }) => return,
                    Ok(false) | Err(_) => {}
                }
            }
        });
        Ok(WakeUps::new(futures_util::stream::unfold(hints, |mut hints| async move {
            hints.recv().await.map(|()| ((), hints))
        })))
    }

    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        self.management().list_queues(deadline).await
    }

    async fn is_usable(
        &self,
        queue: &QueueName,
        deadline: Deadline,
    ) -> Result<Option<Result<(), String>>, MessagingError> {
        if let Err(error) = check_name(queue) {
            return Ok(Some(Err(error.to_string())));
        }
        let live = self.connection().live(deadline).await?;
        Ok(live.counts(queue.as_str()).await?.map(|_| Ok(())))
    }

    async fn stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        check_name(queue)?;
        self.count(queue, deadline).await
    }

    async fn set_paused(&self, queue: &QueueName, is_paused: bool, deadline: Deadline) -> Result<(), MessagingError> {
        check_name(queue)?;
        let live = self.connection().live(deadline).await?;
        flags::set(&live, queue, Flag::Paused, is_paused).await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        check_name(queue)?;
        let live = self.connection().live(deadline).await?;
        let mut names = self.sources(&live, queue).await?;
        names.extend(self.delay_queues(&live, queue).await?);
        let mut purged = 0;
        for name in names {
            purged += topology::purge(&live, &name).await?;
        }
        Ok(purged)
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        check_name(queue)?;
        let live = self.connection().live(deadline).await?;
        let mut names = self.sources(&live, queue).await?;
        names.extend(self.delay_queues(&live, queue).await?);
        names.push(queue.dead_letters().to_string());
        names.extend(self.delay_queues(&live, &queue.dead_letters()).await?);
        live.known.forget(queue);
        live.known.forget(&queue.dead_letters());
        for (name, is_crash_safe) in names.iter().zip(flags::are_crash_safe(&live, &names).await?) {
            if is_crash_safe {
                flags::set_crash_safe(&live, name, false).await?;
            }
            topology::delete(&live, name).await?;
        }
        let flags = all_levels().map(Flag::Delay).chain([Flag::Keyed, Flag::Paused]).collect::<Vec<_>>();
        for queue in [queue.clone(), queue.dead_letters()] {
            let set = flags::are_set(&live, &queue, &flags).await?;
            for (flag, _) in flags.iter().zip(set).filter(|(_, set)| *set) {
                flags::set(&live, &queue, *flag, false).await?;
            }
        }
        Ok(())
    }

    async fn hold(&self, queue: &QueueName, deadline: Deadline) -> Result<RabbitmqHold, MessagingError> {
        check_name(queue)?;
        let live = self.connection().live(deadline).await?;
        let sources = self.sources(&live, queue).await?;
        Ok(RabbitmqHold::new(self.clone(), live, queue.clone(), sources))
    }

    fn leased(&self, queue: &QueueName) -> Vec<Stored> {
        self.leases().of(queue)
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        drop(self.leases().take_all());
        let closed = deadline.limit(self.connection().close()).await;
        closed.ok_or(MessagingError::OutcomeUnknown { operation: "close", ids: Vec::new(), source: None })
    }
}
