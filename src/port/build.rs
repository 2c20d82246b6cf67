//! Compiles the XDP steering program with clang; the library embeds the object.

use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

const SOURCE: &str = "xdp/steer.bpf.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    if env::var_os("CARGO_FEATURE_XDP").is_none() {
        return;
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("steer.bpf.o");
    // Where Debian and its children keep <asm/types.h>; elsewhere the directory does not exist, which is fine. The
    // program is the same for every processor, so the headers are the building machine's.
    let host = env::var("HOST").expect("cargo sets HOST");
    let arch = host.split('-').next().expect("split gives one at least");
    let multiarch = format!("/usr/include/{arch}-linux-gnu");

    // -g: the maps are described in BTF. -mcpu=v3: 32-bit and atomic instructions, in kernels since 5.1.
    let compiled = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-idirafter", &multiarch])
        .args(["-c", SOURCE, "-o"])
        .arg(&object)
        .output();
    match compiled {
        Ok(output) if output.status.success() => {}
        Ok(output) => fail(&format!(
            "{clang} could not compile {SOURCE}. It needs the kernel's and libbpf's headers \
             (Debian: apt install linux-libc-dev libbpf-dev).\n{}",
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(e) => fail(&format!(
            "cannot run {clang}: {e}. The XDP steering program is compiled from C: install clang \
             (Debian: apt install clang llvm libelf-dev zlib1g-dev libbpf-dev pkg-config m4), or name one in CLANG."
        )),
    }
}

fn fail(message: &str) {
    eprintln!("error: {message}");
    exit(1);
}
