//! Losses of a classification.

use super::builder::Builder;
use super::math::{divide, equal, exp, float, gathered, load, log, multiply, subtract, vars};
use super::operator::{Operator, Problem};
use super::reduction::Axes;
use crate::workload::{Combiner, DType, Expr, Index, TensorId, Unary};

/// `NegativeLogLikelihoodLoss` of `[batch, classes, ..]` and targets `[batch, ..]`.
pub fn negative_log_likelihood(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let targets = Targets::new(builder, op)?;
    let input = op.input(0)?;
    Ok(vec![targets.loss(builder, op, |at| load(input, at))?])
}

/// `SoftmaxCrossEntropyLoss`, and on demand the logarithms of the probabilities.
pub fn softmax_cross_entropy(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let targets = Targets::new(builder, op)?;
    let input = op.input(0)?;
    let shape = builder.shape(input);
    let over = Axes::new(&shape, vec![1]);
    let x = load(input, over.indices.clone());
    let largest = over.reduce(builder, Combiner::Maximum, DType::F32, x.clone())?;
    let exps = exp(subtract(x, load(largest, over.outer())));
    let total = over.reduce(builder, Combiner::Sum, DType::F32, exps)?;
    let logarithm = |at: Vec<Index>| {
        let mut outer = at.clone();
        outer.remove(1);
        subtract(subtract(load(input, at), load(largest, outer.clone())), log(load(total, outer)))
    };
    let mut results = vec![targets.loss(builder, op, logarithm)?];
    if op.wants_output(1) {
        let value = logarithm(vars(0, shape.len()));
        results.push(builder.map(shape, DType::F32, value)?);
    }
    Ok(results)
}

/// The classes that should have been found, and what each of them counts.
struct Targets {
    /// Of `shape`, i32 or i64.
    tensor: TensorId,
    /// `[batch, ..]`
    shape: Vec<i64>,
    classes: i64,
    /// `[classes]`
    weight: Option<TensorId>,
    ignored: Option<i64>,
}

impl Targets {
    fn new(builder: &Builder, op: &Operator) -> Result<Targets, Problem> {
        let (input, tensor) = (op.input(0)?, op.input(1)?);
        if builder.dtype(input) != DType::F32 {
            return Err(Problem::Type { input: 0, dtype: builder.dtype(input) });
        }
        let dtype = builder.dtype(tensor);
        if !matches!(dtype, DType::I32 | DType::I64) {
            return Err(Problem::Type { input: 1, dtype });
        }
        let (own, shape) = (builder.shape(input), builder.shape(tensor));
        let fits = match own.as_slice() {
            [batch, classes, inner @ ..] => *classes > 0 && shape == [&[*batch], inner].concat(),
            _ => false,
        };
        if !fits {
            return Err(Problem::Shape(format!("targets of shape {shape:?} do not fit {own:?}")));
        }
        let (classes, weight) = (own[1], op.optional(2));
        if let Some(weight) = weight
            && (builder.shape(weight) != [classes] || builder.dtype(weight) != DType::F32)
        {
            return Err(Problem::Shape(format!("{:?} is not {classes} floats", builder.shape(weight))));
        }
        Ok(Targets { tensor, shape, classes, weight, ignored: op.optional_int("ignore_index")? })
    }

    /// Each target's loss, or their sum or mean; `log_probability` is asked at the target's class.
    fn loss(
        &self,
        builder: &mut Builder,
        op: &Operator,
        log_probability: impl Fn(Vec<Index>) -> Expr,
    ) -> Result<TensorId, Problem> {
        let own = vars(0, self.shape.len());
        let target = load(self.tensor, own.clone());
        let class = gathered(target.clone(), self.classes);
        let mut at = own;
        at.insert(1, class.clone());
        // where a target is ignored, what the class is read from may be no number
        let unless_ignored = |x: Expr| match self.ignored {
            Some(ignored) => Expr::select(equal(target.clone(), Expr::integer(ignored)), float(0.0), x),
            None => x,
        };
        let weight = self.weight.map(|weight| load(weight, vec![class]));
        let negative = Expr::unary(Unary::Negate, log_probability(at));
        let loss = unless_ignored(match weight.clone() {
            Some(weight) => multiply(negative, weight),
            None => negative,
        });
        let total = |builder: &mut Builder, value: Expr| {
            builder.reduce(vec![], self.shape.clone(), Combiner::Sum, DType::F32, value)
        };
        match op.text("reduction", "mean")? {
            "none" => builder.map(self.shape.clone(), DType::F32, loss),
            "sum" => total(builder, loss),
            "mean" => {
                let sum = load(total(builder, loss)?, vec![]);
                let mean = if weight.is_none() && self.ignored.is_none() {
                    divide(sum, float(self.shape.iter().product::<i64>() as f64))
                } else {
                    let counted = unless_ignored(weight.unwrap_or_else(|| float(1.0)));
                    divide(sum, load(total(builder, counted)?, vec![]))
                };
                builder.map(vec![], DType::F32, mean)
            }
            other => Err(Problem::AttributeValue { name: "reduction", value: other.to_string() }),
        }
    }
}
