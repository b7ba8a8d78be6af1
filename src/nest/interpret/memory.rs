//! Buffers with a shadow for every element: whether it is defined, and which iterations touched it.

use std::ops::Range;

use super::FaultKind;
use super::compile::Reduces;
use crate::nest::{Buffer, Scope};
use crate::workload::{
    Role, integer_from_bytes, put_integer, put_real, real_from_bytes, row_major_strides, rows_of_part,
};

/// Elements as the interpreter computes with them: floats as f64, integers and Booleans as i64.
#[derive(Clone, Debug)]
pub(super) enum Elements {
    Real(Vec<f64>),
    Whole(Vec<i64>),
}

/// One iteration of a loop whose iterations must not depend on each other. Every iteration that is ever
/// executed has a number of its own, and `first` is the first one of this execution of the loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Iteration {
    pub first: u64,
    pub current: u64,
}

/// The iterations that touched an element last; 0 stands for none.
#[derive(Clone, Copy, Default, Debug)]
struct Watch {
    writer: u64,
    reader: u64,
    /// The last reader other than `reader`.
    earlier_reader: u64,
}

impl Watch {
    /// Whether reading now depends on no other iteration of the loop.
    fn read(&mut self, now: Iteration) -> bool {
        if self.reader != now.current {
            self.earlier_reader = self.reader;
            self.reader = now.current;
        }
        !now.is_other(self.writer)
    }

    fn write(&mut self, now: Iteration) -> bool {
        let free = ![self.writer, self.reader, self.earlier_reader].into_iter().any(|other| now.is_other(other));
        self.writer = now.current;
        free
    }

    fn untouched(&self, now: Iteration) -> bool {
        [self.writer, self.reader, self.earlier_reader].into_iter().all(|other| other < now.first)
    }
}

impl Iteration {
    /// Whether a number is that of another iteration of the same execution of the loop.
    fn is_other(self, number: u64) -> bool {
        number >= self.first && number != self.current
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Shadow {
    /// The life of the buffer in which the element was written.
    defined: u64,
    threads: Watch,
    lanes: Watch,
    /// The threads of a block.
    mates: Watch,
    /// Of a register: the number of the thread that wrote it, from 1; 0 where there are no threads.
    owner: u64,
    /// The execution of a vector loop that reduces its lanes into this element.
    reduced: u64,
    /// The phase whose threads reduce their values into it.
    gathered: u64,
}

/// The loops around an access that its element is watched for.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Around {
    /// The innermost parallel loop, or the block.
    pub thread: Option<Iteration>,
    /// The thread of a block, in this phase.
    pub mate: Option<Iteration>,
    /// Its number in the block, from 1; 0 outside of thread loops.
    pub owner: u64,
    pub lane: Option<Iteration>,
}

pub(super) struct Memory {
    pub elements: Elements,
    /// Empty for inputs and constants, which are defined and never written.
    shadows: Vec<Shadow>,
    /// Private buffers begin a new life with each iteration of a parallel loop.
    life: u64,
    buffer: Buffer,
}

impl Memory {
    /// All elements undefined.
    pub fn new(buffer: &Buffer) -> Memory {
        let count = buffer.elements() as usize;
        let given = matches!(buffer.scope, Scope::Argument(Role::Input | Role::Constant));
        Memory {
            elements: match buffer.dtype.is_float() {
                true => Elements::Real(vec![f64::NAN; count]),
                false => Elements::Whole(vec![0; count]),
            },
            shadows: if given { Vec::new() } else { vec![Shadow::default(); count] },
            life: 1,
            buffer: buffer.clone(),
        }
    }

    pub fn is_private(&self) -> bool {
        matches!(self.buffer.scope, Scope::BlockShared | Scope::Register)
    }

    /// Whether what `setup` leaves in it is there when `body` runs.
    pub fn outlives_setup(&self) -> bool {
        self.buffer.scope == Scope::Packed
    }

    /// All elements become undefined.
    pub fn begin_life(&mut self) {
        self.life += 1;
    }

    /// The first element that is undefined and should not be.
    pub fn first_undefined(&self) -> Option<String> {
        let is_undefined = |at: &usize| self.shadows[*at].defined != self.life;
        let mut own = self.written().into_iter().flatten();
        own.find(is_undefined).map(|at| self.element_name(at))
    }

    /// The elements that the nest writes, row by row.
    fn written(&self) -> Vec<Range<usize>> {
        let (starts, length) = rows_of_part(self.buffer.reach(), &self.buffer.shape);
        starts.into_iter().map(|start| start..start + length).collect()
    }

