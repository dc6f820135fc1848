//! Detection of network file systems, for providers that keep files.

use std::path::Path;

/// Returns the name of the network file system that a folder is on; `None` for a local one.
#[cfg(target_os = "linux")]
pub fn network_kind(folder: &Path) -> Option<String> {
    // A file system that cannot be queried counts as local.
    let found = nix::sys::statfs::statfs(folder).ok()?;
    // The type of the number differs between architectures; only its low 32 bits are used.
    let magic = (found.filesystem_type().0 as u64 & 0xffff_ffff) as u32;
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    linux::network_kind(magic, folder, mounts)
}

/// Returns `None`: network file systems are detected on Linux only.
#[cfg(not(target_os = "linux"))]
pub fn network_kind(_: &Path) -> Option<String> {
    None
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
    /// FUSE file systems whose data is on another host. Others (ntfs-3g, mergerfs, gocryptfs) are local.
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

    /// Returns the name of the network file system that a folder is on; `None` for a local one.
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

    /// Returns the type of the file system that is mounted nearest above a folder.
    fn mount_kind(mounts: &str, folder: &Path) -> Option<String> {
        let mounted = mounts.lines().filter_map(|line| {
            // `36 35 98:0 /root /mount/point rw,noatime master:1 - fuse.sshfs host:/ rw`; spaces are written as \040.
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
        fn network_file_systems_are_recognized_by_number_or_by_mount() {
            let kind = |magic, folder: &str| network_kind(magic, Path::new(folder), || MOUNTS.to_owned());
            assert_eq!(kind(0x6969, "/srv").as_deref(), Some("nfs"));
            assert_eq!(kind(0xff53_4d42, "/srv").as_deref(), Some("cifs"));
            assert_eq!(kind(FUSE, "/mnt/far away/queues").as_deref(), Some("fuse.sshfs"));
            assert_eq!(kind(FUSE, "/mnt/disk/queues"), None);
            assert_eq!(kind(0xef53, "/home"), None);
        }
    }
}
