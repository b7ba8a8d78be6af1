//! Faults that kernels of short numbers may have: the gate refuses each at every depth, and passes what has
//! none.

use std::io::Write;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tilescribe::codegen;
use tilescribe::measure::{OracleCache, Refusal, Workbench};
use tilescribe::nest::{Nest, Stmt};
use tilescribe::outcome::Failure;
use tilescribe::space::{Space, Untuned};
use tilescribe::target::Task;
use tilescribe::workload::{Binary, DType, Expr, Index, Role, TensorId, Workload};

use super::gate::{each_write, reduced, run, within};
use super::host;

const DEPTHS: [i64; 3] = [64, 512, 4096];
const ROWS: i64 = 5;
const COLUMNS: i64 = 24;

/// Steps that a stale tile is long.
const TILE: i64 = 16;

/// Which product of short numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Numbers {
    /// Stored in bf16.
    Bf16,
    /// In i32, the zero point taken off.
    Bytes,
    /// The same, rounded to u8.
    Requantised,
    /// Weights of 4 bits in blocks of 32.
    FourBits,
}

const NUMBERS: [Numbers; 4] = [Numbers::Bf16, Numbers::Bytes, Numbers::Requantised, Numbers::FourBits];

impl Numbers {
    /// t0 are the activations, t1 the weights, t2 what belongs to the zero point.
    fn workload(self, depth: i64) -> Workload {
        let bytes = format!(
            "input t0 u8 {ROWS} {depth}\nconst t1 i8 {depth} {COLUMNS}\nconst t2 i32 {COLUMNS}\n\
             let t3 i32 {ROWS} {COLUMNS} sum {depth} mul cast i32 t0 a c cast i32 t1 c b\n"
        );
        let corrected = "sub t3 a b mul cast i32 int 121 t2 b";
        let text = match self {
            Numbers::Bf16 => format!(
                "input t0 bf16 {ROWS} {depth}\nconst t1 bf16 {depth} {COLUMNS}\n\
                 let t2 {ROWS} {COLUMNS} sum {depth} mul cast f32 t0 a c cast f32 t1 c b\n\
                 out t3 bf16 {ROWS} {COLUMNS} cast bf16 t2 a b\n"
            ),
            Numbers::Bytes => format!("{bytes}out t4 i32 {ROWS} {COLUMNS} {corrected}\n"),
            Numbers::Requantised => {
                // a sum of products of bytes is about so large; its results are 40 steps from the zero point
                let scale = (40.0 / (11_000.0 * (depth as f64).sqrt())) as f32;
                let scaled = format!("mul {scale} cast f32 {corrected}");
                format!("{bytes}out t4 u8 {ROWS} {COLUMNS} cast u8 min 255.0 max 0.0 add 128.0 round {scaled}\n")
            }
            Numbers::FourBits => {
                let half = "bitand cast i32 int 15 shr cast i32 t1 b c d cast i32 int * 4 e";
                let blocks = depth / 32;
                format!(
                    "input t0 {ROWS} {depth}\nconst t1 u8 {COLUMNS} {blocks} 16\nconst t2 {COLUMNS} {blocks}\n\
                     const t3 {COLUMNS} {blocks}\nout t4 {ROWS} {COLUMNS} sum {blocks} 16 2 \
                     mul t0 a + * 32 c + * 2 d e mul t3 b c sub cast f32 {half} t2 b c\n"
                )
            }
        };
        text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// Steps that an instruction takes at a time.
    fn group(self) -> i64 {
        match self {
            Numbers::Bf16 | Numbers::FourBits => 2,
            Numbers::Bytes | Numbers::Requantised => 4,
        }
    }
}

/// A kind of wrong kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    LostStep,
    /// The first pair or quad is left out; or the last.
    LostFirstGroup,
    LostLastGroup,
    /// The last tile of one operand is that of the beginning.
    StaleTile,
    /// The steps of all pairs, or of one, are exchanged in one operand.
    SwappedPairs,
    SwappedPair,
    DroppedZeroPoint,
    /// Two products are added up in 16 bits, as `vpmaddubsw` does.
    Saturating,
    Zeros,
}

const MUTANTS: [Mutant; 9] = [
    Mutant::LostStep,
    Mutant::LostFirstGroup,
    Mutant::LostLastGroup,
    Mutant::StaleTile,
    Mutant::SwappedPairs,
    Mutant::SwappedPair,
    Mutant::DroppedZeroPoint,
    Mutant::Saturating,
    Mutant::Zeros,
];

impl Mutant {
    /// Whether products of such numbers can have it.
    fn concerns(self, numbers: Numbers) -> bool {
        match self {
            Mutant::DroppedZeroPoint => numbers != Numbers::Bf16,
            Mutant::Saturating => matches!(numbers, Numbers::Bytes | Numbers::Requantised),
            _ => true,
        }
    }

