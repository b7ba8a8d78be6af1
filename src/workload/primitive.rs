//! The scalar functions that expressions are made of: one row each, with all that is known of them but their
//! values ([`super::scalar`]) and their code.
//!
//! The order of rows is the order of expressions, and so takes part in canonical forms and their hashes: a
//! new row comes last.

use super::{Class, DType};

/// How a nest prints a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notation {
    /// Before its operand: `-x`.
    Prefix(&'static str),
    /// Between its operands: `x + y`.
    Infix(&'static str, Precedence),
    /// `max(x, y)`
    Call(&'static str),
}

/// How tightly an infix operator binds, the loosest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Precedence {
    Disjunction,
    Conjunction,
    Comparison,
    Sum,
    Product,
}

/// The types of operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operands {
    Floats,
    Numbers,
    Booleans,
    All,
    Integers,
}

impl Operands {
    pub fn contain(self, dtype: DType) -> bool {
        match self {
            Operands::Floats => dtype.is_float(),
            Operands::Numbers => dtype != DType::Bool,
            Operands::Booleans => dtype == DType::Bool,
            Operands::All => true,
            Operands::Integers => matches!(dtype.class(), Class::Signed | Class::Unsigned),
        }
    }
}

/// What computing a function costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Price {
    /// An instruction or two.
    Cheap,
    /// Division, a root, an exponential or what is made of them: ten cycles and more.
    Expensive,
}

/// What is known of a value's sign.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sign {
    Any,
    NonNegative,
    Positive,
}

/// The sign of a function's value, by that of its argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignRule {
    Always(Sign),
    Keeps,
    AtLeast(Sign),
    AtMost(Sign),
}

/// A function of one value.
struct UnaryRow {
    /// As it is spelled in workloads.
    name: &'static str,
    printed: Notation,
    takes: Operands,
    price: Price,
    /// Where it is defined.
    domain: Sign,
    sign: SignRule,
}

/// A function of two values of one type.
struct BinaryRow {
    name: &'static str,
    printed: Notation,
    takes: Operands,
    /// Whether the result is a Boolean whatever the operands are.
    compares: bool,
    /// Whether the operands may change places, to the bit.
    commutes: bool,
    price: Price,
}

