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

/// What the process of a backlog says at its end.
#[derive(Debug, Serialize, Deserialize)]
struct Ended {
    send_seconds: f64,
    drain_seconds: f64,
    peak_megabytes: f64,
}

/// Runs the backlog in a process of its own: the driver's turns in this one would count as its memory.
pub(crate) fn in_a_child(args: &Args, messages: usize) -> Result<Row, Failure> {
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("--backlog-in-this-process").arg("--folder").arg(&args.folder);
    for (flag, value) in
        [("--messages", messages), ("--size", args.size), ("--batch", args.batch), ("--workers", args.workers)]
    {
        child.arg(flag).arg(value.to_string());
    }
    let output = child.stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the process of the backlog failed ({})", output.status).into());
    }
    let ended: Ended = serde_json::from_slice(&output.stdout)?;
    let rate = Rate::new(Workload::Drain, messages, Duration::try_from_secs_f64(ended.drain_seconds)?);
    let mut row = Row::new(Case::Backlog, Measured::Rate(rate));
    row.send_seconds = Some(ended.send_seconds);
    row.peak_megabytes = Some(ended.peak_megabytes);
    Ok(row)
}

/// The backlog itself. Its only output is one line for the process that started it.
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
    let ended = Ended { send_seconds: sent.seconds, drain_seconds: drained.seconds, peak_megabytes };
    println!("{}", serde_json::to_string(&ended)?);
    Ok(())
}

/// The most that was resident at any time, in millions of bytes.
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
