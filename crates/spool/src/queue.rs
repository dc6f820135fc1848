//! One queue of a spool, as this process has it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use postrider_core::{MessagingError, QueueName, Timestamp};

use crate::dirs::Dirs;
use crate::error::{DiskError, Failure};
use crate::lock::LockFile;
use crate::session::{Known, Session};
use crate::store::Shared;
use crate::unsynced::Unsynced;

/// So often the folders of a queue may be exchanged for others while its lock is taken.
const TRIES: usize = 10;

/// A queue, and what is known of it.
#[derive(Debug)]
pub(crate) struct Queue {
    name: QueueName,
    /// Held by one thread of this process at a time, with the lock of the folder, for a few renames.
    known: Mutex<Option<Known>>,
    /// When it was last asked for, in order.
    last_used: AtomicU64,
}

/// What was done under a queue's lock, and is not on the disk yet.
#[derive(Debug)]
#[must_use = "nobody may be answered before it is on the disk"]
pub(crate) struct Done<T> {
    pub(crate) value: T,
    pub(crate) dirs: Arc<Dirs>,
    unsynced: Unsynced,
    told: Vec<(QueueName, Timestamp)>,
}

impl<T> Done<T> {
    pub(crate) fn map<U>(self, other: impl FnOnce(T) -> U) -> Done<U> {
        Done { value: other(self.value), dirs: self.dirs, unsynced: self.unsynced, told: self.told }
    }

    /// Writes it to the disk, and then tells those who wait.
    pub(crate) fn complete(self, shared: &Shared) -> Result<T, DiskError> {
        self.unsynced.sync(&self.dirs)?;
        shared.wakes.tell(&self.told, shared.options.clock.now());
        Ok(self.value)
    }
}

impl Queue {
    pub(crate) fn new(name: QueueName) -> Self {
        Self { name, known: Mutex::default(), last_used: AtomicU64::new(0) }
    }

    /// Somebody is about to use it.
    pub(crate) fn use_now(&self) {
        static USES: AtomicU64 = AtomicU64::new(0);
        self.last_used.store(USES.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// Does something with the queue while nobody else does. `None` when there is no such queue.
    pub(crate) fn locked<T>(
        &self,
        shared: &Shared,
        step: impl FnOnce(&mut Session<'_>) -> Result<T, Failure>,
    ) -> Result<Option<Done<T>>, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..TRIES {
            let root = shared.root()?;
            if let Some(old) = known.as_mut().filter(|known| !known.dirs.are_current(&root, &self.name)) {
                old.leave(shared);
                *known = None;
            }
            let known = match &mut *known {
                Some(known) => known,
                empty => match Dirs::open(&root, &self.name)? {
                    Some(dirs) => empty.insert(Known::new(dirs, &self.name)),
                    None => return Ok(None),
                },
            };
            // Opened each time: a file that is open for writing would keep the disk from being made read-only.
            let lock = LockFile::open(&known.dirs.home)?;
            let held = lock.take(&known.dirs.home, shared.options.lock_timeout)?;
            // While the lock was waited for, somebody may have deleted it, or the queue, and made it anew.
            if !known.dirs.are_current(&root, &self.name) || !lock.is_current(&known.dirs.home) {
                continue;
            }
            let dirs = known.dirs.clone();
            let mut session = Session::new(shared, &self.name, known, held);
            let result = step(&mut session);
            let (unsynced, told) = session.finish();
            return match result {
                Ok(value) => Ok(Some(Done { value, dirs, unsynced, told })),
                Err(failure) => {
                    if matches!(failure, Failure::Disk(_)) {
                        // It may have been cut off between a rename and the note of it.
                        known.forget();
                    }
                    Err(failure)
                }
            };
        }
        let why = format!("queue '{}' is deleted and made again and again; try again", self.name);
        Err(MessagingError::busy(why).into())
    }

    /// The queue's folders, to write into before its lock is taken. It is made when it is not there.
    pub(crate) fn dirs(&self, shared: &Shared) -> Result<Arc<Dirs>, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let root = shared.root()?;
        if let Some(known) = known.as_ref().filter(|known| known.dirs.are_current(&root, &self.name)) {
            return Ok(known.dirs.clone());
        }
        if let Some(old) = known.as_mut() {
            old.leave(shared);
            *known = None;
        }
        if let Some(dirs) = Dirs::open(&root, &self.name)? {
            // Somebody else may have made it a moment ago, and died before it was on the disk.
            dirs.home.sync()?;
            root.sync()?;
            return Ok(known.insert(Known::new(dirs, &self.name)).dirs.clone());
        }
        if !shared.options.create_queues {
            return Err(MessagingError::QueueNotFound { queue: self.name.clone() }.into());
        }
        Dirs::make(&root, &self.name)?;
        match Dirs::open(&root, &self.name)? {
            Some(dirs) => Ok(known.insert(Known::new(dirs, &self.name)).dirs.clone()),
            None => Err(MessagingError::busy(format!("queue '{}' was deleted meanwhile; try again", self.name)).into()),
        }
    }

    /// Stops watching its folders.
    pub(crate) fn leave(&self, shared: &Shared) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut old) = known.take() {
            old.leave(shared);
        }
    }
}
