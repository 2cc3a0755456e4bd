//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Makes the folder if it is not there, and checks that files can be written in it.
///
/// # Errors
///
/// [`Error::Run`] naming the folder.
pub fn writable_folder(folder: &Path) -> Result<(), Error> {
    let failed = |error| Error::run(format!("folder {}", folder.display()), error);
    fs::create_dir_all(folder).map_err(failed)?;
    let probe = beside(&folder.join("probe"));
    File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(failed)
}

/// Writes `bytes` beside `path` and renames, so that nobody ever sees half a file.
///
/// # Errors
///
/// [`Error::Run`] naming the file; what was there before is unchanged then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let partial = beside(path);
    let written = File::create(&partial)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&partial, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&partial);
        Error::run(path.display(), error)
    })
}

/// The folder that `path` lies in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Refuses a path where a folder lies, or that can only be one.
///
/// # Errors
///
/// [`Error::Run`] naming the path.
pub fn no_folder(path: &Path) -> Result<(), Error> {
    let slash = path.as_os_str().to_string_lossy().ends_with(std::path::is_separator);
    if path.is_dir() || path.file_name().is_none() || slash {
        return Err(Error::run(path.display(), "a folder, not a file to write"));
    }
    Ok(())
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    path.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_no_files() {
        let folder = tempfile::tempdir().unwrap();
        no_folder(&folder.path().join("new.json")).unwrap();
        for path in [folder.path().to_path_buf(), folder.path().join("new/"), folder.path().join("..")] {
            assert!(no_folder(&path).unwrap_err().to_string().contains("not a file to write"), "{}", path.display());
        }
    }

    #[test]
    fn replaces_and_leaves_nothing_beside() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        writable_folder(&deep).unwrap();
        let path = deep.join("file");
        write_whole(&path, b"old").unwrap();
        write_whole(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 1);
    }

    #[test]
    fn names_what_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        let message = writable_folder(&file.join("sub")).unwrap_err().to_string();
        assert!(message.contains("file/sub"), "{message}");
        fs::create_dir(folder.path().join("taken")).unwrap();
        assert!(write_whole(&folder.path().join("taken"), b"x").unwrap_err().to_string().contains("taken"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
