//! Workloads as text, which is what the language model reads of them: a line for each tensor, in prefix
//! notation, made of few words and numbers.
//!
//! ```text
//! line   = "param" PARAMETER LEAST MOST | "tune" INTEGER*
//!        | ("input" | "const") TENSOR [TYPE] EXTENT*
//!        | ("let" | "out") TENSOR [TYPE] (EXTENT* ["like" EXTENT*] | "like" TENSOR) [COMBINER EXTENT*] expr
//! expr   = FLOAT | "int" index | TENSOR index* | UNARY expr | BINARY expr expr | "select" expr expr expr | "cast" TYPE expr
//!        | "bits" TYPE expr                                   the same bits as another type
//!        | "guard" COUNT (index LOW HIGH)* expr expr          conditions, inside, outside
//!        | "pad" expr TENSOR (["?"] index)*                   a load where the marked indices are in range, else expr
//! EXTENT = INTEGER | index                                    of parameters
//! index  = INTEGER | AXIS | PARAMETER | "+" index index | "*" INTEGER index | "/" index INTEGER | "%" index INTEGER | "value" expr
//! ```
//!
//! Tensors are `t0`, `t1`, ...; axes are `a`, `b`, ... in the order of the stage: spatial ones, then those of
//! the reduction. Parameters, numbers that are known when it runs, are `len0`, `len1`, ...; `tune` gives each
//! of them one that programs are timed with. An extent is at most what its formula can be. The type is left
//! out for f32. `like` takes the shape of a tensor of an earlier line; behind extents, it
//! gives the shape of an output of which they are the part that is written. Floats are f32 in their shortest
//! decimal spelling; those that no f32 equals end in `d`. A matrix product of 128 × 768 × 3072 with a bias:
//!
//! ```text
//! input t0 128 768
//! const t1 768 3072
//! const t2 3072
//! let t3 128 3072 sum 768 mul t0 a c t1 c b
//! out t4 like t3 add t2 b t3 a b
//! ```

mod parse;
mod print;

use std::borrow::Cow;

use super::validate::MAX_PARAMETERS;

pub use parse::TextError;

/// Words of the grammar above that are no operators, combiners or types.
pub const KEYWORDS: [&str; 19] = [
    "tune", "param", "input", "const", "let", "out", "like", "int", "select", "cast", "bits", "guard", "pad", "?", "+",
    "*", "/", "%", "value",
];

/// The name of a parameter: `len0`, `len1`, ...
pub fn parameter_name(number: usize) -> String {
    format!("{PARAMETER}{number}")
}

/// The number of the parameter of a name that [`parameter_name`] gives.
pub fn parameter_from_name(name: &str) -> Option<usize> {
    let digits = name.strip_prefix(PARAMETER)?;
    digits.parse::<usize>().ok().filter(|number| *number < MAX_PARAMETERS && number.to_string() == digits)
}

const PARAMETER: &str = "len";

/// The letter of an axis: `a` to `z`, then `a1`, `b1`, ...
pub fn axis_name(axis: usize) -> Cow<'static, str> {
    let letter = &LETTERS[axis % 26..=axis % 26];
    if axis < 26 { letter.into() } else { format!("{letter}{}", axis / 26).into() }
}

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";

/// The axis of a name that [`axis_name`] gives.
pub fn axis_from_name(name: &str) -> Option<usize> {
    let mut chars = name.chars();
    let letter = chars.next().filter(char::is_ascii_lowercase)?;
    let round = match chars.as_str() {
        "" => 0,
        digits => {
            digits.parse::<usize>().ok().filter(|round| *round < 100 && round.to_string() == digits && *round > 0)?
        }
    };
    Some(round * 26 + (letter as usize - 'a' as usize))
}

/// The shortest text that reads as this number again; see the module's grammar.
pub fn float_text(value: f64) -> String {
    let narrow = value as f32;
    if f64::from(narrow).to_bits() == value.to_bits() { format!("{narrow:?}") } else { format!("{value:?}d") }
}

/// Reads what [`float_text`] writes.
pub fn parse_float(text: &str) -> Option<f64> {
    let shape = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | '-' | '+');
    if let Some(wide) = text.strip_suffix('d') {
        return wide.parse().ok().filter(|_| wide.chars().all(shape));
    }
    let known = matches!(text, "inf" | "-inf");
    let decimal = text.contains(['.', 'e']) && text.chars().all(shape);
    if !(known || decimal) {
        return None;
    }
    text.parse::<f32>().ok().map(f64::from)
}

#[cfg(test)]
mod tests {
    use super::{axis_from_name, axis_name, float_text, parse_float};

    #[test]
    fn axis_names() {
        for axis in [0, 25, 26, 51, 52, 700] {
            assert_eq!(axis_from_name(&axis_name(axis)), Some(axis));
        }
        for bad in ["", "A", "1", "a0", "a01", "aa", "a100"] {
            assert_eq!(axis_from_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn floats_lose_nothing() {
        for value in [
            0.0,
            -0.0,
            1.0,
            0.1,
            f64::from(0.1f32),
            1e-5,
            f64::from(1e-5f32),
            f64::INFINITY,
            -f64::INFINITY,
            1e300,
            5e-324,
        ] {
            let text = float_text(value);
            assert_eq!(parse_float(&text).map(f64::to_bits), Some(value.to_bits()), "{text}");
        }
        for bad in ["1", "nan", "x", "", "d", "infinity", "0.5f", "eed"] {
            assert_eq!(parse_float(bad), None, "{bad}");
        }
    }
}
