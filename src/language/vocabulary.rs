//! The closed list of tokens. A token's id is its position, so additions replace spare tokens and nothing
//! ever moves.

use crate::workload::text::{KEYWORDS, axis_name};
use crate::workload::{Binary, Combiner, DType, Unary};

pub(super) const PADDING: &str = "<pad>";
pub(super) const END: &str = "<end>";
/// Never written by us; tokenizers want one.
pub(super) const UNKNOWN: &str = "<unk>";

/// Numbers up to here are one token each.
pub(super) const LARGEST_SINGLE: u64 = 64;
/// The base in which larger numbers are spelled.
pub(super) const BASE: u64 = 64;
/// Letters of names that are no words of the vocabulary; `\` starts any other byte, in two hexadecimal
/// digits.
pub(super) const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz0123456789._-\\";
/// Before the digits of a negative number, and of a float.
pub(super) const MINUS: &str = "#-";
pub(super) const FLOAT: &str = "#f";

/// Stages and tensors that have a word of their own.
const NAMED_TENSORS: usize = 64;
const NAMED_STAGES: usize = 32;
/// Axes of a stage: the limit of workloads.
const NAMED_AXES: usize = 32;
/// Negative numbers of padding.
const SMALLEST_SINGLE: i64 = -8;
/// Tokens that later words take the place of.
const SPARE: usize = 100;

/// Literals of activations and norms, as [`crate::workload::text::float_text`] spells them.
const FLOATS: [&str; 28] = [
    "0.0",
    "-0.0",
    "1.0",
    "-1.0",
    "2.0",
    "-2.0",
    "3.0",
    "4.0",
    "6.0",
    "8.0",
    "0.5",
    "-0.5",
    "0.25",
    "0.125",
    "0.01",
    "0.1",
    "0.2",
    "inf",
    "-inf",
    "0.70710677",
    "0.70710678",
    "1.4142135",
    "0.7978846",
    "0.044715",
    "0.16666667",
    "1e-5",
    "1e-6",
    "1e-12",
];

/// What targets are described by.
const TARGET: [&str; 24] = [
    "target",
    "x86_64",
    "aarch64",
    "lanes",
    "registers",
    "cores",
    "l1",
    "l2",
    "l3",
    "want",
    "any",
    "cpu",
    "gpu",
    "cuda",
    "nvptx",
    "sm",
    "multiprocessors",
    "shared",
    "warp",
    "threads",
    "bandwidth",
    "tensor",
    "hbm",
    "clusters",
];

/// Sites and values of the CPU space, in the order of its rules.
const CPU_SPACE: [&str; 48] = [
    "algorithm",
    "direct",
    "winograd",
    "phases",
    "online",
    "fuse",
    "fused",
    "apart",
    "none",
    "root",
    "inline",
    "at",
    "rows",
    "tile",
    "block",
    "depth",
    "vector",
    "steps",
    "outer",
    "inner",
    "order",
    "before",
    "pack",
    "panel",
    "box",
    "setup",
    "privatise",
    "epilogue",
    "parallel",
    "grain",
    "unroll",
    "prefetch",
    "mask",
    "peel",
    "cache",
    "layout",
    "row",
    "column",
    "split",
    "join",
    "reduce",
    "stage",
    "no",
    "yes",
    "early",
    "late",
    "local",
    "stream",
];

/// Sites and values that a GPU space will want.
const GPU_SPACE: [&str; 32] = [
    "grid",
    "cluster",
    "thread",
    "virtual",
    "lane",
    "bind",
    "copy",
    "async",
    "double",
    "buffers",
    "swizzle",
    "bank",
    "mma",
    "wgmma",
    "fragment",
    "persistent",
    "barrier",
    "load",
    "store",
    "wide",
    "narrow",
    "global",
    "register",
    "accumulate",
    "m",
    "n",
    "k",
    "slices",
    "waves",
    "occupancy",
    "multicast",
    "transposed",
];

/// Every token, by id.
pub(super) fn standard() -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    let mut add = |spelling: String| {
        // some words serve twice: `min` is an operator, `b` an axis
        if !list.contains(&spelling) {
            list.push(spelling);
        }
    };
    [PADDING, END, UNKNOWN, "=", ";", MINUS, FLOAT].into_iter().for_each(|s| add(s.to_string()));
    (0..=LARGEST_SINGLE).for_each(|n| add(n.to_string()));
    // digits that others follow, then powers of two that a number is a multiple of
    (0..BASE).for_each(|digit| add(format!("{digit}:")));
    (1..64).for_each(|power| add(format!("2^{power}")));
    (SMALLEST_SINGLE..0).rev().for_each(|n| add(n.to_string()));
    FLOATS.into_iter().for_each(|s| add(s.to_string()));
    KEYWORDS.into_iter().for_each(|s| add(s.to_string()));
    Unary::ALL.into_iter().for_each(|op| add(op.name().to_string()));
    Binary::ALL.into_iter().for_each(|op| add(op.name().to_string()));
    [Combiner::Sum, Combiner::Product, Combiner::Maximum, Combiner::Minimum]
        .into_iter()
        .for_each(|c| add(c.name().to_string()));
    [DType::F32, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I32, DType::I64, DType::Bool]
        .into_iter()
        .for_each(|dtype| add(dtype.name().to_string()));
    (0..NAMED_TENSORS).for_each(|t| add(format!("t{t}")));
    (0..NAMED_AXES).for_each(|axis| add(axis_name(axis).into_owned()));
    (0..NAMED_STAGES).for_each(|s| add(format!("s{s}")));
    TARGET.into_iter().chain(CPU_SPACE).chain(GPU_SPACE).for_each(|s| add(s.to_string()));
    // letters that others follow, and last letters
    LETTERS.chars().for_each(|letter| add(format!("~{letter}")));
    LETTERS.chars().for_each(|letter| add(format!("{letter}~")));
    (0..SPARE).for_each(|n| add(format!("<spare{n}>")));
    list
}
