//! What runs tell of themselves, for those who look for time or faults.

use std::ffi::c_int;

use super::Model;
use crate::error::RuntimeError;
use crate::library::Event;

impl Model {
    /// The time of each call while `work` runs the model, over all runs and iterations: in nanoseconds, in
    /// the order of the manifest. `None` where the library does not measure: on GPUs, or where an older
    /// version linked it.
    pub fn profiled<T>(&self, work: impl FnOnce(&Model) -> T) -> Option<(T, Vec<u64>)> {
        let profile = self.code.library.profile.as_ref()?;
        let mut spent = vec![0; self.manifest().calls.len()];
        // SAFETY: the array has as many elements as there are calls.
        let status = unsafe { profile(self.handle, spent.as_mut_ptr()) };
        let _ends = AtLast(|| {
            // SAFETY: the handle is alive; the array is gone after that.
            unsafe { profile(self.handle, std::ptr::null_mut()) };
        });
        if status != 0 { None } else { Some((work(self), spent)) }
    }

    /// What every thread does while `work` runs the model, up to `room` events. `None` where the library does
    /// not tell: on GPUs, or where an older version linked it.
    pub fn traced<T>(&self, room: usize, work: impl FnOnce(&Model) -> T) -> Option<(T, Trace)> {
        let trace = self.code.library.trace.as_ref()?;
        let (mut events, mut written) = (vec![Event::default(); room], 0);
        // SAFETY: the array has that many elements, and both live until `_ends` takes them away again.
        let status = unsafe { trace(self.handle, events.as_mut_ptr(), room as u64, &raw mut written) };
        let ends = AtLast(|| {
            // SAFETY: the handle is alive; events and their number are gone after that.
            unsafe { trace(self.handle, std::ptr::null_mut(), 0, std::ptr::null_mut()) };
        });
        if status != 0 {
            return None;
        }
        let result = work(self);
        drop(ends);
        let kept = usize::try_from(written).unwrap_or(room).min(room);
        events.truncate(kept);
        Some((result, Trace { events, lost: written - kept as u64 }))
    }

    /// For finding faults: whether runs fill all memory for intermediates that holds none with NaN before
    /// each call. It changes no output, unless a call reads what is no longer, or not yet, there.
    ///
    /// # Errors
    /// [`RuntimeError::Input`] where the library cannot: on GPUs, or where an older version linked it.
    pub fn poison(&self, poison: bool) -> Result<(), RuntimeError> {
        let missing = || RuntimeError::Input("the network's library fills no memory that is free".into());
        let function = self.code.library.poison.as_ref().ok_or_else(missing)?;
        // SAFETY: the handle is alive.
        self.checked(unsafe { function(self.handle, c_int::from(poison)) })
    }

    /// As [`Model::traced`], but each call by itself: it was just made, so that what it computes with is in
    /// the caches, and its weights are in memory. `None` also where the machine cannot have them there.
    pub fn traced_cold<T>(&self, room: usize, work: impl FnOnce(&Model) -> T) -> Option<(T, Trace)> {
        let time_cold = self.code.library.time_cold.as_ref()?;
        // SAFETY: the handle is alive.
        if unsafe { time_cold(self.handle, 1) } != 0 {
            return None;
        }
        let _ends = AtLast(|| {
            // SAFETY: the handle is alive.
            unsafe { time_cold(self.handle, 0) };
        });
        self.traced(room, work)
    }

    /// As [`Model::traced`], calls one after the other, those that may run at the same time as well: only so
    /// can their times be added up.
    pub fn traced_in_turn<T>(&self, room: usize, work: impl FnOnce(&Model) -> T) -> Option<(T, Trace)> {
        // older libraries know nothing else
        let Some(take_turns) = self.code.library.take_turns.as_ref() else { return self.traced(room, work) };
        // SAFETY: the handle is alive.
        unsafe { take_turns(self.handle, 1) };
        let _ends = AtLast(|| {
            // SAFETY: the handle is alive.
            unsafe { take_turns(self.handle, 0) };
        });
        self.traced(room, work)
    }
}

/// Does something when it goes, however the work ends that it lives through.
struct AtLast<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtLast<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// What threads did, in the order in which it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    pub events: Vec<Event>,
    /// Events for which there was no room.
    pub lost: u64,
}
