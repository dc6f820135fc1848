//! `postrider migrate`

use serde::Serialize;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::{Output, note};
use crate::session::NewFile;
use postrider::Migration;

/// Apply the missing migrations of a store's tables
///
/// Connecting applies them too, unless auto_migrate is off. Either all of them are applied or none.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Migrate {
    /// The store [default: that of --url, POSTRIDER_URL or the configuration]
    #[arg(value_name = "URL")]
    store: Option<String>,

    /// Only list the missing migrations
    #[arg(long)]
    dry_run: bool,

    /// Only print the SQL of the missing migrations
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
}

const EXAMPLES: &str = "\
Examples:
  postrider migrate sqlite:/var/lib/postrider/mail.db --dry-run
  postrider migrate --print > migrations.sql";

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'m> {
    migration: &'static str,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sql: Option<&'m str>,
}

pub(crate) async fn run(global: &Global, command: &Migrate) -> Result<(), Failure> {
    let config = global.lasting_config_for(command.store.as_deref())?;
    let (endpoint, file) = (config.endpoint()?, NewFile::of(&config));
    let out = Output::new(global.json);
    let (steps, outcome) = if command.dry_run || command.print {
        (endpoint.pending_migrations().await?, "pending")
    } else {
        (endpoint.migrate().await?, "applied")
    };
    file.announce();
    if steps.is_empty() {
        note(format!("{endpoint} is up to date; no migration is missing"));
    }
    let text = |step: &Migration| match command.print {
        true => format!("-- {}\n{}", step.name, step.sql.trim_end()),
        false => format!("{}  {outcome}", step.name),
    };
    out.rows(steps.iter().map(|step| {
        let sql = command.print.then_some(&*step.sql);
        (Row { migration: step.name, outcome, sql }, text(step))
    }))
}
