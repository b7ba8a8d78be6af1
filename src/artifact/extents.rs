//! What of a network depends on the extents of a run: sizes of inputs, outputs and intermediates, and the
//! numbers that kernels are given.

use std::collections::BTreeMap;

use tilescribe_runtime::RunTimeExtent;

use super::error::ArtifactError;
use super::formula;
use super::margins::margins;
use super::memory;
pub(super) use super::tables::PortExtents;
use super::tables::{Argument, Choice, Counting, Extent, ExtentTables, Shift, TableBlock};
use crate::graph::{Binding, Network, NetworkBuffer, Region, RegionKind, RunTime};
use crate::workload::{Index, Interval, Parameter, Var};

/// An intermediate in the arena: its buffer, and the calls that need it.
pub(super) type Living = (usize, memory::Block);

/// The tables of a network whose extents are not all fixed, and by buffer its block in them. `arena` holds
/// the intermediates, and where they would start if all were as large as they can be.
///
/// # Errors
/// [`ArtifactError::Internal`] where a call gives its kernel too few numbers.
pub(super) fn tables(
    network: &Network,
    ports: PortExtents,
    arena: &[Living],
    offsets: &[u64],
) -> Result<(ExtentTables, Vec<Option<usize>>), ArtifactError> {
    let blocks: Vec<memory::Block> = arena.iter().map(|(_, block)| *block).collect();
    let (order, below) = memory::stacked(&blocks, offsets);
    let mut block_of = vec![None; network.buffers.len()];
    let margins = margins(network);
    let mut table = Vec::with_capacity(order.len());
    for (number, (at, below)) in order.into_iter().zip(below).enumerate() {
        let (buffer, _) = arena[at];
        let about = &network.buffers[buffer];
        block_of[buffer] = Some(number);
        let mut extents = rooms(network, about);
        if let Some(last) = extents.last_mut().filter(|_| margins[buffer] > 0) {
            last.formula = last.formula.clone().plus_constant(margins[buffer]);
            (last.least, last.most) = (last.least + margins[buffer], last.most + margins[buffer]);
        }
        table.push(TableBlock { extents, element_bytes: about.dtype.bytes(), below });
    }
    let tables = ExtentTables {
        symbols: network.symbols.clone(),
        ports,
        blocks: table,
        parameters: parameters(network)?,
        counts: network.regions.iter().map(count).collect(),
        shifts: Vec::new(),
        choices: choices(network),
        countings: Vec::new(),
    };
    Ok((tables, block_of))
}

/// The extents of a buffer, with the range of each.
pub(super) fn extents(network: &Network, buffer: &NetworkBuffer) -> Vec<Extent> {
    let extent = |(axis, most): (usize, &i64)| {
        let formula = buffer.extents.formula(axis, *most);
        let least = range(network, &formula).map_or(0, |range| range.low.clamp(0, (*most).max(0)));
        Extent { formula, least, most: *most }
    };
    buffer.shape.iter().enumerate().map(extent).collect()
}

/// What the extents of a buffer are at most before anything is counted: where they do not grow with what is
/// counted, what they are at most in any run.
pub(super) fn rooms(network: &Network, buffer: &NetworkBuffer) -> Vec<Extent> {
    let room = |extent: Extent| match network.symbols.grows_with_counts(&extent.formula) {
        true => extent,
        false => Extent { formula: Index::constant(extent.most), ..extent },
    };
    extents(network, buffer).into_iter().map(room).collect()
}

/// The calls that count; `arguments` are those of all calls.
pub(super) fn countings(network: &Network, arguments: &[Vec<Argument>]) -> Vec<Counting> {
    let (mut found, mut first) = (Vec::new(), 0);
    for (call, (about, own)) in network.calls.iter().zip(arguments).enumerate() {
        // the count is the last of what the routine takes and gives
        let argument = first + about.arguments.len().saturating_sub(1);
        found.extend(about.count.map(|symbol| Counting { call, symbol, argument }));
        first += own.len();
    }
    found
}

