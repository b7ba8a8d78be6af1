//! What a kernel looks like in machine code: read from LLVM's assembly, which says in comments which loop a
//! block belongs to and which instructions spill and reload registers.
//!
//! ```text
//! .LBB1_5:                                #   Parent Loop BB1_2 Depth=1
//!                                         # =>  This Inner Loop Header: Depth=2
//!         vbroadcastss    -4(%r12), %zmm22
//!         vmovups         %zmm22, 64(%rsp)        # 64-byte Spill
//! # %bb.6:                                #   in Loop: Header=BB1_2 Depth=1
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::codegen::SYMBOL;
use crate::target::Architecture;

/// Instructions of a piece of code, by kind. One that loads an operand and computes counts as both.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct CodeFigures {
    pub instructions: u32,
    /// Multiply-adds on vectors.
    pub fmas: u32,
    /// Multiply-adds on single elements.
    pub scalar_fmas: u32,
    /// What else computes with vector registers: neither moves nor shuffles.
    pub other_vector: u32,
    /// Broadcasts and reloads of spilled registers among them.
    pub loads: u32,
    /// Loads that fill all lanes with one element.
    pub broadcasts: u32,
    /// Spills among them.
    pub stores: u32,
    /// Moves between lanes or from one register into all lanes of another; what is loaded on the way counts
    /// as a load too.
    pub shuffles: u32,
    /// Gathers and scatters, which are neither loads nor stores here.
    pub gathers: u32,
    /// Registers of any kind stored to the stack, to be reloaded later.
    pub spills: u32,
    pub reloads: u32,
    /// Different vector registers that are named.
    pub vector_registers: u32,
}

/// Figures of a kernel's body, without what packs its constants.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct KernelFigures {
    pub whole: CodeFigures,
    /// Of the innermost loop with the most multiply-adds; with the most other vector operations where there
    /// are none. Without any loop, of the function that has them.
    pub hottest: CodeFigures,
    /// The function that it is in.
    pub function: String,
    pub is_loop: bool,
}

/// Reads what [`crate::codegen::assembly`] wrote for this architecture.
pub fn kernel_figures(assembly: &str, architecture: Architecture) -> KernelFigures {
    let mut reader = Reader { syntax: Syntax(architecture), blocks: Vec::new(), function: None };
    assembly.lines().for_each(|line| reader.line(line));
    let mut whole = Counter::default();
    let mut functions: BTreeMap<&str, Counter> = BTreeMap::new();
    let mut loops: BTreeMap<(&str, &str), Counter> = BTreeMap::new();
    let is_innermost = |header: &str| reader.blocks.iter().any(|block| block.is_innermost && block.header == header);
    for block in &reader.blocks {
        whole.add(&block.counter);
        functions.entry(&block.function).or_default().add(&block.counter);
        if is_innermost(&block.header) {
            loops.entry((&block.function, &block.header)).or_default().add(&block.counter);
        }
    }
    let hottest_loop = loops.into_iter().map(|((function, _), counter)| (function, counter)).max_by_key(heat);
    let is_loop = hottest_loop.is_some();
    let (function, hottest) = hottest_loop.or_else(|| functions.into_iter().max_by_key(heat)).unwrap_or_default();
    KernelFigures { whole: whole.figures(), hottest: hottest.figures(), function: function.to_string(), is_loop }
}

fn heat((_, counter): &(&str, Counter)) -> (u32, u32, u32) {
    let figures = &counter.figures;
    (figures.fmas, figures.other_vector.saturating_add(figures.scalar_fmas), figures.instructions)
}

/// Instructions without a label between them.
#[derive(Default)]
struct Block {
    function: String,
    /// The label of the loop that it belongs to, innermost; empty outside of loops.
    header: String,
    /// It begins a loop without loops inside.
    is_innermost: bool,
    counter: Counter,
}

#[derive(Default)]
struct Counter {
    figures: CodeFigures,
    /// By number.
    vector_registers: u64,
}

