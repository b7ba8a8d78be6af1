//! Figures that a kernel writer asks for, from the program alone: nothing here runs, measures or predicts a
//! time.
//!
//! [`figures`] gathers them: the arithmetic of a workload and the bytes that any program for it must move,
//! the bytes that each level of memory hands over to this one ([`traffic()`]), and what its innermost loop
//! looks like in machine code ([`kernel_figures`]). [`crate::measure::roofline`] knows how fast the machine
//! could do that. [`Mix`] counts a program's instructions without compiling it; for GPUs, each launch's are
//! counted apart.

mod assembly;
mod bodies;
mod footprint;
mod launches;
mod mix;
mod pieces;
mod traffic;
mod trips;

use serde::{Deserialize, Serialize};

pub use assembly::{CodeFigures, KernelFigures, kernel_figures};
pub use footprint::{LINE_BYTES, Moved};
pub use mix::{Accesses, Mix};
pub use traffic::{LevelTraffic, LoopFootprint, loop_footprints, traffic, translations};

pub(crate) use bodies::{Body, bodies};
pub(crate) use launches::{Launch, Requests, launches};
pub(crate) use pieces::Pieces;

use crate::analysis::footprint::{Footprint, Scratch, Unit};
use crate::analysis::trips::Trips;
use crate::codegen::{self, CodegenError};
use crate::nest::{Nest, Scope};
use crate::target::Task;
use crate::workload::Workload;

/// What a workload asks of a machine, however it is scheduled.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Demand {
    /// One for each operator on elements, two for a multiply-add: [`Workload::flops`].
    pub flops: i64,
    /// Every element that is used of an input or constant read once, every element of an output written once.
    pub compulsory: Moved,
}

impl Demand {
    pub fn of(workload: &Workload) -> Demand {
        let naive = Nest::naive(workload);
        let all = Footprint::of(&Trips::new(&naive), &mut Scratch::default(), &naive.body, None);
        let arguments = all.retain(&|scope| matches!(scope, Scope::Argument(_)));
        Demand { flops: workload.flops(), compulsory: arguments.moved(Unit::Element) }
    }

    /// Arithmetic intensity: flops for each byte that must move.
    pub fn intensity(&self) -> f64 {
        self.flops as f64 / self.compulsory.total_bytes().max(1) as f64
    }
}

/// All figures of a program.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figures {
    pub demand: Demand,
    /// Estimated, nearest level first.
    pub traffic: Vec<LevelTraffic>,
    pub loops: Vec<LoopFootprint>,
    pub kernel: KernelFigures,
}

/// Compiles a program's nest, and counts.
///
/// # Errors
/// [`CodegenError`], as for [`codegen::assembly`].
pub fn figures(task: &Task, nest: &Nest) -> Result<Figures, CodegenError> {
    let cpu = task.target.cpu()?;
    Ok(Figures {
        demand: Demand::of(&task.workload),
        traffic: traffic(nest, &task.target),
        loops: loop_footprints(nest, &task.target),
        kernel: kernel_figures(&codegen::assembly(nest, cpu)?, cpu.architecture),
    })
}
