//! Applying steps: a program under construction, and why a step may not fit.

use std::mem::take;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use thiserror::Error;

use super::fetch::{copies_at_start, fetch};
use super::{Level, LoopName, Phase, Reads, Schedule, Step};
use crate::nest::rewrite::Refusal;
use crate::nest::rewrite::accumulate::{Blocks, Reduction};
use crate::nest::rewrite::pack::Place;
use crate::nest::{LoopKind, Nest, Scope};
use crate::workload::{Algorithm, Combiner, DType, Rewritten, TensorId, Tiled, Var, Workload};

/// Operands that are rounded to 11 bits err 8,192 times as much as others; errors of single products cancel,
/// though, so that their sums do not.
const TF32_ERROR_GROWTH: u32 = 512;

/// A workload, and a nest that computes it as the steps so far say.
#[derive(Clone, Debug)]
pub struct Program {
    pub workload: Workload,
    pub nest: Nest,
    /// What the loops are called; of equal names the last one counts.
    loops: FxHashMap<LoopName, Var>,
    /// Element-wise stages, and the reductions that they are the epilogues of.
    epilogues: Vec<(usize, usize)>,
    /// What is yet to be written where the given workload has it, once epilogues are where they belong.
    pending: Option<Arc<Rewritten>>,
}

/// A step that does not fit: a defect of the rule that returned it, or a mistake in a written schedule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("step {number}, `{step}`: {problem}")]
pub struct Defect {
    /// From 1.
    pub number: usize,
    pub step: Box<Step>,
    pub problem: Problem,
}

/// What is wrong with a step.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Problem {
    #[error("there is no loop `{0}`")]
    NoLoop(LoopName),
    #[error("there is no stage s{0}")]
    NoStage(usize),
    #[error("there is no tensor t{}", .0.0)]
    NoTensor(TensorId),
    #[error("there is no buffer that the reads are copied into")]
    NoCopy,
    #[error("{0} iterations are none")]
    NoIterations(i64),
    #[error("{found} names for {expected} loops")]
    Names { found: usize, expected: usize },
    #[error("the algorithm does not apply to the workload")]
    NoAlgorithm,
    #[error("the reduction has no such equal parts")]
    NoParts,
    #[error(transparent)]
    Rewrite(#[from] Refusal),
}

impl Schedule {
    /// The nest that the steps make of a workload.
    ///
    /// # Errors
    /// The first step that does not fit.
    pub fn build(&self, workload: &Workload) -> Result<Nest, Defect> {
        let mut program = Program::new(workload.clone());
        for (at, step) in self.0.iter().enumerate() {
            let defect = |problem| Defect { number: at + 1, step: Box::new(step.clone()), problem };
            program = program.apply(step).map_err(defect)?;
        }
        Ok(program.nest)
    }
}

impl Program {
    /// The plain reading of a workload.
    pub fn new(workload: Workload) -> Program {
        let nest = Nest::naive(&workload);
        let name = |(number, name): (usize, &String)| (LoopName::from(name.as_str()), Var(number as u32));
        let loops = nest.vars.iter().enumerate().map(name).collect();
        Program { workload, nest, loops, epilogues: Vec::new(), pending: None }
    }

