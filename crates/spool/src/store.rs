//! A store: what all connections to one spool share.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use postrider_core::wakes::Wakes;
use postrider_core::{BoxFuture, Capabilities, Feature, MessagingError, QueueName, Support};

use postrider_provider::{Provider, file_system};

use crate::connection::Connection;
use crate::content::Reading;
use crate::disk::Folder;
use crate::error::{DiskError, Failure};
use crate::options::{SpoolOptions, Watch};
use crate::queue::Queue;
use crate::watch::Watcher;
use crate::{PROVIDER, SpoolProvider};

/// Permissions of a new spool folder: only its owner reads messages. Its content inherits them.
const PRIVATE: u32 = 0o700;

/// Maximum number of open queues. Each has six open folders, and a process may be limited to a thousand open files.
const MAX_OPEN: usize = 64;

/// A folder that holds queues. Clones are the same store.
///
/// Several processes can use the folder at once, and one process can open it several times.
#[derive(Debug, Clone)]
pub struct SpoolStore {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    path: PathBuf,
    /// Whether the folder is a mount point.
    is_mounted: bool,
    /// Replaced when the folder is removed and put back (a disk that is mounted again).
    root: Mutex<Arc<Folder>>,
    pub(crate) options: SpoolOptions,
    pub(crate) reading: Reading,
    pub(crate) capabilities: Capabilities,
    /// `None` where folders are polled.
    pub(crate) watcher: Option<Watcher>,
    pub(crate) wakes: Arc<Wakes>,
    queues: Mutex<HashMap<QueueName, Arc<Queue>>>,
}

impl SpoolStore {
    /// Opens a spool; creates its folder if it is missing.
    pub fn open(path: impl AsRef<Path>, options: SpoolOptions) -> BoxFuture<'static, Result<Self, MessagingError>> {
        let path = path.as_ref().to_owned();
        Box::pin(async move {
            let opened = tokio::task::spawn_blocking(move || Self::open_now(&path, options)).await;
            opened.unwrap_or(Err(MessagingError::Closed { provider: PROVIDER }))
        })
    }

    fn open_now(path: &Path, options: SpoolOptions) -> Result<Self, MessagingError> {
        let failed = |action, error: std::io::Error| {
            DiskError::new(action, path, crate::disk::errno_of(&error)).into_error("open the spool")
        };
        if !path.exists() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(path);
            made.map_err(|error| failed("make", error))?;
            // The parent, and its parents, which may be new too.
            for folder in path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()).take(3) {
                let synced = Folder::open_path(folder).and_then(|folder| folder.sync());
                synced.map_err(|error| error.into_error("open the spool"))?;
            }
        }
        // A relative path or a link is resolved once, here.
        let path = std::fs::canonicalize(path).map_err(|error| failed("open", error))?;
        let root = Folder::open_path(&path).map_err(|error| error.into_error("open the spool"))?;
        let wakes = Arc::new(Wakes::default());
        let (watcher, why_not) = watcher(&path, &options, &wakes);
        let capabilities = capabilities(why_not.as_deref(), &options).with_limits(options.limits.clone());
        let reading = Reading { limits: options.limits.clone(), ordering_key: options.ordering_key.clone() };
        let root = Mutex::new(Arc::new(root));
        let queues = Mutex::default();
        let is_mounted = is_mounted(&path);
        let shared = Shared { path, is_mounted, root, options, reading, capabilities, watcher, wakes, queues };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Opens a connection; each is closed on its own.
    pub fn connect(&self) -> Result<SpoolProvider, MessagingError> {
        Ok(SpoolProvider(Provider::new(Connection::new(self.shared.clone()))?))
    }

    /// Returns the folder's full path.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }
}

/// Whether a folder is on another device than its parent.
fn is_mounted(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
    path.parent().is_some_and(|above| device(above) != device(path))
}

/// Returns the watcher, or why there is none.
fn watcher(path: &Path, options: &SpoolOptions, wakes: &Arc<Wakes>) -> (Option<Watcher>, Option<String>) {
    if options.watch == Watch::Poll {
        return (None, Some("by configuration".into()));
    }
    if let Some(kind) = file_system::network_kind(path) {
        return (None, Some(format!("{kind} is a network file system, which does not report changes by other hosts")));
    }
    match Watcher::start(wakes.clone()) {
        Ok(watcher) => (Some(watcher), None),
        Err(errno) => (None, Some(format!("inotify is not available ({errno})"))),
    }
}

