//! Large products by seven of half the size, whole and in panels: each compiled program passes the gate that
//! the measurer uses.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::codegen;
use tilescribe::space::{Decision, Policy, Space, Trace};
use tilescribe::target::{Cpu, Task};
use tilescribe::workload::Workload;

use super::compiled::{in_shares, pass_the_gate};
use super::random::{Random, random_target};

/// Seeds count from 0.
const SEEDS: u64 = 200;
/// Each kind of panels, and products that are whole, are drawn at least so often.
const LEAST: usize = 24;

/// Strassen's algorithm, and all else at random.
struct Sevenfold<'a>(Random<'a>);

impl Policy for Sevenfold<'_> {
    fn pick(&mut self, decision: &Decision) -> usize {
        let strassen = decision.candidates.iter().position(|candidate| candidate.is("strassen"));
        strassen.unwrap_or_else(|| self.0.pick(decision))
    }
}

/// A product that the algorithm applies to: of rows, of pixels, or of images; the number of rows is odd as
/// often as not.
fn product(rng: &mut ChaCha8Rng) -> Workload {
    let rows = rng.random_range(64..112);
    let [columns, steps] = [0; 2].map(|_| 256 + 2 * rng.random_range(0..40));
    let text = match rng.random_range(0..4) {
        0 => format!(
            "const t0 {steps} {columns}\ninput t1 {rows} {steps}\nconst t2 {columns}\nlet t3 {rows} {columns} sum {steps} mul \
             t1 a c t0 c b\nout t4 like t3 max 0.0 add t2 b t3 a b\n"
        ),
        1 => format!(
            "const t0 {columns} {steps}\ninput t1 {rows} {steps}\nout t2 {rows} {columns} sum {steps} mul t1 a c t0 b c\n"
        ),
        2 => format!(
            "const t0 {columns} {steps}\ninput t1 {steps} {rows}\ninput t2 {columns} {rows}\nlet t3 like t2 sum {steps} mul \
             t0 a c t1 c b\nout t4 like t2 max 0.0 add t2 a b t3 a b\n"
        ),
        _ => format!(
            "const t0 {columns} {steps}\ninput t1 2 {steps} {rows}\nout t2 2 {columns} {rows} sum {steps} mul t0 b d t1 a d c\n"
        ),
    };
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// What the product of a seed was cut into.
fn check(seed: u64, host: &Cpu) -> Result<String, String> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut target = random_target(&mut rng).cpu().expect("a CPU").clone();
    (target.cpu, target.features) = (host.cpu.clone(), host.features.clone());
    let task = Task { workload: product(&mut rng), target: target.into() };
    let (trace, nest): (Trace, _) = Space::standard().drive(&task, &mut Sevenfold(Random(&mut rng)));
    if !trace.to_string().contains("strassen") {
        return Err(format!("seed {seed}: not by seven\n{}", task.workload));
    }
    let about = |what: String| format!("seed {seed}: {what}\n{}{trace}", task.workload);
    let nest = nest.map_err(|reason| about(reason.to_string()))?;
    pass_the_gate(&task, &nest, seed).map_err(about)?;
    // there is no question where no number goes into either half
    let panels = trace.0.iter().find(|choice| choice.site.to_string() == "panel algorithm");
    Ok(panels.map_or_else(|| "none".into(), |choice| choice.value.to_string()))
}

#[test]
fn products_by_seven_compute_the_workload() {
    let host = codegen::host().unwrap();
    let test = "nest::products::products_by_seven_compute_the_workload";
    let Some(panels) = in_shares(test, SEEDS, |seed| check(seed, &host)) else { return };
    assert_eq!(panels.len() as u64, SEEDS, "none is skipped");
    let mut drawn = BTreeMap::new();
    panels.into_iter().for_each(|panels| *drawn.entry(panels).or_insert(0) += 1);
    for kind in ["none", "row", "column"] {
        assert!(drawn.get(kind).is_some_and(|count| *count >= LEAST), "{kind} is rare: {drawn:?}");
    }
}
