//! Rewrites by their names and arguments, as files write them.

use tilescribe::nest::rewrite::Refusal;
use tilescribe::nest::rewrite::accumulate::{Blocks, Reduction};
use tilescribe::nest::rewrite::pack::{Content, Layout, Place};
use tilescribe::nest::{LoopKind, Nest, Stmt};
use tilescribe::workload::{Combiner, Condition, Index, TensorId, Var, Workload};

/// Changes a nest. Loops and buffers are given by name; of loops of one name the first is meant, `name@2` is
/// the second, and a name that is none stands for a loop that does not exist.
///
/// ```text
/// split i 4                    tile i 4 8               fuse i j          reorder k i j       set_kind i vector
/// enclose i                    join i j                 privatise t i 1   into_setup i t      drop_unit_loops
/// accumulate t at i lanes k j blocks ko inside ii epilogue 1              pack i t 0 inside k panel own
/// redirect z y 4*d0 + d1 if 4*d0 + d1 < 7               relayout p 1,0,2 padding 1 (groups split by `;`)
/// in_core_matrices p columns 8 cooperate i 16 4         persistent k 4    pipeline k s,u 3    strip_mine 16
/// factor k
/// ```
pub fn rewrite(nest: Nest, workload: Option<&Workload>, words: &[&str]) -> Result<Nest, Refusal> {
    let names = Named::of(&nest);
    let var = |at: usize| names.var(words[at]);
    let buffer = |at: usize| names.buffer(words[at]);
    let number = |at: usize| -> i64 { words[at].parse().unwrap_or_else(|_| panic!("`{}` is no number", words[at])) };
    match words[0] {
        "split" => nest.split(var(1), number(2)).map(|(nest, ..)| nest),
        "tile" => {
            let factors: Vec<i64> = (2..words.len()).map(number).collect();
            nest.tile(var(1), &factors).map(|(nest, _)| nest)
        }
        "fuse" => nest.fuse(var(1), var(2)).map(|(nest, _)| nest),
        "reorder" => nest.reorder(&(1..words.len()).map(var).collect::<Vec<_>>()),
        "set_kind" => {
            let kind = LoopKind::ALL.into_iter().find(|kind| kind.name() == words[2]);
            nest.set_kind(var(1), kind.expect("a kind of loop"))
        }
        "enclose" => nest.enclose(var(1)).map(|(nest, _)| nest),
        "join" => nest.join(&(1..words.len()).map(var).collect::<Vec<_>>()),
        "privatise" => {
            let rows: Vec<(Var, i64)> = (2..words.len()).step_by(2).map(|at| (var(at), number(at + 1))).collect();
            nest.privatise(buffer(1), &rows)
        }
        "into_setup" => nest.into_setup(var(1), buffer(2)),
        "accumulate" => {
            let vars = |title: &str| -> Vec<Var> {
                let titles = ["lanes", "blocks", "inside", "epilogue"];
                after(words, title).iter().take_while(|word| !titles.contains(word)).map(|w| names.var(w)).collect()
            };
            let blocks = vars("blocks").first().map(|var| Blocks { var: *var, inside: vars("inside") });
            let epilogue = after(words, "epilogue")
                .first()
                .map(|stage| &workload.expect("an epilogue is of a workload").stages[stage.parse::<usize>().unwrap()]);
            nest.accumulate(buffer(1), var(3), &Reduction { blocks, lanes: vars("lanes") }, epilogue)
        }
        "factor" => nest.factor(var(1)),
        "pack" => {
            let (place, rest) = match words[4] {
                "setup" => (Place::Setup, 5),
                "before" => (Place::Before(var(5)), 6),
                "inside" => (Place::Inside(var(5)), 6),
                other => panic!("`{other}` is no place to pack at"),
            };
            let layout = if words[rest] == "box" { Layout::Box } else { Layout::Panel };
            let content = if words[rest + 1] == "converted" { Content::Converted } else { Content::Own };
            nest.pack(var(1), (buffer(2), number(3) as usize), place, (layout, content))
        }
        "redirect" => {
            let (from, to) = (buffer(1), buffer(2));
            let (indices, conditions) = place_of(&words[3..].join(" "));
            Ok(nest.redirect(from, to, &indices, &conditions))
        }
        "relayout" => {
            let group = |group: &str| group.split(',').map(|d| d.parse().unwrap()).collect();
            let groups: Vec<Vec<usize>> = words[2].split(';').map(group).collect();
            nest.relayout(buffer(1), &groups, number(3))
        }
        "in_core_matrices" => nest.in_core_matrices(buffer(1), words[2] == "columns", number(3)),
        "cooperate" => nest.cooperate(var(1), number(2), number(3)),
        "persistent" => nest.persistent(var(1), number(2), Combiner::Sum).map(|(nest, _)| nest),
        "pipeline" => {
            let buffers: Vec<TensorId> = words[2].split(',').filter(|b| *b != "-").map(|b| names.buffer(b)).collect();
            nest.pipeline(var(1), &buffers, number(3))
        }
        "strip_mine" => Ok(nest.strip_mine(number(1))),
        "drop_unit_loops" => Ok(nest.drop_unit_loops()),
        "in_threads" => Ok(nest.in_threads()),
        "fill_tails" => Ok(nest.fill_tails()),
        "peel_tails" => Ok(nest.peel_tails()),
        "drop_unused" => Ok(nest.drop_unused()),
        "drop_setup_results" => Ok(nest.drop_setup_results()),
        other => panic!("there is no rewrite `{other}`"),
    }
}

