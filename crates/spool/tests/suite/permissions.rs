//! Permissions of files and folders.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use postrider_core::{Message, MessagingService, Nack, ReceiveOptions, Severity};
use postrider_spool::{SpoolOptions, SpoolStore};

use crate::{Scratch, queue, soon};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// Returns every folder and file in a folder.
fn all_in(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(all_in(&path));
        }
        found.push(path);
    }
    found
}

/// Creates every kind of file: messages, notes, a dead letter and its record, the lock.
async fn use_it(scratch: &Scratch) {
    let provider = scratch.connect().await;
    let queue = queue("orders");
    for body in ["dies", "retries", "waits"] {
        provider.send_message(&queue, Message::new(body), soon()).await.unwrap();
    }
    for nack in [Nack::dead_letter("bad"), Nack::retry_after(std::time::Duration::from_secs(60)).with_error("busy")] {
        let message =
            provider.receive_messages(&queue, &ReceiveOptions::default(), soon()).await.unwrap().pop().unwrap();
        provider.nack_message(&queue, message, nack, soon()).await.unwrap();
    }
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn only_its_owner_can_read_a_new_spool() {
    let scratch = Scratch::new();
    use_it(&scratch).await;
    assert_eq!(mode(&scratch.spool()), 0o700);
    let all = all_in(&scratch.spool());
    assert!(all.len() > 10, "{all:?}");
    for path in all {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&path), expected, "{}", path.display());
    }
}

#[tokio::test]
async fn an_existing_folder_keeps_its_mode_and_its_content_inherits_it() {
    for (given, files) in [(0o750, 0o640), (0o755, 0o644)] {
        let scratch = Scratch::new();
        fs::create_dir(scratch.spool()).unwrap();
        fs::set_permissions(scratch.spool(), Permissions::from_mode(given)).unwrap();
        use_it(&scratch).await;
        assert_eq!(mode(&scratch.spool()), given);
        for path in all_in(&scratch.spool()) {
            let most = if path.is_dir() { given } else { files };
            // The umask of the tests may remove some permissions.
            assert_eq!(mode(&path) & !most, 0, "{}: {:o}", path.display(), mode(&path));
        }
    }
}

#[tokio::test]
async fn the_doctor_warns_of_a_spool_that_every_user_can_read() {
    let scratch = Scratch::new();
    use_it(&scratch).await;
    let warnings = || async {
        let findings = SpoolStore::examine(scratch.spool(), SpoolOptions::default()).await;
        let is_warning =
            |finding: &postrider_core::Finding| finding.severity == Severity::Warning && finding.check == "permissions";
        findings.into_iter().filter(is_warning).map(|finding| finding.found).collect::<Vec<_>>()
    };
    fs::set_permissions(scratch.folder.path(), Permissions::from_mode(0o755)).unwrap();
    assert_eq!(warnings().await, [""; 0]);
    fs::set_permissions(scratch.spool(), Permissions::from_mode(0o755)).unwrap();
    let told = warnings().await;
    assert!(told.len() == 1 && told[0].contains("mode 0755"), "{told:?}");
    // The folder above it excludes other users.
    fs::set_permissions(scratch.folder.path(), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(warnings().await, [""; 0]);
}
