//! Room behind the buffers of the arena.

use crate::graph::{Network, NetworkBuffer, bound_tensors};

/// By buffer, how much longer than its last extent there is room for. Tensors of which calls use a part may
/// end behind their buffer's end: nothing else lies there, so that loads may be wider than what is used.
pub(super) fn margins(network: &Network) -> Vec<i64> {
    let mut behind = vec![0i64; network.buffers.len()];
    for call in &network.calls {
        let Some(task) = call.task() else { continue };
        for (binding, (_, tensor)) in call.arguments.iter().zip(bound_tensors(&network.tasks[task].workload)) {
            let elements: i64 = network.buffers[binding.buffer].shape.iter().product();
            let end = binding.offset.saturating_add(tensor.elements());
            behind[binding.buffer] = behind[binding.buffer].max(end.saturating_sub(elements));
        }
    }
    let rows = |(buffer, behind): (&NetworkBuffer, i64)| {
        // those that are in every run
        let fixed = |axis: &usize| buffer.extents.get(*axis).is_none();
        let others = (0..buffer.shape.len().saturating_sub(1)).filter(fixed);
        let row = others.map(|axis| buffer.shape[axis]).product::<i64>().max(1);
        behind / row + i64::from(behind % row > 0)
    };
    network.buffers.iter().zip(behind).map(rows).collect()
}
