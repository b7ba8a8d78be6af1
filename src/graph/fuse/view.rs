//! Index maps between row-major views of the same memory.
//!
//! Every tensor is dense and row-major, so two accesses name the same element exactly when their *flat
//! addresses* agree, whatever the shapes through which they look. Everything here compares and rewrites
//! accesses by flat address.
//!
//! Where extents are known only when it runs, addresses are those in an array of the greatest extents. They
//! name an element just as well; two shapes are comparable by them where [`are_views`] says so.

use super::extent::{Extent, are_views, matching_segments, most, points};
use crate::workload::{Atom, Condition, DType, Expr, Index, Interval, Var, row_major_strides};

/// Ranges of the variables `0..extents.len()`. Of parameters only the sign is known.
pub fn ranges(extents: &[i64]) -> impl Fn(Var) -> Interval {
    move |var| match extents.get(var.0 as usize) {
        Some(extent) => Interval::below(*extent),
        None if var.as_parameter().is_some() => Interval { low: 0, high: i64::MAX },
        None => Interval::point(0),
    }
}

/// The variables themselves, starting at `first`.
pub fn variables(first: usize, count: usize) -> Vec<Index> {
    (first..first + count).map(|axis| Index::var(Var(axis as u32))).collect()
}

/// The address of an element in elements: `Σ index · stride`.
pub fn flat(indices: &[Index], shape: &[i64], extents: &[i64]) -> Index {
    let strides = row_major_strides(shape);
    let sum = indices.iter().zip(strides).fold(Index::constant(0), |sum, (index, s)| sum.plus(&index.clone().times(s)));
    tidy_index(&sum, extents)
}

/// The address of the element at the variables `first..` in an array of their extents.
pub fn identity_address(shape: &[i64], first: usize) -> Index {
    let strides = row_major_strides(shape);
    // An axis of extent 1 is always 0 and does not show in a simplified address.
    let axes = strides.iter().zip(shape).enumerate().filter(|(_, (_, extent))| **extent != 1);
    axes.fold(Index::constant(0), |sum, (d, (stride, _))| sum.plus(&Index::var(Var((first + d) as u32)).times(*stride)))
}

/// Simplifies by the variables' ranges, and joins quotients and remainders of one dividend: `8·(i / 8) + i %
/// 8 = i`.
pub fn tidy_index(index: &Index, extents: &[i64]) -> Index {
    recombine(index.simplify(&ranges(extents)))
}

fn recombine(mut index: Index) -> Index {
    while let Some(joined) = index.terms().iter().find_map(|(atom, coefficient)| join(&index, atom, *coefficient)) {
        index = joined;
    }
    index
}

/// Joins the remainder `atom` with its quotient, if that is a term of `index` with the matching coefficient.
fn join(index: &Index, atom: &Atom, coefficient: i64) -> Option<Index> {
    let Atom::Modulo(dividend, divisor) = atom else { return None };
    let quotient_coefficient = coefficient.checked_mul(*divisor)?;
    // (x / m) % d pairs with x / (m d), as well as with (x / m) / d.
    let mut quotients = vec![Atom::FloorDiv(dividend.clone(), *divisor)];
    if let ([(Atom::FloorDiv(inner, inner_divisor), 1)], 0) = (dividend.terms(), dividend.offset()) {
        quotients.push(Atom::FloorDiv(inner.clone(), inner_divisor.checked_mul(*divisor)?));
    }
    let quotient =
        quotients.into_iter().find(|q| index.terms().iter().any(|(a, c)| a == q && *c == quotient_coefficient))?;
    let without = index.clone().minus(&Index::atom(atom.clone()).times(coefficient));
    let without = without.minus(&Index::atom(quotient).times(quotient_coefficient));
    Some(without.plus(&(**dividend).clone().times(coefficient)))
}

/// The element at `address` in an array of shape `shape`.
pub fn delinearise(address: &Index, shape: &[i64], extents: &[i64]) -> Vec<Index> {
    let strides = row_major_strides(shape);
    let at = |d: usize| {
        let quotient = address.clone().floor_div(strides[d].max(1));
        // The leading index needs no remainder: the address lies inside of the array.
        let leading = shape[..d].iter().all(|extent| *extent == 1);
        tidy_index(&if leading { quotient } else { quotient.modulo(shape[d].max(1)) }, extents)
    };
    (0..shape.len()).map(at).collect()
}

