//! Changes of the folders, from inotify.
//!
//! The kernel queues an event before the system call that caused it returns. So a process that holds a queue's lock and has
//! read all events has seen every change by earlier holders of the lock.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use postrider_core::wakes::Wakes;
use postrider_core::{QueueName, Timestamp};

use crate::disk::{Folder, Name};
use crate::index::Location;

const CHANGES: AddWatchFlags = AddWatchFlags::IN_MOVED_TO
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_ONLYDIR);

/// Maximum number of changes of a folder that are kept. With more, the folder is read again.
const MAX_CHANGES: usize = 100_000;

/// The last change of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Renamed into the folder.
    MovedHere,
    /// Created in the folder, and possibly incomplete.
    Created,
    /// Removed from the folder.
    Gone,
}

/// The changes of a folder since the last call.
#[derive(Debug)]
pub(crate) enum FolderChanges {
    Changes(HashMap<Name, Change>),
    /// Too many to keep.
    Lost,
}

#[derive(Debug)]
struct Watched {
    queue: QueueName,
    location: Location,
    changes: HashMap<Name, Change>,
    is_lost: bool,
}

impl Watched {
    /// The queue whose receivers a change wakes.
    fn queue_to_wake(&self) -> QueueName {
        match self.location {
            Location::Failed => self.queue.dead_letters(),
            Location::Incoming | Location::Processing => self.queue.clone(),
        }
    }
}

/// Watches folders, and wakes the receivers of their queues. Its thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inotify: Inotify,
    stop: EventFd,
    /// Locked only while events are read and sorted.
    watched: Mutex<HashMap<WatchDescriptor, Watched>>,
    wakes: Arc<Wakes>,
}

impl Watcher {
    /// Starts the thread. Fails where inotify is not available.
    pub(crate) fn start(wakes: Arc<Wakes>) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = Arc::new(Shared { inotify, stop, watched: Mutex::default(), wakes });
        let listening = shared.clone();
        // A thread and not a task: it outlives the runtime of the first connection.
        let thread = std::thread::Builder::new().name("postrider-spool".into()).spawn(move || listening.listen());
        let thread = thread.map_err(|error| crate::disk::errno_of(&error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Starts to watch a folder.
    pub(crate) fn add(&self, folder: &Folder, queue: &QueueName, location: Location) -> Result<WatchDescriptor, Errno> {
        let mut watched = self.shared.lock();
        // Under the lock, so that no event arrives for an unknown watch.
        let watch = self.shared.inotify.add_watch(&folder.by_descriptor(), CHANGES)?;
        let fresh = Watched { queue: queue.clone(), location, changes: HashMap::new(), is_lost: false };
        watched.insert(watch, fresh);
        Ok(watch)
    }

    pub(crate) fn remove(&self, watch: WatchDescriptor) {
        self.shared.lock().remove(&watch);
        // The kernel has removed the watch of a removed folder already.
        let _ = self.shared.inotify.rm_watch(watch);
    }

    /// Returns the changes since the last call, up to now.
    pub(crate) fn take_changes(&self, watch: WatchDescriptor) -> FolderChanges {
        let mut watched = self.shared.lock();
        let queues = self.shared.read(&mut watched);
        let changes = match watched.get_mut(&watch) {
            Some(watched) if !watched.is_lost => FolderChanges::Changes(std::mem::take(&mut watched.changes)),
            Some(watched) => {
                watched.is_lost = false;
                watched.changes.clear();
                FolderChanges::Lost
            }
            None => FolderChanges::Lost,
        };
        drop(watched);
        // The thread does not see the events that were read here.
        self.shared.wake(queues);
        changes
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Fails only if it was written before, and then the thread ends anyway.
        let _ = self.shared.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<WatchDescriptor, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self) {
        loop {
            let mut files = [
                PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.stop.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut files, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
            if files[1].any() == Some(true) {
                return;
            }
            let queues = self.read(&mut self.lock());
            self.wake(queues);
        }
    }

    /// Wakes the receivers of these queues.
    fn wake(&self, queues: Vec<QueueName>) {
        let touched: Vec<_> = queues.into_iter().map(|queue| (queue, Timestamp::EPOCH)).collect();
        self.wakes.tell(&touched, Timestamp::EPOCH);
    }

    /// Reads and sorts all events. Returns the queues that may have a message to receive.
    fn read(&self, watched: &mut HashMap<WatchDescriptor, Watched>) -> Vec<QueueName> {
        let mut queues = Vec::new();
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                for queue in sort(watched, event) {
                    if !queues.contains(&queue) {
                        queues.push(queue);
                    }
                }
            }
        }
        queues
    }
}

fn sort(watched: &mut HashMap<WatchDescriptor, Watched>, event: InotifyEvent) -> Vec<QueueName> {
    if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
        watched.values_mut().for_each(|watched| watched.is_lost = true);
        return watched.values().map(Watched::queue_to_wake).collect();
    }
    let Some(watched) = watched.get_mut(&event.wd) else { return Vec::new() };
    let Some(name) = event.name else {
        // The folder itself was removed; its next use detects that.
        watched.is_lost = true;
        return vec![watched.queue_to_wake()];
    };
    let change = if event.mask.contains(AddWatchFlags::IN_MOVED_TO) {
        Change::MovedHere
    } else if event.mask.contains(AddWatchFlags::IN_CREATE) {
        Change::Created
    } else {
        Change::Gone
    };
    if watched.changes.len() >= MAX_CHANGES {
        watched.is_lost = true;
        watched.changes.clear();
    }
    if !watched.is_lost {
        use std::os::unix::ffi::OsStrExt;
        watched.changes.insert(Name::from(name.as_bytes()), change);
    }
    // A file that leaves `processing/` may free its key.
    let wakes_queue = match watched.location {
        Location::Processing => change == Change::Gone,
        Location::Incoming | Location::Failed => change != Change::Gone,
    };
    if wakes_queue { vec![watched.queue_to_wake()] } else { Vec::new() }
}
