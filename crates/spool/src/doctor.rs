//! The checks of `postrider doctor` on a spool.

use std::path::Path;

use nix::errno::Errno;
use postrider_core::{BoxFuture, Finding, QueueName, Severity, Timestamp};
use postrider_provider::file_system;

use crate::disk::{Folder, file_type};
use crate::error::DiskError;
use crate::name::FileName;
use crate::options::{SpoolOptions, Watch};
use crate::store::SpoolStore;

impl SpoolStore {
    /// Checks a spool, and returns each finding with its fix. Changes nothing, and creates no folder.
    pub fn examine(path: impl AsRef<Path>, options: SpoolOptions) -> BoxFuture<'static, Vec<Finding>> {
        let path = path.as_ref().to_owned();
        Box::pin(async move {
            let looked = tokio::task::spawn_blocking(move || examine(&path, &options)).await;
            looked.unwrap_or_else(|error| vec![Finding::unseen("connection", error)])
        })
    }
}

fn examine(path: &Path, options: &SpoolOptions) -> Vec<Finding> {
    let shown = path.display();
    let root = match Folder::open_path(path) {
        Ok(root) => root,
        Err(error) if error.errno == Errno::ENOENT => {
            let found = format!("'{shown}' does not exist");
            let fix = "correct the path; a missing folder is created by the first command that uses it";
            return vec![Finding::new("connection", Severity::Problem, found, fix)];
        }
        Err(error) => return vec![Finding::failed("connection", &error.into_error("open the spool"))],
    };
    let mut findings = vec![Finding::fine("connection", format!("'{shown}' is there")), wake_up(path, options)];
    findings.push(writable(path));
    findings.extend(readable_by_others(path, &root));
    match queues(&root, options) {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(Finding::unseen("folders", error)),
    }
    findings
}

fn wake_up(path: &Path, options: &SpoolOptions) -> Finding {
    match file_system::network_kind(path) {
        Some(kind) => Finding::new(
            "wake-up",
            Severity::Warning,
            format!("it is on a network file system ({kind}), without inotify: folders are polled"),
            "synchronise the clocks of all hosts, switch attribute caching off (actimeo=0), or use a database server",
        ),
        None if options.watch == Watch::Poll => Finding::new(
            "wake-up",
            Severity::Note,
            "inotify is switched off: folders are polled",
            "set common.messaging.spool.watch = \"auto\" on a local disk",
        ),
        None => Finding::fine("wake-up", "inotify reports new files"),
    }
}

fn writable(path: &Path) -> Finding {
    use nix::unistd::{AccessFlags, access};
    match access(path, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Finding::fine("permissions", "it is writable"),
        Err(errno) => Finding::failed("permissions", &DiskError::new("write to", path, errno).into_error("write")),
    }
}

/// Checks whether every user of the machine can read messages.
fn readable_by_others(path: &Path, root: &Folder) -> Option<Finding> {
    let path = std::fs::canonicalize(path).ok()?;
    let may_enter = |folder: &Path| nix::sys::stat::stat(folder).is_ok_and(|found| found.st_mode & 0o001 != 0);
    let mode = root.permissions().bits() & 0o777;
    path.ancestors().all(may_enter).then(|| {
        let shown = path.display();
        let found = format!("every user of this machine can read the messages: '{shown}' has mode {mode:04o}");
        let fix =
            format!("chmod 700 '{shown}'; for producers of a group: chgrp GROUP '{shown}' and chmod 770 '{shown}'");
        Finding::new("permissions", Severity::Warning, found, fix)
    })
}

