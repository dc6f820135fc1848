//! One connection to the broker, and everything that it holds.

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
use crate::flags::{self, Flag};
use crate::hold::RabbitmqHold;
use crate::keyed::AllKeyed;
use crate::leases::Leases;
use crate::link::Link;
use crate::management::Management;
use crate::options::RabbitmqOptions;
use crate::topology::{self, all_levels, check_name, partition, waiting_queue};

/// How many batches are sent at the same time. They share a channel that never waits, so small ones cost no more than
/// large ones do, and a caller waits for fewer others.
const SENDERS: usize = 65;

/// How often a hint is looked for.
const HINT: Duration = Duration::from_millis(250);

/// A connection to a broker. Clones are the same connection.
#[derive(Debug, Clone)]
pub struct RabbitmqBroker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    link: Link,
    options: RabbitmqOptions,
    capabilities: Capabilities,
    management: Arc<Management>,
    leases: Arc<Leases>,
    keyed: AllKeyed,
    /// What makes the receipts of this connection different from those of all others.
    instance: u64,
    /// Dropped, it ends the timer of the leases.
    _open: watch::Sender<()>,
}

impl RabbitmqBroker {
    pub(crate) async fn connect(uri: AMQPUri, options: RabbitmqOptions) -> Result<Self, MessagingError> {
        let management = Arc::new(Management::new(&uri, &options)?);
        let link = Link::open(uri, &options, management.clone()).await?;
        let (open, is_open) = watch::channel(());
        let leases = Arc::new(Leases::default());
        let broker = Self(Arc::new(Inner {
            link,
            capabilities: crate::capabilities::capabilities(&options),
            management,
            options,
            leases: leases.clone(),
            keyed: AllKeyed::default(),
            instance: rand::random(),
            _open: open,
        }));
        spawn(end_leases(Arc::downgrade(&broker.0), leases, is_open));
        Ok(broker)
    }

