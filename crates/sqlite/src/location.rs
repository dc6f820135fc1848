//! Where a file may lie.
//!
//! The file itself is never opened here. POSIX drops all of a process's locks on a file when the process closes any
//! descriptor of it, so a look by other means than SQLite's would take the locks of connections that are already open.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

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

#[cfg(target_os = "linux")]
fn refuse_network(path: &Path) -> Result<(), FileError> {
    let folder = path.parent().unwrap_or(path);
    // A file system that cannot be asked is left to SQLite.
    let Ok(found) = nix::sys::statfs::statfs(folder) else { return Ok(()) };
    // The number's type differs between architectures; only the low 32 bits are ever used.
    let magic = (found.filesystem_type().0 as u64 & 0xffff_ffff) as u32;
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match linux::network_kind(magic, folder, mounts) {
        Some(kind) => Err(FileError::Network { path: path.to_owned(), kind }),
        None => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_: &Path) -> Result<(), FileError> {
    Ok(())
}

#[cfg(any(target_os = "linux", test))]
mod linux {
    use std::path::Path;

    const NETWORK: &[(u32, &str)] = &[
        (0x6969, "nfs"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb2"),
        (0x517b, "smb"),
        (0x564c, "ncp"),
        (0x7375_7245, "coda"),
        (0x5346_414f, "afs"),
        (0x6b41_4653, "afs"),
        (0x0102_1997, "9p"),
        (0x00c3_6400, "ceph"),
        (0x0bd0_0bd0, "lustre"),
        (0x1983_0326, "fhgfs"),
        (0x7461_636f, "ocfs2"),
        (0x0116_1970, "gfs2"),
    ];
    const FUSE: u32 = 0x6573_5546;
    /// File systems in user space that are somewhere else. Others (ntfs-3g, mergerfs, gocryptfs) are local.
    const REMOTE_FUSE: &[&str] = &[
        "sshfs",
        "s3fs",
        "s3ql",
        "gcsfuse",
        "goofys",
        "rclone",
        "davfs",
        "curlftpfs",
        "glusterfs",
        "ceph",
        "juicefs",
        "blobfuse",
        "smbnetfs",
        "nfs",
        "mfs",
        "moosefs",
        "beegfs",
        "hdfs",
        "mount-s3",
        "onedriver",
    ];

    /// The name of the network file system that a folder is on, if it is on one.
    pub(super) fn network_kind(magic: u32, folder: &Path, mounts: impl Fn() -> String) -> Option<String> {
        if let Some((_, kind)) = NETWORK.iter().find(|(network, _)| *network == magic) {
            return Some((*kind).to_owned());
        }
        if magic != FUSE {
            return None;
        }
        let kind = mount_kind(&mounts(), folder)?;
        let name = kind.strip_prefix("fuse.").unwrap_or(&kind);
        REMOTE_FUSE.iter().any(|remote| name.contains(remote)).then_some(kind)
    }

    /// The kind of file system that is mounted nearest above a folder.
    fn mount_kind(mounts: &str, folder: &Path) -> Option<String> {
        let mounted = mounts.lines().filter_map(|line| {
            // `36 35 98:0 /root /mount/point rw,noatime master:1 - fuse.sshfs host:/ rw`; blanks are written as \040.
            let (mount, system) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?.replace("\\040", " ");
            let kind = system.split(' ').next()?;
            folder.starts_with(&point).then(|| (point.len(), kind.to_owned()))
        });
        mounted.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const MOUNTS: &str = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
            36 22 0:40 / /mnt/far\\040away rw,nosuid shared:9 - fuse.sshfs host:/srv rw\n\
            37 22 0:41 / /mnt/disk rw - fuseblk /dev/sdb1 rw\n";

        #[test]
        fn network_file_systems_are_known_by_number_or_by_mount() {
            let kind = |magic, folder: &str| network_kind(magic, Path::new(folder), || MOUNTS.to_owned());
            assert_eq!(kind(0x6969, "/srv").as_deref(), Some("nfs"));
            assert_eq!(kind(0xff53_4d42, "/srv").as_deref(), Some("cifs"));
            assert_eq!(kind(FUSE, "/mnt/far away/queues").as_deref(), Some("fuse.sshfs"));
            assert_eq!(kind(FUSE, "/mnt/disk/queues"), None);
            assert_eq!(kind(0xef53, "/home"), None);
        }
    }
}
