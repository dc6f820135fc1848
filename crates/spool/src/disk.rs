//! The system calls, one a function. A process can be killed between any two of them; a test does that.
//!
//! Every call is relative to an open folder, by a name without a slash, and follows no link: no call reaches a file outside
//! the spool.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use postrider_core::failpoint;

use crate::error::DiskError;

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// Nonblocking, because opening a pipe would wait for a writer.
const READ: OFlag = OFlag::O_RDONLY.union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);
const CREATE: OFlag =
    OFlag::O_WRONLY.union(OFlag::O_CREAT).union(OFlag::O_EXCL).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Attempts to remove a folder while other processes add files to it.
const REMOVALS: usize = 100;

/// The name of a file in a folder, as bytes.
pub(crate) type Name = Arc<[u8]>;

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    /// For errors only.
    path: PathBuf,
    /// Its permissions, which new files and folders in it inherit, within the umask.
    permissions: Mode,
}

/// Device and inode: distinguishes a folder from another one at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    /// The identity of an open file.
    pub(crate) fn of(file: &File) -> Option<Self> {
        fstat(file).ok().map(|found| identity(&found))
    }
}

/// Failpoint before a system call.
fn step() {
    failpoint::reach("spool.step");
}

pub(crate) fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

impl Folder {
    /// Opens a folder by the user's path, which may contain links.
    pub(crate) fn open_path(path: &Path) -> Result<Self, DiskError> {
        step();
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, Mode::empty()).map_err(|errno| DiskError::new("open", path, errno))?;
        Self::of(fd, path.to_owned())
    }

    /// Returns the identity of what a path leads to, if anything.
    pub(crate) fn identity_at(path: &Path) -> Option<Identity> {
        nix::sys::stat::stat(path).ok().map(|found| identity(&found))
    }

    /// Opens a folder in this one.
    pub(crate) fn open(&self, name: &str) -> Result<Self, DiskError> {
        step();
        let fd = openat(&self.fd, name, FOLDER, Mode::empty()).map_err(|errno| self.failed("open", name, errno))?;
        Self::of(fd, self.path.join(name))
    }

    fn of(fd: OwnedFd, path: PathBuf) -> Result<Self, DiskError> {
        let found = fstat(&fd).map_err(|errno| DiskError::new("look at", &path, errno))?;
        Ok(Self { fd, path, permissions: Mode::from_bits_truncate(found.st_mode & 0o777) })
    }

    /// Returns its permissions.
    pub(crate) fn permissions(&self) -> Mode {
        self.permissions
    }

    fn permissions_of_files(&self) -> Mode {
        (self.permissions & Mode::from_bits_truncate(0o666)) | Mode::S_IRUSR | Mode::S_IWUSR
    }

    /// Creates a folder in this one, unless it exists.
    pub(crate) fn make(&self, name: &str) -> Result<(), DiskError> {
        step();
        match mkdirat(&self.fd, name, self.permissions | Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(self.failed("make", name, errno)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn identity(&self) -> Result<Identity, DiskError> {
        let found = fstat(&self.fd).map_err(|errno| DiskError::new("look at", &self.path, errno))?;
        Ok(identity(&found))
    }

    /// Returns the identity of what has this name, if anything.
    pub(crate) fn identity_of(&self, name: &str) -> Option<Identity> {
        fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok().map(|found| identity(&found))
    }

    pub(crate) fn stat(&self, name: &[u8]) -> Result<Option<FileStat>, DiskError> {
        step();
        match fstatat(&self.fd, os(name), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("look at", os(name), errno)),
        }
    }

    /// Moves a file, and returns whether it existed.
    pub(crate) fn rename(&self, from: &[u8], to: &Folder, name: &[u8]) -> Result<bool, DiskError> {
        step();
        match renameat(&self.fd, os(from), &to.fd, os(name)) {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.failed("rename", os(from), errno)),
        }
    }

    /// Removes a file, and returns whether it existed.
    pub(crate) fn unlink(&self, name: &[u8]) -> Result<bool, DiskError> {
        step();
        let removed = match unlinkat(&self.fd, os(name), UnlinkatFlags::NoRemoveDir) {
            // A foreign folder among the messages.
            Err(Errno::EISDIR | Errno::EPERM) if self.is_folder(name) => return self.remove_tree(name),
            other => other,
        };
        match removed {
            Ok(()) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(self.failed("remove", os(name), errno)),
        }
    }

    fn is_folder(&self, name: &[u8]) -> bool {
        self.stat(name).ok().flatten().is_some_and(|found| file_type(&found) == Type::Directory)
    }

    /// Removes a folder with its content. Links in it are removed and not followed.
    pub(crate) fn remove_tree(&self, name: &[u8]) -> Result<bool, DiskError> {
        let failed = |errno| self.failed("remove", os(name), errno);
        let fd = match openat(&self.fd, os(name), FOLDER, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Ok(false),
            Err(errno) => return Err(failed(errno)),
        };
        let folder = Self::of(fd, self.path.join(os(name)))?;
        // Another process that has it open may add a file meanwhile.
        for tries_left in (0..REMOVALS).rev() {
            for (name, kind) in folder.names()? {
                match kind {
                    Some(Type::Directory) => folder.remove_tree(&name)?,
                    _ => folder.unlink(&name)?,
                };
            }
            step();
            match unlinkat(&self.fd, os(name), UnlinkatFlags::RemoveDir) {
                Ok(()) => return Ok(true),
                Err(Errno::ENOENT) => return Ok(false),
                Err(Errno::ENOTEMPTY) if tries_left > 0 => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(true)
    }

    /// Removes a folder if it is empty.
    pub(crate) fn remove_empty(&self, name: &str) {
        step();
        let _ = unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir);
    }

    /// Makes the renames and removals in this folder durable.
    pub(crate) fn sync(&self) -> Result<(), DiskError> {
        step();
        fsync(&self.fd).map_err(|errno| DiskError::new("write to the disk", &self.path, errno))
    }

    /// Creates a file and makes its content durable.
    pub(crate) fn create(&self, name: &[u8], parts: &[&[u8]]) -> Result<(), DiskError> {
        let file = self.create_unsynced(name, parts)?;
        step();
        file.sync_all().map_err(|error| self.failed("write", os(name), errno_of(&error)))
    }

    /// Creates a file, which becomes durable with a later sync.
    pub(crate) fn create_unsynced(&self, name: &[u8], parts: &[&[u8]]) -> Result<File, DiskError> {
        step();
        let mode = self.permissions_of_files();
        let fd = openat(&self.fd, os(name), CREATE, mode).map_err(|errno| self.failed("create", os(name), errno))?;
        let mut file = File::from(fd);
        for part in parts {
            step();
            file.write_all(part).map_err(|error| self.failed("write", os(name), errno_of(&error)))?;
        }
        Ok(file)
    }

    /// Makes an existing file durable.
    pub(crate) fn sync_file(&self, name: &[u8]) -> Result<(), DiskError> {
        match self.open_file(name)? {
            Some(file) => {
                step();
                file.sync_all().map_err(|error| self.failed("write", os(name), errno_of(&error)))
            }
            None => Ok(()),
        }
    }

    /// Opens a file of any type for reading.
    pub(crate) fn open_file(&self, name: &[u8]) -> Result<Option<File>, DiskError> {
        step();
        match openat(&self.fd, os(name), READ, Mode::empty()) {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("read", os(name), errno)),
        }
    }

    /// Opens a file of this provider's that is written in place; creates a missing one.
    pub(crate) fn open_state(&self, name: &str) -> Result<File, DiskError> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        step();
        let fd = openat(&self.fd, name, flags, self.permissions_of_files())
            .map_err(|errno| self.failed("open", name, errno))?;
        Ok(File::from(fd))
    }

    /// Lists the names in the folder, with their types if the file system reports them.
    pub(crate) fn names(&self) -> Result<Vec<(Name, Option<Type>)>, DiskError> {
        let failed = |errno| DiskError::new("list", &self.path, errno);
        step();
        let mut folder = Dir::openat(&self.fd, ".", FOLDER, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in folder.iter() {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push((Name::from(name), entry.file_type()));
            }
        }
        Ok(names)
    }

    pub(crate) fn failed(&self, action: &'static str, name: impl AsRef<OsStr>, errno: Errno) -> DiskError {
        DiskError::new(action, &self.path.join(name.as_ref()), errno)
    }

    /// Returns a path for interfaces that need one, which leads to this folder even if its own path changes.
    pub(crate) fn by_descriptor(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_fd().as_raw_fd()))
    }
}

fn identity(found: &FileStat) -> Identity {
    Identity(found.st_dev, found.st_ino)
}

pub(crate) fn file_type(found: &FileStat) -> Type {
    match found.st_mode & nix::libc::S_IFMT {
        nix::libc::S_IFREG => Type::File,
        nix::libc::S_IFDIR => Type::Directory,
        nix::libc::S_IFLNK => Type::Symlink,
        nix::libc::S_IFIFO => Type::Fifo,
        nix::libc::S_IFSOCK => Type::Socket,
        nix::libc::S_IFBLK => Type::BlockDevice,
        _ => Type::CharacterDevice,
    }
}

pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
