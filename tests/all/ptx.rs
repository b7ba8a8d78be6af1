//! A machine that executes PTX, so that kernels for GPUs run where there is none: exact where the hardware
//! is, thread by thread between barriers, with faults for whatever leaves a buffer, is not aligned, or races
//! with another thread. Written from NVIDIA's description of the language, not from our code generation, of
//! which it is the test.

mod arithmetic;
mod group;
mod machine;
mod memory;
mod parse;
mod warp;

use tilescribe::codegen::Ptx;

use machine::{Start, execute};
use memory::Memory;

/// Runs a program on its arguments; returns what they are afterwards.
pub fn run(program: &Ptx, arguments: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, String> {
    let functions = parse::parse(&program.text)?;
    let count = arguments.len();
    // nobody knows what is in the workspace
    let workspace = vec![0xff; program.workspace_bytes];
    let mut memory = Memory::new(arguments.into_iter().chain([workspace]).collect());
    for launch in &program.launches {
        let function = functions.iter().find(|function| function.name == launch.symbol);
        let function = function.ok_or_else(|| format!("no function {}", launch.symbol))?;
        if function.parameters.len() != count + 1 {
            return Err(format!("{} parameters for {count} arguments", function.parameters.len()));
        }
        let start = Start {
            function,
            blocks: launch.blocks,
            threads: launch.threads,
            shared_bytes: launch.shared_bytes as usize,
        };
        execute(&start, &mut memory).map_err(|fault| format!("{}, {fault}", launch.symbol))?;
    }
    let mut after = memory.into_arguments();
    after.truncate(count);
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilescribe::codegen::{Launch, Timings};

    /// One function of two parameters, besides the workspace.
    fn program(threads: u32, body: &str) -> Ptx {
        let parameters = ["", "", ""].map(|_| ".param .u64 .ptr .global .align 16 p").join(",\n");
        let head = "ld.param.b64 %rd1, [k_param_0];\nld.param.b64 %rd2, [k_param_1];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd3, %r1, 4;\n\
                    add.s64 %rd1, %rd1, %rd3;\nadd.s64 %rd2, %rd2, %rd3;\nmov.b64 %rd4, shared;\nadd.s64 %rd5, %rd4, %rd3;\nld.global.b32 %r2, [%rd1];\n";
        let text = format!(".visible .entry k(\n{parameters}\n)\n.maxntid {threads}\n{{\n{head}{body}\nret;\n}}\n");
        let launch = Launch { symbol: "k".into(), blocks: 1, threads, shared_bytes: 4 * threads };
        Ptx { text, launches: vec![launch], workspace_bytes: 0, timings: Timings::default() }
    }

    fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
        values.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn result(threads: u32, body: &str) -> Result<Vec<u8>, String> {
        let arguments = vec![words(0..threads), words(vec![7; threads as usize])];
        run(&program(threads, body), arguments).map(|mut after| after.remove(1))
    }

    /// Each thread gets its neighbour's number, through shared memory.
    const TURNED: &str = "st.shared.b32 [%rd5], %r2;\nbar.sync 0;\nxor.b32 %r3, %r1, 1;\nmul.wide.u32 %rd6, %r3, 4;\nadd.s64 %rd7, %rd4, %rd6;\n\
                          ld.shared.b32 %r4, [%rd7];\nst.global.b32 [%rd2], %r4;";

    #[test]
    fn threads_meet_at_barriers_and_only_there() {
        assert_eq!(result(64, TURNED), Ok(words((0..64).map(|thread| thread ^ 1))));
        let fault = result(64, &TURNED.replace("bar.sync 0;\n", "")).unwrap_err();
        assert!(fault.contains("writes at") && fault.contains("reads"), "{fault}");
        // who is not there keeps the others waiting for ever
        let fault =
            result(64, &format!("setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $L;\nbar.sync 0;\n$L:\n{TURNED}")).unwrap_err();
        assert!(fault.contains("wait in different places"), "{fault}");
        // one written after it was read
        let fault = result(64, &format!("{TURNED}\nst.shared.b32 [%rd5], 3;")).unwrap_err();
        assert!(fault.contains("reads at") && fault.contains("writes"), "{fault}");
    }

    #[test]
    fn accesses_stay_inside_and_are_aligned() {
        for (body, reason) in [
            ("ld.global.b32 %r3, [%rd1+256];", "of 256 from its start"),
            ("st.global.b32 [%rd1+-4], 3;", "nothing is at"),
            ("ld.shared.b32 %r3, [%rd5+4];", "from its start"),
            ("ld.global.b32 %r3, [%rd1+2];", "no multiple"),
            ("ld.global.v2.b32 {%r3, %r4}, [%rd1];", "no multiple"),
            ("ld.global.b32 %r3, [%rd3];", "nothing is at"),
            ("st.global.b32 [%rd4], 3;", "as does thread"),
            ("frobnicate.b32 %r3, %r2;", "not known"),
        ] {
            let fault = result(64, body).unwrap_err();
            assert!(reason.split('|').any(|reason| fault.contains(reason)), "{body}: {fault}");
        }
    }

    #[test]
    fn copies_arrive_when_they_were_waited_for() {
        let copied = "cp.async.ca.shared.global [%rd5], [%rd1], 4;\ncp.async.commit_group;\ncp.async.wait_group 0;\nld.shared.b32 %r3, [%rd5];\n\
                      st.global.b32 [%rd2], %r3;";
        assert_eq!(result(32, copied), Ok(words(0..32)));
        for missing in ["cp.async.wait_group 0;\n", "cp.async.commit_group;\n"] {
            let fault = result(32, &copied.replace(missing, "")).unwrap_err();
            assert!(fault.contains("still copies"), "{missing}: {fault}");
        }
        let zeros = copied.replace("], 4;", "], 4, 0;");
        assert_eq!(result(32, &zeros), Ok(words(vec![0; 32])));
    }

    #[test]
    fn warps_act_together() {
        let turned = "shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1;\nst.global.b32 [%rd2], %r3;";
        assert_eq!(result(64, turned), Ok(words((0..64).map(|thread| thread ^ 16))));
        let fault = result(64, &format!("setp.lt.u32 %p1, %r1, 8;\n@%p1 bra $L;\n{turned}\n$L:")).unwrap_err();
        assert!(fault.contains("are named"), "{fault}");
        // rows of a matrix of halves: thread n has the pair n of the first one
        let loaded = "shl.b32 %r5, %r2, 16;\nor.b32 %r5, %r5, %r2;\nst.shared.b32 [%rd5], %r5;\nbar.sync 0;\nand.b64 %rd8, %rd3, 28;\nshl.b64 %rd8, %rd8, 2;\n\
                      add.s64 %rd8, %rd4, %rd8;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%rd8];\nst.global.b32 [%rd2], %r3;";
        assert_eq!(result(32, loaded), Ok(words((0..32).map(|thread| thread << 16 | thread))));
    }

    /// Every thread writes a row of core matrices of 16 × 8 ones, and four warps multiply them by a row of
    /// twos each.
    fn product(change: impl Fn(String) -> String) -> Result<Vec<u8>, String> {
        let ones = "mov.b32 %r10, 1006648320;\nsetp.gt.u32 %p1, %r1, 15;\nmul.wide.u32 %rd6, %r1, 16;\nadd.s64 %rd7, %rd4, %rd6;\n\
                    @%p1 bra $L;\nst.shared.v4.b32 [%rd7], {%r10, %r10, %r10, %r10};\n$L:\nfence.proxy.async.shared::cta;\nbar.sync 0;\n";
        // of f16: two, and two
        let operands = "mov.b32 %r11, 1073758208;\nmov.b32 %r20, 0;\nmov.b32 %r21, 0;\nmov.b32 %r22, 0;\nmov.b32 %r23, 0;\n\
                        and.b64 %rd8, %rd4, 262143;\nshr.b64 %rd8, %rd8, 4;\nor.b64 %rd8, %rd8, 34360262656;\nwgmma.fence.sync.aligned;\n";
        let started = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r20, %r21, %r22, %r23}, {%r11, %r11, %r11, %r11}, %rd8, 1, 1, 1, 0;\n\
                       wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nst.global.b32 [%rd2], %r23;";
        result(128, &change(format!("{ones}{operands}{started}")))
    }

    #[test]
    fn groups_of_warps_multiply_together() {
        // sixteen times one by two
        assert_eq!(product(|text| text), Ok(words(vec![32f32.to_bits(); 128])));
        for (from, to, reason) in [
            ("fence.proxy.async.shared::cta;\n", "", "written without a fence"),
            ("wgmma.fence.sync.aligned;\n", "", "no fence before"),
            ("wgmma.fence.sync.aligned;\n", "wgmma.fence.sync.aligned;\nmov.b32 %r20, 0;\n", "no fence between"),
            ("wgmma.commit_group.sync.aligned;\n", "", "was not waited for"),
            ("wgmma.wait_group.sync.aligned 0;\n", "", "was not waited for"),
            ("m64n8k16", "m64n12k16", "12 columns"),
            ("%rd8, 1, 1, 1, 0;", "%rd1, 1, 1, 1, 0;", "different descriptors"),
        ] {
            let fault = product(|text| {
                assert!(text.contains(from), "{from}");
                text.replace(from, to)
            });
            let fault = fault.map(|_| String::new()).unwrap_or_else(|fault| fault);
            assert!(fault.contains(reason), "{from}: {fault:?}, not {reason}");
        }
    }
}
