//! What a factor of a product is, seen through the stages that make it: `scale · (q - zero point)` of a short
//! integer `q` in memory.

use super::Maps;
use crate::graph::Program;
use crate::graph::lower::math::{add, multiply};
use crate::workload::{Binary, Condition, DType, Expr, Index, Stage, TensorId, Var};

/// Stages and operators that are looked through, one behind the other.
const MAX_DEPTH: usize = 24;

/// `scale · (q - zero)` where all guards hold, else 0.
#[derive(Clone, Debug)]
pub struct Factor {
    pub tensor: TensorId,
    pub indices: Vec<Index>,
    pub dtype: DType,
    pub guards: Vec<Condition>,
    /// Of i32; `None`: 0.
    pub zero: Option<Expr>,
    /// Of f32; `None`: 1.
    pub scale: Option<Expr>,
}

impl Factor {
    /// The integer itself; outside of the guards it is what stands for 0.
    pub fn element(&self, outside: Expr) -> Expr {
        Expr::guard(self.guards.clone(), self.element_inside(), outside)
    }

    /// The integer where all guards hold.
    pub fn element_inside(&self) -> Expr {
        Expr::load(self.tensor, self.indices.clone())
    }
}

/// Reads the operands of one stage.
pub struct Reader<'a> {
    pub program: &'a Program,
    pub maps: &'a Maps,
    pub stage: &'a Stage,
}

impl Reader<'_> {
    /// A factor whose scale and zero point are the same in all steps of the reduction.
    pub fn factor(&self, value: &Expr) -> Option<Factor> {
        let mut factor = self.followed(value, MAX_DEPTH)?;
        for parameter in [&mut factor.zero, &mut factor.scale].into_iter().flatten() {
            *parameter = parameter.map_indices(&mut |index| index.simplify(&|var| self.stage.axis_range(var)));
            if !self.is_same_in_all_steps(parameter) {
                return None;
            }
        }
        Some(factor)
    }

    fn dtype(&self, tensor: TensorId) -> DType {
        self.program.tensor(tensor).dtype
    }

    fn dtype_of(&self, value: &Expr) -> DType {
        value.dtype(&|tensor| self.dtype(tensor))
    }

    fn followed(&self, value: &Expr, depth: usize) -> Option<Factor> {
        let depth = depth.checked_sub(1)?;
        match value {
            Expr::Load { tensor, indices } => match self.dtype(*tensor) {
                dtype @ (DType::U8 | DType::I8) => {
                    let (tensor, indices) = (*tensor, indices.clone());
                    let is_known = !indices.iter().any(Index::has_value);
                    let of_memory = Factor { tensor, indices, dtype, guards: vec![], zero: None, scale: None };
                    is_known.then_some(of_memory)
                }
                _ => {
                    let producer = self.maps.get(tensor)?;
                    let at = |var: Var| indices.get(var.0 as usize).cloned();
                    self.followed(&producer.value.substitute(&at), depth)
                }
            },
            // exact: the integers are short, and so are their differences
            Expr::Cast(DType::F32 | DType::I32 | DType::I64, inner) if !self.dtype_of(inner).is_float() => {
                self.followed(inner, depth)
            }
            Expr::Guard { conditions, inside, outside } if outside.is_zero() => {
                let inner = self.followed(inside, depth)?;
                Some(Factor { guards: [conditions.clone(), inner.guards].concat(), ..inner })
            }
            Expr::Binary(Binary::Subtract, x, zero) if !matches!(self.dtype_of(x), DType::U8 | DType::I8) => {
                let inner = self.followed(x, depth)?;
                if !inner.guards.is_empty() || inner.scale.is_some() {
                    return None;
                }
                let zero = self.zero_point(zero)?;
                let zero = inner.zero.map_or(zero.clone(), |before| add(before, zero));
                Some(Factor { zero: Some(zero), ..inner })
            }
            Expr::Binary(Binary::Multiply, x, y) if self.dtype_of(x) == DType::F32 => {
                let scaled = |x: &Expr, scale: &Expr| {
                    let inner = self.followed(x, depth)?;
                    let scale = inner.scale.map_or(scale.clone(), |before| multiply(before, scale.clone()));
                    Some(Factor { scale: Some(scale), ..inner })
                };
                match [self.is_parameter(x), self.is_parameter(y)] {
                    [_, true] => scaled(x, y),
                    [true, false] => scaled(y, x),
                    [false, false] => None,
                }
            }
            _ => None,
        }
    }

    /// A short integer as one of i32.
    fn zero_point(&self, value: &Expr) -> Option<Expr> {
        match value {
            Expr::Cast(_, inner) if !self.dtype_of(inner).is_float() => self.zero_point(inner),
            Expr::Index(index) if index.as_constant().is_some_and(|zero| zero.abs() < 1 << 15) => Some(wide(value)),
            Expr::Load { tensor, .. } => {
                let is_short = matches!(self.dtype(*tensor), DType::U8 | DType::I8);
                (is_short && self.is_parameter(value)).then(|| wide(value))
            }
            _ => None,
        }
    }

    /// Whether a value is made of literals, of constants, and of tensors of one element.
    fn is_parameter(&self, value: &Expr) -> bool {
        let mut all = true;
        value.for_each_load(&mut |tensor, _| {
            let is_constant = self.program.data[tensor.0 as usize].is_some();
            all &= is_constant || self.program.tensor(tensor).elements() == 1;
        });
        all
    }

    /// Whether a value depends on no reduction axis, and is there at every point.
    fn is_same_in_all_steps(&self, value: &Expr) -> bool {
        let is_spatial = |var: Var| (var.0 as usize) < self.stage.spatial.len();
        let mut is_inside = true;
        value.for_each_load(&mut |tensor, indices| {
            let shape = &self.program.tensor(tensor).shape;
            for (index, extent) in indices.iter().zip(shape) {
                let range = index.range(&|var| self.stage.axis_range(var));
                is_inside &= range.is_some_and(|range| range.low >= 0 && range.high < *extent);
            }
        });
        is_inside && !value.any_var(&|var| !is_spatial(var))
    }
}

/// As a number of i32.
pub fn wide(value: &Expr) -> Expr {
    Expr::Cast(DType::I32, Box::new(value.clone()))
}
