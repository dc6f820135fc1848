//! The sources of a configuration.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use super::draft::{Draft, Given};
use super::environment;
use super::error::Problem;
use super::file::{FILE_NAME, FileChoice};
use super::keys;
use super::origin::Origin;
use super::suggestion;
use super::value::Written;

/// The variable that names the configuration file.
pub(super) const FILE_VARIABLE: &str = "POSTRIDER_CONFIG";
/// This program's folder in the user's configuration and data folders.
const FOLDER: &str = "postrider";
/// The default file in the user's data folder.
const DATABASE: &str = "postrider.db";
/// The default spool in the user's data folder.
const SPOOL: &str = "spool";

/// The sources of a configuration. Flags win over the environment, the environment over the file, the file over the
/// defaults.
///
/// ```
/// use postrider::config::{Config, Sources};
///
/// # fn main() -> Result<(), postrider::config::ConfigError> {
/// let sources = Sources::none()
///     .environment([("POSTRIDER_URL", "sqlite:/var/lib/mail.db")])
///     .flag("--url", "common.messaging.url", "memory:");
/// assert_eq!(Config::load(&sources)?.url().as_str(), "memory:");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Sources {
    file: FileChoice,
    variables: Vec<(OsString, OsString)>,
    flags: Vec<Flag>,
    data_folder: Option<PathBuf>,
}

#[derive(Clone)]
struct Flag {
    flag: String,
    key: String,
    value: String,
}

impl fmt::Debug for Sources {
    /// Without values, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags: Vec<_> = self.flags.iter().map(|flag| &flag.flag).collect();
        f.debug_struct("Sources")
            .field("file", &self.file)
            .field("flags", &flags)
            .field("data_folder", &self.data_folder)
            .finish_non_exhaustive()
    }
}

impl Sources {
    /// Only the defaults.
    pub fn none() -> Self {
        Self { file: FileChoice::FirstOf(Vec::new()), variables: Vec::new(), flags: Vec::new(), data_folder: None }
    }

    /// This process: its environment, and `postrider.toml` in the current folder or else in the user's configuration
    /// folder. `POSTRIDER_CONFIG` names another file.
    pub fn of_this_process() -> Self {
        Self::of_process(std::env::vars_os().collect(), std::env::home_dir())
    }

    fn of_process(variables: Vec<(OsString, OsString)>, home: Option<PathBuf>) -> Self {
        let user = UserFolders::new(&variables, home);
        let file = set(&variables, FILE_VARIABLE);
        let sources = Self { variables, data_folder: user.data, ..Self::none() };
        match file {
            Some(path) => sources.file(path),
            // An empty path for the current folder, so that texts name the file without './'.
            None => sources.first_file_in([Some(PathBuf::new()), user.configuration].into_iter().flatten()),
        }
    }

    /// Reads only this file, which must exist.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = FileChoice::Exactly(path.into());
        self
    }

    /// Reads the first `postrider.toml` in the folders.
    #[must_use]
    pub fn first_file_in(mut self, folders: impl IntoIterator<Item = PathBuf>) -> Self {
        self.file = FileChoice::FirstOf(folders.into_iter().map(|folder| folder.join(FILE_NAME)).collect());
        self
    }

    /// Reads only these environment variables.
    #[must_use]
    pub fn environment<N, V>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        self.variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self
    }

    /// Sets a key by an option of the program. `flag` is the option as the user wrote it, for error texts.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.flags.push(Flag { flag: flag.into(), key: key.into(), value: value.into() });
        self
    }

    /// Sets the folder of the embedded file when no other store is named.
    #[must_use]
    pub fn data_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data_folder = Some(folder.into());
        self
    }

    /// Reads all sources, the higher over the lower.
    pub(super) fn read(&self, problems: &mut Vec<Problem>) -> Draft {
        let mut draft = Draft::default();
        let file = self.file.read(problems);
        draft.apply_layer(file, problems);
        let environment = environment::read(&self.variables, problems);
        draft.apply_layer(environment, problems);
        let flags = self.read_flags(problems);
        draft.apply_layer(flags, problems);
        draft
    }

    fn read_flags(&self, problems: &mut Vec<Problem>) -> Vec<Given> {
        let mut given = Vec::new();
        for Flag { flag, key: name, value } in &self.flags {
            let origin = Origin::Flag { flag: flag.clone() };
            match keys::find(name) {
                Some(key) => given.push(Given { key, value: Written::untyped(value), origin }),
                None => {
                    let known: Vec<_> = keys::all().map(|key| key.name).collect();
                    let advice = match suggestion::nearest_path(name, &known) {
                        Some(meant) => format!("did you mean '{meant}'?"),
                        None => "leave it out".into(),
                    };
                    problems.push(Problem::Unknown { key: name.clone(), origin, advice });
                }
            }
        }
        given
    }

    /// The default path of the embedded file; `None` when the user has no folders.
    pub(super) fn embedded_file(&self) -> Option<PathBuf> {
        self.data_folder.as_deref().map(|folder| folder.join(DATABASE))
    }

    /// The default path of a spool; `None` when the user has no folders.
    pub(super) fn spool_folder(&self) -> Option<PathBuf> {
        self.data_folder.as_deref().map(|folder| folder.join(SPOOL))
    }
}

