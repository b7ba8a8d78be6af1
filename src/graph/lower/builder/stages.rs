//! Appends stages to a program, and computes at once what depends on constants only.

use super::super::math::{literal, load, var};
use super::{Builder, MAX_AXES, MAX_COMPUTED_POINTS, MAX_POINTS, Problem, product_below};
use crate::graph::fold::{self, Fold};
use crate::graph::{ProgramStage, Step, TensorData};
use crate::workload::form::check_form;
use crate::workload::{Combiner, DType, Expr, Extents, Interval, Role, Stage, Tensor, TensorId, Var};

impl Builder {
    /// A tensor's elements in another type.
    pub fn converted(&mut self, tensor: TensorId, dtype: DType) -> Result<TensorId, Problem> {
        let shape = self.shape(tensor);
        let value = load(tensor, (0..shape.len()).map(var).collect());
        let converted = self.map(shape, dtype, Expr::Cast(dtype, Box::new(value)))?;
        if self.cheap.contains_key(&tensor) && self.cheap.contains_key(&converted) {
            self.conversion_of.insert(converted, tensor);
        }
        Ok(converted)
    }

    /// An element-wise stage over axes of these extents.
    pub fn map(&mut self, shape: Vec<i64>, dtype: DType, value: Expr) -> Result<TensorId, Problem> {
        self.emit(shape, vec![], None, dtype, value)
    }

    /// A stage that combines `value` over further axes, which follow those of `shape`.
    pub fn reduce(
        &mut self,
        shape: Vec<i64>,
        reduction: Vec<i64>,
        combiner: Combiner,
        dtype: DType,
        value: Expr,
    ) -> Result<TensorId, Problem> {
        self.emit(shape, reduction, Some(combiner), dtype, value)
    }

    fn emit(
        &mut self,
        shape: Vec<i64>,
        reduction: Vec<i64>,
        combiner: Option<Combiner>,
        dtype: DType,
        value: Expr,
    ) -> Result<TensorId, Problem> {
        let most: Vec<i64> = shape.iter().chain(&reduction).copied().collect();
        let value = self.with_numbers_read(value)?;
        let extents = self.inferred_extents(&most, &value)?;
        self.emit_known(shape, reduction, combiner, dtype, value, extents)
    }

