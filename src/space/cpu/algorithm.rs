//! Which algorithm computes the task: as it is written, or a convolution by Winograd's, a product by
//! Strassen's, groups of channels several at once, the rows of an image as one.

use std::ops::RangeInclusive;

use super::convolution::fewest_cycles;
use crate::space::rows::RowLimits;
use crate::space::{Rule, Step, Stop, Tape, View, Words, name, site};
use crate::target::{Cpu, TILE_LANES, TILE_ROWS};
use crate::workload::strassen::{self, Panels, Side};
use crate::workload::winograd::{self, Order};
use crate::workload::{flat, merged};

/// Rewrites the workload before anything else is decided. Three rules ask the same of different tasks, since
/// records of the second and third kinds are older than their questions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Algorithm {
    /// Of f32, with an epilogue at most.
    Plain,
    /// Large products, by Strassen's algorithm. And convolutions of short numbers, or with several results:
    /// products of f32 all the same, a quarter of them with tiles of 4 x 4, where an instruction for short
    /// numbers takes at best half of the time for all.
    Further,
    /// Convolutions whose windows move by two elements: as the sum of those of their phases.
    Strided,
}

/// Outputs of a tile in each dimension.
const WINOGRAD_TILES: [i64; 2] = [2, 4];

impl Rule<Cpu> for Algorithm {
    fn name(&self) -> &'static str {
        match self {
            Algorithm::Plain => "algorithm",
            Algorithm::Further => "further-algorithm",
            Algorithm::Strided => "strided-algorithm",
        }
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        *self != Algorithm::Plain
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        // what is no convolution may be a product, and what the first of the rules rewrote is neither
        let otherwise = |tape: &mut Tape<'_>| match self {
            Algorithm::Further if view.winograd().is_none() => product(view, tape),
            _ => Ok(Vec::new()),
        };
        let is_asked = match self {
            Algorithm::Strided => view.winograd().is_none(),
            _ => winograd::is_plain(&view.workload) == (*self == Algorithm::Plain),
        };
        if view.exact || !is_asked {
            return otherwise(tape);
        }
        let mut tiles = winograd::choices(&view.workload, &WINOGRAD_TILES);
        tiles.retain(|of| (of.stride > 1) == (*self == Algorithm::Strided));
        if tiles.is_empty() {
            return otherwise(tape);
        }
        let mut candidates = vec![name("direct")];
        candidates.extend(tiles.iter().map(|of| Words(vec!["winograd".into(), of.outputs.unsigned_abs().into()])));
        let default = fewest_cycles(&view.workload, &tiles, view.machine).map_or(0, |at| at + 1);
        let before = match self {
            Algorithm::Plain => default,
            Algorithm::Further | Algorithm::Strided => 0,
        };
        let answer = tape.choose_since(site("algorithm", []), candidates.clone(), default, before)?;
        let chosen = candidates.iter().position(|c| *c == answer).filter(|c| *c > 0).map(|c| tiles[c - 1].outputs);
        Ok(chosen.map(|outputs| Step::Winograd { outputs, order: Order::Points }).into_iter().collect())
    }
}

/// With fewer registers, what is multiplied at once leaves too much over of a panel's rows: by default,
/// products take seven of half the size where there are so many.
const MANY_REGISTERS: u32 = 32;

/// Whether a large product takes seven of half the size.
fn product(view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
    if view.exact || !strassen::applies(&view.workload) {
        return Ok(Vec::new());
    }
    let candidates = ["direct", "strassen"].map(name).to_vec();
    // before products were cut into panels, it paid for few of them
    let default = usize::from(view.machine.vector_registers >= MANY_REGISTERS);
    let is_taken = tape.choose_since(site("algorithm", []), candidates, default, 0)?.is("strassen");
    Ok(is_taken.then_some(Step::Strassen { panels: None }).into_iter().collect())
}

/// What the halves of a product by Strassen's algorithm are cut into, so that what the seven products leave
/// is added up while it is in the cache.
pub(super) struct ProductPanels;

/// Rows or columns of a panel, of each half.
const PANEL_WIDTHS: RangeInclusive<i64> = 12..=256;
/// The same of the untuned program, at most.
const MOST_ROWS: i64 = 16;
const MOST_COLUMNS: i64 = 64;

impl Rule<Cpu> for ProductPanels {
    fn name(&self) -> &'static str {
        "product-panels"
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        // what was rewritten is whole so far
        let Some(halves) = view.strassen().and_then(|_| strassen::halves(view.given)) else { return Ok(Vec::new()) };
        let cuts = Cuts { halves, machine: view.machine };
        let sides: Vec<Side> = Side::ALL.into_iter().filter(|side| !cuts.widths(*side).is_empty()).collect();
        if sides.is_empty() {
            return Ok(Vec::new());
        }
        let candidates = std::iter::once("none").chain(sides.iter().map(|side| side.name())).map(name).collect();
        let default = sides.iter().position(|side| cuts.untuned(*side).is_some()).map_or(0, |at| at + 1);
        // before there was the rule, products went through memory
        let answer = tape.choose_since(site("panel", ["algorithm".into()]), candidates, default, 0)?;
        let Some(of) = sides.into_iter().find(|side| answer.is(side.name())) else { return Ok(Vec::new()) };
        let (widths, untuned) = (cuts.widths(of), cuts.untuned(of));
        let default = widths.iter().position(|width| untuned == Some(*width)).unwrap_or(0);
        let width = tape.choose_number(site("block", ["algorithm".into()]), &widths, default)?;
        Ok(vec![Step::Strassen { panels: Some(Panels { of, width }) }])
    }
}

