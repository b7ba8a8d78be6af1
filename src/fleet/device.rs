//! What a worker measures on, and how it has that to itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

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
    Kept(Box<super::FleetError>),
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
/// ends, however it ends.
pub struct DeviceLock {
    path: PathBuf,
}

/// Holds the lock until it is dropped.
pub struct Held {
    _file: File,
}

impl DeviceLock {
    /// The lock of the CPU, or of the GPU of this number.
    pub fn of(gpu: Option<usize>) -> DeviceLock {
        let name = gpu.map_or_else(|| "cpu".to_string(), |number| format!("cuda{number}"));
        DeviceLock { path: std::env::temp_dir().join(format!("tilescribe-{name}.lock")) }
    }

    /// A lock of another name, for who shares a machine by other rules.
    pub fn at(path: &Path) -> DeviceLock {
        DeviceLock { path: path.to_path_buf() }
    }

    /// The lock, if nobody holds it.
    ///
    /// # Errors
    /// The system's.
    pub fn try_lock(&self) -> io::Result<Option<Held>> {
        let file = self.open()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Held { _file: file })),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Other users may hold the file, too: it is theirs or ours, and neither a link nor a pipe.
    fn open(&self) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let there = File::options().read(true).custom_flags(flags).open(&self.path);
        if !matches!(&there, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            return there;
        }
        let made = File::options().write(true).create_new(true).custom_flags(flags).open(&self.path);
        match made {
            Ok(file) => {
                file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
                Ok(file)
            }
            // another was faster
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                File::options().read(true).custom_flags(flags).open(&self.path)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceLock;

    #[test]
    fn one_holds_the_device_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let lock = DeviceLock::at(&folder.path().join("cpu.lock"));
        let held = lock.try_lock().unwrap().unwrap();
        assert!(DeviceLock::at(&folder.path().join("cpu.lock")).try_lock().unwrap().is_none());
        drop(held);
        assert!(lock.try_lock().unwrap().is_some());
        std::os::unix::fs::symlink("/dev/null", folder.path().join("link")).unwrap();
        assert!(DeviceLock::at(&folder.path().join("link")).try_lock().is_err());
    }
}
