//! Nests as text: what prints parses, and nothing that is written can harm.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilescribe::nest::{Loop, Nest, NestTextProblem, Stmt};
use tilescribe::workload::{Atom, Binary, Condition, DType, Expr, Index, Unary, Var};

use super::{CONSTANT, INPUT, OUTPUT, binary, i, j, nest, store, x};

/// The nest with variables numbered in the order of its loops, each loop with one of its own, so that nests
/// of the same text are equal.
fn numbered(nest: &Nest) -> Nest {
    let mut result = Nest { vars: Vec::new(), ..nest.clone() };
    let mut around = Vec::new();
    for statements in [&nest.setup, &nest.body] {
        let renamed = statements.iter().map(|s| renumber(s, nest, &mut result, &mut around)).collect();
        match std::ptr::eq(statements, &nest.setup) {
            true => result.setup = renamed,
            false => result.body = renamed,
        }
    }
    result
}

fn renumber(statement: &Stmt, old: &Nest, new: &mut Nest, around: &mut Vec<(Var, Var)>) -> Stmt {
    let index = |index: &Index, around: &[(Var, Var)]| {
        let of = |var: Var| around.iter().rev().find(|(old, _)| *old == var).map(|(_, new)| Index::var(*new));
        index.substitute(&of)
    };
    let expr = |value: &Expr, around: &[(Var, Var)]| {
        value.substitute(&|var| around.iter().rev().find(|(old, _)| *old == var).map(|(_, new)| Index::var(*new)))
    };
    let indices = |list: &[Index], around: &[(Var, Var)]| list.iter().map(|i| index(i, around)).collect::<Vec<_>>();
    match statement {
        Stmt::Loop(l) => {
            let bounds = indices(&l.bounds, around);
            let var = new.new_var(old.var_name(l.var));
            around.push((l.var, var));
            let body = l.body.iter().map(|s| renumber(s, old, new, around)).collect();
            around.pop();
            Stmt::Loop(Loop { var, bounds, kind: l.kind, body })
        }
        Stmt::If { conditions, body } => Stmt::If {
            conditions: conditions.iter().map(|c| Condition { index: index(&c.index, around), ..c.clone() }).collect(),
            body: body.iter().map(|s| renumber(s, old, new, around)).collect(),
        },
        Stmt::Store { buffer, indices: at, value } => {
            Stmt::Store { buffer: *buffer, indices: indices(at, around), value: expr(value, around) }
        }
        Stmt::Accumulate { buffer, indices: at, combiner, value } => Stmt::Accumulate {
            buffer: *buffer,
            indices: indices(at, around),
            combiner: *combiner,
            value: expr(value, around),
        },
    }
}

/// Why a nest does not come back from its text.
pub fn lost(nest: &Nest) -> Option<String> {
    let text = nest.to_string();
    let parsed: Nest = match text.parse() {
        Ok(parsed) => parsed,
        Err(error) => return Some(format!("{error}\n{text}")),
    };
    let again = parsed.to_string();
    if again != text {
        let differ = again.lines().zip(text.lines()).find(|(again, text)| again != text);
        return Some(format!("printed again, it differs: {differ:?}\n{text}"));
    }
    (numbered(&parsed) != numbered(nest)).then(|| format!("another nest of the same text\n{text}"))
}

fn assert_kept(nest: &Nest) {
    if let Some(report) = lost(nest) {
        panic!("{report}");
    }
}

/// Buffers `x`, `w`, `y` of floats and `n` of integers.
fn of_values(values: &[Expr]) -> Nest {
    let mut built = nest(&[("x", &[9], INPUT), ("w", &[9], CONSTANT), ("y", &[9], OUTPUT), ("n", &[9], INPUT)], vec![]);
    built.buffers[3].dtype = DType::I64;
    built.body = values.iter().map(|value| store(2, &[i()], value.clone())).collect();
    built
}

