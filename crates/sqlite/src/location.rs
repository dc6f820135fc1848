//! Where a file may lie.
//!
//! The file itself is never opened here. POSIX drops all of a process's locks on a file when the process closes any
//! descriptor of it, so a look by other means than SQLite's would take the locks of connections that are already open.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use postrider_core::file_system;

use crate::error::FileError;

/// The file's full path, after everything was checked that can be checked without opening it.
pub(crate) fn check(path: &Path) -> Result<PathBuf, FileError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = fs::canonicalize(folder).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => FileError::NoFolder(folder.to_owned()),
        _ => FileError::CannotOpen { path: path.to_owned(), detail: error.to_string() },
    })?;
    let Some(name) = path.file_name() else { return Err(FileError::IsFolder(path.to_owned())) };
    let mut full = folder.join(name);
    match fs::metadata(&full) {
        Ok(metadata) if metadata.is_dir() => return Err(FileError::IsFolder(full)),
        Ok(metadata) if !metadata.is_file() => return Err(FileError::NotAFile(full)),
        // Two names of one file must be the same store.
        Ok(_) => full = fs::canonicalize(&full).unwrap_or(full),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(FileError::CannotOpen { path: full, detail: error.to_string() }),
    }
    refuse_network(&full)?;
    Ok(full)
}

/// What tells a file from another that takes its name: the device and the number on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    /// The file that has this name now.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).ok().map(|metadata| Self(metadata.dev(), metadata.ino()))
    }
}

fn refuse_network(path: &Path) -> Result<(), FileError> {
    match file_system::network_kind(path.parent().unwrap_or(path)) {
        Some(kind) => Err(FileError::Network { path: path.to_owned(), kind }),
        None => Ok(()),
    }
}
