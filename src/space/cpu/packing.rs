//! Which operands are copied before they are read, where, and into which order.

use super::matrix;
use crate::nest::rewrite::pack::{Content, Layout};
use crate::space::access::Access;
use crate::space::fuse::touches;
use crate::space::operands::{MAXIMAL_SHORT, fits_box, is_short_constant, packable, reads_short_constants};
use crate::space::schedule::{self, Reads};
use crate::space::{Group, Rule, Step, Stop, Tape, View, Word, Words, name, site};
use crate::target::Cpu;
use crate::workload::{Role, TensorId, Var, gcd};

pub(super) struct Pack;

/// What the rule goes by, beside what the machine says.
struct Heuristics {
    /// Elements of a copy that each thread keeps, at most.
    maximal_private: i64,
    /// Elements of a copy of a whole operand, at most.
    maximal_whole: i64,
    /// Processors fetch ahead within so many bytes.
    page_bytes: u64,
    /// How many lines of the second cache what lies a way apart competes for.
    ways: u64,
}

const HEURISTICS: Heuristics =
    Heuristics { maximal_private: 1 << 20, maximal_whole: 1 << 26, page_bytes: 4096, ways: 16 };

impl Rule<Cpu> for Pack {
    fn name(&self) -> &'static str {
        "pack"
    }

    fn version(&self) -> u32 {
        2
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let workload = &*view.workload;
        let mut steps = Vec::new();
        for group in &view.groups {
            tape.defaults_only(group.defaults_only);
            let mut done: Vec<TensorId> = Vec::new();
            for (access, which) in packable(workload, group) {
                let options = options(view, group, &access);
                let named = options.iter().map(|(level, layout)| Words::from(words(*level, *layout)));
                // an instruction for short numbers takes no guards
                let of_guard = group.dot.is_some() && access.guarded;
                let needs_copy = (of_guard || matrix::needs_copy(workload, group, &access)) && !options.is_empty();
                let first = usize::from(!needs_copy);
                let candidates: Vec<Words> = std::iter::repeat_n(name("none"), first).chain(named).collect();
                let default = default_option(view, group, &access, &options);
                let default = if needs_copy { default.saturating_sub(1) } else { default };
                let tensor = format!("t{}", access.tensor.0);
                let mut site = site("pack", [group.name(), tensor.into()]);
                site.0.extend(which.map(|which| Word::Number(which as u64)));
                let answer = tape.choose(site, candidates.clone(), default)?;
                let chosen = candidates.iter().position(|c| *c == answer).and_then(|c| c.checked_sub(first));
                if let Some((level, layout)) = chosen.map(|at| options[at]) {
                    // what is packed already reads a copy
                    let before = done.iter().filter(|tensor| **tensor == access.tensor).count();
                    let which = which.unwrap_or(0) - before;
                    done.push(access.tensor);
                    steps.extend(pack(group, (access.tensor, which), level, layout));
                }
            }
        }
        Ok(steps)
    }
}

/// Where in the nest an operand can be packed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    /// When the network is compiled.
    Setup,
    /// Before the stage.
    Before,
    /// Inside of the outer loops.
    Outer,
    /// Inside of the loop over reduction blocks.
    Block,
}

fn pack(group: &Group, (tensor, which): (TensorId, usize), level: Level, layout: Layout) -> Option<Step> {
    let mut outer = group.outer_order.iter().filter_map(|at| group.loops(*at)).map(|loops| &loops.outer);
    let of = outer.clone().next().or(group.at.as_ref())?.clone();
    let last = outer.next_back().or(group.at.as_ref())?.clone();
    // weights stay as short as they are, since they are read from memory once; what is copied for a block is
    // read from a cache often
    let stays_short = level == Level::Setup || group.dot.is_some();
    let content = if stays_short { Content::Own } else { Content::Converted };
    let level = match level {
        Level::Setup => schedule::Level::Setup,
        Level::Before => schedule::Level::Before,
        Level::Outer => schedule::Level::Inside(last),
        Level::Block => {
            let blocks = group.depth().and_then(|at| group.loops(at));
            schedule::Level::Inside(blocks.map_or(last, |loops| loops.outer.clone()))
        }
    };
    Some(Step::Pack { operand: Reads { tensor, which, of }, level, layout, content })
}

