//! Which integers the arguments of a workload hold: of either sign and large, wherever the workload allows
//! it.
//!
//! Integers that index a tensor must lead inside of it. ONNX counts negative ones from the end, so a workload
//! wraps or clamps what it loads, and then allows any value; an index that is used as it is does not. Which
//! is the case, an interval analysis of all accesses tells: a wider range is taken where it leaves no further
//! access unproved. For what is quantised, see [`super::quantised`].

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::quantised::values_of_quantised;
use crate::workload::{Atom, Binary, Combiner, DType, Elements, Expr, Index, Interval, Role, Stage, Unary, Workload};

/// Largest magnitude of an index or of another 64-bit integer.
const LARGE: i64 = 1 << 40;

/// One value in so many is drawn from the whole range, the others near the bounds of what is indexed.
const FAR: u32 = 4;

/// What an integer tensor is filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Values {
    near: Interval,
    far: Interval,
}

impl Values {
    fn within(low: i64, high: i64) -> Values {
        Values { near: Interval { low, high }, far: Interval { low, high } }
    }

    /// The part that a type holds.
    fn of_type(self, dtype: DType) -> Values {
        let held = held_by(dtype);
        let clip = |range: Interval| Interval {
            low: range.low.clamp(held.low, held.high),
            high: range.high.clamp(held.low, held.high),
        };
        Values { near: clip(self.near), far: clip(self.far) }
    }

    /// Fills elements of an integer type.
    pub(super) fn fill(self, elements: &mut Elements, random: &mut ChaCha8Rng) {
        let values = self.of_type(elements.dtype());
        let mut draw = || {
            let is_far = values.far != values.near && random.random_range(0..FAR) == 0;
            let Interval { low, high } = if is_far { values.far } else { values.near };
            random.random_range(low..=high)
        };
        match elements {
            Elements::I8(values) => values.fill_with(|| draw() as i8),
            Elements::U8(values) => values.fill_with(|| draw() as u8),
            Elements::I32(values) => values.fill_with(|| draw() as i32),
            Elements::I64(values) => values.fill_with(draw),
            Elements::I16(values) => values.fill_with(|| draw() as i16),
            Elements::U16(values) => values.fill_with(|| draw() as u16),
            Elements::U32(values) => values.fill_with(|| draw() as u32),
            // every other one is beyond what an i64 holds
            Elements::U64(values) if self == Values::within(-LARGE, LARGE).of_type(DType::U64) => {
                values.fill_with(|| random.random());
            }
            Elements::U64(values) => values.fill_with(|| draw().cast_unsigned()),
            Elements::F32(_) | Elements::F16(_) | Elements::BF16(_) | Elements::F64(_) | Elements::Bool(_) => {}
        }
    }
}

/// By tensor: the values of those that are arguments of integers. `any_sign` tells whether the workload takes
/// numbers that are not positive.
pub(super) fn values_of_integers(workload: &Workload, any_sign: bool) -> Vec<Values> {
    let bounds = index_bounds(workload);
    let plain = plain_values(workload, any_sign);
    let mut values: Vec<Values> = workload
        .tensors
        .iter()
        .zip(&bounds)
        .map(|(tensor, bound)| bound.map_or(plain, |bound| Values::within(0, bound - 1)).of_type(tensor.dtype))
        .collect();
    let only_index = only_index(workload);
    let mut fewest = unproved(workload, &values);
    for (id, tensor) in workload.ids().filter(|(_, tensor)| matches!(tensor.role, Role::Input | Role::Constant)) {
        let at = id.0 as usize;
        let Some(bound) = bounds[at].filter(|_| !tensor.dtype.is_float() && tensor.dtype != DType::Bool) else {
            continue;
        };
        let near = Interval { low: bound.saturating_mul(-2), high: bound.saturating_mul(2) };
        let anything = Values { near, far: Interval { low: -LARGE, high: LARGE } };
        let wider = [only_index[at].then_some(anything), Some(Values::within(-bound, bound - 1))];
        for wider in wider.into_iter().flatten() {
            let before = std::mem::replace(&mut values[at], wider.of_type(tensor.dtype));
            let found = unproved(workload, &values);
            if found <= fewest {
                fewest = found;
                break;
            }
            values[at] = before;
        }
    }
    if any_sign {
        for (at, quantised) in values_of_quantised(workload).into_iter().enumerate() {
            let free = quantised.filter(|_| bounds[at].is_none());
            values[at] = free.map_or(values[at], |range| Values::within(range.low, range.high));
        }
    }
    values
}