/// How halves of a product may be cut into panels.
struct Cuts<'a> {
    /// Rows and columns of a half.
    halves: [i64; 2],
    machine: &'a Cpu,
}

impl Cuts<'_> {
    fn half(&self, of: Side) -> i64 {
        let [rows, columns] = self.halves;
        match of {
            Side::Rows => rows,
            Side::Columns => columns,
        }
    }

    fn widths(&self, of: Side) -> Vec<i64> {
        let half = self.half(of);
        PANEL_WIDTHS.filter(|width| *width < half && half % width == 0).collect()
    }

    /// The width of the untuned program, if there are panels of this side that suit the machine: what a few
    /// rows leave stays in the cache with what comes of it, while weights pass by. Where there are none,
    /// columns do that fill vectors.
    fn untuned(&self, of: Side) -> Option<i64> {
        let (most, step) = match of {
            Side::Rows => (MOST_ROWS, 1),
            Side::Columns => (MOST_COLUMNS, 2 * self.machine.lanes()),
        };
        let is_shared = |width: i64| {
            let panels = self.half(of) / width;
            panels % i64::from(self.machine.cores) == 0 || panels >= self.machine.enough_blocks()
        };
        let suits = |width: &i64| *width <= most && width % step == 0 && is_shared(*width);
        self.widths(of).into_iter().rev().find(suits)
    }
}

/// Whether groups of channels are multiplied several at once. Zeros are multiplied as well: by default where
/// tile registers take so many filters at once that a group does not have.
pub(super) struct Groups;

impl Rule<Cpu> for Groups {
    fn name(&self) -> &'static str {
        "groups"
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        if view.winograd().is_some() {
            return Ok(Vec::new());
        }
        let choices = merged::choices(&view.workload);
        let mut candidates = vec![name("none")];
        candidates.extend(choices.iter().map(|groups| Words::from(groups.unsigned_abs())));
        let operands = view.workload.stages.first().and_then(|stage| view.workload.widened_operands(stage));
        let filled = || merged::to_fill(&view.workload, &choices, TILE_LANES);
        let default = operands.filter(|operands| view.machine.has_tiles(*operands)).and_then(|_| filled());
        let default = default.map_or(0, |at| at + 1);
        // before there was the rule, each group was multiplied by itself
        let answer = tape.choose_since(site("algorithm", ["groups".into()]), candidates.clone(), default, 0)?;
        let chosen = candidates.iter().position(|c| *c == answer).and_then(|c| c.checked_sub(1));
        Ok(chosen.map(|at| Step::MergeGroups { groups: choices[at] }).into_iter().collect())
    }
}

/// Whether the rows of an image are one, with what lies between them, where tile registers take more rows at
/// once than a row of results fills.
pub(super) struct FlatRows;

/// By default, where it takes at least a tenth of the tiles less.
const WORTH_IT: i64 = 10;

impl Rule<Cpu> for FlatRows {
    fn name(&self) -> &'static str {
        "flat-rows"
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let operands = view.workload.stages.first().and_then(|stage| view.workload.widened_operands(stage));
        let in_tiles = operands.filter(|operands| view.machine.has_tiles(*operands));
        let Some(([rows, columns], all)) = in_tiles.and_then(|_| flat::extents(&view.workload)) else {
            return Ok(Vec::new());
        };
        let tiles = |results: i64| (results + TILE_ROWS - 1) / TILE_ROWS;
        let (apart, fused) = (rows * tiles(columns), tiles(all));
        if fused >= apart {
            return Ok(Vec::new());
        }
        let candidates = ["apart", "fused"].map(name).to_vec();
        let default = usize::from((apart - fused) * WORTH_IT >= apart);
        // before there was the rule, rows were apart
        let answer = tape.choose_since(site("algorithm", ["rows".into()]), candidates, default, 0)?;
        Ok(answer.is("fused").then_some(Step::FlattenRows).into_iter().collect())
    }
}

/// Whether the stages of Winograd's algorithm lead with rows of tiles, so that rows may go through all of
/// them one after the other; or with points, each of which is one large product.
pub(super) struct TileRows;

impl Rule<Cpu> for TileRows {
    fn name(&self) -> &'static str {
        "tile-rows"
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let Some((outputs, _)) = view.winograd() else { return Ok(Vec::new()) };
        let candidates = vec![name("none"), name("each")];
        // before there was the rule, every stage went through all tiles
        let answer = tape.choose_since(site("rows", ["tiles".into()]), candidates.clone(), 1, 0)?;
        let by_rows = answer == candidates[1];
        Ok(by_rows.then_some(Step::Winograd { outputs, order: Order::Rows }).into_iter().collect())
    }
}
