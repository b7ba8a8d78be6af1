//! The instruction sets of CPUs that code is written for: one row each, with what the rest of the compiler
//! asks about them. How their assembly is read stands in `analysis/assembly.rs`, which names LLVM knows in
//! `codegen/names.txt`, how an artifact asks a machine for its features in `artifact/deploy/cpu.c`.

use serde::{Deserialize, Serialize};

use super::TargetError;
use crate::dtype::DType;

/// The instruction set that kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    X86_64,
    Aarch64,
}

/// The vector registers of machines with a feature.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    /// `None`: of all others.
    pub feature: Option<&'static str>,
    /// `None`: as long as the system says.
    pub bits: Option<u32>,
    pub registers: u32,
}

/// What a machine needs to have an instruction.
enum Needs {
    Nothing,
    AnyOf(&'static [&'static str]),
}

/// An instruction that adds products of short numbers to lanes of 32 bits: of two bf16 each, or of four
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dot {
    /// Types of the operands, in the order in which it takes them.
    pub operands: [DType; 2],
    pub lanes: u32,
    /// Features that a machine needs to have it, all of them.
    needs: &'static [&'static str],
    /// LLVM's name of it.
    pub intrinsic: &'static str,
    /// Whether LLVM wants the types of the sum and of the operands beside the name.
    pub is_overloaded: bool,
}

/// An instruction that adds a product of two tiles of short numbers to a third tile, of 32-bit sums. Rows of
/// the first operand and of the sums are lines of memory, columns of the sums are lanes, and a row of the
/// second operand holds a group of steps for each of them, as an instruction for [`Dot`] products takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TileProduct {
    /// Types of the operands, in the order in which it takes them.
    pub operands: [DType; 2],
    /// Features that a machine needs to have it, all of them.
    needs: &'static [&'static str],
    /// LLVM's name of it.
    pub intrinsic: &'static str,
}

/// Registers that hold tiles.
pub const TILE_REGISTERS: usize = 8;
/// Rows of a tile, at most.
pub const TILE_ROWS: i64 = 16;
/// Lanes of 32 bits in a row of a tile, at most: sums, or groups of steps.
pub const TILE_LANES: i64 = 16;

struct Row {
    /// As target files and Rust spell it.
    name: &'static str,
    triple: &'static str,
    /// Features that change what vector code can be written. All others follow from the processor's name, and
    /// would only make two equal machines look different.
    features: &'static [&'static str],
    /// The first that fits is taken.
    vectors: &'static [Vectors],
    /// The feature without which vectors have 128 bits, and what to say of it.
    longer_vectors: Option<(&'static str, &'static str)>,
    /// Registers that a register tile wants beside its accumulators.
    operand_registers: i64,
    /// Instructions that round to whole numbers.
    rounding: Needs,
    /// Instructions to and from f16.
    halves: Needs,
    /// Instructions that round f32 to bf16.
    bf16s: Needs,
    /// The first that fits is taken.
    dots: &'static [Dot],
    tiles: &'static [TileProduct],
    /// The feature and LLVM's name of an instruction that looks up 16 lanes of f32 in a vector of them, by
    /// the low four bits of integers of 32 bits.
    lookup: Option<(&'static str, &'static str)>,
    /// The instruction that ends a function in another.
    jump: &'static str,
    /// What starts a comment of LLVM's assembly.
    comment: &'static str,
}

const BF16S: [DType; 2] = [DType::BF16, DType::BF16];
const BYTES: [DType; 2] = [DType::U8, DType::I8];

const fn x86(operands: [DType; 2], lanes: u32, needs: &'static [&'static str], intrinsic: &'static str) -> Dot {
    Dot { operands, lanes, needs, intrinsic, is_overloaded: false }
}

const fn amx(operands: [DType; 2], needs: &'static [&'static str], intrinsic: &'static str) -> TileProduct {
    TileProduct { operands, needs, intrinsic }
}

