//! Models for as many calls as may run at one time.

use std::sync::{Condvar, Mutex, PoisonError};

use pyo3::Python;
use tilescribe_runtime::{Artifact, Model, RuntimeError};

/// Makes models when calls need them, up to a limit; further calls wait for one.
#[derive(Debug)]
pub struct Runners {
    artifact: Artifact,
    limit: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<Model>,
    made: usize,
}

/// A model that nobody else has; it goes back when it is dropped.
#[derive(Debug)]
pub struct Runner<'r> {
    runners: &'r Runners,
    /// `None` only while it is dropped.
    model: Option<Model>,
}

impl Runners {
    /// Holds the first model from the start.
    ///
    /// # Errors
    /// As [`Artifact::model`].
    pub fn new(artifact: Artifact, limit: usize) -> Result<Runners, RuntimeError> {
        let first = artifact.model()?;
        let state = Mutex::new(State { idle: vec![first], made: 1 });
        Ok(Runners { artifact, limit, state, returned: Condvar::new() })
    }

    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// A model. Other Python threads run while this one waits.
    ///
    /// # Errors
    /// As [`Artifact::model`].
    pub fn take(&self, py: Python<'_>) -> Result<Runner<'_>, RuntimeError> {
        let idle = || self.state.lock().unwrap_or_else(PoisonError::into_inner).idle.pop();
        let model = match idle() {
            Some(model) => model,
            None => py.detach(|| self.wait())?,
        };
        Ok(Runner { runners: self, model: Some(model) })
    }

    fn wait(&self) -> Result<Model, RuntimeError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(model) = state.idle.pop() {
                return Ok(model);
            }
            if state.made < self.limit {
                state.made += 1;
                drop(state);
                let made = self.artifact.model();
                if made.is_err() {
                    self.state.lock().unwrap_or_else(PoisonError::into_inner).made -= 1;
                }
                return made;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Runner<'_> {
    pub fn model(&self) -> &Model {
        // a runner has its model until it is dropped
        self.model.as_ref().unwrap_or_else(|| unreachable!("a runner holds a model"))
    }

    /// To hand it to another thread for a while.
    pub fn model_mut(&mut self) -> &mut Model {
        self.model.as_mut().unwrap_or_else(|| unreachable!("a runner holds a model"))
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        let mut state = self.runners.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.idle.extend(self.model.take());
        drop(state);
        self.runners.returned.notify_one();
    }
}
