//! The identity of a network: what it computes and how it is cut, whatever its parts are called and whatever
//! its weights are.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::{Callee, Network, NetworkBuffer, Source};

impl Network {
    /// The first 32 hexadecimal digits of the SHA-256 of its calls: the tasks' canonical hashes and the
    /// routines, what their arguments are bound to, buffers, regions, and states. Names and the elements of
    /// constants do not count. The hash of the network that is cut by default names a program.
    pub fn hash(&self) -> String {
        let mut text = String::new();
        // writing to a string cannot fail
        let _ = self.describe(&mut text);
        Sha256::digest(&text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    fn describe(&self, text: &mut String) -> std::fmt::Result {
        let tasks: Vec<String> = self.tasks.iter().map(|task| task.workload.hash()).collect();
        for call in &self.calls {
            match &call.callee {
                Callee::Task(task) => write!(text, "{}", tasks.get(*task).map_or("", String::as_str))?,
                Callee::Library(routine) => write!(text, "{routine:?}")?,
            }
            writeln!(text, " {:?} {:?} {:?}", call.arguments, call.parameters, call.count)?;
        }
        for NetworkBuffer { shape, extents, dtype, source } in &self.buffers {
            let role = match source {
                Source::Input(_) => "input",
                Source::Output(_) => "output",
                Source::Constant(_) => "constant",
                Source::Intermediate => "between",
            };
            writeln!(text, "{role} {} {shape:?} {extents:?}", dtype.name())?;
        }
        write!(text, "{:?} {:?} {}", self.regions, self.carried, self.precision.name())
    }
}
