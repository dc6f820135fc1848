//! Subscriber processes that are suspended for longer than their leases, and then continue.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use postrider_conformance::checker::FindingKind;
use postrider_conformance::history::{Event, LeaseOutcome, Operation};
use postrider_conformance::processes::WorkerProcess;
use postrider_conformance::recorded::Recorded;
use postrider_core::failpoint::{self, Action};
use postrider_core::{Message, MessagingService, SharedProvider};
use postrider_subscriber::{Delivery, Subscriber};
use tokio::sync::Semaphore;

use super::{WorkerProcesses, until};
use crate::fixture::{Running, handler, queue, soon, start};
use crate::scripted::{Call, Scripted, Verdict};

/// Long enough that none is lost on a busy machine.
const LEASE: Duration = Duration::from_secs(3);
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// A message whose handler waits until it is cancelled, because its lease is lost.
const WAITS: &str = "waits";
/// A message whose handler ends at once; the process is suspended before the message is settled.
const ENDS: &str = "ends";

fn process(worker: &WorkerProcess) -> Pid {
    Pid::from_raw(worker.id().try_into().unwrap())
}

async fn has_stopped(worker: &WorkerProcess) {
    let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG;
    until("the process is stopped", TIME_LIMIT, || async {
        matches!(waitpid(process(worker), Some(flags)).unwrap(), WaitStatus::Stopped(..))
    })
    .await;
}

fn resume(worker: &WorkerProcess) {
    kill(process(worker), Signal::SIGCONT).unwrap();
}

async fn send(workers: &WorkerProcesses, bodies: impl IntoIterator<Item = String>) {
    let messages = bodies.into_iter().map(Message::new).collect();
    for row in workers.own.send_batch(&queue(), messages, soon()).await.unwrap() {
        row.unwrap();
    }
}

/// Another subscriber, in this process.
async fn another(workers: &WorkerProcesses) -> Running {
    let provider = Recorded::new(workers.test_store.connect().await, workers.history.clone(), 1000);
    let subscriber =
        Subscriber::builder(provider, queue()).handler(handler(|_| async { Ok(()) })).visibility(LEASE).build();
    start(subscriber.unwrap())
}

/// The number of settlements of a process that were refused because their lease had ended.
fn refused(events: &[Event]) -> usize {
    let is_refused = |event: &&Event| match &event.operation {
        Operation::Settle(call) => call.outcome == LeaseOutcome::Expired,
        _ => false,
    };
    events.iter().filter(is_refused).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_suspended_for_longer_than_its_lease_changes_nothing() {
    let mut workers = WorkerProcesses::new("stopped outside").await;
    send(&workers, [WAITS.into(), ENDS.into()]).await;
    let (number, worker) = workers.start();
    has_stopped(&worker).await;
    let other = another(&workers).await;
    until("another handles both", TIME_LIMIT, || async { other.monitor.counts().acked == 2 }).await;
    resume(&worker);
    let report = report_of(&workers.journal(number));
    until("the worker has seen what happened", TIME_LIMIT, || async { report.exists() }).await;
    assert!(worker.wait().unwrap());
    let report = std::fs::read_to_string(report).unwrap();
    assert_eq!(report, "2 lost, 0 acked, 1 cancelled", "of the suspended worker");
    assert_eq!(refused(&workers.events_of(number)), 1, "the settlement that came too late");
    other.stop().await;
    let verdict = workers.verdict().await;
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!((verdict.counts.acks, verdict.counts.live, verdict.counts.dead), (2, 0, 0));
}

/// The same on a file that keeps the first lease token of a message over later leases: the late settlement succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_fencing_is_revealed_by_a_suspended_worker() {
    let mut workers = WorkerProcesses::new("stopped outside").await;
    workers.sabotage(
        "create trigger unfence after update of lease_token on message
         when old.lease_token is not null and new.lease_token is not null
         begin update message set lease_token = old.lease_token where id = new.id; end",
    );
    send(&workers, [WAITS.into(), ENDS.into()]).await;
    let (number, worker) = workers.start();
    has_stopped(&worker).await;
    // Wait until the leases have certainly ended.
    tokio::time::sleep(LEASE * 5 / 4).await;
    let other = another(&workers).await;
    until("another has both", TIME_LIMIT, || async { other.monitor.counts().received == 2 }).await;
    resume(&worker);
    until("the settlement is answered", TIME_LIMIT, || async {
        let events = workers.events_of(number);
        events
            .iter()
            .any(|event| matches!(&event.operation, Operation::Settle(call) if call.outcome == LeaseOutcome::Done))
    })
    .await;
    drop(worker);
    other.stop().await;
    let verdict = workers.verdict().await;
    assert!(verdict.has(FindingKind::StaleSettle), "{verdict}");
}

