//! The C header of an artifact.

use std::fmt::Write;

use tilescribe_runtime::{Growth, Port, StatePort};

use crate::graph::Symbols;
use crate::target::Kind;
use crate::workload::DType;

/// What goes in and comes out, and what a model keeps.
#[derive(Clone, Copy, Debug)]
pub struct Ports<'a> {
    pub inputs: &'a [Port],
    pub outputs: &'a [Port],
    pub states: &'a [StatePort],
}

/// The declarations, with the network's name in front of every function.
pub fn header(name: &str, kind: Kind, ports: &Ports<'_>, symbols: &Symbols, calls: usize) -> String {
    let upper = name.to_ascii_uppercase();
    let Ports { inputs, outputs, states } = *ports;
    let listed = [list("inputs", inputs), list("outputs", outputs), list_states(states), ranges(symbols)].concat();
    let extents = if symbols.is_empty() { &FIXED } else { &RUN_TIME };
    let types: Vec<String> = DType::ALL
        .iter()
        .map(|dtype| format!("    {upper}_{} = {},", dtype.name().to_ascii_uppercase(), dtype.number()))
        .collect();
    let own = match kind {
        Kind::Cpu => &CPU,
        Kind::Gpu => &GPU,
    };
    TEMPLATE
        .replace("@STATUS@", own.status)
        .replace("@CREATE@", own.create)
        .replace("@RUN@", own.run)
        .replace("@MORE@", own.more)
        .replace("@EXTENT_STATUS@", extents.status)
        .replace("@SHAPE@", extents.shape)
        .replace("@SET@", extents.set)
        .replace("@LEAST@", extents.least)
        .replace("@STATES@", if states.is_empty() { "" } else { STATES })
        .replace("@PORTS@", &listed)
        .replace("@CALLS@", &calls.to_string())
        .replace("@HELD@", &states.len().to_string())
        .replace("@TYPES@", &types.join("\n"))
        .replace("@UPPER@", &upper)
        .replace("@NAME@", name)
        .replace("@INPUTS@", &inputs.len().to_string())
        .replace("@OUTPUTS@", &outputs.len().to_string())
}

/// A line for each input or output, as a comment.
fn list(what: &str, ports: &[Port]) -> String {
    let mut text = format!(" * {what}:\n");
    for (number, port) in ports.iter().enumerate() {
        let (name, shape) = (in_comment(&port.name, "*/@ "), in_comment(&port.shape_text(), "@"));
        let _ = writeln!(text, " *   {number}: {name}, {}[{shape}]", port.dtype);
    }
    text
}

/// The same for states.
fn list_states(states: &[StatePort]) -> String {
    let mut text = String::new();
    for (number, StatePort { input, output, grows }) in states.iter().enumerate() {
        text.push_str(if number == 0 { " * states, which a model keeps from run to run:\n" } else { "" });
        let (name, output) = (in_comment(&input.name, "*/@ "), in_comment(output, "*/@ "));
        let shape = in_comment(&input.shape_text(), "@");
        let room = match grows {
            Some(Growth { axis, capacity }) => format!("grows along axis {axis}, up to {capacity}"),
            None => "is replaced".to_string(),
        };
        let _ = writeln!(text, " *   {number}: {name}, {}[{shape}]: {output} {room}", input.dtype);
    }
    text
}

/// The ranges of the numbers that are known only when it runs, if there are any.
fn ranges(symbols: &Symbols) -> String {
    let mut text = String::new();
    for (number, symbol) in symbols.list.iter().enumerate() {
        text.push_str(if number == 0 { " * where\n" } else { "" });
        let _ = writeln!(text, " *   {} is {}", in_comment(&symbol.name, "*/@ "), symbol.values());
    }
    text
}

/// A name must not end the comment that it stands in.
fn in_comment(name: &str, forbidden: &str) -> String {
    let is_plain = |c: char| (c.is_ascii_graphic() || c == ' ') && !forbidden.contains(c);
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    plain.replace("*/", "__").replace("/*", "__")
}

/// What differs with run-time extents.
struct Extents {
    status: &'static str,
    shape: &'static str,
    set: &'static str,
    least: &'static str,
}

const FIXED: Extents = Extents { status: "", shape: "", set: "", least: "" };