/// The words behind a title.
fn after<'w>(words: &'w [&'w str], title: &str) -> &'w [&'w str] {
    let at = words.iter().position(|word| *word == title);
    at.map_or(&[], |at| &words[at + 1..])
}

/// What names stand for.
struct Named {
    /// In the order of the text.
    loops: Vec<(String, Var)>,
    /// Of no loop.
    unknown: Var,
    buffers: Vec<String>,
}

impl Named {
    fn of(nest: &Nest) -> Named {
        let buffers = nest.buffers.iter().map(|buffer| buffer.name.clone()).collect();
        let mut named = Named { loops: Vec::new(), unknown: Var(nest.vars.len() as u32), buffers };
        named.note(nest, &nest.body);
        named
    }

    fn note(&mut self, nest: &Nest, statements: &[Stmt]) {
        for statement in statements {
            match statement {
                Stmt::Loop(l) => {
                    self.loops.push((nest.var_name(l.var), l.var));
                    self.note(nest, &l.body);
                }
                Stmt::If { body, .. } => self.note(nest, body),
                Stmt::Store { .. } | Stmt::Accumulate { .. } => {}
            }
        }
    }

    fn var(&self, name: &str) -> Var {
        let (name, which) = name.split_once('@').map_or((name, 1), |(name, which)| (name, which.parse().unwrap()));
        let found = self.loops.iter().filter(|(known, _)| known == name).nth(which - 1);
        found.map_or(self.unknown, |(_, var)| *var)
    }

    fn buffer(&self, name: &str) -> TensorId {
        let at = self.buffers.iter().position(|known| known == name);
        TensorId(at.unwrap_or_else(|| panic!("there is no buffer `{name}`")) as u32)
    }
}

/// Indices in terms of dimensions `d0`, `d1`, ... and, behind `if`, conditions.
fn place_of(text: &str) -> (Vec<Index>, Vec<Condition>) {
    let (indices, conditions) = text.split_once(" if ").unwrap_or((text, "true"));
    let rank = indices.split(',').count();
    let loops: String = (0..4).map(|d| format!("for d{d} in 0..1 {{ ")).collect();
    let shape = vec!["1"; rank].join(", ");
    let text = format!(
        "buffers:\n  q: f32[{shape}] output\nbody:\n{loops} if {conditions} {{ q[{indices}] = 0.0 }} {}",
        "}".repeat(4)
    );
    let nest: Nest = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    let of_dimension = |var: Var| {
        let number = nest.vars.get(var.0 as usize)?.strip_prefix('d')?.parse().ok()?;
        Some(Index::var(Var(number)))
    };
    let mut statements = nest.body.as_slice();
    while let [Stmt::Loop(l)] = statements {
        statements = &l.body;
    }
    let [Stmt::If { conditions, body }] = statements else { panic!("a condition") };
    let [Stmt::Store { indices, .. }] = body.as_slice() else { panic!("a store") };
    let of = |index: &Index| index.substitute(&of_dimension);
    let conditions = conditions.iter().map(|c| Condition { index: of(&c.index), ..c.clone() }).collect();
    (indices.iter().map(of).collect(), conditions)
}
