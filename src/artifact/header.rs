//! The C header of an artifact.

use std::fmt::Write;

use super::manifest::Port;
use crate::target::Kind;
use crate::workload::DType;

/// The declarations, with the network's name in front of every function.
pub fn header(name: &str, kind: Kind, inputs: &[Port], outputs: &[Port]) -> String {
    let upper = name.to_ascii_uppercase();
    let ports = format!("{}{}", list("inputs", inputs), list("outputs", outputs));
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
        .replace("@PORTS@", &ports)
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
        // a name must not end the comment
        let name: String = port
            .name
            .chars()
            .map(|c| if c.is_ascii_graphic() && !matches!(c, '*' | '/' | '@') { c } else { '_' })
            .collect();
        let shape: Vec<String> = port.shape.iter().map(i64::to_string).collect();
        let _ = writeln!(text, " *   {number}: {name}, {}[{}]", port.dtype, shape.join(", "));
    }
    text
}

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
        "/* Maps the weights, read only. With 0 threads, runs use every core that the process may use. Returns an enum
 * @NAME@_status; unless it is @UPPER@_OK, *model is NULL. */
int @NAME@_create(const char *weights_path, int threads, @NAME@_model **model);
",
    run: " May be called from any thread; runs take turns. */",
    more: "",
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
};

enum @NAME@_type {
@TYPES@
};

typedef struct {
    const char *name; /* as in the ONNX file */
    const int64_t *shape;
    uint64_t bytes;
    uint32_t rank;
    uint32_t type; /* enum @NAME@_type */
} @NAME@_tensor;

typedef struct @NAME@_model @NAME@_model;

@CREATE@
/* Computes all outputs from all inputs, in the order of @NAME@_inputs and @NAME@_outputs. Returns as @NAME@_create does.@RUN@
int @NAME@_run(@NAME@_model *model, const void *const *inputs, void *const *outputs);
@MORE@
/* Gives everything back. NULL is allowed. */
void @NAME@_destroy(@NAME@_model *model);

/* Tables that live as long as the library. */
const @NAME@_tensor *@NAME@_inputs(size_t *count);
const @NAME@_tensor *@NAME@_outputs(size_t *count);

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
        let port = Port { name: "x */ int main(void) { } /* @NAME@".into(), dtype: "f32".into(), shape: vec![1, 3] };
        for kind in [Kind::Cpu, Kind::Gpu] {
            let text = header("net", kind, std::slice::from_ref(&port), &[]);
            assert_eq!(text.matches("*/").count(), text.matches("/*").count());
            assert!(text.contains("f32[1, 3]") && !text.contains("int main") && !text.contains('@'), "{text}");
        }
    }
}
