//! Scalar expressions over loaded elements: what a stage computes at one point.

use super::index::{Index, Interval, Var};
use super::primitive::{Binary, Unary};
use super::scalar::identity_integer;
use super::{Combiner, DType, TensorId};

/// A finite or infinite number, compared and hashed by its bits.
#[derive(Clone, Copy, Debug)]
pub struct Float(pub f64);

impl Float {
    fn key(self) -> u64 {
        self.0.to_bits()
    }
}

impl PartialEq for Float {
    fn eq(&self, other: &Float) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Float {}
impl PartialOrd for Float {
    fn partial_cmp(&self, other: &Float) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Float {
    fn cmp(&self, other: &Float) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
impl std::hash::Hash for Float {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// `low <= index < high`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Condition {
    pub index: Index,
    pub low: i64,
    pub high: i64,
}

impl Condition {
    /// `index < end`, where the end is known only when it runs.
    pub fn below(index: &Index, end: &Index) -> Condition {
        Condition { index: end.clone().minus(index), low: 1, high: i64::MAX }
    }

    /// `0 <= index < extent`, of an extent that is `most` at most: two conditions where it is known only when
    /// it runs.
    pub fn within(index: &Index, extent: Option<&Index>, most: i64) -> Vec<Condition> {
        let inside = Condition { index: index.clone(), low: 0, high: most };
        std::iter::once(inside).chain(extent.map(|extent| Condition::below(index, extent))).collect()
    }

    /// What it says about an index that differs from its own, or from the negative of it, by a constant.
    pub fn implied_range(&self, index: &Index) -> Option<Interval> {
        let (low, high) = (self.low, self.high.saturating_sub(1));
        if let Some(shift) = index.clone().minus(&self.index).as_constant() {
            return Some(Interval { low: low.saturating_add(shift), high: high.saturating_add(shift) });
        }
        // the end of a run-time extent is a condition on what is left up to it
        let sum = index.clone().plus(&self.index).as_constant()?;
        Some(Interval { low: sum.saturating_sub(high), high: sum.saturating_sub(low) })
    }

    /// The same conditions, those on one index as one.
    #[must_use]
    pub fn joined(conditions: &[Condition]) -> Vec<Condition> {
        let mut joined: Vec<Condition> = Vec::with_capacity(conditions.len());
        for condition in conditions {
            let same = joined.iter_mut().find_map(|own| Some((condition.implied_range(&own.index)?, own)));
            match same {
                None => joined.push(condition.clone()),
                Some((Interval { low, high }, own)) => {
                    (own.low, own.high) = (own.low.max(low), own.high.min(high.saturating_add(1)));
                }
            }
        }
        joined
    }
}

/// A scalar expression. Float literals are f32, indices are i64; other types come from loads and casts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Expr {
    Float(Float),
    Index(Index),
    Load {
        tensor: TensorId,
        indices: Vec<Index>,
    },
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `condition ? yes : no`, both sides computed.
    Select {
        condition: Box<Expr>,
        yes: Box<Expr>,
        no: Box<Expr>,
    },
    /// `inside` where every condition holds, else `outside`. The loads of `inside` happen only where they
    /// hold, so it is how padding is written.
    Guard {
        conditions: Vec<Condition>,
        inside: Box<Expr>,
        outside: Box<Expr>,
    },
    Cast(DType, Box<Expr>),
    /// The bits of a value, as a value of another type of as many bits. A Boolean is a byte.
    Bits(DType, Box<Expr>),
}

impl Expr {
    pub fn float(value: f64) -> Expr {
        Expr::Float(Float(value))
    }

    pub fn integer(value: i64) -> Expr {
        Expr::Index(Index::constant(value))
    }

    pub fn load(tensor: TensorId, indices: Vec<Index>) -> Expr {
        Expr::Load { tensor, indices }
    }

    pub fn unary(op: Unary, x: Expr) -> Expr {
        Expr::Unary(op, Box::new(x))
    }

    pub fn binary(op: Binary, x: Expr, y: Expr) -> Expr {
        Expr::Binary(op, Box::new(x), Box::new(y))
    }

