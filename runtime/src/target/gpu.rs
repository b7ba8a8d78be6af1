//! A GPU as plain data.

use serde::{Deserialize, Serialize};

use super::{TargetError, shortened, syntax};

/// An NVIDIA GPU. What is the same for all of them is constant: warps of 32 threads, at most 1024 threads in
/// a block and 255 registers in a thread.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    pub capability: Capability,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that one block may ask for, in bytes.
    pub shared_bytes_per_block: u32,
    /// Shared memory that the blocks of a multiprocessor divide among them, in bytes.
    pub shared_bytes_per_multiprocessor: u32,
    /// Registers of 32 bits that the threads of a multiprocessor divide among them.
    pub registers_per_multiprocessor: u32,
    pub threads_per_multiprocessor: u32,
    pub blocks_per_multiprocessor: u32,
    /// Cache of all multiprocessors, level 2, in bytes.
    pub l2_bytes: u64,
    /// Bandwidth of the device's memory as its maker gives it, in 10⁹ bytes a second.
    pub memory_gb_per_s: u32,
}

/// Threads that run in step.
pub const WARP: i64 = 32;

/// Registers that a thread can name.
pub const REGISTERS_PER_THREAD: u32 = 255;

/// A generation of GPUs, by NVIDIA's compute capability.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Capability {
    pub major: u32,
    pub minor: u32,
    /// With what only GPUs of this very capability have, which no newer ones need to understand: the `a` of
    /// `9.0a`.
    pub specific: bool,
}

/// Generations that kernels are written for, each with the oldest version of PTX that knows it, times ten.
const KNOWN: [(Capability, u32); 6] = [
    (Capability::new(8, 0), 70),
    (Capability::new(8, 6), 71),
    (Capability::new(8, 9), 78),
    (Capability::new(9, 0), 80),
    (Capability::new(10, 0), 86),
    (Capability::new(12, 0), 87),
];

/// Those of which we use what is specific: `wgmma`.
const SPECIFIC: [Capability; 1] = [Capability::new(9, 0)];

impl Capability {
    /// What GPUs from this generation on have.
    pub const fn new(major: u32, minor: u32) -> Capability {
        Capability { major, minor, specific: false }
    }

    /// The same with what is specific to it, where we use that.
    #[must_use]
    pub fn with_specific(self) -> Capability {
        Capability { specific: SPECIFIC.contains(&Capability { specific: false, ..self }), ..self }
    }

    /// Whether the warps of a group of four multiply matrices together (`wgmma`).
    pub fn has_warp_groups(self) -> bool {
        self == Capability::new(9, 0).with_specific()
    }

    /// The oldest version of PTX that knows it, times ten; `None` where we write no kernels for it.
    pub fn ptx(self) -> Option<u32> {
        if self.specific && self.with_specific() != self {
            return None;
        }
        // a newer minor version runs what was written for an older one
        let older = KNOWN.into_iter().filter(|(known, _)| known.major == self.major && known.minor <= self.minor);
        older.map(|(_, ptx)| ptx).next_back()
    }

    /// Whether a GPU of this capability, one of the same family, runs what is written for `wanted`.
    pub fn runs(self, wanted: Capability) -> bool {
        let suits = if wanted.specific { self.minor == wanted.minor } else { self.minor >= wanted.minor };
        self.major == wanted.major && suits
    }

    /// As LLVM and `ptxas` spell it: `sm_90`, `sm_90a`.
    pub fn architecture(self) -> String {
        format!("sm_{}{}{}", self.major, self.minor, self.suffix())
    }

    fn suffix(self) -> &'static str {
        if self.specific { "a" } else { "" }
    }
}

impl From<Capability> for String {
    fn from(capability: Capability) -> String {
        format!("{}.{}{}", capability.major, capability.minor, capability.suffix())
    }
}

impl TryFrom<String> for Capability {
    type Error = String;

    fn try_from(text: String) -> Result<Capability, String> {
        let number = |part: &str| part.parse::<u32>().ok().filter(|n| *n < 100 && n.to_string() == part);
        let general = text.strip_suffix('a').unwrap_or(&text);
        let parts = general.split_once('.').and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
        let shown = shortened(&text);
        let (major, minor) = parts.ok_or_else(|| format!("`{shown}` is no compute capability, such as 9.0 or 9.0a"))?;
        Ok(Capability { major, minor, specific: general.len() < text.len() })
    }
}

