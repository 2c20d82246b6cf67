//! serde for byte arrays of any length; serde itself supports up to 32.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(super) fn serialize<S: Serializer, const N: usize>(bytes: &[u8; N], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(bytes)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<[u8; N], D::Error> {
    let bytes = <&[u8]>::deserialize(from)?;
    bytes.try_into().map_err(|_| D::Error::invalid_length(bytes.len(), &"the length of the array"))
}