/// Rewrites an access to an array of shape `from` into one to the same memory seen as `to`.
///
/// Dimensions that both shapes share are kept as they are, so that guarded indices which may leave their
/// dimension (padding) stay readable; only where the shapes differ does the access go through the address.
///
/// The shapes are views of one another.
pub fn reshape_access(indices: &[Index], from: &[Extent], to: &[Extent], extents: &[i64]) -> Vec<Index> {
    debug_assert!(are_views(from, to), "{from:?} is not {to:?}");
    let mut result = Vec::with_capacity(to.len());
    for ((from_start, from_end), (to_start, to_end)) in matching_segments(from, to) {
        if from[from_start..from_end] == to[to_start..to_end] {
            result.extend_from_slice(&indices[from_start..from_end]);
        } else {
            let address = flat(&indices[from_start..from_end], &most(&from[from_start..from_end]), extents);
            result.extend(delinearise(&address, &most(&to[to_start..to_end]), extents));
        }
    }
    result
}

/// Axes after some were split, so that an access became affine.
#[derive(Clone, Debug)]
pub struct Split {
    /// Extents of the new axes.
    pub extents: Vec<Extent>,
    /// Each old axis in terms of the new ones.
    pub axes: Vec<Index>,
    /// The access over the new axes.
    pub indices: Vec<Index>,
}

/// Splits axes until an access has no division or remainder: `x[i % 8, i / 8]` with `i = 8·i1 + i2` is `x[i2,
/// i1]`. `None` where the divisors do not divide the extents.
pub fn affine_by_splitting(indices: &[Index], extents: &[Extent]) -> Option<Split> {
    let mut split = Split { extents: extents.to_vec(), axes: variables(0, extents.len()), indices: indices.to_vec() };
    loop {
        let whole = most(&split.extents);
        let tidy = |index: &Index| tidy_index(index, &whole);
        split.indices = split.indices.iter().map(tidy).collect();
        let Some((axis, inner)) = split.indices.iter().find_map(|index| split_point(index, &split.extents)) else {
            return split.indices.iter().all(Index::is_affine).then_some(split);
        };
        // Later axes move up by one; the split one becomes inner·a + b.
        let replace = |var: Var| {
            let at = var.as_parameter().is_none().then_some(var.0 as usize)?;
            Some(match at.cmp(&axis) {
                std::cmp::Ordering::Less => Index::var(var),
                std::cmp::Ordering::Equal => {
                    Index::var(Var(at as u32)).times(inner).plus(&Index::var(Var(at as u32 + 1)))
                }
                std::cmp::Ordering::Greater => Index::var(Var(at as u32 + 1)),
            })
        };
        split.axes = split.axes.iter().map(|index| index.substitute(&replace)).collect();
        split.indices = split.indices.iter().map(|index| index.substitute(&replace)).collect();
        let outer = split.extents[axis].most / inner;
        split.extents.splice(axis..=axis, [Extent::fixed(outer), Extent::fixed(inner)]);
    }
}

/// An axis of a fixed extent inside a division, and the extent of its inner half that lets the division go.
fn split_point(index: &Index, extents: &[Extent]) -> Option<(usize, i64)> {
    index.terms().iter().find_map(|(atom, _)| match atom {
        Atom::FloorDiv(inner, divisor) | Atom::Modulo(inner, divisor) => {
            let own = || {
                inner.terms().iter().find_map(|(atom, coefficient)| {
                    let Atom::Var(var) = atom else { return None };
                    let (axis, step) = (var.0 as usize, divisor / coefficient);
                    let extent = extents.get(axis).filter(|extent| extent.is_fixed())?.most;
                    let splits = divisor % coefficient == 0 && step > 1 && step < extent && extent % step == 0;
                    splits.then_some((axis, step))
                })
            };
            split_point(inner, extents).or_else(own)
        }
        Atom::Var(_) | Atom::Value(_) => None,
    })
}

