//! `tilescribe doctor`

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use tilescribe::artifact;
use tilescribe::codegen;
use tilescribe::measure::cuda;
use tilescribe::measure::roofline::{self, Arithmetic, Roofline, RooflineError};
use tilescribe::record;
use tilescribe::space::Space;
use tilescribe::target::{Cpu, Kind};

use super::arguments::StoreArguments;
use super::exit::CommandError;
use super::figures::MEASURE;
use super::words::bytes;

/// Say what this machine offers and lacks
///
/// Prints this machine as a target file, which `--target` takes elsewhere. Measures its peak of arithmetic,
/// in f32 and in the shorter numbers that it has instructions for, and the bandwidth of its caches and
/// memory, which takes three seconds, and keeps them in the user's cache folder; `tilescribe show --figures`
/// compares programs with them.
#[derive(Args)]
pub struct Doctor {
    /// Measure peak and bandwidth anew: the machine should do nothing else meanwhile
    #[arg(long)]
    measure: bool,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArguments,
}

/// What was found, and what is missing for Tilescribe to work.
struct Report {
    target: Cpu,
    /// The C compiler's first line.
    cc: Option<String>,
    cuda: Result<Vec<String>, String>,
    store: String,
    records: Result<Option<u64>, String>,
    roofline: Result<Roofline, String>,
    /// Why what was measured will be measured again.
    not_kept: Option<String>,
    lacking: Vec<String>,
}

impl Doctor {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        let report = self.examine()?;
        match self.json {
            true => writeln!(out, "{}", report.json())?,
            false => write!(out, "{}", report.text())?,
        }
        match report.lacking.is_empty() {
            true => Ok(()),
            false => Err(CommandError::Environment(report.lacking.join("; ")).into()),
        }
    }

    fn examine(&self) -> Result<Report> {
        let target = codegen::host()?;
        let mut lacking = Vec::new();
        let cc = compiler();
        if cc.is_none() {
            let reason = "a C compiler is missing (Debian: apt-get install gcc libc6-dev; or pip install ziglang)";
            lacking.push(reason.to_string());
        }
        let records = match self.store.open_existing() {
            Ok(Some(store)) => Ok(Some(store.list()?.iter().map(|row| row.records).sum())),
            Ok(None) => Ok(None),
            Err(error) => {
                lacking.push(error.to_string());
                Err(error.to_string())
            }
        };
        // neither is a lack: everything but the CUDA back end, and but comparisons with the machine's limit,
        // works without
        let (roofline, not_kept) = match self.roofline(&target) {
            Ok((known, not_kept)) => (Ok(known), not_kept.map(|error| error.to_string())),
            Err(error @ RooflineError::Damaged { .. }) => (Err(format!("{error}; {MEASURE}")), None),
            Err(error) => (Err(error.to_string()), None),
        };
        let cuda = cuda::devices().map_err(|reason| reason.to_string());
        let store = self.store.path()?.display().to_string();
        Ok(Report { target, cc, cuda, store, records, roofline, not_kept, lacking })
    }

    /// What was kept, or is measured now; and why that cannot be kept.
    fn roofline(&self, target: &Cpu) -> Result<(Roofline, Option<RooflineError>), RooflineError> {
        let folder = record::cache_folder();
        if let Some(folder) = folder.as_ref().filter(|_| !self.measure) {
            // figures of fewer cores come from a process that might not use all; those of before 0.4.0 lack
            // the peaks of short numbers
            let is_whole = |known: &Roofline| known.cores >= target.cores && known.is_complete(target);
            if let Some(known) = roofline::load(folder, target)?.filter(is_whole) {
                return Ok((known, None));
            }
        }
        let measured = roofline::measure(target)?;
        let not_kept = folder.and_then(|folder| roofline::save(&folder, target, &measured).err());
        Ok((measured, not_kept))
    }
}