/// Of integers that index nothing.
fn plain_values(workload: &Workload, any_sign: bool) -> Values {
    let (mut divides, mut distinguishes) = (false, false);
    for stage in &workload.stages {
        any_operator(&stage.value, &mut |expr| match expr {
            Expr::Binary(Binary::Divide | Binary::Remainder, _, divisor) => divides |= !is_literal(divisor),
            // both answers must occur, and functions of floats must not be saturated
            Expr::Binary(Binary::Equal | Binary::Power, ..) | Expr::Cast(DType::Bool, _) => distinguishes = true,
            Expr::Unary(op, _) => distinguishes |= !matches!(op, Unary::Negate | Unary::Absolute | Unary::Not),
            _ => {}
        });
    }
    let has_floats = workload.tensors.iter().any(|tensor| tensor.dtype.is_float());
    match () {
        // a divisor of 0 has no result
        () if divides || !any_sign => Values::within(1, 7),
        () if distinguishes => Values::within(-7, 7),
        () if has_floats => Values::within(-1000, 1000),
        () => Values::within(-LARGE, LARGE),
    }
}

fn is_literal(expr: &Expr) -> bool {
    match expr {
        Expr::Index(index) => index.as_constant().is_some_and(|value| value != 0),
        Expr::Cast(_, inner) => is_literal(inner),
        Expr::Float(value) => value.0 != 0.0,
        _ => false,
    }
}

/// Visits an expression and its operands, those inside of indices too.
fn any_operator(expr: &Expr, visit: &mut dyn FnMut(&Expr)) {
    visit(expr);
    for index in indices_of(expr) {
        any_gathered(index, &mut |expr| any_operator(expr, visit));
    }
    expr.children().for_each(|child| any_operator(child, visit));
}

/// The indices that stand in an expression itself.
fn indices_of(expr: &Expr) -> Vec<&Index> {
    match expr {
        Expr::Index(index) => vec![index],
        Expr::Load { indices, .. } => indices.iter().collect(),
        Expr::Guard { conditions, .. } => conditions.iter().map(|condition| &condition.index).collect(),
        _ => Vec::new(),
    }
}

fn any_gathered(index: &Index, visit: &mut dyn FnMut(&Expr)) {
    for (atom, _) in index.terms() {
        match atom {
            Atom::Var(_) => {}
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => any_gathered(inner, visit),
            Atom::Value(expr) => visit(expr),
        }
    }
}

/// By tensor: whether it is loaded for the sake of indices alone.
fn only_index(workload: &Workload) -> Vec<bool> {
    fn visit(expr: &Expr, only: &mut [bool]) {
        if let Expr::Load { tensor, .. } = expr {
            only[tensor.0 as usize] = false;
        }
        expr.children().for_each(|child| visit(child, only));
    }
    let mut only = vec![true; workload.tensors.len()];
    workload.stages.iter().for_each(|stage| visit(&stage.value, &mut only));
    only
}

/// By tensor: values below this index inside of every tensor that they index. `None` where it is used for no
/// index.
fn index_bounds(workload: &Workload) -> Vec<Option<i64>> {
    let mut bounds = vec![None; workload.tensors.len()];
    for stage in &workload.stages {
        stage.value.for_each_load(&mut |loaded, indices| {
            for (index, extent) in indices.iter().zip(&workload.tensor(loaded).shape) {
                bound_values(index, *extent, stage, &mut bounds);
            }
        });
    }
    // what an index is computed from: the same bound, since intermediates that hold indices are mostly copies
    for stage in workload.stages.iter().rev() {
        let Some(bound) = bounds[stage.output.0 as usize] else { continue };
        stage.value.for_each_load(&mut |loaded, _| narrow(&mut bounds[loaded.0 as usize], bound));
    }
    bounds
}

