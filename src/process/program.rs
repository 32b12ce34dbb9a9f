//! Finds the file of a program.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// Returns the path of a program that starts in `cwd` with this `PATH`, as the C library finds it. `None` if there is no
/// such program.
pub fn find_program(program: &OsStr, path: Option<&OsStr>, cwd: &Path) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let folders = path?.as_bytes().split(|byte| *byte == b':').map(OsStr::from_bytes);
    let mut candidates = folders.map(|folder| cwd.join(folder).join(program));
    candidates.find(|path| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tokio::io::AsyncReadExt as _;

    use super::super::{Launch, ProcessGroup, Stdin};
    use super::*;

    /// Runs a program that a folder or the system has, and returns what it prints.
    async fn output(folder: &Path, program: &str, args: &[&str]) -> std::io::Result<String> {
        let path = format!("{}:/usr/bin:/bin", folder.display());
        let launch = Launch {
            program: program.into(),
            args: args.iter().map(Into::into).collect(),
            env: [("PATH".into(), path.into())].into(),
            cwd: None,
            stdin: Stdin::Closed,
            launcher: None,
        };
        let (_group, mut pipes) = ProcessGroup::spawn(&launch, None)?;
        let mut text = String::new();
        pipes.stdout.read_to_string(&mut text).await?;
        Ok(text)
    }

    #[tokio::test]
    async fn a_program_sees_the_name_that_it_was_started_with() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(output(folder.path(), "sh", &["-c", "echo $0"]).await.unwrap(), "sh\n");
    }

    #[tokio::test]
    async fn a_script_needs_no_interpreter_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        std::fs::write(&file, "echo from the script").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(output(folder.path(), "script", &[]).await.unwrap(), "from the script\n");
    }

    #[tokio::test]
    async fn a_program_that_is_not_on_the_path_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let error = output(folder.path(), "no-such-program", &[]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn the_first_executable_file_on_the_path_is_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path();
        for (file, mode) in [("a/tool", 0o644), ("b/tool", 0o755), ("c/tool", 0o755)] {
            let file = cwd.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        std::fs::create_dir(cwd.join("a/b")).unwrap();
        let find = |program: &str, path: &str| find_program(program.as_ref(), Some(path.as_ref()), cwd);
        let absolute = format!("/absent:{}", cwd.join("c").display());
        for (program, path, expected) in [
            ("tool", "a:b:c", Some(cwd.join("b/tool"))),
            ("tool", absolute.as_str(), Some(cwd.join("c/tool"))),
            ("tool", "a", None),
            ("b", "a", None),
            ("./tool", "b", Some("./tool".into())),
        ] {
            assert_eq!(find(program, path), expected, "{program} in {path}");
        }
        assert_eq!(find_program("tool".as_ref(), None, cwd), None);
    }
}
