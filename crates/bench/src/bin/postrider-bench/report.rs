//! What is printed.

use std::io::Write;

use postrider_bench::Measured;

use crate::Failure;
use crate::args::Args;
use crate::case::{Case, MOST_MEGABYTES};
use crate::compare::Row;

/// The head of the table.
pub(crate) fn begin(args: &Args) {
    if !args.json {
        let (size, folder, runs) = (args.size, args.folder.display(), args.runs);
        println!("{size}-byte messages, files in {folder}, median of {runs}\n");
        println!("{:<12} {:>9} {:>12} {:>12} {:>8}  BAR", "WORKLOAD", "MESSAGES", "PER SECOND", "DRIVER", "RATIO");
    }
}

/// One line, as soon as it is known.
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
    let name = row.case.name();
    match (&row.measured, row.case) {
        (Measured::Latency(latency), _) => format!(
            "{name:<12} p50 {:.3} ms, p95 {:.3} ms, p99 {:.3} ms",
            latency.p50_ms, latency.p95_ms, latency.p99_ms
        ),
        (Measured::Rate(rate), Case::Backlog) => format!(
            "{name:<12} {:>9} {:>12.0} {:>25}  {:.1} MB at most, below {MOST_MEGABYTES} MB",
            rate.messages,
            rate.per_second,
            "",
            row.peak_megabytes.unwrap_or_default(),
        ),
        (Measured::Rate(rate), case) => format!(
            "{name:<12} {:>9} {:>12.0} {:>12.0} {:>8.2}  {}",
            rate.messages,
            rate.per_second,
            row.raw_per_second.unwrap_or_default(),
            row.ratio.unwrap_or_default(),
            case.bar().map(|bar| format!("at least {bar}")).unwrap_or_default(),
        ),
    }
}