fn words(level: Level, layout: Layout) -> &'static str {
    match (level, layout) {
        (Level::Setup, Layout::Panel) => "setup panel",
        (Level::Setup, Layout::Box) => "setup box",
        (Level::Before, Layout::Panel) => "before panel",
        (Level::Before, Layout::Box) => "before box",
        (Level::Outer, Layout::Panel) => "outer panel",
        (Level::Outer, Layout::Box) => "outer box",
        (Level::Block, Layout::Panel) => "block panel",
        (Level::Block, Layout::Box) => "block box",
    }
}

/// Where and how an operand can be packed.
fn options(view: &View<'_, Cpu>, group: &Group, access: &Access) -> Vec<(Level, Layout)> {
    let workload = &*view.workload;
    // a blocked row is another one in each iteration of the loop over its blocks
    let of_rows = view.is_of_rows(access);
    let constant = workload.tensor(access.tensor).role == Role::Constant;
    let boxes = fits_box(view, group, access);
    let mut options = Vec::new();
    let mut offer = |level: Level, whole: bool, spatial_blocks: bool, depth_blocks: bool, most: i64| {
        let elements: i64 = (0..group.axes.len())
            .filter(|at| touches(access, group, *at))
            .map(|at| {
                let axis = &group.axes[at];
                let cut = if axis.reduction { depth_blocks } else { spatial_blocks };
                if cut && !whole { (axis.tile * axis.block).min(axis.extent) } else { axis.tiles() * axis.tile }
            })
            .product();
        if elements <= most {
            options.push((level, Layout::Panel));
            if boxes && level != Level::Setup {
                options.push((level, Layout::Box));
            }
        }
    };
    if constant && !of_rows && !access.is_of_run {
        let is_short = is_short_constant(workload, access.tensor);
        let most = if is_short { MAXIMAL_SHORT } else { HEURISTICS.maximal_whole };
        offer(Level::Setup, true, false, false, most);
    }
    if view.rows.is_empty() && !constant {
        offer(Level::Before, true, false, false, HEURISTICS.maximal_whole);
    }
    offer(Level::Outer, false, true, false, HEURISTICS.maximal_private);
    if group.depth().is_some() {
        offer(Level::Block, false, true, true, HEURISTICS.maximal_private);
    }
    options
}