const RUN_TIME: Extents = Extents {
    status: "    @UPPER@_NO_EXTENTS = 6,           /* @NAME@_set_extents was not called, or failed */
    @UPPER@_BAD_EXTENTS = 7,          /* the network does not take them: @NAME@_message says why */
",
    shape: " /* at most; @NAME@_input_least and @NAME@_output_least tell which may be less */",
    set: "
/* Says which extents the inputs of the runs to come have: by input, in the order of @NAME@_inputs, an array of its extents (NULL where
 * it has none). Everything that depends on them is computed here, and nothing at all where they are what they were. Memory grows to
 * what the largest of them needed. Extents belong to the model: where threads run different ones at the same time, each has a model of
 * its own, which shares the weights. After a failure no extents are set. Where states grow, what depends
 * on their rows is computed anew before the next run. Returns as @NAME@_create does. */
int @NAME@_set_extents(@NAME@_model *model, const int64_t *const *shapes);

/* Writes the extents that an output has in these runs: as many as its rank. Arrays hold that many elements, and no gaps. Where extents
 * depend on data, they are what they can be at most, which arrays have to hold, and after a run what they are, until extents are set
 * again. */
int @NAME@_output_shape(@NAME@_model *model, size_t number, int64_t *shape);

/* Why the last call of @NAME@_set_extents failed, with input, axis and range, or a run that found more than the network takes; empty
 * where none did. Valid until the next call. */
const char *@NAME@_message(@NAME@_model *model);
",
    least: "
/* The extents of an input or output at least, as many as its rank; those in the tables are at most. Where the two are equal, an extent
 * is fixed. NULL where there is no such input or output. */
const int64_t *@NAME@_input_least(size_t number);
const int64_t *@NAME@_output_least(size_t number);
",
};

/// Where a model keeps states.
const STATES: &str = "
#define @UPPER@_STATES @HELD@

/* What a state is as the input of its name; NULL where there is no such state. Neither its input nor its output is given to runs. */
const @NAME@_tensor *@NAME@_state(size_t number);

/* Forgets what runs have left: states are zero, and those that grow have no rows, as after @NAME@_create. All functions about states
 * return as @NAME@_create does. */
int @NAME@_reset(@NAME@_model *model);

/* Takes states that grow back to their first rows, of which there are so many: what later runs appended is forgotten. Only where no
 * state is replaced. */
int @NAME@_rewind(@NAME@_model *model, int64_t rows);

/* Reads a state: its shape, as many extents as its rank, and its elements as a dense array. */
int @NAME@_state_shape(@NAME@_model *model, size_t number, int64_t *shape);
int @NAME@_get_state(@NAME@_model *model, size_t number, void *data);

/* Writes one. Where states grow, all of them need as many rows before the next run. */
int @NAME@_set_state(@NAME@_model *model, size_t number, const int64_t *shape, const void *data);
";

/// What differs between machines.
struct Own {
    status: &'static str,
    create: &'static str,
    run: &'static str,
    more: &'static str,
}

const CPU: Own = Own {
    status: "    @UPPER@_UNSUPPORTED_CPU = 1,      /* the processor lacks instructions, see @NAME@_missing_feature */
",
    create:
        "/* Loads the weights: there once for all models of the process, see @NAME@_share_weights. Runs use so many
 * threads, up to 256, whatever number the network was compiled for; with 0, every core that the process may use. Returns an enum @NAME@_status; unless it is @UPPER@_OK, *model is NULL. */
int @NAME@_create(const char *weights_path, int threads, @NAME@_model **model);
",
    run: " May be called from any thread: calls for one model take turns, models run side by side. */",
    more: "
/* From now on, runs of the model add the time of each call to `nanoseconds`, an array of @CALLS@: in the order of \"calls\" in
 * manifest.json, over all iterations. NULL ends it. */
int @NAME@_profile(@NAME@_model *model, uint64_t *nanoseconds);

/* What happened from `begin` to `end`, in nanoseconds of CLOCK_MONOTONIC: `what` is 0 for a call as a whole, 1 for a thread's part of a
 * parallel loop in it, 2 for the wait of who started it for the other threads, 3 for calls that run at the same time, of which `call` is
 * the first. */
typedef struct @NAME@_event {
    uint64_t begin, end;
    uint32_t call;
    uint16_t thread, what;
} @NAME@_event;

/* From now on, runs of the model write what every thread does into `events`, an array of `room`, and say after each how many there are;
 * those for which there was no room count, too. NULL ends it. */
int @NAME@_trace(@NAME@_model *model, @NAME@_event *events, uint64_t room, uint64_t *written);

/* Weights are copied into large pages of the process, which it reads faster. With 1, the first model that is made from now on maps their
 * file instead, read only: many processes hold them once, then. */
int @NAME@_share_weights(int share);

/* For finding faults: from now on, runs of the model fill all memory for intermediates that holds none with bytes of ones, NaN as floats,
 * before each call. It changes no output, unless a call reads what is no longer, or not yet, there. With 0, no more. */
int @NAME@_poison(@NAME@_model *model, int poison);

/* From now on, runs of the model make each call twice, take its weights out of all caches in between, and count the second time: what a
 * call takes by itself where the network's weights are more than the caches hold. No output changes. With 0, no more. */
int @NAME@_time_cold(@NAME@_model *model, int cold);

/* With 1, runs of the model from now on make all calls one after the other, those that may run at the same time as well: only so can their
 * times be added up. Runs that fill memory, that add the times of calls, or that make each twice do so anyway. With 0, no more. */
int @NAME@_take_turns(@NAME@_model *model, int turns);

/* Runs the iterations 0..count of a loop as parts begin..end, each once, in any order and at the same time, and returns when all are done.
 * Numbers of threads are below `threads`; parts that go on at the same time have different ones. */
typedef void (*@NAME@_pool)(void (*body)(void *context, int64_t begin, int64_t end, int64_t thread), void *context, int64_t count,
                            int64_t threads);

/* From now on, runs of the model share loops between threads of another pool: one of the program's own, or that of another network's
 * library. NULL: the library's own threads, which all models of the library have in common. */
int @NAME@_share_threads(@NAME@_model *model, @NAME@_pool pool);

/* The library's own threads, as models of other networks take them. They end with the last model of this library, and start again with
 * a loop: @NAME@_end_threads ends them before the library is unloaded, where others have used them since. */
@NAME@_pool @NAME@_own_threads(void);
int @NAME@_end_threads(void);

/* With 1, each of the library's own threads stays on a processor of its own from the next loop on, the first behind the one that the caller
 * is on then, which the caller itself is not bound to; not where there are more threads than processors. With 0, the system places them. */
int @NAME@_pin_threads(int pin);
",
};

