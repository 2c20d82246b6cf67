//! The list of devices: one, `roxie0`, on the interface that the environment names.
//!
//! `roxie run` sets the environment: `ROXIE_DEV` the interface, `ROXIE_PORT` (`xdp` or `udp`), `ROXIE_CORES` (the core that the
//! engine's thread is pinned to; without it the program's own polling turns the NIC), `ROXIE_FAULT`, `ROXIE_CAPTURE`, `ROXIE_ESTATE`
//! (where the launcher finds the connections of a program that has ended), `ROXIE_EVENTS` (and what it was refused), `ROXIE_CC`, `ROXIE_ECN`,
//! `ROXIE_QOS`, `ROXIE_SPEED` and `ROXIE_TOS` (congestion control and traffic classes).

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Display;
use std::path::PathBuf;
use std::ptr;
use std::str::FromStr;
use std::sync::LazyLock;

use roxie::engine::Drive;
use roxie::host::{Estate, PortPlan};
use roxie::netdev::{Interface, interface_names};
use roxie::nic::CongestionConfig;
use roxie::port::fault::FaultConfig;
use roxie::time::Nanos;

use crate::abi::{ibv_context, ibv_device, ibv_node_type, ibv_transport_type};
use crate::cancellation::Uncancelled;
use crate::context;
use crate::netlink;
use crate::nic::port_plan;
use crate::object::{pointer, put, set_errno};
use crate::report;

/// Its name.
pub(crate) const NAME: &str = "roxie0";
/// The name of its node in `/dev/infiniband`.
const DEV_NAME: &str = "uverbs0";
/// How long the engine's own thread spins before it sleeps.
const SPIN: Nanos = Nanos::from_micros(50);

/// What the environment says.
#[derive(Debug)]
pub(crate) struct Settings {
    interface: Option<String>,
    pub(crate) port: PortPlan,
    pub(crate) drive: Drive,
    pub(crate) fault: Option<FaultConfig>,
    pub(crate) capture: Option<PathBuf>,
    pub(crate) congestion: CongestionConfig,
    /// Where it is read from how QPs react, now and later.
    pub(crate) control_file: Option<PathBuf>,
    /// The type of service of connections that ask for none.
    pub(crate) service_type: u8,
    /// Where the launcher finds what connections of this process leave.
    pub(crate) estate: Option<Estate>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What a variable says; one that says nonsense is told of, and counts as if it were not there.
fn parsed<T: FromStr<Err: Display>>(name: &str, instead: &str) -> Option<T> {
    let text = variable(name)?;
    let told = |error| report::say(name, format_args!("{text:?}: {error}; taken as {instead}"));
    text.parse().map_err(told).ok()
}

/// Read once: a program does not change its device.
pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
        let port = variable("ROXIE_PORT").unwrap_or_default();
        let port = port_plan(&port).unwrap_or_else(|| {
            report::say("ROXIE_PORT", format_args!("{port:?} is neither xdp nor udp: taken as auto"));
            PortPlan::Best
        });
        let drive = variable("ROXIE_CORES").map_or_else(Drive::default, |cores| {
            let core = cores.split(['-', ',']).next().and_then(|first| first.trim().parse().ok());
            if core.is_none() {
                report::say(
                    "ROXIE_CORES",
                    format_args!("{cores:?} begins with no number: the thread runs on any core"),
                );
            }
            Drive::Thread { core, spin: SPIN }
        });
        let fault = parsed("ROXIE_FAULT", "no faults");
        let capture = variable("ROXIE_CAPTURE").map(PathBuf::from);
        let control_file = variable("ROXIE_CC").and_then(|text| Some(PathBuf::from(text.strip_prefix('@')?)));
        let control = if control_file.is_none() { parsed("ROXIE_CC", "none") } else { None };
        let congestion = CongestionConfig {
            control: control.unwrap_or_default(),
            ecn: parsed("ROXIE_ECN", "as congestion control wants it"),
            classes: parsed("ROXIE_QOS", "one class").unwrap_or_default(),
            line_rate: parsed("ROXIE_SPEED", "what the interface says"),
        };
        let service_type = parsed("ROXIE_TOS", "0").unwrap_or_default();
        // A launcher that has ended, or is another user's, will not look.
        let estate = variable("ROXIE_ESTATE").and_then(|path| Estate::open(path.as_ref()).ok());
        let interface = variable("ROXIE_DEV");
        Settings { interface, port, drive, fault, capture, congestion, control_file, service_type, estate }
    });
    &SETTINGS
}

