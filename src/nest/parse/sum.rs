//! Indices as they are written, and the order of variables that they show.
//!
//! An [`Index`](crate::workload::Index) keeps its terms in the order of its atoms, and so of its variables'
//! numbers. For a text to come out as it was, variables are numbered so that all sums in it are in order.

use std::collections::BTreeSet;

use super::NestTextProblem;
use super::tree::{Test, Tree};
use crate::workload::{Binary, Unary};

/// Exclusive bound of what a sum of an index is made of, and of the whole; a constant alone may be any.
const MAX_MAGNITUDE: i64 = 1 << 60;
/// Terms of one sum.
const MAX_TERMS: usize = 1024;

/// `constant + Σ coefficient · term`, in the order of the text.
pub(super) struct Sum<'t> {
    pub(super) terms: Vec<(Term<'t>, i64)>,
    pub(super) constant: i64,
}

pub(super) enum Term<'t> {
    Var(usize),
    FloorDiv(Box<Sum<'t>>, i64),
    Modulo(Box<Sum<'t>>, i64),
    /// Computed at run time.
    Value(&'t Tree),
}

/// Whether a tree is an index also where a value is expected: sums, multiples and quotients of variables and
/// integers.
pub(super) fn is_index(tree: &Tree) -> bool {
    match tree {
        Tree::Integer(_) | Tree::Var(_) => true,
        Tree::Group(x) | Tree::Unary(Unary::Negate, x) => is_index(x),
        Tree::Binary(op, xy) => match op {
            Binary::Add | Binary::Subtract => is_index(&xy.0) && is_index(&xy.1),
            Binary::Multiply => {
                let is_constant = |tree: &Tree| matches!(tree, Tree::Integer(_));
                (is_constant(&xy.0) || is_constant(&xy.1)) && is_index(&xy.0) && is_index(&xy.1)
            }
            Binary::Divide | Binary::Remainder => is_index(&xy.0) && matches!(xy.1, Tree::Integer(2..)),
            _ => false,
        },
        _ => false,
    }
}

/// A tree as an index. What is no sum, multiple or quotient by a constant is computed at run time.
pub(super) fn sum(tree: &Tree) -> Result<Sum<'_>, NestTextProblem> {
    let alone = |term| Ok(Sum { terms: vec![(term, 1)], constant: 0 });
    match tree {
        Tree::Integer(value) => Ok(Sum { terms: Vec::new(), constant: *value }),
        Tree::Var(var) => alone(Term::Var(*var)),
        Tree::Unary(Unary::Negate, x) => times(sum(x)?, -1),
        Tree::Group(x) => sum(x),
        Tree::Value(x) => alone(Term::Value(x)),
        Tree::Binary(op, xy) => match (op, &xy.0, &xy.1) {
            (Binary::Add, x, y) => plus(sum(x)?, sum(y)?),
            (Binary::Subtract, x, y) => plus(sum(x)?, times(sum(y)?, -1)?),
            (Binary::Multiply, x, Tree::Integer(factor)) | (Binary::Multiply, Tree::Integer(factor), x) => {
                times(sum(x)?, *factor)
            }
            (Binary::Divide, x, Tree::Integer(divisor)) => alone(Term::FloorDiv(Box::new(sum(x)?), by(*divisor)?)),
            (Binary::Remainder, x, Tree::Integer(divisor)) => alone(Term::Modulo(Box::new(sum(x)?), by(*divisor)?)),
            _ => alone(Term::Value(tree)),
        },
        _ => alone(Term::Value(tree)),
    }
}

fn by(divisor: i64) -> Result<i64, NestTextProblem> {
    if (2..MAX_MAGNITUDE).contains(&divisor) { Ok(divisor) } else { Err(NestTextProblem::Divisor(divisor)) }
}

fn times(mut sum: Sum<'_>, factor: i64) -> Result<Sum<'_>, NestTextProblem> {
    sum.constant = sum.constant.checked_mul(factor).ok_or(NestTextProblem::Number)?;
    for (_, coefficient) in &mut sum.terms {
        *coefficient = coefficient.checked_mul(factor).ok_or(NestTextProblem::Number)?;
    }
    sum.terms.retain(|(_, coefficient)| *coefficient != 0);
    bounded(sum)
}

fn plus<'t>(mut sum: Sum<'t>, other: Sum<'t>) -> Result<Sum<'t>, NestTextProblem> {
    sum.constant = sum.constant.checked_add(other.constant).ok_or(NestTextProblem::Number)?;
    sum.terms.extend(other.terms);
    bounded(sum)
}

fn bounded(sum: Sum<'_>) -> Result<Sum<'_>, NestTextProblem> {
    if sum.terms.len() > MAX_TERMS {
        return Err(NestTextProblem::Terms);
    }
    let all = sum.terms.iter().map(|(_, coefficient)| *coefficient).chain([sum.constant]);
    let magnitude = all.map(|value| i128::from(value).abs()).sum::<i128>();
    let fits = sum.terms.is_empty() || magnitude < i128::from(MAX_MAGNITUDE);
    if fits { Ok(sum) } else { Err(NestTextProblem::Number) }
}

/// Which variables stand before which others.
#[derive(Default)]
pub(super) struct Order(BTreeSet<(usize, usize)>);

impl Order {
    pub(super) fn note_index(&mut self, tree: &Tree) -> Result<(), NestTextProblem> {
        self.note_sum(&sum(tree)?)
    }

    pub(super) fn note_tests(&mut self, tests: &[Test]) -> Result<(), NestTextProblem> {
        tests.iter().try_for_each(|test| self.note_index(&test.index))
    }

    /// All indices of an expression.
    pub(super) fn note_expr(&mut self, tree: &Tree) -> Result<(), NestTextProblem> {
        if is_index(tree) {
            return self.note_index(tree);
        }
        match tree {
            Tree::Integer(_) | Tree::Float(_) | Tree::Var(_) => Ok(()),
            Tree::Load(_, indices) => indices.iter().try_for_each(|index| self.note_index(index)),
            Tree::Unary(_, x) | Tree::Cast(_, x) | Tree::Bits(_, x) | Tree::Group(x) => self.note_expr(x),
            Tree::Int(x) => self.note_index(x),
            Tree::Value(x) => self.note_expr(x),
            Tree::Binary(_, xy) => [&xy.0, &xy.1].into_iter().try_for_each(|x| self.note_expr(x)),
            Tree::Select(parts) => [&parts.0, &parts.1, &parts.2].into_iter().try_for_each(|x| self.note_expr(x)),
            Tree::Guard(tests, sides) => {
                self.note_tests(tests)?;
                self.note_expr(&sides.0)?;
                self.note_expr(&sides.1)
            }
        }
    }

    /// Terms that are added are in order, and so are those that are subtracted, which follow them.
    fn note_sum(&mut self, sum: &Sum<'_>) -> Result<(), NestTextProblem> {
        for is_added in [true, false] {
            let mut before: Option<&Term<'_>> = None;
            for (term, _) in sum.terms.iter().filter(|(_, coefficient)| (*coefficient > 0) == is_added) {
                if let Some(Difference::Vars(x, y)) = before.map(|before| of_terms(before, term)).transpose()? {
                    self.0.insert((x, y));
                }
                before = Some(term);
            }
        }
        sum.terms.iter().try_for_each(|(term, _)| match term {
            Term::Var(_) => Ok(()),
            Term::FloorDiv(inner, _) | Term::Modulo(inner, _) => self.note_sum(inner),
            Term::Value(tree) => self.note_expr(tree),
        })
    }

    /// A number for each of so many variables, in the order of the text where nothing else is known.
    pub(super) fn numbers(&self, count: usize) -> Vec<u32> {
        let mut before = vec![0; count];
        self.0.iter().for_each(|(_, later)| before[*later] += 1);
        let mut left: BTreeSet<usize> = (0..count).collect();
        let mut ready: BTreeSet<usize> = left.iter().copied().filter(|var| before[*var] == 0).collect();
        let mut numbers = vec![0; count];
        for number in 0..count as u32 {
            // a text whose sums contradict each other was written by hand, and comes out in another order
            let Some(var) = ready.pop_first().or_else(|| left.first().copied()) else { break };
            left.remove(&var);
            numbers[var] = number;
            for (_, later) in self.0.range((var, 0)..(var + 1, 0)) {
                before[*later] -= 1;
                if before[*later] == 0 && left.contains(later) {
                    ready.insert(*later);
                }
            }
        }
        numbers
    }
}

/// The first part in which two parts of an index differ, as `Ord` compares them.
#[derive(PartialEq)]
enum Difference {
    None,
    Vars(usize, usize),
    /// Their order does not hang on the numbers of variables.
    Other,
}

impl Difference {
    fn of<T: PartialEq>(x: T, y: T) -> Difference {
        if x == y { Difference::None } else { Difference::Other }
    }

    /// This one, or the one that follows.
    fn or(self, next: impl FnOnce() -> Result<Difference, NestTextProblem>) -> Result<Difference, NestTextProblem> {
        if self == Difference::None { next() } else { Ok(self) }
    }
}

fn of_terms(x: &Term<'_>, y: &Term<'_>) -> Result<Difference, NestTextProblem> {
    match (x, y) {
        (Term::Var(x), Term::Var(y)) => Ok(if x == y { Difference::None } else { Difference::Vars(*x, *y) }),
        (Term::FloorDiv(x, by_x), Term::FloorDiv(y, by_y)) | (Term::Modulo(x, by_x), Term::Modulo(y, by_y)) => {
            of_sums(x, y)?.or(|| Ok(Difference::of(by_x, by_y)))
        }
        (Term::Value(x), Term::Value(y)) => of_trees(x, y),
        _ => Ok(Difference::Other),
    }
}

fn of_sums(x: &Sum<'_>, y: &Sum<'_>) -> Result<Difference, NestTextProblem> {
    for ((x, of_x), (y, of_y)) in x.terms.iter().zip(&y.terms) {
        let difference = of_terms(x, y)?.or(|| Ok(Difference::of(of_x, of_y)))?;
        if difference != Difference::None {
            return Ok(difference);
        }
    }
    Ok(Difference::of((x.terms.len(), x.constant), (y.terms.len(), y.constant)))
}

fn of_trees(x: &Tree, y: &Tree) -> Result<Difference, NestTextProblem> {
    if is_index(x) && is_index(y) {
        return of_sums(&sum(x)?, &sum(y)?);
    }
    match (x, y) {
        (Tree::Group(x), y) => of_trees(x, y),
        (x, Tree::Group(y)) => of_trees(x, y),
        (Tree::Value(x), Tree::Value(y)) => of_trees(x, y),
        (Tree::Int(x), Tree::Int(y)) => of_sums(&sum(x)?, &sum(y)?),
        (Tree::Load(of_x, x), Tree::Load(of_y, y)) if of_x == of_y => {
            of_lists(x, y, |x, y| of_sums(&sum(x)?, &sum(y)?))
        }
        (Tree::Unary(of_x, x), Tree::Unary(of_y, y)) if of_x == of_y => of_trees(x, y),
        (Tree::Cast(of_x, x), Tree::Cast(of_y, y)) | (Tree::Bits(of_x, x), Tree::Bits(of_y, y)) if of_x == of_y => {
            of_trees(x, y)
        }
        (Tree::Binary(of_x, x), Tree::Binary(of_y, y)) if of_x == of_y => {
            of_trees(&x.0, &y.0)?.or(|| of_trees(&x.1, &y.1))
        }
        (Tree::Select(x), Tree::Select(y)) => {
            of_trees(&x.0, &y.0)?.or(|| of_trees(&x.1, &y.1)?.or(|| of_trees(&x.2, &y.2)))
        }
        (Tree::Guard(of_x, x), Tree::Guard(of_y, y)) => {
            of_lists(of_x, of_y, of_tests)?.or(|| of_trees(&x.0, &y.0)?.or(|| of_trees(&x.1, &y.1)))
        }
        _ => Ok(Difference::Other),
    }
}

fn of_tests(x: &Test, y: &Test) -> Result<Difference, NestTextProblem> {
    of_sums(&sum(&x.index)?, &sum(&y.index)?)?.or(|| Ok(Difference::of((x.low, x.high), (y.low, y.high))))
}

fn of_lists<T>(
    xs: &[T],
    ys: &[T],
    of: impl Fn(&T, &T) -> Result<Difference, NestTextProblem>,
) -> Result<Difference, NestTextProblem> {
    for (x, y) in xs.iter().zip(ys) {
        let difference = of(x, y)?;
        if difference != Difference::None {
            return Ok(difference);
        }
    }
    Ok(Difference::of(xs.len(), ys.len()))
}
