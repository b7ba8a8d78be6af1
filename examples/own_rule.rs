//! A rule of one's own: it asks by how much the innermost loop of a reduction is unrolled, which no rule of
//! ours does. Measures both a program without and programs with it.
//!
//! usage: cargo run --release --example own_rule

use std::error::Error;
use std::process::ExitCode;

use tilescribe::codegen;
use tilescribe::measure::{Measurer, Options, worker_main_with};
use tilescribe::nest::LoopKind;
use tilescribe::space::{Decision, Policy, Rule, Space, Step, Stop, Tape, View, Word, Words};
use tilescribe::target::{Cpu, Target, Task};

/// `unroll s0 = 4`: so many steps of the reduction are written out.
struct UnrollReduction;

impl Rule<Cpu> for UnrollReduction {
    fn name(&self) -> &'static str {
        "unroll-reduction"
    }

    fn version(&self) -> u32 {
        1
    }

    /// What was written before there was the rule is read as if it had answered 1.
    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let mut steps = Vec::new();
        for group in &view.groups {
            let innermost = group.positions(true).last().and_then(|at| group.loops(*at));
            let Some(loops) = innermost else { continue };
            tape.defaults_only(group.defaults_only);
            let site = Words(vec![Word::from("unroll"), Word::Name(group.name())]);
            // the first candidate is the default: the program of before
            let factor = tape.choose_number(site, &[1, 2, 4, 8], 0)?;
            if factor > 1 {
                let (split, _, inner) = Step::split(&loops.inner, factor);
                steps.push(split);
                steps.extend(Step::mark(LoopKind::Unroll, vec![inner]));
            }
        }
        Ok(steps)
    }
}

/// Our rules, and the one above behind them.
fn space() -> Space {
    Space::standard().with(Box::new(UnrollReduction))
}

/// Answers the rule's question, and takes the defaults of all others.
struct Unrolled(u64);

impl Policy for Unrolled {
    fn pick(&mut self, decision: &Decision) -> usize {
        let ours = decision.site.to_string().starts_with("unroll ");
        let wanted = |value: &Words| value.to_string() == self.0.to_string();
        decision.candidates.iter().position(|value| ours && wanted(value)).unwrap_or(decision.default)
    }
}

const WORKLOAD: &str = "input t0 2 512\nconst t1 512 64\nout t2 2 64 sum 512 mul t0 a c t1 c b\n";

fn main() -> ExitCode {
    // candidates are compiled and run in a child process; it must know the rule, so it is this program, too
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return worker_main_with(space());
    }
    match compare() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare() -> Result<(), Box<dyn Error>> {
    let (space, target) = (space(), Target::from(codegen::host()?));
    let task = Task { workload: WORKLOAD.parse()?, target };
    let mut options = Options::for_this_executable(&space)?;
    options.arguments = vec!["worker".into()];
    options.space = space.versions();
    let mut measurer = Measurer::new(options);
    let traces: Vec<_> = [1, 2, 4, 8].map(|factor| space.drive(&task, &mut Unrolled(factor)).0).to_vec();
    for (trace, outcome) in traces.iter().zip(measurer.finals(&task, &traces)?) {
        let unroll = trace.to_string().lines().last().unwrap_or_default().to_string();
        match outcome.best_ns() {
            Some(ns) => println!("{unroll}: {:.1} µs", ns as f64 / 1e3),
            None => println!("{unroll}: {outcome:?}"),
        }
    }
    Ok(())
}
