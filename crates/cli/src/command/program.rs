//! Checks that a command can be run, before any work is claimed for it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Returns why the command cannot be run, if so.
pub(crate) fn check(program: &OsStr) -> Result<(), String> {
    check_in(program, std::env::var_os("PATH").as_deref())
}

fn check_in(program: &OsStr, path: Option<&OsStr>) -> Result<(), String> {
    let shown = program.display();
    if program.as_encoded_bytes().contains(&b'/') {
        return match look_up(Path::new(program)) {
            Found::Program => Ok(()),
            Found::Nothing => Err(format!("cannot run '{shown}': no such file")),
            Found::NotExecutable => Err(format!("cannot run '{shown}': it is not executable; try chmod +x")),
        };
    }
    let folders = path.map(|path| std::env::split_paths(path).collect::<Vec<PathBuf>>()).unwrap_or_default();
    let found: Vec<_> = folders.iter().map(|folder| look_up(&folder.join(program))).collect();
    if found.contains(&Found::Program) {
        return Ok(());
    }
    if found.contains(&Found::NotExecutable) {
        return Err(format!("cannot run '{shown}': it is in PATH, but not executable; try chmod +x"));
    }
    Err(format!("cannot run '{shown}': no such command in PATH; for a file in this folder write ./{shown}"))
}

#[derive(PartialEq, Eq)]
enum Found {
    Program,
    NotExecutable,
    Nothing,
}

fn look_up(file: &Path) -> Found {
    match std::fs::metadata(file) {
        Err(_) => Found::Nothing,
        Ok(about) if about.is_file() && access(file, Access::EXEC_OK).is_ok() => Found::Program,
        Ok(_) => Found::NotExecutable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_looked_up_as_the_system_does() {
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
        // A folder is not a command.
        assert!(check_in("/bin/".as_ref(), None).unwrap_err().contains("not executable"));
    }
}
