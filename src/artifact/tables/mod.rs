//! A network as data for the assembler: the tables that the functions of `deploy/` read, and these functions
//! under the network's own name.

mod cpu;
mod extents;
mod gpu;

use std::fmt::Write;

use tilescribe_runtime::{Port, StatePort};

use super::error::ArtifactError;
use crate::codegen::{Launch, Scratch};
use crate::graph::{Callee, Fork, Motion, Reduction, Region, RegionKind, Routine};
use crate::target::Architecture;
use crate::target::gpu::Capability;
use crate::workload::DType;

pub use self::extents::{Choice, Counting, Extent, ExtentTables, PortExtents, Shift, TableBlock};

/// Where an argument of a call is when the network runs. Offsets in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The kernel never touches it.
    Unused,
    Input {
        index: usize,
        offset: u64,
    },
    Output {
        index: usize,
        offset: u64,
    },
    /// From the start of the weights file.
    Weights {
        offset: u64,
    },
    Arena {
        offset: u64,
    },
    /// From the start of a block of the arena, where they move with the extents of a run.
    Block {
        block: usize,
        offset: u64,
    },
    /// A state as a run finds it.
    State {
        index: usize,
        offset: u64,
    },
    /// A state as a run leaves it.
    NextState {
        index: usize,
        offset: u64,
    },
    /// The numbers that a call gives its kernel, from the start of those of all calls.
    Parameters {
        offset: u64,
    },
}

impl Place {
    /// From the start of whatever it is in.
    pub fn offset(mut self) -> u64 {
        self.offset_mut().map_or(0, |offset| *offset)
    }

    /// So many bytes further.
    #[must_use]
    pub fn later(mut self, bytes: u64) -> Place {
        if let Some(offset) = self.offset_mut() {
            *offset += bytes;
        }
        self
    }

    fn offset_mut(&mut self) -> Option<&mut u64> {
        match self {
            Place::Unused => None,
            Place::Input { offset, .. }
            | Place::Output { offset, .. }
            | Place::Weights { offset }
            | Place::Arena { offset }
            | Place::Block { offset, .. }
            | Place::State { offset, .. }
            | Place::NextState { offset, .. }
            | Place::Parameters { offset } => Some(offset),
        }
    }
}

/// An argument of a call: where it is, and how it moves with the iterations around it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Argument {
    pub place: Place,
    /// In bytes.
    pub motion: Motion,
}

/// An intermediate: where it is, and the calls that need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    pub place: Place,
    /// At most, where it moves with the extents of a run.
    pub bytes: u64,
    pub first: usize,
    pub last: usize,
}

/// What a call runs, and where it finds its arguments.
#[derive(Clone, Copy, Debug)]
pub struct TableCall<'a> {
    pub callee: &'a Callee,
    /// How many numbers it gives, whose place is the last argument where there are any.
    pub numbers: usize,
    pub arguments: &'a [Argument],
}

/// Everything that `struct network` of `deploy.h` holds, and the kernels.
#[derive(Clone, Debug)]
pub struct Tables<'a> {
    pub name: &'a str,
    pub weights_id: &'a str,
    pub weights_bytes: u64,
    pub arena_bytes: u64,
    pub inputs: &'a [Port],
    pub outputs: &'a [Port],
    pub states: &'a [StatePort],
    /// Number of tasks.
    pub tasks: usize,
    pub calls: &'a [TableCall<'a>],
    /// Those of the network; by region, where its condition is, if it has one.
    pub regions: &'a [(&'a Region, Option<Argument>)],
    pub forks: &'a [Fork],
    /// `None`: all extents are fixed.
    pub extents: Option<&'a ExtentTables>,
    /// The intermediates.
    pub lives: &'a [Life],
    pub kernels: &'a Kernels,
}

/// Everything that `struct kernels` holds, of `deploy/cpu.c` or of `deploy/cuda.c`.
#[derive(Clone, Debug)]
pub enum Kernels {
    Cpu(CpuKernels),
    /// For GPUs of several generations, newest first.
    Gpu(Vec<Generation>),
}

/// Functions for a CPU.
#[derive(Clone, Debug)]
pub struct CpuKernels {
    /// The most scratch memory that a kernel wants, for the threads that it was compiled for.
    pub workspace_bytes: u64,
    /// By task: what its kernel wants for any number of threads.
    pub scratch: Vec<Scratch>,
    /// LLVM's names, without `+`.
    pub features: Vec<String>,
    /// By task.
    pub symbols: Vec<String>,
}

