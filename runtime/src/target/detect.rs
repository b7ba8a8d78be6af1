//! Asks the operating system about this machine.

use std::fs;
use std::path::Path;

use crate::target::{Architecture, Cpu, TargetError};

/// Where Linux describes the caches of the first processor.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// Where Linux tells the length of SVE vectors that new processes get, in bytes.
const SVE_LENGTH: &str = "/proc/sys/abi/sve_default_vector_length";

pub fn host(cpu: &str, features: &str) -> Result<Cpu, TargetError> {
    let architecture = Architecture::here()?;
    let length = sve_bits(Path::new(SVE_LENGTH));
    let listed = |feature: &str| features.split(',').any(|f| f.strip_prefix('+') == Some(feature));
    // code for vectors of the wrong length is wrong: rather none
    let has = |feature: &str| listed(feature) && (feature != "sve" || length.is_some());
    let features = architecture.features().iter().filter(|f| has(f)).map(|f| format!("+{f}")).collect();
    let vectors = architecture.vectors(&has);
    let vector_bits = vectors.and_then(|vectors| vectors.bits).or(length).unwrap_or(128);
    let vector_registers = vectors.map_or(16, |vectors| vectors.registers);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let caches = caches(Path::new(CACHES));
    let data = |level| caches.iter().find(|c| c.level == level).map(|c| c.bytes);
    Cpu {
        architecture,
        cpu: cpu.to_string(),
        features,
        vector_bits,
        vector_registers,
        cores: u32::try_from(cores).unwrap_or(u32::MAX).min(256),
        l1_bytes: data(1).unwrap_or(32 << 10),
        l2_bytes: data(2).unwrap_or(1 << 20),
        l3_bytes: data(3).unwrap_or(0),
    }
    .validated()
}

/// The length of SVE vectors in bits, where it is one that we write code for.
fn sve_bits(file: &Path) -> Option<u32> {
    let bytes: u32 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    bytes.checked_mul(8).filter(|bits| matches!(bits, 128 | 256 | 512))
}

struct Cache {
    level: u32,
    bytes: u64,
}

/// Data and unified caches.
fn caches(folder: &Path) -> Vec<Cache> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).ok().map(|text| text.trim().to_string());
    let mut found: Vec<Cache> = entries
        .flatten()
        .filter_map(|entry| {
            let path = entry.path();
            let kind = read(&path, "type")?;
            if kind == "Instruction" {
                return None;
            }
            Some(Cache { level: read(&path, "level")?.parse().ok()?, bytes: parse_size(&read(&path, "size")?)? })
        })
        .collect();
    found.sort_by_key(|cache| cache.level);
    found
}

/// `48K`, `1M`, `512`: bytes.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 1 << 10),
        Some(digits) if text.ends_with('M') => (digits, 1 << 20),
        Some(digits) => (digits, 1 << 30),
        None => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("48K"), Some(49152));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("1G"), Some(1 << 30));
        assert_eq!(parse_size("640"), Some(640));
        assert_eq!(parse_size("K"), None);
        assert_eq!(parse_size("99999999999999999999"), None);
    }

    #[test]
    fn vectors_of_other_lengths_than_ours_are_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, bits) in [("32\n", Some(256)), ("64", Some(512)), ("24\n", None), ("256\n", None), ("", None)] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(sve_bits(file.path()), bits, "{text}");
        }
        assert_eq!(sve_bits(Path::new("/nonexistent")), None);
    }

    #[test]
    fn caches_are_read_from_the_folder_and_missing_ones_are_none() {
        let folder = tempfile::tempdir().unwrap();
        for (name, level, kind, size) in
            [("index0", "1", "Data", "32K"), ("index1", "1", "Instruction", "64K"), ("index2", "2", "Unified", "2048K")]
        {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            for (file, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(path.join(file), format!("{text}\n")).unwrap();
            }
        }
        let found: Vec<(u32, u64)> = caches(folder.path()).iter().map(|c| (c.level, c.bytes)).collect();
        assert_eq!(found, [(1, 32 << 10), (2, 2 << 20)]);
        assert!(caches(&folder.path().join("absent")).is_empty());
    }
}
