//! Reading `postrider.toml`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::draft::Given;
use super::error::Problem;
use super::keys;
use super::origin::Origin;
use super::suggestion;
use super::value::Written;

/// The default name of a configuration file.
pub(super) const FILE_NAME: &str = "postrider.toml";

/// Which file is read.
#[derive(Debug, Clone)]
pub(super) enum FileChoice {
    /// The first that exists, if any.
    FirstOf(Vec<PathBuf>),
    /// This file, which must exist.
    Exactly(PathBuf),
}

impl FileChoice {
    /// The values of the chosen file.
    pub(super) fn read(&self, problems: &mut Vec<Problem>) -> Vec<Given> {
        match self.find() {
            Ok(Some((path, text))) => parse(&path, &text, problems),
            Ok(None) => Vec::new(),
            Err(problem) => {
                problems.push(problem);
                Vec::new()
            }
        }
    }

    fn find(&self) -> Result<Option<(PathBuf, String)>, Problem> {
        let (paths, must_exist) = match self {
            Self::FirstOf(paths) => (&paths[..], false),
            Self::Exactly(path) => (std::slice::from_ref(path), true),
        };
        for path in paths {
            match std::fs::read_to_string(path) {
                Ok(text) => return Ok(Some((path.clone(), text))),
                Err(error) if is_missing(error.kind()) && !must_exist => {}
                // An unreadable file must not be skipped: the next one may say something else.
                Err(error) => return Err(unreadable(path, &error)),
            }
        }
        Ok(None)
    }
}

fn is_missing(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
    let why = match error.kind() {
        kind if is_missing(kind) => "there is no such file; create it, or name another".into(),
        ErrorKind::InvalidData => "it is not UTF-8 text; save it as UTF-8".into(),
        ErrorKind::IsADirectory => "it is a folder; name a file".into(),
        ErrorKind::PermissionDenied => "this user may not read it; change its permissions".into(),
        _ => error.to_string(),
    };
    Problem::Unreadable { path: path.to_owned(), why }
}

fn parse(path: &Path, text: &str, problems: &mut Vec<Problem>) -> Vec<Given> {
    let document = match DeTable::parse(text) {
        Ok(document) => document,
        Err(error) => {
            // The parser's own text repeats the line, which may contain a password.
            let origin = Origin::in_file(path, text, error.span().map_or(0, |span| span.start));
            problems.push(Problem::Syntax { origin, why: error.message().to_owned() });
            return Vec::new();
        }
    };
    let mut reader = Reader { path, text, given: Vec::new(), problems: Vec::new() };
    reader.table(document.get_ref(), "");
    // Tables are sorted by key; problems are listed in the order of the file.
    reader.problems.sort_by_key(|(offset, _)| *offset);
    problems.extend(reader.problems.into_iter().map(|(_, problem)| problem));
    reader.given.sort_by_key(|(offset, _)| *offset);
    reader.given.into_iter().map(|(_, given)| given).collect()
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    given: Vec<(usize, Given)>,
    problems: Vec<(usize, Problem)>,
}

impl Reader<'_> {
    fn table(&mut self, table: &DeTable<'_>, section: &str) {
        for (name, value) in table.iter() {
            let offset = name.span().start;
            let origin = Origin::in_file(self.path, self.text, offset);
            let path =
                if section.is_empty() { name.get_ref().to_string() } else { format!("{section}.{}", name.get_ref()) };
            // A dot inside quotes is part of the name, and no key has one.
            let is_name = !name.get_ref().contains('.');
            if let Some(key) = keys::find(&path).filter(|_| is_name) {
                let literal = self.text.get(value.span()).unwrap_or_default();
                let value = Written::toml(value.get_ref(), literal);
                self.given.push((offset, Given { key, value, origin }));
            } else if keys::is_section(&path) && is_name {
                match value.get_ref() {
                    DeValue::Table(table) => self.table(table, &path),
                    other => {
                        let literal = self.text.get(value.span()).unwrap_or_default();
                        let value = Written::toml(other, literal).shown();
                        let why = format!("this is a section; write [{path}] and its keys below it");
                        self.problems.push((offset, Problem::Refused { key: path, value, origin, why }));
                    }
                }
            } else {
                let advice = if is_name { advice(&path, section) } else { "write it without quotes".into() };
                self.problems.push((offset, Problem::Unknown { key: path, origin, advice }));
            }
        }
    }
}

/// A suggestion for an unknown name.
fn advice(path: &str, section: &str) -> String {
    if let Some(meant) = suggestion::nearest_path(path, &keys::paths()) {
        return format!("did you mean '{meant}'?");
    }
    let here = keys::names_in(section).join(", ");
    if section.is_empty() { format!("a file has {here}") } else { format!("[{section}] has {here}") }
}