/// PTX for the GPUs of one generation.
#[derive(Clone, Debug)]
pub struct Generation {
    pub capability: Capability,
    /// The most that a kernel wants.
    pub workspace_bytes: u64,
    /// By task: the file that holds the PTX where the tables are assembled, and what to start.
    pub modules: Vec<(String, Vec<Launch>)>,
}

/// The functions of every library, without the network's name in front.
const FUNCTIONS: [&str; 7] = ["create", "run", "destroy", "inputs", "outputs", "missing_feature", "error_string"];
/// Those of a library for CPUs alone.
const PROCESSOR_FUNCTIONS: [&str; 10] = [
    "profile",
    "trace",
    "share_weights",
    "poison",
    "time_cold",
    "take_turns",
    "share_threads",
    "own_threads",
    "end_threads",
    "pin_threads",
];
/// Those of a library for GPUs alone.
const DEVICE_FUNCTIONS: [&str; 4] = ["device_input", "device_output", "launch", "wait"];

/// Those of a library for a network whose extents are not all fixed.
const EXTENT_FUNCTIONS: [&str; 5] = ["set_extents", "output_shape", "message", "input_least", "output_least"];

/// Those of a library for a network that keeps states.
const STATE_FUNCTIONS: [&str; 6] = ["state", "reset", "rewind", "state_shape", "get_state", "set_state"];

impl Tables<'_> {
    /// The functions of the library, without the network's name in front.
    pub fn functions(&self) -> impl Iterator<Item = &'static str> {
        let device: &[&str] = match self.kernels {
            Kernels::Cpu(_) => &PROCESSOR_FUNCTIONS,
            Kernels::Gpu(_) => &DEVICE_FUNCTIONS,
        };
        let extents: &[&str] = if self.extents.is_some() { &EXTENT_FUNCTIONS } else { &[] };
        let states: &[&str] = if self.states.is_empty() { &[] } else { &STATE_FUNCTIONS };
        FUNCTIONS.into_iter().chain([device, extents, states].into_iter().flatten().copied())
    }
}

/// GNU assembly for the host's architecture; the same for all of them but for the jump.
///
/// # Errors
/// [`ArtifactError::Internal`] where an extent depends on anything but symbols.
pub fn assembly(tables: &Tables<'_>, architecture: Architecture) -> Result<String, ArtifactError> {
    let mut text = String::from("\t.text\n");
    let jump = architecture.jump();
    for function in tables.functions() {
        let name = tables.name;
        put(&mut text, format_args!("\t.globl {name}_{function}\n\t.type {name}_{function}, %function"));
        put(&mut text, format_args!("{name}_{function}:\n\t{jump} tilescribe_{function}"));
        put(&mut text, format_args!("\t.size {name}_{function}, .-{name}_{function}"));
    }
    text.push_str("\t.section .rodata\n");
    strings(&mut text, "input", tables.inputs.iter().map(|port| port.name.as_str()));
    strings(&mut text, "output", tables.outputs.iter().map(|port| port.name.as_str()));
    strings(&mut text, "state", tables.states.iter().map(|state| state.input.name.as_str()));
    strings(&mut text, "id", std::iter::once(tables.weights_id));
    text.push_str("\t.balign 8\n");
    let states = tables.states.iter().map(|state| &state.input);
    shapes(&mut text, "input", tables.inputs);
    shapes(&mut text, "output", tables.outputs);
    shapes(&mut text, "state", states);
    calls(&mut text, tables);
    text.push_str("\t.section .data.rel.ro, \"aw\"\n\t.balign 8\n");
    for (what, ports) in [("input", tables.inputs), ("output", tables.outputs)] {
        put(&mut text, format_args!(".L{what}s:"));
        ports.iter().enumerate().for_each(|(number, port)| tensor(&mut text, what, number, port));
    }
    states_of(&mut text, tables.states);
    lives(&mut text, tables.lives);
    forks(&mut text, tables.forks);
    let extents = tables.extents.map(|tables| extents::extents(&mut text, tables)).transpose()?;
    network(&mut text, tables, extents);
    match tables.kernels {
        Kernels::Cpu(kernels) => cpu::kernels(&mut text, kernels),
        Kernels::Gpu(generations) => gpu::kernels(&mut text, generations),
    }
    text.push_str("\t.section .note.GNU-stack, \"\", %progbits\n");
    Ok(text)
}