/// If the access visits every element of an array of shape `shape` exactly once, the axes by which it does so
/// affinely.
pub fn permutation(indices: &[Index], shape: &[Extent], extents: &[Extent]) -> Option<Split> {
    if points(shape) != points(extents) || !pairs_run_time_extents(indices, shape, extents) {
        return None;
    }
    let split = affine_by_splitting(indices, extents)?;
    let address = flat(&split.indices, &most(shape), &most(&split.extents));
    if address.offset() != 0 {
        return None;
    }
    let mut steps = Vec::new();
    for (atom, coefficient) in address.terms() {
        let Atom::Var(var) = atom else { return None };
        steps.push((*coefficient, split.extents.get(var.0 as usize)?.most));
    }
    steps.sort_unstable();
    // A mixed radix: each step is as long as all shorter ones together reach.
    let reach = steps.into_iter().try_fold(1, |reach, (step, extent)| (step == reach).then_some(reach * extent))?;
    (reach == points(shape)).then_some(split)
}

/// Whether each dimension whose extent is known when it runs is read along one such axis, `c` elements a step
/// where it is `c` times as long: then there are as many points as elements in every run.
fn pairs_run_time_extents(indices: &[Index], shape: &[Extent], extents: &[Extent]) -> bool {
    let mut left: Vec<bool> = extents.iter().map(|extent| !extent.is_fixed()).collect();
    for (index, dimension) in indices.iter().zip(shape) {
        let Some(length) = &dimension.formula else { continue };
        let along = index.terms().iter().find_map(|(atom, coefficient)| {
            let Atom::Var(var) = atom else { return None };
            let own = extents.get(var.0 as usize)?.formula.clone()?;
            (own.times(*coefficient) == *length).then_some(var.0 as usize)
        });
        match along.and_then(|axis| left.get_mut(axis)) {
            Some(left) if *left => *left = false,
            _ => return false,
        }
    }
    !left.contains(&true)
}

/// Simplifies all indices of an expression; drops conditions that always hold, branches that are never taken,
/// and operations with their neutral element.
pub fn tidy(expr: &Expr, extents: &[i64]) -> Expr {
    use crate::workload::Binary;
    let range = ranges(extents);
    let simplified = expr.map_indices(&mut |index| tidy_index(&tidy_gathered(index, extents), extents));
    simplified.rewrite(&mut |expr| match expr {
        Expr::Guard { mut conditions, inside, outside } => {
            let impossible = |low: i64, high: i64, r: Interval| r.high < low || r.low >= high;
            if conditions.iter().any(|c| range_of(&c.index, &range).is_some_and(|r| impossible(c.low, c.high, r))) {
                return *outside;
            }
            conditions.retain(|c| !range_of(&c.index, &range).is_some_and(|r| r.low >= c.low && r.high < c.high));
            match *inside {
                Expr::Guard { conditions: more, inside, outside: other } if other == outside => {
                    conditions.extend(more.into_iter().filter(|c| !conditions.contains(c)).collect::<Vec<_>>());
                    Expr::guard(conditions, *inside, *outside)
                }
                inside => Expr::guard(conditions, inside, *outside),
            }
        }
        Expr::Binary(op, x, y) => match (op, &*x, &*y) {
            (Binary::Add | Binary::Subtract, _, zero) if is_number(zero, 0.0) => *x,
            (Binary::Add, zero, _) if is_number(zero, 0.0) => *y,
            (Binary::Multiply | Binary::Divide, _, one) if is_number(one, 1.0) => *x,
            (Binary::Multiply, one, _) if is_number(one, 1.0) => *y,
            _ => Expr::Binary(op, x, y),
        },
        Expr::Cast(to, inner) => without_detour(to, *inner),
        other => other,
    })
}

/// A conversion; of an integer that a short type holds, the number itself.
fn without_detour(to: DType, inner: Expr) -> Expr {
    let number = match &inner {
        Expr::Cast(short, literal) if !short.is_float() && short.bytes() <= 2 && *short != DType::Bool => {
            let Expr::Index(index) = &**literal else { return Expr::Cast(to, Box::new(inner)) };
            index.as_constant().filter(|value| (short.least()..=short.greatest()).contains(value))
        }
        _ => None,
    };
    match (number, to) {
        (Some(value), DType::F32) => Expr::float(value as f64),
        (Some(value), DType::I64) => Expr::Index(Index::constant(value)),
        (Some(value), DType::I32) => Expr::Cast(to, Box::new(Expr::Index(Index::constant(value)))),
        _ => Expr::Cast(to, Box::new(inner)),
    }
}

