//! Whether a command can be run at all.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Says what is wrong with a command that cannot be run.
pub(crate) fn check(program: &OsStr) -> Result<(), String> {
    check_in(program, std::env::var_os("PATH").as_deref())
}

fn check_in(program: &OsStr, path: Option<&OsStr>) -> Result<(), String> {
    let shown = program.display();
    if program.as_encoded_bytes().contains(&b'/') {
        return match what_is(Path::new(program)) {
            Found::Program => Ok(()),
            Found::Nothing => Err(format!("cannot run '{shown}': there is no such file")),
            Found::NoProgram => Err(format!("cannot run '{shown}': it is not executable; try chmod +x")),
        };
    }
    let places = path.map(|path| std::env::split_paths(path).collect::<Vec<PathBuf>>()).unwrap_or_default();
    let found: Vec<_> = places.iter().map(|place| place.join(program)).map(|file| what_is(&file)).collect();
    if found.contains(&Found::Program) {
        return Ok(());
    }
    if found.contains(&Found::NoProgram) {
        return Err(format!("cannot run '{shown}': it is in PATH, but not executable; try chmod +x"));
    }
    Err(format!("cannot run '{shown}': there is no such command in PATH; for a file in this folder write ./{shown}"))
}

#[derive(PartialEq, Eq)]
enum Found {
    Program,
    NoProgram,
    Nothing,
}

fn what_is(file: &Path) -> Found {
    match std::fs::metadata(file) {
        Err(_) => Found::Nothing,
        Ok(about) if about.is_file() && access(file, Access::EXEC_OK).is_ok() => Found::Program,
        Ok(_) => Found::NoProgram,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_looked_for_as_the_system_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = Some(folder.path().as_os_str());
        std::fs::write(folder.path().join("text"), "").unwrap();
        std::os::unix::fs::symlink("/bin/sh", folder.path().join("shell")).unwrap();
        assert_eq!(check_in("shell".as_ref(), path), Ok(()));
        assert_eq!(check_in("/bin/sh".as_ref(), None), Ok(()));
        for (program, says) in
            [("missing", "no such command in PATH"), ("text", "not executable"), ("/bin/missing", "no such file")]
        {
            let why = check_in(program.as_ref(), path).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
        // A folder of that name is no command.
        assert!(check_in("/bin/".as_ref(), None).unwrap_err().contains("not executable"));
    }
}
