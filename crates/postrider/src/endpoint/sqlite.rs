//! The URL and the options of the embedded file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use postrider_core::MessagingError;
use postrider_sqlite::{Durability, SqliteOptions};

use super::path::PathUrl;
use crate::config::{MessagingConfig, Synchronous};

/// The URL form.
pub(super) const URL: PathUrl = PathUrl { scheme: "sqlite", what: "file", example: "sqlite:/path/file.db" };

/// What to do with a missing folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Folder {
    /// Fail: the user's path may be misspelled.
    MustExist,
    /// Make it: it is the default.
    Make,
}

impl Folder {
    /// Makes the folder of the file if it is the default, for its owner only.
    pub(super) fn prepare(self, path: &Path) -> Result<(), MessagingError> {
        let (Self::Make, Some(folder)) = (self, path.parent()) else { return Ok(()) };
        let mut maker = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut maker, 0o700);
        maker.recursive(true).create(folder).map_err(|source| MessagingError::Provider {
            provider: "sqlite",
            operation: "make its folder",
            source: Arc::new(NoDefaultFolder { folder: folder.to_owned(), source }),
            retryable: false,
        })
    }
}

/// The folder of the embedded file cannot be made.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{}' cannot be made ({source}); make it yourself, set XDG_DATA_HOME to another folder, or name a file with --url \
     sqlite:/path/file.db",
    folder.display()
)]
struct NoDefaultFolder {
    folder: PathBuf,
    source: std::io::Error,
}

/// The options of the settings.
pub(super) fn options(settings: &MessagingConfig) -> SqliteOptions {
    let sqlite = &settings.sqlite;
    SqliteOptions {
        durability: match sqlite.synchronous {
            Synchronous::Full => Durability::PowerLoss,
            Synchronous::Normal => Durability::ProcessCrashOnly,
        },
        archive: sqlite.archive,
        archive_retention: sqlite.archive_retention,
        auto_migrate: settings.auto_migrate,
        share_file: sqlite.share_file,
        create_queues: settings.create_queues,
        limits: settings.limits(),
        lock_timeout: sqlite.lock_timeout,
        wal_limit_bytes: sqlite.wal_limit_bytes.into(),
        ..SqliteOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::ArchivePolicy;

    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_new_folder_is_private_and_an_existing_one_is_unchanged() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |folder: &Path| std::fs::metadata(folder).unwrap().permissions().mode() & 0o777;
        let place = tempfile::tempdir().unwrap();
        let there = place.path().join("there");
        std::fs::create_dir(&there).unwrap();
        std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o755)).unwrap();
        let made = there.join("postrider");
        Folder::Make.prepare(&made.join("postrider.db")).unwrap();
        assert_eq!((mode(&there), mode(&made)), (0o755, 0o700));
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o750)).unwrap();
        Folder::Make.prepare(&made.join("postrider.db")).unwrap();
        assert_eq!(mode(&made), 0o750);
    }

    /// Not every setting shows in the file, so the options are compared.
    #[test]
    fn every_setting_of_the_embedded_file_is_passed_on() {
        let sqlite = crate::config::SqliteConfig {
            synchronous: Synchronous::Normal,
            archive: ArchivePolicy::Failed,
            archive_retention: std::time::Duration::from_secs(60),
            share_file: true,
            lock_timeout: std::time::Duration::from_millis(250),
            wal_limit_bytes: 123_456,
        };
        let settings = MessagingConfig {
            create_queues: false,
            auto_migrate: false,
            max_message_bytes: 77,
            sqlite,
            ..MessagingConfig::default()
        };
        let options = super::options(&settings);
        assert_eq!(options.durability, Durability::ProcessCrashOnly);
        assert_eq!(options.archive, ArchivePolicy::Failed);
        assert_eq!(options.archive_retention, std::time::Duration::from_secs(60));
        assert_eq!(options.lock_timeout, std::time::Duration::from_millis(250));
        assert_eq!(options.wal_limit_bytes, 123_456);
        assert_eq!(options.limits.max_body_bytes, 77);
        assert!(options.share_file && !options.auto_migrate && !options.create_queues);

        let options = super::options(&MessagingConfig::default());
        let defaults = SqliteOptions::default();
        assert_eq!(format!("{options:?}"), format!("{defaults:?}"), "the defaults of both are the same");
    }
}
