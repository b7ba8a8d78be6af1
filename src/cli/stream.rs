//! Runs one after the other: what each of them is given, and how long it takes.

use std::time::Instant;

use anyhow::{Result, bail};
use tilescribe::artifact::{Bound, Manifest, Model};
use tilescribe::graph::TensorData;

use super::exit::CommandError;
use super::extents::{self, Point};
use super::inputs;
use super::words::{counted, duration};

/// A model with its inputs.
pub struct Stream<'a> {
    model: &'a Model,
    /// By input: the same for every run, or with one more axis in front.
    given: Vec<Option<TensorData>>,
    at: Option<&'a Point>,
    seed: u64,
    /// Of each run.
    times_ns: Vec<u64>,
}

impl<'a> Stream<'a> {
    pub fn new(model: &'a Model, given: Vec<Option<TensorData>>, at: Option<&'a Point>, seed: u64) -> Stream<'a> {
        Stream { model, given, at, seed, times_ns: Vec::new() }
    }

    fn is_stream(&self, input: usize) -> bool {
        let rank = self.model.manifest().inputs[input].shape.len();
        self.given[input].as_ref().is_some_and(|data| data.shape.len() == rank + 1)
    }

    /// How often to run: as often as somebody wants, or as the streams have parts.
    ///
    /// # Errors
    /// [`CommandError::Usage`] where there is no stream, or one has fewer parts.
    pub fn count(&self, wanted: Option<u32>) -> Result<usize> {
        let streams = (0..self.given.len()).filter(|input| self.is_stream(*input));
        let parts = |input: usize| self.given[input].as_ref().map_or(0, |data| data.shape[0].max(0) as usize);
        let shortest = streams.map(|input| (parts(input), input)).min();
        match (wanted, shortest) {
            (Some(wanted), Some((parts, input))) if parts < wanted as usize => {
                let name = &self.model.manifest().inputs[input].name;
                bail!(CommandError::Usage(format!("--loop {wanted}: input `{name}` has {}", counted(parts, "part"))))
            }
            (Some(wanted), _) => Ok(wanted as usize),
            (None, Some((parts @ 1.., _))) => Ok(parts),
            (None, _) => {
                let reason =
                    "--loop wants a number of runs, or an input with one more axis in front, whose parts it is given";
                bail!(CommandError::Usage(reason.to_string()))
            }
        }
    }

    /// The outputs of runs, one after the other; states go on from run to run.
    ///
    /// # Errors
    /// Where the network does not take the inputs.
    pub fn run(&mut self, count: usize) -> Result<Vec<Vec<TensorData>>> {
        let mut outputs = Vec::with_capacity(count);
        let mut bound: Option<(Vec<Vec<i64>>, Bound<'a>)> = None;
        for run in 0..count {
            let inputs = self.inputs(run)?;
            let shapes: Vec<Vec<i64>> = inputs.iter().map(|input| input.shape.clone()).collect();
            let ready = match bound.take() {
                Some((known, mut bound)) if known == shapes => {
                    bound.give(&inputs)?;
                    bound
                }
                _ => self.model.bind(&inputs)?,
            };
            let (_, ready) = bound.insert((shapes, ready));
            let start = Instant::now();
            ready.run()?;
            self.times_ns.push(start.elapsed().as_nanos() as u64);
            outputs.push(ready.outputs());
        }
        Ok(outputs)
    }

    /// What a run is given.
    fn inputs(&self, run: usize) -> Result<Vec<TensorData>> {
        let part = |input: usize| -> Result<Option<TensorData>> {
            let Some(data) = &self.given[input] else { return Ok(None) };
            if !self.is_stream(input) {
                return Ok(Some(data.clone()));
            }
            let size = data.bytes.len() / (data.shape[0].max(1) as usize);
            let bytes = data.bytes.get(run * size..(run + 1) * size).unwrap_or_default().to_vec().into();
            Ok(Some(TensorData { shape: data.shape[1..].to_vec(), dtype: data.dtype, bytes }))
        };
        let given: Vec<Option<TensorData>> = (0..self.given.len()).map(part).collect::<Result<_>>()?;
        let shapes: Vec<Option<&[i64]>> =
            given.iter().map(|given| given.as_ref().map(|data| data.shape.as_slice())).collect();
        let values = extents::values(self.model.manifest(), self.at, &shapes, self.rows()?)?;
        inputs::complete(self.model.manifest(), given, &values, self.seed)
    }

    /// Rows of the states that grow.
    fn rows(&self) -> Result<Option<i64>> {
        let states = self.model.manifest().states.iter().enumerate();
        for (number, state) in states {
            if let Some(grows) = &state.grows {
                return Ok(Some(self.model.state_shape(number)?[grows.axis]));
            }
        }
        Ok(None)
    }

    /// How long runs took, for people.
    pub fn times(&self) -> String {
        let mut sorted = self.times_ns.clone();
        sorted.sort_unstable();
        let (count, sum) = (sorted.len().max(1), sorted.iter().sum::<u64>());
        let at = |share: usize| duration(sorted.get((count - 1) * share / 100).copied().unwrap_or(0));
        let per_second = count as f64 / (sum.max(1) as f64 * 1e-9);
        format!(
            "{}: median {}, 95 of 100 within {}, at most {}; {per_second:.1} runs/s",
            counted(count, "run"),
            at(50),
            at(95),
            at(100)
        )
    }
}

/// The outputs of all runs, with one more axis in front.
///
/// # Errors
/// [`CommandError::Usage`] where an output has other extents in another run.
pub fn stacked(runs: Vec<Vec<TensorData>>, manifest: &Manifest) -> Result<Vec<TensorData>> {
    let count = runs.len() as i64;
    let stack = |(number, port): (usize, &tilescribe::artifact::Port)| {
        let of_run = || runs.iter().filter_map(|outputs| outputs.get(number));
        let Some(first) = of_run().next() else { bail!("output `{}` is missing", port.name) };
        if of_run().any(|output| output.shape != first.shape) {
            let reason = format!("output `{}` has other extents in each run: it cannot be one array", port.name);
            bail!(CommandError::Usage(reason));
        }
        let bytes: Vec<u8> = of_run().flat_map(|output| output.bytes.iter().copied()).collect();
        let shape = [&[count], first.shape.as_slice()].concat();
        Ok(TensorData { shape, dtype: first.dtype, bytes: bytes.into() })
    };
    manifest.outputs.iter().enumerate().map(stack).collect()
}
