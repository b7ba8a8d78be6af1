//! A thin layer over LLVM's instruction builder: operations on values that are scalars or vectors alike.
//!
//! Where one operand is a scalar and the other a vector, the scalar is broadcast. Values have one of five
//! element types: f32, f64 (inside of approximations), i64, i32 (lane arithmetic) and i1.

use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{BasicType, BasicTypeEnum, VectorType};
use inkwell::values::{
    BasicMetadataValueEnum, BasicValue, BasicValueEnum, CallSiteValue, FunctionValue, PointerValue, VectorValue,
};
use inkwell::{AtomicOrdering, FloatPredicate, IntPredicate};

use crate::codegen::error::CodegenError;

/// An LLVM value: a scalar, or a vector with a lane for each iteration of the vector loop.
pub type Value<'c> = BasicValueEnum<'c>;

/// Element types of values in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    F32,
    F64,
    I64,
    I32,
    I1,
}

pub struct Ir<'c> {
    pub context: &'c Context,
    pub builder: Builder<'c>,
}

type Result<T> = std::result::Result<T, CodegenError>;

impl From<BuilderError> for CodegenError {
    fn from(error: BuilderError) -> CodegenError {
        CodegenError::Internal(format!("LLVM's builder: {error}"))
    }
}

/// Applies a builder method to two floats or two vectors of floats.
macro_rules! float_binary {
    ($name:ident, $method:ident) => {
        pub fn $name(&self, x: Value<'c>, y: Value<'c>) -> Result<Value<'c>> {
            Ok(match self.same_shape(x, y)? {
                (Value::FloatValue(x), Value::FloatValue(y)) => self.builder.$method(x, y, "")?.into(),
                (Value::VectorValue(x), Value::VectorValue(y)) => self.builder.$method(x, y, "")?.into(),
                (x, y) => return Err(mismatch(stringify!($name), x, y)),
            })
        }
    };
}

macro_rules! int_binary {
    ($name:ident, $method:ident $(, $extra:expr)?) => {
        pub fn $name(&self, x: Value<'c>, y: Value<'c>) -> Result<Value<'c>> {
            Ok(match self.same_shape(x, y)? {
                (Value::IntValue(x), Value::IntValue(y)) => self.builder.$method(x, y, $($extra,)? "")?.into(),
                (Value::VectorValue(x), Value::VectorValue(y)) => self.builder.$method(x, y, $($extra,)? "")?.into(),
                (x, y) => return Err(mismatch(stringify!($name), x, y)),
            })
        }
    };
}

fn mismatch(what: &str, x: Value<'_>, y: Value<'_>) -> CodegenError {
    CodegenError::Malformed(format!("{what} of {} and {}", x.get_type(), y.get_type()))
}

