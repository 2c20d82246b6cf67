//! The library's ABI: symbols, versions, and layouts.
//!
//! `exports.txt` lists what `libibverbs.so.1` of rdma-core 65 exports: `readelf -Ws --dyn-syms`, names with versions;
//! `@@` marks the version that new programs get. Names with `@PRIVATE` are between library and providers, with a
//! version name that changes with them; here, every version has them. Layouts are asserted at compile time: bindgen
//! states size and offsets of each structure of the installed headers, and the C compiler agrees below.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::{folder, installed};
use crate::site::in_time::CommandInTime;

const EXPORTS: &str = include_str!("exports.txt");

fn exports(library: &Path) -> BTreeSet<String> {
    let output = Command::new("readelf").args(["-Ws", "--dyn-syms"]).arg(library).output_in_time().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut symbols = BTreeSet::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        // Columns: Num Value Size Type Bind Vis Ndx Name.
        if fields.len() >= 8
            && fields[4] != "LOCAL"
            && fields[6] != "UND"
            && fields[6] != "ABS"
            && fields[7].contains('@')
        {
            symbols.insert(fields[7].to_owned());
        }
    }
    symbols
}

/// True for a call of the C library that the library interposes.
fn is_of_libc(symbol: &str) -> bool {
    symbol.contains("@GLIBC_")
}

/// Provider interfaces of rdma-core 33, 34 to 56, 57 and 58, 59 to 63, 64, and 65.
const PRIVATE: [&str; 6] = ["33", "34", "57", "59", "64", "65"];

/// Returns all symbols that the library must export.
fn wanted() -> BTreeSet<String> {
    let mut wanted: BTreeSet<String> =
        PRIVATE.iter().map(|node| format!("verbs_register_driver_{node}@@IBVERBS_PRIVATE_{node}")).collect();
    for line in EXPORTS.lines() {
        match line.strip_suffix("@PRIVATE") {
            None => drop(wanted.insert(line.to_owned())),
            Some(name) => wanted.extend(PRIVATE.iter().map(|node| {
                let at = if *node == "34" { "@@" } else { "@" };
                format!("{name}{at}IBVERBS_PRIVATE_{node}")
            })),
        }
    }
    wanted
}

#[test]
fn exports_are_exactly_rdma_cores() {
    let wanted = wanted();
    let mut symbols = exports(&folder().join("libibverbs.so.1"));
    symbols.retain(|symbol| !is_of_libc(symbol));
    let missing: Vec<_> = wanted.difference(&symbols).collect();
    let surplus: Vec<_> = symbols.difference(&wanted).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "missing {missing:?}, surplus {surplus:?}");
}

#[test]
fn interposed_calls_have_libc_versions() {
    let name = "interposed_calls_have_libc_versions";
    let place = format!("/lib/{}-linux-gnu/libc.so.6", std::env::consts::ARCH);
    if !Path::new(&place).exists() {
        return println!("SKIP {name}: {place} is not there");
    }
    // Old names have a single @: new programs do not link to them.
    let bare = |symbols: BTreeSet<String>| -> BTreeSet<String> {
        symbols.iter().map(|symbol| symbol.replace("@@", "@")).collect()
    };
    let theirs = bare(exports(Path::new(&place)));
    let mut ours = exports(&folder().join("libibverbs.so.1"));
    ours.retain(|symbol| is_of_libc(symbol));
    let ours = bare(ours);
    assert!(ours.contains("write@GLIBC_2.2.5") && ours.contains("fstat@GLIBC_2.33"), "{ours:?}");
    let unknown: Vec<_> = ours.difference(&theirs).collect();
    assert!(unknown.is_empty(), "the C library has no {unknown:?}");
}

/// Returns 14 for `IBVERBS_1.14`; `None` for a provider interface.
fn public_version(symbol: &str) -> Option<u32> {
    symbol.rsplit_once("@IBVERBS_1.")?.1.parse().ok()
}

#[test]
fn export_list_covers_the_installed_library() {
    let name = "export_list_covers_the_installed_library";
    let Some(theirs) = distribution() else {
        println!("SKIP {name}: the distribution's libibverbs.so.1 of rdma-core 44 or newer is not installed");
        return;
    };
    // The default version of a private symbol may differ.
    let bare = |symbols: BTreeSet<String>| -> BTreeSet<String> {
        symbols.iter().map(|symbol| symbol.replace("@@", "@")).collect()
    };
    let (ours, theirs) = (bare(wanted()), bare(exports(&theirs)));
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "the list lacks {missing:?}");
    let newest = theirs.iter().filter_map(|symbol| public_version(symbol)).max().expect("versions");
    assert!(newest >= 14, "{newest}");
    let invented: Vec<_> = ours
        .difference(&theirs)
        .filter(|symbol| public_version(symbol).is_some_and(|version| version <= newest))
        .collect();
    assert!(invented.is_empty(), "the installed library, up to 1.{newest}, lacks {invented:?}");
}

