//! Which short constants that are read only once are laid out in the order in which they are read.

use crate::nest::rewrite::pack::{Content, Layout};
use crate::space::operands::{MAXIMAL_SHORT, streamed};
use crate::space::schedule::{Level, Reads};
use crate::space::{Rule, Step, Stop, Tape, View, Words, name, site};
use crate::target::Cpu;
use crate::workload::Var;

/// Weights of a byte or less are kept short because reading them is what takes time: a product with a single
/// row. Packing them costs nothing at run time, and makes of them one stream of whole vectors.
pub(super) struct Stream;

impl Rule<Cpu> for Stream {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn version(&self) -> u32 {
        1
    }

    fn absent_is_default(&self) -> bool {
        true
    }

    fn decide(&self, view: &View<'_, Cpu>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let mut steps = Vec::new();
        for group in &view.groups {
            tape.defaults_only(group.defaults_only);
            for access in streamed(&view.workload, group) {
                let of_rows = (0..view.rows.len()).any(|row| access.mentions(Var(row as u32)));
                let elements: i64 = group.axes.iter().map(|axis| axis.tiles() * axis.tile).product();
                let outermost = group.outer_order.iter().filter_map(|at| group.loops(*at)).map(|l| &l.outer).next();
                let Some(of) = outermost.or(group.at.as_ref()).filter(|_| !of_rows && elements <= MAXIMAL_SHORT) else {
                    continue;
                };
                let tensor = format!("t{}", access.tensor.0);
                let candidates = vec![name("none"), Words::from("setup panel")];
                let default = candidates.len() - 1;
                // before there was the rule, they were read where they lay
                let asked = site("pack", [group.name(), tensor.into()]);
                let answer = tape.choose_since(asked, candidates.clone(), default, 0)?;
                if answer == candidates[default] {
                    let operand = Reads { tensor: access.tensor, which: 0, of: of.clone() };
                    let (layout, content) = (Layout::Panel, Content::Own);
                    steps.push(Step::Pack { operand, level: Level::Setup, layout, content });
                }
            }
        }
        Ok(steps)
    }
}
