//! Whether the element-wise stage behind a reduction is computed as the reduction's results are written.

use super::{Built, Plan, Rule, Stop, Tape, name, site};
use crate::nest::rewrite::Refusal;
use crate::target::TaskOn;

pub(super) struct Epilogue;

impl<M> Rule<M> for Epilogue {
    fn name(&self) -> &'static str {
        "epilogue"
    }

    fn version(&self) -> u32 {
        1
    }

    fn decide(&self, _: &TaskOn<'_, M>, plan: &mut Plan, tape: &mut Tape<'_>) -> Result<(), Stop> {
        let mut at = 0;
        while at < plan.groups.len() {
            let stage = plan.groups[at].stage;
            if let Some(next) = plan.workload.epilogue_of(stage) {
                let answers = vec![name("fused"), name("apart")];
                let answer = tape.choose(site("epilogue", [plan.groups[at].name()]), answers, 0)?;
                if answer.is("fused") {
                    plan.groups[at].epilogue = Some(next);
                    plan.groups.retain(|g| g.stage != next);
                }
            }
            at += 1;
        }
        Ok(())
    }

    /// Done where the reduction is moved into registers.
    fn realise(&self, _: &TaskOn<'_, M>, _: &Plan, _: &mut Built) -> Result<(), Refusal> {
        Ok(())
    }
}
