//! One run of the command: a process group, its pipes, its end. Dropped before that, it is killed.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider::Bytes;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::echo::Echo;
use super::tail::Tail;

/// How long the pipes may stay open after the command has ended, and how long what it left behind has to end.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(1);
const LEFTOVER_POLL: Duration = Duration::from_millis(10);

/// What became of a process that a command left behind with its pipes open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeftBehind {
    /// There was none.
    Nothing,
    /// It was ended.
    Killed,
    /// It is in no group of ours, and runs on.
    OutOfReach,
}

/// A running command.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    group: Pid,
    /// Whoever drops it before that wants nothing of it to run on.
    is_finished: bool,
    feeding: AbortHandle,
    pumps: JoinSet<()>,
    echo: Echo,
    // Shared with a pump that may never end; held only to copy a few bytes.
    stderr: Arc<Mutex<Tail>>,
}

impl Process {
    /// Starts the command with `body` on its stdin. What it prints goes to our stderr.
    ///
    /// It gets a process group of its own: a Ctrl-C on the terminal is the worker's to handle, and what the command
    /// starts can be ended with it.
    pub(super) fn start(mut command: Command, body: Bytes, echo: Echo) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = group.ok_or_else(|| io::Error::other("the process has no id"))?;
        let stderr = Arc::new(Mutex::new(Tail::default()));
        let mut pumps = JoinSet::new();
        if let Some(pipe) = child.stdout.take() {
            pumps.spawn(pump(pipe, None, echo.clone()));
        }
        if let Some(pipe) = child.stderr.take() {
            pumps.spawn(pump(pipe, Some(stderr.clone()), echo.clone()));
        }
        let feeding = tokio::spawn(feed(child.stdin.take(), body)).abort_handle();
        Ok(Self { child, group, is_finished: false, feeding, pumps, echo, stderr })
    }

    /// Waits for the command, not for what it may have left behind. May be dropped and called again.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends the whole group: asks, and when `patience` is over insists.
    pub(super) async fn terminate(&mut self, patience: impl Future<Output = ()>) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM);
        tokio::select! {
            _ = self.wait() => self.wait_for_the_rest().await,
            () = patience => {}
        }
        let are_left = self.signal(Signal::KILL);
        let status = self.wait().await;
        if are_left {
            // A killed process takes a moment to be gone, and must be before anybody hears that it was stopped.
            self.wait_for_the_rest().await;
        }
        status
    }

    /// Takes what is left of the output. Answers the last lines of stderr, and what became of what the command had left
    /// behind with its pipes open.
    pub(super) async fn finish(mut self) -> (String, LeftBehind) {
        let left_behind = if self.drain().await {
            LeftBehind::Nothing
        } else {
            match (self.signal(Signal::KILL), self.drain().await) {
                (true, true) => LeftBehind::Killed,
                // It only took long to read.
                (false, true) => LeftBehind::Nothing,
                (_, false) => LeftBehind::OutOfReach,
            }
        };
        self.is_finished = true;
        self.echo.end_of_output().await;
        let tail = std::mem::take(&mut *self.stderr.lock().unwrap_or_else(PoisonError::into_inner));
        (tail.text(), left_behind)
    }

    /// Waits until both pipes are closed and read; false when that takes too long.
    async fn drain(&mut self) -> bool {
        timeout(LEFTOVER_PATIENCE, async { while self.pumps.join_next().await.is_some() {} }).await.is_ok()
    }

    async fn wait_for_the_rest(&self) {
        let gone = async {
            while test_kill_process_group(self.group).is_ok() {
                sleep(LEFTOVER_POLL).await;
            }
        };
        // The rest may be zombies that nobody collects.
        let _ = timeout(LEFTOVER_PATIENCE, gone).await;
    }

    /// Whether the group still has a process; that it has none is no error.
    fn signal(&self, signal: Signal) -> bool {
        kill_process_group(self.group, signal).is_ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.feeding.abort();
        if !self.is_finished {
            self.signal(Signal::KILL);
        }
    }
}

/// A command need not read its body, so a pipe that it closed is no error.
async fn feed(stdin: Option<ChildStdin>, body: Bytes) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(&body).await;
    }
}

/// Reads until the pipe is closed, whatever becomes of our own stderr: a command must never wait for its reader.
async fn pump(mut pipe: impl AsyncRead + Unpin, keep: Option<Arc<Mutex<Tail>>>, echo: Echo) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        let bytes = &buffer[..read];
        if let Some(tail) = &keep {
            tail.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
        echo.output(bytes).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_dropped_is_killed_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let mut command = Command::new("sh");
        // The shell is gone by then; what it started is not, and holds no pipe.
        command.args(["-c", "sleep 1000 > /dev/null 2>&1 & echo $! > \"$0\""]).arg(&file);
        let mut process = Process::start(command, Bytes::new(), Echo::start()).unwrap();
        process.wait().await.unwrap();
        let pid = std::fs::read_to_string(&file).unwrap().trim().to_owned();
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.chars().next().filter(|state| !"ZX".contains(*state))
        };
        assert!(state().is_some());
        drop(process);
        let gone = async {
            while state().is_some() {
                sleep(LEFTOVER_POLL).await;
            }
        };
        timeout(Duration::from_secs(60), gone).await.unwrap();
    }
}
