//! Extents that the network computes: integers that are read while it runs, and are numbers of the run from
//! then on.

use super::builder::{Builder, unflatten};
use super::math::{cast, load};
use super::operator::{Operator, Problem};
use crate::graph::{Routine, Step};
use crate::workload::{DType, Expr, Index, Stage, TensorId, row_major_strides};

/// What is read as an extent is at most this, as long as sequences are by default.
const MOST: i64 = 2048;
/// Elements of a tensor that are read, at most.
const MOST_ELEMENTS: i64 = 8;
/// Stages that an element is followed through.
const MOST_MOVES: usize = 64;

/// What an element of a tensor is.
enum Found {
    Number(Index),
    /// The element at a row-major place of a tensor.
    Element(TensorId, i64),
}

impl Builder {
    /// The integers that an operator wants to know while it is lowered: numbers, formulas, or what is read
    /// while the network runs, which is at least `least`.
    ///
    /// # Errors
    /// As [`Builder::read`]; [`Problem::NotConstant`] inside of branches and repetitions.
    pub fn numbers_input(&mut self, op: &Operator, position: usize, least: i64) -> Result<Vec<Index>, Problem> {
        let tensor = op.input(position)?;
        match self.integer_formulas(tensor) {
            Some(known) => Ok(known),
            None if self.is_in_block() => Err(Problem::NotConstant(position)),
            None => self.read(tensor, least),
        }
    }

    /// The elements of a few integers. Those that are computed become numbers of the run from `least` to
    /// 2048; a run in which they are others is refused.
    ///
    /// # Errors
    /// As [`Builder::counting`]; and for other tensors than such of up to eight elements.
    pub fn read(&mut self, tensor: TensorId, least: i64) -> Result<Vec<Index>, Problem> {
        let (shape, dtype) = (self.shape(tensor), self.dtype(tensor));
        let elements = Builder::check_shape(&shape)?;
        if elements > MOST_ELEMENTS || self.is_run_time(tensor) || !matches!(dtype, DType::I64 | DType::I32) {
            return Err(Problem::Unsupported(format!("{} of {shape:?}, computed, as extents", dtype.name())));
        }
        (0..elements).map(|place| self.read_element(tensor, place, least)).collect()
    }

    /// An element of a tensor of floats, where it comes from a constant.
    pub(super) fn known_float(&self, tensor: TensorId, place: i64) -> Option<f64> {
        let (from, at) = match self.followed(tensor, place) {
            Found::Number(number) => return number.as_constant().map(|number| number as f64),
            Found::Element(from, at) => (from, at),
        };
        self.data(from)?.to_f64().get(usize::try_from(at).ok()?).copied()
    }

    fn read_element(&mut self, tensor: TensorId, place: i64, least: i64) -> Result<Index, Problem> {
        let (tensor, place) = match self.followed(tensor, place) {
            Found::Number(number) => return Ok(number),
            Found::Element(tensor, place) => (tensor, place),
        };
        // the same symbol for the same element, if it may be as little
        if let Some(known) = self.numbers_read.get(&(tensor, place, least)) {
            return Ok(known.clone());
        }
        let dtype = self.dtype(tensor);
        let element = load(tensor, unflatten(&self.shape(tensor), &Index::constant(place)));
        let number = self.map(vec![1], DType::I64, cast(dtype, DType::I64, element))?;
        let (routine, most) = (Routine::Read { most: 0 }, Index::constant(MOST));
        let sizes = std::slice::from_ref(&most);
        let (_, found) = self.counting_from(least, &routine, sizes, &[number], &most, |_| Vec::new())?;
        self.numbers_read.insert((tensor, place, least), found.clone());
        Ok(found)
    }

    /// Where an element comes from, through stages that only move elements: shapes are put together of
    /// numbers that are known and others.
    fn followed(&self, mut tensor: TensorId, mut place: i64) -> Found {
        for _ in 0..MOST_MOVES {
            if let Some(known) = self.integer_formulas(tensor).and_then(|known| known.get(place as usize).cloned()) {
                return Found::Number(known);
            }
            let moved = self.stage_of(tensor).and_then(|stage| moved(self, stage, place));
            match moved {
                Some(Found::Element(from, at)) => (tensor, place) = (from, at),
                Some(number) => return number,
                None => break,
            }
        }
        Found::Element(tensor, place)
    }

    /// The stage that writes a tensor, if one of the steps that are being made does.
    fn stage_of(&self, tensor: TensorId) -> Option<&Stage> {
        let stages = self.written_steps().iter().rev().filter_map(Step::stage).map(|held| &held.stage);
        stages.into_iter().find(|stage| stage.output == tensor)
    }
}

/// What a stage writes at a place, if that is an integer or an element of another tensor.
fn moved(builder: &Builder, stage: &Stage, place: i64) -> Option<Found> {
    if stage.is_reduction() || !stage.extents.is_fixed() {
        return None;
    }
    let point = unflatten(&stage.spatial, &Index::constant(place));
    let value = stage.value.substitute(&|var| point.get(var.0 as usize).cloned());
    let mut value = &value;
    loop {
        match value {
            Expr::Guard { conditions, inside, outside } => {
                let holds = |index: &Index, low: i64, high: i64| Some((low..high).contains(&index.as_constant()?));
                let held: Option<Vec<bool>> =
                    conditions.iter().map(|condition| holds(&condition.index, condition.low, condition.high)).collect();
                value = if held?.into_iter().all(|holds| holds) { inside } else { outside };
            }
            Expr::Cast(DType::I64, inner) => value = inner,
            Expr::Index(index) if !index.has_value() => return Some(Found::Number(index.clone())),
            Expr::Load { tensor, indices } => {
                let is_integer = matches!(builder.dtype(*tensor), DType::I64 | DType::I32);
                let strides = row_major_strides(&builder.shape(*tensor));
                let places =
                    indices.iter().zip(strides).map(|(index, stride)| index.as_constant()?.checked_mul(stride));
                let place = places.sum::<Option<i64>>()?;
                return is_integer.then_some(Found::Element(*tensor, place));
            }
            _ => return None,
        }
    }
}
