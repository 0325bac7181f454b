//! The file of a teacher's log-probabilities.

use rullama_train::data::teacher::TaughtRow;
use rullama_train::run::distill::{Blocks, Header};
use rullama_train::train::TaughtToken;
use sha2::{Digest, Sha256};

use super::{Outcome, accepted_if};

/// Bytes of a header before its digest.
const FIELDS: usize = 8 + 64 + 16;
/// Bytes of a digest.
const DIGEST: usize = 32;

fn header(whole: bool) -> Header {
    Header { key: "5".repeat(64), top: 3, whole, rows: 5 }
}

/// A file of two blocks.
fn file(whole: bool) -> Vec<u8> {
    let header = header(whole);
    let token = |n: u32| {
        let tokens = vec![(n % 3, -0.25), ((n + 1) % 3, -1.75), ((n + 2) % 3, -3.5)];
        TaughtToken { row: TaughtRow { tokens, rest: (!whole).then_some(-4.0) }, loss: n as f32 }
    };
    let (mut bytes, mut digest) = (header.to_bytes(), header.digest());
    for rows in [0..3, 3..5] {
        let block = header.block(&rows.map(token).collect::<Vec<_>>(), &digest);
        digest = block[block.len() - DIGEST..].try_into().expect("a digest");
        bytes.extend(block);
    }
    bytes
}

pub fn files() -> Vec<Vec<u8>> {
    vec![file(false), file(true)]
}

/// Files without digests, which the target computes.
pub fn contents() -> Vec<Vec<u8>> {
    let parts = |whole| {
        let (bytes, row) = (file(whole), header(whole).row_bytes());
        let first = FIELDS + DIGEST;
        let second = first + 4 + 3 * row + DIGEST;
        [&bytes[..FIELDS], &bytes[first..second - DIGEST], &bytes[second..bytes.len() - DIGEST]].concat()
    };
    vec![parts(false), parts(true)]
}

/// The whole blocks of a file, or why there are none.
fn blocks(input: &[u8]) -> Result<Blocks, Outcome> {
    let header = Header::read(input).ok_or(Outcome::Refused("no header".into()))?;
    let start = header.to_bytes();
    if !input.starts_with(&start) {
        return Err(Outcome::Wrong("other bytes than those of the header that was read".into()));
    }
    Blocks::read(header, &mut &input[start.len()..]).map_err(|error| Outcome::Wrong(error.to_string()))
}

/// A damaged file is never complete.
pub fn unchanged(input: &[u8]) -> Outcome {
    let found = match blocks(input) {
        Ok(found) => found,
        Err(outcome) => return outcome,
    };
    if !found.is_complete() || found.end != input.len() as u64 {
        return Outcome::Refused("damaged".into());
    }
    accepted_if(files().iter().any(|sound| sound == input), || {
        "other bytes than those that were written".into()
    })
}

/// A file with right digests over any contents: its rows can be read.
pub fn with_digests(input: &[u8]) -> Outcome {
    let Some((fields, mut rest)) = input.split_at_checked(FIELDS) else {
        return Outcome::Refused("too short".into());
    };
    let mut digest: [u8; DIGEST] = Sha256::digest(fields).into();
    let mut bytes = [fields, &digest[..]].concat();
    let Some(header) = Header::read(&bytes) else { return Outcome::Refused("no header".into()) };
    while let Some(count) = rest.first_chunk::<4>() {
        let size = (u32::from_le_bytes(*count) as usize).saturating_mul(header.row_bytes()).saturating_add(4);
        let (block, others) = rest.split_at(size.min(rest.len()));
        rest = others;
        digest = Sha256::new().chain_update(digest).chain_update(block).finalize().into();
        bytes.extend(block);
        bytes.extend(digest);
    }
    match blocks(&bytes) {
        Ok(found) => {
            let row = |row: usize| {
                let at = found.place(row) as usize;
                header.row(&bytes[at..][..header.row_bytes()])
            };
            let sound = (0..found.rows()).map(row).all(|token| token.row.tokens.len() == header.top);
            match found.is_complete() {
                true => accepted_if(sound, || "rows of another length".into()),
                false => Outcome::Refused("not complete".into()),
            }
        }
        Err(outcome) => outcome,
    }
}