    pub fn select(condition: Expr, yes: Expr, no: Expr) -> Expr {
        Expr::Select { condition: Box::new(condition), yes: Box::new(yes), no: Box::new(no) }
    }

    /// `inside` where all conditions hold; no conditions give `inside` itself.
    pub fn guard(conditions: Vec<Condition>, inside: Expr, outside: Expr) -> Expr {
        if conditions.is_empty() {
            return inside;
        }
        Expr::Guard { conditions, inside: Box::new(inside), outside: Box::new(outside) }
    }

    /// Whether it reads one element or another, by where it is, as in a concatenation; a border of literals
    /// is no such choice.
    pub fn chooses(&self) -> bool {
        match self {
            Expr::Guard { inside, outside, .. } => {
                let mut reads = false;
                outside.for_each_load(&mut |_, _| reads = true);
                reads || inside.chooses()
            }
            Expr::Cast(_, inner) => inner.chooses(),
            _ => false,
        }
    }

    /// The operands, in order.
    pub fn children(&self) -> impl Iterator<Item = &Expr> {
        let operands: [Option<&Expr>; 3] = match self {
            Expr::Float(_) | Expr::Index(_) | Expr::Load { .. } => [None; 3],
            Expr::Unary(_, x) | Expr::Cast(_, x) | Expr::Bits(_, x) => [Some(x), None, None],
            Expr::Binary(_, x, y) => [Some(x), Some(y), None],
            Expr::Select { condition, yes, no } => [Some(condition), Some(yes), Some(no)],
            Expr::Guard { inside, outside, .. } => [Some(inside), Some(outside), None],
        };
        operands.into_iter().flatten()
    }

    /// The operands, in order.
    pub fn children_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        let operands: [Option<&mut Expr>; 3] = match self {
            Expr::Float(_) | Expr::Index(_) | Expr::Load { .. } => [None, None, None],
            Expr::Unary(_, x) | Expr::Cast(_, x) | Expr::Bits(_, x) => [Some(x), None, None],
            Expr::Binary(_, x, y) => [Some(x), Some(y), None],
            Expr::Select { condition, yes, no } => [Some(condition), Some(yes), Some(no)],
            Expr::Guard { inside, outside, .. } => [Some(inside), Some(outside), None],
        };
        operands.into_iter().flatten()
    }

    /// The type of an expression that is well typed, by those of the tensors.
    pub fn dtype(&self, of: &dyn Fn(TensorId) -> DType) -> DType {
        match self {
            Expr::Float(_) => DType::F32,
            Expr::Index(_) => DType::I64,
            Expr::Load { tensor, .. } => of(*tensor),
            Expr::Cast(dtype, _) | Expr::Bits(dtype, _) => *dtype,
            Expr::Unary(Unary::Not, _) => DType::Bool,
            Expr::Binary(op, ..) if op.is_comparison() || matches!(op, Binary::And | Binary::Or) => DType::Bool,
            Expr::Unary(_, x) | Expr::Binary(_, x, _) => x.dtype(of),
            Expr::Select { yes, .. } => yes.dtype(of),
            Expr::Guard { inside, .. } => inside.dtype(of),
        }
    }