/// The interface to stand on: the one that was named, or the only one besides loopback that has an address.
pub(crate) fn interface(settings: &Settings) -> Option<String> {
    let usable = |name: &str| match Interface::by_name(name) {
        Ok(interface) if interface.addresses.is_empty() => {
            Err(format!("{name} has no IP address: `ip addr add 192.0.2.1/24 dev {name}` gives it one"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    if let Some(name) = &settings.interface {
        return match usable(name) {
            Ok(()) => Some(name.clone()),
            Err(why) => {
                report::say("no device", why);
                None
            }
        };
    }
    let mut names: Vec<_> =
        interface_names().into_iter().filter(|name| name != "lo" && usable(name).is_ok()).collect();
    if names.len() != 1 {
        let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        report::info(
            "no device",
            format_args!("which interface? Name one in ROXIE_DEV; with an address there are: {found}"),
        );
        return None;
    }
    names.pop()
}

/// The index of the interface to stand on; 0 if there is none.
pub(crate) fn interface_index() -> u32 {
    let found = interface(settings()).and_then(|name| Interface::by_name(&name).ok());
    found.map_or(0, |interface| interface.index)
}

/// As the library lays it out: some programs look at the word behind the public part (`is_mlx5_dev`), which must lead somewhere.
#[repr(C)]
struct VerbsDevice {
    device: ibv_device,
    operations: *const Operations,
    rest: [u64; 16],
}

/// `verbs_device_ops`: nothing in it is ours to be compared with a provider's.
type Operations = [u64; 32];
static OPERATIONS: Operations = [0; 32];

/// The one device, for as long as the process lives: lists come and go, the device in them stays the same.
struct TheDevice(*mut VerbsDevice);

// SAFETY: written before it is shared, and only read after.
unsafe impl Send for TheDevice {}
// SAFETY: as above.
unsafe impl Sync for TheDevice {}

pub(crate) fn the_device() -> *mut ibv_device {
    static DEVICE: LazyLock<TheDevice> = LazyLock::new(|| {
        let mut device = ibv_device {
            node_type: ibv_node_type::IBV_NODE_CA,
            transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
            ..ibv_device::default()
        };
        fill(&mut device.name, NAME);
        fill(&mut device.dev_name, DEV_NAME);
        fill(&mut device.dev_path, &format!("/sys/class/infiniband_verbs/{DEV_NAME}"));
        fill(&mut device.ibdev_path, &format!("/sys/class/infiniband/{NAME}"));
        TheDevice(Box::into_raw(Box::new(VerbsDevice { device, operations: &OPERATIONS, rest: [0; 16] })))
    });
    DEVICE.0.cast()
}

/// Copies text to an array of C, cut to fit, with a zero behind it.
pub(crate) fn fill(to: &mut [c_char], text: &str) {
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// The devices that there are, with a null pointer behind them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let _uncancelled = Uncancelled::new();
    let there = interface(settings()).is_some();
    let list = if there { vec![the_device(), ptr::null_mut()] } else { vec![ptr::null_mut()] };
    // SAFETY: the contract: a place for the number, or null.
    unsafe { put(num_devices, c_int::from(there)) };
    // Two words either way, so that the one who frees it knows its size.
    let mut list = list;
    list.resize(2, ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// Frees a list; the devices stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let _uncancelled = Uncancelled::new();
    if !list.is_null() {
        // SAFETY: `ibv_get_device_list` made it of two words.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(list, 2)) });
    }
}

/// `roxie0`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the contract: a device of the list; its name is never written again.
    unsafe { (&raw const (*device).name).cast() }
}

/// The device's index among those that netlink tells of; -1 where the kernel tells, to whom ours is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    if netlink::kernel_has_it() { -1 } else { 0 }
}

/// Its GUID in network order: the interface's station address, widened as EUI-64.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    node_guid()
}

/// As [`ibv_get_device_guid`].
pub(crate) fn node_guid() -> u64 {
    let found = interface(settings()).and_then(|name| Interface::by_name(&name).ok());
    u64::from_ne_bytes(guid(found.map_or([0; 6], |interface| interface.mac)))
}

/// EUI-64 of a station address.
pub(crate) fn guid(mac: [u8; 6]) -> [u8; 8] {
    [mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]]
}

/// Opens the device. The interface is claimed later, with the first queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let _uncancelled = Uncancelled::new();
    pointer(if device.is_null() { Err(libc::EINVAL) } else { context::open(device) })
}

/// Where sysfs is mounted.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    let _uncancelled = Uncancelled::new();
    c"/sys".as_ptr()
}

/// Reads a file below a directory, without its last line feed; returns its length or -1.
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
/// `buffer` has `size` bytes.
unsafe fn copy_out(bytes: &[u8], buffer: *mut c_char, size: usize) -> c_int {
    if size == 0 {
        return 0;
    }
    let length = bytes.len().min(size - 1);
    // SAFETY: `length` is below both lengths, and there is room for the zero.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, length);
        *buffer.add(length) = 0;
    }
    length as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_the_station_address_widened() {
        assert_eq!(guid([2, 0, 0, 0x11, 0x22, 0x33]), [0, 0, 0, 0xff, 0xfe, 0x11, 0x22, 0x33]);
    }

    #[test]
    fn text_is_cut_to_fit_and_ends_with_a_zero() {
        let mut array = [1 as c_char; 4];
        fill(&mut array, "abcdef");
        assert_eq!(array[..3], [b'a' as c_char, b'b' as c_char, b'c' as c_char]);
    }
}
