//! The file of compiled pipelines: `MAGIC`, the digest of driver and shaders, the SHA-256 of the data, and the driver's data.

use rullama_train::gpu::PipelinesKey;
use sha2::{Digest, Sha256};

const MAGIC: &[u8; 8] = b"RLPIPES1";

/// The file for the driver's `data`.
pub fn encode(data: &[u8], key: &PipelinesKey) -> Vec<u8> {
    [&MAGIC[..], &key.digest, &Sha256::digest(data), data].concat()
}

/// The driver's data in a file, or what is wrong with the file.
pub fn decode<'a>(bytes: &'a [u8], key: &PipelinesKey) -> Result<&'a [u8], String> {
    let parts = bytes.strip_prefix(MAGIC).and_then(|rest| {
        let (digest, rest) = rest.split_at_checked(32)?;
        let (sum, data) = rest.split_at_checked(32)?;
        (Sha256::digest(data)[..] == *sum).then_some((digest, data))
    });
    match parts {
        None => Err("is damaged".into()),
        Some((digest, _)) if digest != key.digest => {
            Err("was written by another driver or another version of this program".into())
        }
        Some((_, data)) => Ok(data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_intact_files_of_the_same_driver_and_shaders_are_used() {
        let key = PipelinesKey { device: "a GPU".into(), digest: [7; 32] };
        let file = encode(b"data of the driver", &key);
        assert_eq!(decode(&file, &key), Ok(&b"data of the driver"[..]));
        for at in [0, 45, file.len() - 1] {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged, &key), Err("is damaged".into()), "byte {at}");
        }
        for end in [0, 8, 40, 71, file.len() - 1] {
            assert!(decode(&file[..end], &key).is_err(), "cut after {end} bytes");
        }
        let other = PipelinesKey { digest: [8; 32], ..key };
        assert!(decode(&file, &other).is_err_and(|problem| problem.contains("another driver")));
    }
}