    /// The integer that it is, where it is a literal that the types it is converted to hold.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Expr::Index(index) => index.as_constant(),
            Expr::Cast(dtype, x) if !dtype.is_float() => {
                x.as_integer().filter(|value| (dtype.least()..=dtype.greatest()).contains(value))
            }
            _ => None,
        }
    }

    /// Whether it computes nothing: a literal, an index or an element, converted at most.
    pub fn is_plain(&self) -> bool {
        match self {
            Expr::Float(_) | Expr::Index(_) | Expr::Load { .. } => true,
            Expr::Cast(_, x) => x.is_plain(),
            _ => false,
        }
    }

    /// Whether it is the literal 0, converted at most, whose bits are all 0 in every type.
    pub fn is_zero(&self) -> bool {
        match self {
            Expr::Float(number) => number.0 == 0.0 && number.0.is_sign_positive(),
            Expr::Index(index) => index.as_constant() == Some(0),
            Expr::Cast(_, x) => x.is_zero(),
            _ => false,
        }
    }

    /// Rebuilds the expression from below: operands first, then `change` on the result.
    #[must_use]
    pub fn rewrite(&self, change: &mut dyn FnMut(Expr) -> Expr) -> Expr {
        let rebuilt = match self {
            Expr::Float(_) | Expr::Index(_) | Expr::Load { .. } => self.clone(),
            Expr::Unary(op, x) => Expr::unary(*op, x.rewrite(change)),
            Expr::Cast(dtype, x) => Expr::Cast(*dtype, Box::new(x.rewrite(change))),
            Expr::Bits(dtype, x) => Expr::Bits(*dtype, Box::new(x.rewrite(change))),
            Expr::Binary(op, x, y) => Expr::binary(*op, x.rewrite(change), y.rewrite(change)),
            Expr::Select { condition, yes, no } => {
                Expr::select(condition.rewrite(change), yes.rewrite(change), no.rewrite(change))
            }
            Expr::Guard { conditions, inside, outside } => Expr::Guard {
                conditions: conditions.clone(),
                inside: Box::new(inside.rewrite(change)),
                outside: Box::new(outside.rewrite(change)),
            },
        };
        change(rebuilt)
    }

    /// Replaces every index (of loads, conditions and integer values); gathered values inside of
    /// indices are the business of `change`.
    #[must_use]
    pub fn map_indices(&self, change: &mut dyn FnMut(&Index) -> Index) -> Expr {
        match self {
            Expr::Float(value) => Expr::Float(*value),
            Expr::Index(index) => Expr::Index(change(index)),
            Expr::Load { tensor, indices } => Expr::load(*tensor, indices.iter().map(change).collect()),
            Expr::Unary(op, x) => Expr::unary(*op, x.map_indices(change)),
            Expr::Cast(dtype, x) => Expr::Cast(*dtype, Box::new(x.map_indices(change))),
            Expr::Bits(dtype, x) => Expr::Bits(*dtype, Box::new(x.map_indices(change))),
            Expr::Binary(op, x, y) => Expr::binary(*op, x.map_indices(change), y.map_indices(change)),
            Expr::Select { condition, yes, no } => {
                Expr::select(condition.map_indices(change), yes.map_indices(change), no.map_indices(change))
            }
            Expr::Guard { conditions, inside, outside } => {
                let (inside, outside) = (inside.map_indices(change), outside.map_indices(change));
                let changed = |c: &Condition| Condition { index: change(&c.index), low: c.low, high: c.high };
                let conditions = conditions.iter().map(changed).collect();
                Expr::Guard { conditions, inside: Box::new(inside), outside: Box::new(outside) }
            }
        }
    }

    /// Replaces variables everywhere, in gathered indices too; `None` keeps one as it is.
    #[must_use]
    pub fn substitute(&self, replace: &dyn Fn(Var) -> Option<Index>) -> Expr {
        self.map_indices(&mut |index| index.substitute(replace))
    }

    /// [`Expr::substitute`] in place: nothing is rebuilt where no variable is replaced.
    pub fn replace_vars<'a>(&mut self, by: &dyn Fn(Var) -> Option<&'a Index>) {
        self.own_indices_mut().for_each(|index| index.replace_vars(by));
        self.children_mut().for_each(|child| child.replace_vars(by));
    }

    /// The indices of this expression itself, without those of its operands.
    fn own_indices(&self) -> impl Iterator<Item = &Index> {
        let (plain, conditions): (&[Index], &[Condition]) = match self {
            Expr::Index(index) => (std::slice::from_ref(index), &[]),
            Expr::Load { indices, .. } => (indices, &[]),
            Expr::Guard { conditions, .. } => (&[], conditions),
            _ => (&[], &[]),
        };
        plain.iter().chain(conditions.iter().map(|c| &c.index))
    }

    fn own_indices_mut(&mut self) -> impl Iterator<Item = &mut Index> {
        let (plain, conditions): (&mut [Index], &mut [Condition]) = match self {
            Expr::Index(index) => (std::slice::from_mut(index), &mut []),
            Expr::Load { indices, .. } => (indices, &mut []),
            Expr::Guard { conditions, .. } => (&mut [], conditions),
            _ => (&mut [], &mut []),
        };
        plain.iter_mut().chain(conditions.iter_mut().map(|c| &mut c.index))
    }

    /// Visits every index of this expression, without descending into gathered values
    /// ([`Index::for_each_var`] does).
    pub fn for_each_index(&self, visit: &mut dyn FnMut(&Index)) {
        self.own_indices().for_each(&mut *visit);
        self.children().for_each(|child| child.for_each_index(visit));
    }

    /// Whether it depends on a variable.
    pub fn mentions(&self, var: Var) -> bool {
        self.any_var(&|v| v == var)
    }

    /// Whether `wanted` holds for a variable that it depends on.
    pub fn any_var(&self, wanted: &dyn Fn(Var) -> bool) -> bool {
        self.own_indices().any(|index| index.any_var(wanted)) || self.children().any(|child| child.any_var(wanted))
    }

    /// Visits every load, those inside of gathered indices too.
    pub fn for_each_load(&self, visit: &mut dyn FnMut(TensorId, &[Index])) {
        if let Expr::Load { tensor, indices } = self {
            visit(*tensor, indices);
        }
        for index in self.own_indices() {
            for_each_gathered(index, &mut |expr| expr.for_each_load(visit));
        }
        self.children().for_each(|child| child.for_each_load(visit));
    }

    /// Replaces loads, innermost first, those inside of gathered indices too; `None` keeps one.
    #[must_use]
    pub fn map_loads(&self, change: &mut dyn FnMut(TensorId, &[Index]) -> Option<Expr>) -> Expr {
        let gathered = self.map_indices(&mut |index| map_gathered(index, &mut |expr| expr.map_loads(change)));
        gathered.rewrite(&mut |expr| match &expr {
            Expr::Load { tensor, indices } => change(*tensor, indices).unwrap_or(expr),
            _ => expr,
        })
    }

    /// Changes the indices of loads in place, innermost first, those inside of gathered indices too.
    pub fn for_each_load_mut(&mut self, change: &mut dyn FnMut(TensorId, &mut Vec<Index>)) {
        for index in self.own_indices_mut().filter(|index| index.has_value()) {
            *index = map_gathered(index, &mut |expr| {
                let mut expr = expr.clone();
                expr.for_each_load_mut(change);
                expr
            });
        }
        if let Expr::Load { tensor, indices } = self {
            change(*tensor, indices);
        }
        self.children_mut().for_each(|child| child.for_each_load_mut(change));
    }
}