/// Where the user's files are, by the XDG base directory specification.
#[derive(Debug, PartialEq)]
struct UserFolders {
    configuration: Option<PathBuf>,
    data: Option<PathBuf>,
}

impl UserFolders {
    fn new(variables: &[(OsString, OsString)], home: Option<PathBuf>) -> Self {
        let folder = |variable, below_home: &str| {
            let named = set(variables, variable).map(PathBuf::from);
            // The specification ignores relative paths.
            let named = named.filter(|path| path.is_absolute());
            let home = home.as_deref().filter(|home| !home.as_os_str().is_empty());
            named.or_else(|| home.map(|home| home.join(below_home))).map(|folder| folder.join(FOLDER))
        };
        Self { configuration: folder("XDG_CONFIG_HOME", ".config"), data: folder("XDG_DATA_HOME", ".local/share") }
    }
}

/// The value of a variable that is set and not empty.
fn set(variables: &[(OsString, OsString)], name: &str) -> Option<OsString> {
    variables.iter().find(|(known, value)| known == name && !value.is_empty()).map(|(_, value)| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(variables: &[(&str, &str)], home: Option<&str>) -> [Option<String>; 2] {
        let variables: Vec<_> = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let UserFolders { configuration, data } = UserFolders::new(&variables, home.map(PathBuf::from));
        [configuration, data].map(|folder| folder.map(|path| path.display().to_string()))
    }

    #[test]
    fn the_users_folders_follow_the_specification() {
        let below_home = [Some("/home/ann/.config/postrider".into()), Some("/home/ann/.local/share/postrider".into())];
        assert_eq!(folders(&[], Some("/home/ann")), below_home);
        assert_eq!(folders(&[("XDG_DATA_HOME", ""), ("XDG_CONFIG_HOME", "here")], Some("/home/ann")), below_home);
        let named = [Some("/c/postrider".into()), Some("/d/postrider".into())];
        assert_eq!(folders(&[("XDG_CONFIG_HOME", "/c"), ("XDG_DATA_HOME", "/d")], None), named);
        assert_eq!(folders(&[], None), [None, None]);
        assert_eq!(folders(&[], Some("")), [None, None]);
    }

    #[test]
    fn a_process_reads_the_current_folder_and_then_the_users() {
        let sources = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
            Sources::of_process(variables, Some("/home/ann".into()))
        };
        let plain = sources(&[("LANG", "C")]);
        let FileChoice::FirstOf(paths) = &plain.file else { panic!("{plain:?}") };
        assert_eq!(paths, &["postrider.toml", "/home/ann/.config/postrider/postrider.toml"].map(PathBuf::from));
        let embedded = PathBuf::from("/home/ann/.local/share/postrider/postrider.db");
        assert_eq!(plain.embedded_file(), Some(embedded));
        assert_eq!(plain.variables.len(), 1);

        let named = sources(&[("POSTRIDER_CONFIG", "/etc/mail.toml")]);
        assert!(matches!(&named.file, FileChoice::Exactly(path) if path == "/etc/mail.toml"), "{named:?}");
        let other = named.file("/other.toml");
        assert!(matches!(&other.file, FileChoice::Exactly(path) if path == "/other.toml"), "{other:?}");
    }
}
