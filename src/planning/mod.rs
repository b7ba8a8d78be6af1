//! Which plan a network is cut by: a search over plans by the times of their tasks.
//!
//! A plan costs what its tasks take, each as often as it is called. Tasks are the same in many plans, so most
//! plans cost nothing to judge: they are cut, and what is known of their tasks is added up. The search begins
//! with the *extremes*: the default, and then kind by kind of decisions all of a kind with each of their
//! candidates, the kinds before as they were fastest. Their tasks are measured briefly, and those of the
//! plans that come near the fastest in full. From the fastest of these it goes on by *moves*: other
//! candidates for single decisions, and for runs of neighbouring decisions of one kind. Kinds whose decisions
//! do not pay together are tried by moves alone. A move is taken where what it changes becomes faster by a
//! margin. Tasks that a move brings along and that nobody has measured are guessed (`times`); where that
//! promises enough, they are measured, within an allowance.
//!
//! Nothing here measures, reads or writes: [`Means`] do. Beyond that, kinds of decisions are not told apart.

mod cuts;
mod moves;
mod search;
mod times;

pub use cuts::{Bounds, Cutter, Origin};
pub use search::{Ask, Effort, Found, Means, TaskTimes, Tried, search};
pub use times::{Measure, Time};
