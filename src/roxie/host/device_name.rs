//! The name of a device, as `ibv_get_device_name` and sysfs give it.

use std::fmt;
use std::str::FromStr;

/// Longest name, in bytes: `IB_DEVICE_NAME_MAX` of the kernel less the terminating zero.
const LONGEST: usize = 63;

/// Name of a device: `roxie0`, or what a program looks for, such as `mlx5_0`.
///
/// It is a file's name below `/sys/class/infiniband`, and programs match it by its beginning, so it has letters,
/// digits, `_`, `-` and `.` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName(String);

/// A text that is no name of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceNameError {
    /// Empty or too long.
    #[error("a name has 1 to {LONGEST} bytes, this one {0}")]
    Length(usize),
    /// A character that a name cannot have.
    #[error("a name has letters, digits, `_`, `-` and `.`, and none is {0:?}")]
    Character(char),
    /// The name of another file beside it in `/dev/infiniband`.
    #[error("{0} is a file of its own in /dev/infiniband: choose another name, such as mlx5_0")]
    Node(String),
    /// The folder itself, or the one above.
    #[error("`.` and `..` name folders")]
    Folder,
}

impl DeviceName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for DeviceName {
    fn default() -> DeviceName {
        DeviceName("roxie0".into())
    }
}

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<DeviceName, DeviceNameError> {
        if text.is_empty() || text.len() > LONGEST {
            return Err(DeviceNameError::Length(text.len()));
        }
        if let Some(other) = text.chars().find(|c| !c.is_ascii_alphanumeric() && !"_-.".contains(*c)) {
            return Err(DeviceNameError::Character(other));
        }
        if [".", ".."].contains(&text) {
            return Err(DeviceNameError::Folder);
        }
        let is_numbered = |prefix: &str| {
            text.strip_prefix(prefix).is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        };
        if text == "rdma_cm" || ["uverbs", "umad", "issm"].into_iter().any(is_numbered) {
            return Err(DeviceNameError::Node(text.into()));
        }
        Ok(DeviceName(text.into()))
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_one_for_a_file() {
        for good in ["roxie0", "mlx5_0", "rxe0", "siw0", "rocep1s0f0", "mlx5-bond.1", &"x".repeat(63)] {
            assert_eq!(good.parse::<DeviceName>().map(|name| name.to_string()), Ok(good.to_owned()));
        }
        let refused = |text: &str| text.parse::<DeviceName>().unwrap_err();
        assert_eq!(
            (refused(""), refused(&"x".repeat(64))),
            (DeviceNameError::Length(0), DeviceNameError::Length(64))
        );
        for (text, character) in
            [("../mlx5_0", '/'), ("mlx5 0", ' '), ("mlx5\n0", '\n'), ("größe", 'ö'), ("a\0b", '\0')]
        {
            assert_eq!(refused(text), DeviceNameError::Character(character));
        }
        for node in ["uverbs0", "uverbs17", "rdma_cm", "umad0"] {
            assert_eq!(refused(node), DeviceNameError::Node(node.into()));
        }
        assert_eq!((refused("."), refused("..")), (DeviceNameError::Folder, DeviceNameError::Folder));
    }
}
