//! Extents that are known when a network runs: what the user says of them, and what is taken otherwise.

use std::io::Write;
use std::str::FromStr;

use anyhow::{Result, bail};
use tilescribe::artifact::{CompiledSymbol, Computed, Formula, Manifest, Port, StatePort};
use tilescribe::graph::{Carried, Dim, Network, Symbols};
use tilescribe::workload::{MAX_POINTS_TIMED, Parameter};

use super::exit::CommandError;

/// What extents a symbolic dimension has. Its name may hold `=` itself: the last one parts them.
#[derive(Clone, Debug)]
pub struct Dimension {
    pub name: String,
    pub dim: Dim,
}

impl FromStr for Dimension {
    type Err = String;

    fn from_str(text: &str) -> Result<Dimension, String> {
        let (name, extents) = text.rsplit_once('=').ok_or("expected NAME=N, NAME=LOW..HIGH or NAME=A,B,C")?;
        let number = |text: &str| text.parse::<u32>().map(i64::from).map_err(|error| error.to_string());
        let dim = match extents.split_once("..") {
            Some((low, high)) => Dim::range(number(low)?, number(high)?),
            None => {
                let points = extents.split(',').map(number).collect::<Result<Vec<i64>, String>>()?;
                let (low, high) = (points.iter().min().copied(), points.iter().max().copied());
                match (low.zip(high), points.len()) {
                    (Some((low, high)), 2..) => Dim { low, high, points },
                    _ => Dim::fixed(number(extents)?),
                }
            }
        };
        if dim.low > dim.high {
            return Err(format!("{} is more than {}", dim.low, dim.high));
        }
        Ok(Dimension { name: name.to_string(), dim })
    }
}

/// `NAME=N`, or several of them with commas between: extents of one run. A name may hold `=` itself: the last
/// one parts them.
#[derive(Clone, Debug)]
pub struct Point(pub Vec<(String, i64)>);

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Point, String> {
        let one = |text: &str| {
            let (name, extent) = text.rsplit_once('=').ok_or("expected NAME=N, or NAME=N,NAME=N")?;
            let extent: u32 = extent.parse().map_err(|error| format!("`{}`: {error}", extent.escape_debug()))?;
            Ok((name.to_string(), i64::from(extent)))
        };
        text.split(',').map(one).collect::<Result<_, String>>().map(Point)
    }
}

/// The values of a network's symbols in one run: those that a point gives, then those that follow from the
/// shapes of inputs that are known, by input; for states that grow, the number of `rows`, if that is known;
/// and a middle value of the rest.
///
/// # Errors
/// [`CommandError::Usage`] for names that the network does not have, and for values out of range.
pub fn values(
    manifest: &Manifest,
    point: Option<&Point>,
    shapes: &[Option<&[i64]>],
    rows: Option<i64>,
) -> Result<Vec<i64>> {
    let symbols = &manifest.symbols;
    let mut given: Vec<Option<i64>> = vec![None; symbols.len()];
    for (name, value) in point.iter().flat_map(|point| &point.0) {
        let number = find(symbols, name)?;
        if !symbols[number].admits(*value) {
            let values = symbols[number].values();
            bail!(CommandError::Usage(format!("--at {name}={value}: the network takes {values}")));
        }
        if given[number].replace(*value).is_some() {
            bail!(CommandError::Usage(format!("--at gives `{name}` twice")));
        }
    }
    for (port, shape) in manifest.inputs.iter().zip(shapes) {
        let Some(shape) = shape else { continue };
        for (axis, extent) in &port.extents {
            if let (Some(number), Some(found)) = (said_by(symbols, &extent.formula), shape.get(*axis)) {
                given[number].get_or_insert(*found);
            }
        }
    }
    for number in manifest.states.iter().filter_map(rows_of) {
        given[number] = given[number].or(rows);
    }
    let mut values = Vec::with_capacity(symbols.len());
    for (symbol, given) in symbols.iter().zip(given) {
        let value = match &symbol.computed {
            Some(computed) => computed.at(&values),
            None => given.or(Some(symbol.low + (symbol.high - symbol.low) / 2 / symbol.multiple * symbol.multiple)),
        };
        let unknown = || CommandError::Usage(format!("`{}` has no value for these extents", symbol.name));
        values.push(value.ok_or_else(unknown)?);
    }
    Ok(values)
}

/// The symbol whose value an extent says: the one that it is, or the multiple whose part its formula has.
fn said_by(symbols: &[CompiledSymbol], extent: &Formula) -> Option<usize> {
    if let Some(number) = extent.as_symbol() {
        return Some(number);
    }
    let (multiple, part) = extent.as_multiple()?;
    let Some(Computed::Quotient(whole, _)) = &symbols.get(part)?.computed else { return None };
    whole.as_symbol().filter(|number| symbols.get(*number).is_some_and(|symbol| symbol.multiple == multiple))
}

/// The symbol that counts the rows of a state that grows.
pub fn rows_of(state: &StatePort) -> Option<usize> {
    state.input.extents.get(&state.grows.as_ref()?.axis)?.formula.as_symbol()
}

