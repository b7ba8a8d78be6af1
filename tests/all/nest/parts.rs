//! Programs that write a part of their outputs: whatever is decided, the rest stays as it was.

use std::collections::BTreeSet;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tilescribe::codegen;
use tilescribe::measure::{Bench, OracleCache, Workbench};
use tilescribe::nest::{Nest, interpret, verify};
use tilescribe::outcome::Failure;
use tilescribe::space::{NoProgram, Space};
use tilescribe::target::{Cpu, Target, Task};
use tilescribe::workload::{Array, Role, TensorId, Workload, canonical, evaluate, part_of_bytes, put_part};

use super::compiled::{in_shares, pass_the_gate};
use super::gpu::{SHIPPED, gpu};
use super::random::{Random, random_target};
use super::workloads::random_workload;

/// Seeds count from 0.
const SEEDS: u64 = 600;

/// What outputs hold before.
const BEFORE: u8 = 0x3e;

/// A random workload that writes a part of some of its outputs; `None` where it has none of two dimensions.
fn random_part(rng: &mut ChaCha8Rng) -> Option<Workload> {
    let (_, mut workload) = random_workload(rng);
    for tensor in workload.tensors.iter_mut().filter(|tensor| tensor.role == Role::Output) {
        let rank = tensor.shape.len();
        if rank > 1 {
            let axis = if rng.random_bool(0.7) { rank - 1 } else { rng.random_range(0..rank) };
            tensor.shape[axis] += [1, 2, 3, 8, 16][rng.random_range(0..5)];
        }
    }
    let written = || workload.ids().filter(|(id, _)| workload.part_of(*id).is_some());
    if written().count() == 0 {
        return None;
    }
    workload.validate().unwrap_or_else(|error| panic!("{error}\n{workload}"));
    Some(if rng.random_bool(0.5) { canonical(&workload).workload } else { workload })
}

fn random_task(target: impl FnOnce(&mut ChaCha8Rng) -> Target, seed: u64) -> Option<(Task, Nest, String)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let task = Task { workload: random_part(&mut rng)?, target: target(&mut rng) };
    let (trace, nest) = Space::standard().drive(&task, &mut Random(&mut rng));
    let nest = match nest {
        Err(NoProgram::DeadEnd(_)) if task.target.gpu().is_ok() => return None,
        nest => nest.unwrap_or_else(|reason| panic!("seed {seed}: {reason}\n{}\n{trace}", task.workload)),
    };
    let about = format!("seed {seed}\n{}\n{trace}\n{nest}", task.workload);
    assert_eq!(nest.to_string().parse::<Nest>().map(|read| read.to_string()), Ok(nest.to_string()), "{about}");
    Some((task, nest, about))
}

/// Runs a nest where outputs hold something, and compares what it leaves there.
fn check(seed: u64) -> Result<bool, String> {
    let target = |rng: &mut ChaCha8Rng| match seed % 3 {
        0 => gpu(SHIPPED[rng.random_range(0..SHIPPED.len())].0).into(),
        _ => random_target(rng),
    };
    let Some((task, nest, about)) = random_task(target, seed) else { return Ok(false) };
    let workload = &task.workload;
    verify(&nest, task.target.lanes()).map_err(|error| format!("{error}\n{about}"))?;
    let inputs = tilescribe::measure::generate_inputs(workload, &[], seed).map_err(|error| error.to_string())?;
    let arguments: Vec<(TensorId, &Array)> = inputs.iter().map(|(id, array)| (*id, array)).collect();
    let expected = evaluate(workload, &arguments).map_err(|error| error.to_string())?;
    let bytes = |id: &TensorId| match inputs.iter().find(|(other, _)| other == id) {
        Some((_, array)) => array.to_bytes(),
        None => vec![BEFORE; nest.buffer(*id).bytes()],
    };
    let mut held: Vec<Vec<u8>> = nest.arguments().iter().map(bytes).collect();
    interpret(&nest, &mut held).map_err(|fault| format!("{fault}\n{about}"))?;
    for (id, array) in expected {
        let at = nest.arguments().iter().position(|other| *other == id).ok_or("an output that is no argument")?;
        let (shape, dtype) = (array.shape().to_vec(), array.dtype());
        let part = workload.part_of(id).unwrap_or(&shape);
        let found = part_of_bytes(&held[at], part, &shape, dtype.bytes());
        let found = Array::from_bytes(part.clone(), dtype, &found).map_err(|error| error.to_string())?;
        let wanted = array.part(part).map_err(|error| error.to_string())?;
        let scale = (0..wanted.elements().len()).filter_map(|at| wanted.number(at)).fold(1e-3, |m, x| x.abs().max(m));
        let allowed = (1e-3 * f64::from(nest.error_growth).sqrt() + 0.01) * scale;
        for at in 0..wanted.elements().len() {
            let (wanted, found) = (wanted.number(at).unwrap_or(f64::NAN), found.number(at).unwrap_or(f64::NAN));
            if (wanted - found).abs() > allowed || wanted.is_nan() != found.is_nan() {
                return Err(format!("element {at} of t{} is {found} instead of {wanted}\n{about}", id.0));
            }
        }
        // where the part is put aside, everything is as before
        let blank = vec![BEFORE; bytes_of(part, dtype.bytes())];
        put_part(&mut held[at], &blank, part, &shape, dtype.bytes());
        if held[at].iter().any(|byte| *byte != BEFORE) {
            return Err(format!("t{} is changed behind its part\n{about}", id.0));
        }
    }
    Ok(true)
}

