//! PTX as text to instructions: as much of the language as LLVM writes for our kernels (NVIDIA, Parallel
//! Thread Execution ISA 8.8).

use std::collections::HashMap;

/// A kernel.
#[derive(Debug)]
pub struct Function {
    pub name: String,
    /// Of each parameter, an address: what it is aligned to, in bytes.
    pub parameters: Vec<u64>,
    pub code: Vec<Instruction>,
    /// Number of registers, of whatever type.
    pub registers: usize,
    /// Memory of each thread of its own.
    pub local_bytes: usize,
    pub most_threads: u32,
}

#[derive(Debug)]
pub struct Instruction {
    /// Executed only where this predicate is so.
    pub guard: Option<(usize, bool)>,
    /// As it is written, between the points.
    pub op: Vec<String>,
    pub operands: Vec<Operand>,
    /// For messages.
    pub text: String,
}

#[derive(Clone, Debug)]
pub enum Operand {
    Register(usize),
    /// What nobody wants to know.
    Nowhere,
    /// A number, or the bits of a float.
    Immediate(u64),
    /// A register, if any, and bytes behind it.
    Address(Option<usize>, i64),
    Parameter(usize),
    Thread,
    Block,
    Lane,
    Vector(Vec<Operand>),
    /// The number of an instruction.
    Label(usize),
}

/// Where shared memory and each thread's own begin.
pub const SHARED: u64 = 1 << 32;
pub const LOCAL: u64 = 1 << 36;

/// All kernels of a module.
pub fn parse(text: &str) -> Result<Vec<Function>, String> {
    let lines: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or("").trim()).collect();
    let mut functions = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        if let Some((_, name)) = lines[at].split_once(".entry ") {
            let end = (at..lines.len()).find(|end| lines[*end] == "}").ok_or("a function without an end")?;
            functions.push(function(name.trim_end_matches(['(', ')']), &lines[at + 1..end])?);
            at = end;
        }
        at += 1;
    }
    Ok(functions)
}

fn function(name: &str, lines: &[&str]) -> Result<Function, String> {
    let number_after = |line: &str, word: &str| -> Option<u64> {
        let rest = line.split_once(word)?.1.trim_start();
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let parameters = lines.iter().filter(|line| line.starts_with(".param"));
    let parameters: Vec<u64> = parameters.filter_map(|line| number_after(line, ".align ")).collect();
    let most_threads = lines.iter().find_map(|line| number_after(line, ".maxntid "));
    let local_bytes = lines.iter().find(|line| line.starts_with(".local")).and_then(|line| number_after(line, "["));
    let body = lines.iter().position(|line| *line == "{").ok_or("a function without a body")?;
    let mut statements: Vec<String> = Vec::new();
    let mut labels = HashMap::new();
    let mut begun = String::new();
    for line in &lines[body + 1..] {
        match line.strip_suffix(':') {
            Some(label) => {
                labels.insert(label.to_string(), statements.len());
            }
            None if begun.is_empty() && (line.is_empty() || line.starts_with('.')) => {}
            // a block of its own around one instruction, for what nobody wants to know of its result
            None if line.starts_with("{ .reg") => {
                let inner = line.trim_start_matches('{').trim_end_matches('}').split_inclusive(';').map(str::trim);
                statements.extend(inner.filter(|part| !part.is_empty() && !part.starts_with('.')).map(String::from));
            }
            None => {
                begun = format!("{begun} {line}").trim().to_string();
                if begun.ends_with(';') {
                    statements.push(std::mem::take(&mut begun));
                }
            }
        }
    }
    let mut names = Names { labels, registers: HashMap::new(), function: name };
    let code = statements.iter().map(|line| names.instruction(line)).collect::<Result<_, _>>()?;
    Ok(Function {
        name: name.to_string(),
        parameters,
        code,
        registers: names.registers.len(),
        local_bytes: local_bytes.unwrap_or(0) as usize,
        most_threads: u32::try_from(most_threads.unwrap_or(1024)).map_err(|e| e.to_string())?,
    })
}

struct Names<'a> {
    labels: HashMap<String, usize>,
    registers: HashMap<String, usize>,
    function: &'a str,
}

impl Names<'_> {
    fn instruction(&mut self, line: &str) -> Result<Instruction, String> {
        let text = line.strip_suffix(';').ok_or_else(|| format!("`{line}` has no end"))?;
        let (guard, rest) = match text.strip_prefix('@') {
            None => (None, text),
            Some(guarded) => {
                let (guard, rest) = guarded.split_once(char::is_whitespace).ok_or("a guard of nothing")?;
                let (name, holds) = guard.strip_prefix('!').map_or((guard, true), |name| (name, false));
                (Some((self.register(name), holds)), rest.trim_start())
            }
        };
        let (op, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let operands = split(operands).into_iter().map(|operand| self.operand(operand)).collect::<Result<_, _>>();
        let operands = operands.map_err(|error| format!("`{line}`: {error}"))?;
        Ok(Instruction { guard, op: op.split('.').map(String::from).collect(), operands, text: text.to_string() })
    }

    fn register(&mut self, name: &str) -> usize {
        let next = self.registers.len();
        *self.registers.entry(name.to_string()).or_insert(next)
    }

    fn operand(&mut self, text: &str) -> Result<Operand, String> {
        if let Some(inner) = text.strip_prefix('{') {
            let inner = inner.strip_suffix('}').ok_or("an open brace")?;
            return Ok(Operand::Vector(split(inner).into_iter().map(|o| self.operand(o)).collect::<Result<_, _>>()?));
        }
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or("an open bracket")?;
            let prefix = format!("{}_param_", self.function);
            if let Some(number) = inner.strip_prefix(&prefix) {
                return number.parse().map(Operand::Parameter).map_err(|_| format!("parameter {number}"));
            }
            let (base, offset) = match inner.find(['+', '-']) {
                Some(at) => (&inner[..at], inner[at..].trim_start_matches('+').parse().map_err(|_| inner.to_string())?),
                None => (inner, 0),
            };
            return Ok(match symbol(base) {
                Some(start) => Operand::Address(None, start as i64 + offset),
                None => Operand::Address(Some(self.register(base)), offset),
            });
        }
        Ok(match text {
            "%tid.x" => Operand::Thread,
            "%ctaid.x" => Operand::Block,
            "%laneid" => Operand::Lane,
            "_" | "tmp" => Operand::Nowhere,
            _ if text.starts_with('%') => Operand::Register(self.register(text)),
            _ if text.starts_with('$') => {
                Operand::Label(*self.labels.get(text).ok_or_else(|| format!("no label {text}"))?)
            }
            _ => Operand::Immediate(match symbol(text) {
                Some(start) => start,
                None => immediate(text).ok_or_else(|| format!("`{text}` is no operand"))?,
            }),
        })
    }
}

fn symbol(name: &str) -> Option<u64> {
    match name {
        "shared" => Some(SHARED),
        _ if name.starts_with("__local_depot") => Some(LOCAL),
        _ => None,
    }
}

fn immediate(text: &str) -> Option<u64> {
    if let Some(bits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0d")).or_else(|| text.strip_prefix("0x"))
    {
        return u64::from_str_radix(bits.trim_end_matches('U'), 16).ok();
    }
    text.parse::<i64>().map(|value| value as u64).or_else(|_| text.parse::<u64>()).ok()
}

/// At commas outside of braces and brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}
