//! Links the shared object of an artifact with the system's compiler driver.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

use super::error::ArtifactError;
use crate::files::folder_of;

/// Drivers that are tried, in order, with what comes before their arguments. Zig's is a compiler that needs
/// no installation: Python's package index has it.
pub const DRIVERS: [(&str, &[&str]); 4] = [("cc", &[]), ("gcc", &[]), ("clang", &[]), ("zig", &["cc"])];

/// Links objects and assembly into `output`. Only the functions that the header declares are visible, so that
/// several networks, and this program itself, can live in one process. `included` are files that the assembly
/// names.
///
/// # Errors
/// [`ArtifactError::Linker`] where there is no driver or it fails, [`ArtifactError::Write`] where its files
/// cannot be written.
pub fn link(
    exported: &[String],
    assembly: &str,
    included: &[(String, String)],
    objects: &[(String, Vec<u8>)],
    output: &Path,
) -> Result<(), ArtifactError> {
    // beside the output, so that it goes with the draft of a run that is killed
    let folder = folder_of(output);
    let scratch = tempfile::tempdir_in(folder).map_err(|source| ArtifactError::write(folder, source))?;
    let write = |file: &str, bytes: &[u8]| {
        let path = scratch.path().join(file);
        std::fs::write(&path, bytes).map_err(|source| ArtifactError::write(&path, source))
    };
    write("tables.s", assembly.as_bytes())?;
    write("exports.map", format!("{{ global: {}; local: *; }};\n", exported.join("; ")).as_bytes())?;
    for (file, text) in included {
        write(file, text.as_bytes())?;
    }
    for (file, bytes) in objects {
        write(file, bytes)?;
    }
    let output = std::path::absolute(output).map_err(|source| ArtifactError::write(output, source))?;
    let mut reasons = Vec::new();
    for (driver, first) in DRIVERS {
        let mut command = Command::new(driver);
        command.args(first).current_dir(scratch.path()).stdin(Stdio::null());
        command.args(["-shared", "-o"]).arg(&output).arg("tables.s").args(objects.iter().map(|(file, _)| file));
        let soname = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        command.arg(format!("-Wl,-soname,{soname}"));
        command.args(["-Wl,--version-script=exports.map", "-Wl,-z,relro,-z,now,-z,noexecstack", "-Wl,--no-undefined"]);
        command.args(["-Wl,--build-id=none", "-pthread", "-lm", "-ldl"]);
        match command.output() {
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) => {
                let message = String::from_utf8_lossy(&done.stderr).trim().to_string();
                reasons.push(format!("{driver} failed ({}): {message}", done.status));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => reasons.push(format!("no {driver} in PATH")),
            Err(error) => reasons.push(format!("{driver}: {error}")),
        }
    }
    Err(ArtifactError::Linker(reasons.join("; ")))
}