fn bytes_of(part: &[i64], size: usize) -> usize {
    part.iter().product::<i64>() as usize * size
}

#[test]
fn every_nest_leaves_what_is_not_its_part() {
    let checked: Vec<Result<bool, String>> = (0..SEEDS).into_par_iter().map(check).collect();
    let failures: Vec<&String> = checked.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failures.is_empty(), "{} of {SEEDS}:\n{}", failures.len(), failures[0]);
    let parts = checked.iter().filter(|result| **result == Ok(true)).count() as u64;
    assert!(parts > SEEDS / 2, "{parts} workloads");
}

fn check_compiled(seed: u64, host: &Cpu) -> Result<u64, String> {
    let target = |rng: &mut ChaCha8Rng| {
        let mut target = random_target(rng).cpu().expect("a CPU").clone();
        (target.cpu, target.features) = (host.cpu.clone(), host.features.clone());
        target.into()
    };
    let Some((task, nest, about)) = random_task(target, seed) else { return Ok(seed) };
    pass_the_gate(&task, &nest, seed).map(|()| seed).map_err(|what| format!("{what}\n{about}"))
}

#[test]
fn every_kernel_leaves_what_is_not_its_part() {
    let host = codegen::host().unwrap();
    let test = "nest::parts::every_kernel_leaves_what_is_not_its_part";
    let Some(agreed) = in_shares(test, SEEDS, |seed| check_compiled(seed, &host)) else { return };
    assert_eq!(agreed.into_iter().collect::<BTreeSet<u64>>(), (0..SEEDS).collect(), "none is skipped");
}

#[test]
fn who_writes_behind_its_part_is_found_out() {
    let workload: Workload = "input t0 8 5\nout t1 8 5 like 8 6 exp t0 a b\n".parse().unwrap();
    let nest = Nest::naive(&workload);
    let text = nest.to_string();
    assert!(text.contains("t1: f32[8, 6] output[8, 5]"), "{text}");
    verify(&nest, 16).unwrap();
    // an element further, the last one belongs to somebody else
    let further: Nest = text.replace("t1[s0a, s0b]", "t1[s0a, s0b + 1]").parse().unwrap();
    assert!(verify(&further, 16).is_err_and(|error| error.to_string().contains("t1")), "{further}");
    // and where a nest does not know its part, the gate does
    let careless: Nest = further.to_string().replace("output[8, 5]", "output").parse().unwrap();
    verify(&careless, 16).unwrap();
    let task = Task { workload, target: codegen::host().unwrap().into() };
    let expected = OracleCache::default().examples(&task.workload, 1).unwrap();
    let mut bench = Workbench::new(task.clone(), expected).unwrap();
    let refused = bench.load(&careless).and_then(|mut loaded| bench.check(&mut loaded)).unwrap_err();
    assert_eq!(refused.cause, Failure::WrongResult, "{}", refused.detail);
    let both: Nest = text
        .replace("t1[s0a, s0b] = exp(t0[s0a, s0b])", "t1[s0a, s0b] = exp(t0[s0a, s0b])\nt1[s0a, 5] = 0.0")
        .replace("output[8, 5]", "output")
        .parse()
        .unwrap();
    let refused = bench.load(&both).and_then(|mut loaded| bench.check(&mut loaded)).unwrap_err();
    assert!(refused.detail.contains("belong to somebody else"), "{}\n{both}", refused.detail);
    // parts that are none
    for bad in ["output[8, 7]", "output[8]", "output[8, 5, 1]", "output[8, -1]"] {
        let wrong = text.replace("output[8, 5]", bad).parse::<Nest>();
        assert!(wrong.is_err() || wrong.is_ok_and(|nest| verify(&nest, 16).is_err()), "{bad}");
    }
}
