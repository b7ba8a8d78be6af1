//! Exact rewrites of indices and expressions, by what is known of the axes' ranges.

use crate::workload::bounds::StageFacts;
use crate::workload::evaluate::fold;
use crate::workload::form::MAX_COEFFICIENT;
use crate::workload::{Atom, Binary, Condition, Expr, Float, Index, Unary, Workload, gcd};

/// Simplifies every stage.
pub(super) fn simplify(workload: &Workload) -> Workload {
    let mut result = workload.clone();
    for stage in &mut result.stages {
        stage.value = expr(&stage.value, &StageFacts::of_stage(stage, &workload.parameters), workload);
    }
    result
}

fn expr(value: &Expr, facts: &StageFacts, workload: &Workload) -> Expr {
    let below = |x: &Expr| expr(x, facts, workload);
    match value {
        Expr::Float(literal) => Expr::float(f64::from(literal.0 as f32)),
        Expr::Index(i) => Expr::Index(index(i, facts, workload)),
        Expr::Load { tensor, indices } => {
            Expr::load(*tensor, indices.iter().map(|i| index(i, facts, workload)).collect())
        }
        Expr::Unary(op, x) => unary(*op, below(x)),
        Expr::Binary(op, x, y) => binary(*op, below(x), below(y)),
        Expr::Select { condition, yes, no } => Expr::select(below(condition), below(yes), below(no)),
        Expr::Guard { conditions, inside, outside } => {
            let mut kept: Vec<Condition> = Vec::new();
            for condition in conditions {
                let simple = Condition { index: index(&condition.index, facts, workload), ..condition.clone() };
                let known = facts.and(&kept);
                if known.never(&simple) {
                    return below(outside);
                }
                if !known.always(&simple) {
                    kept.push(simple);
                }
            }
            let inside = expr(inside, &facts.and(&kept), workload);
            Expr::guard(kept, inside, below(outside))
        }
        Expr::Bits(dtype, x) => Expr::Bits(*dtype, Box::new(below(x))),
        Expr::Cast(dtype, x) => {
            let x = below(x);
            let exact = match &x {
                Expr::Load { tensor, .. } => workload.tensor(*tensor).dtype == *dtype,
                Expr::Cast(inner, _) => inner == dtype,
                Expr::Float(_) => *dtype == crate::workload::DType::F32,
                Expr::Index(_) => *dtype == crate::workload::DType::I64,
                _ => false,
            };
            if exact { x } else { Expr::Cast(*dtype, Box::new(x)) }
        }
    }
}

fn unary(op: Unary, x: Expr) -> Expr {
    match (op, &x) {
        (Unary::Negate | Unary::Absolute, Expr::Float(Float(value))) => {
            Expr::float(if op == Unary::Negate { -value } else { value.abs() })
        }
        (Unary::Negate, Expr::Unary(Unary::Negate, inner)) => (**inner).clone(),
        _ => Expr::unary(op, x),
    }
}

fn binary(op: Binary, x: Expr, y: Expr) -> Expr {
    match (op, &x, &y) {
        (_, Expr::Float(a), Expr::Float(b)) => match fold(op, a.0, b.0) {
            Some(value) => Expr::float(value),
            None => Expr::binary(op, x, y),
        },
        (Binary::Multiply | Binary::Divide, _, Expr::Float(Float(1.0))) => x,
        (Binary::Multiply, Expr::Float(Float(1.0)), _) => y,
        // exact for both zeros: -0 is the neutral element of addition
        (Binary::Add, _, Expr::Float(zero)) if is_zero(zero.0, true) => x,
        (Binary::Add, Expr::Float(zero), _) if is_zero(zero.0, true) => y,
        (Binary::Subtract, _, Expr::Float(zero)) if is_zero(zero.0, false) => x,
        (Binary::Add | Binary::Subtract, Expr::Index(a), Expr::Index(b)) => {
            let sum = if op == Binary::Add { a.clone().plus(b) } else { a.clone().minus(b) };
            if is_small(&sum) { Expr::Index(sum) } else { Expr::binary(op, x, y) }
        }
        (Binary::Multiply, Expr::Index(a), Expr::Index(b)) => {
            let product = match (a.as_constant(), b.as_constant()) {
                (Some(factor), _) => times(b, factor),
                (_, Some(factor)) => times(a, factor),
                _ => None,
            };
            product.map_or_else(|| Expr::binary(op, x, y), Expr::Index)
        }
        _ => Expr::binary(op, x, y),
    }
}

