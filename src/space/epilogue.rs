//! Whether the element-wise stage behind a reduction is computed as the reduction's results are written.

use super::{Rule, Step, Stop, Tape, View, name, site};

pub(super) struct Epilogue;

impl<M> Rule<M> for Epilogue {
    fn name(&self) -> &'static str {
        "epilogue"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, view: &View<'_, M>, tape: &mut Tape<'_>) -> Result<Vec<Step>, Stop> {
        let mut steps = Vec::new();
        let mut fused = Vec::new();
        for group in &view.groups {
            if fused.contains(&group.stage) {
                continue;
            }
            if let Some(stage) = view.workload.epilogue_of(group.stage) {
                let answers = vec![name("fused"), name("apart")];
                if tape.choose(site("epilogue", [group.name()]), answers, 0)?.is("fused") {
                    fused.push(stage);
                    steps.push(Step::Epilogue { stage, of: group.stage });
                }
            }
        }
        Ok(steps)
    }
}