const X86_64: Row = Row {
    name: "x86_64",
    triple: "x86_64-unknown-linux-gnu",
    features: &[
        "aes",
        "amx-bf16",
        "amx-int8",
        "amx-tile",
        "avx",
        "avx2",
        "avx512bf16",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512f",
        "avx512fp16",
        "avx512vl",
        "avx512vnni",
        "bmi",
        "bmi2",
        "f16c",
        "fma",
        "popcnt",
        "sse4.1",
        "sse4.2",
    ],
    vectors: &[
        Vectors { feature: Some("avx512f"), bits: Some(512), registers: 32 },
        Vectors { feature: Some("avx"), bits: Some(256), registers: 16 },
        Vectors { feature: None, bits: Some(128), registers: 16 },
    ],
    longer_vectors: None,
    // two vectors, a broadcast, and one for what is loaded in advance
    operand_registers: 4,
    rounding: Needs::AnyOf(&["sse4.1", "avx", "avx2", "avx512f"]),
    halves: Needs::AnyOf(&["f16c"]),
    bf16s: Needs::AnyOf(&["avx512bf16"]),
    dots: &[
        x86(BF16S, 16, &["avx512bf16"], "llvm.x86.avx512bf16.dpbf16ps.512"),
        x86(BF16S, 8, &["avx512bf16", "avx512vl"], "llvm.x86.avx512bf16.dpbf16ps.256"),
        x86(BF16S, 4, &["avx512bf16", "avx512vl"], "llvm.x86.avx512bf16.dpbf16ps.128"),
        x86(BYTES, 16, &["avx512vnni"], "llvm.x86.avx512.vpdpbusd.512"),
        x86(BYTES, 8, &["avx512vnni", "avx512vl"], "llvm.x86.avx512.vpdpbusd.256"),
        x86(BYTES, 8, &["avxvnni"], "llvm.x86.avx512.vpdpbusd.256"),
        x86(BYTES, 4, &["avx512vnni", "avx512vl"], "llvm.x86.avx512.vpdpbusd.128"),
        x86(BYTES, 4, &["avxvnni"], "llvm.x86.avx512.vpdpbusd.128"),
    ],
    tiles: &[
        amx(BF16S, &["amx-tile", "amx-bf16"], "llvm.x86.tdpbf16ps"),
        amx([DType::U8, DType::I8], &["amx-tile", "amx-int8"], "llvm.x86.tdpbusd"),
        amx([DType::I8, DType::U8], &["amx-tile", "amx-int8"], "llvm.x86.tdpbsud"),
        amx([DType::I8, DType::I8], &["amx-tile", "amx-int8"], "llvm.x86.tdpbssd"),
        amx([DType::U8, DType::U8], &["amx-tile", "amx-int8"], "llvm.x86.tdpbuud"),
    ],
    lookup: Some(("avx512f", "llvm.x86.avx512.permvar.sf.512")),
    jump: "jmp",
    comment: "#",
};

const fn neon(operands: [DType; 2], needs: &'static [&'static str], intrinsic: &'static str) -> Dot {
    Dot { operands, lanes: 4, needs, intrinsic, is_overloaded: true }
}

const AARCH64: Row = Row {
    name: "aarch64",
    triple: "aarch64-unknown-linux-gnu",
    features: &["aes", "dotprod", "fullfp16", "neon", "sve"],
    vectors: &[
        Vectors { feature: Some("sve"), bits: None, registers: 32 },
        Vectors { feature: None, bits: Some(128), registers: 32 },
    ],
    longer_vectors: Some(("sve", "128, which is all that AArch64 has without +sve")),
    // it loads what it broadcasts in pairs
    operand_registers: 6,
    rounding: Needs::Nothing,
    halves: Needs::Nothing,
    bf16s: Needs::AnyOf(&["bf16"]),
    dots: &[
        neon(BF16S, &["bf16"], "llvm.aarch64.neon.bfdot"),
        neon([DType::U8, DType::U8], &["dotprod"], "llvm.aarch64.neon.udot"),
        neon([DType::I8, DType::I8], &["dotprod"], "llvm.aarch64.neon.sdot"),
        neon(BYTES, &["i8mm"], "llvm.aarch64.neon.usdot"),
    ],
    tiles: &[],
    lookup: None,
    jump: "b",
    comment: "//",
};