/// Returns the distribution's library if it is rdma-core 44 or newer, by its file name `libibverbs.so.1.14.44.0`.
fn distribution() -> Option<std::path::PathBuf> {
    let folder = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let path = Path::new(&folder).join("libibverbs.so.1").canonicalize().ok()?;
    let name = path.file_name()?.to_string_lossy().into_owned();
    let release: u32 = name.strip_prefix("libibverbs.so.1.")?.split('.').nth(1)?.parse().ok()?;
    (release >= 44).then_some(path)
}

/// Compiles a C program against the installed headers and this library, and runs it.
fn c_program(name: &str, source: &str) -> Option<String> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() || !installed("cc") {
        println!("SKIP {name}: no C compiler, or no <infiniband/verbs.h> (.ci/setup test)");
        return None;
    }
    let place = tempfile::tempdir().unwrap();
    let (file, program) = (place.path().join("test.c"), place.path().join("test"));
    std::fs::write(&file, source).unwrap();
    let library = folder().join("libibverbs.so.1");
    let mut compile = Command::new("cc");
    compile
        .args(["-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(&file)
        .arg(&library)
        .args(["-ldl", "-lpthread"]);
    let compiled = compile.output_in_time().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program)
        .env("LD_LIBRARY_PATH", folder())
        .env_remove("ROXIE_DEV")
        .output_in_time()
        .unwrap();
    let output = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{:?}: {output}{}", ran.status, String::from_utf8_lossy(&ran.stderr));
    Some(output)
}

#[test]
fn versioned_symbols_are_found_as_by_nccl() {
    c_program(
        "versioned_symbols_are_found_as_by_nccl",
        r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    void *library = dlopen("libibverbs.so", RTLD_NOW);
    if (!library)
        return printf("%s\n", dlerror()), 1;
    static const char *const wanted[][2] = {
        { "ibv_get_device_list", "IBVERBS_1.1" }, { "ibv_reg_mr_iova2", "IBVERBS_1.8" },
        { "ibv_reg_dmabuf_mr", "IBVERBS_1.12" }, { "ibv_query_ece", "IBVERBS_1.10" },
        { "ibv_create_qp", "IBVERBS_1.0" }, { "verbs_register_driver_34", "IBVERBS_PRIVATE_34" },
        { "verbs_register_driver_33", "IBVERBS_PRIVATE_33" }, { "ibv_cmd_modify_qp_ex", "IBVERBS_PRIVATE_33" },
        { "ibv_reg_mr_ex", "IBVERBS_1.15" }, { "ibv_query_port_speed", "IBVERBS_1.16" },
        { "verbs_register_driver_65", "IBVERBS_PRIVATE_65" }, { "ibv_cmd_create_cq_ex2", "IBVERBS_PRIVATE_34" },
        { "ibv_wr_opcode_str", "IBVERBS_PRIVATE_34" }, { "ibv_wr_opcode_str", "IBVERBS_PRIVATE_59" },
    };
    for (unsigned i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        if (!dlvsym(library, wanted[i][0], wanted[i][1]))
            return printf("%s@%s\n", wanted[i][0], wanted[i][1]), 1;
    if (dlvsym(library, "ibv_create_qp", "IBVERBS_1.0") == dlvsym(library, "ibv_create_qp", "IBVERBS_1.1"))
        return printf("both versions of ibv_create_qp are the same\n"), 1;
    return dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.1") != NULL;
}
"#,
    );
}

