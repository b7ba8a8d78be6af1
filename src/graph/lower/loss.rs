//! Losses of classifiers.

use super::builder::Builder;
use super::gather::check_index_type;
use super::math::{divide, float, gathered, load, multiply, vars, within};
use super::operator::{Operator, Problem};
use super::reduction::softmax_over;
use crate::workload::{Combiner, DType, Expr, Index, TensorId, Unary};

/// What becomes of the losses of single elements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    None,
    Sum,
    Mean,
}

/// Scores `[n, classes, ..]` and the class of each element, `[n, ..]`; by class, how much it weighs.
struct Loss {
    scores: TensorId,
    target: TensorId,
    weights: Option<TensorId>,
    /// Elements of this class count for nothing; it need not be one that there is.
    ignored: Option<i64>,
    classes: i64,
    /// `[n, ..]`
    shape: Vec<i64>,
}

/// `NegativeLogLikelihoodLoss` of logarithms of probabilities.
pub fn negative_log_likelihood(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    Ok(vec![Loss::new(builder, op, op.input(0)?)?.lower(builder, op)?])
}

/// `SoftmaxCrossEntropyLoss`: the same of a softmax over the classes; the logarithm is the second output.
pub fn softmax_cross_entropy(builder: &mut Builder, op: &Operator) -> Result<Vec<TensorId>, Problem> {
    let scores = op.input(0)?;
    // the shapes are checked before anything is made of them
    let loss = Loss::new(builder, op, scores)?;
    let scores = softmax_over(builder, scores, vec![1], true)?;
    Ok(vec![Loss { scores, ..loss }.lower(builder, op)?, scores])
}

impl Loss {
    fn new(builder: &Builder, op: &Operator, scores: TensorId) -> Result<Loss, Problem> {
        let (target, weights) = (op.input(1)?, op.optional(2));
        let (of_scores, shape) = (builder.shape(scores), builder.shape(target));
        check_index_type(builder, 1, target)?;
        for (input, tensor) in [(0, Some(scores)), (2, weights)] {
            if let Some(dtype) = tensor.map(|tensor| builder.dtype(tensor)).filter(|dtype| *dtype != DType::F32) {
                return Err(Problem::Type { input, dtype });
            }
        }
        let misfit = || Problem::Shape(format!("classes of shape {shape:?} do not fit scores of {of_scores:?}"));
        let [n, classes, rest @ ..] = of_scores.as_slice() else { return Err(misfit()) };
        if shape.split_first() != Some((n, rest)) || (*classes == 0 && !shape.contains(&0)) {
            return Err(misfit());
        }
        if let Some(found) = weights.map(|weights| builder.shape(weights)).filter(|found| found != &[*classes]) {
            return Err(Problem::Shape(format!("weights of shape {found:?} do not fit {classes} classes")));
        }
        let ignored = op.optional_int("ignore_index")?;
        Ok(Loss { scores, target, weights, ignored, classes: *classes, shape: shape.clone() })
    }

    fn lower(&self, builder: &mut Builder, op: &Operator) -> Result<TensorId, Problem> {
        let reduction = match op.text("reduction", "mean")? {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            other => return Err(Problem::AttributeValue { name: "reduction", value: other.to_string() }),
        };
        let at = vars(0, self.shape.len());
        let class = gathered(load(self.target, at.clone()), self.classes.max(1));
        let mut place = at;
        place.insert(1, class.clone());
        let loss = Expr::unary(Unary::Negate, load(self.scores, place));
        let weight = self.weights.map(|weights| load(weights, vec![class]));
        let weighted = match &weight {
            Some(weight) => multiply(weight.clone(), loss),
            None => loss,
        };
        let loss = self.unless_ignored(weighted);
        let sum = |builder: &mut Builder, value: Expr| {
            builder.reduce(vec![], self.shape.clone(), Combiner::Sum, DType::F32, value)
        };
        match reduction {
            Reduction::None => builder.map(self.shape.clone(), DType::F32, loss),
            Reduction::Sum => sum(builder, loss),
            Reduction::Mean => {
                let total = sum(builder, loss)?;
                let count = match (weight, self.ignored) {
                    (None, None) => float(self.shape.iter().product::<i64>() as f64),
                    (weight, _) => {
                        let counted = self.unless_ignored(weight.unwrap_or(float(1.0)));
                        load(sum(builder, counted)?, vec![])
                    }
                };
                builder.map(vec![], DType::F32, divide(load(total, vec![]), count))
            }
        }
    }

    /// A value of an element, 0 where its class is ignored.
    fn unless_ignored(&self, value: Expr) -> Expr {
        let Some(ignored) = self.ignored else { return value };
        let class = Index::value(load(self.target, vars(0, self.shape.len())));
        Expr::guard(vec![within(class, ignored, ignored.saturating_add(1))], float(0.0), value)
    }
}