/// The literal that an accumulation starts from.
pub fn identity(combiner: Combiner, dtype: DType) -> Expr {
    if dtype.is_float() {
        return Expr::float(combiner.identity());
    }
    Expr::integer(identity_integer(combiner, dtype))
}

/// The same as a part of an expression, whose operands are all of one type.
pub fn typed_identity(combiner: Combiner, dtype: DType) -> Expr {
    let literal = identity(combiner, dtype);
    if matches!(dtype, DType::F32 | DType::I64) { literal } else { Expr::Cast(dtype, Box::new(literal)) }
}

fn for_each_gathered(index: &Index, visit: &mut dyn FnMut(&Expr)) {
    use super::index::Atom;
    for (atom, _) in index.terms() {
        match atom {
            Atom::Var(_) => {}
            Atom::FloorDiv(inner, _) | Atom::Modulo(inner, _) => for_each_gathered(inner, visit),
            Atom::Value(expr) => visit(expr),
        }
    }
}

fn map_gathered(index: &Index, change: &mut dyn FnMut(&Expr) -> Expr) -> Index {
    use super::index::Atom;
    let mut result = Index::constant(index.offset());
    for (atom, coefficient) in index.terms() {
        let value = match atom {
            Atom::Var(var) => Index::var(*var),
            Atom::FloorDiv(inner, divisor) => map_gathered(inner, change).floor_div(*divisor),
            Atom::Modulo(inner, divisor) => map_gathered(inner, change).modulo(*divisor),
            Atom::Value(expr) => Index::value(change(expr)),
        };
        result = result.plus(&value.times(*coefficient));
    }
    result
}
