//! The printed report.

use std::io::Write;

use postrider_bench::Measured;

use crate::Failure;
use crate::args::Args;
use crate::case::{Case, MAX_MEGABYTES};
use crate::compare::{Row, Times};
use crate::http::HttpTask;
use crate::spool::DurableBaseline;

/// The head of the table.
pub(crate) fn begin(args: &Args) {
    if !args.json {
        println!("{}\n", head(args));
        println!("{:<22} {:>9} {:>12} {:>12} {:>8}  TARGET", "WORKLOAD", "MESSAGES", "PER SECOND", "BASELINE", "RATIO");
    }
}

fn head(args: &Args) -> String {
    let (size, folder, runs) = (args.size, args.folder.display(), args.runs);
    let of = if args.check { "the first good run, or the best, of" } else { "median of" };
    format!("{size}-byte messages, files in {folder}, {of} {runs}")
}

/// Prints one row.
pub(crate) fn row(args: &Args, row: &Row) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, row)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", line(row))?;
    }
    Ok(out.flush()?)
}

pub(crate) fn line(row: &Row) -> String {
    let mut text = figures(row);
    if let Some(baseline) = row.baseline {
        text += &format!("\n{:<22} baseline: {baseline}", "");
    }
    if let Some(DurableBaseline { durable_raw_per_second, durable_ratio }) = &row.durable {
        text += &format!("\n{:<22} with an fsync of both folders once a batch", "");
        text += &format!(" the baseline is {durable_raw_per_second:.0} and the ratio {durable_ratio:.2}");
    }
    text
}

fn figures(row: &Row) -> String {
    let name = row.case.name();
    let target = row.case.target();
    if let (Measured::Latency(latency), Some(times), Some(target)) = (&row.measured, &row.times, target) {
        let Times { raw_p50_ms, raw_p99_ms, p50_ratio, p99_ratio } = times;
        return format!(
            "{name:<22} p50 {:.3} ms, {p50_ratio:.2} of {raw_p50_ms:.3}; p99 {:.3} ms, {p99_ratio:.2} of \
             {raw_p99_ms:.3}; at most {target}",
            latency.p50_ms, latency.p99_ms
        );
    }
    match (&row.measured, row.case) {
        (Measured::Latency(_), Case::Spool(_)) => {
            let times = row.claims.iter().map(|claim| format!("{:.3} ms of {} messages", claim.p50_ms, claim.backlog));
            format!("{name:<22} p50 of a claim and its ack: {}", times.collect::<Vec<_>>().join(", "))
        }
        (Measured::Latency(latency), Case::Http(_)) => format!(
            "{name:<22} a send p50 {:.1} ms, p99 {:.1} ms, below {} ms; the server {:.1} MB at most, below {} MB",
            latency.p50_ms,
            latency.p99_ms,
            HttpTask::MAX_P99_MS,
            row.peak_megabytes.unwrap_or_default(),
            HttpTask::MAX_MEGABYTES,
        ),
        (Measured::Latency(latency), _) => format!(
            "{name:<22} p50 {:.3} ms, p95 {:.3} ms, p99 {:.3} ms",
            latency.p50_ms, latency.p95_ms, latency.p99_ms
        ),
        (Measured::Rate(rate), Case::Backlog) => format!(
            "{name:<22} {:>9} sent in {:.1} s, drained in {:.1} s; {:.1} MB at most, below {MAX_MEGABYTES} MB",
            rate.messages,
            row.send_seconds.unwrap_or_default(),
            rate.seconds,
            row.peak_megabytes.unwrap_or_default(),
        ),
        (Measured::Rate(rate), _) => format!(
            "{name:<22} {:>9} {:>12.0} {:>12.0} {:>8.2}  {}",
            rate.messages,
            rate.per_second,
            row.raw_per_second.unwrap_or_default(),
            row.ratio.unwrap_or_default(),
            target.map(|target| format!("at least {target}")).unwrap_or_default(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use postrider_bench::{Rate, Workload};

    use super::*;

    #[test]
    fn the_report_names_the_settings() {
        let args = |flags: &[&str]| Args::parse_from([&["postrider-bench", "--folder", "/x"], flags].concat());
        assert_eq!(head(&args(&[])), "200-byte messages, files in /x, median of 3");
        let checked = head(&args(&["--check", "--runs", "5"]));
        assert_eq!(checked, "200-byte messages, files in /x, the first good run, or the best, of 5");
        let rate = Rate::new(Workload::Drain, 1000, Duration::from_secs(2));
        let mut row = Row::new(Case::Backlog, Measured::Rate(rate));
        (row.send_seconds, row.peak_megabytes) = (Some(0.5), Some(40.0));
        let text = "backlog                     1000 sent in 0.5 s, drained in 2.0 s; 40.0 MB at most, below 100 MB";
        assert_eq!(line(&row), text);
    }
}
