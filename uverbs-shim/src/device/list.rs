//! The device list: one device on the interface that the environment names ([`crate::device::settings`]).

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::ptr;
use std::sync::LazyLock;

use crate::abi::{ibv_device, ibv_node_type, ibv_transport_type};
use crate::base::cancellation::Uncancelled;
use crate::base::object::{fill, put, set_errno};
use crate::device::settings::{interface, node_guid};
use crate::netlink;
// Used by `ucma`.
use crate::device::settings::settings;

/// Name of the device's node in `/dev/infiniband`.
const DEV_NAME: &str = "uverbs0";
/// rdma-core's layout of a device. Some programs dereference the word after the public part (`is_mlx5_dev`), so it must
/// be a valid pointer.
#[repr(C)]
struct VerbsDevice {
    device: ibv_device,
    operations: *const Operations,
    rest: [u64; 16],
}

/// `verbs_device_ops`. Empty: it must not be equal to any provider's.
type Operations = [u64; 32];
static OPERATIONS: Operations = [0; 32];

/// The device, which lives as long as the process. Lists are allocated and freed; the device in them stays the same.
struct TheDevice(*mut VerbsDevice);

// SAFETY: written before it is shared, and only read afterwards.
unsafe impl Send for TheDevice {}
// SAFETY: written before it is shared, and only read afterwards, which any number of threads may do concurrently.
unsafe impl Sync for TheDevice {}

pub(crate) fn the_device() -> *mut ibv_device {
    static DEVICE: LazyLock<TheDevice> = LazyLock::new(|| {
        let mut device = ibv_device {
            node_type: ibv_node_type::IBV_NODE_CA,
            transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
            ..ibv_device::default()
        };
        let name = settings().name.as_str();
        fill(&mut device.name, name);
        fill(&mut device.dev_name, DEV_NAME);
        fill(&mut device.dev_path, &format!("/sys/class/infiniband_verbs/{DEV_NAME}"));
        fill(&mut device.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        TheDevice(Box::into_raw(Box::new(VerbsDevice { device, operations: &OPERATIONS, rest: [0; 16] })))
    });
    DEVICE.0.cast()
}

/// Returns the device list, terminated by a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let _uncancelled = Uncancelled::new();
    let there = interface(settings()).is_some();
    let list = if there { vec![the_device(), ptr::null_mut()] } else { vec![ptr::null_mut()] };
    // SAFETY: the contract: a place for the number, or null.
    unsafe { put(num_devices, c_int::from(there)) };
    // Two words in both cases, so that `ibv_free_device_list` knows the size.
    let mut list = list;
    list.resize(2, ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// Frees a device list. Devices stay valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let _uncancelled = Uncancelled::new();
    if !list.is_null() {
        // SAFETY: `ibv_get_device_list` allocated it with two words.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, 2)) });
    }
}

/// Returns the device's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the contract: a device of the list; its name is never written again.
    unsafe { (&raw const (*device).name).cast() }
}

/// Returns the device's netlink index; -1 if the kernel serves this netlink family, because it does not know the
/// device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    if netlink::kernel_supports_rdma() { -1 } else { 0 }
}

/// Returns the node GUID in network order: the interface's MAC address, extended to EUI-64.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    node_guid()
}

/// Returns the mount point of sysfs.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    let _uncancelled = Uncancelled::new();
    c"/sys".as_ptr()
}

/// Reads a file below a directory, without the final line feed. Returns its length, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    let _uncancelled = Uncancelled::new();
    // SAFETY: the contract: two strings.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let path = PathBuf::from(format!("{}/{}", dir.to_string_lossy(), file.to_string_lossy()));
    match std::fs::read(&path) {
        Ok(mut bytes) => {
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            // SAFETY: the contract: `size` bytes of room.
            unsafe { copy_out(&bytes, buffer, size) }
        }
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// # Safety
/// `buffer` has room for `size` bytes.
unsafe fn copy_out(bytes: &[u8], buffer: *mut c_char, size: usize) -> c_int {
    if size == 0 {
        return 0;
    }
    let length = bytes.len().min(size - 1);
    // SAFETY: `length` is below both sizes, so there is room for the terminating zero.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, length);
        *buffer.add(length) = 0;
    }
    length as c_int
}