    /// Appends a stage with these extents, those that are known only when it runs among them.
    pub(in crate::graph::lower) fn emit_known(
        &mut self,
        shape: Vec<i64>,
        reduction: Vec<i64>,
        combiner: Option<Combiner>,
        dtype: DType,
        value: Expr,
        extents: Extents,
    ) -> Result<TensorId, Problem> {
        let elements = Builder::check_shape(&shape)?;
        Builder::check_shape(&reduction)?;
        let value = self.with_numbers_read(value)?;
        if elements > 0 && !reduction.contains(&0) {
            let mut read = Vec::new();
            value.for_each_load(&mut |tensor, _| read.push(tensor));
            read.into_iter().try_for_each(|tensor| self.check_written(tensor))?;
        }
        let most: Vec<i64> = shape.iter().chain(&reduction).copied().collect();
        if most.len() > MAX_AXES || product_below(&most, MAX_POINTS).is_none() {
            return Err(Problem::TooLarge(most.into_iter().take(MAX_AXES).collect()));
        }
        if elements == 0 && !extents.is_fixed() {
            // no step writes it, and none may read it: what it is joined to is joined to nothing
            let rank = shape.len();
            return Ok(self.add_intermediate(shape, dtype, extents.moved(|axis| (axis < rank).then_some(axis))));
        }
        if elements == 0 {
            return Ok(self.constant(TensorData { shape, dtype, bytes: Default::default() }));
        }
        if reduction.contains(&0) {
            let identity = combiner.map_or(0.0, Combiner::identity);
            let (value, rank) = (literal(dtype, identity), shape.len());
            let extents = extents.moved(|axis| (axis < rank).then_some(axis));
            return self.emit_known(shape, vec![], None, dtype, value, extents);
        }
        let (dtype, value) = match (self.is_double, dtype) {
            (true, DType::F32) => (DType::F64, self.doubled(&value)),
            (true, _) => (dtype, self.doubled(&value)),
            (false, _) => (dtype, value),
        };
        let output = TensorId(self.program.tensors.len() as u32);
        let rank = shape.len();
        let own = extents.moved(|axis| (axis < rank).then_some(axis));
        let stage = self.simplified(Stage { output, spatial: shape.clone(), reduction, combiner, value, extents });
        let stage = self.inline_cheap(stage);
        self.check_form(&stage)?;
        let fold = match fold::fold(&self.program, &self.bulky, &stage, dtype) {
            Fold::Compute if !self.is_affordable(stage.points()) || !self.compute_bulky(&stage)? => Fold::No,
            fold => fold,
        };
        match fold {
            Fold::Data(data) => Ok(self.constant(data)),
            Fold::Compute => {
                self.reserve(&shape, dtype)?;
                let data = self.bulky.evaluate(&self.program, &stage, dtype).map_err(Problem::Constant)?;
                Ok(self.constant(data))
            }
            Fold::Bulky(bulky) => {
                self.add_intermediate(shape, dtype, own);
                self.bulky.insert(output, bulky);
                self.append(stage);
                Ok(output)
            }
            Fold::Cheap => {
                self.add_intermediate(shape, dtype, own);
                self.cheap.insert(output, stage.clone());
                self.append(stage);
                Ok(output)
            }
            Fold::No => {
                self.add_intermediate(shape, dtype, own);
                self.append(stage);
                Ok(output)
            }
        }
    }

    /// Whether so many points may be computed at once, after all that were.
    fn is_affordable(&mut self, points: i64) -> bool {
        let points = self.computed_points.saturating_add(points);
        let is_affordable = points <= MAX_COMPUTED_POINTS;
        if is_affordable {
            self.computed_points = points;
        }
        is_affordable
    }

    /// Computes the bulky stages that a stage comes of, if there are time and room for them.
    fn compute_bulky(&mut self, stage: &Stage) -> Result<bool, Problem> {
        for tensor in self.bulky.missing(stage) {
            let Tensor { shape, dtype, .. } = self.tensor(tensor).clone();
            if !self.is_affordable(self.bulky.points(tensor)) || self.reserve(&shape, dtype).is_err() {
                return Ok(false);
            }
            self.bulky.compute(&self.program, tensor).map_err(Problem::Constant)?;
        }
        Ok(true)
    }

    /// Replaces loads of cheap tensors by what computes them.
    pub(super) fn inline_cheap(&self, stage: Stage) -> Stage {
        let mut changed = false;
        let value = stage.value.map_loads(&mut |tensor, indices| {
            let producer = self.cheap.get(&tensor)?;
            changed = true;
            Some(producer.value.substitute(&|var: Var| indices.get(var.0 as usize).cloned()))
        });
        if changed { self.simplified(Stage { value, ..stage }) } else { stage }
    }

    /// Computes a cheap tensor after all, if it fits: contractions pack their constant operands. Its stage
    /// stays behind, dead, so that positions of stages do not change.
    pub fn materialize(&mut self, tensor: TensorId) -> Result<(), Problem> {
        if let Some(source) = self.conversion_of.remove(&tensor) {
            // an operand stays in the type in which the network holds it
            self.materialize(source)?;
            self.compute_from(tensor, source);
        }
        let Some(stage) = self.cheap.get(&tensor).cloned() else { return Ok(()) };
        let dtype = self.tensor(tensor).dtype;
        if !fold::is_storable(&self.program, &stage, dtype) {
            return Ok(());
        }
        self.reserve(&stage.spatial, dtype)?;
        let data = fold::materialize(&self.program, &stage, dtype).map_err(Problem::Constant)?;
        self.cheap.remove(&tensor);
        self.program.tensors[tensor.0 as usize].role = Role::Constant;
        self.program.data[tensor.0 as usize] = Some(data);
        Ok(())
    }

