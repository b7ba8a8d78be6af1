//! Sliding windows: the geometry that convolutions and poolings share.

use super::builder::Builder;
use super::math::{var, within};
use super::operator::{Operator, Problem};
use crate::workload::{Condition, Index};

/// Bound of kernel extents, strides, dilations and paddings, so that no position can overflow.
const MAX_STEP: i64 = 1 << 30;

/// One dimension of a window that moves over an input.
#[derive(Clone, Debug)]
pub struct Window {
    /// Extent of the input, at most.
    pub input: i64,
    /// Extent of the output, at most.
    pub output: i64,
    pub kernel: i64,
    pub stride: i64,
    pub dilation: i64,
    pub pad_before: i64,
    pub pad_after: i64,
    /// What is known only when the network runs; then the paddings are those of this.
    pub open: Option<OpenWindow>,
}

/// The formulas of a window over an input whose extent is known only when the network runs.
#[derive(Clone, Debug)]
pub struct OpenWindow {
    pub input: Index,
    pub output: Index,
    pub pad_before: Index,
    pub pad_after: Index,
    /// Whether every tap of every output lies in the input.
    pub stays_inside: bool,
}

impl Window {
    /// The extent of the output.
    pub fn output_extent(&self) -> Index {
        self.open.as_ref().map_or(Index::constant(self.output), |open| open.output.clone())
    }

    /// Where the tap `tap` of output `at` reads.
    pub fn position(&self, at: &Index, tap: &Index) -> Index {
        let padded = at.clone().times(self.stride).plus(&tap.clone().times(self.dilation));
        match &self.open {
            Some(open) => padded.minus(&open.pad_before),
            None => padded.plus_constant(-self.pad_before),
        }
    }

    /// How far the taps reach.
    pub fn span(&self) -> i64 {
        self.dilation * (self.kernel - 1) + 1
    }

    /// The conditions that a position lies in the input, unless it always does.
    pub fn inside(&self, position: &Index) -> Vec<Condition> {
        if let Some(open) = &self.open {
            let guards = || Condition::within(position, Some(&open.input), self.input);
            return if open.stays_inside { Vec::new() } else { guards() };
        }
        let last = (self.output - 1) * self.stride + self.span() - 1 - self.pad_before;
        let is_outside = self.pad_before > 0 || last >= self.input;
        is_outside.then(|| within(position.clone(), 0, self.input)).into_iter().collect()
    }

    /// How many taps of an output lie in the input; with `padding`, in the padded input.
    pub fn taps(&self, at: i64, padding: bool) -> i64 {
        let start = at * self.stride - self.pad_before;
        let (low, high) = if padding { (-self.pad_before, self.input + self.pad_after) } else { (0, self.input) };
        // taps t with low <= start + t * dilation < high
        let before = |bound: i64| (bound - start + self.dilation - 1).div_euclid(self.dilation).clamp(0, self.kernel);
        before(high) - before(low)
    }
}

/// Where all dimensions of a window read, and the guards for it: output axes start at `outputs`, kernel axes
/// at `taps`.
pub fn positions(windows: &[Window], outputs: usize, taps: usize) -> (Vec<Index>, Vec<Condition>) {
    let at: Vec<Index> =
        windows.iter().enumerate().map(|(d, window)| window.position(&var(outputs + d), &var(taps + d))).collect();
    let guards = windows.iter().zip(&at).flat_map(|(window, position)| window.inside(position)).collect();
    (at, guards)
}

/// The numbers of an attribute, one for each dimension.
pub fn steps(op: &Operator, name: &'static str, rank: usize) -> Result<Vec<i64>, Problem> {
    let values = op.ints(name)?.map_or_else(|| vec![1; rank], <[i64]>::to_vec);
    if values.len() != rank || values.iter().any(|v| !(1..MAX_STEP).contains(v)) {
        return Err(Problem::AttributeValue { name, value: format!("{values:?}") });
    }
    Ok(values)
}

/// Paddings before and after each dimension; `None` if `auto_pad` decides about them.
pub fn explicit_pads(op: &Operator, rank: usize) -> Result<Option<Vec<(i64, i64)>>, Problem> {
    if !matches!(op.text("auto_pad", "NOTSET")?, "NOTSET" | "") {
        return Ok(None);
    }
    let pads = op.ints("pads")?.map_or_else(|| vec![0; 2 * rank], <[i64]>::to_vec);
    if pads.len() != 2 * rank || pads.iter().any(|p| !(0..MAX_STEP).contains(p)) {
        return Err(Problem::AttributeValue { name: "pads", value: format!("{pads:?}") });
    }
    Ok(Some((0..rank).map(|d| (pads[d], pads[rank + d])).collect()))
}

