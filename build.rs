//! Compiles the C runtime: once into our own binary, and as a relocatable object that `compile` links into artifacts,
//! so that no C compiler is needed there.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=src/runtime/runtime.c");
    println!("cargo::rerun-if-changed=src/runtime/runtime.h");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut build = cc::Build::new();
    build
        .file("src/runtime/runtime.c")
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
    let objects = build.compile_intermediates();
    let [object] = objects.as_slice() else { panic!("one source gives one object, not {}", objects.len()) };
    fs::copy(object, out.join("runtime.o")).expect("OUT_DIR is writable");
    build.compile("tilescribe_runtime");
    println!("cargo::rustc-link-lib=pthread");
}
