//! Workloads of every kind with programs of the space for them.

use tilescribe::target::{Cpu, Task};
use tilescribe::workload::generate::{Kind, Limits, generate_kind};
use tilescribe::workload::{Binary, Operands, Unary};

use super::programs::Pair;

/// Of each kind `workloads` workloads, each with its untuned program and `programs` random ones. Equal
/// arguments give equal pairs.
pub fn pairs(target: &Cpu, limits: Limits, workloads: u64, programs: u64) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for kind in Kind::ALL {
        for seed in 0..workloads {
            let task = Task { workload: generate_kind(kind, seed, limits), target: target.clone().into() };
            add(&mut pairs, &format!("{kind:?} {seed} for {}", target.cpu), &task, programs);
        }
    }
    pairs
}

/// What is computed in f64.
const DOUBLES: [&str; 31] = [
    "neg t0 a b",
    "abs t0 a b",
    "exp t0 a b",
    "log abs t0 a b",
    "sqrt abs t0 a b",
    "rsqrt abs t0 a b",
    "recip t0 a b",
    "tanh t0 a b",
    "sigmoid t0 a b",
    "floor mul t0 a b cast f64 100.0",
    "ceil t0 a b",
    "round mul t0 a b cast f64 100.0",
    "sign t0 a b",
    "asin t0 a b",
    "acos t0 a b",
    "atan mul t0 a b cast f64 3.0",
    "sinh mul t0 a b cast f64 30.0",
    "cosh mul t0 a b cast f64 30.0",
    "asinh mul t0 a b cast f64 1000.0",
    "atanh t0 a b",
    "pow t0 a b cast f64 3.0",
    "erf mul t0 a b cast f64 3.0",
    "rem mul t0 a b cast f64 1e9 t1 b",
    "add t0 a b t1 b",
    "mul t0 a b t1 b",
    "div t0 a b t1 b",
    "max t0 a b t1 b",
    "select lt t0 a b t1 b t0 a b cast f64 2.0",
    "cast f64 cast f32 t0 a b",
    "cast f64 cast u64 mul t0 a b cast f64 1e15",
    "sum 37 mul t0 a b t1 b",
];

/// All functions of floats, and conversions, which have code of their own on some processors, with a random
/// program for each.
pub fn functions(target: &Cpu) -> Vec<Pair> {
    let unary = Unary::ALL.into_iter().filter(|op| op.takes() != Operands::Booleans);
    let unary = unary.map(|op| (op.name(), format!("input t0 3 37\nout t1 3 37 {} t0 a b\n", op.name())));
    let binary = Binary::ALL.into_iter().filter(|op| op.takes() != Operands::Booleans);
    let of_binary = |op: Binary, dtype: &str| {
        let value = format!("{} t0 a b t1 b", op.name());
        let value = if op.is_comparison() { format!("select {value} t0 a b t1 b") } else { value };
        (op.name(), format!("input t0{dtype} 3 37\ninput t1{dtype} 37\nout t2{dtype} 3 37 {value}\n"))
    };
    let of_integers = binary.clone().filter(|op| op.takes() != Operands::Floats);
    let of_integers = of_integers.flat_map(|op| [" u16", " i32", " u64"].map(|dtype| of_binary(op, dtype)));
    let binary = binary.filter(|op| op.takes() != Operands::Integers).map(|op| of_binary(op, "")).chain(of_integers);
    let conversions = ["f16", "bf16"].into_iter().flat_map(|half| {
        [
            (half, format!("input t0 3 37\nout t1 {half} 3 37 cast {half} t0 a b\n")),
            (half, format!("input t0 {half} 3 37\nout t1 3 37 cast f32 t0 a b\n")),
        ]
    });
    let between = [("u64", "f32"), ("f32", "u64"), ("i16", "f32"), ("f32", "u32"), ("f16", "u64"), ("u64", "u16")];
    let between = between.map(|(from, to)| {
        let result = if to == "f32" { "" } else { to };
        let given = if from == "f32" { "" } else { from };
        (to, format!("input t0 {given} 3 37\nout t1 {result} 3 37 cast {to} t0 a b\n"))
    });
    let doubles = DOUBLES.map(|value| {
        let (reduction, name) = if value.starts_with("sum") { ("", "sum of f64") } else { (" 37", value) };
        (name, format!("input t0 f64 3 37\ninput t1 f64 37\nout t2 f64 3{reduction} {value}\n"))
    });
    let extremes = ["u64", "i8", "u16", "f64"].into_iter().flat_map(|dtype| {
        ["maxof", "minof"].map(|of| (of, format!("input t0 {dtype} 3 37\nout t1 {dtype} 3 {of} 37 t0 a b\n")))
    });
    let bits = [("u16", "f16"), ("f16", "i16"), ("bf16", "u16"), ("u64", "i64"), ("bool", "u8")];
    let bits = bits.map(|(from, to)| (to, format!("input t0 {from} 3 37\nout t1 {to} 3 37 bits {to} t0 a b\n")));
    let mut pairs = Vec::new();
    for (function, text) in
        unary.chain(binary).chain(conversions).chain(between).chain(bits).chain(doubles).chain(extremes)
    {
        let workload = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        let task = Task { workload, target: target.clone().into() };
        add(&mut pairs, &format!("{function} for {}", target.cpu), &task, 1);
    }
    pairs
}