/// Drops conditions that say no more than that an axis ends where its extent of the run does.
pub fn without_ends(expr: &Expr, extents: &[Extent]) -> Expr {
    expr.rewrite(&mut |expr| match expr {
        Expr::Guard { mut conditions, inside, outside } => {
            conditions.retain(|condition| !is_end(condition, extents));
            Expr::guard(conditions, *inside, *outside)
        }
        other => other,
    })
}

fn is_end(condition: &Condition, extents: &[Extent]) -> bool {
    let ends = |(axis, extent): (usize, &Extent)| {
        let formula = extent.formula.as_ref()?;
        // what is left of the axis, which is 1 at least
        let rest = condition.index.clone().plus(&Index::var(Var(axis as u32))).minus(formula);
        rest.as_constant().filter(|more| more + 1 >= condition.low)
    };
    condition.high == i64::MAX && extents.iter().enumerate().any(|axis| ends(axis).is_some())
}

fn range_of(index: &Index, of: &dyn Fn(Var) -> Interval) -> Option<Interval> {
    index.range(of)
}

fn is_number(expr: &Expr, value: f64) -> bool {
    matches!(expr, Expr::Float(literal) if literal.0 == value)
}

/// Simplifies inside of the values that gathers load.
fn tidy_gathered(index: &Index, extents: &[i64]) -> Index {
    index.terms().iter().fold(Index::constant(index.offset()), |sum, (atom, coefficient)| {
        let value = match atom {
            Atom::Value(expr) => Index::value(tidy(expr, extents)),
            other => Index::atom(other.clone()),
        };
        sum.plus(&value.times(*coefficient))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn var(v: u32) -> Index {
        Index::var(Var(v))
    }

    fn fixed(extents: &[i64]) -> Vec<Extent> {
        extents.iter().map(|extent| Extent::fixed(*extent)).collect()
    }

    #[test]
    fn addresses_survive_a_reshape_there_and_back() {
        let (shape, other) = ([6, 14, 14], [6, 196]);
        let there = delinearise(&identity_address(&other, 0), &shape, &other);
        assert!(!there[2].is_affine());
        assert_eq!(flat(&there, &shape, &other), identity_address(&other, 0));
    }

    #[test]
    fn reshaping_keeps_the_dimensions_that_agree() {
        let padded = var(1).plus(&var(2)).plus_constant(-1);
        let access = [var(0), padded.clone(), var(3)];
        let reshaped = reshape_access(&access, &fixed(&[12, 7, 7]), &fixed(&[3, 4, 7, 7]), &[12, 7, 3, 7]);
        assert_eq!(reshaped, [var(0).floor_div(4), var(0).modulo(4), padded, var(3)]);
        assert_eq!(reshape_access(&[], &[], &[], &[]), []);
    }

    #[test]
    fn heads_are_a_permutation() {
        // out[h, s, d] = acc[s, 64 h + d]
        let access = [var(1), var(0).times(64).plus(&var(2))];
        let split =
            permutation(&access, &fixed(&[128, 768]), &fixed(&[12, 128, 64])).expect("visits each element once");
        assert_eq!(split.extents, fixed(&[12, 128, 64]));
        assert!(permutation(&access, &fixed(&[128, 768]), &fixed(&[12, 128, 32])).is_none());
        assert!(permutation(&[var(1), var(2)], &fixed(&[12, 64]), &fixed(&[12, 12, 64])).is_none());
    }

    #[test]
    fn channel_shuffle_splits_its_axis() {
        // out[o, p] = acc[(o % 3) 8 + o / 3, p]
        let access = [var(0).modulo(3).times(8).plus(&var(0).floor_div(3)), var(1)];
        let split = permutation(&access, &fixed(&[24, 49]), &fixed(&[24, 49])).expect("visits each element once");
        assert_eq!(split.extents, fixed(&[8, 3, 49]));
        assert_eq!(split.indices, [var(1).times(8).plus(&var(0)), var(2)]);
    }

    #[test]
    fn tidy_drops_guards_that_always_hold() {
        use crate::workload::TensorId;
        let load = Expr::load(TensorId(0), vec![var(0)]);
        let guard = |low, high| {
            let condition = Condition { index: var(0), low, high };
            Expr::guard(vec![condition], load.clone(), Expr::float(0.0))
        };
        assert_eq!(tidy(&guard(0, 8), &[8]), load);
        assert_eq!(tidy(&guard(8, 9), &[8]), Expr::float(0.0));
        assert_eq!(tidy(&guard(0, 7), &[8]), guard(0, 7));
    }
}
