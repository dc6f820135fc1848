//! Checks the location of the file.
//!
//! Nothing here opens the file itself. POSIX drops all locks of a process on a file when the process closes any
//! descriptor of it, so opening it here would drop the locks of SQLite's open connections.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use postrider_provider::file_system;

use crate::error::FileError;

/// The file's full path, after every check that needs no open file.
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
        // Two names of one file must give the same store.
        Ok(_) => full = fs::canonicalize(&full).unwrap_or(full),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(FileError::CannotOpen { path: full, detail: error.to_string() }),
    }
    refuse_network(&full)?;
    Ok(full)
}

/// Mode of a new file: readable and writable by its owner only. SQLite gives the log beside it the same mode.
const OWNER_ONLY: u32 = 0o600;

/// Creates an empty file with [`OWNER_ONLY`] if there is none. When this fails, SQLite creates the file or reports why
/// it cannot.
///
/// Creates it under a temporary name, because a file that another thread may have open must not be closed here, and
/// links its real name to it only if that is still free.
pub(crate) fn make(path: &Path) {
    use std::os::unix::fs::OpenOptionsExt;
    let Some(name) = path.file_name().filter(|_| !path.exists()) else { return };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!("-{:016x}", rand::random::<u64>()));
    let new = path.with_file_name(hidden);
    if fs::OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&new).is_ok() {
        // Fails when another process was faster, and on file systems without hard links.
        if fs::hard_link(&new, path).is_err() {
            make_unopened(path);
        }
        let _ = fs::remove_file(&new);
    }
}

/// Creates an empty file for its owner only, without opening it; keeps an existing file. Not every system supports
/// this.
fn make_unopened(path: &Path) {
    use nix::sys::stat::{Mode, SFlag, mknod};
    let _ = mknod(path, SFlag::S_IFREG, Mode::S_IRUSR | Mode::S_IWUSR, 0);
}

/// The files of a database that users other than their owner may read or write, with their modes.
pub(crate) fn open_to_others(path: &Path) -> Vec<(PathBuf, u32)> {
    use std::os::unix::fs::PermissionsExt;
    let beside = |ending: &str| {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(ending);
        path.with_file_name(name)
    };
    let files = ["", "-wal", "-shm"].map(beside).into_iter();
    let rights = |file: PathBuf| {
        let mode = fs::metadata(&file).ok()?.permissions().mode() & 0o777;
        (mode & 0o066 != 0).then_some((file, mode))
    };
    files.filter_map(rights).collect()
}

/// Device and inode of a file: they distinguish it from another file that takes its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    /// The identity of the file that has this name now.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_without_hard_links_is_created_for_its_owner_and_an_existing_file_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new.db"), folder.path().join("old.db"));
        fs::write(&old, "kept").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
        for file in [&new, &old] {
            make_unopened(file);
        }
        let found = |file: &Path| (fs::metadata(file).unwrap().permissions().mode() & 0o777, fs::read(file).unwrap());
        assert_eq!((found(&new), found(&old)), ((OWNER_ONLY, Vec::new()), (0o640, b"kept".to_vec())));
    }
}
