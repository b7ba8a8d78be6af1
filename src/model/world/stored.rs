//! The world models of a checkpoint, and the file that holds them.

use serde::{Deserialize, Serialize};

use super::{World, WorldConfig, WorldSpaces};
use crate::model::tensors::{Stored, Tensors, decode, encode, with_shapes};

/// The world models of a checkpoint; most have none.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Worlds {
    /// Whose states decisions move.
    pub dynamic: Option<World>,
    /// That sees the set of decisions at the end.
    pub end: Option<World>,
}

impl Worlds {
    pub fn is_empty(&self) -> bool {
        self.dynamic.is_none() && self.end.is_none()
    }

    /// The one with or without dynamics.
    pub fn of(&self, dynamics: bool) -> Option<&World> {
        if dynamics { self.dynamic.as_ref() } else { self.end.as_ref() }
    }

    /// Puts a model into the place of the one of its kind.
    pub fn put(&mut self, world: World) {
        let place = if world.config.dynamics { &mut self.dynamic } else { &mut self.end };
        *place = Some(world);
    }

    /// Each with its weights in another order; see [`World::shuffled`].
    #[must_use]
    pub fn shuffled(&self, seed: u64) -> Worlds {
        let shuffled = |world: &Option<World>| world.as_ref().map(|world| world.shuffled(seed));
        Worlds { dynamic: shuffled(&self.dynamic), end: shuffled(&self.end) }
    }
}

/// What stands beside the tensors: of each model that is there.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Heading {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dynamic: Option<About>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<About>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct About {
    config: WorldConfig,
    spaces: WorldSpaces,
}

/// What names of the tensors of each model begin with.
const PREFIXES: [&str; 2] = ["dynamic.", "end."];

/// A file of world models.
pub(in crate::model) fn encode_worlds(worlds: &Worlds) -> Result<Vec<u8>, String> {
    let about = |world: &World| About { config: world.config.clone(), spaces: world.spaces.clone() };
    let heading = Heading { dynamic: worlds.dynamic.as_ref().map(about), end: worlds.end.as_ref().map(about) };
    let mut tensors = Tensors::new();
    for (prefix, world) in PREFIXES.into_iter().zip([&worlds.dynamic, &worlds.end]) {
        let Some(world) = world else { continue };
        for (name, shape) in world.config.shapes() {
            let values = world.tensor(&name).to_vec();
            tensors.insert(format!("{prefix}{name}"), Stored { shape, values });
        }
    }
    encode(tensors, Some(serde_json::to_string(&heading).map_err(|error| error.to_string())?))
}

/// Reads what [`encode_worlds`] wrote; any other bytes give an error that says why.
pub(in crate::model) fn decode_worlds(bytes: &[u8]) -> Result<Worlds, String> {
    let (tensors, note) = decode(bytes)?;
    let note = note.ok_or("it does not say what it holds")?;
    let Heading { dynamic, end } = serde_json::from_str(&note).map_err(|error| error.to_string())?;
    let mut sets = PREFIXES.map(|_| Tensors::new());
    for (name, stored) in tensors {
        let own = PREFIXES.iter().zip(&mut sets).find_map(|(prefix, set)| Some((name.strip_prefix(prefix)?, set)));
        let (rest, set) = own.ok_or_else(|| format!("tensor `{name}` belongs to no world model"))?;
        set.insert(rest.to_string(), stored);
    }
    let [of_dynamic, of_end] = sets;
    let read = |about: Option<About>, tensors: Tensors, dynamics: bool| match about {
        None if tensors.is_empty() => Ok(None),
        None => Err("there are tensors of a model that it does not name".to_string()),
        Some(about) if about.config.dynamics != dynamics => Err("a model is named as one of the other kind".into()),
        Some(About { config, spaces }) => {
            // sizes first: shapes are made of them
            config.validate().map_err(|error| error.to_string())?;
            let tensors = with_shapes(&config.shapes(), tensors)?;
            World::from_tensors(config, spaces, tensors).map(Some)
        }
    };
    let worlds = Worlds { dynamic: read(dynamic, of_dynamic, true)?, end: read(end, of_end, false)? };
    if worlds.is_empty() { Err("it holds no world model".into()) } else { Ok(worlds) }
}
