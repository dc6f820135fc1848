//! The memory of a process that sends and drains a long backlog.

use std::process::Command;
use std::time::Duration;

use postrider_bench::{Bench, Load, Measured, Rate, Workload};
use postrider_core::{Deadline, MessagingService};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::Failure;
use crate::args::Args;
use crate::case::Case;
use crate::compare::{Row, open, runtime};

/// Result of the backlog process.
#[derive(Debug, Serialize, Deserialize)]
struct BacklogResult {
    send_seconds: f64,
    drain_seconds: f64,
    peak_megabytes: f64,
}

/// Runs the backlog in a child process, so that its memory is measured without that of the driver.
pub(crate) fn in_child_process(args: &Args, messages: usize) -> Result<Row, Failure> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("--backlog-in-this-process").arg("--folder").arg(&args.folder);
    for (flag, value) in
        [("--messages", messages), ("--size", args.size), ("--batch", args.batch), ("--workers", args.workers)]
    {
        child.arg(flag).arg(value.to_string());
    }
    let output = child.stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the backlog process failed ({})", output.status).into());
    }
    let result: BacklogResult = serde_json::from_slice(&output.stdout)?;
    let rate = Rate::new(Workload::Drain, messages, Duration::try_from_secs_f64(result.drain_seconds)?);
    let mut row = Row::new(Case::Backlog, Measured::Rate(rate));
    row.send_seconds = Some(result.send_seconds);
    row.peak_megabytes = Some(result.peak_megabytes);
    Ok(row)
}

/// Runs the backlog in this process. Prints one line for the parent process.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folder = TempDir::with_prefix_in("postrider-bench-", &args.folder)?;
    let (sent, drained) = runtime()?.block_on(async {
        let provider = open(&folder.path().join("postrider.db"), Case::Backlog).await?;
        let bench = Bench::new(provider, Load { messages: args.messages, ..args.load() })?;
        let rates = bench.backlog().await?;
        bench.provider().close(Deadline::default()).await?;
        Ok::<_, Failure>(rates)
    })?;
    let peak_megabytes = peak_megabytes(&std::fs::read_to_string("/proc/self/status")?)
        .ok_or("/proc/self/status has no VmHWM; the memory of a process is measured on Linux only")?;
    let result = BacklogResult { send_seconds: sent.seconds, drain_seconds: drained.seconds, peak_megabytes };
    println!("{}", serde_json::to_string(&result)?);
    Ok(())
}

/// Peak resident memory, in millions of bytes.
pub(crate) fn peak_megabytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_status_of_a_process() {
        let status = "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t   15625 kB\nVmRSS:\t 5 kB\n";
        assert_eq!(peak_megabytes(status), Some(16.0));
        assert_eq!(peak_megabytes("VmRSS:\t 5 kB\n"), None);
    }
}