impl Gpu {
    /// Reads a description in TOML: the fields of [`Gpu`].
    ///
    /// # Errors
    /// [`TargetError::Syntax`] for unknown, missing or mistyped fields, [`TargetError::Range`] for values
    /// that no GPU has.
    pub fn from_toml(text: &str) -> Result<Gpu, TargetError> {
        let gpu: Gpu = toml::from_str(text).map_err(|e| syntax(&e))?;
        gpu.validated()
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Checks everything that later stages rely on.
    pub fn validated(self) -> Result<Gpu, TargetError> {
        if self.capability.ptx().is_none() {
            let value = String::from(self.capability);
            return Err(TargetError::Range {
                field: "capability",
                value,
                allowed: "8.0 and newer generations that are known",
            });
        }
        let limits = [
            ("multiprocessors", u64::from(self.multiprocessors), 1, 4096, "1 to 4096"),
            ("shared_bytes_per_block", u64::from(self.shared_bytes_per_block), 48 << 10, 1 << 20, "48 KiB to 1 MiB"),
            (
                "shared_bytes_per_multiprocessor",
                u64::from(self.shared_bytes_per_multiprocessor),
                u64::from(self.shared_bytes_per_block),
                1 << 20,
                "shared_bytes_per_block to 1 MiB",
            ),
            (
                "registers_per_multiprocessor",
                u64::from(self.registers_per_multiprocessor),
                1 << 15,
                1 << 20,
                "2^15 to 2^20",
            ),
            ("threads_per_multiprocessor", u64::from(self.threads_per_multiprocessor), 1024, 1 << 16, "1024 to 65536"),
            ("blocks_per_multiprocessor", u64::from(self.blocks_per_multiprocessor), 1, 1024, "1 to 1024"),
            ("l2_bytes", self.l2_bytes, 1 << 16, 1 << 40, "2^16 to 2^40"),
            ("memory_gb_per_s", u64::from(self.memory_gb_per_s), 1, 1_000_000, "1 to 1,000,000"),
        ];
        match limits.into_iter().find(|(_, value, least, most, _)| !(least..=most).contains(&value)) {
            Some((field, value, _, _, allowed)) => Err(TargetError::Range { field, value: value.to_string(), allowed }),
            None => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Capability, Gpu};
    use crate::target::TargetError;

    /// Descriptions that come with Tilescribe.
    const SHIPPED: [(&str, &str); 6] = [
        ("sm_80", include_str!("../../../targets/gpus/sm_80.toml")),
        ("sm_86", include_str!("../../../targets/gpus/sm_86.toml")),
        ("sm_89", include_str!("../../../targets/gpus/sm_89.toml")),
        ("sm_90", include_str!("../../../targets/gpus/sm_90.toml")),
        ("sm_90a", include_str!("../../../targets/gpus/sm_90a.toml")),
        ("sm_100", include_str!("../../../targets/gpus/sm_100.toml")),
    ];

    #[test]
    fn shipped_descriptions_are_read_and_written() {
        for (architecture, text) in SHIPPED {
            let gpu = Gpu::from_toml(text).unwrap_or_else(|e| panic!("{architecture}: {e}"));
            assert_eq!(gpu.capability.architecture(), architecture);
            assert_eq!(Gpu::from_toml(&gpu.to_toml()), Ok(gpu));
        }
    }

    #[test]
    fn what_no_gpu_has_is_refused() {
        let good = SHIPPED[0].1;
        for (from, to) in [
            ("capability = \"8.0\"", "capability = \"7.5\""),
            ("capability = \"8.0\"", "capability = \"8.0a\""),
            ("multiprocessors = 108", "multiprocessors = 0"),
            ("threads_per_multiprocessor = 2048", "threads_per_multiprocessor = 4294967295"),
        ] {
            assert!(good.contains(from), "{from}");
            let refused = Gpu::from_toml(&good.replacen(from, to, 1));
            assert!(matches!(refused, Err(TargetError::Range { .. })), "{to}: {refused:?}");
        }
        for bad in [
            "capability = \"8\"",
            "capability = \"8.a\"",
            "capability = \"9.0aa\"",
            "capability = \"08.0\"",
            "capability = \"8.0.0\"",
            "capability = 8",
        ] {
            let refused = Gpu::from_toml(&good.replacen("capability = \"8.0\"", bad, 1));
            assert!(matches!(refused, Err(TargetError::Syntax(_))), "{bad}: {refused:?}");
        }
    }

    #[test]
    fn what_is_specific_runs_on_its_own_generation() {
        let [old, newer, specific] = ["9.0", "9.1", "9.0a"].map(|text| Capability::try_from(text.to_string()).unwrap());
        assert_eq!(old.with_specific(), specific);
        assert_eq!([old, newer, specific].map(|gpu| gpu.runs(specific)), [true, false, true]);
        assert_eq!([old, newer, specific].map(|gpu| gpu.runs(old)), [true; 3]);
        assert!(!Capability::new(10, 0).runs(old) && !old.runs(newer));
        assert_eq!([old, newer, specific].map(Capability::has_warp_groups), [false, false, true]);
        assert!(specific > old && Capability::new(10, 0) > specific);
    }

    #[test]
    fn a_newer_minor_version_runs_what_an_older_one_does() {
        let ptx = |major, minor| Capability::new(major, minor).ptx();
        assert_eq!([ptx(8, 0), ptx(8, 7), ptx(9, 0), ptx(10, 3)], [Some(70), Some(71), Some(80), Some(86)]);
        assert_eq!([ptx(7, 5), ptx(11, 0), ptx(99, 0)], [None; 3]);
    }
}
