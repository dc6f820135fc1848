//! `--check`: targets low enough for a busy machine.

use std::process::ExitCode;

use postrider_bench::Measured;

use crate::Failure;
use crate::args::Args;
use crate::backlog;
use crate::case::Case;
use crate::compare::{Comparison, Row};
use crate::http::HttpTask;
use crate::report;
use crate::server::Target;
use crate::spool::SpoolTask;

/// Maximum number of runs. Other load can only slow a run down, so one good run is enough.
const TRIES: usize = 5;
const MESSAGES: usize = 5000;
const BACKLOG_MESSAGES: usize = 100_000;

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let args = &Args { messages: MESSAGES, runs: TRIES, ..args.clone() };
    let comparison = Comparison::new(args)?;
    report::begin(args);
    let mut is_missed = false;
    for case in args.cases() {
        let row = match case {
            Case::Backlog => backlog::in_child_process(args, BACKLOG_MESSAGES)?,
            Case::Latency | Case::Spool(SpoolTask::Claim) => comparison.once(case)?,
            _ => best(|| comparison.once(case))?,
        };
        report::row(args, &row)?;
        if let Some(why) = shortfall(&row) {
            eprintln!("postrider-bench: {why}");
            is_missed = true;
        }
    }
    Ok(if is_missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The best run. Stops at the first one that is good enough.
fn best(mut once: impl FnMut() -> Result<Row, Failure>) -> Result<Row, Failure> {
    let mut best = once()?;
    for _ in 1..TRIES {
        if shortfall(&best).is_none() {
            break;
        }
        let next = once()?;
        if next.reached() > best.reached() {
            best = next;
        }
    }
    Ok(best)
}

/// Why a row misses its target.
fn shortfall(row: &Row) -> Option<String> {
    let case = row.case;
    if let Some((target, reached)) = case.target().zip(row.reached()) {
        return (reached < case.margin()).then(|| match target {
            Target::Rate(least) => format!(
                "{case} reaches {:.2} of {}, {:.2} is required",
                reached * least,
                case.baseline_name(),
                least * case.margin()
            ),
            Target::RateOrSpeed { ratio, per_second } => format!(
                "{case} reaches {:.2} of its target, {ratio} of {} or {per_second} a second; {:.2} is required",
                reached,
                case.baseline_name(),
                case.margin()
            ),
            Target::Times { p50, p99 } => format!(
                "{case} takes {:.2} times as long as {} or {:.2} times at p99, {:.2} and {:.2} are \
                 required",
                row.times.as_ref().map_or(0.0, |times| times.p50_ratio),
                case.baseline_name(),
                row.times.as_ref().map_or(0.0, |times| times.p99_ratio),
                p50 / case.margin(),
                p99 / case.margin()
            ),
        });
    }
    if let (Case::Http(_), Measured::Latency(latency)) = (case, &row.measured)
        && latency.p99_ms >= HttpTask::MAX_P99_MS / case.margin()
    {
        let limit = HttpTask::MAX_P99_MS / case.margin();
        return Some(format!("{case} takes {:.1} ms at p99, {limit} ms are required", latency.p99_ms));
    }
    let limit = case.max_megabytes();
    let megabytes = row.peak_megabytes.filter(|megabytes| *megabytes >= limit)?;
    Some(format!("{case} needs {megabytes:.1} MB, less than {limit} MB is required"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider_bench::Rate;

    use super::*;

    fn row(case: Case, ratio: Option<f64>, peak_megabytes: Option<f64>) -> Row {
        let rate = Rate::new(case.workload(), 1, Duration::from_secs(1));
        Row { ratio, peak_megabytes, ..Row::new(case, Measured::Rate(rate)) }
    }

    #[test]
    fn half_of_a_target_is_enough_and_less_is_not() {
        assert_eq!(shortfall(&row(Case::SendOne, Some(4.0), None)), None);
        let text = shortfall(&row(Case::SendOne, Some(3.9), None)).unwrap();
        assert_eq!(text, "send-one reaches 3.90 of the driver, 4.00 is required");
        assert_eq!(shortfall(&row(Case::Backlog, None, Some(99.9))), None);
        let text = shortfall(&row(Case::Backlog, None, Some(100.0))).unwrap();
        assert_eq!(text, "backlog needs 100.0 MB, less than 100 MB is required");
    }

    #[test]
    fn the_first_good_run_or_else_the_best_run_counts() {
        let mut ratios = [0.1, 0.4, 0.5].into_iter();
        let tried = best(|| Ok(row(Case::SendBatch, ratios.next(), None))).unwrap();
        assert_eq!((tried.ratio, ratios.next()), (Some(0.4), Some(0.5)));
        let mut ratios = [0.1, 0.2, 0.15, 0.1, 0.1, 0.9].into_iter();
        let tried = best(|| Ok(row(Case::SendBatch, ratios.next(), None))).unwrap();
        assert_eq!((tried.ratio, ratios.next()), (Some(0.2), Some(0.9)));
    }
}