/// Reductions that plans join: a window and a product, in several types; several products; a row chain
/// between.
const JOINED: [&str; 6] = [
    "const t0 24 3 3\ninput t1 9 10 24\nconst t2 20 24\nlet t3 9 10 24 sum 3 3 mul t0 c d e pad 0.0 t1 ? + a + d -1 ? + \
     b + e -1 c\nlet t4 like t3 max 0.0 t3 a b c\nout t5 9 10 20 sum 24 mul t2 c d t4 a b d\n",
    "const t0 24 3 3\ninput t1 bf16 19 21 24\nconst t2 bf16 20 24\nlet t3 9 10 24 sum 3 3 mul t0 c d e cast f32 t1 + * \
     2 a d + * 2 b e c\nlet t4 bf16 like t3 cast bf16 max 0.0 t3 a b c\nlet t5 9 10 20 sum 24 mul cast f32 t2 c d \
     cast f32 t4 a b d\nout t6 bf16 like t5 cast bf16 t5 a b c\n",
    "input t0 11 12 16\nconst t1 18 16\nlet t2 9 10 16 maxof 3 3 t0 + a d + b e c\nout t3 9 10 18 sum 16 mul t1 c d t2 \
     a b d\n",
    "const t0 12 3 3 3\ninput t1 3 20 24\nlet t2 12 9 11 sum 3 3 3 mul t0 a d e f t1 d + * 2 b e + * 2 c f\nlet t3 like \
     t2 max 0.0 t2 a b c\nout t4 12 4 5 maxof 3 3 t3 a + * 2 b d + * 2 c e\n",
    "input t0 33 24\nconst t1 40 24\nconst t2 20 40\nlet t3 33 40 sum 24 mul t0 a c t1 b c\nlet t4 like t3 tanh t3 a \
     b\nout t5 33 20 sum 40 mul t2 b c t4 a c\n",
    "const t0 24 3\ninput t1 35 24\nconst t2 20 24\nlet t3 33 24 sum 3 mul t0 b c t1 + a c b\nlet t4 33 sum 24 mul t3 a \
     b t3 a b\nlet t5 33 24 mul rsqrt add 0.1 t4 a t3 a b\nout t6 33 20 sum 24 mul t2 b c t5 a c\n",
];

/// Workloads of pairs of reductions, each with its untuned program and random ones.
pub fn joined(target: &Cpu, programs: u64) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (number, text) in JOINED.iter().enumerate() {
        let workload = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        let task = Task { workload, target: target.clone().into() };
        add(&mut pairs, &format!("joined {number} for {}", target.cpu), &task, programs);
    }
    pairs
}

fn add(pairs: &mut Vec<Pair>, name: &str, task: &Task, programs: u64) {
    pairs.extend((0..=programs).map(|seed| Pair::new(name, task, seed)));
}
