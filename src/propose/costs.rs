//! What a finished program costs by static analysis alone, part by part: read from its features, which count
//! instructions and the bytes that each level of memory hands over.

use std::collections::HashMap;

use crate::nest::Nest;
use crate::rank::named_features;
use crate::target::{Target, Task};

/// Bytes that L2, L3 and memory hand over in a cycle: the first two to one core, memory to all.
const BYTES_PER_CYCLE: [f64; 3] = [40.0, 12.0, 8.0];
/// Instructions of a cycle: operators on vectors, loads, stores; and cycles of a slow operator, of a gather,
/// and of an addition that waits for the one before.
const OPERATORS: f64 = 2.0;
const LOADS: f64 = 2.0;
const STORES: f64 = 1.0;
const SLOW: f64 = 8.0;
const SCATTERED: f64 = 20.0;
const CHAINED: f64 = 4.0;
/// What the feature of used registers is a share of; and values that a thread of a GPU holds.
const LIVE: f64 = 32.0;
const GPU_REGISTERS: f64 = 128.0;
/// Cycles of a loop's counter, a condition and a division of indices, and to start threads.
const ITERATION: f64 = 2.0;
const CONDITION: f64 = 2.0;
const DIVISION: f64 = 10.0;
const FORK: f64 = 1000.0;

/// Where features stand, by group and name: the same for all programs for one kind of machine.
pub(super) struct Positions(HashMap<(&'static str, &'static str), usize>);

impl Positions {
    pub fn of(task: &Task, nest: &Nest) -> Positions {
        let named = named_features(task, nest).into_iter().enumerate();
        Positions(named.map(|(at, feature)| ((feature.group, feature.name), at)).collect())
    }

    /// 0 of what is not there.
    fn value(&self, features: &[f32], group: &'static str, name: &'static str) -> f64 {
        let at = self.0.get(&(group, name));
        at.and_then(|at| features.get(*at)).map_or(0.0, |value| f64::from(*value))
    }

    /// What a feature is the logarithm of.
    fn count(&self, features: &[f32], group: &'static str, name: &'static str) -> f64 {
        (self.value(features, group, name).exp2() - 1.0).max(0.0)
    }
}

/// Cycles of the busiest core, and what spoils them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Costs {
    pub operators: f64,
    pub loads: f64,
    pub stores: f64,
    /// Of sums that wait for themselves.
    pub chained: f64,
    /// What L2, L3 and memory hand over.
    pub levels: [f64; 3],
    /// Loops, conditions, divisions of indices, and threads.
    pub control: f64,
    /// The busiest core's share of the iterations relative to an even one; 1 is even.
    pub imbalance: f64,
    /// Lanes that hold an element, of all.
    pub lane_use: f64,
    /// Accesses that cross cache lines, of all.
    pub split: f64,
    /// Values of the hottest body that have no register.
    pub spilled: f64,
    /// Operators for each load, as a logarithm to base 2, in the hottest body.
    pub intensity: f64,
}

impl Costs {
    pub fn of(task: &Task, positions: &Positions, features: &[f32]) -> Costs {
        let count = |name| positions.count(features, "count", name);
        let bytes = |names: [&'static str; 2]| names.map(|name| positions.count(features, "bytes", name)).iter().sum();
        let cores = f64::from(task.target.processors().max(1));
        let moved: [f64; 3] = [
            ["read from L2", "written to L2"],
            ["read from L3", "written to L3"],
            ["read from memory", "written to memory"],
        ]
        .map(bytes);
        let registers = match &task.target {
            Target::Cpu(cpu) => f64::from(cpu.vector_registers),
            Target::Gpu(_) => GPU_REGISTERS,
        };
        let sharers = [cores, cores, 1.0];
        let scattered = [count("scattered loads"), count("scattered stores")];
        let loads = count("single loads") + count("contiguous loads") + 2.0 * count("strided loads");
        let stores = count("single stores") + count("contiguous stores");
        let scalars = count("scalar operations") / 2.0;
        Costs {
            operators: (count("vector operations") + scalars) / OPERATORS + SLOW * count("slow operations"),
            loads: loads / LOADS + SCATTERED * scattered[0],
            stores: stores / STORES + SCATTERED * scattered[1],
            chained: CHAINED * count("chained"),
            levels: std::array::from_fn(|level| moved[level] / sharers[level] / BYTES_PER_CYCLE[level]),
            control: ITERATION * count("iterations")
                + CONDITION * count("conditions")
                + DIVISION * count("divisions")
                + FORK * count("forks"),
            imbalance: positions.value(features, "use", "imbalance").max(1.0),
            lane_use: positions.value(features, "use", "lanes").clamp(0.01, 1.0),
            split: positions.value(features, "all bodies", "share of split accesses").clamp(0.0, 1.0),
            spilled: (LIVE * positions.value(features, "hottest body", "registers used") - registers).max(0.0),
            intensity: positions.value(features, "hottest body", "intensity"),
        }
    }

    /// Cycles of the core's units, all busy at once.
    pub fn executing(&self) -> f64 {
        self.operators.max(self.loads).max(self.stores).max(self.chained)
    }
}

#[cfg(test)]
mod tests {
    use super::{Costs, Positions};
    use crate::propose::example::product;
    use crate::rank::features;
    use crate::space::{Space, Untuned};

    #[test]
    fn costs_are_read_by_name() {
        let (space, task) = (Space::standard(), product());
        let (_, nest) = space.drive(&task, &mut Untuned);
        let nest = nest.unwrap();
        let positions = Positions::of(&task, &nest);
        let costs = Costs::of(&task, &positions, &features(&task, &nest));
        // 17·30·40 multiply-adds in vectors of 16, some of them not full, on one core or several
        let least = 17.0 * 30.0 * 40.0 / 16.0 / f64::from(task.target.processors()) / 2.0;
        assert!(costs.operators >= least && costs.operators < 8.0 * least, "{costs:?}");
        assert!(costs.loads > 0.0 && costs.control > 0.0 && costs.levels[2] > 0.0, "{costs:?}");
        assert!(costs.imbalance >= 1.0 && costs.lane_use > 0.3 && costs.executing() >= costs.operators, "{costs:?}");
        assert_eq!(Costs::of(&task, &positions, &[]).operators, 0.0);
    }
}
