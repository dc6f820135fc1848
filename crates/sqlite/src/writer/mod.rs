//! The one thread that writes.
//!
//! SQLite has one write lock for each file, so one writer is enough; on a thread of its own, no await, callback or user
//! code runs inside a write transaction. The writer takes all waiting calls into one transaction, commits once (one
//! fsync) and then answers every caller: the more callers, the more of them share an fsync.
//!
//! The coalescers' drivers run on the same thread, polled between transactions. A single send then costs one wake-up in
//! each direction; on the threads of a runtime each batch would cost two more.

mod drivers;
#[cfg(test)]
mod tests;
mod transaction;
mod upkeep;
pub(crate) mod work;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use postrider_core::coalescer::Drivers as CoalescerDrivers;
use rusqlite::Connection;
use tokio::sync::watch;

use crate::location::Identity;
use crate::lock_queue::LockQueue;
use crate::options::SqliteOptions;
use crate::session::{Rules, WriterCache};
use drivers::Drivers;
use postrider_core::wakes::Wakes;
use upkeep::Upkeep;
use work::UndeliveredLease;
pub(crate) use work::{Call, Reply, Work, WriteError};

/// Interval at which a waiting writer checks whether another process has written, while a receiver waits.
const LOOK_FOR_OTHERS: Duration = Duration::from_millis(50);

/// Time for which the writer spins for the next command, if the last one came within it. A single caller calls again as
/// soon as it has its answer: on a fast disk its rate doubles (from 180 µs a send to 90); on a slow disk it changes
/// nothing.
const SPIN_TIME: Duration = Duration::from_micros(150);

/// A command to the writer.
pub(crate) enum Command {
    /// Runs a call in the next transaction.
    Work(Box<dyn Work>),
    /// Polls these drivers until they end.
    Drive(CoalescerDrivers, Sender<Command>),
    /// Polls the driver with this number.
    Poll(usize),
    /// A receiver waits for messages of other processes.
    Listen,
}

/// What the writer and the connections of a store share.
#[derive(Debug, Clone)]
pub(crate) struct StoreContext {
    pub(crate) path: PathBuf,
    pub(crate) options: SqliteOptions,
    pub(crate) rules: Arc<Rules>,
    pub(crate) wakes: Arc<Wakes>,
}

/// Sends commands to the writer. The writer ends when the last handle is dropped and all calls are done.
#[derive(Debug)]
pub(crate) struct WriterHandle {
    commands: Sender<Command>,
    running: watch::Receiver<()>,
}

impl WriterHandle {
    /// Starts a writer on an open connection.
    pub(crate) fn start(context: StoreContext, connection: Connection) -> std::io::Result<Self> {
        let (commands, received) = channel();
        let (alive, running) = watch::channel(());
        std::thread::Builder::new().name("postrider-sqlite".into()).spawn(move || {
            let _alive = alive;
            Writer::new(context, connection, received).run();
        })?;
        Ok(Self { commands, running })
    }

    /// Sends a command. A writer that has ended drops it, and the caller's reply channel closes.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Runs a coalescer's drivers on the writer's thread.
    pub(crate) fn drive(&self, drivers: CoalescerDrivers) {
        self.send(Command::Drive(drivers, self.commands.clone()));
    }

    pub(crate) fn commands(&self) -> Sender<Command> {
        self.commands.clone()
    }

    /// Lets the writer finish, and waits until it has closed the file.
    pub(crate) async fn end(self) {
        let Self { commands, mut running } = self;
        drop(commands);
        while running.changed().await.is_ok() {}
    }
}

