//! Tilescribe: a language-model-guided tensor program generator.
//!
//! A neural network comes in as ONNX and leaves as fast compiled code. Every decision taken while a schedule
//! is generated is a word of a small tensor language; a transformer that was trained on measured decision
//! sequences writes them.
//!
//! Modules in the order in which data flows, behind what all of them use: files, and decisions as data:

pub mod files;
pub mod trace;
pub mod workload;
pub mod target;
pub mod graph;
pub mod nest;
pub mod space;
pub mod language;
pub mod codegen;
pub mod analysis;
pub mod folders;
pub mod outcome;
pub mod measure;
pub mod record;
pub mod fleet;
pub mod model;
pub mod rank;
pub mod propose;
pub mod tune;
pub mod planning;
pub mod artifact;

/// The code of the pages in Markdown, compiled and run with the documentation tests.
#[cfg(doctest)]
pub mod pages {
    #[doc = include_str!("../README.md")]
    pub struct Readme;
    #[doc = include_str!("../docs/embedding.md")]
    pub struct Embedding;
    #[doc = include_str!("../docs/tutorial.md")]
    pub struct Tutorial;
    #[doc = include_str!("../docs/extending.md")]
    pub struct Extending;
}
