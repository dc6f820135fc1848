//! One run of the command: its process group, its pipes and its end. Dropping it early kills the group.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::echo::Echo;
use super::guard::{Guard, RUN, Watch};
use super::sieve::Sieve;
use super::tail::Tail;

/// Time after the command's end for its pipes to close, and for killed leftovers to be gone.
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(1);
const LEFTOVER_POLL: Duration = Duration::from_millis(10);

/// What happened to processes that a command left behind with its pipes open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftBehind {
    /// There were none.
    Nothing,
    /// They were killed.
    Killed,
    /// They are in another process group and keep running.
    OutOfReach,
}

/// How a command's output is captured; by default all of it goes to the worker's stderr.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    /// Captures up to this many bytes of stdout, and passes none on.
    pub(crate) stdout: Option<usize>,
    /// Takes marked lines out of stderr.
    pub(crate) stderr: Option<Sieve>,
}

/// The captured output, up to a limit.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) bytes: Vec<u8>,
    /// Total length of the output, including bytes that were not kept.
    pub(crate) length: usize,
    limit: usize,
}

impl Kept {
    fn push(&mut self, bytes: &[u8]) {
        self.length = self.length.saturating_add(bytes.len());
        let room = self.limit.saturating_sub(self.bytes.len()).min(bytes.len());
        self.bytes.extend_from_slice(&bytes[..room]);
    }
}

/// The output of a command that has ended.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: Kept,
    /// The last lines of stderr.
    pub(crate) stderr_tail: String,
    pub(crate) left_behind: LeftBehind,
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    group: Pid,
    /// False until [`finish`](Self::finish): a drop then kills the whole group.
    is_finished: bool,
    pumps: JoinSet<()>,
    echo: Echo,
    // Shared with pumps that may never end; held only to copy a few bytes.
    stdout: Arc<Mutex<Kept>>,
    stderr: Arc<Mutex<Tail>>,
    _watch: Watch,
}

impl Process {
    /// Starts the command with `body` on its stdin. Its output goes to the worker's stderr, except for the `taps`.
    ///
    /// It gets its own process group: the worker handles a Ctrl-C on the terminal, and everything that the command starts
    /// can be ended with it.
    pub(crate) fn start(mut command: Command, body: &[u8], taps: Taps, echo: Echo, guard: &Guard) -> io::Result<Self> {
        command.stdin(body_file(body)?).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let watch = guard.watch();
        let mut child = command.env(RUN, watch.run()).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = group.ok_or_else(|| io::Error::other("the process has no id"))?;
        watch.has_group(group);
        let stdout = Arc::new(Mutex::new(Kept { limit: taps.stdout.unwrap_or(0), ..Kept::default() }));
        let stderr = Arc::new(Mutex::new(Tail::default()));
        let mut pumps = JoinSet::new();
        if let Some(pipe) = child.stdout.take() {
            let to = match taps.stdout {
                Some(_) => Sink::Keep(stdout.clone()),
                None => Sink::Pass(echo.clone()),
            };
            pumps.spawn(pump(pipe, to));
        }
        if let Some(pipe) = child.stderr.take() {
            pumps.spawn(pump(pipe, Sink::Stderr { sieve: taps.stderr, tail: stderr.clone(), echo: echo.clone() }));
        }
        Ok(Self { child, group, is_finished: false, pumps, echo, stdout, stderr, _watch: watch })
    }

