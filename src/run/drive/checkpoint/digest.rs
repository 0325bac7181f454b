//! The digest in the file of a trainer's state, over everything else in it.

use super::super::identity;
use super::{FORMAT, TrainerState};

/// The key of the state's own digest.
pub const DIGEST: &str = "sha256";

/// The state as the text of its file, with the digest of everything else in it.
pub fn sealed(state: &TrainerState) -> Vec<u8> {
    let mut state = serde_json::to_value(state).expect("plain values under text keys");
    state[DIGEST] = digest(&state).into();
    serde_json::to_vec_pretty(&state).expect("plain values under text keys")
}

/// The state in the text of its file. Fails if it is not what [`sealed`] wrote.
pub fn unsealed(text: &[u8]) -> Result<serde_json::Value, String> {
    let mut state: serde_json::Value = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    // Another format may be sealed in another way.
    if state["format"].as_u64().is_some_and(|format| format != FORMAT) {
        return Ok(state);
    }
    let found = state.as_object_mut().and_then(|state| state.shift_remove(DIGEST)).unwrap_or_default();
    match found == digest(&state) {
        true => Ok(state),
        false => Err("it is not what was written: its SHA-256 differs".into()),
    }
}

/// The SHA-256 of a value as compact JSON.
pub fn digest(value: &serde_json::Value) -> String {
    identity::sha256(value.to_string().as_bytes())
}
