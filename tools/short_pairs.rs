//! Checks random programs of random workloads of short numbers.
//!
//! usage: short_pairs [--count N] [--seed S] [MACHINE]
//!
//! Draws N workloads (3,000 if nothing else is said) with a random trace each, for this machine, for AVX2
//! without instructions for short numbers, and for AArch64 with them, run by qemu; or for one of them:
//! `here`, `avx2`, `aarch64`. Each program is interpreted, compiled and run, and gives what the evaluator
//! does within the gate's tolerance. Prints a line for each machine, and fails at the first program that is
//! wrong or cannot be run. AArch64 needs qemu-aarch64 and aarch64-linux-gnu-gcc.
//!
//! With `--list`, prints N workloads of the sizes of networks instead, as `tilescribe collect --workloads`
//! reads them.

#[path = "../tests/all/targets/emulated.rs"]
mod emulated;
#[path = "../tests/all/targets/programs.rs"]
mod programs;
#[path = "../tests/all/targets/short.rs"]
mod short;

use clap::Parser;
use short::{Checked, Machine};
use tilescribe::workload::generate::{Limits, short_workloads};

/// A machine that is made when it is asked for.
type Make = fn() -> Machine;

/// Pairs that are held in memory at a time.
const AT_ONCE: u64 = 500;

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 3000)]
    count: u64,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long)]
    list: bool,
    machine: Option<String>,
}

fn main() {
    let arguments = Arguments::parse();
    if arguments.list {
        return list(&arguments);
    }
    let wanted = |name: &str| arguments.machine.as_ref().is_none_or(|machine| machine == name);
    let machines: [(&str, Make); 3] = [("here", Machine::here), ("avx2", Machine::avx2), ("aarch64", Machine::aarch64)];
    for (name, machine) in machines.into_iter().filter(|(name, _)| wanted(name)) {
        let machine = machine();
        assert_eq!(machine.missing(), None, "{name}");
        let mut all = Checked::default();
        for first in (0..arguments.count).step_by(AT_ONCE as usize) {
            let seeds = arguments.seed + first..arguments.seed + arguments.count.min(first + AT_ONCE);
            let Checked { pairs, dots } = machine.check(seeds);
            all = Checked { pairs: all.pairs + pairs, dots: all.dots + dots };
        }
        assert_eq!(all.pairs as u64, arguments.count);
        assert!(all.dots > 0 || !machine.has_all_dots(), "{}: no program has dot products", machine.name);
        println!("{}: {} pairs interpreted and run, {} with dot products", machine.name, all.pairs, all.dots);
    }
}

/// ```text
/// # 17 short_dense
/// input t0 ...
/// ```
fn list(arguments: &Arguments) {
    let count = usize::try_from(arguments.count).unwrap_or(usize::MAX);
    for (number, (kind, workload)) in short_workloads(arguments.seed, Limits::LARGE).take(count).enumerate() {
        println!("# {number} short_{}\n{workload}", format!("{kind:?}").to_lowercase());
    }
}
