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

/// Show the configuration that is in use: each value, where it comes from and what it means
///
/// Passwords and tokens are not shown. When something is wrong with it, everything that is wrong is told.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Config {
    /// Only keys that begin with this, like 'common.retry'
    #[arg(value_name = "KEY")]
    prefix: Option<String>,

    /// Only values that differ from the defaults, without what they mean
    #[arg(long)]
    changed: bool,
}

const EXAMPLES: &str = "\
Examples:
  postrider config --changed
  postrider config common.messaging
  postrider --json config | jq -r 'select(.source != \"default\") | .key'";

/// Keys that choose the store. There is no value that they have everywhere by default.
const STORE: [&str; 2] = ["common.messaging.url", "common.messaging.provider"];

/// Width of a line that says what a key means.
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
        // The store is named, because without a home the default one has no place.
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
        note("every value is its default");
    }
    out.text(&if command.changed { table(&rows) } else { described(&rows) })
}

/// A line a key, without what it is for.
fn table(rows: &[&Row]) -> String {
    let mut table = Table::new([Column::Text("KEY"), Column::Text("VALUE"), Column::Text("SOURCE")]);
    for row in rows {
        table.push([row.key.into(), value(row), row.origin.to_string()]);
    }
    table.render()
}

/// A paragraph a key: its value and where that comes from, and below it what it is for.
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
