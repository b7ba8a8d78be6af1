//! Compiles the C sources: the runtime into our own binary, and it and what artifacts consist of as
//! relocatable objects that `compile` links, so that no C compiler is needed there.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    for source in ["src/runtime", "src/artifact/deploy"] {
        println!("cargo::rerun-if-changed={source}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let runtime = build("src/runtime/runtime.c");
    copy_object(&runtime, &out.join("runtime.o"));
    runtime.compile("tilescribe_runtime");
    for part in
        ["calls", "cold", "common", "cpu", "cuda", "extents", "library", "memory", "poison", "processor", "state"]
    {
        copy_object(&build(&format!("src/artifact/deploy/{part}.c")), &out.join(format!("{part}.o")));
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        link_cuda(&out);
    }
    for library in ["ffi", "z"] {
        prefer_static(library, &out);
    }
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=pthread");
}

/// Puts the archive of a library that LLVM needs where the linker looks first, so that the program runs where
/// the shared one is missing, or is of another version. Without an archive, the shared one is linked.
fn prefer_static(library: &str, out: &Path) {
    let file = format!("lib{library}.a");
    let compiler = cc::Build::new().get_compiler();
    let found = compiler.to_command().arg(format!("-print-file-name={file}")).output();
    // a compiler that does not find it prints the name alone
    let path = found.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    if let Ok(path) = path.and_then(|path| path.canonicalize())
        && path.is_absolute()
        && path.is_file()
    {
        fs::copy(path, out.join(file)).expect("OUT_DIR is writable");
    }
}

/// Makes what candle's CUDA back end asks the linker for: functions that find NVIDIA's libraries when they
/// are called, and libraries of their names without anything inside. Only the CUDA runtime is linked as it
/// is, from beside the compiler that `NVCC` names.
fn link_cuda(out: &Path) {
    println!("cargo::rerun-if-changed=src/measure/cuda/link");
    println!("cargo::rerun-if-env-changed=NVCC");
    build("src/measure/cuda/link/link.c").link_lib_modifier("+whole-archive").compile("tilescribe_cuda_link");
    for library in ["cuda", "nvrtc", "curand", "cublas", "cublasLt"] {
        fs::write(out.join(format!("lib{library}.a")), "!<arch>\n").expect("OUT_DIR is writable");
    }
    if let Some(compiler) = env::var_os("NVCC") {
        let folder = Path::new(&compiler).ancestors().nth(2).expect("NVCC is CUDA/bin/nvcc");
        let runtime = ["lib64", "lib"].map(|name| folder.join(name).join("libcudart_static.a"));
        let runtime = runtime.iter().find(|path| path.exists()).expect("libcudart_static.a is in NVCC/../../lib");
        fs::copy(runtime, out.join("libcudart.a")).expect("OUT_DIR is writable");
    }
}

fn build(source: &str) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .file(source)
        .std("gnu11")
        .opt_level(2)
        .debug(false)
        .pic(true)
        .warnings(true)
        .warnings_into_errors(false)
        // whoever links the object decides what it exports; few sections keep it easy to place
        .flag("-fvisibility=hidden")
        .flag("-fno-function-sections")
        .flag("-fno-data-sections");
    build
}

fn copy_object(build: &cc::Build, to: &Path) {
    let objects = build.compile_intermediates();
    let [object] = objects.as_slice() else { panic!("one source gives one object, not {}", objects.len()) };
    fs::copy(object, to).expect("OUT_DIR is writable");
}
