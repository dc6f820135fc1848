//! The one thread that writes.
//!
//! SQLite has one write lock a file, so one writer is enough, and a thread of its own means that no await, callback or
//! user's code is ever inside a write transaction. It takes whatever waits, does it in one transaction, commits once
//! (one fsync) and then answers everybody: the more callers, the more of them share an fsync.
//!
//! The coalescers' drivers run here too, polled between transactions. A lone send then costs one wake-up each way; on a
//! runtime's threads each batch would go through two more.

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
use crate::options::SqliteOptions;
use crate::session::{Memory, Rules};
use crate::turns::Turns;
use drivers::Drivers;
use postrider_core::wakes::Wakes;
use upkeep::Upkeep;
use work::Unheld;
pub(crate) use work::{Call, Reply, Undone, Work};

/// How often a look is taken at whether another process has written, while somebody waits for it.
const LOOK_FOR_OTHERS: Duration = Duration::from_millis(50);

/// A lone caller asks again as soon as it has its answer. For so long the writer stays awake for it, if that was right
/// the last time. On a disk that answers at once it doubles such a caller's rate (180 µs a send became 90); on a slow one
/// it changes nothing.
const LINGER: Duration = Duration::from_micros(150);

/// What the writer is told.
pub(crate) enum Note {
    /// Something to do.
    Work(Box<dyn Work>),
    /// Run these until they end.
    Drive(CoalescerDrivers, Sender<Note>),
    /// A driver has something to do.
    Poll(usize),
    /// Somebody waits for other processes' messages.
    Listen,
}

/// Everything that a writer works with.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    pub(crate) path: PathBuf,
    pub(crate) options: SqliteOptions,
    pub(crate) rules: Arc<Rules>,
    pub(crate) wakes: Arc<Wakes>,
}

/// The way to the writer. The writer ends when the last of these is gone and everything is done.
#[derive(Debug)]
pub(crate) struct WriterHandle {
    inbox: Sender<Note>,
    running: watch::Receiver<()>,
}

impl WriterHandle {
    /// Starts a writer on an open connection.
    pub(crate) fn start(desk: Desk, connection: Connection) -> std::io::Result<Self> {
        let (inbox, notes) = channel();
        let (alive, running) = watch::channel(());
        std::thread::Builder::new().name("postrider-sqlite".into()).spawn(move || {
            let _alive = alive;
            Writer::new(desk, connection, notes).run();
        })?;
        Ok(Self { inbox, running })
    }

    /// Tells the writer something. A writer that has ended hears nothing, and whoever waits for an answer learns that
    /// there will be none.
    pub(crate) fn tell(&self, note: Note) {
        let _ = self.inbox.send(note);
    }

    /// Runs a coalescer's drivers on the writer's thread.
    pub(crate) fn drive(&self, drivers: CoalescerDrivers) {
        self.tell(Note::Drive(drivers, self.inbox.clone()));
    }

    pub(crate) fn inbox(&self) -> Sender<Note> {
        self.inbox.clone()
    }

    /// Lets the writer finish, and waits until it has closed the file.
    pub(crate) async fn end(self) {
        let Self { inbox, mut running } = self;
        drop(inbox);
        while running.changed().await.is_ok() {}
    }
}

struct Writer {
    desk: Desk,
    notes: Receiver<Note>,
    /// `None` after a failure of the file: it is opened again for the next transaction.
    connection: Option<Connection>,
    identity: Option<Identity>,
    identity_seen: Instant,
    memory: Memory,
    drivers: Drivers,
    /// Notes that came during a transaction and are not work: drivers wake callers, and nobody is woken inside one.
    deferred: Vec<Note>,
    jobs: VecDeque<Box<dyn Work>>,
    /// So many of the next jobs get a transaction each, because one of them spoiled a shared one.
    apart: usize,
    /// Whether SQLite has found no room since it last did all that was asked.
    is_short_of_room: bool,
    /// Whether the log could not be worked into the file for want of room. Then it is tried before anything is added to the
    /// log, which would take up the room that the file needs.
    owes_checkpoint: bool,
    /// What `data_version` was at the last look: it changes when another connection commits.
    seen_version: i64,
    turns: Turns,
    upkeep: Upkeep,
    /// Whether the last note came so soon that it was worth being awake for.
    lingers: bool,
}

