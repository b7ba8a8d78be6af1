//! The same elements under another shape.
//!
//! Where extents are known only when the network runs, dimensions are matched in groups whose products are
//! equal, from left to right. In a group of fixed extents any shape becomes any other, by indices; where one
//! is known only when it runs, it has to be the first of its group, so that strides are numbers. What is left
//! is the same memory under another name.

use super::builder::{Builder, flat_index, unflatten};
use super::math::{literal, load, var, vars};
use super::operator::{Operator, Problem};
use super::polynomial::Polynomial;
use crate::graph::Routine;
use crate::workload::{Index, TensorId};

/// The same elements, in the same order, under another shape.
pub fn reshape_to(builder: &mut Builder, input: TensorId, shape: Vec<i64>) -> Result<TensorId, Problem> {
    if builder.is_run_time(input) {
        let formulas = formulas_of(builder, input, &shape)?;
        return reshape_to_extents(builder, input, &formulas);
    }
    let own = builder.shape(input);
    if own == shape {
        return Ok(input);
    }
    if Builder::check_shape(&shape)? != own.iter().product::<i64>() {
        return Err(Problem::Shape(format!("shape {own:?} cannot become {shape:?}")));
    }
    let flat = flat_index(&shape, &vars(0, shape.len()));
    let value = load(input, unflatten(&own, &flat));
    let dtype = builder.dtype(input);
    builder.map(shape, dtype, value)
}

/// `Reshape` to extents that are formulas: 0 keeps a dimension, -1 is what is left.
pub fn reshape(builder: &mut Builder, op: &Operator) -> Result<TensorId, Problem> {
    let input = op.input(0)?;
    let own = builder.extents(input);
    let wanted = builder.numbers_input(op, 1, 0)?;
    let keeps_zero = op.flag("allowzero", false)?;
    let mut shape = Vec::with_capacity(wanted.len());
    let mut free = None;
    for (d, extent) in wanted.iter().enumerate() {
        shape.push(match extent.as_constant() {
            Some(0) if !keeps_zero => {
                own.get(d).cloned().ok_or_else(|| Problem::Shape(format!("the input has no dimension {d}")))?
            }
            Some(-1) => {
                if free.replace(d).is_some() {
                    return Err(Problem::Shape("a shape with two extents of -1".to_string()));
                }
                Index::constant(1)
            }
            _ => extent.clone(),
        });
    }
    if let Some(free) = free {
        shape[free] = left_over(builder, &own, &shape)?;
    }
    reshape_to_extents(builder, input, &shape)
}

/// What the product of some extents has to be multiplied by to be that of others.
fn left_over(builder: &mut Builder, own: &[Index], others: &[Index]) -> Result<Index, Problem> {
    let (all, known) = (builder.formulas.polynomial_product(own), builder.formulas.polynomial_product(others));
    if let Some(exact) = all.zip(known).and_then(|(all, known)| all.divided_by(&known)) {
        return builder.formulas.formula_of(&exact);
    }
    let (all, known) = (builder.formulas.product(own)?, builder.formulas.product(others)?);
    builder.formulas.quotient(&all, &known)
}

/// The same elements, in the same order, under a shape of formulas.
pub fn reshape_to_extents(builder: &mut Builder, input: TensorId, shape: &[Index]) -> Result<TensorId, Problem> {
    let own = builder.extents(input);
    if own == shape {
        return Ok(input);
    }
    let constants: Option<Vec<i64>> = shape.iter().map(Index::as_constant).collect();
    if let (Some(constants), false) = (constants, builder.is_run_time(input)) {
        return reshape_to(builder, input, constants);
    }
    if builder.shape(input).contains(&0) {
        let dtype = builder.dtype(input);
        return builder.map_over(shape, dtype, literal(dtype, 0.0));
    }
    // what is always one number is matched as that number
    let settled = |extents: &[Index]| extents.iter().map(|extent| builder.formulas.settled(extent)).collect::<Vec<_>>();
    let (ours, theirs) = (settled(&own), settled(shape));
    let (mut indices, dtype) = (Vec::new(), builder.dtype(input));
    let groups = groups(builder, &ours, &theirs).inspect_err(|_| builder.formulas.equate_products(&ours, &theirs));
    for (from, to) in groups? {
        match group_indices(&ours[from], &theirs[to.clone()], to.start)? {
            Some(group) => indices.extend(group),
            // no numbers say where an element is: the same memory under another name
            None => {
                let elements = builder.formulas.product(&own)?;
                let routine = Routine::Copy { elements: 0, dtype };
                let copied = builder.library(&routine, &[elements], &[input], &[shape.to_vec()])?;
                return copied.first().copied().ok_or(Problem::MissingInput(0));
            }
        }
    }
    builder.map_over(shape, dtype, load(input, indices))
}

type Group = (std::ops::Range<usize>, std::ops::Range<usize>);