    pub fn read(&mut self, at: usize, around: Around) -> Result<(), FaultKind> {
        let (private, register) = (self.is_private(), self.buffer.scope == Scope::Register);
        let Some(shadow) = self.shadows.get_mut(at) else { return Ok(()) };
        if shadow.defined != self.life {
            return Err(FaultKind::Undefined { element: self.element_name(at) });
        }
        if register && shadow.owner != around.owner {
            return Err(FaultKind::OtherThread { element: self.element_name(at) });
        }
        if !register && around.mate.is_some_and(|now| shadow.gathered == now.first || !shadow.mates.read(now)) {
            return Err(FaultKind::Race { element: self.element_name(at) });
        }
        if !private && around.thread.is_some_and(|now| !shadow.threads.read(now)) {
            return Err(FaultKind::Race { element: self.element_name(at) });
        }
        if around.lane.is_some_and(|now| shadow.reduced == now.first || !shadow.lanes.read(now)) {
            return Err(FaultKind::LaneDependence { element: self.element_name(at) });
        }
        Ok(())
    }

    pub fn write(&mut self, at: usize, around: Around) -> Result<(), FaultKind> {
        let (private, register) = (self.is_private(), self.buffer.scope == Scope::Register);
        let Some(shadow) = self.shadows.get_mut(at) else {
            return Err(FaultKind::ReadOnly { element: self.element_name(at) });
        };
        if register && shadow.defined == self.life && shadow.owner != around.owner {
            return Err(FaultKind::OtherThread { element: self.element_name(at) });
        }
        (shadow.defined, shadow.owner) = (self.life, around.owner);
        if !register && around.mate.is_some_and(|now| shadow.gathered == now.first || !shadow.mates.write(now)) {
            return Err(FaultKind::Race { element: self.element_name(at) });
        }
        if !private && around.thread.is_some_and(|now| !shadow.threads.write(now)) {
            return Err(FaultKind::Race { element: self.element_name(at) });
        }
        if around.lane.is_some_and(|now| shadow.reduced == now.first || !shadow.lanes.write(now)) {
            return Err(FaultKind::LaneDependence { element: self.element_name(at) });
        }
        Ok(())
    }

    /// Reads and writes an element. What all lanes of a vector loop, or threads of a phase, combine their
    /// values into nothing else in that loop or phase may touch.
    pub fn accumulate(&mut self, at: usize, around: Around, reduces: Reduces) -> Result<(), FaultKind> {
        let lane = around.lane.filter(|_| reduces.lanes);
        let mate = around.mate.filter(|_| reduces.threads);
        let others = Around {
            lane: around.lane.filter(|_| !reduces.lanes),
            mate: around.mate.filter(|_| !reduces.threads),
            ..around
        };
        self.read(at, others)?;
        self.write(at, others)?;
        let Some(shadow) = self.shadows.get_mut(at) else { return Ok(()) };
        if let Some(now) = lane {
            if !shadow.lanes.untouched(now) {
                return Err(FaultKind::LaneDependence { element: self.element_name(at) });
            }
            shadow.reduced = now.first;
        }
        if let Some(now) = mate {
            if !shadow.mates.untouched(now) {
                return Err(FaultKind::Race { element: self.element_name(at) });
            }
            shadow.gathered = now.first;
        }
        Ok(())
    }

    fn element_name(&self, at: usize) -> String {
        let strides = row_major_strides(&self.buffer.shape);
        let indices = self.buffer.shape.iter().zip(strides).map(|(extent, stride)| at as i64 / stride % extent);
        format!("{}{:?}", self.buffer.name, indices.collect::<Vec<_>>())
    }

    /// Takes the elements from their little-endian bytes. The length must fit.
    pub fn load(&mut self, bytes: &[u8]) {
        let dtype = self.buffer.dtype;
        let chunks = bytes.chunks_exact(dtype.bytes());
        match &mut self.elements {
            Elements::Real(values) => {
                values.iter_mut().zip(chunks).for_each(|(v, b)| *v = real_from_bytes(dtype, b));
            }
            Elements::Whole(values) => {
                values.iter_mut().zip(chunks).for_each(|(v, b)| *v = integer_from_bytes(dtype, b));
            }
        }
    }

    /// The elements that the nest writes, as little-endian bytes.
    pub fn store(&self, bytes: &mut [u8]) {
        let dtype = self.buffer.dtype;
        let mut stored = Vec::new();
        for row in self.written() {
            stored.clear();
            match &self.elements {
                Elements::Real(values) => values[row.clone()].iter().for_each(|v| put_real(dtype, *v, &mut stored)),
                Elements::Whole(values) => values[row.clone()].iter().for_each(|v| put_integer(dtype, *v, &mut stored)),
            }
            bytes[row.start * dtype.bytes()..][..stored.len()].copy_from_slice(&stored);
        }
    }
}
