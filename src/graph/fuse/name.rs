//! Names of tasks, for people: what is computed, and how large.

use super::cost::Cost;
use super::extent::{self, Extent};
use crate::workload::{Atom, Binary, Combiner, Expr, Index, Role, Stage, TensorId, Unary, Var, Workload};

/// `nodes` are the ONNX nodes of its first call. Such as `conv_3x3s2_64x56x56_128_relu`,
/// `dense_128x768x768_gelu`, `softmax_12x128x128`, `attention_12x128x128x64`, `elementwise_128x768`, or two
/// names with `_to_` between them. Extents that are known when it runs are letters, as in
/// `attention_12xnxnplusmx64`.
pub fn task_name(workload: &Workload, nodes: &[String]) -> String {
    let anchors: Vec<&Stage> = workload.stages.iter().filter(|s| s.is_reduction()).collect();
    let output = workload.stages.last().map_or(String::new(), |s| extents(&extent::spatial(s)));
    match anchors.as_slice() {
        [] => map_name(workload, &output),
        [anchor] if workload.stages.iter().any(|s| s.spatial.len() > anchor.spatial.len()) => {
            format!("{}_{}", chain_name(workload), widest(workload))
        }
        [anchor] => {
            let epilogue = epilogue_name(workload, anchor);
            let name = anchor_name(workload, anchor, nodes).unwrap_or_else(|| reduction_name(anchor));
            if epilogue.is_empty() { name } else { format!("{name}_{epilogue}") }
        }
        _ => pair_name(workload, &anchors, nodes).unwrap_or_else(|| several_name(workload, &anchors)),
    }
}

/// Contractions and windows one behind the other, as plans join them.
fn pair_name(workload: &Workload, anchors: &[&Stage], nodes: &[String]) -> Option<String> {
    let names: Option<Vec<String>> = anchors.iter().map(|anchor| anchor_name(workload, anchor, nodes)).collect();
    Some(names?.join("_to_"))
}

/// A row chain, or attention: contractions around one.
fn several_name(workload: &Workload, anchors: &[&Stage]) -> String {
    match anchors.iter().find(|anchor| is_contraction(anchor)) {
        Some(first) => {
            let kind = match chain_name(workload) {
                "softmax" => "attention".to_string(),
                other => format!("matmul_{other}"),
            };
            format!("{kind}_{}x{}", extents(&extent::spatial(first)), product(&extent::reduction(first)))
        }
        None => format!("{}_{}", chain_name(workload), widest(workload)),
    }
}

fn extents(list: &[Extent]) -> String {
    if list.is_empty() {
        return "1".into();
    }
    list.iter().map(|extent| product(std::slice::from_ref(extent))).collect::<Vec<_>>().join("x")
}

/// Extents that are one number: `768`, `12n`, `nplusm`; `upto512` for what is not said so simply.
fn product(list: &[Extent]) -> String {
    let fixed: i64 = list.iter().filter(|extent| extent.is_fixed()).map(|extent| extent.most).product();
    let formulas: Vec<&Index> = list.iter().filter_map(|extent| extent.formula.as_ref()).collect();
    let said = match formulas.as_slice() {
        [] => Some(fixed.to_string()),
        [formula] => sum((*formula).clone().times(fixed)),
        several => several
            .iter()
            .try_fold((fixed, String::new()), |(factor, letters), formula| {
                let [(Atom::Var(var), own)] = formula.terms() else { return None };
                (formula.offset() == 0).then(|| (factor * own, letters + &letter(*var)))
            })
            .map(|(factor, letters)| times(factor, &letters)),
    };
    said.unwrap_or_else(|| format!("upto{}", extent::points(list)))
}