/// `index` runs over `0..extent`: bounds the tensors whose values take part in it.
fn bound_values(index: &Index, extent: i64, stage: &Stage, bounds: &mut [Option<i64>]) {
    for (atom, coefficient) in index.terms() {
        match atom {
            Atom::Var(_) => {}
            // a division or remainder only makes values smaller
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => bound_values(inner, extent, stage, bounds),
            Atom::Value(expr) => {
                let rest = index.clone().minus(&Index::atom(atom.clone()).times(*coefficient));
                let used = rest.range(&|var| stage.axis_range(var)).map_or(0, |interval| interval.high.max(0));
                let bound = ((extent - 1 - used) / (*coefficient).max(1) + 1).max(1);
                expr.for_each_load(&mut |loaded, _| narrow(&mut bounds[loaded.0 as usize], bound));
            }
        }
    }
}

fn narrow(bound: &mut Option<i64>, to: i64) {
    *bound = Some(bound.map_or(to, |bound| bound.min(to)));
}

/// How many accesses are not proved to stay inside, with arguments of these values.
fn unproved(workload: &Workload, values: &[Values]) -> usize {
    let given = workload.tensors.iter().zip(values);
    let mut tensors: Vec<Option<Interval>> =
        given.map(|(tensor, values)| (!tensor.dtype.is_float()).then_some(values.far)).collect();
    let mut count = 0;
    for stage in &workload.stages {
        let mut ranges = Ranges { stage, tensors: &tensors, known: Vec::new() };
        count += ranges.unproved(&stage.value, workload);
        let value = ranges.of(&stage.value);
        let points = stage.reduction.iter().try_fold(1i64, |product, extent| product.checked_mul(*extent));
        let combined = match stage.combiner {
            None | Some(Combiner::Maximum | Combiner::Minimum) => value,
            Some(Combiner::Sum) => value.zip(points).and_then(|(value, points)| value.times(points)),
            Some(Combiner::Product) => None,
        };
        tensors[stage.output.0 as usize] = stored(combined, workload.tensor(stage.output).dtype);
    }
    count
}

/// What a tensor of a type holds of values that wrap.
fn stored(value: Option<Interval>, dtype: DType) -> Option<Interval> {
    let held = held_by(dtype);
    match value {
        _ if dtype.is_float() => None,
        Some(value) if held.low <= value.low && value.high <= held.high => Some(value),
        _ if dtype == DType::I64 => None,
        _ => Some(held),
    }
}

fn held_by(dtype: DType) -> Interval {
    Interval { low: dtype.least(), high: dtype.greatest() }
}

/// Bounds of integer expressions of a stage; `None` where nothing is known.
struct Ranges<'a> {
    stage: &'a Stage,
    tensors: &'a [Option<Interval>],
    /// What the selects around tell of expressions, innermost last.
    known: Vec<(Expr, Interval)>,
}