    /// Executes a step.
    ///
    /// # Errors
    /// [`Problem`] where it does not fit.
    pub fn apply(mut self, step: &Step) -> Result<Program, Problem> {
        if step.phase() != Phase::Schedule
            && let Some(rewritten) = self.pending.take()
        {
            self.redirect(&rewritten);
        }
        match step {
            Step::Winograd { outputs, order } => {
                self = self.rewritten(Algorithm::Winograd { outputs: *outputs, order: *order })?;
            }
            Step::Strassen { panels } => self = self.rewritten(Algorithm::Strassen { panels: *panels })?,
            Step::MergeGroups { groups } => self = self.rewritten(Algorithm::Merged { groups: *groups })?,
            Step::FlattenRows => self = self.rewritten(Algorithm::Flat)?,
            Step::SplitReduction { stage, axis, parts } => {
                let split = self.workload.split_reduction(*stage, *axis, *parts).ok_or(Problem::NoParts)?;
                self = Program::new(split);
            }
            Step::Epilogue { stage, of } => {
                let highest = *stage.max(of);
                if highest >= self.workload.stages.len() {
                    return Err(Problem::NoStage(highest));
                }
                self.epilogues.push((*stage, *of));
            }
            Step::Split { .. } | Step::Group { .. } | Step::Tile { .. } | Step::Fuse { .. } | Step::Enclose { .. } => {
                self.shape(step)?
            }
            Step::Reorder { order } => {
                let order = self.vars(order)?;
                self.nest = self.take().reorder(&order)?;
            }
            Step::Join { loops } => {
                let vars = self.vars(loops)?;
                self.nest = self.take().join(&vars)?;
            }
            Step::Mark { kind, loops } => {
                let vars = self.vars(loops)?;
                self.nest = vars.into_iter().try_fold(self.take(), |nest, var| nest.set_kind(var, *kind))?;
            }
            Step::Multiply { rows, columns, depth, operands } => {
                let sides = [self.var(rows)?, self.var(columns)?, self.var(depth)?];
                let nest = self.take();
                self.nest = sides.into_iter().try_fold(nest, |nest, var| nest.set_kind(var, LoopKind::Matrix))?;
                if *operands == DType::F32 {
                    self.nest.error_growth = self.nest.error_growth.saturating_mul(TF32_ERROR_GROWTH);
                }
            }
            Step::Accumulate { stage, at, blocks, lanes } => {
                self.accumulate(*stage, at, blocks.as_ref(), lanes)?;
            }
            Step::Factor { steps } => {
                let steps = self.var(steps)?;
                self.nest = self.take().factor(steps)?;
            }
            Step::Pack { .. } | Step::Fetch { .. } | Step::Privatise { .. } => self.place(step)?,
            Step::Persist { steps, grid_blocks, combiner } => self.persist(steps, *grid_blocks, *combiner)?,
            Step::Pipeline { steps, depth } => {
                let steps = self.var(steps)?;
                let copies = copies_at_start(&self.nest, steps);
                self.nest = self.take().pipeline(steps, &copies, *depth)?;
            }
            Step::ShareInBlocks => {
                let own = self.nest.buffers.iter_mut().take(self.workload.tensors.len());
                let small = own.filter(|buffer| buffer.scope == Scope::Register);
                small.for_each(|buffer| buffer.scope = Scope::BlockShared);
            }
            Step::DropUnitLoops => self.nest = self.take().drop_unit_loops(),
            Step::PeelTails => self.nest = self.take().peel_tails(),
            Step::InTiles => self.nest = self.take().in_tiles(),
            Step::StripMine { lanes } => self.nest = self.take().strip_mine(positive(*lanes)?),
            Step::InThreads => self.nest = self.take().in_threads(),
            Step::FillTails => self.nest = self.take().fill_tails(),
            Step::DropSetupResults => self.nest = self.take().drop_setup_results(),
            Step::DropUnused => self.nest = self.take().drop_unused(),
        }
        Ok(self)
    }

    /// Steps that make new loops.
    fn shape(&mut self, step: &Step) -> Result<(), Problem> {
        match step {
            Step::Split { over, by, into } => {
                let var = self.var(over)?;
                let (nest, outer, inner) = self.take().split(var, positive(*by)?)?;
                self.nest = nest;
                self.named(into, &[outer, inner])
            }
            Step::Group { over, by, into } => {
                let var = self.var(over)?;
                let (nest, outer, inner) = self.take().group(var, positive(*by)?)?;
                self.nest = nest;
                self.named(into, &[outer, inner])
            }
            Step::Tile { over, by, into } => {
                let var = self.var(over)?;
                by.iter().try_for_each(|by| positive(*by).map(|_| ()))?;
                let (nest, vars) = self.take().tile(var, by)?;
                self.nest = nest;
                self.named(into, &vars)
            }
            Step::Fuse { outer, inner, into } => {
                let (outer, inner) = (self.var(outer)?, self.var(inner)?);
                let (nest, fused) = self.take().fuse(outer, inner)?;
                self.nest = nest;
                self.named(std::slice::from_ref(into), &[fused])
            }
            Step::Enclose { over, by } => {
                let var = self.var(over)?;
                let (nest, unit) = self.take().enclose(var)?;
                self.nest = nest;
                self.named(std::slice::from_ref(by), &[unit])
            }
            _ => Ok(()),
        }
    }

    fn accumulate(
        &mut self,
        stage: usize,
        at: &LoopName,
        blocks: Option<&(LoopName, Vec<LoopName>)>,
        lanes: &[LoopName],
    ) -> Result<(), Problem> {
        let at = self.var(at)?;
        let blocks = match blocks {
            Some((over, inside)) => Some(Blocks { var: self.var(over)?, inside: self.vars(inside)? }),
            None => None,
        };
        let reduction = Reduction { blocks, lanes: self.vars(lanes)? };
        let nest = self.take();
        let of = self.workload.stages.get(stage).ok_or(Problem::NoStage(stage))?;
        let behind = self.epilogues.iter().find(|(_, of)| *of == stage);
        let epilogue = behind.map(|(epilogue, _)| &self.workload.stages[*epilogue]);
        self.nest = nest.accumulate(of.output, at, &reduction, epilogue)?;
        Ok(())
    }

