//! Worker processes of a test: its own binary, started again, that can be killed.

pub mod killed;

use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command, Stdio};

/// A worker process, killed on drop.
#[derive(Debug)]
pub struct WorkerProcess(Child);

impl WorkerProcess {
    /// Starts this test binary again with these environment variables, to run only the test `test`: the worker's side.
    pub fn start<V: AsRef<OsStr>>(test: &str, variables: &[(&str, V)]) -> io::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills it, as a crash would.
    pub fn kill(mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }

    /// Waits for its end and returns whether it succeeded.
    pub fn wait(mut self) -> io::Result<bool> {
        self.0.wait().map(|status| status.success())
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        self.0.try_wait().map(|status| status.is_some())
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