fn compiler() -> Option<String> {
    artifact::DRIVERS.iter().find_map(|(driver, first)| {
        let found = Command::new(driver).args(*first).arg("--version").stdin(Stdio::null()).output();
        let answer = found.ok().filter(|answer| answer.status.success())?;
        Some(String::from_utf8_lossy(&answer.stdout).lines().next().unwrap_or_default().to_string())
    })
}

impl Report {
    /// A target file: all but the target is a comment.
    fn text(&self) -> String {
        let mut lines = vec![
            format!(
                "# tilescribe {}, search space {}",
                env!("CARGO_PKG_VERSION"),
                Space::standard().version(Kind::Cpu)
            ),
            "# the machine:".to_string(),
            self.target.to_toml().trim_end().to_string(),
        ];
        match &self.roofline {
            Ok(known) => lines.extend(rates(known)),
            Err(error) => lines.push(format!("# peak and bandwidths: {error}")),
        }
        lines.extend(self.not_kept.iter().map(|error| format!("# not kept: {error}")));
        lines.push(match &self.cc {
            Some(version) => format!("# cc: {version}"),
            None => "# cc: missing; it links the shared object of a compiled network".to_string(),
        });
        match &self.cuda {
            Ok(names) => lines.extend(names.iter().enumerate().map(|(at, name)| format!("# cuda:{at}: {name}"))),
            Err(reason) => lines.push(format!("# cuda: {reason}")),
        }
        let records = match &self.records {
            Ok(Some(records)) => format!("{records} records"),
            Ok(None) => "none yet".to_string(),
            Err(error) => error.clone(),
        };
        lines.push(format!("# store {}: {records}", self.store));
        // what others wrote may have several lines, and each of them must be a comment
        let (machine, rest) = lines.split_at(3);
        let rest = rest.iter().flat_map(|line| line.lines()).map(|line| match line.starts_with('#') {
            true => line.to_string(),
            false => format!("# {line}"),
        });
        machine.iter().cloned().chain(rest).map(|line| line + "\n").collect()
    }

    fn json(&self) -> Value {
        let or_error = |result: Result<Value, &String>| result.unwrap_or_else(|error| json!({ "error": error }));
        json!({
            "tilescribe": env!("CARGO_PKG_VERSION"),
            "space": Space::standard().version(Kind::Cpu),
            "target": self.target,
            "fingerprint": self.target.fingerprint(),
            "roofline": or_error(self.roofline.as_ref().map(|known| json!(known))),
            "not_kept": self.not_kept,
            "cc": self.cc,
            "cuda": or_error(self.cuda.as_ref().map(|names| json!(names))),
            "store": { "path": self.store, "records": or_error(self.records.as_ref().map(|records| json!(records))) },
            "lacking": self.lacking,
        })
    }
}

/// Peak and bandwidths as a table.
fn rates(known: &Roofline) -> Vec<String> {
    let row = |what: String, one: String, all: String| format!("# {what:<24} {one:>12} {all:>12}");
    let figure = |rate: f64| format!("{rate:.1}");
    let mut lines =
        vec![row("measured".into(), "one core".into(), format!("{} cores", known.cores)).trim_end().to_string()];
    let short = known.short_peaks.iter().map(|peak| (peak.arithmetic, peak.gflops));
    for (arithmetic, peak) in [(Arithmetic::F32, known.peak_gflops)].into_iter().chain(short) {
        let unit = if arithmetic == Arithmetic::Bytes { "GOP/s" } else { "GFLOP/s" };
        let what = format!("{} peak, {unit}", arithmetic.name());
        lines.push(row(what, figure(peak.one_core), figure(peak.all_cores)));
    }
    for bandwidth in &known.bandwidths {
        let what = format!("{} ({}), GB/s", bandwidth.level.name(), bytes(bandwidth.bytes));
        let rate = bandwidth.gb_per_s;
        lines.push(row(what, figure(rate.one_core), figure(rate.all_cores)));
    }
    lines
}