    /// The plain nest with this fault.
    fn plant(self, numbers: Numbers, workload: &Workload, depth: i64) -> Nest {
        let mut nest = Nest::naive(workload);
        let dtypes: Vec<DType> = workload.tensors.iter().map(|tensor| tensor.dtype).collect();
        let output = workload.ids().find(|(_, tensor)| tensor.role == Role::Output).unwrap().0;
        each_write(&mut nest.body, &mut |statement| match statement {
            Stmt::Accumulate { buffer, value, .. } => {
                let zero = zero(dtypes[buffer.0 as usize]);
                *value = match self {
                    Mutant::Zeros if *buffer == output => zero,
                    _ => self.in_sum(numbers, value.clone(), zero, depth),
                };
            }
            Stmt::Store { buffer, value, .. } if *buffer == output && self == Mutant::Zeros => {
                *value = zero(dtypes[output.0 as usize]);
            }
            Stmt::Store { value, .. } if self == Mutant::DroppedZeroPoint => *value = without_zero(value, &dtypes),
            _ => {}
        });
        nest
    }

    /// What is added up instead of `value`.
    fn in_sum(self, numbers: Numbers, value: Expr, zero: Expr, depth: i64) -> Expr {
        let step = reduced(&value);
        let kept = |low, high| Expr::guard(vec![within(&step, low, high)], value.clone(), zero.clone());
        let group = numbers.group();
        let pair = step.clone().floor_div(2).times(2);
        let swapped = || reading(&value, pair.clone().plus(&step.clone().plus_constant(1).modulo(2)));
        match self {
            Mutant::LostStep => kept(1, depth),
            Mutant::LostFirstGroup => kept(group, depth),
            Mutant::LostLastGroup => kept(0, depth - group),
            Mutant::StaleTile => reading(&value, step.clone().modulo(depth - TILE)),
            Mutant::SwappedPairs => swapped(),
            Mutant::SwappedPair => Expr::guard(vec![within(&step, 0, 2)], swapped(), value.clone()),
            Mutant::Saturating => {
                let at = |position: Index| value.substitute(&|var| (Index::var(var) == step).then(|| position.clone()));
                let both = Expr::binary(Binary::Add, at(pair.clone()), at(pair.clone().plus_constant(1)));
                let bound = |value: i64| Expr::Cast(DType::I32, Box::new(Expr::integer(value)));
                let most = Expr::binary(Binary::Minimum, both, bound(i64::from(i16::MAX)));
                let sum = Expr::binary(Binary::Maximum, most, bound(i64::from(i16::MIN)));
                Expr::guard(vec![within(&step.clone().modulo(2), 0, 1)], sum, zero)
            }
            Mutant::DroppedZeroPoint if numbers == Numbers::FourBits => {
                value.map_loads(&mut |tensor, _| (tensor == TensorId(2)).then(|| Expr::float(0.0)))
            }
            _ => value,
        }
    }
}

/// A value with the activations of another step.
fn reading(value: &Expr, step: Index) -> Expr {
    value.map_loads(&mut |tensor, indices| {
        (tensor == TensorId(0)).then(|| Expr::load(tensor, vec![indices[0].clone(), step.clone()]))
    })
}

fn without_zero(value: &Expr, dtypes: &[DType]) -> Expr {
    value.map_loads(&mut |tensor, _| (tensor == TensorId(2)).then(|| zero(dtypes[2])))
}

fn zero(dtype: DType) -> Expr {
    Expr::Cast(dtype, Box::new(Expr::float(0.0)))
}

#[test]
fn every_mutant_of_short_numbers_is_refused_at_every_depth() {
    codegen::set_threads(1);
    let cases: Vec<(Numbers, i64)> =
        NUMBERS.into_iter().flat_map(|numbers| DEPTHS.map(|depth| (numbers, depth))).collect();
    let refused: Vec<usize> = cases.into_par_iter().map(|(numbers, depth)| check(numbers, depth)).collect();
    let planted = NUMBERS.map(|numbers| MUTANTS.iter().filter(|mutant| mutant.concerns(numbers)).count());
    assert_eq!(refused.iter().sum::<usize>(), DEPTHS.len() * planted.iter().sum::<usize>());
    writeln!(std::io::stdout(), "refused: {} of as many mutants", refused.iter().sum::<usize>()).unwrap();
}

/// How many mutants were refused: all, or it panics.
fn check(numbers: Numbers, depth: i64) -> usize {
    let workload = numbers.workload(depth);
    let task = Task { workload, target: host() };
    let expected = OracleCache::default().expected(&task.workload, 1).unwrap();
    let mut bench = Workbench::new(task.clone(), expected).unwrap();
    let (_, untuned) = Space::standard().drive(&task, &mut Untuned);
    let naive = Nest::naive(&task.workload);
    for right in [&untuned.unwrap(), &naive] {
        run(&mut bench, right).unwrap_or_else(|refusal| panic!("{numbers:?} at {depth}: {refusal:?}\n{right}"));
    }
    let mutants = MUTANTS.into_iter().filter(|mutant| mutant.concerns(numbers));
    let refuses = |mutant: Mutant| {
        let planted = mutant.plant(numbers, &task.workload, depth);
        assert_ne!(planted, naive, "{mutant:?} of {numbers:?}");
        match run(&mut bench, &planted) {
            Err(Refusal { cause: Failure::WrongResult, .. }) => {}
            other => panic!("{mutant:?} of {numbers:?} at {depth}: {other:?}\n{planted}"),
        }
    };
    mutants.map(refuses).count()
}