const GPU: Own = Own {
    status: "    @UPPER@_UNSUPPORTED_GPU = 1,      /* no driver or no GPU that it was compiled for, see @NAME@_missing_feature */
",
    create: "/* Copies the weights to a GPU, by its number in the driver's order, and lets the driver assemble the kernels: seconds for the first
 * time, after which the driver remembers them. Returns an enum @NAME@_status, or 1000 and the CUresult of the driver; unless it is
 * @UPPER@_OK, *model is NULL. */
int @NAME@_create(const char *weights_path, int device, @NAME@_model **model);
",
    run: " The arrays
 * are in the host's memory. May be called from any thread; runs of a model take turns. */",
    more: "
/* For programs that keep their data on the device: where the model reads an input and writes an output, addresses in the device's
 * memory (CUdeviceptr) that stay the same as long as the model lives. NULL where there is no such input or output. */
void *@NAME@_device_input(@NAME@_model *model, size_t number);
void *@NAME@_device_output(@NAME@_model *model, size_t number);

/* Starts a run on these, in a stream (CUstream) of the device's primary context, or in the model's own where it is NULL, and returns at
 * once: the caller sees to it that only one run of a model is under way. Returns as @NAME@_create does. */
int @NAME@_launch(@NAME@_model *model, void *stream);

/* Waits for what was started in the model's own stream. */
int @NAME@_wait(@NAME@_model *model);
",
};

const TEMPLATE: &str = r#"/* The network `@NAME@`, compiled by Tilescribe.
 *
@PORTS@ *
 * Link with lib@NAME@.so; the weights are read from weights.safetensors when a model is created.
 * Arrays are dense and row-major; their addresses are aligned to their elements. */

#ifndef @UPPER@_H
#define @UPPER@_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define @UPPER@_INPUTS @INPUTS@
#define @UPPER@_OUTPUTS @OUTPUTS@

enum @NAME@_status {
    @UPPER@_OK = 0,
@STATUS@    @UPPER@_CANNOT_READ_WEIGHTS = 2,
    @UPPER@_FOREIGN_WEIGHTS = 3,      /* the weights belong to another network or compilation */
    @UPPER@_OUT_OF_MEMORY = 4,
    @UPPER@_BAD_ARGUMENT = 5,
@EXTENT_STATUS@};

enum @NAME@_type {
@TYPES@
};

typedef struct {
    const char *name; /* as in the ONNX file */
    const int64_t *shape;@SHAPE@
    uint64_t bytes;
    uint32_t rank;
    uint32_t type; /* enum @NAME@_type */
} @NAME@_tensor;

typedef struct @NAME@_model @NAME@_model;

@CREATE@@SET@
/* Computes all outputs from all inputs, in the order of @NAME@_inputs and @NAME@_outputs. Returns as @NAME@_create does.@RUN@
int @NAME@_run(@NAME@_model *model, const void *const *inputs, void *const *outputs);
@MORE@@STATES@
/* Gives everything back. NULL is allowed. */
void @NAME@_destroy(@NAME@_model *model);

/* Tables that live as long as the library. */
const @NAME@_tensor *@NAME@_inputs(size_t *count);
const @NAME@_tensor *@NAME@_outputs(size_t *count);
@LEAST@
/* What the machine lacks, a processor's features as LLVM calls them; NULL where it lacks nothing. */
const char *@NAME@_missing_feature(void);

const char *@NAME@_error_string(int status);

#ifdef __cplusplus
}
#endif

#endif
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_inside_the_comment() {
        let port = Port {
            name: "x */ int main(void) { } /* @NAME@".into(),
            dtype: "f32".into(),
            shape: vec![1, 3],
            extents: Default::default(),
        };
        for kind in [Kind::Cpu, Kind::Gpu] {
            let ports = Ports { inputs: std::slice::from_ref(&port), outputs: &[], states: &[] };
            let text = header("net", kind, &ports, &Symbols::default(), 1);
            assert_eq!(text.matches("*/").count(), text.matches("/*").count());
            assert!(text.contains("f32[1, 3]") && !text.contains("int main") && !text.contains('@'), "{text}");
        }
    }
}
