//! The command line of Tilescribe: see `tilescribe --help`.

mod cli;

use std::process::ExitCode;

/// Training and tuning allocate and free large arrays all the time; the system's allocator gives their pages
/// back and faults them in again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::main()
}
