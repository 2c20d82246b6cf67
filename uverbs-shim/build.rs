//! Generates the layouts of the verbs ABI from the installed `<infiniband/verbs.h>`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::exit;

const HEADER: &str = "/usr/include/infiniband/verbs.h";
/// Also the commands and responses of the kernel's connection manager.
const HEADERS: &str = "#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n#include <rdma/ib_user_verbs.h>\n\
    #include <rdma/ib_user_sa.h>\n#include <rdma/rdma_user_cm.h>\n";

fn main() {
    println!("cargo:rerun-if-changed={HEADER}");
    if !Path::new(HEADER).exists() {
        eprintln!(
            "error: {HEADER} is not there: install it (Debian: apt install libibverbs-dev libclang-dev)"
        );
        exit(1);
    }
    let bindings = bindgen::Builder::default()
        .header_contents("verbs-abi.h", HEADERS)
        .allowlist_type("(ibv|verbs)_.*|_compat_ibv_port_attr|ib_uverbs_(ah|qp)_attr|ib_user_path_rec|rdma_ucm_.*|ib_path_rec_data")
        .allowlist_var("(IBV|VERBS|RDMA|IB_PATH)_.*")
        // Applications contain the header's inline functions; functions of this library have the same names.
        .ignore_functions()
        // C enums come from applications and may have any value.
        .default_enum_style(bindgen::EnumVariation::ModuleConsts)
        // Anonymous enums become constants, like macros.
        .constified_enum("(RDMA|IB_PATH)_.*")
        .layout_tests(true)
        .derive_debug(false)
        .derive_default(true)
        .wrap_unsafe_ops(true)
        .generate()
        .unwrap_or_else(|e| {
            eprintln!("error: {HEADER}: {e} (Debian: apt install libclang-dev)");
            exit(1);
        });
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("abi.rs");
    bindings.write_to_file(out).expect("OUT_DIR is writable");
}
