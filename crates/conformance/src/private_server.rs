//! A server of a test's own, which may be killed: the others' go on.
//!
//! It is started by `scripts/services` with a folder of its own below the system's folder for temporary files, and ended
//! and removed with the value that stands for it. [`storm_on_a_killed_server`] is what it is for.

use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_core::{MessagingError, Provider};

use crate::exercise::Settings;
use crate::storm::{StormSettings, storm_under_faults};

/// A server that only this test uses.
#[derive(Debug)]
pub struct PrivateServer {
    script: PathBuf,
    folder: PathBuf,
    service: &'static str,
    url: String,
    kills: AtomicUsize,
}

impl PrivateServer {
    /// Starts the service of that name by the script, and waits until it answers.
    pub fn start(script: &Path, service: &'static str) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("postrider-{service}-{:016x}", rand::random::<u64>()));
        std::fs::create_dir_all(&folder)?;
        // Started by root, the server runs as another user, who must be able to enter.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
        // From here on the folder is removed with this.
        let mut server =
            Self { script: script.to_owned(), folder, service, url: String::new(), kills: AtomicUsize::new(0) };
        server.call(&["up", service])?;
        let variables = server.call(&["env"])?;
        let variables = String::from_utf8_lossy(&variables.stdout).into_owned();
        // The last: a service that is a database in another one's server is listed after it. What is reached over HTTP is
        // for operators.
        let is_url = |text: &&str| text.contains("://") && !text.starts_with("http");
        let url = variables.split('\'').rfind(is_url);
        server.url = url.ok_or_else(|| io::Error::other(format!("no URL in: {variables}")))?.to_owned();
        Ok(server)
    }

    /// Where it is; the same after a restart.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How often it was killed.
    pub fn kills(&self) -> usize {
        self.kills.load(Ordering::SeqCst)
    }

    /// Ends all its processes as a crash would, and starts it again on what they left.
    pub fn crash(&self) -> io::Result<()> {
        let pid = self.pid_file()?;
        let pid = pid.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
        let pid = pid.ok_or_else(|| io::Error::other("the server has no number"))?;
        // The children before it dies, because nobody knows afterwards whose they were.
        let mut all = vec![pid];
        all.extend(children_of(pid)?);
        let all: Vec<String> = all.iter().map(u32::to_string).collect();
        let killed = Command::new("kill").arg("-KILL").args(&all).output()?;
        self.kills.fetch_add(1, Ordering::SeqCst);
        // One of its children may have ended by itself. That the server has not is the next call's to find out.
        drop(killed);
        self.call(&["up", self.service]).map(drop)
    }

    /// What is written of the one process that was started: of the service, or of the server that it is a database in.
    fn pid_file(&self) -> io::Result<String> {
        for service in std::fs::read_dir(&self.folder)? {
            let file = service?.path().join("pid");
            if file.is_file() {
                return std::fs::read_to_string(file);
            }
        }
        Err(io::Error::other(format!("{} was not started in {}", self.service, self.folder.display())))
    }

    /// Crashes again and again, at most `times`, after some time each. To be used as the faults of a storm.
    pub async fn crash_again_and_again(self: Arc<Self>, times: usize, after: Duration) {
        for _ in 0..times {
            tokio::time::sleep(after).await;
            let server = self.clone();
            // In one piece and not cut off when this is dropped: nobody else would start it again.
            let crashed = tokio::task::spawn_blocking(move || server.crash()).await;
            if !matches!(crashed, Ok(Ok(()))) {
                // The storm fails for want of a server; this says why.
                eprintln!("{}: {crashed:?}", self.service);
                return;
            }
        }
    }

    fn call(&self, arguments: &[&str]) -> io::Result<Output> {
        let output = Command::new(&self.script).args(arguments).env("POSTRIDER_SERVICES_DIR", &self.folder).output()?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("{} {arguments:?} failed: {said}", self.script.display())))
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        // A test that has failed already must not be kept from saying why.
        let _ = self.call(&["down", "--purge"]);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a storm on a server of its own, which is killed meanwhile and starts again on what it had made durable. The
/// workers go on with the connections that they have. `open` opens a provider by a URL; the storm has so many messages, or
/// many more when it is to be long, and the server is killed that long after its beginning. Answers a breach in a
/// sentence.
pub async fn storm_on_a_killed_server<P, Fut>(
    script: &Path,
    service: &'static str,
    (messages, after): (usize, Duration),
    is_long: bool,
    open: impl Fn(String) -> Fut + Send + Sync + 'static,
) -> Result<(), String>
where
    P: Provider,
    Fut: Future<Output = Result<P, MessagingError>> + Send,
{
    let server = Arc::new(PrivateServer::start(script, service).map_err(|error| error.to_string())?);
    let url = server.url().to_owned();
    let (messages, kills) = if is_long { (20_000, 10) } else { (messages, 1) };
    let settings = Settings { storm: StormSettings { messages, senders: 2, receivers: 3 }, ..Settings::default() };
    let faults = server.clone().crash_again_and_again(kills, after);
    let report = storm_under_faults(&move || open(url.clone()), &settings, faults).await;
    let report = report.map_err(|error| error.to_string())?;
    let verdict = &report.verdict;
    if !verdict.is_clean() || verdict.counts.live > 0 {
        return Err(format!("seed {}: {verdict}", report.seed));
    }
    if server.kills() == 0 {
        return Err(format!("the storm was over before the server was killed: {verdict}"));
    }
    Ok(())
}

/// What a storm on a killed server is like on most: it is short, and killed in its middle.
pub const SHORT_STORM: (usize, Duration) = (300, Duration::from_millis(400));

/// The processes that a process has started.
fn children_of(parent: u32) -> io::Result<Vec<u32>> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // It may have ended since.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name, in brackets, may hold anything; state and parent stand after it.
        let parent_of = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        if parent_of == Some(parent) {
            children.push(pid);
        }
    }
    Ok(children)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_its_children_and_nobody_elses() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let children = children_of(std::process::id()).unwrap();
        let of_child = children_of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(children.contains(&child.id()) && of_child.is_empty(), "{children:?} {of_child:?}");
    }

    #[test]
    fn a_script_that_fails_is_told_with_what_it_said() {
        let folder = std::env::temp_dir().join(format!("postrider-script-{:016x}", rand::random::<u64>()));
        std::fs::write(&folder, "#!/bin/sh\necho no such service >&2\nexit 1\n").unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = PrivateServer::start(&folder, "postgres").unwrap_err();
        std::fs::remove_file(&folder).unwrap();
        assert!(error.to_string().contains("no such service"), "{error}");
    }
}
