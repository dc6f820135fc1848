//! One run of the command: a process group, its pipes, its end. Dropped before that, it is killed.

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

/// How long the pipes may stay open after the command has ended, and how long what it left behind has to end.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(1);
const LEFTOVER_POLL: Duration = Duration::from_millis(10);

/// What became of a process that a command left behind with its pipes open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftBehind {
    /// There was none.
    Nothing,
    /// It was ended.
    Killed,
    /// It is in no group of ours, and runs on.
    OutOfReach,
}

/// What is done with a command's output that is not simply passed on to our stderr.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    /// So many bytes of stdout are kept, and none is passed on.
    pub(crate) stdout: Option<usize>,
    /// What stderr has to pass first.
    pub(crate) stderr: Option<Sieve>,
}

/// What was kept of an output.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) bytes: Vec<u8>,
    /// How long the output was, what was not kept included.
    pub(crate) length: usize,
    most: usize,
}

impl Kept {
    fn push(&mut self, bytes: &[u8]) {
        self.length = self.length.saturating_add(bytes.len());
        let room = self.most.saturating_sub(self.bytes.len()).min(bytes.len());
        self.bytes.extend_from_slice(&bytes[..room]);
    }
}

/// What a command that has ended leaves.
#[derive(Debug)]
pub(crate) struct Output {
    /// What was kept of stdout.
    pub(crate) stdout: Kept,
    /// The last lines of stderr.
    pub(crate) stderr_tail: String,
    /// What became of what it had left behind with its pipes open.
    pub(crate) left_behind: LeftBehind,
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    group: Pid,
    /// Whoever drops it before that wants nothing of it to run on.
    is_finished: bool,
    pumps: JoinSet<()>,
    echo: Echo,
    // Shared with pumps that may never end; held only to copy a few bytes.
    stdout: Arc<Mutex<Kept>>,
    stderr: Arc<Mutex<Tail>>,
    _watch: Watch,
}

impl Process {
    /// Starts the command with `body` on its stdin. What it prints goes to our stderr, but for the `taps`.
    ///
    /// It gets a process group of its own: a Ctrl-C on the terminal is the worker's to handle, and what the command
    /// starts can be ended with it.
    pub(crate) fn start(mut command: Command, body: &[u8], taps: Taps, echo: Echo, guard: &Guard) -> io::Result<Self> {
        command.stdin(whole(body)?).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let watch = guard.watch();
        let mut child = command.env(RUN, watch.run()).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = group.ok_or_else(|| io::Error::other("the process has no id"))?;
        watch.has_group(group);
        let stdout = Arc::new(Mutex::new(Kept { most: taps.stdout.unwrap_or(0), ..Kept::default() }));
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

    /// Waits for the command, not for what it may have left behind. May be dropped and called again.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends the whole group: asks, and when `patience` is over insists.
    pub(crate) async fn terminate(&mut self, patience: impl Future<Output = ()>) -> io::Result<ExitStatus> {
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

    /// Takes what is left of the output.
    pub(crate) async fn finish(mut self) -> Output {
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
        let stdout = std::mem::take(&mut *lock(&self.stdout));
        let tail = std::mem::take(&mut *lock(&self.stderr));
        Output { stdout, stderr_tail: tail.text(), left_behind }
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
        if !self.is_finished {
            self.signal(Signal::KILL);
        }
    }
}

/// A file with all of the body, which has no name and is removed when the last process closes it. Not a pipe: when the
/// worker dies half way through, a command must not take the part that it has got for the whole. On Linux it is in memory,
/// so that a full disk keeps no command from starting.
fn whole(body: &[u8]) -> io::Result<Stdio> {
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

/// Reads until the pipe is closed, whatever becomes of our own stderr: a command must never wait for its reader.
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
    async fn what_is_dropped_is_killed_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let mut command = Command::new("sh");
        // The shell is gone by then; what it started is not, and holds no pipe.
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
    async fn an_output_is_kept_up_to_its_bound_and_counted_beyond() {
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
