//! Chooses a command's interface, and explains what to do without one.

use roxie::host::OpenError;
use roxie::netdev::{Interface, interface_names};
use roxie_report::failure::Failure;

/// A command's alternative to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Run on `--port memory`.
    Memory,
    /// Fail.
    Nothing,
}

/// Returns the named interface, or the only candidate. Fails if it has no address, or is down.
pub fn usable_interface(name: Option<&str>, without: Without) -> Result<Interface, Failure> {
    let interface = match name {
        Some(name) => Interface::by_name(name).map_err(|e| Failure::Device(e.to_string()))?,
        None => only_interface(without)?,
    };
    let Interface { name, up, addresses, .. } = &interface;
    // The loopback interface has no addresses while it is down.
    if addresses.is_empty() && (*up || name != "lo") {
        let mut said = OpenError::NoAddress(name.clone()).to_string();
        if !up {
            said += &format!("; and it is down: `ip link set dev {name} up`");
        }
        return Err(Failure::Device(said));
    }
    check_up(&interface)?;
    Ok(interface)
}

pub(super) fn check_up(interface: &Interface) -> Result<(), Failure> {
    if interface.up {
        return Ok(());
    }
    let name = &interface.name;
    Err(Failure::Device(format!("{name} is down: `ip link set dev {name} up` first")))
}

fn only_interface(without: Without) -> Result<Interface, Failure> {
    let all: Vec<Interface> =
        interface_names().iter().filter_map(|name| Interface::by_name(name).ok()).collect();
    let (loopback, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|interface| interface.name == "lo");
    let names: Vec<_> = others.iter().map(|interface| interface.name.clone()).collect();
    let mut usable: Vec<Interface> =
        others.into_iter().filter(|interface| !interface.addresses.is_empty()).collect();
    match usable.len() {
        1 => Ok(usable.remove(0)),
        0 => Err(Failure::Device(no_interface(&names, loopback.first(), without))),
        _ => {
            let list = |i: &Interface| {
                let addresses: Vec<_> = i.addresses.iter().map(ToString::to_string).collect();
                format!("{} ({})", i.name, addresses.join(", "))
            };
            Err(Failure::Usage(format!(
                "which interface? Name one with --dev: {}",
                usable.iter().map(list).collect::<Vec<_>>().join("; ")
            )))
        }
    }
}

/// Says what to do if no interface besides loopback has an address.
fn no_interface(others: &[String], loopback: Option<&Interface>, without: Without) -> String {
    let mut said = match others {
        [] => {
            "there is no interface besides loopback: connect this host, or container, to a network".to_owned()
        }
        [first, ..] => format!(
            "no interface besides loopback has an address: give one to {}, for example `ip addr add 192.0.2.1/24 dev {first}`",
            others.join(" or ")
        ),
    };
    if loopback.is_some_and(|lo| lo.up && !lo.addresses.is_empty()) {
        said += "; or `--dev lo`, where a program can only talk to itself";
    }
    if without == Without::Memory {
        said += "; or `--port memory`, which needs none";
    }
    said
}
