//! What a worker measures on, and how it has that to itself.

use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::error::FleetError;
use crate::measure::{Batch, MeasureError, Measurer, Running};
use crate::outcome::Outcome;
use crate::target::Target;

/// Measures batches for a worker.
pub trait Device {
    fn target(&self) -> &Target;

    /// Measures the programs one after the other. `watch` is told of each before it is measured, and of its
    /// outcome after.
    ///
    /// # Errors
    /// [`MeasureError`] where a program is not to blame, and what `watch` returns.
    fn measure(&mut self, batch: Batch, watch: &mut dyn Watch) -> Result<(), Stopped>;
}

/// Whoever follows what a [`Device`] does.
pub trait Watch {
    /// The program of this number in the batch comes next. An error ends the batch.
    fn before(&mut self, number: usize) -> Result<(), Stopped>;
    /// This became of it.
    fn after(&mut self, number: usize, outcome: Outcome) -> Result<(), Stopped>;
}

/// Why a batch ended before all of it was measured.
#[derive(Debug)]
pub enum Stopped {
    /// Nobody wants the rest.
    Asked,
    /// It cannot be measured.
    Measure(MeasureError),
    /// What was measured cannot be kept.
    Kept(Box<FleetError>),
}

/// This machine, or a GPU of it.
pub struct Machine {
    target: Target,
    measurer: Measurer,
}

impl Machine {
    /// The measurer is for this target.
    pub fn new(target: Target, measurer: Measurer) -> Machine {
        Machine { target, measurer }
    }
}

impl Device for Machine {
    fn target(&self) -> &Target {
        &self.target
    }

    fn measure(&mut self, batch: Batch, watch: &mut dyn Watch) -> Result<(), Stopped> {
        // times are told at the pace of the plan's fastest program, whatever was measured here before
        self.measurer.forget_reference();
        let mut running = Running::new(batch);
        while let Some(number) = running.upcoming() {
            watch.before(number)?;
            if let Some((number, outcome)) = running.step(&mut self.measurer).map_err(Stopped::Measure)? {
                watch.after(number, outcome)?;
            }
        }
        Ok(())
    }
}

/// A lock that processes of a machine share, so that only one measures at a time. Given back when the process
/// ends, however it ends. Who waits for it comes before who has just had it: there is a second lock, for
/// whose turn is next.
pub struct DeviceLock {
    path: PathBuf,
    next: PathBuf,
}

/// Holds the lock until it is dropped.
pub struct Held {
    _file: File,
}

impl DeviceLock {
    /// The lock of the CPU, or of the GPU of this number.
    pub fn of(gpu: Option<usize>) -> DeviceLock {
        let name = gpu.map_or_else(|| "cpu".to_string(), |number| format!("cuda{number}"));
        DeviceLock::at(&std::env::temp_dir().join(format!("tilescribe-{name}.lock")))
    }

    /// A lock of another name, for who shares a machine by other rules.
    pub fn at(path: &Path) -> DeviceLock {
        let mut next = path.as_os_str().to_os_string();
        next.push(".next");
        DeviceLock { path: path.to_path_buf(), next: next.into() }
    }

    /// Waits for the lock; `wait` is called in between, and may give up.
    ///
    /// # Errors
    /// [`FleetError::Refused`] with what the system says, and what `wait` returns.
    pub fn lock(&self, wait: &mut dyn FnMut() -> Result<(), FleetError>) -> Result<Held, FleetError> {
        let mut take = |path: &Path| -> Result<File, FleetError> {
            loop {
                let taken = try_lock(path);
                match taken.map_err(|error| FleetError::Refused { detail: format!("{}: {error}", path.display()) })? {
                    Some(file) => return Ok(file),
                    None => wait()?,
                }
            }
        };
        let turn = take(&self.next)?;
        let held = Held { _file: take(&self.path)? };
        drop(turn);
        Ok(held)
    }
}

/// The lock of a file, if nobody holds it.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Other users may hold the file, too: it is theirs or ours, and neither a link nor a pipe.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let there = || File::options().read(true).custom_flags(flags).open(path);
    match there() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match File::options().write(true).create_new(true).custom_flags(flags).open(path) {
        Ok(file) => {
            file.set_permissions(Permissions::from_mode(0o644))?;
            Ok(file)
        }
        // another was faster
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => there(),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceLock;
    use crate::fleet::FleetError;

    #[test]
    fn one_holds_the_device_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| DeviceLock::at(&folder.path().join(name));
        let give_up = || Err(FleetError::Stopped);
        let held = at("cpu.lock").lock(&mut give_up.clone()).unwrap();
        assert!(matches!(at("cpu.lock").lock(&mut give_up.clone()), Err(FleetError::Stopped)));
        // while another waits, who has had it does not get it again
        let mut held = Some(held);
        let mut turns = 0;
        let second = at("cpu.lock").lock(&mut || {
            turns += 1;
            drop(held.take());
            assert!(matches!(at("cpu.lock").lock(&mut || Err(FleetError::Stopped)), Err(FleetError::Stopped)));
            Ok(())
        });
        assert!(second.is_ok() && turns == 1);
        drop(second);
        assert!(at("cpu.lock").lock(&mut give_up.clone()).is_ok());
        std::os::unix::fs::symlink("/dev/null", folder.path().join("link")).unwrap();
        assert!(matches!(at("link").lock(&mut give_up.clone()), Err(FleetError::Refused { .. })));
    }
}
