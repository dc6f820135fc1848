//! The reference page, made from the table of keys.

use std::fmt::Write;

use super::choice::Named;
use super::draft::Draft;
use super::keys::{self, Key, SECTIONS, Section};
use super::store_settings::ProviderKind;
use crate::endpoint::FORMS;

const INTRODUCTION: &str = "\
<!-- Made from crates/postrider/src/config/keys.rs. Change that, and then:
     POSTRIDER_WRITE_DOCS=1 cargo test -p postrider --all-features configuration_page -->

# Configuration

Every value has a default: without any configuration, messages are kept in an embedded SQLite file in the user's data
folder, `$XDG_DATA_HOME/postrider/postrider.db`, or else `~/.local/share/postrider/postrider.db`.

## Where values come from

Each source wins over those before it:

1. The defaults below.
2. `postrider.toml`: the file that `--config` or `POSTRIDER_CONFIG` names, which must exist; else the one in the current
   folder; else the one in the user's configuration folder, `$XDG_CONFIG_HOME/postrider`, or else `~/.config/postrider`.
   Only one file is read.
3. The environment. The variable of a key is its name in capitals, with two underscores for every dot and `POSTRIDER__`
   before it: `common.messaging.default_batch_size` is `POSTRIDER__COMMON__MESSAGING__DEFAULT_BATCH_SIZE`.
   `POSTRIDER_URL` is short for `common.messaging.url`, and `POSTRIDER_TOKEN` for `common.messaging.http.token`. A
   variable that is empty counts as not set.
4. Flags of the program.

`postrider config` shows every effective value and its origin. Passwords in URLs and tokens are not shown.

Unknown keys, values of the wrong type and values out of range are refused, with their line or variable. Nothing is
ignored.

`provider`, `url` and the address in a provider's section choose one store together. The highest source that names one
decides. Within one source `provider` and `url` must agree; there may be addresses of several stores if `provider` or
`url` says which is used.

Keys that end in `_seconds` take a number, with a decimal point for parts of a second. Other durations are text with a
unit: `500ms`, `5s`, `2m`, `1h30m`, `3d`.
";

const WITHOUT_EFFECT: &str = " This build of postrider lacks that provider: the keys are checked, and have no effect.";

/// A file that shows most of the sections. A test reads it.
pub(super) const EXAMPLE: &str = r#"[common.messaging]
provider = "sqlite"
default_visibility_timeout_seconds = 30
default_batch_size = 10
max_batch_size = 100

[common.messaging.sqlite]
path = "/var/lib/postrider/mail.db"
archive = "failed"
archive_retention = "3d"

[common.messaging.dead_letter]
enabled = true
max_receive_count = 3
queue_suffix = "_dlq"

[common.queues.orchestration_queues]
step_results = "orchestration_step_results"

[common.retry]
strategy = "exponential_with_jitter"
initial_delay = "500ms"
limits = { max_attempts = 5 }
"#;

/// The reference of all keys: the page `docs/configuration.md`.
pub fn reference_page() -> String {
    let mut page = format!("{INTRODUCTION}\n## An example\n\n```toml\n{EXAMPLE}```\n");
    for section in SECTIONS {
        // Writing to a string cannot fail.
        let _ = write_section(&mut page, section);
    }
    page
}

fn write_section(page: &mut String, section: &Section) -> std::fmt::Result {
    let missing = ProviderKind::of_section(section.name).is_some_and(|kind| !kind.can_be_used());
    let without_effect = if missing { WITHOUT_EFFECT } else { "" };
    writeln!(page, "\n## `[{}]`\n\n{}{without_effect}\n", section.name, section.meaning)?;
    writeln!(page, "| key | values | default | meaning |\n|---|---|---|---|")?;
    for key in keys::all() {
        let Some((above, name)) = key.name.rsplit_once('.') else { continue };
        if above == section.name {
            writeln!(page, "| `{name}` | {} | {} | {} |", key.kind.name(), default(key), meaning(key))?;
        }
    }
    Ok(())
}

fn default(key: &Key) -> String {
    key.value(&mut Draft::default()).map_or_else(|| "none".into(), |value| format!("`{value}`"))
}

fn meaning(key: &Key) -> String {
    let today = match key.name {
        keys::URL => format!(" Today: `{}`.", FORMS.join("`, `")),
        keys::PROVIDER => {
            let usable = ProviderKind::NAMES.iter().filter(|(_, kind)| kind.can_be_used());
            let usable: Vec<_> = usable.map(|(name, _)| format!("`{name}`")).collect();
            match usable.len() == ProviderKind::NAMES.len() {
                true => String::new(),
                false => format!(" In this build: {}; each of the others is a feature of its name.", usable.join(", ")),
            }
        }
        _ => String::new(),
    };
    let secrecy = match (key.may_hold_a_secret(), key.is_secret()) {
        (true, _) => " Its password is never shown.",
        (_, true) => " It is never shown.",
        _ => "",
    };
    format!("{}{today}{secrecy}", key.meaning)
}

#[cfg(test)]
mod tests {
    use super::super::environment::{TOKEN_VARIABLE, URL_VARIABLE, variable};
    use super::super::file::FILE_NAME;
    use super::super::keys::DEFAULT_BATCH_SIZE;
    use super::super::sources::FILE_VARIABLE;
    use super::*;

    #[test]
    fn every_key_is_on_the_page() {
        let page = reference_page();
        for key in keys::all() {
            let (section, name) = key.name.rsplit_once('.').unwrap();
            assert!(SECTIONS.iter().any(|known| known.name == section), "[{section}] has no heading");
            assert!(page.contains(&format!("\n| `{name}` | ")), "{}", key.name);
        }
        for section in SECTIONS {
            assert!(keys::is_section(section.name), "[{}] has no keys", section.name);
        }
    }

    #[test]
    fn the_introduction_names_the_file_and_the_variables() {
        let short = [URL_VARIABLE, keys::URL, TOKEN_VARIABLE, keys::HTTP_TOKEN];
        let variable = variable(DEFAULT_BATCH_SIZE);
        for name in [FILE_NAME, FILE_VARIABLE, DEFAULT_BATCH_SIZE, &variable].into_iter().chain(short) {
            assert!(INTRODUCTION.contains(&format!("`{name}`")), "{name}");
        }
    }
}
