//! Several processes on one folder: the test binary starts itself as workers, and kills them.

mod every_step;
mod killed;

use std::path::{Path, PathBuf};

use postrider_conformance::processes::WorkerProcess;
use postrider_conformance::processes::killed::work;
use postrider_spool::{SpoolOptions, Watch};

/// Environment variables with the parameters of a worker process.
const ROLE: &str = "POSTRIDER_TEST_ROLE";
const SPOOL: &str = "POSTRIDER_TEST_SPOOL";
const REPORT: &str = "POSTRIDER_TEST_REPORT";
const NUMBER: &str = "POSTRIDER_TEST_NUMBER";
const FAILPOINTS: &str = "POSTRIDER_FAILPOINTS";

/// Starts this binary as a worker.
fn spawn(role: &str, spool: &Path, report: &Path, number: u32, failpoints: &str) -> WorkerProcess {
    let number = number.to_string();
    let variables = [
        (ROLE, role.as_ref()),
        (SPOOL, spool.as_os_str()),
        (REPORT, report.as_os_str()),
        (NUMBER, number.as_ref()),
        (FAILPOINTS, failpoints.as_ref()),
    ];
    WorkerProcess::start("processes::worker", &variables).expect("a worker can be started")
}

/// Runs a worker to its end.
pub(crate) fn run(role: &str, spool: &Path, report: &Path) {
    assert!(spawn(role, spool, report, 1, "").wait().unwrap(), "the worker failed");
}

/// Runs a worker as the user `nobody` on a spool that every user may write.
pub(crate) fn as_nobody(scratch: &crate::Scratch, role: &str) {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    for entry in [scratch.folder.path().to_owned(), scratch.spool(), scratch.spool().join("orders")] {
        std::fs::set_permissions(&entry, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    for entry in std::fs::read_dir(scratch.spool().join("orders")).unwrap() {
        std::fs::set_permissions(entry.unwrap().path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    // By this path, because the folder of the binary may not be readable for that user.
    let mut worker = std::process::Command::new("/proc/self/exe");
    worker.args(["processes::worker", "--exact", "--test-threads=1"]).current_dir("/");
    worker.env(ROLE, role).env(SPOOL, scratch.spool()).env(REPORT, scratch.folder.path()).env(NUMBER, "1");
    if nix::unistd::geteuid().is_root() {
        worker.uid(65534).gid(65534);
    }
    let output = worker.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs in a worker; does nothing as a test of its own.
#[test]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = |name| PathBuf::from(std::env::var_os(name).expect("a path"));
    let (spool, report) = (path(SPOOL), path(REPORT));
    let number = std::env::var(NUMBER).ok().and_then(|number| number.parse().ok()).expect("a number");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match role.as_str() {
            "killed" => work(crate::connect(&spool, SpoolOptions::default()).await, &report, number).await,
            "killed, polling" => {
                let options = SpoolOptions { watch: Watch::Poll, ..SpoolOptions::default() };
                work(crate::connect(&spool, options).await, &report, number).await;
            }
            "many queues" => crate::scale::use_many_queues(&spool).await,
            "reads keys" => crate::ordering::read_few_keys().await,
            "settles" => crate::scale::send_and_settle(&spool, report.to_str().expect("a receipt")).await,
            "unreadable" => crate::foreign::receive_as_nobody(&spool).await,
            "every step" => every_step::work(&spool, &report, number).await,
            other => panic!("there is no role '{other}'"),
        }
    });
}
