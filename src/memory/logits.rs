//! The rows of logits that exist at a time.

/// Bounds of the bytes of a chunk of logits, unless one row alone is larger: more rows keep more of the device busy, and long
/// passes have room for them.
const HEAD_BYTES: [u64; 2] = [128 << 20, 256 << 20];
/// Bytes of logits per loss token, between these bounds.
const HEAD_BYTES_PER_TOKEN: u64 = 32 << 10;

/// Rows of `vocab` logits, of `loss_tokens` in all; `tiles` where products run on 16×16 matrices, which compute 128 rows at a time.
pub fn rows(vocab: usize, loss_tokens: usize, tiles: bool) -> usize {
    let row_bytes = (vocab.next_multiple_of(4) * 4) as u64;
    let bytes = (loss_tokens as u64 * HEAD_BYTES_PER_TOKEN).clamp(HEAD_BYTES[0], HEAD_BYTES[1]);
    let rows = ((bytes / row_bytes) as usize).clamp(1, 65_535);
    let whole = if tiles && rows > 128 { rows / 128 * 128 } else { rows };
    whole.min(loss_tokens.max(1))
}
