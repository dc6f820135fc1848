//! Several processes on one file: this binary starts itself again as workers, and kills them.

mod fairness;
mod journal;
mod killed;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What a worker process is told, by environment variables.
const ROLE: &str = "POSTRIDER_TEST_ROLE";
const FILE: &str = "POSTRIDER_TEST_FILE";
const REPORT: &str = "POSTRIDER_TEST_REPORT";
const NUMBER: &str = "POSTRIDER_TEST_NUMBER";

/// Starts this binary again as a worker.
fn spawn(role: &str, file: &Path, report: &Path, number: u32) -> Worker {
    let child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["processes::worker", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(FILE, file)
        .env(REPORT, report)
        .env(NUMBER, number.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("a worker can be started");
    Worker(child)
}

/// A worker process. It does not outlive its test.
struct Worker(Child);

impl Worker {
    /// Ends it as a crash would: at once, whatever it is doing.
    fn kill(mut self) {
        self.0.kill().expect("the worker can be killed");
        self.0.wait().expect("the worker ends");
    }

    fn wait(mut self) {
        assert!(self.0.wait().expect("the worker ends").success(), "a worker failed");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The worker's side. Started as a test by hand it does nothing.
#[test]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = |name| PathBuf::from(std::env::var_os(name).expect("a path"));
    let (file, report) = (path(FILE), path(REPORT));
    let number = std::env::var(NUMBER).ok().and_then(|number| number.parse().ok()).expect("a number");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    match role.as_str() {
        "killed" => runtime.block_on(killed::work(&file, &report, number)),
        "fair" => runtime.block_on(fairness::work(&file, &report)),
        other => panic!("there is no role '{other}'"),
    }
}
