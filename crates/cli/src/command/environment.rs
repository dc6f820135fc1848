//! The environment variables of a command.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// Upper bound of one value, in bytes. Linux refuses to start a command with a string longer than 128 KiB.
pub(crate) const MAX_VALUE: usize = 96 * 1024;

/// Variable that lists the omitted variables.
pub(crate) const OMITTED: &str = "POSTRIDER_OMITTED";

/// The store and the configuration that are passed on to a command, if they were given.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    pub(crate) url: Option<String>,
    pub(crate) config: Option<PathBuf>,
}

impl Store {
    /// From `--url` and `--config`, or their variables. Paths are made absolute: a command may change its folder.
    pub(crate) fn of(url: Option<&str>, config: Option<&Path>) -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let url = url.map(str::to_owned).or_else(|| variable("POSTRIDER_URL")?.into_string().ok());
        let config = config.map(Path::to_owned).or_else(|| variable("POSTRIDER_CONFIG").map(PathBuf::from));
        Self { url: url.map(absolute_url), config: config.map(|file| std::path::absolute(&file).unwrap_or(file)) }
    }

    pub(super) fn prepare(&self, command: &mut Command) {
        if let Some(url) = &self.url {
            command.env("POSTRIDER_URL", url);
        }
        if let Some(config) = &self.config {
            command.env("POSTRIDER_CONFIG", config);
        }
    }
}

fn absolute_url(url: String) -> String {
    let Some((scheme @ ("sqlite" | "spool"), path)) = url.split_once(':') else { return url };
    let absolute = Some(path).filter(|path| !path.is_empty()).and_then(|path| std::path::absolute(path).ok());
    // A path that is not UTF-8 cannot be in a URL.
    match absolute.as_deref().and_then(Path::to_str) {
        Some(path) => format!("{scheme}:{path}"),
        None => url,
    }
}

/// Variables that describe one message or task.
#[derive(Debug, Default)]
pub(crate) struct Variables(Vec<(String, String)>);

impl Variables {
    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl ToString) {
        self.0.push((name.into(), value.to_string()));
    }

    pub(crate) fn set_if_any(&mut self, name: impl Into<String>, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// The variables that a process can take; [`OMITTED`] lists the others.
    pub(crate) fn fitting(self) -> Vec<(String, String)> {
        let (mut fitting, omitted): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|(_, value)| value.len() <= MAX_VALUE && !value.contains('\0'));
        if !omitted.is_empty() {
            let names: Vec<_> = omitted.into_iter().map(|(name, _)| name).collect();
            fitting.push((OMITTED.to_owned(), names.join(",")));
        }
        fitting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_files_are_made_absolute() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute_url("sqlite:shop.db".into()), format!("sqlite:{}", here.join("shop.db").display()));
        assert_eq!(absolute_url("spool:shop".into()), format!("spool:{}", here.join("shop").display()));
        for url in ["sqlite:/shop.db", "spool:/shop", "sqlite:", "postgres://host/shop", "memory:"] {
            assert_eq!(absolute_url(url.into()), url);
        }
        let store = Store::of(Some("sqlite:/a.db"), Some(Path::new("postrider.toml")));
        assert_eq!(store.config, Some(here.join("postrider.toml")));
    }

    #[test]
    fn values_that_do_not_fit_are_omitted_and_listed() {
        let mut variables = Variables::default();
        variables.set("A", "x".repeat(MAX_VALUE));
        variables.set("B", "x".repeat(MAX_VALUE + 1));
        variables.set_if_any("C", None::<String>);
        variables.set_if_any("D", Some("a\0b"));
        let fitting = variables.fitting();
        let names: Vec<_> = fitting.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, fitting[1].1.as_str()), (vec!["A", OMITTED], "B,D"));
    }
}
