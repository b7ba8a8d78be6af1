//! Schedules as text: a line for a step.

use std::fmt::{self, Display, Formatter};

use super::step::joined;
use super::{Copy, Level, Reads, Schedule, Step};
use crate::nest::rewrite::pack::{Content, Layout};
use crate::nest::{LoopKind, axis_name};
use crate::workload::strassen::Panels;
use crate::workload::winograd::Order;

impl Display for Schedule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

/// The verbs by which loops are marked.
pub(super) const MARKS: [(&str, LoopKind); 8] = [
    ("serial", LoopKind::Serial),
    ("parallel", LoopKind::Parallel),
    ("vectorize", LoopKind::Vector),
    ("unroll", LoopKind::Unroll),
    ("block", LoopKind::Block),
    ("thread", LoopKind::Thread),
    ("warp", LoopKind::Warp),
    ("matrix", LoopKind::Matrix),
];

/// Steps without arguments.
pub(super) const PLAIN: [(&str, Step); 8] = [
    ("drop_unit_loops", Step::DropUnitLoops),
    ("peel_tails", Step::PeelTails),
    ("in_tiles", Step::InTiles),
    ("share_in_blocks", Step::ShareInBlocks),
    ("in_threads", Step::InThreads),
    ("fill_tails", Step::FillTails),
    ("drop_setup_results", Step::DropSetupResults),
    ("drop_unused", Step::DropUnused),
];

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Winograd { outputs, order: Order::Points } => write!(f, "winograd {outputs}"),
            Step::Winograd { outputs, order: Order::Rows } => write!(f, "winograd {outputs} by rows"),
            Step::Strassen { panels: None } => write!(f, "strassen"),
            Step::Strassen { panels: Some(Panels { of, width }) } => write!(f, "strassen by {} {width}", of.name()),
            Step::MergeGroups { groups } => write!(f, "merge_groups {groups}"),
            Step::FlattenRows => write!(f, "flatten_rows"),
            Step::SplitReduction { stage, axis, parts } => {
                write!(f, "split_reduction s{stage} {} into {parts}", axis_name(*axis))
            }
            Step::Epilogue { stage, of } => write!(f, "epilogue s{stage} of s{of}"),
            Step::Split { over, by, into } => {
                write!(f, "split {over} by {by} into ")?;
                joined(f, into)
            }
            Step::Group { over, by, into } => {
                write!(f, "group {over} by {by} into ")?;
                joined(f, into)
            }
            Step::Tile { over, by, into } => {
                write!(f, "tile {over} by ")?;
                joined(f, by)?;
                f.write_str(" into ")?;
                joined(f, into)
            }
            Step::Fuse { outer, inner, into } => write!(f, "fuse {outer} {inner} into {into}"),
            Step::Enclose { over, by } => write!(f, "enclose {over} in {by}"),
            Step::Reorder { order } => {
                f.write_str("reorder ")?;
                joined(f, order)
            }
            Step::Join { loops } => {
                f.write_str("join ")?;
                joined(f, loops)
            }
            Step::Mark { kind, loops } => {
                let verb = MARKS.iter().find(|(_, known)| known == kind).map_or("serial", |(verb, _)| verb);
                write!(f, "{verb} ")?;
                joined(f, loops)
            }
            Step::Multiply { rows, columns, depth, operands } => {
                write!(f, "multiply {rows} {columns} {depth} {}", operands.name())
            }
            Step::Accumulate { stage, at, blocks, lanes } => {
                write!(f, "accumulate s{stage} at {at}")?;
                if let Some((over, inside)) = blocks {
                    write!(f, " over {over} inside ")?;
                    joined(f, inside)?;
                }
                if !lanes.is_empty() {
                    f.write_str(" lanes ")?;
                    joined(f, lanes)?;
                }
                Ok(())
            }
            Step::Factor { steps } => write!(f, "factor {steps}"),
            Step::Pack { operand, level, layout, content } => {
                write!(f, "pack {operand} ")?;
                match level {
                    Level::Setup => f.write_str("setup")?,
                    Level::Before => f.write_str("before")?,
                    Level::Inside(over) => write!(f, "inside {over}")?,
                }
                f.write_str(match layout {
                    Layout::Panel => " panel",
                    Layout::Box => " box",
                })?;
                f.write_str(match content {
                    Content::Own => "",
                    Content::Converted => " converted",
                })
            }
            Step::Fetch { operand, inside, copy, padding, lanes, threads } => {
                write!(f, "fetch {operand} inside {inside} {copy} padding {padding} lanes {lanes} threads {threads}")
            }
            Step::Privatise { tensor, rows } => {
                write!(f, "privatise t{} over", tensor.0)?;
                rows.iter().try_for_each(|(over, block)| write!(f, " {over} {block}"))
            }
            Step::StripMine { lanes } => write!(f, "strip_mine {lanes}"),
            Step::Persist { steps, grid_blocks, combiner } => {
                write!(f, "persist {steps} over {grid_blocks} {}", combiner.name())
            }
            Step::Pipeline { steps, depth } => write!(f, "pipeline {steps} depth {depth}"),
            Step::DropUnitLoops
            | Step::PeelTails
            | Step::InTiles
            | Step::ShareInBlocks
            | Step::InThreads
            | Step::FillTails
            | Step::DropSetupResults
            | Step::DropUnused => f.write_str(PLAIN.iter().find(|(_, step)| step == self).map_or("", |(verb, _)| verb)),
        }
    }
}

/// `t1 0 of s0ao`
impl Display for Reads {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "t{} {} of {}", self.tensor.0, self.which, self.of)
    }
}

/// `panel [s0c1] [s0b1 s0b2]`
impl Display for Copy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (kind, dimensions) = match self {
            Copy::Box => return f.write_str("box"),
            Copy::Panel { dimensions } => ("panel", dimensions),
            Copy::CoreMatrices { dimensions, by_columns: true } => ("matrices_by_columns", dimensions),
            Copy::CoreMatrices { dimensions, by_columns: false } => ("matrices_by_rows", dimensions),
        };
        f.write_str(kind)?;
        for loops in dimensions {
            f.write_str(" [")?;
            joined(f, loops)?;
            f.write_str("]")?;
        }
        Ok(())
    }
}