    pub(crate) fn link(&self) -> &Link {
        &self.0.link
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

    pub(crate) fn keyed(&self) -> &AllKeyed {
        &self.0.keyed
    }

    pub(crate) fn instance(&self) -> u64 {
        self.0.instance
    }

    pub(crate) fn management(&self) -> &Management {
        &self.0.management
    }

    /// The broker's queues that hold messages of a queue: its own, and its partitions if it has any.
    pub(crate) async fn sources(
        &self,
        live: &crate::link::Live,
        queue: &QueueName,
    ) -> Result<Vec<String>, MessagingError> {
        let mut sources = vec![queue.to_string()];
        if flags::are_set(live, queue, &[Flag::Keyed]).await?[0] {
            sources.extend((0..self.options().partitions).map(|index| partition(queue, index)));
        }
        Ok(sources)
    }

    /// The waiting queues of a queue.
    pub(crate) async fn waiting(
        &self,
        live: &crate::link::Live,
        queue: &QueueName,
    ) -> Result<Vec<String>, MessagingError> {
        let flags: Vec<_> = all_levels().map(Flag::Waits).collect();
        let set = flags::are_set(live, queue, &flags).await?;
        Ok(all_levels().zip(set).filter(|(_, set)| *set).map(|(level, _)| waiting_queue(queue, level)).collect())
    }
}

/// Gives back what leases ran out on, as long as there is a connection.
async fn end_leases(broker: std::sync::Weak<Inner>, leases: Arc<Leases>, mut open: watch::Receiver<()>) {
    loop {
        let over = tokio::select! {
            over = leases.run_out() => over,
            // Nothing is ever sent: this is the end of the sender.
            _ = open.changed() => return,
        };
        let Some(broker) = broker.upgrade().map(RabbitmqBroker) else { return };
        let queues: Vec<_> = over.iter().map(|lease| lease.queue.clone()).collect();
        // Not waited for: one channel that does not answer must not keep the others' messages.
        spawn(async move {
            if let Err(error) = broker.give_back(over).await {
                tracing::debug!(?error, "messages were not given back; the broker does it when the connection ends");
            }
            for queue in queues {
                broker.keyed().tell(&queue);
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
        let live = self.link().live(deadline).await?;
        // Any request that the broker must answer will do.
        let open = |channel: lapin::Channel| async move { channel.basic_qos(0, Default::default()).await };
        live.ask("health check", open).await?.map_err(|error| crate::error::failed("health check", error))
    }

    async fn ensure_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        check_name(queue)?;
        let live = self.link().live(deadline).await?;
        // Made by us or not, it may have been deleted since.
        live.known.forget(queue);
        self.builder(&live).queue(queue).await?;
        live.wait_until_lasting(queue).await
    }

    async fn send(&self, rows: &[SendRow]) -> Result<RowResults<MessageId>, BatchFailure> {
        let results = self.send_rows(rows).await;
        for row in rows.iter().filter(|row| row.message.ordering_key.is_some()) {
            self.keyed().tell(&row.queue);
        }
        results
    }

    async fn sent(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        // Almost always there is nothing to wait for, and nobody is asked.
        if self.link().known().young(queue).is_none() {
            return Ok(());
        }
        let (link, queue) = (self.link().clone(), queue.clone());
        // A task, because a caller may look away for long, and others ask on the same channel.
        let wait = tokio::spawn(async move { link.live(deadline).await?.wait_until_lasting(&queue).await });
        match deadline.limit(wait).await {
            Some(Ok(waited)) => waited,
            Some(Err(_)) | None => Err(crate::error::silent("send")),
        }
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<RowResults<()>, BatchFailure> {
        self.end_leases(settlements).await
    }

    async fn extend(&self, rows: &[ExtendRow]) -> Result<RowResults<ReceiptHandle>, BatchFailure> {
        Ok(with_same_receipts(rows, self.extend_leases(rows)))
    }

    async fn give_up(&self, receipts: &[ReceiptHandle]) -> Result<(), MessagingError> {
        let leases = receipts.iter().filter_map(|receipt| self.leases().take(receipt)).collect();
        self.give_back(leases).await
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
        let (tell, hints) = mpsc::channel(1);
        // A task, because whoever listens may look away for long, and a question that nobody goes on with would keep the
        // channel that all questions are asked on.
        spawn(async move {
            loop {
                tokio::select! {
                    () = tell.closed() => return,
                    () = tokio::time::sleep(HINT) => {}
                }
                match broker.has_ready(&queue).await {
                    // One that is not taken yet is enough.
                    Ok(true) => drop(tell.try_send(())),
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
        let live = self.link().live(deadline).await?;
        Ok(live.counts(queue.as_str()).await?.map(|_| Ok(())))
    }

    async fn stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        check_name(queue)?;
        self.count(queue, deadline).await
    }

    async fn set_paused(&self, queue: &QueueName, is_paused: bool, deadline: Deadline) -> Result<(), MessagingError> {
        check_name(queue)?;
        let live = self.link().live(deadline).await?;
        flags::set(&live, queue, Flag::Paused, is_paused).await
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        check_name(queue)?;
        let live = self.link().live(deadline).await?;
        let mut names = self.sources(&live, queue).await?;
        names.extend(self.waiting(&live, queue).await?);
        let mut purged = 0;
        for name in names {
            purged += topology::empty(&live, &name).await?;
        }
        Ok(purged)
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        check_name(queue)?;
        let live = self.link().live(deadline).await?;
        let mut names = self.sources(&live, queue).await?;
        names.extend(self.waiting(&live, queue).await?);
        names.push(queue.dead_letters().to_string());
        names.extend(self.waiting(&live, &queue.dead_letters()).await?);
        live.known.forget(queue);
        live.known.forget(&queue.dead_letters());
        for (name, is_lasting) in names.iter().zip(flags::are_lasting(&live, &names).await?) {
            if is_lasting {
                flags::set_lasting(&live, name, false).await?;
            }
            topology::remove(&live, name).await?;
        }
        let flags = all_levels().map(Flag::Waits).chain([Flag::Keyed, Flag::Paused]).collect::<Vec<_>>();
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
        let live = self.link().live(deadline).await?;
        let sources = self.sources(&live, queue).await?;
        Ok(RabbitmqHold::new(self.clone(), live, queue.clone(), sources))
    }

    fn leased(&self, queue: &QueueName) -> Vec<Stored> {
        self.leases().of(queue)
    }

    async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        drop(self.leases().take_all());
        let closed = deadline.limit(self.link().close()).await;
        closed.ok_or(MessagingError::OutcomeUnknown { operation: "close", ids: Vec::new(), source: None })
    }
}
