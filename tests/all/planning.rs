//! The search over plans, on programs that are made up: what it finds, what it asks to be measured, and what
//! it leaves alone.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{LazyLock, Mutex};

use rand::{Rng, SeedableRng, rngs::StdRng};
use tilescribe::graph::{Network, NetworkTask, Plan, PlanKind, Planned};
use tilescribe::planning::{Ask, Bounds, Effort, Found, Means, Origin, Time, search};
use tilescribe::space::{Choice, Decision, Policy, Word, Words};
use tilescribe::workload::Workload;

/// A row of decisions; between two of them stands a task, which is another one for each pair of what they
/// take, and takes another time.
#[derive(Clone, Copy)]
struct Row {
    decisions: usize,
    candidates: &'static [&'static str],
    ns: fn(usize, [usize; 2]) -> f64,
    /// The seed of what times are multiplied by, where that is drawn.
    noise: Option<u64>,
    /// So many of the last decisions are of another kind.
    concatenations: usize,
}

impl Row {
    /// The same work for all pairs, in other shapes.
    fn workload(task: usize, [before, behind]: [usize; 2]) -> Workload {
        static PARSED: LazyLock<Mutex<HashMap<(usize, usize), Workload>>> = LazyLock::new(Mutex::default);
        let (rows, all) = (1 << (4 * before + behind), (task + 1) << 14);
        let parse = || format!("input t0 {rows} {0}\nout t1 {rows} {0} exp t0 a b\n", all / rows).parse();
        let mut parsed = PARSED.lock().expect("no test has failed in here");
        parsed.entry((rows, all)).or_insert_with(|| parse().expect("a workload")).clone()
    }

    fn cut(self, policy: &mut dyn Policy) -> Network {
        let mut network = Network::default();
        let mut before = 0;
        for number in 0..=self.decisions {
            let mut behind = 0;
            if number < self.decisions {
                let rule = usize::from(number + self.concatenations >= self.decisions);
                let site = Words(vec![Word::from(PlanKind::ALL[rule].name()), Word::from(number as u64)]);
                let candidates = self.candidates.iter().map(|name| Words::from(*name)).collect();
                let decision = Decision { site, candidates, default: 0, before: 0, rule };
                behind = policy.pick(&decision);
                network.planned.push(Planned { decision, taken: behind, concerns: Vec::new() });
            }
            let workload = Row::workload(number, [before, behind]);
            let name = format!("{number} {before} {behind}");
            network.tasks.push(NetworkTask { name, workload, weight: 2, nodes: Vec::new() });
            before = behind;
        }
        network
    }

    /// Nanoseconds of a task.
    fn time(self, task: usize, pair: [usize; 2]) -> f64 {
        let ns = (self.ns)(task, pair);
        self.noise.map_or(ns, |seed| {
            let seed = [seed, task as u64, pair[0] as u64, pair[1] as u64].into_iter().fold(7, |a, b| 31 * a + b);
            ns * StdRng::seed_from_u64(seed).random_range(0.5..1.5)
        })
    }

    /// Nanoseconds of a plan: what its decisions take, by position.
    fn sum(self, plan: &[usize]) -> f64 {
        let at = |number: usize| if number == 0 { 0 } else { plan.get(number - 1).copied().unwrap_or(0) };
        (0..=self.decisions).map(|task| 2.0 * self.time(task, [at(task), at(task + 1)])).sum()
    }

    /// What the decisions take by a plan, by position.
    fn taken(self, plan: &Plan) -> Vec<usize> {
        let mut taken = vec![0; self.decisions];
        for Choice { site, value } in &plan.0.0 {
            let Some(Word::Number(number)) = site.0.last() else { panic!("a numbered site") };
            taken[*number as usize] = self.candidates.iter().position(|name| value.is(name)).expect("a candidate");
        }
        taken
    }

    /// The least sum of all plans.
    fn least(self) -> f64 {
        let count = self.candidates.len();
        let plan = |number: usize| -> Vec<usize> {
            (0..self.decisions).map(|at| number / count.pow(at as u32) % count).collect()
        };
        let sums = (0..count.pow(self.decisions as u32)).map(|number| self.sum(&plan(number)));
        sums.fold(f64::INFINITY, f64::min)
    }