    /// Waits for the command, not for processes that it left behind. Cancel safe.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends the whole group: SIGTERM, then SIGKILL when `patience` completes.
    pub(crate) async fn terminate(&mut self, patience: impl Future<Output = ()>) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM);
        tokio::select! {
            _ = self.wait() => self.wait_for_the_rest().await,
            () = patience => {}
        }
        let are_left = self.signal(Signal::KILL);
        let status = self.wait().await;
        if are_left {
            // A killed process takes a moment to disappear; the caller must see it gone before it reports the stop.
            self.wait_for_the_rest().await;
        }
        status
    }

    /// Reads the rest of the output and kills leftover processes of the group.
    pub(crate) async fn finish(mut self) -> Output {
        let left_behind = if self.drain().await {
            LeftBehind::Nothing
        } else {
            match (self.signal(Signal::KILL), self.drain().await) {
                (true, true) => LeftBehind::Killed,
                // Only reading took long.
                (false, true) => LeftBehind::Nothing,
                (_, false) => LeftBehind::OutOfReach,
            }
        };
        self.is_finished = true;
        self.echo.end_of_output().await;
        let stdout = std::mem::take(&mut *lock(&self.stdout));
        let tail = std::mem::take(&mut *lock(&self.stderr));
        Output { stdout, stderr_tail: tail.text(), left_behind }
    }

    /// Waits until both pipes are closed and read; false on a timeout.
    async fn drain(&mut self) -> bool {
        timeout(LEFTOVER_TIMEOUT, async { while self.pumps.join_next().await.is_some() {} }).await.is_ok()
    }

    async fn wait_for_the_rest(&self) {
        let gone = async {
            while test_kill_process_group(self.group).is_ok() {
                sleep(LEFTOVER_POLL).await;
            }
        };
        // The rest may be zombies whose parent does not reap them.
        let _ = timeout(LEFTOVER_TIMEOUT, gone).await;
    }

    /// Signals the group; false if it has no process left.
    fn signal(&self, signal: Signal) -> bool {
        kill_process_group(self.group, signal).is_ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_finished {
            self.signal(Signal::KILL);
        }
    }
}

/// An unnamed file with the whole body. Not a pipe: if the worker dies while writing, the command must not take the first
/// part for the whole body. On Linux the file is in memory, so commands start even when the disk is full.
fn body_file(body: &[u8]) -> io::Result<Stdio> {
    #[cfg(target_os = "linux")]
    let mut file = File::from(rustix::fs::memfd_create("body", rustix::fs::MemfdFlags::CLOEXEC)?);
    #[cfg(not(target_os = "linux"))]
    let mut file = tempfile::tempfile()?;
    file.write_all(body)?;
    file.rewind()?;
    Ok(file.into())
}

/// Where the output of a pipe goes.
enum Sink {
    Pass(Echo),
    Keep(Arc<Mutex<Kept>>),
    Stderr { sieve: Option<Sieve>, tail: Arc<Mutex<Tail>>, echo: Echo },
}

impl Sink {
    async fn take(&mut self, bytes: &[u8]) {
        match self {
            Self::Pass(echo) => echo.output(bytes).await,
            Self::Keep(kept) => lock(kept).push(bytes),
            Self::Stderr { sieve: None, tail, echo } => {
                lock(tail).push(bytes);
                echo.output(bytes).await;
            }
            Self::Stderr { sieve: Some(sieve), tail, echo } => {
                let passed = sieve.pass(bytes);
                lock(tail).push(&passed);
                echo.output(&passed).await;
            }
        }
    }

    async fn end(&mut self) {
        if let Self::Stderr { sieve: Some(sieve), tail, echo } = self {
            let passed = sieve.rest();
            lock(tail).push(&passed);
            echo.output(&passed).await;
        }
    }
}

/// Reads until the pipe is closed, even if the worker's stderr fails: a command must never block on its output.
async fn pump(mut pipe: impl AsyncRead + Unpin, mut to: Sink) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        to.take(&buffer[..read]).await;
    }
    to.end().await;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_process_is_killed_with_everything_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let mut command = Command::new("sh");
        // The shell has exited by then; its child runs on and holds no pipe.
        command.args(["-c", "sleep 1000 > /dev/null 2>&1 & echo $! > \"$0\""]).arg(&file);
        let mut process = Process::start(command, b"", Taps::default(), Echo::start(), &Guard::none()).unwrap();
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

    #[tokio::test]
    async fn output_is_kept_up_to_its_limit_and_counted_beyond() {
        let mut command = Command::new("sh");
        command.args(["-c", "printf 12345; printf 6789; echo told >&2; echo 'us: 7' >&2"]);
        let taps = Taps { stdout: Some(6), stderr: Some(Sieve::new("us: ", |text| text == "7")) };
        let mut process = Process::start(command, b"", taps, Echo::start(), &Guard::none()).unwrap();
        process.wait().await.unwrap();
        let output = process.finish().await;
        assert_eq!((output.stdout.bytes, output.stdout.length), (b"123456".to_vec(), 9));
        assert_eq!((output.stderr_tail.as_str(), output.left_behind), ("told", LeftBehind::Nothing));
    }
}