/// The least ranges of dimensions that have equal products.
fn groups(builder: &Builder, own: &[Index], shape: &[Index]) -> Result<Vec<Group>, Problem> {
    let misfit = || {
        let spelled =
            |shape: &[Index]| shape.iter().map(|x| builder.formulas.spelled(x)).collect::<Vec<_>>().join(", ");
        Problem::Shape(format!("shape [{}] cannot become [{}]", spelled(own), spelled(shape)))
    };
    let prefixes = |shape: &[Index]| -> Option<Vec<Polynomial>> {
        (0..=shape.len()).map(|count| builder.formulas.polynomial_product(&shape[..count])).collect()
    };
    let (ours, theirs) = (prefixes(own).ok_or_else(misfit)?, prefixes(shape).ok_or_else(misfit)?);
    let (mut groups, mut at) = (Vec::new(), (0, 0));
    while at != (own.len(), shape.len()) {
        // each side takes one dimension at least, unless it has none left
        let from = ((at.0 + 1).min(own.len()), (at.1 + 1).min(shape.len()));
        let ends = (from.0..=own.len()).flat_map(|i| (from.1..=shape.len()).map(move |j| (i, j)));
        let end = ends.into_iter().find(|(i, j)| ours[*i] == theirs[*j]).ok_or_else(misfit)?;
        groups.push((at.0..end.0, at.1..end.1));
        at = end;
    }
    Ok(groups)
}

/// Where a group of dimensions is read, by a stage whose axes for its new dimensions start at `first`; `None`
/// where several of the dimensions are known only when the network runs.
fn group_indices(own: &[Index], new: &[Index], first: usize) -> Result<Option<Vec<Index>>, Problem> {
    let one = Index::constant(1);
    let counts = |shape: &[Index]| -> Vec<usize> { (0..shape.len()).filter(|d| shape[*d] != one).collect() };
    let (ours, theirs) = (counts(own), counts(new));
    let mut indices = vec![Index::constant(0); own.len()];
    if let ([ours], [theirs]) = (ours.as_slice(), theirs.as_slice()) {
        indices[*ours] = var(first + theirs);
        return Ok(Some(indices));
    }
    // elements between neighbours: numbers, if only the first of the dimensions is none
    let strides = |shape: &[Index], counting: &[usize]| -> Result<Option<Vec<i64>>, Problem> {
        let mut strides = vec![1i64; counting.len()];
        for at in (1..counting.len()).rev() {
            let Some(extent) = shape[counting[at]].as_constant() else { return Ok(None) };
            strides[at - 1] = strides[at].checked_mul(extent.max(1)).ok_or(Problem::TooLarge(vec![extent]))?;
        }
        Ok(Some(strides))
    };
    let (Some(read), Some(written)) = (strides(own, &ours)?, strides(new, &theirs)?) else { return Ok(None) };
    let flat = theirs
        .iter()
        .zip(&written)
        .fold(Index::constant(0), |sum, (d, stride)| sum.plus(&var(first + d).times(*stride)));
    for (at, d) in ours.iter().enumerate() {
        let quotient = flat.clone().floor_div(read[at]);
        indices[*d] = match (at, own[*d].as_constant()) {
            (0, _) => quotient,
            (_, extent) => quotient.modulo(extent.unwrap_or(1).max(1)),
        };
    }
    Ok(Some(indices))
}

/// The formulas of a shape that is given by what its extents are at most: each dimension is kept, or merged
/// with or split from fixed ones.
pub fn formulas_of(builder: &mut Builder, input: TensorId, shape: &[i64]) -> Result<Vec<Index>, Problem> {
    let own = builder.extents(input);
    let most = builder.shape(input);
    let mut formulas: Vec<Index> = shape.iter().map(|extent| Index::constant(*extent)).collect();
    let (mut at, mut to) = (0, 0);
    while at < own.len() {
        // the least groups of equal products of what extents are at most
        let (mut end, mut new_end, mut ours, mut theirs) = (at + 1, to, most[at], 1i64);
        while ours != theirs {
            if ours < theirs && end < own.len() {
                ours = ours.saturating_mul(most[end]);
                end += 1;
            } else if new_end < shape.len() && theirs < ours {
                theirs = theirs.saturating_mul(shape[new_end]);
                new_end += 1;
            } else {
                return Err(Problem::Shape(format!("shape {most:?} cannot become {shape:?}")));
            }
        }
        let open: Vec<usize> = (at..end).filter(|d| own[*d].as_constant().is_none()).collect();
        if let [open] = open.as_slice() {
            let Some(slot) = (to..new_end).find(|d| shape[*d] != 1) else { return Err(builder.unsupported_extents()) };
            let inner = |shape: &[i64]| shape.iter().product::<i64>();
            let (before, after) = (inner(&most[open + 1..end]), inner(&shape[slot + 1..new_end]));
            let elements = builder.formulas.product(&[own[*open].clone(), Index::constant(before)])?;
            formulas[slot] = builder.formulas.quotient(&elements, &Index::constant(after.max(1)))?;
        } else if !open.is_empty() {
            return Err(builder.unsupported_extents());
        }
        (at, to) = (end, new_end);
    }
    Ok(formulas)
}