    /// Steps that say where tensors are.
    fn place(&mut self, step: &Step) -> Result<(), Problem> {
        match step {
            Step::Pack { operand, level, layout, content } => {
                let (of, tensor) = self.operand(operand)?;
                let place = match level {
                    Level::Setup => Place::Setup,
                    Level::Before => Place::Before(of),
                    Level::Inside(over) => Place::Inside(self.var(over)?),
                };
                self.nest = self.take().pack(of, tensor, place, (*layout, *content))?;
            }
            Step::Fetch { operand, inside, copy, padding, lanes, threads } => {
                let (of, tensor) = self.operand(operand)?;
                let inside = self.var(inside)?;
                let (copy, by) = ((copy, *padding), (positive(*threads)?, positive(*lanes)?));
                let nest = self.take();
                self.nest = fetch(nest, (of, tensor), inside, copy, by, &|name| self.var(name))?;
            }
            Step::Privatise { tensor, rows } => {
                let tensor = self.tensor(*tensor)?;
                let rows = rows.iter().map(|(over, block)| Ok((self.var(over)?, *block)));
                let rows = rows.collect::<Result<Vec<_>, Problem>>()?;
                // what an epilogue took the place of is not there any more
                if self.nest.uses(tensor) {
                    self.nest = self.take().privatise(tensor, &rows)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The nest, moved out to be rewritten; [`Nest`]'s rewrites give it back, or the program is dropped with
    /// them.
    fn take(&mut self) -> Nest {
        take(&mut self.nest)
    }

    /// Starts over with what an algorithm makes of the workload.
    fn rewritten(self, by: Algorithm) -> Result<Program, Problem> {
        let rewritten = by.of(&self.workload).ok_or(Problem::NoAlgorithm)?;
        let output_of = |stage: usize| rewritten.workload.stages[stage].output;
        let constants: Vec<(usize, usize, TensorId)> =
            rewritten.constants.iter().map(|(stage, points)| (*stage, *points, output_of(*stage))).collect();
        let mut program = Program::new(rewritten.workload.clone());
        for (stage, points, output) in constants {
            // the points of a transform are written out, innermost
            let rank = program.workload.stages[stage].rank();
            let axes: Vec<LoopName> = (0..rank).map(|axis| LoopName::axis(stage, axis)).collect();
            let axes = program.vars(&axes)?;
            let (points, others) = axes.split_at(points.min(rank));
            let order = [others, points].concat();
            let first = *order.first().ok_or(Problem::NoAlgorithm)?;
            let nest = program.take().reorder(&order)?;
            let nest = points.iter().try_fold(nest, |nest, var| nest.set_kind(*var, LoopKind::Unroll))?;
            program.nest = nest.into_setup(first, output)?;
        }
        program.nest.error_growth = rewritten.error_growth;
        for Tiled { output, .. } in &rewritten.outputs {
            program.nest.buffers[output.0 as usize].part = self.workload.part_of(*output).cloned();
        }
        match by {
            // what follows the products may be computed as they leave the registers
            Algorithm::Merged { .. } | Algorithm::Flat => program.pending = Some(rewritten),
            Algorithm::Winograd { .. } | Algorithm::Strassen { .. } => program.redirect(&rewritten),
        }
        Ok(program)
    }

    /// Has results written where the given workload has them.
    fn redirect(&mut self, Rewritten { outputs, indices, conditions, .. }: &Rewritten) {
        for Tiled { tiled, output } in outputs.iter().copied() {
            self.nest = self.take().redirect(tiled, output, indices, conditions);
        }
    }

    fn persist(&mut self, steps: &LoopName, grid_blocks: i64, combiner: Combiner) -> Result<(), Problem> {
        let var = self.var(steps)?;
        let (nest, share) = self.take().persistent(var, grid_blocks, combiner)?;
        self.nest = nest;
        self.named(std::slice::from_ref(steps), &[share])
    }

    fn operand(&self, operand: &Reads) -> Result<(Var, (TensorId, usize)), Problem> {
        Ok((self.var(&operand.of)?, (self.tensor(operand.tensor)?, operand.which)))
    }

    fn tensor(&self, tensor: TensorId) -> Result<TensorId, Problem> {
        let is_known = (tensor.0 as usize) < self.workload.tensors.len();
        if is_known { Ok(tensor) } else { Err(Problem::NoTensor(tensor)) }
    }

    fn var(&self, name: &LoopName) -> Result<Var, Problem> {
        self.loops.get(name).copied().ok_or_else(|| Problem::NoLoop(name.clone()))
    }

    fn vars(&self, names: &[LoopName]) -> Result<Vec<Var>, Problem> {
        names.iter().map(|name| self.var(name)).collect()
    }

    fn named(&mut self, names: &[LoopName], vars: &[Var]) -> Result<(), Problem> {
        if names.len() != vars.len() {
            return Err(Problem::Names { found: names.len(), expected: vars.len() });
        }
        self.loops.extend(names.iter().cloned().zip(vars.iter().copied()));
        Ok(())
    }
}

fn positive(iterations: i64) -> Result<i64, Problem> {
    if iterations > 0 { Ok(iterations) } else { Err(Problem::NoIterations(iterations)) }
}
