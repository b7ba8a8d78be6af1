//! Products by weights in bf16, and those of activations that are used often, as in attention: both operands
//! are rounded, and summed in f32.
//!
//! What a product reads is stored in bf16 by whoever computes it, next to the f32 that others read. Where
//! little is computed of each element, memory decides rather than arithmetic, and everyone reads the bf16; so
//! do sums over each channel alone (depthwise), and windows that take the greatest of several elements, which
//! rounding leaves the greatest. What is concatenated for them is rounded before. A rounded value is off by
//! 2⁻⁹ of itself at most; subnormals of bf16, below 10⁻³⁸, may be taken as 0.

use std::collections::{BTreeMap, BTreeSet};

use super::moved::{in_bf16, moved_rounded};
use super::product::{PAIR, by_weight, of_activations};
use super::steps::{are_grouped, is_grouped};
use super::{Products, free_tensors};
use crate::graph::{Program, ProgramStage, Step, TensorData};
use crate::workload::{Combiner, DType, Element, Expr, Index, Role, Stage, TensorId, Var};

/// Multiplications by which an element is used, up to which memory decides.
const FEW_USES: i64 = 1024;
/// Multiplications by which an activation is used, from which on it is rounded to be multiplied by another.
const MANY_USES: i64 = 16;
/// Smaller tensors stay in the nearest caches, whatever they are made of.
const SMALL_ELEMENTS: i64 = 1 << 14;

/// Rounds the operands of products in f32.
pub fn round_products(program: &mut Program, products: Products) {
    let found = Found::new(program, products);
    let mut short: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for operand in found.products.values().flatten() {
        if let (None, Some(data)) = (short.get(operand), program.data[operand.0 as usize].as_ref()) {
            let data = rounded_data(data);
            short.insert(*operand, program.add_constant(data));
        }
    }
    let mut to_round = found.rounded(program);
    let alone: BTreeSet<TensorId> = to_round.iter().filter(|(_, alone)| **alone).map(|(tensor, _)| *tensor).collect();
    let multiplied = |at: usize, read: TensorId| found.products.get(&at).is_some_and(|both| both.contains(&read));
    let moved = moved_rounded(program, &alone, &|at, read| alone.contains(&read) || multiplied(at, read));
    to_round.extend(moved.values().flatten().map(|source| (*source, true)));
    let mut rounded = BTreeMap::new();
    for (tensor, alone) in to_round {
        let short = program.add_tensor(program.tensor(tensor).shape.clone(), DType::BF16, Role::Intermediate);
        program.tensors[short.0 as usize].extents = program.tensor(tensor).extents.clone();
        rounded.insert(tensor, Rounded { short, alone });
    }
    short.extend(rounded.iter().map(|(tensor, rounded)| (*tensor, rounded.short)));
    for (at, step) in program.steps.iter_mut().enumerate() {
        let Some(held) = step.stage_mut() else { continue };
        let Stage { output, value, .. } = &mut held.stage;
        if moved.contains_key(output) {
            let of = |tensor: TensorId| short.get(&tensor).copied().unwrap_or(tensor);
            (*value, *output) = (in_bf16(value, &of), of(*output));
        } else if found.products.contains_key(&at) {
            *value = with_short_operands(value, &short);
        } else {
            read_short(held, &rounded);
        }
    }
    // what is moved is rounded by then
    rounded.retain(|tensor, _| !moved.contains_key(tensor));
    store_rounded(program, &rounded);
}

/// A tensor's rounded form.
struct Rounded {
    short: TensorId,
    /// Whether nobody reads the tensor itself.
    alone: bool,
}

/// What is to be rounded.
#[derive(Default)]
struct Found {
    /// Both operands of products, by the position of their steps.
    products: BTreeMap<usize, [TensorId; 2]>,
    /// How often elements of activations are multiplied, by tensor.
    uses: BTreeMap<TensorId, i64>,
    /// Of which tensor a window takes the greatest, by the result.
    greatest: BTreeMap<TensorId, TensorId>,
}

impl Found {
    fn new(program: &Program, products: Products) -> Found {
        let mut found = Found::default();
        for (at, step) in program.steps.iter().enumerate() {
            let Some(stage) = step.stage().map(|held| &held.stage) else { continue };
            let is_f32 = |tensor: TensorId| program.tensor(tensor).dtype == DType::F32;
            let uses = |tensor: TensorId| stage.points() / program.tensor(tensor).elements().max(1);
            let operands = by_weight(program, stage);
            if let Some(operands) = operands.filter(|[_, other]| is_f32(other.tensor) && is_f32(stage.output)) {
                let [weight, other] = operands.map(|operand| operand.tensor);
                *found.uses.entry(other).or_default() += uses(other);
                if is_f32(weight) && is_grouped(program, stage, &operands, PAIR) {
                    found.products.insert(at, [weight, other]);
                }
            }
            let is_used = |operand: &Element| is_f32(operand.tensor) && uses(operand.tensor) >= MANY_USES;
            let operands = of_activations(program, stage).filter(|both| both.iter().all(is_used));
            if let (Some(operands), Products::All) = (operands, products)
                && is_f32(stage.output)
                && are_grouped(stage, &operands, PAIR)
            {
                let both = operands.map(|operand| operand.tensor);
                both.iter().for_each(|tensor| *found.uses.entry(*tensor).or_default() += uses(*tensor));
                found.products.insert(at, both);
            }
            found.greatest.extend(greatest(program, stage).map(|source| (stage.output, source)));
        }
        found
    }