/// A sum of parameters, of which none is subtracted.
fn sum(formula: Index) -> Option<String> {
    let mut said = String::new();
    for (atom, coefficient) in formula.terms() {
        let Atom::Var(var) = atom else { return None };
        if *coefficient < 1 {
            return None;
        }
        said += if said.is_empty() { "" } else { "plus" };
        said += &times(*coefficient, &letter(*var));
    }
    Some(match formula.offset() {
        0 => said,
        more if more > 0 => format!("{said}plus{more}"),
        less => format!("{said}minus{}", -less),
    })
}

fn times(factor: i64, what: &str) -> String {
    if factor == 1 { what.to_string() } else { format!("{factor}{what}") }
}

/// What a parameter is called.
fn letter(var: Var) -> String {
    let number = var.as_parameter().unwrap_or(0);
    "nmklpqrs".get(number..=number).map_or_else(|| format!("n{number}"), str::to_string)
}

/// The extents of the stage with most elements.
fn widest(workload: &Workload) -> String {
    let stage = workload.stages.iter().max_by_key(|s| s.spatial.iter().product::<i64>());
    stage.map_or(String::new(), |s| extents(&extent::spatial(s)))
}

fn map_name(workload: &Workload, output: &str) -> String {
    let mut gathers = false;
    let mut free = true;
    for stage in &workload.stages {
        free &= Cost::of(&stage.value).is_free();
        stage
            .value
            .for_each_index(&mut |index| gathers |= index.terms().iter().any(|(a, _)| matches!(a, Atom::Value(_))));
    }
    let kind = match (gathers, free) {
        (true, _) => "gather",
        (false, true) => "copy",
        (false, false) => "elementwise",
    };
    format!("{kind}_{output}")
}

fn has(expr: &Expr, unary: Unary) -> bool {
    matches!(expr, Expr::Unary(op, _) if *op == unary) || expr.children().any(|e| has(e, unary))
}

/// Several reductions over the same rows.
fn chain_name(workload: &Workload) -> &'static str {
    let any = |unary| workload.stages.iter().any(|s| has(&s.value, unary));
    let combines = |c| workload.stages.iter().any(|s| s.combiner == Some(c));
    if combines(Combiner::Maximum) && any(Unary::Exp) {
        "softmax"
    } else if any(Unary::Sqrt) || any(Unary::ReciprocalSqrt) {
        // The mean and the variance, or only the mean of the squares.
        if workload.stages.iter().filter(|s| s.is_reduction()).count() > 1 { "layer_norm" } else { "rms_norm" }
    } else {
        "rows"
    }
}

fn reduction_name(anchor: &Stage) -> String {
    let kind = match anchor.combiner {
        Some(Combiner::Sum) => "sum",
        Some(Combiner::Product) => "product",
        Some(Combiner::Maximum) => "max",
        Some(Combiner::Minimum) => "min",
        None => "map",
    };
    format!("{kind}_{}_over_{}", extents(&extent::spatial(anchor)), extents(&extent::reduction(anchor)))
}

/// Calls `visit` for the conditions under which tensors are loaded, where one index moves with all that they
/// speak of.
fn for_each_border(expr: &Expr, visit: &mut dyn FnMut(TensorId, &Index)) {
    if let Expr::Guard { conditions, inside, .. } = expr
        && let Expr::Load { tensor, indices } = &**inside
    {
        let moves = |own: &Index, with: &Index| !with.any_var(&|var| !own.mentions(var));
        let concerns = |index: &Index| indices.iter().any(|own| moves(own, index));
        conditions.iter().filter(|condition| concerns(&condition.index)).for_each(|c| visit(*tensor, &c.index));
    }
    expr.children().for_each(|child| for_each_border(child, visit));
}

