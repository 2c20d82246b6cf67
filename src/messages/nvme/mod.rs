//! NVMe over Fabrics over RDMA.
//!
//! Read [`command`] first. Sources: NVMe base specification 1.4, NVMe over Fabrics 1.1, NVMe RDMA transport
//! specification 1.0. All fields are little-endian.

mod bytes;
pub mod cm;
pub mod command;
pub mod connect;
pub mod discovery;
pub mod identify;
pub mod response;
pub mod sgl;
pub mod status;

pub use command::Command;
pub use response::Response;
pub use sgl::Sgl;
pub use status::Status;
