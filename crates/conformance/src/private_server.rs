//! A server for one test, which the test may kill.
//!
//! `scripts/services` starts it in its own temporary folder; dropping [`PrivateServer`] stops it and removes the folder.
//! [`storm_on_a_killed_server`] uses it.

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
    /// Starts the service with the script and waits until it answers.
    pub fn start(script: &Path, service: &'static str) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("postrider-{service}-{:016x}", rand::random::<u64>()));
        std::fs::create_dir_all(&folder)?;
        // Started by root, the server runs as another user, who needs access to the folder.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
        // From here on the drop removes the folder.
        let mut server =
            Self { script: script.to_owned(), folder, service, url: String::new(), kills: AtomicUsize::new(0) };
        server.call(&["up", service])?;
        let variables = server.call(&["env"])?;
        let variables = String::from_utf8_lossy(&variables.stdout).into_owned();
        // The last URL: a service that is a database in another service's server is listed after it. HTTP URLs are for
        // operators.
        let is_url = |text: &&str| text.contains("://") && !text.starts_with("http");
        let url = variables.split('\'').rfind(is_url);
        server.url = url.ok_or_else(|| io::Error::other(format!("no URL in: {variables}")))?.to_owned();
        Ok(server)
    }

    /// Its URL; the same after a restart.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The number of kills.
    pub fn kills(&self) -> usize {
        self.kills.load(Ordering::SeqCst)
    }

    /// Kills all its processes, as a crash would, and starts it again on their data.
    pub fn crash(&self) -> io::Result<()> {
        let pid = self.pid_file()?;
        let pid = pid.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
        let pid = pid.ok_or_else(|| io::Error::other("the server's pid file is empty"))?;
        // List the children first: after the kill they have another parent.
        let mut all = vec![pid];
        all.extend(children_of(pid)?);
        let all: Vec<String> = all.iter().map(u32::to_string).collect();
        let killed = Command::new("kill").arg("-KILL").args(&all).output()?;
        self.kills.fetch_add(1, Ordering::SeqCst);
        // A child may have ended by itself, so the result of the kill is ignored; the next call fails if the server lives.
        drop(killed);
        self.call(&["up", self.service]).map(drop)
    }

    /// The contents of the pid file of the service, or of the server that holds its database.
    fn pid_file(&self) -> io::Result<String> {
        for service in std::fs::read_dir(&self.folder)? {
            let file = service?.path().join("pid");
            if file.is_file() {
                return std::fs::read_to_string(file);
            }
        }
        Err(io::Error::other(format!("{} was not started in {}", self.service, self.folder.display())))
    }

    /// Crashes the server up to `times` times, `after` this time each. Used as the faults of a storm.
    pub async fn crash_again_and_again(self: Arc<Self>, times: usize, after: Duration) {
        for _ in 0..times {
            tokio::time::sleep(after).await;
            let server = self.clone();
            // Not cancelled when this future is dropped, or the server would stay down.
            let crashed = tokio::task::spawn_blocking(move || server.crash()).await;
            if !matches!(crashed, Ok(Ok(()))) {
                // The storm fails without a server; this says why.
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
        // A failing test must still report its own error.
        let _ = self.call(&["down", "--purge"]);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a storm on a private server, which is killed and restarted meanwhile. The workers keep their connections. `open`
/// opens a provider by a URL; the tuple is the number of messages (more when `is_long`) and the time until the kill. The
/// error is a breach.
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
    let settings = Settings { storm: StormSettings::small(messages), ..Settings::default() };
    let faults = server.clone().crash_again_and_again(kills, after);
    let report = storm_under_faults(&move || open(url.clone()), &settings, faults).await;
    let report = report.map_err(|error| error.to_string())?;
    report.ensure_clean()?;
    if server.kills() == 0 {
        return Err(format!("the storm ended before the server was killed: {}", report.verdict));
    }
    Ok(())
}

/// Messages and time until the kill of a usual short storm.
pub const SHORT_STORM: (usize, Duration) = (300, Duration::from_millis(400));

/// The child processes of a process.
fn children_of(parent: u32) -> io::Result<Vec<u32>> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // It may have ended since.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name, in brackets, may contain anything; state and parent follow it.
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
    fn only_own_children_are_found() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let children = children_of(std::process::id()).unwrap();
        let of_child = children_of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(children.contains(&child.id()) && of_child.is_empty(), "{children:?} {of_child:?}");
    }

    #[test]
    fn the_error_of_a_failed_script_has_its_output() {
        let folder = std::env::temp_dir().join(format!("postrider-script-{:016x}", rand::random::<u64>()));
        std::fs::write(&folder, "#!/bin/sh\necho no such service >&2\nexit 1\n").unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = PrivateServer::start(&folder, "postgres").unwrap_err();
        std::fs::remove_file(&folder).unwrap();
        assert!(error.to_string().contains("no such service"), "{error}");
    }
}