    /// The tensors that are rounded, each with whether everyone reads it so.
    fn rounded(&self, program: &Program) -> BTreeMap<TensorId, bool> {
        let free = free_tensors(program);
        let may_be_alone =
            |tensor: &TensorId| free.contains(tensor) && self.uses.get(tensor).is_none_or(|uses| *uses <= FEW_USES);
        let is_computed = |tensor: &TensorId| program.data[tensor.0 as usize].is_none();
        let multiplied: BTreeSet<TensorId> = self.products.values().flatten().copied().filter(is_computed).collect();
        let is_large = |tensor: &TensorId| program.tensor(*tensor).elements() >= SMALL_ELEMENTS;
        let of_channels =
            self.uses.keys().filter(|tensor| !self.products.is_empty() && is_large(tensor) && may_be_alone(tensor));
        let mut rounded: BTreeMap<TensorId, bool> =
            multiplied.iter().chain(of_channels).map(|tensor| (*tensor, may_be_alone(tensor))).collect();
        let mut pending: Vec<TensorId> = rounded.keys().copied().collect();
        while let Some(tensor) = pending.pop() {
            if let Some(source) = self.greatest.get(&tensor).filter(|source| may_be_alone(source))
                && rounded.insert(*source, true).is_none()
            {
                pending.push(*source);
            }
        }
        rounded
    }
}

/// The tensor of f32 of whose elements in a window a stage takes the greatest.
fn greatest(program: &Program, stage: &Stage) -> Option<TensorId> {
    let read = match &stage.value {
        Expr::Guard { inside, .. } => inside,
        other => other,
    };
    let Expr::Load { tensor, indices } = read else { return None };
    let slides = indices.iter().any(|index| stage.slides(index));
    let is_f32 = program.tensor(*tensor).dtype == DType::F32;
    (stage.combiner == Some(Combiner::Maximum) && slides && is_f32).then_some(*tensor)
}

fn rounded_data(data: &TensorData) -> TensorData {
    let elements = data.bytes.as_chunks::<4>().0.iter().map(|element| f64::from(f32::from_le_bytes(*element)));
    TensorData::from_f64(data.shape.clone(), DType::BF16, elements)
}

/// A product whose operands are read in bf16.
fn with_short_operands(value: &Expr, short: &BTreeMap<TensorId, TensorId>) -> Expr {
    let read = value.map_loads(&mut |tensor, indices| Some(Expr::load(*short.get(&tensor)?, indices.to_vec())));
    let Expr::Binary(op, x, y) = read else { return read };
    let widened = |operand: Expr| {
        let short = match operand {
            Expr::Guard { conditions, inside, .. } => {
                let zero = Expr::Cast(DType::BF16, Box::new(Expr::float(0.0)));
                Expr::guard(conditions, *inside, zero)
            }
            other => other,
        };
        Expr::Cast(DType::F32, Box::new(short))
    };
    Expr::binary(op, widened(*x), widened(*y))
}

/// Reads of tensors that are there in bf16 alone.
fn read_short(ProgramStage { stage, .. }: &mut ProgramStage, rounded: &BTreeMap<TensorId, Rounded>) {
    stage.value = stage.value.map_loads(&mut |tensor, indices| {
        let Rounded { short, .. } = rounded.get(&tensor).filter(|rounded| rounded.alone)?;
        Some(Expr::Cast(DType::F32, Box::new(Expr::load(*short, indices.to_vec()))))
    });
}

/// Rounds tensors right behind the steps that write them, and inputs before all others.
fn store_rounded(program: &mut Program, rounded: &BTreeMap<TensorId, Rounded>) {
    let steps = std::mem::take(&mut program.steps);
    let written: BTreeSet<TensorId> = steps.iter().flat_map(Step::outputs).collect();
    let round = |program: &mut Program, tensor: TensorId, node: &str| {
        let Some(Rounded { short, .. }) = rounded.get(&tensor) else { return };
        let about = program.tensor(tensor);
        let indices = (0..about.shape.len()).map(|axis| Index::var(Var(axis as u32))).collect();
        let value = Expr::Cast(DType::BF16, Box::new(Expr::load(tensor, indices)));
        let extents = about.extents.clone();
        let stage = Stage { extents, ..Stage::map(*short, about.shape.clone(), value) };
        program.add_stage(stage, node);
    };
    for tensor in rounded.keys().filter(|tensor| !written.contains(tensor)) {
        round(program, *tensor, "Cast");
    }
    for step in steps {
        let (outputs, node) = (step.outputs(), step.node().to_string());
        program.steps.push(step);
        outputs.into_iter().for_each(|tensor| round(program, tensor, &node));
    }
}
