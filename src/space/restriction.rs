//! Spaces of the literature as restrictions of this one: fewer candidates, the same rules. What is left has
//! the names that it has without them, so records and checkpoints serve all of them, and every trace of a
//! restricted space is one of the whole.

use crate::nest::axis_name;
use crate::target::{Target, Task};
use crate::trace::{Choice, Filter, Word, Words};

/// Which candidates are left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restriction {
    /// Hardware-native templates alone: register tiles of whole vectors that fill the registers without
    /// spilling, and blocks of powers of two. (J. Xing et al., *Bolt: Bridging the Gap Between Auto-Tuners
    /// and Hardware-Native Performance*, MLSys 2022.)
    Bolt,
    /// Sizes that do not follow from the extents: powers of two, and multiples of vectors; what does not come
    /// out even is padded. (Y. Ding et al., *Hidet: Task-Mapping Programming Paradigm for Deep Learning
    /// Tensor Programs*, ASPLOS 2023.)
    Hidet,
}

impl Restriction {
    /// All of them.
    pub const ALL: [Restriction; 2] = [Restriction::Bolt, Restriction::Hidet];

    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Restriction::Bolt => "bolt",
            Restriction::Hidet => "hidet",
        }
    }

    pub fn named(name: &str) -> Option<Restriction> {
        Restriction::ALL.into_iter().find(|restriction| restriction.name() == name)
    }

    /// What it leaves of a task's candidates.
    pub(super) fn filter(self, task: &Task) -> Filter {
        let spatial = task.workload.stages.iter().map(|stage| stage.spatial.len()).collect();
        let registers = match &task.target {
            Target::Cpu(cpu) => Some(u64::from(cpu.vector_registers)),
            Target::Gpu(_) => None,
        };
        let machine = Machine { lanes: task.target.lanes().unsigned_abs().max(1), registers, spatial };
        Box::new(move |site, candidates, taken| machine.kept(self, site, candidates, taken))
    }
}

/// Registers that a tile leaves to its operands.
const OPERANDS: u64 = 3;
/// Vectors that a native tile is wide, at most.
const VECTORS: u64 = 4;

/// What candidates are held against.
struct Machine {
    lanes: u64,
    /// Vector registers; `None` where the rules of the space see to them.
    registers: Option<u64>,
    /// By stage: the number of axes of the result.
    spatial: Vec<usize>,
}

/// What a site is about: `verb stage axis`.
struct About<'a> {
    verb: &'a str,
    stage: &'a str,
    axis: &'a Word,
}

impl<'a> About<'a> {
    fn of(site: &'a Words) -> Option<About<'a>> {
        match site.0.as_slice() {
            [Word::Name(verb), Word::Name(stage), axis @ Word::Name(_)] => Some(About { verb, stage, axis }),
            _ => None,
        }
    }
}

impl Machine {
    fn kept(&self, restriction: Restriction, site: &Words, candidates: &[Words], taken: &[Choice]) -> Vec<bool> {
        let sizes: Option<Vec<u64>> = candidates.iter().map(Words::as_number).collect();
        let Some((about, sizes)) = About::of(site).zip(sizes) else { return vec![true; candidates.len()] };
        match restriction {
            Restriction::Hidet => sizes.iter().map(|size| size.is_power_of_two() || size % self.lanes == 0).collect(),
            Restriction::Bolt => self.native(&about, &sizes, taken),
        }
    }

    fn native(&self, about: &About<'_>, sizes: &[u64], taken: &[Choice]) -> Vec<bool> {
        let whole = sizes.iter().max().copied();
        let even = |size: &u64| size.is_power_of_two() || Some(*size) == whole;
        let Some(registers) = self.registers.filter(|_| about.verb == "tile") else {
            return sizes.iter().map(even).collect();
        };
        if self.is_vector(about.stage, about.axis, taken) {
            let fits = |size: &u64| size.is_multiple_of(self.lanes) && size / self.lanes <= VECTORS;
            return sizes.iter().map(fits).collect();
        }
        if !self.is_spatial(about) {
            return sizes.iter().map(|size| size.is_power_of_two()).collect();
        }
        let (before, most) = (self.registers_of(about.stage, taken), registers - OPERANDS.min(registers));
        let (fits, fills) =
            (|size: &u64| before * size <= most, |size: &u64| before * size <= most && 2 * before * size >= most);
        match sizes.iter().any(fills) {
            true => sizes.iter().map(|size| fills(size) || *size == 1).collect(),
            false => sizes.iter().map(|size| fits(size) && even(size)).collect(),
        }
    }