impl Counter {
    fn add(&mut self, other: &Counter) {
        let (sum, part) = (&mut self.figures, &other.figures);
        sum.instructions += part.instructions;
        sum.fmas += part.fmas;
        sum.scalar_fmas += part.scalar_fmas;
        sum.other_vector += part.other_vector;
        sum.loads += part.loads;
        sum.broadcasts += part.broadcasts;
        sum.stores += part.stores;
        sum.shuffles += part.shuffles;
        sum.gathers += part.gathers;
        sum.spills += part.spills;
        sum.reloads += part.reloads;
        self.vector_registers |= other.vector_registers;
    }

    fn figures(&self) -> CodeFigures {
        CodeFigures { vector_registers: self.vector_registers.count_ones(), ..self.figures }
    }
}

struct Reader {
    syntax: Syntax,
    blocks: Vec<Block>,
    /// The one that is read, if it belongs to the body.
    function: Option<String>,
}

impl Reader {
    fn line(&mut self, line: &str) {
        let (code, comment) = line.split_once(self.syntax.0.comment()).unwrap_or((line, ""));
        let (code, comment) = (code.trim(), comment.trim());
        if let Some(label) = code.strip_suffix(':') {
            match label.strip_prefix(".L") {
                Some(local) => self.block(local),
                None => self.begin(label),
            }
        } else if code.is_empty() && comment.starts_with("%bb.") {
            self.block("");
        }
        let Some(block) = self.blocks.last_mut().filter(|_| self.function.is_some()) else { return };
        if code.is_empty() || code.ends_with(':') {
            block.annotate(comment);
        } else if !code.starts_with('.') {
            self.syntax.count(code, comment, &mut block.counter);
        }
    }

    fn begin(&mut self, function: &str) {
        let is_body = function.starts_with(SYMBOL) && !function.starts_with(&format!("{SYMBOL}_setup"));
        self.function = is_body.then(|| function.to_string());
        self.block("");
    }

    fn block(&mut self, label: &str) {
        // code that falls through from a block without a loop's comment is in no loop
        let Some(function) = self.function.clone() else { return };
        self.blocks.push(Block { function, header: label.to_string(), ..Block::default() });
    }
}

impl Block {
    /// Until a comment says otherwise, a block is known by its own label.
    fn annotate(&mut self, comment: &str) {
        if let Some((_, rest)) = comment.split_once("in Loop: Header=") {
            self.header = rest.split_whitespace().next().unwrap_or_default().to_string();
        }
        self.is_innermost |= comment.contains("This Inner Loop Header");
    }
}

#[derive(Clone, Copy)]
struct Syntax(Architecture);

const FMAS: [&str; 9] = ["tdp", "vfmadd", "vfmsub", "vfnmadd", "vfnmsub", "fmla", "fmls", "fmadd", "fmsub"];

const MOVES_X86: [&str; 5] = ["mov", "vmov", "kmov", "vmaskmov", "vpmaskmov"];

/// Beginnings of what moves elements between lanes.
const SHUFFLES_X86: [&str; 22] = [
    "broadcast",
    "pbroadcast",
    "perm",
    "pperm",
    "shuf",
    "pshuf",
    "unpck",
    "punpck",
    "insert",
    "pinsr",
    "extract",
    "pextr",
    "align",
    "palign",
    "movddup",
    "movshdup",
    "movsldup",
    "movlhps",
    "movhlps",
    "compress",
    "expand",
    "pcompress",
];
const SHUFFLES_ARM: [&str; 10] = ["dup", "ext", "zip", "uzp", "trn", "tbl", "rev", "ins", "splice", "compact"];

