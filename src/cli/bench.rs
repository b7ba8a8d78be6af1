//! `tilescribe bench`

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tilescribe::artifact::Model;

use super::inputs;

/// Runs before the clock starts: they fault in pages and wake up threads.
const WARM_UP_RUNS: usize = 2;

/// Time a compiled network
///
/// The last line of the output is {"min_ms":..,"median_ms":..,"runs":..}: inference only, with random inputs.
#[derive(Args)]
pub struct Bench {
    /// Folder that `tilescribe compile` wrote
    artifact: PathBuf,
    /// Threads to use [default: the cores that this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// How long to repeat
    #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
}

impl Bench {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let model = Model::load(&self.artifact, self.threads.unwrap_or(0))?;
        let ports = model.manifest().inputs.iter().enumerate();
        let values = ports.map(|(number, port)| inputs::random(port, number as u64)).collect::<Result<Vec<_>>>()?;
        let mut bound = model.bind(&values)?;
        for _ in 0..WARM_UP_RUNS {
            bound.run()?;
        }
        let (start, limit) = (Instant::now(), Duration::from_secs_f64(self.seconds));
        let mut times_ms = Vec::new();
        while times_ms.is_empty() || start.elapsed() < limit {
            let run = Instant::now();
            bound.run()?;
            times_ms.push(run.elapsed().as_secs_f64() * 1e3);
        }
        times_ms.sort_by(f64::total_cmp);
        let (minimum, median) = (times_ms[0], times_ms[times_ms.len() / 2]);
        Ok(writeln!(out, "{}", json!({ "min_ms": minimum, "median_ms": median, "runs": times_ms.len() }))?)
    }
}

/// A number of seconds that makes sense.
pub fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if (0.0..=1e7).contains(&value) { Ok(value) } else { Err("between 0 and 10,000,000".into()) }
}