impl<'c> Ir<'c> {
    pub fn new(context: &'c Context) -> Ir<'c> {
        Ir { context, builder: context.create_builder() }
    }

    float_binary!(fadd, build_float_add);
    float_binary!(fsub, build_float_sub);
    float_binary!(fmul, build_float_mul);
    float_binary!(fdiv, build_float_div);
    int_binary!(add, build_int_add);
    int_binary!(sub, build_int_sub);
    int_binary!(mul, build_int_mul);
    int_binary!(add_nsw, build_int_nsw_add);
    int_binary!(mul_nsw, build_int_nsw_mul);
    int_binary!(sdiv, build_int_signed_div);
    int_binary!(udiv, build_int_unsigned_div);
    int_binary!(urem, build_int_unsigned_rem);
    int_binary!(and, build_and);
    int_binary!(or, build_or);
    int_binary!(xor, build_xor);
    int_binary!(shl, build_left_shift);
    int_binary!(ashr, build_right_shift, true);
    int_binary!(lshr, build_right_shift, false);

    pub fn fneg(&self, x: Value<'c>) -> Result<Value<'c>> {
        Ok(match x {
            Value::FloatValue(x) => self.builder.build_float_neg(x, "")?.into(),
            Value::VectorValue(x) => self.builder.build_float_neg(x, "")?.into(),
            other => return Err(mismatch("negation", other, other)),
        })
    }

    pub fn not(&self, x: Value<'c>) -> Result<Value<'c>> {
        let ones = self.integer(self.element(x)?, -1);
        self.xor(x, ones)
    }

    pub fn fcmp(&self, predicate: FloatPredicate, x: Value<'c>, y: Value<'c>) -> Result<Value<'c>> {
        Ok(match self.same_shape(x, y)? {
            (Value::FloatValue(x), Value::FloatValue(y)) => {
                self.builder.build_float_compare(predicate, x, y, "")?.into()
            }
            (Value::VectorValue(x), Value::VectorValue(y)) => {
                self.builder.build_float_compare(predicate, x, y, "")?.into()
            }
            (x, y) => return Err(mismatch("comparison", x, y)),
        })
    }

    pub fn icmp(&self, predicate: IntPredicate, x: Value<'c>, y: Value<'c>) -> Result<Value<'c>> {
        Ok(match self.same_shape(x, y)? {
            (Value::IntValue(x), Value::IntValue(y)) => self.builder.build_int_compare(predicate, x, y, "")?.into(),
            (Value::VectorValue(x), Value::VectorValue(y)) => {
                self.builder.build_int_compare(predicate, x, y, "")?.into()
            }
            (x, y) => return Err(mismatch("comparison", x, y)),
        })
    }

    /// `condition ? yes : no`, lane by lane where any of them is a vector.
    pub fn select(&self, condition: Value<'c>, yes: Value<'c>, no: Value<'c>) -> Result<Value<'c>> {
        let (yes, no) = self.same_shape(yes, no)?;
        match (condition, yes) {
            (Value::IntValue(c), _) => Ok(self.builder.build_select(c, yes, no, "")?),
            (Value::VectorValue(c), Value::VectorValue(_)) => Ok(self.builder.build_select(c, yes, no, "")?),
            (Value::VectorValue(c), _) => {
                let width = c.get_type().get_size();
                let (yes, no) = (self.splat(yes, width)?, self.splat(no, width)?);
                Ok(self.builder.build_select(c, yes, no, "")?)
            }
            (c, x) => Err(mismatch("select", c, x)),
        }
    }

    /// `x · y + z`, rounded once where the target has such an instruction, twice elsewhere.
    pub fn fma(&self, module: &Module<'c>, x: Value<'c>, y: Value<'c>, z: Value<'c>) -> Result<Value<'c>> {
        let (x, y) = self.same_shape(x, y)?;
        let (x, z) = self.same_shape(x, z)?;
        let (y, z) = self.same_shape(y, z)?;
        self.intrinsic(module, "llvm.fmuladd", &[x.get_type()], &[x, y, z])
    }

    /// Calls an LLVM intrinsic; `overload` are the types that select its instance.
    pub fn intrinsic(
        &self,
        module: &Module<'c>,
        name: &str,
        overload: &[BasicTypeEnum<'c>],
        arguments: &[Value<'c>],
    ) -> Result<Value<'c>> {
        self.intrinsic_call(module, name, overload, arguments)?
            .try_as_basic_value()
            .basic()
            .ok_or_else(|| CodegenError::Internal(format!("{name} gives no value")))
    }

    /// Like [`Ir::intrinsic`], for those without a value and for attributes and metadata of the call.
    pub fn intrinsic_call(
        &self,
        module: &Module<'c>,
        name: &str,
        overload: &[BasicTypeEnum<'c>],
        arguments: &[Value<'c>],
    ) -> Result<CallSiteValue<'c>> {
        let function = self.declared(module, name, overload)?;
        let arguments: Vec<BasicMetadataValueEnum> = arguments.iter().map(|a| (*a).into()).collect();
        Ok(self.builder.build_call(function, &arguments, "")?)
    }

    /// An intrinsic of LLVM, by its name and the types that it is overloaded with.
    pub fn declared(
        &self,
        module: &Module<'c>,
        name: &str,
        overload: &[BasicTypeEnum<'c>],
    ) -> Result<FunctionValue<'c>> {
        let found = Intrinsic::find(name).and_then(|intrinsic| intrinsic.get_declaration(module, overload));
        found.ok_or_else(|| CodegenError::Internal(format!("LLVM has no {name} of {overload:?}")))
    }

    /// The `align` attribute of a pointer argument.
    pub fn align_argument(&self, call: CallSiteValue<'c>, argument: u32, bytes: u64) {
        let kind = Attribute::get_named_enum_kind_id("align");
        call.add_attribute(AttributeLoc::Param(argument), self.context.create_enum_attribute(kind, bytes));
    }

    /// Floating-point to signed integer; values out of range saturate and NaN gives 0, as Rust's `as` does.
    pub fn float_to_int(&self, module: &Module<'c>, x: Value<'c>, to: Element) -> Result<Value<'c>> {
        let to = self.type_like(to, x);
        self.intrinsic(module, "llvm.fptosi.sat", &[to, x.get_type()], &[x])
    }

    /// A float towards zero that is known to be within the integers of a type, or NaN, which gives 0.
    pub fn bounded_float_to_int(&self, x: Value<'c>, to: Element) -> Result<Value<'c>> {
        // LLVM takes vectors that may have to be cut off apart, whatever the processor
        let is_number = self.fcmp(FloatPredicate::ORD, x, x)?;
        let number = self.select(is_number, x, self.float_like(0.0, x)?)?;
        Ok(match (number, self.type_like(to, x)) {
            (Value::FloatValue(x), BasicTypeEnum::IntType(to)) => {
                self.builder.build_float_to_signed_int(x, to, "")?.into()
            }
            (Value::VectorValue(x), BasicTypeEnum::VectorType(to)) => {
                self.builder.build_float_to_signed_int(x, to, "")?.into()
            }
            _ => return Err(CodegenError::Internal("a float was expected".to_string())),
        })
    }

    /// As [`Ir::float_to_int`], to an unsigned integer: what is below 0 gives 0.
    pub fn float_to_unsigned(&self, module: &Module<'c>, x: Value<'c>, to: Element) -> Result<Value<'c>> {
        let to = self.type_like(to, x);
        self.intrinsic(module, "llvm.fptoui.sat", &[to, x.get_type()], &[x])
    }

    pub fn unsigned_to_float(&self, x: Value<'c>, to: Element) -> Result<Value<'c>> {
        Ok(match (x, self.type_like(to, x)) {
            (Value::IntValue(x), BasicTypeEnum::FloatType(to)) => {
                self.builder.build_unsigned_int_to_float(x, to, "")?.into()
            }
            (Value::VectorValue(x), BasicTypeEnum::VectorType(to)) => {
                self.builder.build_unsigned_int_to_float(x, to, "")?.into()
            }
            (x, _) => return Err(mismatch("conversion", x, x)),
        })
    }

    pub fn int_to_float(&self, x: Value<'c>, to: Element) -> Result<Value<'c>> {
        Ok(match (x, self.type_like(to, x)) {
            (Value::IntValue(x), BasicTypeEnum::FloatType(to)) => {
                self.builder.build_signed_int_to_float(x, to, "")?.into()
            }
            (Value::VectorValue(x), BasicTypeEnum::VectorType(to)) => {
                self.builder.build_signed_int_to_float(x, to, "")?.into()
            }
            (x, _) => return Err(mismatch("conversion", x, x)),
        })
    }

    pub fn float_resize(&self, x: Value<'c>, to: Element) -> Result<Value<'c>> {
        self.float_cast(x, self.type_like(to, x))
    }

    /// To a longer or shorter type of floats, which has as many lanes.
    pub fn float_cast(&self, x: Value<'c>, to: BasicTypeEnum<'c>) -> Result<Value<'c>> {
        Ok(match (x, to) {
            (Value::FloatValue(x), BasicTypeEnum::FloatType(to)) => self.builder.build_float_cast(x, to, "")?.into(),
            (Value::VectorValue(x), BasicTypeEnum::VectorType(to)) => self.builder.build_float_cast(x, to, "")?.into(),
            (x, _) => return Err(mismatch("conversion", x, x)),
        })
    }

    pub fn zero_extend(&self, x: Value<'c>, to: BasicTypeEnum<'c>) -> Result<Value<'c>> {
        Ok(match (x, to) {
            (Value::IntValue(x), BasicTypeEnum::IntType(to)) => self.builder.build_int_z_extend(x, to, "")?.into(),
            (Value::VectorValue(x), BasicTypeEnum::VectorType(to)) => {
                self.builder.build_int_z_extend(x, to, "")?.into()
            }
            (x, _) => return Err(mismatch("extension", x, x)),
        })
    }

    pub fn sign_extend(&self, x: Value<'c>, to: BasicTypeEnum<'c>) -> Result<Value<'c>> {
        Ok(match (x, to) {
            (Value::IntValue(x), BasicTypeEnum::IntType(to)) => self.builder.build_int_s_extend(x, to, "")?.into(),
            (Value::VectorValue(x), BasicTypeEnum::VectorType(to)) => {
                self.builder.build_int_s_extend(x, to, "")?.into()
            }
            (x, _) => return Err(mismatch("extension", x, x)),
        })
    }

    pub fn truncate(&self, x: Value<'c>, to: BasicTypeEnum<'c>) -> Result<Value<'c>> {
        Ok(match (x, to) {
            (Value::IntValue(x), BasicTypeEnum::IntType(to)) => self.builder.build_int_truncate(x, to, "")?.into(),
            (Value::VectorValue(x), BasicTypeEnum::VectorType(to)) => {
                self.builder.build_int_truncate(x, to, "")?.into()
            }
            (x, _) => return Err(mismatch("truncation", x, x)),
        })
    }

    /// The same bits as another type of the same shape and width.
    pub fn reinterpret(&self, x: Value<'c>, to: Element) -> Result<Value<'c>> {
        self.reinterpret_as(x, self.type_like(to, x))
    }

    /// The same bits as another type of as many.
    pub fn reinterpret_as(&self, x: Value<'c>, to: BasicTypeEnum<'c>) -> Result<Value<'c>> {
        Ok(self.builder.build_bit_cast(x, to, "")?)
    }

    /// Broadcasts a scalar to `width` lanes; a vector stays as it is.
    pub fn splat(&self, x: Value<'c>, width: u32) -> Result<Value<'c>> {
        if x.is_vector_value() {
            return Ok(x);
        }
        let vector = vector_type(x.get_type(), width)?;
        let one =
            self.builder.build_insert_element(vector.get_poison(), x, self.context.i32_type().const_zero(), "")?;
        let lanes = self.context.i32_type().vec_type(width).const_zero();
        Ok(self.builder.build_shuffle_vector(one, vector.get_poison(), lanes, "")?.into())
    }

    /// Broadcasts the scalar one of two values where the other is a vector.
    pub fn same_shape(&self, x: Value<'c>, y: Value<'c>) -> Result<(Value<'c>, Value<'c>)> {
        Ok(match (x, y) {
            (Value::VectorValue(v), _) => (x, self.splat(y, v.get_type().get_size())?),
            (_, Value::VectorValue(v)) => (self.splat(x, v.get_type().get_size())?, y),
            _ => (x, y),
        })
    }

    /// Lanes `order` of a vector; a negative number leaves a lane undefined.
    pub fn shuffle(&self, x: VectorValue<'c>, order: &[i64]) -> Result<VectorValue<'c>> {
        let i32_type = self.context.i32_type();
        let order: Vec<_> = order
            .iter()
            .map(|lane| if *lane < 0 { i32_type.get_poison() } else { i32_type.const_int(*lane as u64, false) })
            .collect();
        Ok(self.builder.build_shuffle_vector(x, x.get_type().get_poison(), VectorType::const_vector(&order), "")?)
    }

    /// Lanes `order` of two vectors, those of the second behind those of the first.
    pub fn shuffle_pair(&self, x: VectorValue<'c>, y: VectorValue<'c>, order: &[i64]) -> Result<VectorValue<'c>> {
        let i32_type = self.context.i32_type();
        let order: Vec<_> = order.iter().map(|lane| i32_type.const_int(*lane as u64, false)).collect();
        Ok(self.builder.build_shuffle_vector(x, y, VectorType::const_vector(&order), "")?)
    }

    /// The vector `first, first + step, …`.
    pub fn ramp(&self, element: Element, width: u32, step: i64) -> Value<'c> {
        let lanes: Vec<Value> = (0..i64::from(width)).map(|lane| self.integer(element, lane * step)).collect();
        const_vector(&lanes)
    }

    /// A constant mask whose first `active` lanes hold.
    pub fn lane_mask(&self, active: u32, width: u32) -> Value<'c> {
        let lanes: Vec<Value> = (0..width).map(|lane| self.integer(Element::I1, i64::from(lane < active))).collect();
        const_vector(&lanes)
    }

