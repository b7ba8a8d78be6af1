//! The types of elements: one row each, with all that is known of them but how the compiler computes with
//! them (`workload::scalar`, and the code generator) and keeps them in arrays (`workload::Elements`).

/// What a type's values are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Float {
        /// Bits of the fraction that are stored.
        fraction: i32,
    },
    Signed,
    Unsigned,
    /// A byte, 0 or 1.
    Boolean,
}

struct Row {
    /// As it is spelled in texts.
    name: &'static str,
    class: Class,
    bytes: usize,
    /// In the C header and tables of artifacts: never changed, since linked programs hold it.
    number: u32,
    /// `TensorProto.DataType`
    onnx: i64,
    /// The descriptor of `.npy` files. NumPy has no bfloat16: its bits, as `ml_dtypes` writes them.
    numpy: &'static str,
    safetensors: &'static str,
}

macro_rules! types {
    ($($dtype:ident($name:expr, $class:expr, $bytes:expr, $number:expr, $onnx:expr, $numpy:expr, $safetensors:expr),)*) => {
        /// Element types. Floats are computed in f32, f64 in itself, integers in i64. A u64 is computed as
        /// its bits, with operations of its own where the sign bit matters.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum DType {
            $($dtype,)*
        }

        impl DType {
            pub const ALL: [DType; [$(DType::$dtype),*].len()] = [$(DType::$dtype),*];

            fn row(self) -> Row {
                match self {
                    $(DType::$dtype => Row {
                        name: $name,
                        class: $class,
                        bytes: $bytes,
                        number: $number,
                        onnx: $onnx,
                        numpy: $numpy,
                        safetensors: $safetensors,
                    },)*
                }
            }
        }
    };
}

types! {
    // name, class, bytes, number, in ONNX, in NumPy, in safetensors
    F32("f32", Class::Float { fraction: 23 }, 4, 0, 1, "<f4", "F32"),
    F16("f16", Class::Float { fraction: 10 }, 2, 1, 10, "<f2", "F16"),
    BF16("bf16", Class::Float { fraction: 7 }, 2, 2, 16, "<V2", "BF16"),
    I8("i8", Class::Signed, 1, 3, 3, "|i1", "I8"),
    U8("u8", Class::Unsigned, 1, 4, 2, "|u1", "U8"),
    I32("i32", Class::Signed, 4, 5, 6, "<i4", "I32"),
    I64("i64", Class::Signed, 8, 6, 7, "<i8", "I64"),
    Bool("bool", Class::Boolean, 1, 7, 9, "|b1", "BOOL"),
    I16("i16", Class::Signed, 2, 8, 5, "<i2", "I16"),
    U16("u16", Class::Unsigned, 2, 9, 4, "<u2", "U16"),
    U32("u32", Class::Unsigned, 4, 10, 12, "<u4", "U32"),
    U64("u64", Class::Unsigned, 8, 11, 13, "<u8", "U64"),
    F64("f64", Class::Float { fraction: 52 }, 8, 12, 11, "<f8", "F64"),
}

impl DType {
    /// Bytes of one element in memory.
    pub fn bytes(self) -> usize {
        self.row().bytes
    }

    pub fn bits(self) -> u32 {
        8 * self.row().bytes as u32
    }

    pub fn class(self) -> Class {
        self.row().class
    }

    pub fn is_float(self) -> bool {
        matches!(self.class(), Class::Float { .. })
    }

    /// Whether values below 0 exist.
    pub fn is_signed(self) -> bool {
        matches!(self.class(), Class::Float { .. } | Class::Signed)
    }

    /// Whether literals have this type: others are casts of them.
    pub fn is_literal(self) -> bool {
        matches!(self, DType::F32 | DType::I64)
    }

    /// The least integer that it holds; of floats, of 64 bits.
    pub fn least(self) -> i64 {
        match self.class() {
            Class::Unsigned | Class::Boolean => 0,
            Class::Signed => i64::MIN >> (64 - self.bits()),
            Class::Float { .. } => i64::MIN,
        }
    }

    /// The greatest integer that it holds, as far as 64 bits with a sign tell; of floats, of 64 bits.
    pub fn greatest(self) -> i64 {
        match self.class() {
            Class::Boolean => 1,
            Class::Unsigned if self.bits() < 64 => (1 << self.bits()) - 1,
            Class::Signed => i64::MAX >> (64 - self.bits()),
            Class::Unsigned | Class::Float { .. } => i64::MAX,
        }
    }

    /// What a literal becomes that is stored as this type: the nearest integer that it holds. The bits of a
    /// u64 are written as those of an i64.
    pub fn clamp_literal(self, value: i64) -> i64 {
        if self == DType::U64 { value } else { value.clamp(self.least(), self.greatest()) }
    }

    /// Half the distance from 1 to the next number; 0 of integers, which are exact.
    pub fn unit_roundoff(self) -> f64 {
        match self.class() {
            Class::Float { fraction } => 2.0_f64.powi(-fraction - 1),
            _ => 0.0,
        }
    }

    /// As it is spelled in texts.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Its number in the C header and tables of artifacts.
    pub fn number(self) -> u32 {
        self.row().number
    }

    /// Its descriptor in `.npy` files.
    pub fn numpy(self) -> &'static str {
        self.row().numpy
    }

    pub fn from_numpy(descriptor: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.numpy() == descriptor)
    }

    pub fn safetensors(self) -> &'static str {
        self.row().safetensors
    }

    /// ONNX' `TensorProto.DataType`.
    pub fn onnx(self) -> i64 {
        self.row().onnx
    }

    /// By ONNX' `TensorProto.DataType`.
    pub fn from_onnx(code: i64) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.row().onnx == code)
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, DType};

    #[test]
    fn no_two_types_share_a_name_or_a_number() {
        for (at, a) in DType::ALL.into_iter().enumerate() {
            assert_eq!(DType::from_name(a.name()), Some(a));
            assert_eq!(DType::from_onnx(a.row().onnx), Some(a));
            assert_eq!(DType::from_numpy(a.numpy()), Some(a));
            for b in &DType::ALL[..at] {
                assert!(a.number() != b.number() && a.safetensors() != b.safetensors(), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn ends_of_integers() {
        let ends = DType::ALL.map(|dtype| (dtype.least(), dtype.greatest()));
        let wide = (i64::MIN, i64::MAX);
        let i32s = (i64::from(i32::MIN), i64::from(i32::MAX));
        let i16s = (i64::from(i16::MIN), i64::from(i16::MAX));
        let (u16s, u32s, u64s) = ((0, i64::from(u16::MAX)), (0, i64::from(u32::MAX)), (0, i64::MAX));
        assert_eq!(ends, [wide, wide, wide, (-128, 127), (0, 255), i32s, wide, (0, 1), i16s, u16s, u32s, u64s, wide]);
        assert_eq!(DType::F32.class(), Class::Float { fraction: f32::MANTISSA_DIGITS as i32 - 1 });
        assert_eq!(DType::F32.unit_roundoff(), f64::from(f32::EPSILON) / 2.0);
    }
}