#[test]
fn object_layouts_match_inline_functions() {
    c_program(
        "object_layouts_match_inline_functions",
        r#"
#include <infiniband/verbs.h>
#include <rdma/rdma_netlink.h>
#include <stddef.h>
/* What netlink is answered with. */
_Static_assert(RDMA_NL_NLDEV == 5 && RDMA_NLDEV_CMD_GET == 1 && RDMA_NLDEV_CMD_PORT_GET == 5 && RDMA_NLDEV_CMD_SYS_GET == 6 &&
               RDMA_NLDEV_CMD_RES_GET == 9 && RDMA_NLDEV_CMD_RES_QP_GET == 10 && RDMA_NLDEV_CMD_RES_PD_GET == 14 &&
               RDMA_NLDEV_CMD_RES_CTX_GET == 22 && RDMA_NLDEV_CMD_RES_SRQ_GET == 23, "commands");
_Static_assert(RDMA_NLDEV_ATTR_DEV_NAME == 2 && RDMA_NLDEV_ATTR_SYS_IMAGE_GUID == 7 && RDMA_NLDEV_ATTR_PORT_STATE == 12 &&
               RDMA_NLDEV_ATTR_DEV_NODE_TYPE == 14 && RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR == 18 &&
               RDMA_NLDEV_ATTR_RES_SQ_PSN == 24 && RDMA_NLDEV_ATTR_RES_PID == 28 && RDMA_NLDEV_ATTR_NDEV_INDEX == 50 &&
               RDMA_NLDEV_SYS_ATTR_NETNS_MODE == 66 && RDMA_NLDEV_ATTR_DEV_PROTOCOL == 67 &&
               RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK == 93, "attributes");
/* What bindgen took from the headers, C takes from them too; these are the places that the library counts on. */
_Static_assert(sizeof(struct ibv_context) == 328 && offsetof(struct ibv_context, abi_compat) == 320, "ibv_context");
_Static_assert(sizeof(struct ibv_device) == 664, "ibv_device: what is behind it begins at 664");
_Static_assert(sizeof(struct verbs_context) <= 696, "verbs_context fits the long form");
_Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, sz) == 8, "sz is before the context");
_Static_assert(sizeof(struct ibv_qp_ex) <= 360 && offsetof(struct ibv_qp_ex, qp_base) == 0, "ibv_qp_ex");
_Static_assert(offsetof(struct ibv_cq_ex, async_events_completed) == offsetof(struct ibv_cq, async_events_completed), "ibv_cq_ex");
_Static_assert(sizeof(struct ibv_wc) == 48 && sizeof(struct ibv_send_wr) == 128, "work requests and completions");
#ifdef IBV_DEVICE_CC_DMA_BOUNCE /* rdma-core 65: what the library has written down for itself, and how long objects are at most */
_Static_assert(sizeof(struct verbs_context) == 696 && sizeof(struct ibv_qp_ex) == 360, "the long forms");
_Static_assert(offsetof(struct ibv_qp_ex, wr_flush) == 352, "wr_flush");
_Static_assert(sizeof(struct ibv_mr_init_attr) == 72 && offsetof(struct ibv_mr_init_attr, comp_mask) == 16 &&
               offsetof(struct ibv_mr_init_attr, addr) == 32 && offsetof(struct ibv_mr_init_attr, fd_offset) == 48 &&
               offsetof(struct ibv_mr_init_attr, buf) == 64, "ibv_mr_init_attr");
_Static_assert(IBV_WR_FLUSH == 14 && IBV_QP_EX_WITH_FLUSH == 1 << 11 && IBV_EVENT_DEVICE_SPEED_CHANGE == 20, "numbers");
_Static_assert(IBV_ODP_SUPPORT_FLUSH == 1 << 6 && IBV_ODP_SUPPORT_ATOMIC_WRITE == 1 << 7, "on demand");
_Static_assert(IBV_FLUSH_GLOBAL == 1 && IBV_FLUSH_PERSISTENT == 2 && IBV_FLUSH_RANGE == 0 && IBV_FLUSH_MR == 1, "flushes");
_Static_assert(IBV_REG_MR_MASK_IOVA == 1 && IBV_REG_MR_MASK_ADDR == 2 && IBV_REG_MR_MASK_FD == 4 &&
               IBV_REG_MR_MASK_FD_OFFSET == 8 && IBV_REG_MR_MASK_DMAH == 16 && IBV_REG_MR_MASK_BUF == 32 &&
               IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC == 4, "masks");
#endif
int main(void)
{
    return ibv_fork_init();
}
"#,
    );
}

#[test]
fn missing_device_is_no_error() {
    c_program(
        "missing_device_is_no_error",
        r#"
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#define CHECK(what) do { if (!(what)) return printf("line %d: %s, errno %d\n", __LINE__, #what, errno), 1; } while (0)
int main(void)
{
    int count = -1;
    setenv("ROXIE_DEV", "no-such-interface", 1);
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count == 0 && !list[0]);
    ibv_free_device_list(list);
    CHECK(!ibv_open_device(NULL) && errno == EINVAL);
    CHECK(!ibv_alloc_pd(NULL) && errno == EINVAL);
    CHECK(ibv_close_device(NULL) == EINVAL && ibv_destroy_qp(NULL) == EINVAL && ibv_dereg_mr(NULL) == EINVAL);
    CHECK(ibv_modify_qp(NULL, NULL, 0) == EINVAL);
    CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
    return 0;
}
"#,
    );
}