fn shapes<'p>(text: &mut String, what: &str, ports: impl IntoIterator<Item = &'p Port>) {
    for (number, port) in ports.into_iter().enumerate() {
        put(text, format_args!(".L{what}_shape{number}:"));
        port.shape.iter().for_each(|extent| put(text, format_args!("\t.quad {extent}")));
    }
}

/// `struct tensor`.
fn tensor(text: &mut String, what: &str, number: usize, port: &Port) {
    let (bytes, rank) = (port.bytes().unwrap_or(0), port.shape.len());
    let dtype = port.dtype().map_or(0, DType::number);
    put(text, format_args!("\t.quad .L{what}{number}, .L{what}_shape{number}, {bytes}\n\t.long {rank}, {dtype}"));
}

/// `struct state`.
fn states_of(text: &mut String, states: &[StatePort]) {
    put(text, format_args!(".Lstates:"));
    for (number, StatePort { input, grows, .. }) in states.iter().enumerate() {
        let size = input.dtype().map_or(0, |dtype| dtype.bytes());
        let (axis, capacity) = grows.as_ref().map_or((-1, 0), |grows| (grows.axis as i64, grows.capacity));
        tensor(text, "state", number, input);
        put(text, format_args!("\t.quad {size}, {axis}, {capacity}"));
    }
}

/// `struct call`, `struct argument`, `struct region` and `struct routine`.
fn calls(text: &mut String, tables: &Tables<'_>) {
    let (mut first, mut routines) = (0, Vec::new());
    put(text, format_args!(".Lcalls:"));
    for TableCall { callee, numbers, arguments } in tables.calls {
        let (task, routine) = match callee {
            Callee::Task(task) => (*task, 0),
            Callee::Library(routine) => {
                routines.push((routine, *numbers));
                (0, routines.len())
            }
        };
        let moving = usize::from(arguments.iter().any(|argument| argument.motion.step != 0));
        put(text, format_args!("\t.quad {task}, {}, {first}, {moving}, {routine}", arguments.len()));
        first += arguments.len();
    }
    put(text, format_args!(".Larguments:"));
    let conditions = tables.regions.iter().filter_map(|(_, condition)| condition.as_ref());
    for Argument { place, motion } in tables.calls.iter().flat_map(|call| call.arguments).chain(conditions) {
        let (space, index, offset) = match *place {
            Place::Unused => (0, 0, 0),
            Place::Input { index, offset } => (1, index, offset),
            Place::Output { index, offset } => (2, index, offset),
            Place::Weights { offset } => (3, 0, offset),
            Place::Arena { offset } => (4, 0, offset),
            Place::Block { block, offset } => (5, block, offset),
            Place::Parameters { offset } => (6, 0, offset),
            Place::State { index, offset } => (7, index, offset),
            Place::NextState { index, offset } => (8, index, offset),
        };
        let Motion { step, period, phase } = motion;
        put(text, format_args!("\t.long {space}, {index}\n\t.quad {offset}, {step}, {period}, {phase}"));
    }
    put(text, format_args!(".Lregions:"));
    for (Region { calls, kind }, condition) in tables.regions {
        let (count, wanted, is_choice) = match kind {
            RegionKind::Repeat { count, .. } => (*count, false, false),
            RegionKind::Nearest { .. } => (0, false, true),
            RegionKind::If { wanted, .. } => (0, *wanted, false),
        };
        let ends = matches!(kind, RegionKind::Repeat { going: Some(_), .. });
        let (start, end) = (calls.start, calls.end);
        let [wanted, is_choice, ends] = [wanted, is_choice, ends].map(i32::from);
        put(text, format_args!("\t.quad {start}, {end}, {count}, {first}, {wanted}, {is_choice}, {ends}"));
        first += usize::from(condition.is_some());
    }
    put(text, format_args!(".Lroutines:"));
    for (routine, sizes) in routines {
        let (kind, parameters) = routine_numbers(routine);
        let parameters: Vec<String> = parameters.iter().map(i64::to_string).collect();
        put(text, format_args!("\t.quad {kind}, {sizes}, {}", parameters.join(", ")));
    }
}