impl Ranges<'_> {
    fn of(&mut self, expr: &Expr) -> Option<Interval> {
        let computed = self.computed(expr);
        let known: Vec<Interval> = self.known.iter().filter(|(other, _)| other == expr).map(|(_, r)| *r).collect();
        known.into_iter().fold(computed, |range, known| match range {
            None => Some(known),
            // of what never happens, either is true
            Some(range) if range.high < known.low || known.high < range.low => Some(known),
            Some(range) => Some(Interval { low: range.low.max(known.low), high: range.high.min(known.high) }),
        })
    }

    fn computed(&mut self, expr: &Expr) -> Option<Interval> {
        match expr {
            Expr::Float(_) => None,
            Expr::Index(index) => self.of_index(index),
            Expr::Load { tensor, .. } => self.tensors[tensor.0 as usize],
            Expr::Cast(dtype, x) => {
                let value = self.of(x);
                stored(value, *dtype)
            }
            Expr::Bits(dtype, _) => stored(None, *dtype),
            Expr::Unary(Unary::Negate, x) => self.of(x)?.times(-1),
            Expr::Unary(Unary::Absolute, x) => {
                let Interval { low, high } = self.of(x)?;
                let largest = low.checked_abs()?.max(high.checked_abs()?);
                Some(Interval { low: if low > 0 { low } else { 0.max(high.checked_neg()?) }, high: largest })
            }
            Expr::Unary(Unary::Sign, _) => Some(Interval { low: -1, high: 1 }),
            Expr::Unary(..) => None,
            Expr::Binary(op, x, y) => {
                let (left, right) = (self.of(x), self.of(y));
                binary(*op, left, right)
            }
            Expr::Select { condition, yes, no } => {
                let yes = self.given(condition, true, &mut |ranges| ranges.of(yes));
                let no = self.given(condition, false, &mut |ranges| ranges.of(no));
                match (yes, no) {
                    (Some(yes), Some(no)) => Some(union(yes?, no?)),
                    (Some(only), None) | (None, Some(only)) => only,
                    (None, None) => None,
                }
            }
            Expr::Guard { inside, outside, .. } => Some(union(self.of(inside)?, self.of(outside)?)),
        }
    }

    fn of_index(&mut self, index: &Index) -> Option<Interval> {
        let mut total = Interval::point(index.offset());
        for (atom, coefficient) in index.terms() {
            let part = match atom {
                Atom::Var(var) => self.stage.axis_range(*var),
                Atom::FloorDiv(inner, divisor) => {
                    let Interval { low, high } = self.of_index(inner)?;
                    Interval { low: low.div_euclid(*divisor), high: high.div_euclid(*divisor) }
                }
                Atom::Modulo(_, divisor) => Interval::below(*divisor),
                Atom::Value(expr) => self.of(expr)?,
            };
            total = total.plus(part.times(*coefficient)?)?;
        }
        Some(total)
    }

    /// What holds where a condition does, or where it does not; `None` where that never happens.
    fn given<T>(&mut self, condition: &Expr, holds: bool, then: &mut dyn FnMut(&mut Self) -> T) -> Option<T> {
        let depth = self.known.len();
        let result = self.learn(condition, holds).then(|| then(self));
        self.known.truncate(depth);
        result
    }

    /// Notes what a condition tells of its operands. Whether it can hold.
    fn learn(&mut self, condition: &Expr, holds: bool) -> bool {
        let (x, y, strict) = match condition {
            Expr::Unary(Unary::Not, inner) => return self.learn(inner, !holds),
            Expr::Binary(Binary::Less, x, y) => (x, y, true),
            Expr::Binary(Binary::LessEqual, x, y) => (x, y, false),
            _ => return true,
        };
        // not (x < y) is y <= x
        let (smaller, larger, strict) = if holds { (x, y, strict) } else { (y, x, !strict) };
        let distance = i64::from(strict);
        let (of_smaller, of_larger) = (self.of(smaller), self.of(larger));
        if of_smaller.zip(of_larger).is_some_and(|(smaller, larger)| smaller.low > larger.high.saturating_sub(distance))
        {
            return false;
        }
        if let Some(bound) = of_larger {
            let known = Interval { low: i64::MIN, high: bound.high.saturating_sub(distance) };
            self.known.push(((**smaller).clone(), known));
        }
        if let Some(bound) = of_smaller {
            let known = Interval { low: bound.low.saturating_add(distance), high: i64::MAX };
            self.known.push(((**larger).clone(), known));
        }
        true
    }

    fn unproved(&mut self, expr: &Expr, workload: &Workload) -> usize {
        let mut count = 0;
        if let Expr::Load { tensor, indices } = expr {
            for (index, extent) in indices.iter().zip(&workload.tensor(*tensor).shape) {
                let inside = self.of_index(index).is_some_and(|range| range.low >= 0 && range.high < *extent);
                count += usize::from(!inside);
            }
        }
        for index in indices_of(expr) {
            let mut inner = Vec::new();
            any_gathered(index, &mut |expr| inner.push(expr.clone()));
            count += inner.iter().map(|expr| self.unproved(expr, workload)).sum::<usize>();
        }
        if let Expr::Select { condition, yes, no } = expr {
            count += self.unproved(condition, workload);
            count += self.given(condition, true, &mut |ranges| ranges.unproved(yes, workload)).unwrap_or(0);
            return count + self.given(condition, false, &mut |ranges| ranges.unproved(no, workload)).unwrap_or(0);
        }
        count + expr.children().map(|child| self.unproved(child, workload)).sum::<usize>()
    }
}