fn range(network: &Network, formula: &Index) -> Option<Interval> {
    let symbols = &network.symbols.list;
    let is_unknown = |var: Var| var.as_parameter().is_none_or(|number| number >= symbols.len());
    let anything = Interval { low: i64::MIN, high: i64::MAX };
    let of = |var: Var| {
        var.as_parameter().and_then(|number| symbols.get(number)).map_or(anything, |symbol| symbol.range.interval())
    };
    if formula.any_var(&is_unknown) { None } else { formula.range(&of) }
}

/// How often the calls of a region run: the formula, and the range; 0 under a condition.
fn count(region: &Region) -> (Index, Parameter) {
    match &region.kind {
        RegionKind::Repeat { count, formula, .. } => {
            let formula = formula.clone().unwrap_or(Index::constant(*count));
            (formula, Parameter { low: 1, high: *count })
        }
        RegionKind::If { .. } | RegionKind::Nearest { .. } => (Index::constant(0), Parameter { low: 0, high: 0 }),
    }
}

/// The regions of which one call runs.
fn choices(network: &Network) -> Vec<Choice> {
    let first_number = |call: usize| network.calls[..call].iter().map(|call| call.parameters.len()).sum();
    let choice = |(number, region): (usize, &Region)| match &region.kind {
        RegionKind::Nearest { points } => {
            Some(Choice { region: number, first_number: first_number(region.calls.start), points: points.clone() })
        }
        RegionKind::If { .. } | RegionKind::Repeat { .. } => None,
    };
    network.regions.iter().enumerate().filter_map(choice).collect()
}

/// The numbers that calls give their kernels, one call after the other.
fn parameters(network: &Network) -> Result<Vec<(Index, Parameter)>, ArtifactError> {
    let mut found = Vec::new();
    for (number, call) in network.calls.iter().enumerate() {
        let taken = call.numbers(&network.tasks);
        if taken.len() != call.parameters.len() {
            let (given, taken) = (call.parameters.len(), taken.len());
            return Err(ArtifactError::Internal(format!(
                "call {number} gives {given} numbers, its kernel takes {taken}"
            )));
        }
        found.extend(call.parameters.iter().cloned().zip(taken));
    }
    Ok(found)
}

/// The arguments of calls, and then the conditions of regions, that move with the extents of a run.
pub(super) fn shifts(network: &Network, arguments: &[Vec<Argument>], conditions: &[Option<Argument>]) -> Vec<Shift> {
    let mut found = Vec::new();
    let mut note = |number: usize, binding: &Binding, argument: &Argument| {
        let RunTime { offset, step } = &binding.run_time;
        if offset.is_none() && step.is_none() {
            return;
        }
        let element_bytes = network.buffers[binding.buffer].dtype.bytes();
        let base = argument.place.offset() as i64 - binding.offset * element_bytes as i64;
        let number_of = |formula: &Option<Index>, most: i64| (formula.clone().unwrap_or(Index::constant(most)), most);
        let (offset, step) = (number_of(offset, binding.offset), number_of(step, binding.motion.step));
        found.push(Shift { argument: number, base, element_bytes, offset, step });
    };
    let mut first = 0;
    for (call, own) in network.calls.iter().zip(arguments) {
        let bound = call.arguments.iter().zip(own).enumerate();
        bound.for_each(|(at, (binding, argument))| note(first + at, binding, argument));
        first += own.len();
    }
    let conditions = network.regions.iter().zip(conditions);
    let conditions = conditions.filter_map(|(region, argument)| Some((region.condition()?, argument.as_ref()?)));
    conditions.enumerate().for_each(|(at, (binding, argument))| note(first + at, binding, argument));
    found
}

/// The extents of a buffer that are known only when it runs, as the manifest has them.
pub(super) fn described(network: &Network, buffer: &NetworkBuffer) -> BTreeMap<usize, RunTimeExtent> {
    let names: Vec<&str> = network.symbols.list.iter().map(|symbol| symbol.name.as_str()).collect();
    let all = extents(network, buffer).into_iter().enumerate();
    let known_late = all.filter(|(axis, _)| buffer.extents.get(*axis).is_some());
    let describe = |Extent { formula, least, .. }: Extent| {
        Some(RunTimeExtent { least, formula: formula::formula(&formula)?, text: formula::text(&formula, &names) })
    };
    known_late.filter_map(|(axis, extent)| Some((axis, describe(extent)?))).collect()
}
