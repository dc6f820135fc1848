//! Several processes on one file: this binary starts itself again as worker processes, and kills them.

mod fairness;
mod killed;

use std::path::{Path, PathBuf};

use postrider_conformance::processes::WorkerProcess;
use postrider_conformance::processes::killed::work;

/// Parameters of a worker process, in environment variables.
const ROLE: &str = "POSTRIDER_TEST_ROLE";
const FILE: &str = "POSTRIDER_TEST_FILE";
const REPORT: &str = "POSTRIDER_TEST_REPORT";
const NUMBER: &str = "POSTRIDER_TEST_NUMBER";

/// Starts this binary again as a worker.
fn spawn(role: &str, file: &Path, report: &Path, number: u32) -> WorkerProcess {
    let number = number.to_string();
    let variables = [(ROLE, role.as_ref()), (FILE, file.as_os_str()), (REPORT, report.as_os_str())];
    let variables: Vec<_> = variables.into_iter().chain([(NUMBER, number.as_ref())]).collect();
    WorkerProcess::start("processes::worker", &variables).expect("a worker can be started")
}

/// Runs a worker process. Does nothing when it runs as an ordinary test.
#[test]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = |name| PathBuf::from(std::env::var_os(name).expect("a path"));
    let (file, report) = (path(FILE), path(REPORT));
    let number = std::env::var(NUMBER).ok().and_then(|number| number.parse().ok()).expect("a number");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    match role.as_str() {
        "killed" => runtime.block_on(async { work(crate::connect(&file).await, &report, number).await }),
        "fair" => runtime.block_on(fairness::work(&file, &report)),
        other => panic!("there is no role '{other}'"),
    }
}