impl Syntax {
    fn count(self, code: &str, comment: &str, counter: &mut Counter) {
        let (mnemonic, operands) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
        let registers = self.vector_registers(operands);
        counter.vector_registers |= registers;
        let figures = &mut counter.figures;
        figures.instructions += 1;
        figures.spills += u32::from(comment.contains("Spill"));
        figures.reloads += u32::from(comment.contains("Reload"));
        let is = |names: &[&str]| names.iter().any(|name| mnemonic.starts_with(name));
        let memory = match self.0 {
            Architecture::X86_64 => x86_memory(mnemonic, operands),
            Architecture::Aarch64 => arm_memory(mnemonic, operands),
        };
        figures.loads += u32::from(memory.loads);
        figures.stores += u32::from(memory.stores);
        figures.gathers += u32::from(memory.gathers);
        figures.broadcasts += u32::from(memory.broadcasts);
        let shuffles = match self.0 {
            Architecture::X86_64 => {
                let name = mnemonic.strip_prefix('v').unwrap_or(mnemonic);
                SHUFFLES_X86.iter().any(|known| name.starts_with(known)) && !memory.broadcasts
            }
            Architecture::Aarch64 => is(&SHUFFLES_ARM) && registers != 0,
        };
        let is_scalar = match self.0 {
            Architecture::X86_64 => mnemonic.ends_with("ss") || mnemonic.ends_with("sd"),
            Architecture::Aarch64 => is(&["fmadd", "fmsub"]),
        };
        let moves = memory.gathers
            || match self.0 {
                Architecture::X86_64 => is(&MOVES_X86),
                Architecture::Aarch64 => is(&["mov", "fmov", "ld", "st"]),
            };
        if is(&FMAS) {
            *(if is_scalar { &mut figures.scalar_fmas } else { &mut figures.fmas }) += 1;
        } else if shuffles {
            figures.shuffles += 1;
        } else if registers != 0 && !moves && !memory.broadcasts {
            figures.other_vector += 1;
        }
    }

    /// A bit for each vector register that is named.
    fn vector_registers(self, operands: &str) -> u64 {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        operands.split(|c| !is_word(c)).fold(0, |found, word| {
            let number = match self.0 {
                Architecture::X86_64 => ["xmm", "ymm", "zmm"].iter().find_map(|kind| word.strip_prefix(kind)),
                Architecture::Aarch64 => word.strip_prefix(['v', 'z', 'q', 'd', 's', 'h', 'b']),
            };
            let number = number.and_then(|digits| digits.parse::<u32>().ok()).filter(|number| *number < 64);
            number.map_or(found, |number| found | 1 << number)
        })
    }
}

/// How an instruction uses memory.
#[derive(Default)]
struct Memory {
    loads: bool,
    stores: bool,
    gathers: bool,
    broadcasts: bool,
}

/// AT&T's order: sources first, the destination last.
fn x86_memory(mnemonic: &str, operands: &str) -> Memory {
    let is = |names: &[&str]| names.iter().any(|name| mnemonic.starts_with(name));
    let Some(at) = operands.find('(').filter(|_| !is(&["lea", "prefetch", "nop", "call", "jmp"])) else {
        return Memory::default();
    };
    if is(&["vgather", "vpgather", "vscatter", "vpscatter"]) {
        return Memory { gathers: true, ..Memory::default() };
    }
    let behind = operands[at..].split_once(')').map_or("", |(_, behind)| behind);
    let is_last = !behind.contains(',');
    let single = is_last && !operands[..at].contains(',');
    let changes = match single {
        true => is(&["inc", "dec", "neg", "not", "set"]),
        false => is_last && !is(&["cmp", "test", "bt"]),
    };
    let replaces =
        is(&MOVES_X86) || is(&["vpmov", "set", "vextract", "vpextr", "vcompress", "vpcompress", "vcvtps2ph"]);
    let broadcasts = is(&["vbroadcast", "vpbroadcast"]) || behind.contains("{1to");
    Memory { loads: !(changes && replaces), stores: changes, gathers: false, broadcasts }
}

fn arm_memory(mnemonic: &str, operands: &str) -> Memory {
    let Some((_, address)) = operands.split_once('[') else { return Memory::default() };
    let (loads, stores) = (mnemonic.starts_with("ld"), mnemonic.starts_with("st"));
    let by_vector = address.split([',', ' ', ']']).any(|word| word.starts_with('z'));
    if (loads || stores) && by_vector {
        return Memory { gathers: true, ..Memory::default() };
    }
    Memory { loads, stores, gathers: false, broadcasts: mnemonic.starts_with("ld1r") }
}
