//! XRC domains: extended reliable connections, whose requests name shared receive queues.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::stat::fstat;

use super::device::Device;
use super::error::{DeviceError, unexpected};
use roxie_nic::nic::{Answer, Command};
use roxie_nic::verbs::{FileId, OpenXrcd, XrcdId};

#[derive(Debug)]
pub(super) struct XrcdInner {
    pub(super) device: Device,
    pub(super) id: XrcdId,
}

impl Drop for XrcdInner {
    fn drop(&mut self) {
        let _ = self.device.execute(Command::CloseXrcd(self.id));
    }
}

/// An XRC domain, which joins targets with shared receive queues. A clone is another handle to the same domain.
#[derive(Clone, Debug)]
pub struct XrcDomain {
    pub(super) inner: Arc<XrcdInner>,
}

impl Device {
    /// Opens an XRC domain that only this process uses.
    ///
    /// # Errors
    /// If the device has no room for another domain.
    pub fn open_xrcd(&self) -> Result<XrcDomain, DeviceError> {
        self.xrcd(OpenXrcd::default(), None)
    }

    /// Opens the XRC domain of a file (`ibv_open_xrcd`). `create`: makes the domain if needed; `exclusive`: fails if it
    /// exists.
    ///
    /// # Errors
    /// If the domain does not exist without `create`, exists with `exclusive`, or the device has no room for another.
    pub fn open_xrcd_of(
        &self,
        file: impl AsFd,
        create: bool,
        exclusive: bool,
    ) -> Result<XrcDomain, DeviceError> {
        let stat = fstat(&file)
            .map_err(|e| DeviceError::System { what: "the file of an XRC domain", source: e.into() })?;
        let id = Some(FileId { device: stat.st_dev, inode: stat.st_ino });
        self.xrcd(OpenXrcd { file: id, create, exclusive }, Some(file.as_fd()))
    }

    fn xrcd(&self, open: OpenXrcd, file: Option<BorrowedFd<'_>>) -> Result<XrcDomain, DeviceError> {
        match self.inner.adapter.open_xrcd(open, file)? {
            Answer::Xrcd(id) => Ok(XrcDomain { inner: Arc::new(XrcdInner { device: self.clone(), id }) }),
            other => unexpected(&other),
        }
    }
}