    /// Whether an axis runs in vectors.
    fn is_vector(&self, stage: &str, axis: &Word, taken: &[Choice]) -> bool {
        taken.iter().any(|choice| {
            matches!(choice.site.0.as_slice(), [Word::Name(verb), Word::Name(of)] if verb == "vector" && of == stage)
                && choice.value.0.as_slice() == std::slice::from_ref(axis)
        })
    }

    /// Whether it is an axis of the result; one that was made of several is.
    fn is_spatial(&self, about: &About<'_>) -> bool {
        let stage: Option<usize> = about.stage.strip_prefix('s').and_then(|number| number.parse().ok());
        let Some(spatial) = stage.and_then(|stage| self.spatial.get(stage)) else { return true };
        let Word::Name(name) = about.axis else { return true };
        let all = (0..2 * spatial + 8).position(|at| axis_name(at) == *name);
        all.is_none_or(|at| at < *spatial)
    }

    /// The registers that the tile of a stage holds so far.
    fn registers_of(&self, stage: &str, taken: &[Choice]) -> u64 {
        let tile = |choice: &Choice| {
            let about = About::of(&choice.site).filter(|about| about.verb == "tile" && about.stage == stage)?;
            let size = choice.value.as_number()?;
            let in_vectors = self.is_vector(stage, about.axis, taken);
            let counts = in_vectors || self.is_spatial(&about);
            counts.then(|| if in_vectors { size.div_ceil(self.lanes) } else { size })
        };
        taken.iter().filter_map(tile).product()
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::Restriction;
    use crate::propose::example::product;
    use crate::space::{Decision, Next, Policy, Space, Trace, Untuned};

    struct Uniform(ChaCha8Rng);

    impl Policy for Uniform {
        fn pick(&mut self, decision: &Decision) -> usize {
            self.0.random_range(0..decision.candidates.len())
        }
    }

    fn drawn(space: &Space, count: u64) -> Vec<Trace> {
        let draw = |seed| space.drive(&product(), &mut Uniform(ChaCha8Rng::seed_from_u64(seed)));
        (0..count).map(draw).filter(|(_, nest)| nest.is_ok()).map(|(trace, _)| trace).collect()
    }

    #[test]
    fn what_is_left_is_part_of_the_whole() {
        let whole = Space::standard();
        let all = drawn(&whole, 60);
        for restriction in Restriction::ALL {
            assert_eq!(Restriction::named(restriction.name()), Some(restriction));
            let space = Space::standard().restricted(Some(restriction));
            let left = drawn(&space, 60);
            assert!(left.len() > 50);
            for trace in &left {
                assert!(matches!(whole.next(&product(), trace), Ok(Next::Done(_))), "{trace}");
                assert!(matches!(space.next(&product(), trace), Ok(Next::Done(_))), "{trace}");
                for decision in space.decisions(&product(), trace).unwrap() {
                    assert!(decision.candidates.len() >= 2 && decision.default < decision.candidates.len());
                }
            }
            let (untuned, nest) = space.drive(&product(), &mut Untuned);
            assert!(nest.is_ok() && whole.offers(&product(), &untuned));
            assert!(!all.iter().all(|trace| space.offers(&product(), trace)), "{restriction:?} leaves something out");
            assert_eq!(space.versions(), whole.versions());
        }
    }

    #[test]
    fn native_tiles_fill_the_registers_and_free_ones_are_powers_of_two() {
        let (task, lanes) = (product(), 16);
        let sizes = |restriction, verb: &'static str| -> Vec<(String, u64)> {
            let left = drawn(&Space::standard().restricted(Some(restriction)), 80);
            let all = left.iter().flat_map(|trace| &trace.0).filter(|choice| choice.site.to_string().starts_with(verb));
            all.filter_map(|choice| Some((choice.site.to_string(), choice.value.as_number()?))).collect()
        };
        assert_eq!(task.target.lanes(), lanes);
        for (site, size) in sizes(Restriction::Hidet, "tile s0") {
            // where a single candidate is left, the default stays beside it
            assert!(size.is_power_of_two() || size % 16 == 0 || size >= 12, "{site} = {size}");
        }
        let native = sizes(Restriction::Bolt, "tile s0 a");
        assert!(native.iter().any(|(_, size)| *size > 4) && native.iter().all(|(_, size)| *size <= 29), "{native:?}");
    }
}
