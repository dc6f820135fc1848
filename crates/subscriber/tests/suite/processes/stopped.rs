//! Subscribers that are stopped for longer than their leases last, and go on as if nothing had happened.

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

use super::{Crew, until};
use crate::fixture::{Running, handler, queue, soon, start};
use crate::scripted::{Call, Scripted, Verdict};

/// Long enough that a busy machine loses none by itself.
const LEASE: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(30);
/// Its handler waits until it is told that its lease is lost.
const WAITS: &str = "waits";
/// Its handler ends at once, and the process is stopped before the store has heard of it.
const ENDS: &str = "ends";

fn process(worker: &WorkerProcess) -> Pid {
    Pid::from_raw(worker.id().try_into().unwrap())
}

async fn has_stopped(worker: &WorkerProcess) {
    let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG;
    until("the process is stopped", PATIENCE, || async {
        matches!(waitpid(process(worker), Some(flags)).unwrap(), WaitStatus::Stopped(..))
    })
    .await;
}

fn goes_on(worker: &WorkerProcess) {
    kill(process(worker), Signal::SIGCONT).unwrap();
}

async fn send(crew: &Crew, bodies: impl IntoIterator<Item = String>) {
    let messages = bodies.into_iter().map(Message::new).collect();
    for row in crew.own.send_batch(&queue(), messages, soon()).await.unwrap() {
        row.unwrap();
    }
}

/// Another subscriber, in this process.
async fn another(crew: &Crew) -> Running {
    let provider = Recorded::new(crew.place.connect().await, crew.history.clone(), 1000);
    let subscriber =
        Subscriber::builder(provider, queue()).handler(handler(|_| async { Ok(()) })).visibility(LEASE).build();
    start(subscriber.unwrap())
}

/// Settlements of a process that were told that their lease was over.
fn refused(events: &[Event]) -> usize {
    let is_refused = |event: &&Event| match &event.operation {
        Operation::Settle(call) => call.outcome == LeaseOutcome::Expired,
        _ => false,
    };
    events.iter().filter(is_refused).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_stopped_for_longer_than_its_lease_changes_nothing() {
    let mut crew = Crew::new("stopped outside").await;
    send(&crew, [WAITS.into(), ENDS.into()]).await;
    let (number, worker) = crew.start();
    has_stopped(&worker).await;
    let other = another(&crew).await;
    until("another handles both", PATIENCE, || async { other.monitor.counts().acked == 2 }).await;
    goes_on(&worker);
    let report = report_of(&crew.journal(number));
    until("the worker has seen what happened", PATIENCE, || async { report.exists() }).await;
    assert!(worker.wait().unwrap());
    let report = std::fs::read_to_string(report).unwrap();
    assert_eq!(report, "2 lost, 0 acked, 1 cancelled", "of the worker that was stopped");
    assert_eq!(refused(&crew.events_of(number)), 1, "the settlement that came too late");
    other.stop().await;
    let verdict = crew.verdict().await;
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!((verdict.counts.acks, verdict.counts.live, verdict.counts.dead), (2, 0, 0));
}

/// The same on a file that keeps the first token of a message whoever leases it later: the late settlement is obeyed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_without_fencing_is_found_out_by_a_stopped_worker() {
    let mut crew = Crew::new("stopped outside").await;
    crew.sabotage(
        "create trigger unfence after update of lease_token on message
         when old.lease_token is not null and new.lease_token is not null
         begin update message set lease_token = old.lease_token where id = new.id; end",
    );
    send(&crew, [WAITS.into(), ENDS.into()]).await;
    let (number, worker) = crew.start();
    has_stopped(&worker).await;
    // The leases have run out for whoever watches from outside, too.
    tokio::time::sleep(LEASE * 5 / 4).await;
    let other = another(&crew).await;
    until("another has both", PATIENCE, || async { other.monitor.counts().received == 2 }).await;
    goes_on(&worker);
    until("the settlement is answered", PATIENCE, || async {
        let events = crew.events_of(number);
        events
            .iter()
            .any(|event| matches!(&event.operation, Operation::Settle(call) if call.outcome == LeaseOutcome::Done))
    })
    .await;
    drop(worker);
    other.stop().await;
    let verdict = crew.verdict().await;
    assert!(verdict.has(FindingKind::StaleSettle), "{verdict}");
}

/// A process that is stopped with the write lock in its hand stops all others: nothing more is promised than that
/// nothing goes wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_stopped_inside_a_transaction_harms_nobody() {
    const MESSAGES: usize = 50;
    let mut crew = Crew::new("stopped inside").await;
    send(&crew, (0..MESSAGES).map(|number| if number == 10 { ENDS.into() } else { number.to_string() })).await;
    let (_, worker) = crew.start();
    has_stopped(&worker).await;
    let other = another(&crew).await;
    // By the store's clock every lease has run out by then, and nobody can see it.
    tokio::time::sleep(LEASE * 5 / 4).await;
    assert_eq!(other.monitor.counts().received, 0, "the others wait");
    goes_on(&worker);
    until("everything is settled", PATIENCE, || crew.is_empty()).await;
    drop(worker);
    other.stop().await;
    let verdict = crew.verdict().await;
    assert!(verdict.is_clean(), "{verdict}");
    assert_eq!((verdict.counts.live, verdict.counts.dead), (0, 0));
    assert_eq!(verdict.counts.acks + verdict.counts.unknown_acks, MESSAGES as u64, "each was settled once");
}

fn report_of(journal: &Path) -> PathBuf {
    journal.with_extension("report")
}

/// The worker's side: stopped when nothing of it is in a transaction and a settlement is on its way.
pub(super) async fn stop_outside(provider: Recorded<SharedProvider>, journal: &Path) {
    let cancelled = Arc::new(AtomicUsize::new(0));
    let told = cancelled.clone();
    let waits = Arc::new(Semaphore::new(0));
    let handle = handler(move |delivery: Delivery| {
        let (told, waits) = (told.clone(), waits.clone());
        async move {
            if delivery.body == WAITS {
                waits.add_permits(1);
                delivery.cancellation().cancelled().await;
                told.fetch_add(1, Ordering::SeqCst);
            } else {
                waits.acquire().await.unwrap().forget();
            }
            Ok(())
        }
    });
    // Armed once the settlement has left the subscriber: whichever transaction is next, it comes too late.
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
    // Renamed, so that nobody reads half of it.
    let report = report_of(journal);
    std::fs::write(report.with_extension("part"), text).unwrap();
    std::fs::rename(report.with_extension("part"), report).unwrap();
}

/// The worker's side: stopped when it has written a settlement and not committed it.
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
