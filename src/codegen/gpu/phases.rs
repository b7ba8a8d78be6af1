//! Which registers are whose.

use std::collections::BTreeMap;

use crate::codegen::error::CodegenError;
use crate::nest::{LoopKind, Nest, Scope, Stmt};
use crate::workload::{Index, TensorId, Var};

/// Each thread's own part of the register buffers: the dimensions of the thread loops go.
///
/// ```text
/// before: thread for x in 0..32 { unroll for i in 0..4 { r[x, i] = 0 } }
/// after:  thread for x in 0..32 { unroll for i in 0..4 { r[i] = 0 } }
/// ```
///
/// # Errors
/// [`CodegenError::Malformed`] where a register buffer begins with different numbers of thread loops'
/// variables.
pub fn own_registers(mut nest: Nest) -> Result<Nest, CodegenError> {
    let mut dimensions: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut body = std::mem::take(&mut nest.body);
    let mut mixed = None;
    let buffers = &nest.buffers;
    for_each_access(&mut body, &mut Vec::new(), &mut |buffer, indices, threads| {
        if buffers.get(buffer.0 as usize).is_none_or(|known| known.scope != Scope::Register) {
            return;
        }
        let own = |index: &&Index| index.as_var().is_some_and(|var| threads.contains(&var));
        let own = indices.iter().take_while(own).count();
        if *dimensions.entry(buffer).or_insert(own) != own {
            mixed = Some(buffer);
        }
        indices.drain(..own);
    });
    if let Some(buffer) = mixed {
        let name = &nest.buffer(buffer).name;
        return Err(CodegenError::Malformed(format!("the register {name} has not the same thread loops everywhere")));
    }
    for (buffer, threads) in dimensions {
        nest.buffers[buffer.0 as usize].shape.drain(..threads);
    }
    nest.body = body;
    Ok(nest)
}

/// Takes a buffer, the indices of an access to it, and the variables of the thread loops around it.
type Visit<'a> = dyn FnMut(TensorId, &mut Vec<Index>, &[Var]) + 'a;

/// Visits every access to a buffer, with the variables of the thread loops around it.
fn for_each_access(statements: &mut [Stmt], threads: &mut Vec<Var>, visit: &mut Visit<'_>) {
    for statement in statements {
        match statement {
            Stmt::Loop(l) => {
                let around = threads.len();
                threads.extend((l.kind == LoopKind::Thread).then_some(l.var));
                for_each_access(&mut l.body, threads, visit);
                threads.truncate(around);
            }
            Stmt::If { body, .. } => for_each_access(body, threads, visit),
            Stmt::Store { buffer, indices, value } | Stmt::Accumulate { buffer, indices, value, .. } => {
                visit(*buffer, indices, threads);
                value.for_each_load_mut(&mut |buffer, indices| visit(buffer, indices, threads));
            }
        }
    }
}
