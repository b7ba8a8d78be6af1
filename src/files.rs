//! Files as the system has them: those of others are opened with care, ours appear in one step.
//!
//! Invariants: nothing here waits for a pipe or reads a device; a file or folder under its own name is always
//! complete, the old one or the new one, whatever dies meanwhile.
//!
//! What is being written is a *draft* beside its place, in the same folder, and locked by the process that
//! writes it. A draft that nobody holds a lock on belongs to a process that died: whoever makes the next
//! draft in that folder removes it.

use std::ffi::CString;
use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir, TempPath};
pub use tilescribe_runtime::files::{open, read, read_text};

/// What the names of drafts begin with.
pub const DRAFT_PREFIX: &str = ".tilescribe-draft-";

/// The folder that a path lies in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that is not complete yet. Dropped, it goes away.
#[derive(Debug)]
pub struct DraftFile {
    /// Holds the lock.
    file: File,
    path: TempPath,
}

impl DraftFile {
    /// Begins a file that will lie in `folder`, as readable as any other that the user creates.
    ///
    /// # Errors
    /// The system's.
    pub fn create_in(folder: &Path) -> io::Result<DraftFile> {
        remove_stale(folder);
        loop {
            let mut builder = Builder::new();
            let draft = builder.prefix(DRAFT_PREFIX).permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
            if is_claimed(draft.as_file(), draft.path())? {
                let (file, path) = draft.into_parts();
                return Ok(DraftFile { file, path });
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the file into its place, over what stands there. Its bytes are on the disk first; its permissions
    /// are those of the file before.
    ///
    /// # Errors
    /// The system's; then what stood there stays.
    pub fn replace(self, path: &Path) -> io::Result<()> {
        if let Ok(before) = fs::metadata(path) {
            // not ours to change where the file belongs to somebody else
            let _ = self.file.set_permissions(before.permissions());
        }
        self.file.sync_all()?;
        self.path.persist(path).map_err(|failed| failed.error)
    }
}

impl io::Write for DraftFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Puts a file into a place unless something stands there; then the file goes away. Its bytes are on the disk
/// first.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`], and the system's.
pub fn place(file: &Path, path: &Path) -> io::Result<()> {
    File::open(file)?.sync_all()?;
    TempPath::try_from_path(file)?.persist_noclobber(path).map_err(|failed| failed.error)
}

/// A folder that is not complete yet. Dropped, it goes away.
#[derive(Debug)]
pub struct DraftFolder {
    /// Holds the lock.
    _lock: File,
    folder: TempDir,
}

impl DraftFolder {
    /// Begins a folder that will lie in `parent`.
    ///
    /// # Errors
    /// The system's.
    pub fn create_in(parent: &Path) -> io::Result<DraftFolder> {
        remove_stale(parent);
        loop {
            let folder = Builder::new().prefix(DRAFT_PREFIX).tempdir_in(parent)?;
            let lock = match File::open(folder.path()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            if is_claimed(&lock, folder.path())? {
                return Ok(DraftFolder { _lock: lock, folder });
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Puts the folder into its place, over one that stands there, which goes away.
    ///
    /// # Errors
    /// The system's; then what stood there stays.
    pub fn replace(self, folder: &Path) -> io::Result<()> {
        // temporary folders are private; this one is as readable as any other
        fs::set_permissions(self.path(), Permissions::from_mode(0o755))?;
        replace_folder(self.path(), folder)?;
        // nothing has its name any more
        let _ = self.folder.keep();
        Ok(())
    }
}

/// Puts a folder into the place of another, which goes away; or where there is none.
///
/// # Errors
/// The system's; then what stood there stays.
pub fn replace_folder(new: &Path, place: &Path) -> io::Result<()> {
    if fs::symlink_metadata(place).is_err() {
        return fs::rename(new, place);
    }
    match exchange(new, place) {
        Ok(()) => fs::remove_dir_all(new),
        // not every file system can
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => {
            // its name is no draft's: nobody removes it before the new folder stands
            let old = Builder::new().prefix(".tilescribe-old-").tempdir_in(folder_of(place))?.keep();
            fs::rename(place, &old)?;
            if let Err(error) = fs::rename(new, place) {
                let _ = fs::rename(&old, place);
                return Err(error);
            }
            fs::remove_dir_all(&old)
        }
        Err(error) => Err(error),
    }
}

/// Exchanges two folders in one step.
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (one, other) = (text(one)?, text(other)?);
    // SAFETY: both are strings that end in zero.
    let status =
        unsafe { libc::renameat2(libc::AT_FDCWD, one.as_ptr(), libc::AT_FDCWD, other.as_ptr(), libc::RENAME_EXCHANGE) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Locks a draft that was just made; false where another process took it for a stale one meanwhile.
fn is_claimed(file: &File, path: &Path) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        // a file system without locks: then nobody can take a draft for stale
        Err(TryLockError::Error(_)) => return Ok(true),
    }
    let own = file.metadata()?;
    Ok(fs::symlink_metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())))
}

/// Removes drafts of processes that died. Where that fails nothing is lost but space.
fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_draft = path.file_name().is_some_and(|name| name.as_bytes().starts_with(DRAFT_PREFIX.as_bytes()));
        if is_draft && let Err(error) = remove_if_stale(&path) {
            tracing::debug!("cannot remove {}: {error}", path.display());
        }
    }
}

fn remove_if_stale(path: &Path) -> io::Result<()> {
    let draft = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    match draft.try_lock() {
        Ok(()) if draft.metadata()?.is_dir() => fs::remove_dir_all(path),
        Ok(()) => fs::remove_file(path),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether two paths lead to one file, be it by links; of files that do not exist, whether they would.
pub fn are_same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        (Err(_), Err(_)) => {
            let place = |path: &Path| -> Option<(PathBuf, std::ffi::OsString)> {
                Some((folder_of(path).canonicalize().ok()?, path.file_name()?.to_os_string()))
            };
            one == other || place(one).is_some_and(|found| place(other) == Some(found))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Names in a folder, sorted.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_the_old_one_until_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let mut draft = DraftFile::create_in(folder.path()).unwrap();
        draft.write_all(b"half").unwrap();
        drop(draft);
        assert_eq!((names(folder.path()), fs::read(&path).unwrap()), (vec!["x".to_string()], b"old".to_vec()));
        let mut draft = DraftFile::create_in(folder.path()).unwrap();
        draft.write_all(b"new").unwrap();
        draft.replace(&path).unwrap();
        assert_eq!((names(folder.path()), fs::read(&path).unwrap()), (vec!["x".to_string()], b"new".to_vec()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        let other = folder.path().join("y");
        fs::write(&other, "other").unwrap();
        assert_eq!(place(&other, &path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::remove_file(&path).unwrap();
        fs::write(&other, "other").unwrap();
        place(&other, &path).unwrap();
        assert_eq!((names(folder.path()), fs::read(&path).unwrap()), (vec!["x".to_string()], b"other".to_vec()));
    }

    #[test]
    fn a_folder_replaces_another_whole() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("net");
        for (number, file) in ["first", "second", "third"].into_iter().enumerate() {
            let draft = DraftFolder::create_in(parent.path()).unwrap();
            fs::write(draft.path().join(file), "").unwrap();
            assert_eq!(names(parent.path()).len(), 1 + usize::from(number > 0));
            draft.replace(&folder).unwrap();
            assert_eq!((names(parent.path()), names(&folder)), (vec!["net".to_string()], vec![file.to_string()]));
        }
    }

    #[test]
    fn drafts_of_the_dead_are_removed_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        // nobody holds a lock on these
        fs::write(folder.path().join(format!("{DRAFT_PREFIX}file")), "x").unwrap();
        fs::create_dir(folder.path().join(format!("{DRAFT_PREFIX}folder"))).unwrap();
        fs::write(folder.path().join(format!("{DRAFT_PREFIX}folder/inside")), "x").unwrap();
        // somebody else's
        fs::write(folder.path().join(".tilescribe-notes"), "x").unwrap();
        let (file, inner) = (DraftFile::create_in(folder.path()), DraftFolder::create_in(folder.path()));
        let (file, inner) = (file.unwrap(), inner.unwrap());
        let last = DraftFile::create_in(folder.path()).unwrap();
        assert!(file.path().exists() && inner.path().exists() && last.path().exists());
        assert_eq!(names(folder.path()).len(), 4, "{:?}", names(folder.path()));
    }

    #[test]
    fn only_regular_files_of_a_sensible_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let text = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string that ends in zero.
        assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
        for path in [&pipe, Path::new("/dev/zero"), folder.path()] {
            let error = read(path, 10).unwrap_err();
            assert!(matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory), "{error}");
        }
        let path = folder.path().join("x");
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(read_text(&path, 10).unwrap(), "0123456789");
        assert_eq!(read(&path, 9).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path, 9).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn one_file_has_many_names() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name);
        fs::write(name("a"), "").unwrap();
        fs::write(name("b"), "").unwrap();
        std::os::unix::fs::symlink(name("a"), name("link")).unwrap();
        fs::hard_link(name("a"), name("hard")).unwrap();
        for same in ["link", "hard", "./a"] {
            assert!(are_same(&name("a"), &name(same)), "{same}");
        }
        assert!(!are_same(&name("a"), &name("b")) && !are_same(&name("a"), &name("none")));
        assert!(are_same(&name("none"), &name("./none")) && !are_same(&name("none"), &name("other")));
    }
}