#[test]
fn expressions_that_look_alike_come_back_as_they_were() {
    let n = |index: Index| Expr::load(tilescribe::workload::TensorId(3), vec![index]);
    let of = |index: Index| Expr::Index(index);
    let gathered = || Index::value(n(i()));
    let div = |x: Expr, by: i64| binary(Binary::Divide, x, Expr::integer(by));
    let negate = |x: Expr| Expr::unary(Unary::Negate, x);
    let values = [
        // sums of indices, and indices that are sums
        binary(Binary::Add, of(i()), of(j())),
        of(i().plus(&j())),
        binary(Binary::Add, of(j()), of(i())),
        binary(Binary::Multiply, of(Index::constant(8)), of(i())),
        of(i().times(8)),
        binary(Binary::Add, binary(Binary::Multiply, of(i()), of(j())), Expr::integer(1)),
        div(of(i()), 2),
        div(of(i()), 0),
        of(i().floor_div(2)),
        of(i().floor_div(2).times(-1)),
        of(Index::atom(Atom::FloorDiv(Box::new(i().times(-1)), 2))),
        of(Index::constant(3).minus(&i().modulo(4)).plus(&j().floor_div(3))),
        negate(of(i())),
        negate(Expr::integer(3)),
        Expr::integer(-3),
        // signs of numbers
        Expr::float(-1.5),
        negate(Expr::float(1.5)),
        negate(Expr::float(-1.5)),
        Expr::float(-0.0),
        Expr::float(f64::INFINITY),
        Expr::float(f64::NEG_INFINITY),
        Expr::float(f64::NAN),
        Expr::float(1e300),
        Expr::float(5e-324),
        Expr::integer(i64::MIN),
        Expr::integer(i64::MAX),
        // gathered values in indices, and indices of gathered values
        of(gathered().plus_constant(1)),
        binary(Binary::Add, n(i()), Expr::integer(1)),
        x(gathered().plus_constant(1)),
        x(Index::value(binary(Binary::Add, n(i()), Expr::integer(1)))),
        x(Index::value(binary(Binary::Add, n(i()), Expr::integer(1))).plus(&j())),
        x(gathered().floor_div(2)),
        x(gathered().floor_div(2).times(3)),
        x(Index::value(div(n(i()), 2))),
        x(Index::value(div(n(i()), 2)).times(3)),
        x(Index::value(negate(n(i())))),
        x(gathered().times(-1)),
        x(Index::value(Expr::Cast(DType::I64, Box::new(x(i())))).times(3).minus(&j())),
        x(Index::atom(Atom::Value(Box::new(of(i().plus_constant(1)))))),
        x(Index::value(binary(Binary::Maximum, n(i()), n(j()))).plus(&Index::value(n(i())))),
        x(Index::value(n(j().plus(&i()))).plus(&Index::value(n(j())))),
        // groups and calls
        binary(Binary::Subtract, x(i()), binary(Binary::Subtract, x(j()), Expr::float(-1.0))),
        binary(Binary::Less, binary(Binary::LessEqual, x(i()), x(j())), binary(Binary::Equal, x(i()), x(j()))),
        binary(Binary::Power, x(i()), Expr::unary(Unary::Not, x(i()))),
        Expr::select(binary(Binary::And, x(i()), binary(Binary::Or, x(i()), x(j()))), x(i()), x(j())),
        Expr::Guard {
            conditions: vec![
                Condition { index: i().times(2), low: i64::MIN, high: 4 },
                Condition { index: Index::constant(7).minus(&j()), low: -1, high: i64::MAX },
                Condition { index: gathered(), low: i64::MIN, high: i64::MAX },
                Condition { index: Index::constant(3), low: 0, high: 8 },
            ],
            inside: Box::new(x(i())),
            outside: Box::new(Expr::float(0.0)),
        },
        Expr::Guard { conditions: vec![], inside: Box::new(x(i())), outside: Box::new(Expr::float(0.0)) },
    ];
    for dtype in DType::ALL {
        assert_kept(&of_values(&[Expr::Bits(dtype, Box::new(Expr::Cast(dtype, Box::new(x(i())))))]));
    }
    for op in Unary::ALL {
        assert_kept(&of_values(&[Expr::unary(op, x(i())), Expr::unary(op, Expr::unary(op, Expr::integer(4)))]));
    }
    for op in Binary::ALL {
        assert_kept(&of_values(&[binary(op, binary(op, x(i()), of(i())), binary(op, of(i()), of(j())))]));
    }
    values.iter().for_each(|value| assert_kept(&of_values(std::slice::from_ref(value))));
}