/// Checks each queue for files that no process will use.
fn queues(root: &Folder, options: &SpoolOptions) -> Result<Vec<Finding>, DiskError> {
    let mut findings = Vec::new();
    for (name, _) in root.names()? {
        let name = String::from_utf8_lossy(&name).into_owned();
        if name.starts_with(".deleted-") {
            let found = format!("'{name}' is the rest of an interrupted deletion of a queue");
            findings.push(Finding::new("folders", Severity::Note, found, format!("remove it: rm -r '{name}'")));
        }
        if name.starts_with('.') {
            continue;
        }
        let opened = root.open(&name).and_then(|home| home.open("incoming").map(|incoming| (home, incoming)));
        let (home, incoming) = match opened {
            Ok(folders) => folders,
            // A file beside the queues, or another folder.
            Err(error) if matches!(error.errno, Errno::ENOENT | Errno::ENOTDIR) => continue,
            Err(error) => {
                let found = format!("'{name}' cannot be used as a queue: {error}");
                findings.push(Finding::new(
                    "folders",
                    Severity::Problem,
                    found,
                    "correct that, then run the check again",
                ));
                continue;
            }
        };
        if QueueName::new(&name).is_err() {
            let found = format!("'{name}' has an incoming/, and its name is not valid for a queue");
            findings.push(Finding::new("folders", Severity::Warning, found, "rename the folder"));
            continue;
        }
        findings.extend(ignored(&name, &incoming, options)?);
        if let Ok(processing) = home.open("processing") {
            findings.extend(unleased(&name, &processing)?);
        }
        if let Ok(tmp) = home.open("tmp") {
            findings.extend(left_over(&name, &tmp)?);
        }
        if let Some(holder) = crate::lock::last_holder(&home)
            && is_stopped(holder)
        {
            let found =
                format!("process {holder}, the last one to change queue '{name}', is stopped and may hold its lock");
            findings.push(Finding::new("lock", Severity::Warning, found, format!("kill -CONT {holder}, or end it")));
        }
    }
    Ok(findings)
}

fn ignored(queue: &str, incoming: &Folder, options: &SpoolOptions) -> Result<Option<Finding>, DiskError> {
    if options.files == crate::options::Files::Any {
        return Ok(None);
    }
    let is_ignored =
        |name: &[u8]| !name.starts_with(b".") && !name.ends_with(b".json") && FileName::parse(name).is_none();
    let count = incoming.names()?.iter().filter(|(name, _)| is_ignored(name)).count();
    Ok((count > 0).then(|| {
        let found = format!("{count} files in '{queue}/incoming' do not end in .json and are ignored");
        let fix = "rename them, move them away, or set common.messaging.spool.files = \"any\"";
        Finding::new("folders", Severity::Warning, found, fix)
    }))
}

fn unleased(queue: &str, processing: &Folder) -> Result<Option<Finding>, DiskError> {
    let is_unleased =
        |name: &[u8]| !name.starts_with(b".") && FileName::parse(name).is_none_or(|name| name.lease.is_none());
    let count = processing.names()?.iter().filter(|(name, _)| is_unleased(name)).count();
    Ok((count > 0).then(|| {
        let found = format!("{count} files in '{queue}/processing' were put there by another program");
        let fix = format!("if no program uses them, move them back: mv '{queue}'/processing/FILE '{queue}'/incoming/");
        Finding::new("folders", Severity::Warning, found, fix)
    }))
}

fn left_over(queue: &str, tmp: &Folder) -> Result<Option<Finding>, DiskError> {
    let hour_ago = Timestamp::now().as_micros() / 1_000_000 - 3600;
    let mut count = 0;
    for (name, _) in tmp.names()? {
        let found = tmp.stat(&name)?;
        count += usize::from(
            found.is_some_and(|found| file_type(&found) == nix::dir::Type::File && found.st_mtime < hour_ago),
        );
    }
    Ok((count > 0).then(|| {
        let found = format!("{count} files in '{queue}/tmp' were left by processes that died during a write");
        let fix = "none: the next receive removes them; they were never reported as sent";
        Finding::new("folders", Severity::Note, found, fix)
    }))
}

fn is_stopped(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && line.contains('T'))
}
