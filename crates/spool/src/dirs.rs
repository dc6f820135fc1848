//! The folders of a queue.

use nix::errno::Errno;
use postrider_core::QueueName;

use crate::disk::{Folder, Identity};
use crate::error::DiskError;
use crate::index::Location;

/// Every folder of a queue. `incoming/` is created last: a queue exists if it has that folder.
pub(crate) const NAMES: [&str; 6] = ["tmp", "records", "failed", "outgoing", "processing", "incoming"];

/// The open folders of a queue. Later changes of their paths have no effect on them.
#[derive(Debug)]
pub(crate) struct Dirs {
    pub(crate) home: Folder,
    pub(crate) incoming: Folder,
    pub(crate) processing: Folder,
    pub(crate) failed: Folder,
    /// Notes of live messages.
    pub(crate) records: Folder,
    /// Files that are being written.
    pub(crate) tmp: Folder,
    identities: [Identity; 6],
}

impl Dirs {
    /// Whether the queue exists.
    pub(crate) fn are_there(root: &Folder, queue: &QueueName) -> Result<bool, DiskError> {
        let incoming = root.open(queue.as_str()).and_then(|home| home.open("incoming"));
        match incoming {
            Ok(_) => Ok(true),
            Err(error) if error.errno == Errno::ENOENT => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens the folders of a queue, and creates missing ones; `None` when the queue does not exist.
    pub(crate) fn open(root: &Folder, queue: &QueueName) -> Result<Option<Self>, DiskError> {
        if !Self::are_there(root, queue)? {
            return Ok(None);
        }
        let home = root.open(queue.as_str())?;
        let mut made = false;
        let mut folder = |name| match home.open(name) {
            Err(error) if error.errno == Errno::ENOENT => {
                made = true;
                home.make(name).and_then(|()| home.open(name))
            }
            other => other,
        };
        let (processing, failed) = (folder("processing")?, folder("failed")?);
        let (records, tmp) = (folder("records")?, folder("tmp")?);
        folder("outgoing")?;
        let incoming = home.open("incoming")?;
        if made {
            home.sync()?;
        }
        let identities = [
            home.identity()?,
            incoming.identity()?,
            processing.identity()?,
            failed.identity()?,
            records.identity()?,
            tmp.identity()?,
        ];
        Ok(Some(Self { home, incoming, processing, failed, records, tmp, identities }))
    }

    /// Creates a queue's folders.
    pub(crate) fn make(root: &Folder, queue: &QueueName) -> Result<(), DiskError> {
        root.make(queue.as_str())?;
        let home = root.open(queue.as_str())?;
        for name in NAMES {
            home.make(name)?;
        }
        home.sync()?;
        root.sync()
    }

    /// Whether the queue's paths still lead to these folders.
    pub(crate) fn are_current(&self, root: &Folder, queue: &QueueName) -> bool {
        let found = [
            root.identity_of(queue.as_str()),
            self.home.identity_of("incoming"),
            self.home.identity_of("processing"),
            self.home.identity_of("failed"),
            self.home.identity_of("records"),
            self.home.identity_of("tmp"),
        ];
        found == self.identities.map(Some)
    }

    pub(crate) fn folder(&self, location: Location) -> &Folder {
        match location {
            Location::Incoming => &self.incoming,
            Location::Processing => &self.processing,
            Location::Failed => &self.failed,
        }
    }
}