    /// A cheap tensor is from now on a conversion of another one, as that was stored.
    fn compute_from(&mut self, tensor: TensorId, source: TensorId) {
        let Tensor { shape, dtype, .. } = self.tensor(tensor).clone();
        let value = Expr::Cast(dtype, Box::new(load(source, (0..shape.len()).map(var).collect())));
        let extents = self.tensor(tensor).extents.clone();
        let stage = self.simplified(Stage { extents, ..Stage::map(tensor, shape, value) });
        let open = self.outer.iter_mut().flat_map(|outer| &mut outer.steps).chain(&mut self.program.steps);
        open.filter_map(Step::stage_mut)
            .filter(|held| held.stage.output == tensor)
            .for_each(|held| held.stage = stage.clone());
        self.cheap.insert(tensor, stage);
    }

    /// The position that the next stage will have.
    pub(in crate::graph::lower) fn next_stage(&self) -> usize {
        self.program.steps.len()
    }

    /// Lets a stage read another tensor of the same shape.
    pub(in crate::graph::lower) fn replace_load(&mut self, stage: usize, from: TensorId, to: TensorId) {
        let Some(ProgramStage { stage, .. }) = self.program.steps[stage].stage_mut() else { return };
        self.bulky.forget(stage.output);
        stage.value =
            stage.value.map_loads(&mut |tensor, indices| (tensor == from).then(|| Expr::load(to, indices.to_vec())));
    }

    fn check_form(&self, stage: &Stage) -> Result<(), Problem> {
        let highest = |symbol: usize| self.formulas.symbols.list.get(symbol).map(|known| known.range.interval().high);
        check_form(stage, &highest).map_err(|error| Problem::Unsupported(error.to_string()))
    }

    pub(super) fn append(&mut self, stage: Stage) {
        self.program.steps.push(Step::Stage(ProgramStage { stage, node: self.node.clone() }));
    }

    /// Indices without needless divisions, without axes of extent 1, and without reduction axes of extent 1;
    /// a reduction over nothing but those is a map.
    pub(super) fn simplified(&self, mut stage: Stage) -> Stage {
        let extents: Vec<i64> = stage.spatial.iter().chain(&stage.reduction).copied().collect();
        let fixed = |axis: usize| stage.extents.get(axis).is_none();
        let kept_unit = |axis: usize| extents.get(axis) == Some(&1) && !fixed(axis);
        let range = |var: Var| match var.as_parameter() {
            Some(_) => self.formulas.symbol_range(var),
            // an axis that may not run is no constant: what reads by it has elements only where it runs
            None if kept_unit(var.0 as usize) => Interval { low: 0, high: 1 },
            None => Interval::below(extents.get(var.0 as usize).copied().unwrap_or(1)),
        };
        stage.value = stage.value.map_indices(&mut |index| index.simplify(&range));
        let spatial = stage.spatial.len();
        let is_dropped = |axis: usize| axis >= spatial && extents[axis] == 1 && !kept_unit(axis);
        if (spatial..extents.len()).any(is_dropped) {
            let mut kept = spatial;
            let position: Vec<usize> = (0..extents.len())
                .map(|axis| {
                    if axis < spatial {
                        return axis;
                    }
                    kept += usize::from(!is_dropped(axis));
                    kept.saturating_sub(1)
                })
                .collect();
            stage.value = stage.value.substitute(&|v: Var| position.get(v.0 as usize).map(|p| var(*p)));
            stage.reduction =
                (spatial..extents.len()).filter(|axis| !is_dropped(*axis)).map(|axis| extents[axis]).collect();
            stage.extents = stage.extents.moved(|axis| Some(position[axis]));
        }
        if stage.reduction.is_empty() {
            stage.combiner = None;
        }
        stage
    }
}