impl Writer {
    fn new(desk: Desk, connection: Connection, notes: Receiver<Note>) -> Self {
        let upkeep = Upkeep::new(&desk.options);
        let turns = Turns::new(&desk.path);
        let mut writer = Self {
            desk,
            notes,
            connection: None,
            identity: None,
            identity_seen: Instant::now(),
            memory: Memory::default(),
            drivers: Drivers::default(),
            deferred: Vec::new(),
            jobs: VecDeque::new(),
            apart: 0,
            is_short_of_room: false,
            owes_checkpoint: false,
            seen_version: 0,
            turns,
            upkeep,
            lingers: false,
        };
        writer.take(connection);
        writer
    }

    /// Uses this connection from now on.
    fn take(&mut self, mut connection: Connection) {
        self.upkeep.watch(&mut connection);
        // SQLite's own waiting sleeps up to 100 ms at a time and starves: of four processes one did a single operation.
        // It cannot fail: there is nothing to wait for in setting a number.
        let _ = connection.busy_timeout(Duration::ZERO);
        self.identity = Identity::of(&self.desk.path);
        self.identity_seen = Instant::now();
        self.connection = Some(connection);
        self.memory = Memory::default();
        self.seen_version = 0;
    }

    fn run(mut self) {
        loop {
            if self.jobs.is_empty() && self.deferred.is_empty() && !self.wait() {
                return;
            }
            self.gather();
            if !self.jobs.is_empty() {
                self.transact();
                // The drivers bring the answers to their callers, who need not wait for the upkeep.
                self.gather();
            }
            self.keep_up();
        }
    }

    /// Waits for something to do. Answers `false` when nothing will come.
    fn wait(&mut self) -> bool {
        let listens = self.desk.wakes.has_listeners();
        let idle = self.upkeep.next();
        let patience = if listens { idle.min(LOOK_FOR_OTHERS) } else { idle };
        let began = Instant::now();
        while self.lingers && began.elapsed() < LINGER {
            match self.notes.try_recv() {
                Ok(note) => {
                    self.take_in(note);
                    return true;
                }
                Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => std::thread::yield_now(),
            }
        }
        match self.notes.recv_timeout(patience) {
            Ok(note) => {
                self.lingers = began.elapsed() < LINGER;
                self.take_in(note);
            }
            Err(RecvTimeoutError::Timeout) if listens => self.look_for_others(),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    /// Takes in everything that has come. A driver that is polled may add to it.
    fn gather(&mut self) {
        for note in std::mem::take(&mut self.deferred) {
            self.take_in(note);
        }
        while let Ok(note) = self.notes.try_recv() {
            self.take_in(note);
        }
    }

    /// Takes in the work that has come, and nothing else.
    fn gather_work(&mut self) {
        while let Ok(note) = self.notes.try_recv() {
            match note {
                Note::Work(work) => self.jobs.push_back(work),
                other => self.deferred.push(other),
            }
        }
    }

    fn take_in(&mut self, note: Note) {
        match note {
            Note::Work(work) => self.jobs.push_back(work),
            Note::Drive(drivers, inbox) => self.drivers.add(drivers, &inbox),
            Note::Poll(driver) => self.drivers.poll(driver),
            Note::Listen => {}
        }
    }

    /// Gives leases back that nobody was there to take.
    fn release(&mut self, leases: Vec<Unheld>) {
        for lease in leases {
            let (work, _) = Call::new("release", move |session| lease.release(session));
            self.jobs.push_back(work);
        }
    }
}
