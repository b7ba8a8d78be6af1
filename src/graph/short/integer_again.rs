//! What is quantised as it was before keeps its integers: a tensor that is dequantised, only moved (reshaped,
//! transposed, cut, padded with zeros) or pooled by maxima, and quantised again by the same scale and zero
//! point. `round((q - z) · s / s) + z` is `q`: the quotient is nearer to `q - z` than 1/1000.

use super::Maps;
use super::integer_constants::{Known, Over};
use super::integer_factor::{Factor, Reader};
use super::integer_store::quantized;
use crate::graph::Program;
use crate::graph::lower::math::literal;
use crate::workload::{Binary, Combiner, DType, Expr, Index, Stage, Unary, Var};

/// Lets integers stay integers; whether any did.
pub fn unchanged(program: &mut Program) -> bool {
    let mut maxima = super::Maps::new();
    super::for_each_stage(&program.steps, &mut |stage| {
        if stage.combiner == Some(Combiner::Maximum) {
            maxima.insert(stage.output, stage.clone());
        }
    });
    program.replace_stages(&mut |program, maps, stage| {
        let quantized = Quantized::of(program, stage)?;
        let value = quantized.element(program, maps, stage, &quantized.value);
        if let Some(value) = value {
            return Some(vec![Stage { value, ..stage.clone() }]);
        }
        // a maximum of numbers is that of the integers that they stand for
        let pooled = pooled(&maxima, stage, &quantized.value)?;
        let least = quantized.dtype.least();
        let value = match &pooled.value {
            Expr::Guard { conditions, inside, outside } if is_least(outside) => {
                let inside = quantized.element(program, maps, pooled, inside)?;
                Expr::guard(conditions.clone(), inside, literal(quantized.dtype, least as f64))
            }
            plain => quantized.element(program, maps, pooled, plain)?,
        };
        Some(vec![Stage { output: stage.output, value, ..pooled.clone() }])
    })
}

/// The maxima that a stage reads, each at its own point.
fn pooled<'m>(maxima: &'m Maps, stage: &Stage, value: &Expr) -> Option<&'m Stage> {
    let Expr::Load { tensor, indices } = value else { return None };
    let is_own = |(axis, index): (usize, &Index)| {
        index.as_var() == Some(Var(axis as u32)) || (index.as_constant() == Some(0) && stage.is_unit(axis))
    };
    let pooled = maxima.get(tensor)?;
    (stage.is_over_results_of(pooled) && indices.iter().enumerate().all(is_own)).then_some(pooled)
}

fn is_least(value: &Expr) -> bool {
    matches!(value, Expr::Float(number) if number.0 == f64::NEG_INFINITY)
}

/// What a stage quantises, and how.
struct Quantized {
    value: Expr,
    dtype: DType,
    scale: f64,
    zero: i64,
}

impl Quantized {
    fn of(program: &Program, stage: &Stage) -> Option<Quantized> {
        let (dtype, mut sum) = quantized(&stage.value)?;
        if stage.is_reduction() {
            return None;
        }
        let number = |value: &Expr| Known::new(program, stage, value, DType::F32, Over::Nothing)?.uniform();
        let mut zero = 0.0;
        while let Expr::Binary(Binary::Add, rest, more) = sum {
            zero += number(more)?;
            sum = rest;
        }
        let Expr::Unary(Unary::Round, quotient) = sum else { return None };
        let Expr::Binary(Binary::Divide, value, scale) = &**quotient else { return None };
        let scale = number(scale).filter(|scale| scale.is_normal() && *scale > 0.0)?;
        Some(Quantized { value: (**value).clone(), dtype, scale, zero: zero as i64 })
    }

    /// The integer that a value stands for, if it is of this scale and zero point.
    fn element(&self, program: &Program, maps: &Maps, stage: &Stage, value: &Expr) -> Option<Expr> {
        let factor = Reader { program, maps, stage }.factor(value)?;
        let Factor { dtype, zero, scale, .. } = &factor;
        let number = |value: &Expr, dtype| Known::new(program, stage, value, dtype, Over::Nothing)?.uniform();
        let zero = zero.as_ref().map_or(Some(0.0), |zero| number(zero, DType::I32))?;
        let same =
            *dtype == self.dtype && zero as i64 == self.zero && number(scale.as_ref()?, DType::F32) == Some(self.scale);
        same.then(|| factor.element(literal(*dtype, zero)))
    }
}