/// A text of one statement.
fn text_of(statement: &str) -> String {
    format!("buffers:\n  x: f32[9] input\n  y: f32[9] output\nbody:\n{statement}\n")
}

#[test]
fn names_are_told_apart_where_they_are_the_same() {
    // two buffers and two loops of one name, one inside of the other
    let text = "buffers:\n  x: f32[9] input\n  s: f32[9] workspace\n  s#2: f32[9] output\nbody:\n  for i in 0..3 {\n    \
                for i#2 in 0..3 {\n      s#2[3*i#2 + i] = s[i]\n    }\n  }\n  for i in 0..9 {\n    s[i] = 0.0\n  }\n";
    let parsed: Nest = text.parse().unwrap();
    assert_eq!(parsed.to_string(), text);
    assert_eq!(parsed.vars, ["i"; 3]);
    assert_eq!((parsed.buffers[1].name.as_str(), parsed.buffers[2].name.as_str()), ("s", "s"));
    // a loop inside of one of the same name is over the same variable
    let rebound: Nest = text_of("for i in 0..3 { for i in 0..3 { y[i] = x[i] } }").parse().unwrap();
    assert_eq!(rebound.vars, ["i"]);
    // errors of another algorithm, and a buffer that is missing
    let text = "error growth 32\nbuffers:\n  x: f32[9] output\nbody:\n  ?7[0] = 1.0\n";
    let parsed: Nest = text.parse().unwrap();
    assert_eq!((parsed.to_string().as_str(), parsed.error_growth), (text, 32));
}

#[test]
fn what_is_no_nest_is_refused_with_its_line() {
    let deep = |open: &str, inside: &str, close: &str| text_of(&(open.repeat(300) + inside + &close.repeat(300)));
    let cases = [
        (String::new(), "line 1: buffers is expected, not the end of the text"),
        ("buffers:\n  x: f33[9] input\n".into(), "line 2: a type is expected, not `f33`"),
        ("buffers:\n  x: f32[9] inputs\n".into(), "line 2: a scope is expected, not `inputs`"),
        ("buffers:\n  x: f32[9, input\n".into(), "line 3: , is expected, not the end of the text"),
        ("buffers:\n  x: f32[9, n] input\nbody:\n".into(), "line 1: an extent is a number or a formula of parameters"),
        ("buffers:\n  x: f32[] input\n  x: f32[] output\n".into(), "line 3: a second buffer `x`"),
        ("buffers:\n  x#2: f32[] input\n".into(), "line 2: `x#2` does not follow the others of its name"),
        (text_of("for i in 0..2 { for i#3 in 0..2 {} }"), "line 5: `i#3` does not follow the others of its name"),
        (text_of("y[?9] = 1.0"), "line 5: a variable of no loop, and without a name"),
        (text_of("z[0] = 1.0"), "line 5: there is no buffer `z`"),
        (text_of("y[0] = x[0] $ 2.0"), "line 5: no word begins with '$'"),
        (text_of("y[0] = x[0] < x[1] < x[2]"), "line 5: a statement or `}` is expected, not `<`"),
        (text_of("y[i / 0] = 1.0"), "line 5: an index is divided by 0; a divisor is a constant of at least 2"),
        (text_of("y[0] = sec(x[0])"), "line 5: `sec` is no function of that many arguments"),
        (text_of("y[0] = max(x[0])"), "line 5: `max` is no function of that many arguments"),
        (text_of("if i { y[0] = 1.0 }"), "line 5: a bound of the condition: `<` and an integer is expected, not `{`"),
        (text_of("for i in 1..4 { y[i] = 1.0 }"), "line 5: a range `0..` is expected, not `..`"),
        (text_of("for i in 0..4 {\ny[i] = 1.0\n"), "line 8: a statement or `}` is expected, not the end of the text"),
        (text_of("y[0] = 1.0 }"), "line 5: a statement or `}` is expected, not `}`"),
        (text_of("y[0] = 99999999999999999999"), "line 5: a number that is too large"),
        (text_of("y[9223372036854775807 + i] = 1.0"), "line 5: a number that is too large"),
        (text_of("y[1000000000*(1000000000*(1000000000*i))] = 1.0"), "line 5: a number that is too large"),
        (deep("for i in 0..1 {", "", "}"), "line 5: more than 256 levels of statements or operators"),
        (deep("if i < 1 {", "", "}"), "line 5: more than 256 levels of statements or operators"),
        (
            text_of(&format!("y[0] = {}1.0{}", "(".repeat(300), ")".repeat(300))),
            "line 5: more than 256 levels of statements or operators",
        ),
        (text_of(&format!("y[0] = {}1.0", "-".repeat(300))), "line 5: more than 256 levels of statements or operators"),
        (
            text_of(&format!("y[0] = 1.0{}", " + 1.0".repeat(300))),
            "line 5: more than 256 levels of statements or operators",
        ),
        ("error growth 99999999999\n".into(), "line 1: a number that is too large"),
    ];
    for (text, expected) in cases {
        assert_eq!(text.parse::<Nest>().unwrap_err().to_string(), expected, "{text}");
    }
    let long = " ".repeat(1 << 23).parse::<Nest>().unwrap_err();
    assert_eq!(long.problem, NestTextProblem::TooLong);
}

