//! Which names of processors and features LLVM knows.
//!
//! LLVM only warns of names that it does not know, then compiles for a processor without any feature; on
//! x86-64 it ends the process, since that one has no 64 bits. Its C interface has no question for it, so the
//! lists are here.

use crate::target::{Cpu, TargetError};

const NAMES: &str = include_str!("names.txt");

/// Refuses targets with names that LLVM does not know.
pub fn check(target: &Cpu) -> Result<(), TargetError> {
    let architecture = target.architecture.name();
    let unknown = |what, name: &str| Err(TargetError::Unknown { what, name: name.into(), architecture });
    if !known(architecture, "processors").any(|name| name == target.cpu) {
        return unknown("processor", &target.cpu);
    }
    for feature in &target.features {
        let plain = feature.trim_start_matches('+');
        if !known(architecture, "features").any(|name| name == plain) {
            return unknown("feature", plain);
        }
    }
    Ok(())
}

/// The names below `[architecture kind]`.
fn known(architecture: &str, kind: &str) -> impl Iterator<Item = &'static str> {
    let title = format!("[{architecture} {kind}]");
    let lines = NAMES.lines().skip_while(move |line| *line != title).skip(1);
    lines.take_while(|line| !line.is_empty()).flat_map(str::split_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Architecture;

    #[test]
    fn names_are_of_an_architecture() {
        let target = |architecture, cpu: &str, feature: &str| Cpu {
            architecture,
            cpu: cpu.into(),
            features: vec![format!("+{feature}")],
            vector_bits: 128,
            vector_registers: 32,
            cores: 1,
            l1_bytes: 1 << 15,
            l2_bytes: 1 << 20,
            l3_bytes: 0,
        };
        let (x86, arm) = (Architecture::X86_64, Architecture::Aarch64);
        for (architecture, cpu, feature) in [(x86, "cascadelake", "avx512f"), (arm, "neoverse-v1", "sve")] {
            assert_eq!(check(&target(architecture, cpu, feature)), Ok(()));
        }
        let refused = |architecture, cpu, feature| check(&target(architecture, cpu, feature)).unwrap_err().to_string();
        assert_eq!(refused(x86, "haswel", "avx2"), "LLVM knows no processor `haswel` of x86_64");
        // of 32 bits, and of the other architecture
        assert_eq!(refused(x86, "i686", "avx2"), "LLVM knows no processor `i686` of x86_64");
        assert_eq!(refused(x86, "neoverse-n1", "avx2"), "LLVM knows no processor `neoverse-n1` of x86_64");
        assert_eq!(refused(arm, "neoverse-n1", "avx2"), "LLVM knows no feature `avx2` of aarch64");
    }
}
