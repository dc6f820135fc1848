//! A queue of a spool with its cache in this process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use postrider_core::{MessagingError, QueueName, Timestamp};

use crate::dirs::Dirs;
use crate::error::{DiskError, Failure};
use crate::lock::LockFile;
use crate::session::{QueueCache, Session};
use crate::store::Shared;
use crate::unsynced::Unsynced;

/// Attempts to lock a queue whose folders are replaced meanwhile.
const TRIES: usize = 10;

/// A queue with its cached state.
#[derive(Debug)]
pub(crate) struct Queue {
    name: QueueName,
    /// Locked by one thread at a time, together with the lock file, for a few renames.
    known: Mutex<Option<QueueCache>>,
    /// Sequence number of its last use.
    last_used: AtomicU64,
}

/// The result of a step under a queue's lock that is not durable yet.
#[derive(Debug)]
#[must_use = "no caller may be answered before it is durable"]
pub(crate) struct Done<T> {
    pub(crate) value: T,
    pub(crate) dirs: Arc<Dirs>,
    unsynced: Unsynced,
    to_wake: Vec<(QueueName, Timestamp)>,
}

impl<T> Done<T> {
    pub(crate) fn map<U>(self, other: impl FnOnce(T) -> U) -> Done<U> {
        Done { value: other(self.value), dirs: self.dirs, unsynced: self.unsynced, to_wake: self.to_wake }
    }

    /// Syncs the disk, then wakes waiting receivers.
    pub(crate) fn complete(self, shared: &Shared) -> Result<T, DiskError> {
        self.unsynced.sync(&self.dirs)?;
        shared.wakes.tell(&self.to_wake, shared.options.clock.now());
        Ok(self.value)
    }
}

impl Queue {
    pub(crate) fn new(name: QueueName) -> Self {
        Self { name, known: Mutex::default(), last_used: AtomicU64::new(0) }
    }

    /// Records a use.
    pub(crate) fn use_now(&self) {
        static USES: AtomicU64 = AtomicU64::new(0);
        self.last_used.store(USES.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// Runs a step under the queue's lock. `None` when the queue does not exist.
    pub(crate) fn locked<T>(
        &self,
        shared: &Shared,
        step: impl FnOnce(&mut Session<'_>) -> Result<T, Failure>,
    ) -> Result<Option<Done<T>>, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..TRIES {
            let root = shared.root()?;
            if let Some(old) = known.as_mut().filter(|known| !known.dirs.are_current(&root, &self.name)) {
                old.stop_watching(shared);
                *known = None;
            }
            let known = match &mut *known {
                Some(known) => known,
                empty => match Dirs::open(&root, &self.name)? {
                    Some(dirs) => empty.insert(QueueCache::new(dirs, &self.name)),
                    None => return Ok(None),
                },
            };
            // Opened for every step: an open writable file would prevent a remount as read-only.
            let lock = LockFile::open(&known.dirs.home)?;
            let held = lock.take(&known.dirs.home, shared.options.lock_timeout)?;
            // The lock file or the queue may have been deleted and created again during the wait.
            if !known.dirs.are_current(&root, &self.name) || !lock.is_current(&known.dirs.home) {
                continue;
            }
            let dirs = known.dirs.clone();
            let mut session = Session::new(shared, &self.name, known, held);
            let result = step(&mut session);
            let (unsynced, to_wake) = session.finish();
            return match result {
                Ok(value) => Ok(Some(Done { value, dirs, unsynced, to_wake })),
                Err(failure) => {
                    if matches!(failure, Failure::Disk(_)) {
                        // The step may have failed between a rename and the update of the index.
                        known.forget();
                    }
                    Err(failure)
                }
            };
        }
        let why = format!("queue '{}' is deleted and created repeatedly; try again", self.name);
        Err(MessagingError::busy(why).into())
    }

    /// Returns the queue's folders, to write into without the lock. Creates a missing queue, if `create_queues` is set.
    pub(crate) fn dirs(&self, shared: &Shared) -> Result<Arc<Dirs>, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let root = shared.root()?;
        if let Some(known) = known.as_ref().filter(|known| known.dirs.are_current(&root, &self.name)) {
            return Ok(known.dirs.clone());
        }
        if let Some(old) = known.as_mut() {
            old.stop_watching(shared);
            *known = None;
        }
        if let Some(dirs) = Dirs::open(&root, &self.name)? {
            // Another process may have created it and died before its sync.
            dirs.home.sync()?;
            root.sync()?;
            return Ok(known.insert(QueueCache::new(dirs, &self.name)).dirs.clone());
        }
        if !shared.options.create_queues {
            return Err(MessagingError::QueueNotFound { queue: self.name.clone() }.into());
        }
        Dirs::make(&root, &self.name)?;
        match Dirs::open(&root, &self.name)? {
            Some(dirs) => Ok(known.insert(QueueCache::new(dirs, &self.name)).dirs.clone()),
            None => Err(MessagingError::busy(format!("queue '{}' was deleted meanwhile; try again", self.name)).into()),
        }
    }

    /// Stops watching its folders.
    pub(crate) fn stop_watching(&self, shared: &Shared) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut old) = known.take() {
            old.stop_watching(shared);
        }
    }
}
