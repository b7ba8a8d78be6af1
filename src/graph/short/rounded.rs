//! Products by weights in bf16: both operands are rounded, and summed in f32.
//!
//! What a product reads is stored in bf16 by whoever computes it, next to the f32 that others read. Where
//! little is computed of each element, memory decides rather than arithmetic, and everyone reads the bf16.
//! A rounded value is off by 2⁻⁹ of itself at most; subnormals of bf16, below 10⁻³⁸, may be taken as 0.

use std::collections::{BTreeMap, BTreeSet};

use super::free_tensors;
use super::product::{Operand, product};
use crate::graph::{Program, ProgramStage, Step, TensorData};
use crate::workload::{DType, Expr, Index, Role, Stage, TensorId, Var, put_real};

/// Multiplications by which an element is used, up to which memory decides.
const FEW_USES: i64 = 1024;
/// Steps that one instruction takes.
const PAIR: i64 = 2;

/// Rounds the operands of all products by weights in f32.
pub fn round_products(program: &mut Program) {
    let mut weights = BTreeMap::new();
    let mut uses: BTreeMap<TensorId, i64> = BTreeMap::new();
    let mut products = BTreeMap::new();
    for (at, step) in program.steps.iter().enumerate() {
        let Some([weight, other]) = step.stage().and_then(|held| operands(program, &held.stage)) else { continue };
        products.insert(at, [weight.tensor, other.tensor]);
        weights.insert(weight.tensor, ());
        let points = step.stage().map_or(0, |held| held.stage.points());
        *uses.entry(other.tensor).or_default() += points / program.tensor(other.tensor).elements().max(1);
    }
    if products.is_empty() {
        return;
    }
    let short_weights: BTreeMap<TensorId, TensorId> =
        weights.into_keys().filter_map(|weight| Some((weight, rounded_weight(program, weight)?))).collect();
    let free = free_tensors(program);
    let mut rounded = BTreeMap::new();
    for (tensor, uses) in uses {
        let short = program.add_tensor(program.tensor(tensor).shape.clone(), DType::BF16, Role::Intermediate);
        program.tensors[short.0 as usize].extents = program.tensor(tensor).extents.clone();
        rounded.insert(tensor, Rounded { short, alone: uses <= FEW_USES && free.contains(&tensor) });
    }
    let short_of = |tensor: TensorId| rounded.get(&tensor).map(|r| r.short).or(short_weights.get(&tensor).copied());
    for (at, step) in program.steps.iter_mut().enumerate() {
        match step.stage_mut() {
            Some(held) if products.contains_key(&at) => held.stage.value = with_short_operands(&held.stage.value, &short_of),
            _ => read_short(step, &rounded),
        }
    }
    store_rounded(program, &rounded);
}

/// A tensor's rounded form.
struct Rounded {
    short: TensorId,
    /// Whether nobody reads the tensor itself.
    alone: bool,
}

/// The weight and the other operand of a product by weights in f32 that an instruction can take pairs of.
fn operands<'a>(program: &Program, stage: &'a Stage) -> Option<[Operand<'a>; 2]> {
    let product = product(program, stage)?;
    let [weight, other] = product.weight_first(program)?;
    let is_f32 = [weight.dtype, other.dtype, program.tensor(stage.output).dtype] == [DType::F32; 3];
    let spatial = stage.spatial.len();
    let is_shared = (0..spatial).any(|axis| stage.extent(axis) > 1 && weight.mentions(axis) && !other.mentions(axis));
    let comes_in_pairs = |axis: usize| {
        let both = weight.mentions(axis) && other.mentions(axis);
        both && stage.extents.get(axis).is_none() && stage.extent(axis) % PAIR == 0
    };
    (is_f32 && is_shared && (spatial..stage.rank()).any(comes_in_pairs)).then_some([weight, other])
}

fn rounded_weight(program: &mut Program, weight: TensorId) -> Option<TensorId> {
    let data = program.data[weight.0 as usize].as_ref()?;
    let mut bytes = Vec::with_capacity(data.bytes.len() / 2);
    for element in data.bytes.as_chunks::<4>().0 {
        put_real(DType::BF16, f64::from(f32::from_le_bytes(*element)), &mut bytes);
    }
    let data = TensorData { shape: data.shape.clone(), dtype: DType::BF16, bytes: bytes.into() };
    Some(program.add_constant(data))
}

/// A product whose operands are read in bf16.
fn with_short_operands(value: &Expr, short_of: &dyn Fn(TensorId) -> Option<TensorId>) -> Expr {
    let read = value.map_loads(&mut |tensor, indices| Some(Expr::load(short_of(tensor)?, indices.to_vec())));
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
fn read_short(step: &mut Step, rounded: &BTreeMap<TensorId, Rounded>) {
    let Some(ProgramStage { stage, .. }) = step.stage_mut() else { return };
    stage.value = stage.value.map_loads(&mut |tensor, indices| {
        let Rounded { short, .. } = rounded.get(&tensor).filter(|rounded| rounded.alone)?;
        Some(Expr::Cast(DType::F32, Box::new(Expr::load(*short, indices.to_vec()))))
    });
}

/// Rounds tensors right behind the steps that write them, and inputs before all others.
fn store_rounded(program: &mut Program, rounded: &BTreeMap<TensorId, Rounded>) {
    let mut waiting: BTreeSet<TensorId> = rounded.keys().copied().collect();
    let steps = std::mem::take(&mut program.steps);
    let written: BTreeSet<TensorId> = steps.iter().flat_map(Step::outputs).collect();
    let from_outside: Vec<TensorId> = waiting.difference(&written).copied().collect();
    let round = |program: &mut Program, tensor: TensorId, node: String| {
        let about = program.tensor(tensor);
        let indices = (0..about.shape.len()).map(|axis| Index::var(Var(axis as u32))).collect();
        let value = Expr::Cast(DType::BF16, Box::new(Expr::load(tensor, indices)));
        let stage = Stage::map(rounded[&tensor].short, about.shape.clone(), value);
        let stage = Stage { extents: about.extents.clone(), ..stage };
        program.add_stage(stage, node);
    };
    from_outside.into_iter().for_each(|tensor| {
        waiting.remove(&tensor);
        round(program, tensor, "Cast".to_string());
    });
    for step in steps {
        let (outputs, node) = (step.outputs(), step.node().to_string());
        program.steps.push(step);
        for tensor in outputs {
            if waiting.remove(&tensor) {
                round(program, tensor, node.clone());
            }
        }
    }
}