    /// Searches where all times are known, or only those that are measured; gives how many tasks were
    /// measured, too.
    fn search(self, all_known: bool, bounds: &Bounds, given: &[Plan]) -> (Found, usize) {
        let (found, measured, _) = self.search_by_effort(all_known, bounds, given);
        (found, measured)
    }

    /// The same, and how many tasks were measured in full.
    fn search_by_effort(self, all_known: bool, bounds: &Bounds, given: &[Plan]) -> (Found, usize, usize) {
        let known: RefCell<BTreeSet<(usize, [usize; 2])>> = RefCell::default();
        let in_full: RefCell<BTreeSet<(usize, [usize; 2])>> = RefCell::default();
        let mut times = |tasks: &[&NetworkTask], ask| -> Result<Vec<Time>, Infallible> {
            let time = |task: &&NetworkTask| {
                let numbers: Vec<usize> = task.name.split(' ').map(|word| word.parse().expect("a number")).collect();
                let (task, pair) = (numbers[0], [numbers[1], numbers[2]]);
                if let Ask::Measured { effort, .. } = ask {
                    known.borrow_mut().insert((task, pair));
                    let is_new = effort == Effort::Full && in_full.borrow_mut().insert((task, pair));
                    assert!(is_new || effort == Effort::Brief, "{task} {pair:?} is measured in full twice");
                }
                let is_known = all_known || known.borrow().contains(&(task, pair));
                let ns = Some(self.time(task, pair)).filter(|ns| is_known && ns.is_finite());
                Time { final_ns: ns, least_ns: ns.map(|ns| 0.9 * ns) }
            };
            Ok(tasks.iter().map(time).collect())
        };
        let mut cut = |policy: &mut dyn Policy| Ok(self.cut(policy));
        let Ok(found) = search(Means { cut: &mut cut, times: &mut times, can_measure: true }, bounds, given);
        let [measured, in_full] = [known, in_full].map(|tasks| tasks.borrow().len());
        (found, measured, in_full)
    }
}

/// What the better of the default and the best other plan takes.
fn best_ns(found: &Found) -> f64 {
    let [default, best] = found.tasks_ns;
    best.unwrap_or(f64::INFINITY).min(default.expect("its tasks are known"))
}

const TWO: &[&str] = &["kept", "last"];
const THREE: &[&str] = &["kept", "last", "first"];

/// The middle is faster the other way, the ends are slower, and where both meet there is a price.
fn middle(task: usize, pair: [usize; 2]) -> f64 {
    match (pair, (4..9).contains(&task)) {
        ([0, 0], _) => 100.0,
        ([1, 1], true) => 60.0,
        ([1, 1], false) => 140.0,
        _ => 115.0,
    }
}

#[test]
fn runs_of_decisions_are_found_where_times_are_known() {
    let row = Row { decisions: 12, candidates: TWO, ns: middle, noise: None, concatenations: 0 };
    let (found, _) = row.search(true, &Bounds::default(), &[]);
    assert_eq!(best_ns(&found), row.least(), "{:?}", found.tried[found.best.unwrap()].plan);
    assert_eq!(found.measured, 0);
    assert_eq!(found.tried[0].plan, Plan::default());
    assert_eq!(found.tried[1].origin, Origin::All(PlanKind::Layout, "last".into()));
    assert!(found.cuts < 200, "{} cuts", found.cuts);
}

/// Brief times of the other extreme were taken while the machine was slow: it falls out of the race, and is
/// run beside the default all the same, rather than a plan that hardly differs from the default.
#[test]
fn what_may_be_fastest_is_run_beside_the_default() {
    let row = Row { decisions: 6, candidates: TWO, ns: |_, _| 0.0, noise: None, concatenations: 0 };
    let full: RefCell<BTreeSet<String>> = RefCell::default();
    let mut times = |tasks: &[&NetworkTask], ask| -> Result<Vec<Time>, Infallible> {
        let time = |task: &&NetworkTask| {
            let [final_ns, least_ns] = match task.name.split_once(' ') {
                Some((_, "0 0")) => [100.0, 80.0],
                Some((_, "1 1")) => [95.0, 92.0],
                _ => [101.0, 81.0],
            };
            if matches!(ask, Ask::Measured { effort: Effort::Full, .. }) {
                full.borrow_mut().insert(task.name.clone());
            }
            let is_final = full.borrow().contains(&task.name) || least_ns == 81.0;
            Time { final_ns: is_final.then_some(final_ns), least_ns: Some(least_ns) }
        };
        Ok(tasks.iter().map(time).collect())
    };
    let mut cut = |policy: &mut dyn Policy| Ok(row.cut(policy));
    let given = ["layout 3 = last\n".parse().expect("a plan")];
    let means = Means { cut: &mut cut, times: &mut times, can_measure: true };
    let Ok(found) = search(means, &Bounds::default(), &given);
    let best = &found.tried[found.best.expect("another plan")];
    assert_eq!(best.origin, Origin::All(PlanKind::Layout, "last".into()), "{}", best.plan);
}