/// A process that is suspended with the write lock stops all others. They wait, and nothing goes wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_suspended_inside_a_transaction_loses_no_message() {
    const MESSAGES: usize = 50;
    let mut workers = WorkerProcesses::new("stopped inside").await;
    send(&workers, (0..MESSAGES).map(|number| if number == 10 { ENDS.into() } else { number.to_string() })).await;
    let (_, worker) = workers.start();
    has_stopped(&worker).await;
    let other = another(&workers).await;
    // By the store's clock every lease has ended by then, but no process can read the file.
    tokio::time::sleep(LEASE * 5 / 4).await;
    assert_eq!(other.monitor.counts().received, 0, "the others wait");
    resume(&worker);
    until("everything is settled", TIME_LIMIT, || workers.is_empty()).await;
    drop(worker);
    other.stop().await;
    let verdict = workers.verdict().await;
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!((verdict.counts.live, verdict.counts.dead), (0, 0));
    assert_eq!(verdict.counts.acks + verdict.counts.unknown_acks, MESSAGES as u64, "each was settled once");
}

fn report_of(journal: &Path) -> PathBuf {
    journal.with_extension("report")
}

/// The worker process: suspended outside a transaction, while a settlement is on its way.
pub(super) async fn stop_outside(provider: Recorded<SharedProvider>, journal: &Path) {
    let cancelled = Arc::new(AtomicUsize::new(0));
    let counted = cancelled.clone();
    let waits = Arc::new(Semaphore::new(0));
    let handle = handler(move |delivery: Delivery| {
        let (counted, waits) = (counted.clone(), waits.clone());
        async move {
            if delivery.body == WAITS {
                waits.add_permits(1);
                delivery.cancellation().cancelled().await;
                counted.fetch_add(1, Ordering::SeqCst);
            } else {
                waits.acquire().await.unwrap().forget();
            }
            Ok(())
        }
    });
    // Armed when the settlement has left the subscriber: it comes too late in whichever transaction is next.
    let provider = Scripted::new(provider, |call| {
        if call == Call::Settle(0) {
            failpoint::arm("sqlite.begin", Action::Stop);
        }
        Verdict::Pass
    });
    let running = subscriber(provider, handle);
    running.until(|counts| counts.lost + counts.acked == 2 && counts.in_flight == 0).await;
    let counts = running.monitor.counts();
    let text = format!("{} lost, {} acked, {} cancelled", counts.lost, counts.acked, cancelled.load(Ordering::SeqCst));
    // Renamed, so that no half-written report is read.
    let report = report_of(journal);
    std::fs::write(report.with_extension("part"), text).unwrap();
    std::fs::rename(report.with_extension("part"), report).unwrap();
}

/// The worker process: suspended after it has written a settlement and before the commit.
pub(super) async fn stop_inside(provider: Recorded<SharedProvider>) {
    let handle = handler(|delivery: Delivery| async move {
        if delivery.body == ENDS {
            failpoint::arm("sqlite.commit", Action::Stop);
        }
        Ok(())
    });
    subscriber(provider, handle).stopped().await;
}

fn subscriber<P, H>(provider: P, handle: H) -> Running
where
    P: MessagingService,
    H: postrider_subscriber::IntoHandler<postrider_subscriber::handler::AService>,
{
    let subscriber = Subscriber::builder(provider, queue()).handler(handle).max_workers(2).visibility(LEASE).build();
    start(subscriber.unwrap())
}
