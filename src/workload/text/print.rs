//! Printing.

use std::fmt::{self, Display, Formatter};

use super::{axis_name, float_text, parameter_name};
use crate::workload::{Atom, Condition, DType, Expr, Index, Parameter, Role, Stage, TensorId, Workload};

impl Display for Workload {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (number, Parameter { low, high }) in self.parameters.iter().enumerate() {
            writeln!(f, "param {} {low} {high}", parameter_name(number))?;
        }
        for values in &self.points {
            write!(f, "tune")?;
            values.iter().try_for_each(|value| write!(f, " {value}"))?;
            writeln!(f)?;
        }
        let mut listed: Vec<TensorId> = Vec::new();
        for (id, tensor) in self.ids() {
            let keyword = match tensor.role {
                Role::Input => "input",
                Role::Constant => "const",
                Role::Intermediate | Role::Output => continue,
            };
            write!(f, "{keyword} t{}{}", id.0, Type(tensor.dtype))?;
            print_extents(f, self, &tensor.formulas())?;
            writeln!(f)?;
            listed.push(id);
        }
        for stage in &self.stages {
            print_stage(f, self, stage, &listed)?;
            listed.push(stage.output);
        }
        Ok(())
    }
}

fn print_stage(f: &mut Formatter<'_>, workload: &Workload, stage: &Stage, listed: &[TensorId]) -> fmt::Result {
    let Some(output) = workload.tensors.get(stage.output.0 as usize) else { return Err(fmt::Error) };
    let keyword = if output.role == Role::Output { "out" } else { "let" };
    write!(f, "{keyword} t{}{}", stage.output.0, Type(output.dtype))?;
    let is_like = |id: &&TensorId| {
        let other = workload.tensor(**id);
        other.shape == stage.spatial && other.shape == output.shape && other.extents == output.extents
    };
    let formulas: Vec<Index> = (0..stage.rank()).map(|axis| stage.formula(axis)).collect();
    let (spatial, reduction) = formulas.split_at(stage.spatial.len());
    match listed.iter().find(is_like) {
        Some(same) if stage.spatial.len() > 1 => write!(f, " like t{}", same.0)?,
        _ => print_extents(f, workload, spatial)?,
    }
    if output.shape != stage.spatial {
        write!(f, " like")?;
        print_extents(f, workload, &output.formulas())?;
    }
    if let Some(combiner) = stage.combiner {
        write!(f, " {}", combiner.name())?;
        print_extents(f, workload, reduction)?;
    }
    print_expr(f, workload, &stage.value)?;
    writeln!(f)
}

/// Nothing for f32.
struct Type(DType);

impl Display for Type {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == DType::F32 { Ok(()) } else { write!(f, " {}", self.0.name()) }
    }
}

fn print_extents(f: &mut Formatter<'_>, workload: &Workload, extents: &[Index]) -> fmt::Result {
    extents.iter().try_for_each(|extent| print_index(f, workload, extent))
}

/// Every word with a blank before it.
fn print_expr(f: &mut Formatter<'_>, workload: &Workload, expr: &Expr) -> fmt::Result {
    match expr {
        Expr::Float(value) => write!(f, " {}", float_text(value.0)),
        Expr::Index(index) => {
            write!(f, " int")?;
            print_index(f, workload, index)
        }
        Expr::Load { tensor, indices } => {
            write!(f, " t{}", tensor.0)?;
            indices.iter().try_for_each(|index| print_index(f, workload, index))
        }
        Expr::Unary(op, x) => {
            write!(f, " {}", op.name())?;
            print_expr(f, workload, x)
        }
        Expr::Binary(op, x, y) => {
            write!(f, " {}", op.name())?;
            print_expr(f, workload, x)?;
            print_expr(f, workload, y)
        }
        Expr::Select { condition, yes, no } => {
            write!(f, " select")?;
            [condition, yes, no].into_iter().try_for_each(|x| print_expr(f, workload, x))
        }
        Expr::Guard { conditions, inside, outside } => {
            if let Expr::Load { tensor, indices } = &**inside
                && let Some(marked) = padded(workload, *tensor, indices, conditions)
            {
                write!(f, " pad")?;
                print_expr(f, workload, outside)?;
                write!(f, " t{}", tensor.0)?;
                return indices.iter().zip(marked).try_for_each(|(index, marked)| {
                    f.write_str(if marked { " ?" } else { "" })?;
                    print_index(f, workload, index)
                });
            }
            write!(f, " guard {}", conditions.len())?;
            for condition in conditions {
                print_index(f, workload, &condition.index)?;
                write!(f, " {} {}", condition.low, condition.high)?;
            }
            print_expr(f, workload, inside)?;
            print_expr(f, workload, outside)
        }
        Expr::Cast(dtype, x) => {
            write!(f, " cast {}", dtype.name())?;
            print_expr(f, workload, x)
        }
        Expr::Bits(dtype, x) => {
            write!(f, " bits {}", dtype.name())?;
            print_expr(f, workload, x)
        }
    }
}

/// Whether the conditions say exactly that some of the indices are in range, in order; and which.
fn padded(workload: &Workload, tensor: TensorId, indices: &[Index], conditions: &[Condition]) -> Option<Vec<bool>> {
    let shape = &workload.tensors.get(tensor.0 as usize)?.shape;
    if conditions.is_empty() || shape.len() != indices.len() {
        return None;
    }
    let mut rest = conditions.iter().peekable();
    let mark = |(index, extent): (&Index, &i64)| {
        rest.next_if(|c| c.index == *index && c.low == 0 && c.high == *extent).is_some()
    };
    let marked: Vec<bool> = indices.iter().zip(shape).map(mark).collect();
    rest.next().is_none().then_some(marked)
}

fn print_index(f: &mut Formatter<'_>, workload: &Workload, index: &Index) -> fmt::Result {
    let offset = (index.offset() != 0 || index.terms().is_empty()).then_some(index.offset());
    let mut left = index.terms().len() + usize::from(offset.is_some());
    for (atom, coefficient) in index.terms() {
        left -= 1;
        if left > 0 {
            write!(f, " +")?;
        }
        if *coefficient != 1 {
            write!(f, " * {coefficient}")?;
        }
        print_atom(f, workload, atom)?;
    }
    offset.map_or(Ok(()), |offset| write!(f, " {offset}"))
}

fn print_atom(f: &mut Formatter<'_>, workload: &Workload, atom: &Atom) -> fmt::Result {
    match atom {
        Atom::Var(var) => match var.as_parameter() {
            Some(number) => write!(f, " {}", parameter_name(number)),
            None => write!(f, " {}", axis_name(var.0 as usize)),
        },
        Atom::FloorDiv(inner, divisor) => {
            write!(f, " /")?;
            print_index(f, workload, inner)?;
            write!(f, " {divisor}")
        }
        Atom::Modulo(inner, divisor) => {
            write!(f, " %")?;
            print_index(f, workload, inner)?;
            write!(f, " {divisor}")
        }
        Atom::Value(expr) => {
            write!(f, " value")?;
            print_expr(f, workload, expr)
        }
    }
}
