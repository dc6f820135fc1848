//! `postrider config`

use postrider::config::Row;
use serde::Serialize;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::{Column, Table};
use crate::text::one_line;

/// Show the configuration that is in use: each value, where it comes from and what it means
///
/// Passwords and tokens are not shown. When something is wrong with it, everything that is wrong is told.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Config {
    /// Only keys that begin with this, like 'common.retry'
    #[arg(value_name = "KEY")]
    prefix: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  postrider config common.messaging
  postrider --json config | jq -r 'select(.source != \"default\") | .key'";

/// One line of `--json`.
#[derive(Serialize)]
struct Shown<'a> {
    key: &'a str,
    value: Option<&'a str>,
    source: String,
    meaning: &'a str,
    without_effect: Option<&'a str>,
}

pub(crate) fn run(global: &Global, command: &Config) -> Result<(), Failure> {
    let config = global.config_for(None)?;
    let prefix = command.prefix.as_deref().unwrap_or_default();
    let rows: Vec<_> = config.describe().iter().filter(|row| row.key.starts_with(prefix)).collect();
    if rows.is_empty() {
        let prefix = prefix.escape_debug();
        return Err(Failure::usage(format!("no key begins with '{prefix}'; 'postrider config' lists them all")));
    }
    let out = Output::new(global.json);
    if global.json {
        return out.rows(rows.into_iter().map(|row| {
            let (key, value, meaning) = (row.key, row.value.as_deref(), row.meaning);
            let without_effect = row.without_effect.as_deref();
            (Shown { key, value, source: row.origin.to_string(), meaning, without_effect }, "")
        }));
    }
    out.text(&table(&rows))
}

fn table(rows: &[&Row]) -> String {
    let mut table =
        Table::new([Column::Text("KEY"), Column::Text("VALUE"), Column::Text("SOURCE"), Column::Text("MEANING")]);
    for row in rows {
        let meaning = match &row.without_effect {
            Some(why) => format!("{} ({why})", row.meaning),
            None => row.meaning.into(),
        };
        table.push([row.key.into(), value(row), one_line(&row.origin.to_string()), meaning]);
    }
    table.render()
}

fn value(row: &Row) -> String {
    row.value.as_deref().map_or_else(|| "-".into(), one_line)
}
