//! News of the folders, from inotify.
//!
//! The kernel queues an event before the system call that caused it returns. Whoever holds a queue's lock and has read
//! all events therefore knows of everything that other holders of the lock have done.

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
use crate::index::Place;

const CHANGES: AddWatchFlags = AddWatchFlags::IN_MOVED_TO
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_ONLYDIR);

/// So many changes of a folder are remembered for somebody who does not ask. Then it is read anew.
const MOST_CHANGES: usize = 100_000;

/// The last thing that happened to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It was renamed into the folder.
    MovedHere,
    /// It was created in the folder, and may still be written to.
    Created,
    /// It is not there any more.
    Gone,
}

/// What happened in a folder since the last question.
#[derive(Debug)]
pub(crate) enum News {
    Changes(HashMap<Name, Change>),
    /// Too much to remember.
    Lost,
}

#[derive(Debug)]
struct Watched {
    queue: QueueName,
    place: Place,
    changes: HashMap<Name, Change>,
    is_lost: bool,
}

impl Watched {
    /// The queue whose waiters a change here concerns.
    fn called(&self) -> QueueName {
        match self.place {
            Place::Failed => self.queue.dead_letters(),
            Place::Incoming | Place::Processing => self.queue.clone(),
        }
    }
}

/// Watches folders, and wakes those who wait for their queues. Ends with the last who has it.
#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inotify: Inotify,
    stop: EventFd,
    /// Held while events are read and sorted, and never while anything else is done.
    watched: Mutex<HashMap<WatchDescriptor, Watched>>,
    wakes: Arc<Wakes>,
}

impl Watcher {
    /// `None` where there is no inotify, or no more of it.
    pub(crate) fn start(wakes: Arc<Wakes>) -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = Arc::new(Shared { inotify, stop, watched: Mutex::default(), wakes });
        let listening = shared.clone();
        // A thread and not a task: it outlives the runtime that the first connection was made in.
        let thread = std::thread::Builder::new().name("postrider-spool".into()).spawn(move || listening.listen());
        let thread = thread.map_err(|error| crate::disk::errno_of(&error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Hears of everything in this folder from now on.
    pub(crate) fn add(&self, folder: &Folder, queue: &QueueName, place: Place) -> Result<WatchDescriptor, Errno> {
        let mut watched = self.shared.lock();
        // Under the lock, so that no event comes for a watch that is not known yet.
        let watch = self.shared.inotify.add_watch(&folder.by_descriptor(), CHANGES)?;
        let fresh = Watched { queue: queue.clone(), place, changes: HashMap::new(), is_lost: false };
        watched.insert(watch, fresh);
        Ok(watch)
    }

    pub(crate) fn remove(&self, watch: WatchDescriptor) {
        self.shared.lock().remove(&watch);
        // The kernel has removed it already when the folder is gone.
        let _ = self.shared.inotify.rm_watch(watch);
    }

    /// What happened since the last question, up to now.
    pub(crate) fn news(&self, watch: WatchDescriptor) -> News {
        let mut watched = self.shared.lock();
        let called = self.shared.read(&mut watched);
        let news = match watched.get_mut(&watch) {
            Some(watched) if !watched.is_lost => News::Changes(std::mem::take(&mut watched.changes)),
            Some(watched) => {
                watched.is_lost = false;
                watched.changes.clear();
                News::Lost
            }
            None => News::Lost,
        };
        drop(watched);
        // What was read here the thread does not see.
        self.shared.tell(called);
        news
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // It can fail only when it was written to before, and then the thread ends anyway.
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
            let called = self.read(&mut self.lock());
            self.tell(called);
        }
    }

    /// Wakes those who wait for these queues.
    fn tell(&self, called: Vec<QueueName>) {
        let touched: Vec<_> = called.into_iter().map(|queue| (queue, Timestamp::EPOCH)).collect();
        self.wakes.tell(&touched, Timestamp::EPOCH);
    }

    /// Sorts all events that are there, and answers the queues in which there may be something to receive.
    fn read(&self, watched: &mut HashMap<WatchDescriptor, Watched>) -> Vec<QueueName> {
        let mut called = Vec::new();
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                for queue in sort(watched, event) {
                    if !called.contains(&queue) {
                        called.push(queue);
                    }
                }
            }
        }
        called
    }
}

fn sort(watched: &mut HashMap<WatchDescriptor, Watched>, event: InotifyEvent) -> Vec<QueueName> {
    if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
        watched.values_mut().for_each(|watched| watched.is_lost = true);
        return watched.values().map(Watched::called).collect();
    }
    let Some(watched) = watched.get_mut(&event.wd) else { return Vec::new() };
    let Some(name) = event.name else {
        // The folder itself: it is gone, and whoever uses it next finds that out.
        watched.is_lost = true;
        return vec![watched.called()];
    };
    let change = if event.mask.contains(AddWatchFlags::IN_MOVED_TO) {
        Change::MovedHere
    } else if event.mask.contains(AddWatchFlags::IN_CREATE) {
        Change::Created
    } else {
        Change::Gone
    };
    if watched.changes.len() >= MOST_CHANGES {
        watched.is_lost = true;
        watched.changes.clear();
    }
    if !watched.is_lost {
        use std::os::unix::ffi::OsStrExt;
        watched.changes.insert(Name::from(name.as_bytes()), change);
    }
    // What leaves `processing/` may free its key.
    let is_call = match watched.place {
        Place::Processing => change == Change::Gone,
        Place::Incoming | Place::Failed => change != Change::Gone,
    };
    if is_call { vec![watched.called()] } else { Vec::new() }
}
