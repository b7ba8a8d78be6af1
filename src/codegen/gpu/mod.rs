//! What a nest asks of the threads of a GPU's block: where they wait for one another, how phases begin and
//! end, and which part of a matrix each thread holds.

pub mod barriers;
pub mod matrices;
pub mod phases;