/// The windows of a convolution or pooling over `input` with these kernel extents.
pub fn windows(
    builder: &mut Builder,
    op: &Operator,
    extents: &[Index],
    kernel: &[i64],
) -> Result<Vec<Window>, Problem> {
    let rank = extents.len();
    let input = extents.iter().map(|extent| builder.formulas.most(extent)).collect::<Result<Vec<_>, _>>()?;
    if kernel.len() != rank || kernel.iter().any(|k| !(1..MAX_STEP).contains(k)) {
        return Err(Problem::AttributeValue { name: "kernel_shape", value: format!("{kernel:?}") });
    }
    let (strides, dilations) = (steps(op, "strides", rank)?, steps(op, "dilations", rank)?);
    let rounds_up = op.flag("ceil_mode", false)?;
    let pads = explicit_pads(op, rank)?;
    let mut windows = Vec::new();
    for d in 0..rank {
        let (stride, dilation) = (strides[d], dilations[d]);
        let span = dilation.checked_mul(kernel[d] - 1).map(|s| s + 1).filter(|s| *s < MAX_STEP);
        let span = span.ok_or_else(|| Problem::AttributeValue { name: "dilations", value: dilation.to_string() })?;
        if extents[d].as_constant().is_none() {
            let own = pads.as_ref().map(|pads| pads[d]);
            let shape = Shape { kernel: kernel[d], stride, dilation, span, rounds_up };
            windows.push(open_window(builder, op, &extents[d], own, &shape)?);
            continue;
        }
        let (output, (pad_before, pad_after)) = match &pads {
            Some(pads) => {
                let (before, after) = pads[d];
                let room = input[d] + before + after - span;
                let mut output = room.div_euclid(stride) + 1;
                if rounds_up && room.rem_euclid(stride) != 0 {
                    // a window that starts in the padding behind the input is left out
                    output += i64::from(output * stride < input[d] + before);
                }
                (output, (before, after))
            }
            None => automatic(op.text("auto_pad", "NOTSET")?, input[d], span, stride, rounds_up)?,
        };
        if output < 1 {
            return Err(Problem::Shape(format!("a kernel of span {span} does not fit into extent {}", input[d])));
        }
        let (input, kernel, open) = (input[d], kernel[d], None);
        windows.push(Window { input, output, kernel, stride, dilation, pad_before, pad_after, open });
    }
    Ok(windows)
}

/// What a window is by attributes alone.
struct Shape {
    kernel: i64,
    stride: i64,
    dilation: i64,
    span: i64,
    rounds_up: bool,
}

/// The window over an extent that is known only when the network runs; `pads`: `None` if `auto_pad` decides.
fn open_window(
    builder: &mut Builder,
    op: &Operator,
    input: &Index,
    pads: Option<(i64, i64)>,
    shape: &Shape,
) -> Result<Window, Problem> {
    let Shape { kernel, stride, dilation, span, rounds_up } = *shape;
    let mode = op.text("auto_pad", "NOTSET")?;
    let is_same = pads.is_none() && mode != "VALID";
    let ceil_div = |x: Index| x.plus_constant(stride - 1).floor_div(stride);
    let (output, pad_before, pad_after) = if is_same {
        let output = builder.formulas.simple(&ceil_div(input.clone()));
        let covered = output.clone().plus_constant(-1).times(stride).plus_constant(span);
        let pad = builder.formulas.greater(&covered.minus(input), &Index::constant(0))?;
        let less = builder.formulas.simple(&pad.clone().floor_div(2));
        let more = pad.minus(&less);
        match mode {
            "SAME_UPPER" => (output, less, more),
            "SAME_LOWER" => (output, more, less),
            other => return Err(Problem::AttributeValue { name: "auto_pad", value: other.to_string() }),
        }
    } else {
        let (before, after) = pads.unwrap_or((0, 0));
        let room = input.clone().plus_constant(before + after - span);
        let reach = room.plus_constant(stride);
        let reach = builder.formulas.left_of(&reach, stride, "what a window leaves of an extent")?;
        let mut output = builder.formulas.simple(&reach.clone().floor_div(stride));
        if rounds_up {
            let rounded = builder.formulas.simple(&ceil_div(reach));
            // a window that starts in the padding behind the input is left out
            let started = match pads {
                Some(_) => builder.formulas.simple(&ceil_div(input.clone().plus_constant(before))),
                None => rounded.clone(),
            };
            let most = builder.formulas.lesser(&rounded, &started)?;
            output = builder.formulas.greater(&output, &most)?;
        }
        (output, Index::constant(before), Index::constant(after))
    };
    let zero = Index::constant(0);
    let stays_inside = !rounds_up && pad_before == zero && pad_after == zero;
    let most = [builder.formulas.most(input)?, builder.formulas.most(&output)?];
    Ok(Window {
        input: most[0],
        output: most[1],
        kernel,
        stride,
        dilation,
        pad_before: pad_before.as_constant().unwrap_or(0),
        pad_after: pad_after.as_constant().unwrap_or(0),
        open: Some(OpenWindow { input: input.clone(), output, pad_before, pad_after, stays_inside }),
    })
}

fn automatic(mode: &str, input: i64, span: i64, stride: i64, rounds_up: bool) -> Result<(i64, (i64, i64)), Problem> {
    let output = match mode {
        "VALID" => {
            let room = input - span;
            let rounded = if rounds_up { room + stride - 1 } else { room };
            return Ok((rounded.div_euclid(stride) + 1, (0, 0)));
        }
        "SAME_UPPER" | "SAME_LOWER" => (input + stride - 1) / stride,
        other => return Err(Problem::AttributeValue { name: "auto_pad", value: other.to_string() }),
    };
    let pad = ((output - 1) * stride + span - input).max(0);
    let (less, more) = (pad / 2, pad - pad / 2);
    Ok((output, if mode == "SAME_UPPER" { (less, more) } else { (more, less) }))
}