/// The enumeration, the list of its members and the row of each.
macro_rules! table {
    ($(#[$about:meta])* $functions:ident: $row:ident, $columns:expr;
     $($(#[$note:meta])* $function:ident($($value:expr),*),)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $functions {
            $($(#[$note])* $function,)*
        }

        impl $functions {
            pub const ALL: [$functions; [$($functions::$function),*].len()] = [$($functions::$function),*];

            fn row(self) -> $row {
                match self {
                    $($functions::$function => $columns($($value),*),)*
                }
            }

            /// As it is spelled in workloads.
            pub fn name(self) -> &'static str {
                self.row().name
            }

            pub fn from_name(name: &str) -> Option<$functions> {
                $functions::ALL.into_iter().find(|function| function.name() == name)
            }

            /// As nests print it.
            pub fn notation(self) -> Notation {
                self.row().printed
            }

            /// The types of its operands.
            pub fn takes(self) -> Operands {
                self.row().takes
            }

            /// Whether it takes many instructions.
            pub fn is_expensive(self) -> bool {
                self.row().price == Price::Expensive
            }
        }
    };
}

use Notation::{Call, Infix, Prefix};
use Operands::{All, Booleans, Floats, Integers, Numbers};
use Precedence::{Comparison, Conjunction, Disjunction, Product, Sum};
use Price::{Cheap, Expensive};
use Sign::{Any, NonNegative, Positive};
use SignRule::{Always, AtLeast, AtMost, Keeps};

const fn unary_row(
    name: &'static str,
    printed: Notation,
    takes: Operands,
    price: Price,
    domain: Sign,
    sign: SignRule,
) -> UnaryRow {
    UnaryRow { name, printed, takes, price, domain, sign }
}

const fn binary_row(
    name: &'static str,
    printed: Notation,
    takes: Operands,
    compares: bool,
    commutes: bool,
    price: Price,
) -> BinaryRow {
    BinaryRow { name, printed, takes, compares, commutes, price }
}

table! {
    /// Functions of one value, which keep the type of their argument.
    Unary: UnaryRow, unary_row;
    // in workloads, in nests, operands, price, domain, sign of the value
    Negate("neg", Prefix("-"), Numbers, Cheap, Any, Always(Any)),
    Absolute("abs", Call("abs"), Numbers, Cheap, Any, AtLeast(NonNegative)),
    Exp("exp", Call("exp"), Floats, Expensive, Any, Always(Positive)),
    Log("log", Call("log"), Floats, Expensive, Positive, Always(Any)),
    Sqrt("sqrt", Call("sqrt"), Floats, Expensive, NonNegative, Keeps),
    ReciprocalSqrt("rsqrt", Call("rsqrt"), Floats, Expensive, Positive, Keeps),
    Reciprocal("recip", Call("reciprocal"), Floats, Expensive, Positive, Keeps),
    Erf("erf", Call("erf"), Floats, Expensive, Any, Keeps),
    Tanh("tanh", Call("tanh"), Floats, Expensive, Any, Keeps),
    /// `1 / (1 + exp(-x))`
    Sigmoid("sigmoid", Call("sigmoid"), Floats, Expensive, Any, Always(Positive)),
    Sin("sin", Call("sin"), Floats, Expensive, Any, Always(Any)),
    Cos("cos", Call("cos"), Floats, Expensive, Any, Always(Any)),
    Floor("floor", Call("floor"), Floats, Cheap, Any, AtMost(NonNegative)),
    Ceil("ceil", Call("ceil"), Floats, Cheap, Any, Keeps),
    /// To the nearest integer, halves to even.
    Round("round", Call("round"), Floats, Cheap, Any, AtMost(NonNegative)),
    /// Of zeros and NaN: themselves.
    Sign("sign", Call("sign"), Numbers, Cheap, Any, Keeps),
    Not("not", Prefix("!"), Booleans, Cheap, Any, Always(Any)),
    Tan("tan", Call("tan"), Floats, Expensive, Any, Always(Any)),
    Asin("asin", Call("asin"), Floats, Expensive, Any, Keeps),
    Acos("acos", Call("acos"), Floats, Expensive, Any, Always(NonNegative)),
    Atan("atan", Call("atan"), Floats, Expensive, Any, Keeps),
    Sinh("sinh", Call("sinh"), Floats, Expensive, Any, Keeps),
    Cosh("cosh", Call("cosh"), Floats, Expensive, Any, Always(Positive)),
    Asinh("asinh", Call("asinh"), Floats, Expensive, Any, Keeps),
    Atanh("atanh", Call("atanh"), Floats, Expensive, Any, Keeps),
}

table! {
    /// Functions of two values of one type.
    Binary: BinaryRow, binary_row;
    // in workloads, in nests, operands, gives a Boolean, commutes, price
    Add("add", Infix("+", Sum), Numbers, false, true, Cheap),
    Subtract("sub", Infix("-", Sum), Numbers, false, false, Cheap),
    Multiply("mul", Infix("*", Product), Numbers, false, true, Cheap),
    /// Of integers: towards minus infinity.
    Divide("div", Infix("/", Product), Numbers, false, false, Expensive),
    /// Of floats: sign of the dividend (C's fmod). Of integers: sign of the divisor.
    Remainder("rem", Infix("%", Product), Numbers, false, false, Expensive),
    Maximum("max", Call("max"), Numbers, false, true, Cheap),
    Minimum("min", Call("min"), Numbers, false, true, Cheap),
    Power("pow", Call("pow"), Floats, false, false, Expensive),
    Less("lt", Infix("<", Comparison), Numbers, true, false, Cheap),
    LessEqual("le", Infix("<=", Comparison), Numbers, true, false, Cheap),
    Equal("eq", Infix("==", Comparison), All, true, true, Cheap),
    And("and", Infix("&&", Conjunction), Booleans, false, true, Cheap),
    Or("or", Infix("||", Disjunction), Booleans, false, true, Cheap),
    BitAnd("bitand", Call("bitand"), Integers, false, true, Cheap),
    BitOr("bitor", Call("bitor"), Integers, false, true, Cheap),
    BitXor("bitxor", Call("bitxor"), Integers, false, true, Cheap),
    /// By as many bits as the type has, or more: 0. The amount is taken without its sign.
    ShiftLeft("shl", Call("shl"), Integers, false, false, Cheap),
    /// What comes in is the sign: 0 of unsigned types. The amount is taken without its sign.
    ShiftRight("shr", Call("shr"), Integers, false, false, Cheap),
}

impl Unary {
    /// Whether it goes round with its argument: it takes only what is left of a whole number of turns.
    pub fn is_periodic(self) -> bool {
        matches!(self, Unary::Sin | Unary::Cos)
    }

    /// Whether it gives integers, and so may change by 1 where its argument changes by little.
    pub fn is_rounding(self) -> bool {
        matches!(self, Unary::Floor | Unary::Ceil | Unary::Round)
    }

    /// Whether it is defined for all arguments of this sign.
    pub fn is_defined_for(self, argument: Sign) -> bool {
        argument >= self.row().domain
    }

    /// The sign of its value, by that of its argument.
    pub fn sign(self, argument: Sign) -> Sign {
        match self.row().sign {
            Always(sign) => sign,
            Keeps => argument,
            AtLeast(sign) => argument.max(sign),
            AtMost(sign) => argument.min(sign),
        }
    }
}

impl Binary {
    /// Whether the result is a Boolean whatever the operands are.
    pub fn is_comparison(self) -> bool {
        self.row().compares
    }

    /// Whether the operands may change places, to the bit.
    pub fn is_commutative(self) -> bool {
        self.row().commutes
    }
}