fn binary(op: Binary, x: Option<Interval>, y: Option<Interval>) -> Option<Interval> {
    let divisor = y.filter(|y| y.low == y.high && y.low > 0).map(|y| y.low);
    match op {
        Binary::Add => x?.plus(y?),
        Binary::Subtract => x?.plus(y?.times(-1)?),
        Binary::Multiply => {
            let (x, y) = (x?, y?);
            Some(union(x.times(y.low)?, x.times(y.high)?))
        }
        Binary::Divide => {
            let (Interval { low, high }, divisor) = (x?, divisor?);
            Some(Interval { low: low.div_euclid(divisor), high: high.div_euclid(divisor) })
        }
        Binary::Remainder => divisor.map(Interval::below),
        Binary::Maximum => match (x, y) {
            (Some(x), Some(y)) => Some(Interval { low: x.low.max(y.low), high: x.high.max(y.high) }),
            (Some(known), None) | (None, Some(known)) => Some(Interval { low: known.low, high: i64::MAX }),
            (None, None) => None,
        },
        Binary::Minimum => match (x, y) {
            (Some(x), Some(y)) => Some(Interval { low: x.low.min(y.low), high: x.high.min(y.high) }),
            (Some(known), None) | (None, Some(known)) => Some(Interval { low: i64::MIN, high: known.high }),
            (None, None) => None,
        },
        Binary::Power | Binary::BitOr | Binary::BitXor | Binary::ShiftLeft => None,
        // of what has no sign and no more bits
        Binary::BitAnd | Binary::ShiftRight => x.filter(|x| x.low >= 0).map(|x| Interval { low: 0, high: x.high }),
        Binary::Less | Binary::LessEqual | Binary::Equal | Binary::And | Binary::Or => Some(Interval::below(2)),
    }
}

fn union(x: Interval, y: Interval) -> Interval {
    Interval { low: x.low.min(y.low), high: x.high.max(y.high) }
}

#[cfg(test)]
mod tests {
    use super::{LARGE, Values, values_of_integers};
    use crate::workload::{Interval, Workload};

    fn values(workload: &str) -> Values {
        let workload: Workload = workload.parse().unwrap();
        values_of_integers(&workload, true)[0]
    }

    #[test]
    fn indices_take_what_their_workload_wraps_or_clamps() {
        let table = "input t1 7 3\n";
        let anything = Interval { low: -LARGE, high: LARGE };
        for index in ["% value t0 a 7", "value rem t0 a int 7", "value min max t0 a int 0 int 6"] {
            let found = values(&format!("input t0 i64 40\n{table}out t2 40 3 t1 {index} b\n"));
            assert_eq!((found.near, found.far), (Interval { low: -14, high: 14 }, anything), "{index}");
        }
        let select = "value select lt t0 a int 0 add t0 a int 7 t0 a";
        let found = values(&format!("input t0 i64 40\n{table}out t2 40 3 t1 {select} b\n"));
        assert_eq!(found, Values::within(-7, 6));
        let found = values(&format!("input t0 i64 40\n{table}out t2 40 3 t1 value t0 a b\n"));
        assert_eq!(found, Values::within(0, 6));
        // of a select that looks at another element, nothing is known
        let other = "value select lt t0 0 int 0 add t0 a int 7 t0 a";
        let found = values(&format!("input t0 i64 40\n{table}out t2 40 3 t1 {other} b\n"));
        assert_eq!(found, Values::within(0, 6));
        // a number is used as such, too
        let both = "input t0 i64 40\ninput t1 7\nout t2 40 mul t1 % value t0 a 7 cast f32 t0 a\n";
        assert_eq!(values(both), Values::within(-7, 6));
    }

    #[test]
    fn numbers_have_either_sign_unless_something_is_divided_by_them() {
        assert_eq!(values("input t0 i8 9\nout t1 i32 9 mul cast i32 t0 a cast i32 t0 a\n"), Values::within(-128, 127));
        assert_eq!(values("input t0 u8 9\nout t1 i32 9 cast i32 t0 a\n"), Values::within(0, 255));
        assert_eq!(values("input t0 i32 9\nout t1 9 mul 0.5 cast f32 t0 a\n"), Values::within(-1000, 1000));
        assert_eq!(values("input t0 i64 9\nout t1 9 exp cast f32 t0 a\n"), Values::within(-7, 7));
        assert_eq!(values("input t0 i64 9\nout t1 i64 9 div int 5 t0 a\n"), Values::within(1, 7));
    }
}