fn capabilities(why_not_watched: Option<&str>, options: &SpoolOptions) -> Capabilities {
    let emulated = |cost: String| Support::Emulated { cost: cost.into() };
    let capabilities = Capabilities::native(PROVIDER)
        .with(
            Feature::OrderByKey,
            Support::emulated(
                "each process keeps an index of the folder, made by reading it once; files of others go by their times",
            ),
        )
        .with(Feature::Dedup, Support::emulated("the first send with a key reads the folder once, as a claim does"))
        .with(
            Feature::Priority,
            Support::emulated("each process keeps an index of the folder, made by reading it once"),
        )
        .with(
            Feature::AttemptHistory,
            Support::refused("a message is one file, which keeps the number of its failures and the last error"),
        )
        .with(
            Feature::WaitingMessages,
            Support::refused("only a lease changes the file of a message; receive it by its id and settle it"),
        )
        .with(Feature::Archive, Support::refused("the file of a message is removed when it is acknowledged or purged"))
        .with(
            Feature::Recovery,
            Support::emulated("a folder that was taken away and put back is found again by its path"),
        );
    let Some(why) = why_not_watched else { return capabilities };
    let every = options.poll_interval;
    capabilities.with(
        Feature::WakeUp,
        emulated(format!(
            "without inotify ({why}) the folder is read again after every change by another process, and every {every:?} \
             while files arrive; foreign files are claimed only after the grace period"
        )),
    )
}

impl Shared {
    /// Returns the spool's folder; fails while it does not exist.
    pub(crate) fn root(&self) -> Result<Arc<Folder>, Failure> {
        let mut root = self.root.lock().unwrap_or_else(PoisonError::into_inner);
        let found = Folder::identity_at(&self.path);
        match found {
            Some(found) if root.identity().is_ok_and(|identity| identity == found) => {}
            // Another folder at the path: accepted for a disk that was mounted again, refused for the folder below a mount.
            Some(_) if is_mounted(&self.path) == self.is_mounted => *root = Arc::new(Folder::open_path(&self.path)?),
            Some(_) | None => {
                let path = self.path.display();
                return Err(MessagingError::Connection {
                    provider: PROVIDER,
                    detail: format!("the folder '{path}' no longer exists; put it back, or mount its disk again"),
                    source: None,
                }
                .into());
            }
        }
        Ok(root.clone())
    }

    /// Refuses a hidden name.
    pub(crate) fn check_name(&self, queue: &QueueName) -> Result<(), MessagingError> {
        if queue.as_str().starts_with('.') {
            let why = format!("'{queue}' begins with a dot, and such folders are hidden; choose another name");
            return Err(MessagingError::invalid("queue name", why));
        }
        Ok(())
    }

    /// Returns a queue, by its own name or that of its dead letters.
    pub(crate) fn queue(&self, queue: &QueueName) -> Result<Arc<Queue>, MessagingError> {
        let name = queue.origin();
        self.check_name(&name)?;
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() >= MAX_OPEN && !queues.contains_key(&name) {
            self.close_idle(&mut queues);
        }
        let queue = queues.entry(name).or_insert_with_key(|name| Arc::new(Queue::new(name.clone()))).clone();
        queue.use_now();
        Ok(queue)
    }

    /// Closes the less recently used half of the queues that are not in use.
    fn close_idle(&self, queues: &mut HashMap<QueueName, Arc<Queue>>) {
        let mut idle: Vec<_> =
            queues.values().filter(|queue| Arc::strong_count(queue) == 1).map(|queue| queue.last_used()).collect();
        idle.sort_unstable();
        let Some(latest) = idle.get(idle.len() / 2).copied() else { return };
        queues.retain(|_, queue| {
            let is_kept = Arc::strong_count(queue) > 1 || queue.last_used() > latest;
            if !is_kept {
                queue.stop_watching(self);
            }
            is_kept
        });
    }

    /// Closes a deleted queue.
    pub(crate) fn forget(&self, queue: &QueueName) {
        let forgotten = self.queues.lock().unwrap_or_else(PoisonError::into_inner).remove(queue);
        if let Some(queue) = forgotten {
            queue.stop_watching(self);
        }
    }
}