/// As `struct routine` has them: which one, then its parameters in the order of its declaration.
fn routine_numbers(routine: &Routine) -> (u32, [i64; 6]) {
    match *routine {
        Routine::TopK { outer, extent, inner, count, largest, dtype } => {
            (0, [outer, extent, inner, count, i64::from(largest), i64::from(dtype.number())])
        }
        Routine::Scatter { blocks, block, updates, reduction, dtype } => {
            let reduction = match reduction {
                Reduction::Replace => 0,
                Reduction::Add => 1,
                Reduction::Multiply => 2,
                Reduction::Maximum => 3,
                Reduction::Minimum => 4,
            };
            (1, [blocks, block, updates, reduction, i64::from(dtype.number()), dtype.bytes() as i64])
        }
        Routine::Append { outer, first, rows, capacity, block, dtype } => {
            (2, [outer, first, rows, capacity, block, dtype.bytes() as i64])
        }
        Routine::Copy { elements, dtype } => (6, [elements, dtype.bytes() as i64, 0, 0, 0, 0]),
        Routine::Read { most } => (7, [most, 0, 0, 0, 0, 0]),
        Routine::NonZero { elements, dtype } => (3, [elements, i64::from(dtype.number()), 0, 0, 0, 0]),
        Routine::Unique { rows, length, sorted, dtype } => {
            (4, [rows, length, i64::from(sorted), i64::from(dtype.number()), 0, 0])
        }
        Routine::NonMaxSuppression { batch, classes, boxes, most, centred } => {
            (5, [batch, classes, boxes, most, i64::from(centred), 0])
        }
    }
}

/// `struct life`.
fn lives(text: &mut String, lives: &[Life]) {
    put(text, format_args!(".Llives:"));
    for Life { place, bytes, first, last } in lives {
        let block = if let Place::Block { block, .. } = place { block + 1 } else { 0 };
        put(text, format_args!("\t.quad {block}, {}, {bytes}, {first}, {last}", place.offset()));
    }
}

/// `struct fork` and `struct range`.
fn forks(text: &mut String, forks: &[Fork]) {
    put(text, format_args!(".Lforks:"));
    let mut first = 0;
    for Fork { strands } in forks {
        put(text, format_args!("\t.quad {first}, {}", strands.len()));
        first += strands.len();
    }
    put(text, format_args!(".Lstrands:"));
    for strand in forks.iter().flat_map(|fork| &fork.strands) {
        put(text, format_args!("\t.quad {}, {}", strand.start, strand.end));
    }
}

/// `struct network`; `extents` is the label of the tables about those that are not fixed.
fn network(text: &mut String, tables: &Tables<'_>, extents: Option<&str>) {
    let conditions = tables.regions.iter().filter(|(_, condition)| condition.is_some()).count();
    let arguments: usize = conditions + tables.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
    let numbers = [
        tables.weights_bytes,
        tables.arena_bytes,
        tables.inputs.len() as u64,
        tables.outputs.len() as u64,
        tables.calls.len() as u64,
        arguments as u64,
        tables.tasks as u64,
        tables.regions.len() as u64,
        tables.states.len() as u64,
        tables.lives.len() as u64,
        tables.forks.len() as u64,
    ];
    object(text, "tilescribe_network");
    put(text, format_args!("\t.quad .Lid0"));
    numbers.iter().for_each(|number| put(text, format_args!("\t.quad {number}")));
    put(text, format_args!("\t.quad .Linputs, .Loutputs, .Lcalls, .Larguments, .Lregions, .Lroutines"));
    put(text, format_args!("\t.quad {}, .Lstates, .Llives, .Lforks, .Lstrands", extents.unwrap_or("0")));
}

/// Starts a structure that the functions read.
fn object(text: &mut String, name: &str) {
    put(text, format_args!("\t.globl {name}\n\t.hidden {name}\n\t.type {name}, %object\n{name}:"));
}

fn strings<'s>(text: &mut String, label: &str, strings: impl Iterator<Item = &'s str>) {
    for (number, string) in strings.enumerate() {
        put(text, format_args!(".L{label}{number}:"));
        // bytes as numbers: nothing in a name can mean anything to the assembler; a zero would end the C
        // string
        let bytes: Vec<String> = string.bytes().filter(|byte| *byte != 0).chain([0]).map(|b| b.to_string()).collect();
        put(text, format_args!("\t.byte {}", bytes.join(",")));
    }
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    // writing into a string cannot fail
    let _ = writeln!(text, "{line}");
}