#[test]
fn any_number_of_candidates_is_searched() {
    let ns = |task: usize, pair: [usize; 2]| {
        let wanted = (task * 7 / 3) % 3;
        pair.into_iter().map(|taken| if taken == wanted { 40.0 } else { 50.0 + 9.0 * taken as f64 }).sum()
    };
    let row = Row { decisions: 7, candidates: THREE, ns, noise: None, concatenations: 0 };
    let (found, _) = row.search(true, &Bounds::default(), &[]);
    assert!(best_ns(&found) <= 1.03 * row.least(), "{} instead of {}", best_ns(&found), row.least());
    let starts: Vec<_> = found.tried.iter().filter(|tried| matches!(tried.origin, Origin::All(..))).collect();
    assert_eq!(starts.len(), 2);
}

#[test]
fn a_kind_that_does_not_pay_is_left_as_it_is_beside_one_that_does() {
    let ns = |task: usize, pair: [usize; 2]| {
        let slower = if task < 8 { -10.0 } else { 15.0 };
        100.0 + pair.into_iter().map(|taken| slower * taken as f64).sum::<f64>()
    };
    let row = Row { decisions: 12, candidates: TWO, ns, noise: None, concatenations: 4 };
    // what is not known is guessed to take as long in whatever layout: only extremes tell
    let (found, measured) = row.search(false, &Bounds::default(), &[]);
    let best = &found.tried[found.best.unwrap()];
    assert_eq!(row.taken(&best.plan), [vec![1; 8], vec![0; 4]].concat(), "{}", best.plan);
    let extremes: Vec<&Origin> = found.tried.iter().map(|tried| &tried.origin).take(3).collect();
    let all = |kind| Origin::All(kind, "last".into());
    assert_eq!(extremes, [&Origin::Default, &all(PlanKind::Layout), &all(PlanKind::Concatenation)]);
    // the tasks of the default, those that the first kind changes, and those that the second one changes then
    assert_eq!(measured, 13 + 9 + 5 + found.measured);
}

#[test]
fn plans_far_behind_are_not_measured_in_full() {
    let far: fn(usize, [usize; 2]) -> f64 = |_, pair| 100.0 + 25.0 * (pair[0] + pair[1]) as f64;
    let near: fn(usize, [usize; 2]) -> f64 = |_, pair| 100.0 + 2.0 * (pair[0] + pair[1]) as f64;
    for (ns, in_full) in [(far, 13), (near, 13 + 13)] {
        let row = Row { decisions: 12, candidates: TWO, ns, noise: None, concatenations: 0 };
        let (found, measured, found_in_full) = row.search_by_effort(false, &Bounds::default(), &[]);
        assert_eq!((measured, found_in_full), (13 + 13 + found.measured, in_full + found.measured));
        assert_eq!(best_ns(&found), row.sum(&[0; 12]));
    }
}

#[test]
fn few_tasks_are_measured_for_moves() {
    let row = Row { decisions: 12, candidates: TWO, ns: middle, noise: None, concatenations: 0 };
    let (found, measured) = row.search(false, &Bounds::default(), &[]);
    // the tasks of both extremes: the last one ends as the default does
    assert_eq!(measured, 13 + 13 + found.measured);
    assert!((1..=3).contains(&found.measured), "{} tasks", found.measured);
    assert!(best_ns(&found) < row.sum(&[0; 12]).min(row.sum(&[1; 12])), "{}", best_ns(&found));
    assert!(found.tried.iter().all(|tried| tried.tasks_ns.is_some()));
}