/// Matrix products, convolutions and pooling, recognised by their accesses.
fn anchor_name(workload: &Workload, anchor: &Stage, nodes: &[String]) -> Option<String> {
    let mut operands: Vec<(TensorId, Vec<Index>)> = Vec::new();
    anchor.value.for_each_load(&mut |tensor, indices| operands.push((tensor, indices.to_vec())));
    let (rank, axes) = (anchor.spatial.len(), extent::spatial(anchor));
    // A window: a dimension that moves with one spatial and one reduction axis, the former of which no other
    // operand knows (a group or a head is known to both).
    let knows = |axis: usize| {
        let mentions = |indices: &Vec<Index>| indices.iter().any(|index| index.mentions(Var(axis as u32)));
        operands.iter().filter(|(_, indices)| mentions(indices)).count()
    };
    let mut windows: Vec<(usize, i64, i64, Vec<usize>)> = Vec::new();
    let mut windowed = None;
    // an image that is read through another shape shows its rows in the conditions of its borders only
    let mut borders = Vec::new();
    for_each_border(&anchor.value, &mut |tensor, index| borders.push((tensor, vec![index.clone()])));
    for (tensor, indices) in operands.iter().chain(&borders) {
        for index in indices {
            let vars: Vec<(usize, i64)> = index
                .terms()
                .iter()
                .filter_map(|(atom, c)| match atom {
                    Atom::Var(Var(v)) => Some((*v as usize, *c)),
                    _ => None,
                })
                .collect();
            // rows in blocks move with two axes, the blocks and the rows in them
            let (rows, steps): (Vec<_>, Vec<_>) = vars.into_iter().partition(|(axis, _)| *axis < rank);
            if let ([(r, dilation)], Some(stride)) = (steps.as_slice(), rows.iter().map(|(_, stride)| *stride).min())
                && rows.iter().all(|(s, _)| knows(*s) == 1)
                && windows.iter().all(|(own, ..)| own != r)
            {
                let rows: Vec<usize> = rows.into_iter().map(|(s, _)| s).collect();
                windows.push((*r, stride, *dilation, rows));
                windowed = Some(*tensor);
            }
        }
    }
    let is_product = product_operands(&anchor.value) >= 2;
    if let (Some(tensor), false) = (windowed, windows.is_empty()) {
        let kernel = windows.iter().map(|(r, ..)| anchor.extent(*r).to_string()).collect::<Vec<_>>().join("x");
        let stride =
            windows.iter().map(|(_, s, ..)| *s).max().filter(|s| *s > 1).map_or(String::new(), |s| format!("s{s}"));
        let dilation =
            windows.iter().map(|(.., d, _)| *d).max().filter(|d| *d > 1).map_or(String::new(), |d| format!("d{d}"));
        let input = extents(&extent::of_tensor(workload.tensor(tensor)));
        let channels = operands.iter().flat_map(|(_, i)| i).filter(|index| {
            (0..rank).any(|a| index.mentions(Var(a as u32)) && knows(a) > 1)
                && (rank..anchor.rank()).any(|a| index.mentions(Var(a as u32)))
        });
        let grouped = if channels.count() > 0 { "grouped_" } else { "" };
        let outside: Vec<Extent> =
            (0..rank).filter(|a| !windows.iter().any(|w| w.3.contains(a))).map(|a| axes[a].clone()).collect();
        let of_image = |axis: usize| {
            let image = operands.iter().filter(|(operand, _)| *operand == tensor).flat_map(|(_, indices)| indices);
            image.into_iter().any(|index| index.mentions(Var(axis as u32)))
        };
        // several filters over an image of one channel are no filters of a channel each
        let is_depthwise = anchor.reduction.len() == windows.len() && (0..rank).all(of_image);
        return Some(match (is_product, anchor.combiner) {
            (true, _) if is_depthwise => {
                format!("depthwise_{kernel}{stride}{dilation}_{input}")
            }
            (true, _) => format!("{grouped}conv_{kernel}{stride}{dilation}_{input}_{}", extents(&outside)),
            (false, Some(Combiner::Maximum)) => format!("max_pool_{kernel}{stride}{dilation}_{input}"),
            (false, _) => format!("sum_pool_{kernel}{stride}{dilation}_{input}"),
        });
    }
    if !is_contraction(anchor) {
        return None;
    }
    let k = product(&extent::reduction(anchor));
    let constants = operands.iter().filter(|(t, _)| workload.tensor(*t).role == Role::Constant);
    let constant = constants.max_by_key(|(t, _)| workload.tensor(*t).elements());
    let Some((_, weight)) = constant else {
        // Neither operand is a weight: a product of activations.
        return Some(format!("matmul_{}x{k}", extents(&extent::spatial(anchor))));
    };
    let of_weight = |axis: &usize| weight.iter().any(|index| index.mentions(Var(*axis as u32)));
    let size = |weight: bool| {
        product(&(0..rank).filter(|a| of_weight(a) == weight).map(|a| axes[a].clone()).collect::<Vec<_>>())
    };
    let step = operands.iter().flat_map(|(_, i)| i).flat_map(|i| i.terms()).map(|(_, c)| *c).max().unwrap_or(1);
    Some(match nodes.iter().any(|node| node.starts_with("Conv")) {
        true => {
            let pixels: Vec<Extent> = (0..rank).filter(|a| !of_weight(a)).map(|a| axes[a].clone()).collect();
            let stride = if step == 2 { "s2" } else { "" };
            format!("conv_1x1{stride}_{k}x{}_{}", extents(&pixels), size(true))
        }
        false => format!("dense_{}x{k}x{}", size(false), size(true)),
    })
}

