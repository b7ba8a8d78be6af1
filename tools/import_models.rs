//! Imports models that it is given one after the other, and says what became of each.
//!
//! `tests/hostile_networks.py` damages models and feeds them. Standard input: for each model the length of
//! its dimensions and that of its bytes, four bytes each, the least first; the dimensions, lines
//! `NAME LOW HIGH`; and the bytes. Standard output: a line for each, `imported` or `refused` and a message,
//! behind the milliseconds that it took. What is not as it should be ends the program: a panic, a program or
//! a network that is not valid.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::Instant;

use tilescribe::graph::{Dim, ImportOptions, Precision, Products, import_bytes, partition};

/// What import may compute, in bytes: a few models of those that are fed come to as much as they are allowed.
const CONSTANT_BYTES: u64 = 1 << 26;

fn main() -> ExitCode {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    loop {
        match next(&mut input) {
            Ok(None) => return ExitCode::SUCCESS,
            Ok(Some((dims, model))) => {
                let start = Instant::now();
                let told = match outcome(dims, model) {
                    Ok(told) => told,
                    Err(wrong) => {
                        eprintln!("invalid: {wrong}");
                        return ExitCode::FAILURE;
                    }
                };
                let line = told.replace(['\n', '\r'], " ");
                if writeln!(output, "{} {line}", start.elapsed().as_millis()).and_then(|()| output.flush()).is_err() {
                    return ExitCode::from(2);
                }
            }
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        }
    }
}

/// Dimensions that are given, and the bytes of a model.
type Request = (BTreeMap<String, Dim>, Vec<u8>);

/// Dimensions and bytes of the next model, if there is one more.
fn next(input: &mut impl Read) -> io::Result<Option<Request>> {
    let mut lengths = [0; 8];
    match input.read_exact(&mut lengths) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| lengths[at + byte])) as usize;
    let (mut text, mut model) = (vec![0; length(0)], vec![0; length(4)]);
    input.read_exact(&mut text)?;
    input.read_exact(&mut model)?;
    let mut dims = BTreeMap::new();
    for line in String::from_utf8_lossy(&text).lines() {
        let mut words = line.rsplitn(3, ' ');
        let (high, low) = (words.next().and_then(|n| n.parse().ok()), words.next().and_then(|n| n.parse().ok()));
        if let (Some(high), Some(low), Some(name)) = (high, low, words.next()) {
            dims.insert(name.to_string(), Dim::range(low, high));
        }
    }
    Ok(Some((dims, model)))
}

fn outcome(dims: BTreeMap<String, Dim>, model: Vec<u8>) -> Result<String, String> {
    let options = ImportOptions { dims, constant_bytes: CONSTANT_BYTES, ..ImportOptions::default() };
    let mut program = match import_bytes(model.into(), &options) {
        Ok(program) => program,
        Err(error) => return Ok(format!("refused {error}")),
    };
    program.validate().map_err(|error| error.to_string())?;
    program.shorten(Precision::F32, Products::ByWeights);
    program.validate().map_err(|error| format!("shortened: {error}"))?;
    let network = partition(&program).map_err(|error| error.to_string())?;
    network.validate().map_err(|error| error.to_string())?;
    Ok(format!("imported as {} tasks of {} symbols", network.tasks.len(), network.symbols.list.len()))
}