fn is_zero(value: f64, negative: bool) -> bool {
    value == 0.0 && value.is_sign_negative() == negative
}

fn is_small(index: &Index) -> bool {
    let small = |value: i64| value.abs() < MAX_COEFFICIENT;
    small(index.offset()) && index.terms().iter().all(|(_, coefficient)| small(*coefficient))
}

fn times(index: &Index, factor: i64) -> Option<Index> {
    let small = |value: i64| value.checked_mul(factor).is_some_and(|v| v.abs() < MAX_COEFFICIENT);
    let fits = small(index.offset()) && index.terms().iter().all(|(_, coefficient)| small(*coefficient));
    fits.then(|| index.clone().times(factor))
}

/// Decides divisions by ranges, and takes out of them what divides evenly.
pub(super) fn index(value: &Index, facts: &StageFacts, workload: &Workload) -> Index {
    let mut result = Index::constant(value.offset());
    for (atom, coefficient) in value.terms() {
        let simple = match atom {
            Atom::Var(var) => {
                let range = facts.var_range(*var);
                if range.low == range.high { Index::constant(range.low) } else { Index::var(*var) }
            }
            Atom::FloorDiv(inner, divisor) => floor_div(index(inner, facts, workload), *divisor, facts),
            Atom::Modulo(inner, divisor) => modulo(index(inner, facts, workload), *divisor, facts),
            Atom::Value(inner) => Index::value(expr(inner, facts, workload)),
        };
        result = result.plus(&simple.times(*coefficient));
    }
    result
}

fn floor_div(inner: Index, divisor: i64, facts: &StageFacts) -> Index {
    if divisor == 1 {
        return inner;
    }
    if let [(Atom::FloorDiv(deeper, by), 1)] = inner.terms()
        && inner.offset() == 0
        && let Some(product) = by.checked_mul(divisor).filter(|p| *p < MAX_COEFFICIENT)
    {
        return floor_div((**deeper).clone(), product, facts);
    }
    let (even, rest) = inner.split_by(divisor);
    if let Some(quotient) = quotient(&rest, divisor, facts) {
        return even.plus_constant(quotient);
    }
    let quotient = match common(&rest, divisor, facts) {
        Some((factor, outer, _)) => floor_div(outer, divisor / factor, facts),
        None => Index::atom(Atom::FloorDiv(Box::new(rest), divisor)),
    };
    even.plus(&quotient)
}

fn modulo(inner: Index, divisor: i64, facts: &StageFacts) -> Index {
    if divisor == 1 {
        return Index::constant(0);
    }
    if let [(Atom::Modulo(deeper, by), 1)] = inner.terms()
        && inner.offset() == 0
        && by % divisor == 0
    {
        return modulo((**deeper).clone(), divisor, facts);
    }
    let (_, rest) = inner.split_by(divisor);
    if let Some(quotient) = quotient(&rest, divisor, facts) {
        return rest.plus_constant(-quotient * divisor);
    }
    match common(&rest, divisor, facts) {
        Some((factor, outer, small)) => modulo(outer, divisor / factor, facts).times(factor).plus(&small),
        None => Index::atom(Atom::Modulo(Box::new(rest), divisor)),
    }
}

/// The quotient of all values of an index, where that is one.
fn quotient(index: &Index, divisor: i64, facts: &StageFacts) -> Option<i64> {
    facts.range(index)?.quotient(divisor)
}

/// `(g, x, r)` with `index = g · x + r`, `g` a divisor of `divisor`, and `r` in `0..g`: division and
/// remainder then concern `x` only.
fn common(index: &Index, divisor: i64, facts: &StageFacts) -> Option<(i64, Index, Index)> {
    let mut factors: Vec<i64> =
        index.terms().iter().map(|(_, c)| gcd(c.unsigned_abs(), divisor.unsigned_abs()).cast_signed()).collect();
    factors.sort_unstable();
    factors.dedup();
    factors.into_iter().rev().filter(|g| *g > 1).find_map(|g| {
        let mut outer = Index::constant(index.offset().div_euclid(g));
        let mut small = Index::constant(index.offset().rem_euclid(g));
        for (atom, coefficient) in index.terms() {
            let part = Index::atom(atom.clone());
            if coefficient % g == 0 {
                outer = outer.plus(&part.times(coefficient / g));
            } else {
                small = small.plus(&part.times(*coefficient));
            }
        }
        let quotient = quotient(&small, g, facts)?;
        Some((g, outer.plus_constant(quotient), small.plus_constant(-quotient * g)))
    })
}
