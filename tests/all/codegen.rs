//! Compiled nests against interpreted ones, elementary functions against f64, and the thread pool.

mod dots;
mod few_bits;
mod integers;
mod interleave;
mod math;
pub mod nests;
mod pool;
mod programs;
pub mod quality;
mod rows;
pub mod tiles;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::codegen::{Kernel, host};
use tilescribe::nest::{Nest, Scope, interpret};
use tilescribe::target::Cpu;
use tilescribe::workload::{Binary, DType, Expr, Index, Role, TensorId, Var};

fn target() -> Cpu {
    host().expect("this machine is one that kernels run on")
}

/// A zero, as nests spell it.
fn zero(dtype: DType) -> String {
    match dtype {
        DType::F32 => "0.0".into(),
        _ if dtype.is_float() => format!("{}(0.0)", dtype.name()),
        _ => format!("{}(0)", dtype.name()),
    }
}

fn v(number: u32) -> Index {
    Index::var(Var(number))
}

fn load(tensor: TensorId, indices: &[&Index]) -> Expr {
    Expr::load(tensor, indices.iter().map(|i| (*i).clone()).collect())
}

fn binary(op: Binary, x: Expr, y: Expr) -> Expr {
    Expr::binary(op, x, y)
}

/// Memory for one argument: aligned to elements only, with marked bytes around it that must stay.
struct Guarded {
    storage: Vec<u64>,
    bytes: usize,
    shift: usize,
}

const MARK: u8 = 0xa5;
const MARGIN: usize = 256;

impl Guarded {
    /// `alignment`: of elements, in bytes; the buffer is aligned to no more than it (up to 8).
    fn new(content: &[u8], alignment: usize) -> Guarded {
        let shift = MARGIN + alignment;
        let storage = vec![u64::from_ne_bytes([MARK; 8]); (content.len() + shift + MARGIN).div_ceil(8)];
        let mut guarded = Guarded { storage, bytes: content.len(), shift };
        // SAFETY: the storage is larger than shift + content
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), guarded.pointer(), content.len()) };
        guarded
    }

    fn pointer(&mut self) -> *mut u8 {
        // SAFETY: inside of the storage
        unsafe { self.storage.as_mut_ptr().cast::<u8>().add(self.shift) }
    }

    fn content(&self) -> Vec<u8> {
        let all: Vec<u8> = self.storage.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert!(all[..self.shift].iter().all(|b| *b == MARK), "bytes before a buffer were written");
        assert!(all[self.shift + self.bytes..].iter().all(|b| *b == MARK), "bytes behind a buffer were written");
        all[self.shift..self.shift + self.bytes].to_vec()
    }
}

/// Compiles and runs a nest, setup and body; arguments as [`interpret`] takes them. Outputs and packed
/// buffers are overwritten.
fn run_compiled(nest: &Nest, target: &Cpu, arguments: &mut [Vec<u8>]) {
    let kernel = Kernel::load(nest, target).unwrap_or_else(|error| panic!("{error}\n{nest}"));
    let ids = nest.arguments();
    let mut guarded: Vec<Guarded> =
        ids.iter().zip(&*arguments).map(|(id, bytes)| Guarded::new(bytes, nest.buffer(*id).dtype.bytes())).collect();
    let pointers: Vec<*mut u8> = guarded.iter_mut().map(Guarded::pointer).collect();
    let mut workspace: Vec<[u64; 8]> = vec![[u64::from_ne_bytes([MARK; 8]); 8]; kernel.workspace_bytes() / 64 + 3];
    let start = workspace.as_mut_ptr().cast::<u8>();
    let start = start.wrapping_add(start.align_offset(64));
    // SAFETY: buffers are as large as the nest says, the workspace has a line to spare
    unsafe {
        kernel.setup(&pointers, start);
        kernel.run(&pointers, start);
    }
    let flat: Vec<u8> = workspace.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect();
    let end = start.addr() - workspace.as_ptr().addr() + kernel.workspace_bytes();
    assert!(flat[end..].iter().all(|b| *b == MARK), "bytes behind the workspace were written");
    for (argument, after) in arguments.iter_mut().zip(&guarded) {
        let after = after.content();
        argument.copy_from_slice(&after);
    }
}

/// Random numbers for inputs and constants, NaN (or a pattern) elsewhere. Integers are small: what they index
/// is clamped anyway.
fn arguments(nest: &Nest, seed: u64) -> Vec<Vec<u8>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let ids = nest.arguments();
    ids.iter()
        .map(|id| {
            let buffer = nest.buffer(*id);
            let given = matches!(buffer.scope, Scope::Argument(Role::Input | Role::Constant));
            let count = buffer.elements() as usize;
            match buffer.dtype {
                _ if !given => vec![0xff; buffer.bytes()],
                DType::F32 => (0..count).flat_map(|_| rng.random_range(-1.0f32..1.0).to_ne_bytes()).collect(),
                DType::I64 => (0..count).flat_map(|_| rng.random_range(0i64..4).to_ne_bytes()).collect(),
                DType::I32 => (0..count).flat_map(|_| rng.random_range(-9i32..9).to_ne_bytes()).collect(),
                DType::Bool => (0..count).map(|_| u8::from(rng.random::<bool>())).collect(),
                _ => (0..count).map(|_| rng.random_range(0u8..100)).collect(),
            }
        })
        .collect()
}

/// Compiled and interpreted, the nest gives the same: integers exactly, floats within `tolerance` of the
/// larger of 1 and the value.
fn check(name: &str, nest: &Nest, target: &Cpu, tolerance: f32) {
    let mut expected = arguments(nest, 7);
    let mut actual = expected.clone();
    interpret(nest, &mut expected).unwrap_or_else(|fault| panic!("{name}: {fault}\n{nest}"));
    run_compiled(nest, target, &mut actual);
    for (id, (expected, actual)) in nest.arguments().into_iter().zip(expected.iter().zip(&actual)) {
        let buffer = nest.buffer(id);
        if buffer.dtype != DType::F32 {
            assert_eq!(expected, actual, "{name}: {}\n{nest}", buffer.name);
            continue;
        }
        for (at, (e, a)) in floats(expected).into_iter().zip(floats(actual)).enumerate() {
            let close = e.to_bits() == a.to_bits() || (e - a).abs() <= tolerance * e.abs().max(1.0);
            assert!(close, "{name}: {}[{at}] is {a}, not {e}\n{nest}", buffer.name);
        }
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_ne_bytes([c[0], c[1], c[2], c[3]])).collect()
}