/// Constants are packed offline; what runs in vectors but not along memory is packed per block, padding too,
/// unless only windows read it again: a pooling reads too little of it to pay for a copy. What is broadcast
/// to vectors is read again by each of their blocks, so its copy is made once for all, where borders or
/// strides ask for one. What is read again, and comes from far away each time because of how it lies, is
/// copied, too.
fn default_option(view: &View<'_, Cpu>, group: &Group, access: &Access, options: &[(Level, Layout)]) -> usize {
    let workload = &*view.workload;
    let find = |wanted: (Level, Layout)| options.iter().position(|o| *o == wanted).map(|at| at + 1);
    if workload.tensor(access.tensor).role == Role::Constant {
        return find((Level::Setup, Layout::Panel)).unwrap_or(0);
    }
    let spatial = group.positions(false);
    if spatial.iter().all(|at| touches(access, group, *at)) {
        // where channels are last, a border is asked for at every point of a window, unless it is written out
        let is_short = workload.tensor(access.tensor).dtype.bytes() <= 2;
        let written_out = find((Level::Outer, Layout::Box)).filter(|_| is_short && access.guarded);
        return written_out.unwrap_or(0);
    }
    // an instruction takes the steps of a lane side by side
    if let Some(dot) = &group.dot {
        let in_lanes = group.vector.is_some_and(|at| touches(access, group, at));
        let is_near = access.stride(workload, Var(group.axes[dot.axis].position as u32)) == Some(1);
        let copy = match (in_lanes, is_near, access.guarded) {
            (true, ..) => find((Level::Outer, Layout::Panel)),
            (false, true, false) if matrix::needs_copy(workload, group, access) => find((Level::Outer, Layout::Panel)),
            (false, true, false) => None,
            (false, true, true) => find((Level::Before, Layout::Box)).or_else(|| find((Level::Outer, Layout::Box))),
            (false, false, _) => find((Level::Before, Layout::Panel)),
        };
        return copy.unwrap_or(0);
    }
    let stride = |at: usize| access.stride(workload, Var(group.axes[at].position as u32));
    let vector = group.vector.filter(|at| !group.axes[*at].reduction);
    if vector.is_some_and(|at| !touches(access, group, at)) {
        let jumps =
            || spatial.iter().any(|at| group.fused != Some(*at) && group.axes[*at].tile > 1 && stride(*at) != Some(1));
        // an axis that only weights cut into blocks is still in order
        let in_blocks = || reads_short_constants(workload, group) && !access.slides(&workload.stages[group.stage]);
        let whole = match access.guarded {
            true => find((Level::Before, Layout::Box)).or_else(|| find((Level::Outer, Layout::Box))),
            false if access.has_scaled_axis() && jumps() && !in_blocks() => find((Level::Before, Layout::Panel)),
            false if is_far(view, group, access) => find((Level::Before, Layout::Panel)),
            false => None,
        };
        return whole.unwrap_or(0);
    }
    let vector = vector.filter(|at| touches(access, group, *at));
    // rows of a fused axis that follow one another in memory are one row
    let in_order = |at: usize| {
        let row = Var(group.axes[at].position as u32 + 1);
        let width = workload.stages[group.stage].extent(row.0 as usize);
        access.stride(workload, row) == Some(1) && stride(at) == Some(width) && !access.guarded
    };
    if vector.is_some_and(|at| if group.fused == Some(at) { !in_order(at) } else { stride(at) != Some(1) }) {
        return find((Level::Outer, Layout::Panel)).unwrap_or(0);
    }
    if vector.is_some() && !access.guarded && is_evicted(view, group, access) {
        let copy = find((Level::Block, Layout::Panel)).or_else(|| find((Level::Outer, Layout::Panel)));
        return copy.unwrap_or(0);
    }
    if access.guarded {
        return find((Level::Outer, Layout::Box)).unwrap_or(0);
    }
    0
}

/// How far apart in memory the steps of a sum read an operand, in bytes, and how many a block has; of steps
/// that lie pages apart.
fn far_steps(view: &View<'_, Cpu>, group: &Group, access: &Access) -> Vec<(u64, i64)> {
    let bytes = view.workload.tensor(access.tensor).dtype.bytes() as u64;
    let steps = group.positions(true).into_iter().filter_map(|at| {
        let stride = access.stride(&view.workload, Var(group.axes[at].position as u32))?;
        Some((stride.unsigned_abs() * bytes, group.axes[at].tile * group.axes[at].block))
    });
    steps.filter(|(apart, _)| *apart >= HEURISTICS.page_bytes).collect()
}

/// Whether other results of a block, or other blocks, read an operand again.
fn is_read_again(group: &Group, access: &Access) -> bool {
    let again = |at: usize| !touches(access, group, at) && group.axes[at].tiles() > 1;
    group.positions(false).into_iter().any(again)
}

/// Whether an operand that is read page by page comes from beyond the second cache again and again. Nothing
/// is fetched ahead across pages, so that every step waits.
fn is_far(view: &View<'_, Cpu>, group: &Group, access: &Access) -> bool {
    let tensor = view.workload.tensor(access.tensor);
    let bytes = tensor.elements() as u64 * tensor.dtype.bytes() as u64;
    bytes > view.machine.l2_bytes && !far_steps(view, group, access).is_empty() && is_read_again(group, access)
}

/// Whether what the steps of a block read has left the second cache when the next tile reads it again,
/// however little it is: steps that lie powers of two apart compete for the same few lines.
fn is_evicted(view: &View<'_, Cpu>, group: &Group, access: &Access) -> bool {
    let way = (view.machine.l2_bytes / HEURISTICS.ways).max(1);
    let is_crowded = |(apart, steps): &(u64, i64)| {
        let places = way / gcd(*apart, way);
        // half of the lines are for others
        steps.unsigned_abs() > places * HEURISTICS.ways / 2
    };
    far_steps(view, group, access).iter().any(is_crowded) && is_read_again(group, access)
}
