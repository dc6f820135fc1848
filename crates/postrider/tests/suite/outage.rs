//! How long an outage lasts for a subscriber and for a task worker: hardly longer than for the server.

use std::time::Duration;

use postrider::subscriber::{Delivery, HandlerError, Shutdown, Subscriber};
use postrider::task::{NewTask, TaskMode, TaskRoutes};
use postrider::tasks::{TaskContext, Tasks};
use postrider::{
    BreakerSettings, Deadline, Guarded, Message, MessagingProvider, MessagingService, QueueName, TaskStorage,
};
use postrider_conformance::proxy::FaultProxy;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::test_store::TestStore;

/// Long enough for every pause between two tries to reach its longest.
const OUTAGE: Duration = Duration::from_secs(3);

/// Bounds of the time between the server's return and the next delivery: median and maximum.
struct Bounds {
    median: Duration,
    most: Duration,
}

impl Bounds {
    /// The long run has the machine to itself; the short one runs beside other tests.
    fn of_this_run() -> Self {
        let (median, most) = if crate::is_long() { (500, 2000) } else { (1000, 4000) };
        Self { median: Duration::from_millis(median), most: Duration::from_millis(most) }
    }

    fn check(&self, who: &str, fault: Fault, mut late: Vec<Duration>) {
        late.sort_unstable();
        let (median, most) = (late[late.len() / 2], late[late.len() - 1]);
        println!("{who}, {fault:?}: {median:?} late in the median, {most:?} at most");
        assert!(median <= self.median && most <= self.most, "{who}, {fault:?}: {late:?}");
    }
}

/// How a server fails.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Connections are ended, and new ones refused.
    Refused,
    /// Connections stay open and silent.
    Silent,
}

impl Fault {
    fn begin(self, proxy: &FaultProxy) {
        match self {
            Self::Refused => proxy.refuse(),
            Self::Silent => proxy.stall(),
        }
    }
}

/// The numbers of messages or tasks, as their handlers got them. Unsettled ones come again after the outage, so numbers
/// identify them.
type Begun = mpsc::UnboundedReceiver<(String, Instant)>;

/// Starts a polling task worker on the provider's store.
async fn start_worker(provider: &MessagingProvider, shutdown: &Shutdown) -> (JoinHandle<()>, Begun) {
    let (begun, numbers) = mpsc::unbounded_channel();
    let handler = move |task: TaskContext| {
        begun.send((text(task.payload()), Instant::now())).unwrap();
        std::future::ready(Ok::<_, HandlerError>(()))
    };
    let worker = tasks(provider).await.worker().handler("work", handler).build().unwrap();
    let shutdown = shutdown.clone();
    (tokio::spawn(async move { drop(worker.run(shutdown).await.unwrap()) }), numbers)
}

async fn tasks(provider: &MessagingProvider) -> Tasks<TaskStorage, MessagingProvider> {
    let routes = TaskRoutes { mode: TaskMode::Polling, ..TaskRoutes::default() };
    Tasks::new(TaskStorage::new(provider, routes).await.unwrap(), provider.clone())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// How late a handler got this number.
async fn late(begun: &mut Begun, number: &str, back: Instant) -> Duration {
    let come = async {
        loop {
            let (come, at) = begun.recv().await.unwrap();
            if come == number {
                return at.saturating_duration_since(back);
            }
        }
    };
    timeout(Duration::from_secs(60), come).await.unwrap()
}

async fn assert_short(store: TestStore, keeps_tasks: bool) {
    let proxy = FaultProxy::before(store.url()).await.unwrap();
    let queue = QueueName::new("outages").unwrap();
    let beside = store.connect().await;
    beside.ensure_queue(&queue, Deadline::default()).await.unwrap();
    let provider: MessagingProvider = store.endpoint_by(&proxy.url()).connect().await.unwrap();
    let guarded = Guarded::new(provider.clone(), BreakerSettings::default());
    let (delivered, mut deliveries) = mpsc::unbounded_channel();
    let handler = tower::service_fn(move |delivery: Delivery| {
        delivered.send((text(&delivery.body), Instant::now())).unwrap();
        std::future::ready(Ok::<_, HandlerError>(()))
    });
    let shutdown = Shutdown::new();
    let subscriber = Subscriber::builder(guarded.clone(), queue.clone()).handler(handler).build().unwrap();
    let running = tokio::spawn(subscriber.run(shutdown.clone()));
    // A task worker too, if the store keeps tasks.
    let mut worker = match keeps_tasks {
        true => Some((start_worker(&provider, &shutdown).await, tasks(&beside).await)),
        false => None,
    };
    let bounds = Bounds::of_this_run();
    for fault in [Fault::Refused, Fault::Silent] {
        let (mut deliveries_late, mut tasks_late) = (Vec::new(), Vec::new());
        for outage in 0..=outages() {
            // The first round is without an outage: everything is connected.
            let is_away = outage > 0;
            let number = format!("{fault:?} {outage}");
            if is_away {
                fault.begin(&proxy);
            }
            beside.send_message(&queue, Message::new(number.clone()), Deadline::default()).await.unwrap();
            if let Some((_, tasks)) = &worker {
                tasks
                    .client()
                    .create(NewTask::new("work", number.clone()).unwrap(), Deadline::default())
                    .await
                    .unwrap();
            }
            if is_away {
                sleep(OUTAGE).await;
                while let Ok((come, _)) = deliveries.try_recv() {
                    assert_ne!(come, number, "a message came over a cut link");
                }
            }
            let back = Instant::now();
            proxy.restore();
            let delivery = late(&mut deliveries, &number, back).await;
            let task = match &mut worker {
                Some(((_, begun), _)) => Some(late(begun, &number, back).await),
                None => None,
            };
            if is_away {
                deliveries_late.push(delivery);
                tasks_late.extend(task);
            }
        }
        bounds.check("subscriber", fault, deliveries_late);
        if worker.is_some() {
            bounds.check("task worker", fault, tasks_late);
        }
    }
    shutdown.request();
    running.await.unwrap();
    if let Some(((worker, _), _)) = worker {
        worker.await.unwrap();
    }
    guarded.close(Deadline::default()).await.unwrap();
    beside.close(Deadline::default()).await.unwrap();
    store.remove().await;
}

/// Number of outages of each kind, each about 3 s long.
fn outages() -> usize {
    if crate::is_long() { 20 } else { 3 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_comes_soon_after_postgres_is_back() {
    assert_short(TestStore::postgres(), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_comes_soon_after_mariadb_is_back() {
    assert_short(TestStore::mariadb().await, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_comes_soon_after_rabbitmq_is_back() {
    assert_short(TestStore::rabbitmq().await, false).await;
}
