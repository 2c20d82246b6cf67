//! A NIC in another process (`roxie nic`), as an adapter is to the programs of its host: commands are messages, queues
//! lie in memory that both processes map, and the NIC accesses registered memory by itself.

mod arenas;
mod attachment;
mod client_form;
mod error;
pub mod link;
pub mod message;
mod polling;
mod trust;

pub use attachment::{Attachment, device_name_of, name_of, nic_of, trusted_nic};
pub use error::AttachError;
pub use trust::TRUSTED_NIC;
