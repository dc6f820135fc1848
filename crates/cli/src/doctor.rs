//! `postrider doctor`

use postrider::{Deadline, Finding, Severity};
use serde::Serialize;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::{Output, note};

/// Check a store and print each problem with its fix
///
/// Checks the connection, the server's version and settings, the schema, its indexes and tables, sessions that keep dead
/// rows from being removed, and the queues. Changes nothing. Exits with 1 if there is a problem; warnings and notes do
/// not count.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// The store [default: that of --url, POSTRIDER_URL or the configuration]
    #[arg(value_name = "URL")]
    store: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  postrider doctor postgres://user@host/database
  postrider --json doctor | jq -r 'select(.severity != \"fine\") | .fix'";

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'f> {
    check: &'static str,
    severity: String,
    found: &'f str,
    fix: Option<&'f str>,
}

pub(crate) async fn run(global: &Global, command: &Doctor) -> Result<(), Failure> {
    let config = global.lasting_config_for(command.store.as_deref())?;
    let endpoint = config.endpoint()?;
    let findings = endpoint.examine(Deadline::default()).await?;
    Output::new(global.json).rows(findings.iter().map(|finding| {
        let Finding { check, severity, found, fix } = finding;
        let text = match fix {
            None => format!("{severity:<8} {check:<13} {found}"),
            Some(fix) => format!("{severity:<8} {check:<13} {found}\n{:<22} fix: {fix}", ""),
        };
        (Row { check, severity: severity.to_string(), found, fix: fix.as_deref() }, text)
    }))?;
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    if problems > 0 {
        note(format!("{endpoint} has problems: {problems}, and warnings: {warnings}"));
        return Err(Failure::Reported);
    }
    Ok(())
}
