//! `Einsum`: a sum of products over labelled axes.

use std::collections::BTreeMap;

use super::builder::Builder;
use super::math::{load, multiply, var};
use super::operator::{Operator, Problem};
use crate::workload::{Combiner, DType, Expr, Index, TensorId};

/// A label of the equation, or a dimension behind `...`, counted from the last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Label {
    Ellipsis(usize),
    Letter(char),
}

pub fn einsum(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let inputs = op.all_inputs()?;
    let dtype = builder.dtype(inputs[0]);
    if dtype == DType::Bool {
        return Err(Problem::Type { input: 0, dtype });
    }
    if let Some(position) = inputs.iter().position(|input| builder.dtype(*input) != dtype) {
        return Err(Problem::Type { input: position, dtype: builder.dtype(inputs[position]) });
    }
    let equation: String = op.text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let bad = || Problem::AttributeValue { name: "equation", value: equation.chars().take(200).collect() };
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != inputs.len() || terms.len() > 16 {
        return Err(bad());
    }
    let mut extents: BTreeMap<Label, i64> = BTreeMap::new();
    let mut counts: BTreeMap<Label, usize> = BTreeMap::new();
    let mut operands = Vec::new();
    for (input, term) in inputs.iter().zip(&terms) {
        let shape = builder.shape(*input);
        let labels = labels(term, shape.len()).ok_or_else(bad)?;
        for (label, extent) in labels.iter().zip(&shape) {
            *counts.entry(*label).or_default() += 1;
            let known = extents.entry(*label).or_insert(*extent);
            match (*known, *extent) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *known = b,
                _ => return Err(Problem::Shape(format!("the extents of one label differ: {known} and {extent}"))),
            }
        }
        operands.push((*input, labels));
    }
    let output: Vec<Label> = match right {
        Some(right) => {
            let dots = extents.keys().filter(|label| matches!(label, Label::Ellipsis(_))).count();
            let letters = right.replace("...", "").len();
            labels(right, letters + if right.contains("...") { dots } else { 0 }).ok_or_else(bad)?
        }
        // dimensions behind the ellipsis, then all letters that occur once, in alphabetical order
        None => {
            let is_free = |label: &&Label| matches!(label, Label::Ellipsis(_)) || counts[*label] == 1;
            let mut free: Vec<Label> = extents.keys().filter(is_free).copied().collect();
            free.sort_by_key(|label| match label {
                Label::Ellipsis(from_end) => (0, usize::MAX - from_end),
                Label::Letter(letter) => (1, *letter as usize),
            });
            free
        }
    };
    let unknown = output.iter().any(|label| !extents.contains_key(label));
    if unknown || (1..output.len()).any(|at| output[..at].contains(&output[at])) {
        return Err(bad());
    }
    let reduced: Vec<Label> = extents.keys().filter(|label| !output.contains(label)).copied().collect();
    let axes: BTreeMap<Label, usize> = output.iter().chain(&reduced).enumerate().map(|(at, l)| (*l, at)).collect();
    for (input, _) in &operands {
        builder.materialize(*input)?;
    }
    let factor = |(input, labels): &(TensorId, Vec<Label>)| -> Expr {
        let shape = builder.shape(*input);
        let index = |(label, extent): (&Label, &i64)| if *extent == 1 { Index::constant(0) } else { var(axes[label]) };
        load(*input, labels.iter().zip(&shape).map(index).collect())
    };
    let value = operands.iter().map(factor).reduce(multiply).ok_or_else(bad)?;
    let extent_of = |labels: &[Label]| -> Vec<i64> { labels.iter().map(|label| extents[label]).collect() };
    let (spatial, reduction) = (extent_of(&output), extent_of(&reduced));
    if reduction.is_empty() {
        return Ok(vec![builder.map(spatial, dtype, value)?]);
    }
    Ok(vec![builder.reduce(spatial, reduction, Combiner::Sum, dtype, value)?])
}

/// The labels of a term, `...` replaced by as many as the rank leaves; `None` if it does not fit.
fn labels(term: &str, rank: usize) -> Option<Vec<Label>> {
    let (front, back) = match term.split_once("...") {
        Some((front, back)) => (front, Some(back)),
        None => (term, None),
    };
    let letters = |part: &str| -> Option<Vec<Label>> {
        part.chars().map(|c| c.is_ascii_alphabetic().then_some(Label::Letter(c))).collect()
    };
    let (front, rest) = (letters(front)?, letters(back.unwrap_or(""))?);
    let dots = rank.checked_sub(front.len() + rest.len())?;
    if dots > 0 && back.is_none() {
        return None;
    }
    let middle = (0..dots).rev().map(Label::Ellipsis);
    Some(front.into_iter().chain(middle).chain(rest).collect())
}
