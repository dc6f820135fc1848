//! `postrider config`

use std::fmt::Write;

use postrider::Sources;
use postrider::config::{Origin, Row};
use serde::Serialize;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::{Output, note};
use crate::table::{Column, Table};
use crate::text::{one_line, wrapped};

/// Show the configuration in effect: each value, its source and its meaning
///
/// Passwords and tokens are hidden. An invalid configuration is reported with all of its errors.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Config {
    /// Only keys that begin with KEY, for example 'common.retry'
    #[arg(value_name = "KEY")]
    prefix: Option<String>,

    /// Only values that differ from the defaults, as a table without meanings
    #[arg(long)]
    changed: bool,
}

const EXAMPLES: &str = "\
Examples:
  postrider config --changed
  postrider config common.messaging
  postrider --json config | jq -r 'select(.source != \"default\") | .key'";

/// Keys that select the store. Their default depends on the user's data folder.
const STORE: [&str; 2] = ["common.messaging.url", "common.messaging.provider"];

/// Line width of a key's meaning.
const WIDTH: usize = 96;

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
    let mut rows: Vec<_> = config.describe().iter().filter(|row| row.key.starts_with(prefix)).collect();
    if rows.is_empty() {
        let prefix = prefix.escape_debug();
        return Err(Failure::usage(format!("no key begins with '{prefix}'; 'postrider config' lists them all")));
    }
    if command.changed {
        // The store is given, because the default store needs a home folder.
        let defaults = postrider::Config::load(&Sources::none().flag("default", STORE[0], "memory:"))?;
        let default = |key: &str| defaults.describe().iter().find(|row| row.key == key)?.value.clone();
        let differs = |row: &Row| STORE.contains(&row.key) || row.value != default(row.key);
        rows.retain(|row| row.origin != Origin::Default && differs(row));
    }
    let out = Output::new(global.json);
    if global.json {
        return out.rows(rows.into_iter().map(|row| {
            let (key, value, meaning) = (row.key, row.value.as_deref(), row.meaning);
            let without_effect = row.without_effect.as_deref();
            (Shown { key, value, source: row.origin.to_string(), meaning, without_effect }, "")
        }));
    }
    if rows.is_empty() {
        note("every value is the default");
    }
    out.text(&if command.changed { table(&rows) } else { described(&rows) })
}

/// One line per key, without meanings.
fn table(rows: &[&Row]) -> String {
    let mut table = Table::new([Column::Text("KEY"), Column::Text("VALUE"), Column::Text("SOURCE")]);
    for row in rows {
        table.push([row.key.into(), value(row), row.origin.to_string()]);
    }
    table.render()
}

/// One paragraph per key: its value and source, and below them its meaning.
fn described(rows: &[&Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let meaning = match &row.without_effect {
            Some(why) => format!("{} ({why})", row.meaning),
            None => row.meaning.into(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} = {}  ({})", row.key, value(row), one_line(&row.origin.to_string()));
        for line in wrapped(&meaning, WIDTH) {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

fn value(row: &Row) -> String {
    row.value.as_deref().map_or_else(|| "-".into(), one_line)
}