    pub fn integer(&self, element: Element, value: i64) -> Value<'c> {
        match element {
            Element::I1 => self.context.bool_type().const_int(value as u64 & 1, false).into(),
            Element::I32 => self.context.i32_type().const_int(value as u64 & 0xffff_ffff, true).into(),
            _ => self.context.i64_type().const_int(value as u64, true).into(),
        }
    }

    pub fn float(&self, value: f64) -> Value<'c> {
        self.context.f32_type().const_float(value).into()
    }

    pub fn double(&self, value: f64) -> Value<'c> {
        self.context.f64_type().const_float(value).into()
    }

    /// A literal of f32 or f64, whichever `like` has.
    pub fn float_like(&self, value: f64, like: Value<'c>) -> Result<Value<'c>> {
        Ok(if self.element(like)? == Element::F64 { self.double(value) } else { self.float(value) })
    }

    pub fn scalar_type(&self, element: Element) -> BasicTypeEnum<'c> {
        match element {
            Element::F32 => self.context.f32_type().into(),
            Element::F64 => self.context.f64_type().into(),
            Element::I64 => self.context.i64_type().into(),
            Element::I32 => self.context.i32_type().into(),
            Element::I1 => self.context.bool_type().into(),
        }
    }

    /// `element`, in as many lanes as `like` has.
    pub fn type_like(&self, element: Element, like: Value<'c>) -> BasicTypeEnum<'c> {
        let scalar = self.scalar_type(element);
        match like {
            Value::VectorValue(v) => vector_type(scalar, v.get_type().get_size()).map_or(scalar, BasicTypeEnum::from),
            _ => scalar,
        }
    }

    pub fn element(&self, x: Value<'c>) -> Result<Element> {
        let scalar = match x.get_type() {
            BasicTypeEnum::VectorType(v) => v.get_element_type(),
            other => other,
        };
        Ok(match scalar {
            BasicTypeEnum::FloatType(t) if t == self.context.f64_type() => Element::F64,
            BasicTypeEnum::FloatType(_) => Element::F32,
            BasicTypeEnum::IntType(t) => match t.get_bit_width() {
                1 => Element::I1,
                32 => Element::I32,
                _ => Element::I64,
            },
            other => return Err(CodegenError::Internal(format!("a value of type {other}"))),
        })
    }

    /// Keeps LLVM from using what was loaded before in what comes behind. No instruction: a fence for this
    /// thread alone.
    pub fn keep_loads_apart(&self) -> Result<()> {
        self.builder.build_fence(AtomicOrdering::SequentiallyConsistent, true, "")?;
        Ok(())
    }

    /// The address `elements` of type `element` behind `base`.
    pub fn offset(
        &self,
        element: BasicTypeEnum<'c>,
        base: PointerValue<'c>,
        elements: Value<'c>,
    ) -> Result<PointerValue<'c>> {
        let Value::IntValue(elements) = elements else {
            return Err(CodegenError::Internal("an address needs a scalar offset".into()));
        };
        if elements.is_const() && elements.is_null() {
            return Ok(base);
        }
        // SAFETY: only builds the instruction; not "in bounds", since only the whole of a sum is sure to stay
        // inside of the buffer
        Ok(unsafe { self.builder.build_gep(element, base, &[elements], "")? })
    }
}

pub fn vector_type(scalar: BasicTypeEnum<'_>, width: u32) -> Result<VectorType<'_>> {
    match scalar {
        BasicTypeEnum::FloatType(t) => Ok(t.vec_type(width)),
        BasicTypeEnum::IntType(t) => Ok(t.vec_type(width)),
        BasicTypeEnum::PointerType(t) => Ok(t.vec_type(width)),
        other => Err(CodegenError::Internal(format!("no vectors of {other}"))),
    }
}

/// A vector of constants, which are all of one type.
fn const_vector<'c>(lanes: &[Value<'c>]) -> Value<'c> {
    VectorType::const_vector(lanes).as_basic_value_enum()
}

/// The type of `width` lanes, or of a scalar for `None`.
pub fn shaped(scalar: BasicTypeEnum<'_>, width: Option<u32>) -> Result<BasicTypeEnum<'_>> {
    match width {
        Some(width) => Ok(vector_type(scalar, width)?.as_basic_type_enum()),
        None => Ok(scalar),
    }
}
