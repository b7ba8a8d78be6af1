//! `tilescribe next`

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tilescribe::space::{Next as Following, Space, Trace};

use super::arguments::{NetworkArguments, TargetArguments, read_task, read_trace};
use super::exit::CommandError;

/// Print what may follow a list of decisions
///
/// Walks the search space by hand: prints the next decision and its candidates, or the finished loop nest.
/// Start without a prefix, put `site = value` into a file, and ask again.
#[derive(Args)]
pub struct Next {
    /// File with the text of a task, or MODEL.onnx#TASK as `tilescribe tasks` numbers and names them
    task: String,
    /// File with the decisions taken so far, one `site = value` a line
    prefix: Option<PathBuf>,
    #[command(flatten)]
    network: NetworkArguments,
    #[command(flatten)]
    target: TargetArguments,
    /// Take this decision too, after those of the file
    #[arg(long = "take", value_name = "SITE = VALUE")]
    taken: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Next {
    pub fn execute(self, out: &mut dyn Write) -> Result<()> {
        self.network.check([self.task.as_str()])?;
        let (_, task) = read_task(&self.task, self.target.resolve()?, &self.network)?;
        let mut text = match &self.prefix {
            Some(path) => read_trace(path)?,
            None => String::new(),
        };
        self.taken.iter().for_each(|choice| text.push_str(&format!("\n{choice}")));
        let usage = |reason: String| CommandError::Usage(format!("the decisions do not fit: {reason}"));
        let prefix: Trace = text.parse().map_err(|error: tilescribe::space::ParseError| usage(error.to_string()))?;
        let next = Space::standard().next(&task, &prefix).map_err(|stale| usage(stale.to_string()))?;
        if self.json {
            let object = match &next {
                Following::Choose(decision) => {
                    let candidates: Vec<String> = decision.candidates.iter().map(ToString::to_string).collect();
                    json!({ "site": decision.site.to_string(), "candidates": candidates, "default": decision.default })
                }
                Following::Done(nest) => json!({ "nest": nest.to_string() }),
                Following::DeadEnd(reason) => json!({ "dead_end": reason.0 }),
                Following::Defect(defect) => json!({ "defect": defect.to_string() }),
            };
            return Ok(writeln!(out, "{object}")?);
        }
        match next {
            Following::Choose(decision) => {
                writeln!(out, "{} = one of", decision.site)?;
                for (number, candidate) in decision.candidates.iter().enumerate() {
                    let mark = if number == decision.default { "  <- untuned" } else { "" };
                    writeln!(out, "    {candidate}{mark}")?;
                }
            }
            Following::Done(nest) => writeln!(out, "{nest}")?,
            Following::DeadEnd(reason) => writeln!(out, "{reason}")?,
            Following::Defect(defect) => writeln!(out, "a rule is at fault: {defect}")?,
        }
        Ok(())
    }
}