#[test]
fn what_gains_little_is_not_changed() {
    let ns = |_: usize, pair: [usize; 2]| if pair[0] + pair[1] > 0 { 99.0 } else { 100.0 };
    let row = Row { decisions: 6, candidates: TWO, ns, noise: None, concatenations: 0 };
    let (found, _) = row.search(true, &Bounds::default(), &[]);
    // the extreme is the best all the same; the whole decides whether it is taken
    assert_eq!(found.tried[found.best.unwrap()].origin, Origin::All(PlanKind::Layout, "last".into()));
}

#[test]
fn bounds_are_kept_and_plans_of_before_are_tried() {
    let row = Row { decisions: 12, candidates: TWO, ns: middle, noise: None, concatenations: 0 };
    let mut bounds = Bounds::default();
    bounds.fix(PlanKind::Layout, None);
    let given: Plan = (4..8).map(|at| format!("layout {at} = last\n")).collect::<String>().parse().unwrap();
    let (found, measured) = row.search(true, &bounds, std::slice::from_ref(&given));
    assert_eq!((found.tried.len(), found.best, measured), (1, None, 13));
    bounds.fix(PlanKind::Layout, Some("last".into()));
    let (found, _) = row.search(true, &bounds, std::slice::from_ref(&given));
    assert_eq!(found.tried.len(), 1);
    assert_eq!(found.tried[0].plan.0.0.len(), 12);
    let (found, _) = row.search(true, &Bounds::default(), std::slice::from_ref(&given));
    assert!(found.tried.iter().any(|tried| tried.plan == given && tried.origin == Origin::Given));
}

#[test]
fn plans_with_tasks_that_cannot_be_measured_are_not_taken() {
    let ns = |task: usize, pair: [usize; 2]| match (task, pair) {
        (3, [1, 1]) => f64::INFINITY,
        (_, [1, 1]) => 50.0,
        (_, [0, 0]) => 100.0,
        _ => 70.0,
    };
    let row = Row { decisions: 6, candidates: TWO, ns, noise: None, concatenations: 0 };
    for all_known in [false, true] {
        let (found, _) = row.search(all_known, &Bounds::default(), &[]);
        let best = &found.tried[found.best.expect("a plan without that task")];
        let takes = |number: usize| best.plan.to_string().contains(&format!("layout {number} = last"));
        assert!(!(takes(2) && takes(3)), "{}", best.plan);
        assert!(best_ns(&found) < row.sum(&[0; 6]));
    }
}

/// Whatever times are: sums are those of the plans, what is found is as good as the extremes at least and
/// hardly worse than the best that there is, and few tasks are measured for moves.
#[test]
fn searches_of_random_rows_keep_their_word() {
    let (mut gains, mut missed) = ([0.0; 2], 0.0);
    for seed in 0..120 {
        let mut rng = StdRng::seed_from_u64(seed);
        let candidates = if rng.random_bool(0.5) { TWO } else { THREE };
        let decisions = rng.random_range(1..=if candidates.len() == 2 { 10 } else { 6 });
        let row = Row { decisions, candidates, ns: |_, _| 100.0, noise: Some(seed), concatenations: 0 };
        for all_known in [false, true] {
            let (found, measured) = row.search(all_known, &Bounds::default(), &[]);
            for tried in &found.tried {
                let (ns, _) = tried.tasks_ns.expect("a time");
                assert!((ns - row.sum(&row.taken(&tried.plan))).abs() < 1e-6 * ns, "{seed}: {}", tried.plan);
            }
            let extremes = (0..candidates.len()).map(|all| row.sum(&vec![all; decisions]));
            let (least, extreme) = (row.least(), extremes.fold(f64::INFINITY, f64::min));
            let best = best_ns(&found);
            assert!(best >= least - 1e-6 && best <= extreme + 1e-6, "{seed}: {least} <= {best} <= {extreme}");
            assert!(found.measured <= ((decisions + 1) / 4).max(1), "{seed}: {}", found.measured);
            assert!(measured <= candidates.len() * (decisions + 1) + found.measured, "{seed}: {measured}");
            gains[usize::from(all_known)] += (best / extreme).ln() / 120.0;
            if all_known {
                assert!(best <= 1.25 * least, "{seed}: {best} instead of {least}");
                missed += (best / least).ln() / 120.0;
            }
        }
    }
    let [measured, known] = gains.map(f64::exp);
    assert!(known < 0.92 && measured < 0.995 && missed < 0.02, "{measured:.3} {known:.3} {missed:.3}");
}