impl Architecture {
    pub const ALL: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];

    fn row(self) -> &'static Row {
        match self {
            Architecture::X86_64 => &X86_64,
            Architecture::Aarch64 => &AARCH64,
        }
    }

    /// That of this process.
    ///
    /// # Errors
    /// [`TargetError::Architecture`] where we generate no code for it.
    pub fn here() -> Result<Architecture, TargetError> {
        let here = std::env::consts::ARCH;
        let known = Architecture::ALL.into_iter().find(|architecture| architecture.name() == here);
        known.ok_or_else(|| TargetError::Architecture(here.to_string()))
    }

    /// The instruction for products of short numbers in so many lanes, and whether its operands are
    /// exchanged; `None` where a machine has none.
    pub fn dot(self, operands: [DType; 2], lanes: u32, has: &dyn Fn(&str) -> bool) -> Option<(Dot, bool)> {
        let [first, second] = operands;
        let find = |wanted: [DType; 2]| {
            let fits =
                |dot: &&Dot| dot.operands == wanted && dot.lanes == lanes && dot.needs.iter().all(|name| has(name));
            self.row().dots.iter().find(fits).copied()
        };
        let exchanged = || find([second, first]).map(|dot| (dot, true));
        find(operands).map(|dot| (dot, false)).or_else(exchanged)
    }

    /// The instruction for products of tiles of such operands; `None` where a machine has none.
    pub fn tile_product(self, operands: [DType; 2], has: &dyn Fn(&str) -> bool) -> Option<TileProduct> {
        let fits = |product: &&TileProduct| product.operands == operands && product.needs.iter().all(|name| has(name));
        self.row().tiles.iter().find(fits).copied()
    }

    /// The instruction of a machine with these features that looks up 16 lanes of f32 in a vector of them, by
    /// the low four bits of integers of 32 bits; `None` where it has none.
    pub fn lookup(self, has: &dyn Fn(&str) -> bool) -> Option<&'static str> {
        self.row().lookup.filter(|(feature, _)| has(feature)).map(|(_, intrinsic)| intrinsic)
    }

    /// As target files and Rust spell it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// LLVM's name of the machine.
    pub fn triple(self) -> &'static str {
        self.row().triple
    }

    /// Features that kernels may use where a machine has them.
    pub(super) fn features(self) -> &'static [&'static str] {
        self.row().features
    }

    /// The vector registers of a machine with these features.
    pub(super) fn vectors(self, has: &dyn Fn(&str) -> bool) -> Option<Vectors> {
        self.row().vectors.iter().find(|vectors| vectors.feature.is_none_or(has)).copied()
    }

    /// The feature without which vectors have 128 bits, and what to say of it.
    pub(super) fn longer_vectors(self) -> Option<(&'static str, &'static str)> {
        self.row().longer_vectors
    }

    /// Registers that a register tile wants beside its accumulators.
    pub fn operand_registers(self) -> i64 {
        self.row().operand_registers
    }

    /// Whether a machine with these features has instructions that round to whole numbers.
    pub fn rounds(self, has: &dyn Fn(&str) -> bool) -> bool {
        self.row().rounding.met(has)
    }

    /// Whether there are instructions that round f32 to bf16.
    pub fn rounds_to_bf16(self, has: &dyn Fn(&str) -> bool) -> bool {
        self.row().bf16s.met(has)
    }

    /// Whether a machine with these features has instructions to and from f16.
    pub fn converts_halves(self, has: &dyn Fn(&str) -> bool) -> bool {
        self.row().halves.met(has)
    }

    /// The instruction that ends a function in another, in GNU assembly.
    pub fn jump(self) -> &'static str {
        self.row().jump
    }

    /// What starts a comment of LLVM's assembly.
    pub fn comment(self) -> &'static str {
        self.row().comment
    }
}

impl Needs {
    fn met(&self, has: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Needs::Nothing => true,
            Needs::AnyOf(features) => features.iter().any(|feature| has(feature)),
        }
    }
}
