//! What an optimizer remembers of each parameter, under the names of its checkpoints.

use burn::tensor::Tensor;

use crate::config::Config;
use crate::ops::Moments;

/// The rule that updates a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101).
    AdamW,
}

impl Rule {
    /// Returns the rule of the parameter `name` in a run.
    pub fn of(_config: &Config, _name: &str) -> Self {
        Rule::AdamW
    }

    /// Returns the states of a parameter's parts. `tensors` returns one of their tensors for each
    /// part, all `[elements]`, by its name in checkpoints: `m`, and for AdamW `v`.
    ///
    /// # Errors
    /// If `tensors` fails.
    pub fn states<E>(
        self,
        mut tensors: impl FnMut(&'static str) -> Result<Vec<Tensor<1>>, E>,
    ) -> Result<Vec<State>, E> {
        match self {
            Rule::AdamW => {
                let (m, v) = (tensors("m")?, tensors("v")?);
                let states = m.into_iter().zip(v).map(|(m, v)| State::AdamW(Moments { m, v }));
                Ok(states.collect())
            }
        }
    }
}

/// What an optimizer remembers of one part of a parameter.
#[derive(Clone, Debug)]
pub enum State {
    /// AdamW's two moments.
    AdamW(Moments),
}

impl State {
    /// Returns the tensors `[elements]` with their names in checkpoints.
    pub fn tensors(&self) -> Vec<(&'static str, Tensor<1>)> {
        match self {
            State::AdamW(Moments { m, v }) => vec![("m", m.clone()), ("v", v.clone())],
        }
    }
}
