//! Tasks as text: the line that a prompt holds of a machine, and whole tasks for files and records.

use thiserror::Error;

use crate::target::{Target, TargetError, Task};
use crate::workload::TextError;

/// Text that is no task: the fault of whoever wrote it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TaskError {
    #[error("a task is a target and a workload, with an empty line between them")]
    Parts,
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("workload: {0}")]
    Workload(#[from] TextError),
}

/// What the model is told of a machine: of a CPU lanes of f32, vector registers, cores, bytes of caches; of a
/// GPU its compute capability (without the point), multiprocessors, bytes of shared memory and cache,
/// bandwidth. Canonical.
pub fn target_line(target: &Target) -> String {
    match target {
        Target::Cpu(cpu) => {
            let architecture = cpu.architecture.name();
            let (lanes, registers, cores) = (cpu.lanes(), cpu.vector_registers, cpu.cores);
            let (l1, l2, l3) = (cpu.l1_bytes, cpu.l2_bytes, cpu.l3_bytes);
            format!("target {architecture} lanes {lanes} registers {registers} cores {cores} l1 {l1} l2 {l2} l3 {l3}")
        }
        Target::Gpu(gpu) => {
            let generation = 10 * gpu.capability.major + gpu.capability.minor;
            let (multiprocessors, shared) = (gpu.multiprocessors, gpu.shared_bytes_per_block);
            let (l2, bandwidth) = (gpu.l2_bytes, gpu.memory_gb_per_s);
            format!(
                "target gpu sm {generation} multiprocessors {multiprocessors} shared {shared} l2 {l2} bandwidth {bandwidth}"
            )
        }
    }
}

/// The target in TOML, an empty line, and the workload.
pub fn print_task(task: &Task) -> String {
    format!("{}\n{}", task.target.to_toml(), task.workload)
}

/// Reads what [`print_task`] writes.
///
/// # Errors
/// [`TaskError`] that names the part at fault.
pub fn parse_task(text: &str) -> Result<Task, TaskError> {
    let (target, workload) = text.split_once("\n\n").ok_or(TaskError::Parts)?;
    Ok(Task { target: Target::from_toml(target)?, workload: workload.parse()? })
}