/// Texts with some of their parts deleted, doubled, exchanged or replaced parse or are refused, soon.
#[test]
fn mutated_texts_do_no_harm() {
    let texts = ["dense.txt", "window.txt", "tiled.txt"].map(|name| {
        std::fs::read_to_string(format!("{}/tests/files/nest/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    });
    let pieces = [
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "0",
        "-",
        "9223372036854775808",
        "1e999",
        "int(",
        "guard(",
        "min(",
        "/ 0",
        "% 1",
        "for i in 0..",
        "if ",
        "&&",
        "<=",
        "#2",
        "?9",
        "?9[",
        "é",
        "\0",
        "\n",
        "max=",
        "8*",
        "x[",
        "true",
        "inf",
        "NaN",
    ];
    let mut rng = ChaCha8Rng::seed_from_u64(25);
    let (mut parsed, mut refused) = (0, 0);
    for round in 0..6_000 {
        let mut text: Vec<char> = texts[round % texts.len()].chars().collect();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(0..text.len());
            let end = (at + rng.random_range(1..20)).min(text.len());
            match rng.random_range(0..4) {
                0 => drop(text.drain(at..end)),
                1 => {
                    let part: Vec<char> = text[at..end].to_vec();
                    let to = rng.random_range(0..text.len());
                    text.splice(to..to, part);
                }
                2 => {
                    let other = text[rng.random_range(0..text.len())];
                    let is_alike = other.is_ascii_digit() == text[at].is_ascii_digit()
                        && other.is_alphabetic() == text[at].is_alphabetic();
                    if is_alike {
                        text[at] = other;
                    }
                }
                _ => drop(text.splice(at..end, pieces[rng.random_range(0..pieces.len())].chars())),
            }
        }
        let text: String = text.into_iter().collect();
        match text.parse::<Nest>() {
            Ok(nest) => {
                parsed += 1;
                // sums that contradict each other come out in another order, once
                let again = nest.to_string();
                assert_eq!(again.parse::<Nest>().map(|nest| numbered(&nest)), Ok(numbered(&nest)), "{text}\n{again}");
            }
            Err(_) => refused += 1,
        }
    }
    assert!(parsed > 300 && refused > 500, "{parsed} parsed, {refused} refused");
}
