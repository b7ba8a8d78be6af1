//! Compiles the C sources: the runtime into our own binary, and it and what artifacts consist of as relocatable objects that `compile`
//! links, so that no C compiler is needed there.

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
    for part in ["common", "cpu", "cuda"] {
        copy_object(&build(&format!("src/artifact/deploy/{part}.c")), &out.join(format!("{part}.o")));
    }
    println!("cargo::rustc-link-lib=pthread");
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