/// The symbol of a name among those that are given, not computed.
fn find(symbols: &[CompiledSymbol], name: &str) -> Result<usize> {
    let is_given = |symbol: &&CompiledSymbol| symbol.computed.is_none();
    if let Some(found) = symbols.iter().position(|symbol| is_given(&symbol) && symbol.name == name) {
        return Ok(found);
    }
    let names: Vec<String> = symbols.iter().filter(is_given).map(|symbol| format!("`{}`", symbol.name)).collect();
    let reason = match names.is_empty() {
        true => format!("--at {name}: all extents of the network are fixed"),
        false => format!("--at {name}: there is no such extent; those known at run time are {}", names.join(", ")),
    };
    Err(CommandError::Usage(reason).into())
}

/// The shape of an input where symbols have these values.
///
/// # Errors
/// [`CommandError::Usage`] where it has none, or one that the network does not take.
pub fn shape_of(port: &Port, values: &[i64]) -> Result<Vec<i64>> {
    match port.shape_at(values) {
        Some(shape) if port.admits(&shape) => Ok(shape),
        Some(shape) => {
            let (low, high) = (port.least_shape(), &port.shape);
            let reason =
                format!("input `{}` would be {shape:?}; the network takes {low:?} to {high:?}: see --at", port.name);
            Err(CommandError::Usage(reason).into())
        }
        None => Err(CommandError::Usage(format!("`{}` has an unknown type or shape", port.name)).into()),
    }
}

/// The values that a run was made with, by name.
pub fn named(manifest: &Manifest, values: &[i64]) -> serde_json::Map<String, serde_json::Value> {
    let given = manifest.symbols.iter().zip(values).filter(|(symbol, _)| symbol.computed.is_none());
    given.map(|(symbol, value)| (symbol.name.clone(), (*value).into())).collect()
}

/// What a network is tuned at: the points that are given; else all combinations of the extents that
/// dimensions are to be tuned for; else the usual ones.
///
/// # Errors
/// [`CommandError::Usage`] for names that the network does not have, values out of range, and too many
/// points.
pub fn points(symbols: &Symbols, given: &[Point], dimensions: &[Dimension]) -> Result<Vec<Vec<i64>>> {
    let mut points: Vec<Vec<(String, i64)>> = given.iter().map(|point| point.0.clone()).collect();
    let listed: Vec<&Dimension> = dimensions.iter().filter(|dimension| !dimension.dim.points.is_empty()).collect();
    if points.is_empty() && !listed.is_empty() {
        points.push(Vec::new());
        for Dimension { name, dim } in listed {
            let with = |point: &Vec<(String, i64)>, extent: i64| [&point[..], &[(name.clone(), extent)]].concat();
            points = points.iter().flat_map(|point| dim.points.iter().map(|extent| with(point, *extent))).collect();
            if points.len() > MAX_POINTS_TIMED {
                let reason = format!("more than {MAX_POINTS_TIMED} combinations of extents to tune for: see --tune-at");
                return Err(CommandError::Usage(reason).into());
            }
        }
    }
    if points.is_empty() {
        return Ok(symbols.usual_points());
    }
    let names: Vec<&str> =
        symbols.list.iter().filter(|symbol| symbol.origin.is_given()).map(|s| s.name.as_str()).collect();
    let one = |point: &Vec<(String, i64)>| {
        if let Some((unknown, _)) = point.iter().find(|(name, _)| !names.contains(&name.as_str())) {
            let reason = format!("there is no extent `{unknown}` that is known only at run time; {}", listing(&names));
            return Err(CommandError::Usage(reason).into());
        }
        let of = |name: &str| point.iter().find(|(own, _)| own == name).map(|(_, extent)| *extent);
        Ok(symbols.point(of).map_err(|error| CommandError::Usage(format!("a point to tune for: {error}")))?)
    };
    points.iter().map(one).collect()
}

fn listing(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.is_empty() {
        true => "all extents are fixed".to_string(),
        false => format!("those are {}", quoted.join(", ")),
    }
}

/// Says which extents a network is compiled for that nobody gave, and what it keeps from run to run.
///
/// # Errors
/// Where the output cannot be written.
pub fn print_assumed(network: &Network, given: &[Dimension], out: &mut dyn Write) -> Result<()> {
    for symbol in &network.symbols.list {
        let (name, range) = (&symbol.name, symbol.range);
        let is_given = given.iter().any(|dimension| dimension.name == *name);
        if symbol.origin.is_given() && !is_given {
            let steps = match symbol.multiple {
                1 => String::new(),
                multiple => format!(" in steps of {multiple}"),
            };
            let Parameter { low, high } = range;
            writeln!(out, "{name}: {low}..{high}{steps}, assumed; --dim {name}=LOW..HIGH changes it")?;
        }
    }
    let inputs = network.inputs();
    for Carried { input, appended, .. } in &network.carried {
        let (name, tensor) = &inputs[*input];
        match appended {
            Some(appended) => {
                let capacity = tensor.shape[appended.axis];
                writeln!(out, "state {name}: grows along axis {}, up to {capacity}", appended.axis)?;
            }
            None => writeln!(out, "state {name}: replaced by every run")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read() {
        let read = |text: &str| text.parse::<Point>().map(|point| point.0);
        assert_eq!(read("batch=8,x=y=3"), Ok(vec![("batch".into(), 8), ("x=y".into(), 3)]));
        for wrong in ["", "8", "batch=", "batch=-1", "batch=8,", "batch=99999999999"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
