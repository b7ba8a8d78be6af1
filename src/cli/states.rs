//! Outputs that come back as inputs: what the user says of them.

use std::str::FromStr;

use anyhow::{Result, bail};
use tilescribe::graph::Program;

use super::exit::CommandError;

/// `INPUT=OUTPUT`, where both may hold one `*`, which stands for the same text. Names may hold `=`
/// themselves: which of them parts the two turns out with the network.
#[derive(Clone, Debug)]
pub struct StatePattern(String);

impl FromStr for StatePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<StatePattern, String> {
        let is_pattern = |part: &str| !part.is_empty() && part.matches('*').count() <= 1;
        let fits = parts(text).any(|(input, output)| {
            is_pattern(input) && is_pattern(output) && input.contains('*') == output.contains('*')
        });
        match fits {
            true => Ok(StatePattern(text.to_string())),
            false => Err("expected INPUT=OUTPUT, or both with one `*`: past_*=present_*".to_string()),
        }
    }
}

fn parts(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices('=').map(|(at, _)| (&text[..at], &text[at + 1..]))
}

/// What `*` stands for in a name, where the name fits the pattern; nothing where it has none.
fn fitting<'n>(pattern: &str, name: &'n str) -> Option<&'n str> {
    match pattern.split_once('*') {
        Some((before, after)) => name.strip_prefix(before)?.strip_suffix(after),
        None => (pattern == name).then_some(""),
    }
}

/// Names of inputs and outputs that belong together.
///
/// # Errors
/// [`CommandError::Usage`] for a pattern that no input and output of the network fit.
pub fn pairs(program: &Program, patterns: &[StatePattern]) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for StatePattern(text) in patterns {
        let known = found.len();
        for (input_pattern, output_pattern) in parts(text) {
            for (input, _) in &program.inputs {
                let Some(middle) = fitting(input_pattern, input) else { continue };
                let output = output_pattern.replacen('*', middle, 1);
                if program.outputs.iter().any(|(name, _)| *name == output) {
                    found.push((input.clone(), output));
                }
            }
        }
        if found.len() == known {
            let list = |names: &mut dyn Iterator<Item = &String>| {
                names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            };
            let inputs = list(&mut program.inputs.iter().map(|(name, _)| name));
            let outputs = list(&mut program.outputs.iter().map(|(name, _)| name));
            let reason = format!("--state {text} fits no input and output; inputs: {inputs}; outputs: {outputs}");
            bail!(CommandError::Usage(reason));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read() {
        for right in ["h=hn", "past_*=present_*", "a=b=c"] {
            assert!(right.parse::<StatePattern>().is_ok(), "{right}");
        }
        for wrong in ["", "h", "=h", "h=", "past_*=present", "*_*=*_*"] {
            assert!(wrong.parse::<StatePattern>().is_err(), "{wrong}");
        }
        assert_eq!(fitting("past_*.k", "past_3.k"), Some("3"));
        assert_eq!(fitting("past_*", "present_3"), None);
        assert_eq!(fitting("h", "h"), Some(""));
    }
}