struct Writer {
    context: StoreContext,
    commands: Receiver<Command>,
    /// `None` after a failure of the file; the next transaction opens it again.
    connection: Option<Connection>,
    identity: Option<Identity>,
    identity_seen: Instant,
    cache: WriterCache,
    drivers: Drivers,
    /// Commands that came during a transaction and are not calls: drivers wake callers, and no caller is woken inside
    /// one.
    deferred: Vec<Command>,
    /// Calls that wait for a transaction.
    waiting: VecDeque<Box<dyn Work>>,
    /// Number of next calls that get a transaction each, because one of them failed a shared one.
    isolated: usize,
    /// Whether SQLite has found no free space since all calls last succeeded.
    is_full: bool,
    /// Whether a checkpoint failed because the disk is full. It is tried again before anything is added to the log,
    /// which would take the space that the file needs.
    needs_checkpoint: bool,
    /// The last read `data_version`; it changes when another connection commits.
    seen_version: i64,
    lock_queue: LockQueue,
    upkeep: Upkeep,
    /// Whether the last command came within [`SPIN_TIME`].
    spins: bool,
}

impl Writer {
    fn new(context: StoreContext, connection: Connection, commands: Receiver<Command>) -> Self {
        let upkeep = Upkeep::new(&context.options);
        let lock_queue = LockQueue::new(&context.path);
        let mut writer = Self {
            context,
            commands,
            connection: None,
            identity: None,
            identity_seen: Instant::now(),
            cache: WriterCache::default(),
            drivers: Drivers::default(),
            deferred: Vec::new(),
            waiting: VecDeque::new(),
            isolated: 0,
            is_full: false,
            needs_checkpoint: false,
            seen_version: 0,
            lock_queue,
            upkeep,
            spins: false,
        };
        writer.take(connection);
        writer
    }

    /// Uses this connection from now on.
    fn take(&mut self, mut connection: Connection) {
        self.upkeep.watch(&mut connection);
        // SQLite's own wait sleeps up to 100 ms and starves processes: of four, one did a single operation.
        // Setting a number cannot fail.
        let _ = connection.busy_timeout(Duration::ZERO);
        self.identity = Identity::of(&self.context.path);
        self.identity_seen = Instant::now();
        self.connection = Some(connection);
        self.cache = WriterCache::default();
        self.seen_version = 0;
    }

    fn run(mut self) {
        loop {
            if self.waiting.is_empty() && self.deferred.is_empty() && !self.wait() {
                return;
            }
            self.gather();
            if !self.waiting.is_empty() {
                self.transact();
                // The drivers pass the answers to their callers, which need not wait for the upkeep.
                self.gather();
            }
            self.keep_up();
        }
    }

    /// Waits for a command. Returns `false` when none will come.
    fn wait(&mut self) -> bool {
        let listens = self.context.wakes.has_listeners();
        let idle = self.upkeep.next();
        let timeout = if listens { idle.min(LOOK_FOR_OTHERS) } else { idle };
        let began = Instant::now();
        while self.spins && began.elapsed() < SPIN_TIME {
            match self.commands.try_recv() {
                Ok(command) => {
                    self.handle(command);
                    return true;
                }
                Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => std::thread::yield_now(),
            }
        }
        match self.commands.recv_timeout(timeout) {
            Ok(command) => {
                self.spins = began.elapsed() < SPIN_TIME;
                self.handle(command);
            }
            Err(RecvTimeoutError::Timeout) if listens => self.look_for_others(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    /// Handles all received commands. A polled driver may add further ones.
    fn gather(&mut self) {
        for command in std::mem::take(&mut self.deferred) {
            self.handle(command);
        }
        while let Ok(command) = self.commands.try_recv() {
            self.handle(command);
        }
    }

    /// Takes the received calls and defers all other commands.
    fn gather_work(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Work(work) => self.waiting.push_back(work),
                other => self.deferred.push(other),
            }
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Work(work) => self.waiting.push_back(work),
            Command::Drive(drivers, commands) => self.drivers.add(drivers, &commands),
            Command::Poll(driver) => self.drivers.poll(driver),
            Command::Listen => {}
        }
    }

    /// Releases leases whose caller has gone.
    fn release(&mut self, leases: Vec<UndeliveredLease>) {
        for lease in leases {
            let (work, _) = Call::new("release", move |session| lease.release(session));
            self.waiting.push_back(work);
        }
    }
}
