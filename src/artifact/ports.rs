//! What goes into a network and comes out of it: inputs and outputs, which every run is given, and states,
//! which a model keeps.

use super::extents::{PortExtents, described, extents, rooms};
use super::tables::{Extent, Place};
use tilescribe_runtime::{Growth, Port, StatePort};

use crate::graph::{Appended, Carried, Network, NetworkBuffer, Source};
use crate::workload::{Extents, Index};

/// The ports of a network, in its order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ports {
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub states: Vec<StatePort>,
    pub extents: PortExtents,
    /// By buffer: where it starts, if it is one of them.
    pub places: Vec<Option<Place>>,
}

impl Ports {
    pub fn of(network: &Network) -> Ports {
        let mut ports = Ports { places: vec![None; network.buffers.len()], ..Ports::default() };
        let number_of = |at: usize, of: fn(&Carried) -> usize| network.carried.iter().position(|it| of(it) == at);
        let (mut inputs, mut outputs) = (0, 0);
        let mut states: Vec<Option<(StatePort, Vec<Extent>)>> = vec![None; network.carried.len()];
        let mut after: Vec<String> = vec![String::new(); network.carried.len()];
        for (at, buffer) in network.buffers.iter().enumerate() {
            match &buffer.source {
                Source::Input(name) => {
                    match number_of(inputs, |carried| carried.input) {
                        Some(index) => {
                            let appended = &network.carried[index].appended;
                            let found = as_found(buffer, appended.as_ref());
                            let grows = appended
                                .as_ref()
                                .map(|appended| Growth { axis: appended.axis, capacity: buffer.shape[appended.axis] });
                            let state = StatePort { input: port(network, name, &found), output: String::new(), grows };
                            states[index] = Some((state, extents(network, &found)));
                            ports.places[at] = Some(Place::State { index, offset: 0 });
                            ports.extents.given.push(None);
                        }
                        None => {
                            ports.places[at] = Some(Place::Input { index: ports.inputs.len(), offset: 0 });
                            ports.extents.given.push(Some(ports.inputs.len()));
                            ports.inputs.push(port(network, name, buffer));
                            ports.extents.inputs.extend(extents(network, buffer));
                        }
                    }
                    inputs += 1;
                }
                Source::Output(name) => {
                    match number_of(outputs, |carried| carried.output) {
                        Some(index) => {
                            after[index].clone_from(name);
                            ports.places[at] = Some(Place::NextState { index, offset: 0 });
                        }
                        None => {
                            ports.places[at] = Some(Place::Output { index: ports.outputs.len(), offset: 0 });
                            ports.outputs.push(port(network, name, buffer));
                            ports.extents.outputs.extend(extents(network, buffer));
                            ports.extents.rooms.extend(rooms(network, buffer));
                        }
                    }
                    outputs += 1;
                }
                Source::Constant(_) | Source::Intermediate => {}
            }
        }
        for ((state, output), carried) in states.into_iter().zip(after).zip(&network.carried) {
            let Some((state, own)) = state else { continue };
            ports.states.push(StatePort { output, ..state });
            ports.extents.states.extend(own);
            ports.extents.grown.push(grown(carried));
        }
        ports
    }
}

fn port(network: &Network, name: &str, buffer: &NetworkBuffer) -> Port {
    let dtype = buffer.dtype.name().to_string();
    Port { name: name.to_string(), dtype, shape: buffer.shape.clone(), extents: described(network, buffer) }
}

/// A state's buffer with the rows that a run finds, instead of those that there is room for.
fn as_found(buffer: &NetworkBuffer, appended: Option<&Appended>) -> NetworkBuffer {
    let Some(Appended { axis, before, rows, .. }) = appended else { return buffer.clone() };
    let mut found = buffer.clone();
    found.shape[*axis] = rows[0].1;
    let open = buffer.extents.iter().map(|(axis, formula)| (axis, formula.clone()));
    found.extents = Extents::new(open.chain([(*axis, before.clone())]));
    found
}

fn grown(carried: &Carried) -> Extent {
    match &carried.appended {
        Some(Appended { after, rows: [_, (least, most)], .. }) => {
            Extent { formula: after.clone(), least: *least, most: *most }
        }
        None => Extent { formula: Index::constant(0), least: 0, most: 0 },
    }
}