/// A sum of products of different operands.
fn is_contraction(stage: &Stage) -> bool {
    stage.combiner == Some(Combiner::Sum) && product_operands(&stage.value) >= 2
}

/// The number of factors that load something of their own.
fn product_operands(value: &Expr) -> usize {
    match value {
        Expr::Binary(Binary::Multiply, x, y) => {
            // A square is no contraction: its operands are one element.
            let own = |e: &Expr| {
                let mut found = Vec::new();
                e.for_each_load(&mut |tensor, indices| found.push((tensor, indices.to_vec())));
                found
            };
            let (left, right) = (own(x), own(y));
            match left.iter().all(|t| right.contains(t)) || right.iter().all(|t| left.contains(t)) {
                true => product_operands(x).max(product_operands(y)),
                false => 2,
            }
        }
        Expr::Guard { inside, .. } => product_operands(inside),
        _ => 0,
    }
}

/// What follows the only reduction of a task.
fn epilogue_name(workload: &Workload, anchor: &Stage) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let after = workload.stages.iter().filter(|s| !s.is_reduction());
    for stage in after {
        // An operand as large as the result, other than the result itself.
        stage.value.for_each_load(&mut |tensor, _| {
            let operand = workload.tensor(tensor);
            let own = operand.role == Role::Intermediate || tensor == anchor.output;
            if !own && operand.role != Role::Constant && operand.elements() == workload.tensor(stage.output).elements()
            {
                parts.push(if is_factor(&stage.value, tensor) { "mul" } else { "add" });
            }
        });
        for (unary, name) in
            [(Unary::Erf, "gelu"), (Unary::Tanh, "tanh"), (Unary::Sigmoid, "sigmoid"), (Unary::Exp, "exp")]
        {
            if has(&stage.value, unary) {
                parts.push(name);
            }
        }
        if has_zero_maximum(&stage.value) {
            parts.push("relu");
        }
    }
    parts.dedup();
    parts.join("_")
}

/// Whether a tensor is multiplied as it is.
fn is_factor(expr: &Expr, operand: TensorId) -> bool {
    let own = |e: &Expr| matches!(e, Expr::Load { tensor, .. } if *tensor == operand);
    matches!(expr, Expr::Binary(Binary::Multiply, x, y) if own(x) || own(y))
        || expr.children().any(|e| is_factor(e, operand))
}

fn has_zero_maximum(expr: &Expr) -> bool {
    let zero = |e: &Expr| matches!(e, Expr::Float(value) if value.0 == 0.0);
    matches!(expr, Expr::Binary(Binary::Maximum, x, y) if zero(x) || zero(y)) || expr.children().any(has_zero_maximum)
}
