//! The probabilities of given tokens after each token of a pass, with the likeliest tokens beside them.

use super::{Decoder, Workspace};
use crate::gpu::{GpuError, Recorder};
use crate::ops::argmax::top::{self, RowTop};
use crate::ops::{Rows, cross_entropy, linear};

/// Bytes that the logits of a chunk of rows may take.
const LOGIT_BYTES: usize = 32 << 20;

/// The buffers that only [`Decoder::scores`] needs.
pub struct Scoring {
    rows: usize,
    logits: Rows,          // [rows, V]
    targets: wgpu::Buffer, // [chunk]
    results: wgpu::Buffer, // [chunk, words]
    top: usize,
}

impl Scoring {
    /// Buffers for the passes of `w`, with up to `top` of the likeliest tokens.
    pub fn new(w: &Workspace, top: usize) -> Result<Scoring, GpuError> {
        Scoring::within(w, top, LOGIT_BYTES)
    }

    /// Buffers whose logits take at most `bytes`, or those of 64 rows.
    pub fn within(w: &Workspace, top: usize, bytes: usize) -> Result<Scoring, GpuError> {
        let (gpu, vocab, chunk) = (w.gpu, w.vocab(), w.lengths.chunk);
        // Views of the rows begin at multiples of 64.
        let rows = (bytes / (4 * vocab.max(1)) / 64 * 64).max(64).min(chunk);
        Ok(Scoring {
            rows,
            logits: Rows::new(gpu, "logits to score", rows, vocab)?,
            targets: gpu.buffer("tokens to score", (chunk * 4) as u64)?,
            results: gpu.buffer("scores", (chunk * top::words(top) * 4) as u64)?,
            top,
        })
    }
}

impl<'a> Decoder<'a> {
    /// Appends 1 to `chunk` tokens, and reads for each of them what the logits after it, with the softcap applied, say of the target
    /// beside it, with `top` of the likeliest tokens. Ids from `vocab` on belong to no token.
    pub async fn scores(
        &mut self,
        ids: &[u32],
        targets: &[u32],
        scoring: &Scoring,
        vocab: usize,
        top: usize,
    ) -> Result<Vec<RowTop>, GpuError> {
        assert_eq!(ids.len(), targets.len(), "a target for every token");
        assert!(top <= scoring.top, "the results have places for all tokens");
        let w = self.w;
        let rows = self.start(ids).await?;
        w.gpu.write(&scoring.targets, targets);
        let mut rec = Recorder::new(w.gpu);
        self.pass_fetching(&mut rec, rows).await?;
        for first in (0..rows).step_by(scoring.rows) {
            let count = scoring.rows.min(rows - first);
            self.score_rows(&mut rec, scoring, first, count, vocab, top);
        }
        rec.submit()?;
        let words = w.gpu.read::<u32>(&scoring.results, rows * top::words(top)).await?;
        Ok(top::read(&words, top))
    }

    /// Compiles the kernels of [`Decoder::scores`] that [`Decoder::compile`] leaves out. Returns how many were new.
    pub fn compile_scores(&self, scoring: &Scoring) -> Result<usize, GpuError> {
        let mut rec = Recorder::ahead(self.w.gpu);
        // Kernels differ by the number of tokens, rounded up to a power of two.
        let lengths =
            std::iter::successors(Some(1), |rows| Some(2 * rows)).take_while(|&rows| rows <= scoring.rows);
        lengths.for_each(|rows| self.score_rows(&mut rec, scoring, 0, rows, self.w.vocab(), scoring.top));
        rec.compile()
    }

    /// Scores `count` rows of the pass from `first` on.
    fn score_rows(
        &self,
        rec: &mut Recorder<'a>,
        scoring: &Scoring,
        first: usize,
        count: usize,
        vocab: usize,
        top: usize,
    ) {
        self.logits_of_rows(rec, &scoring.logits, first, [count; 2]);
        top::forward(rec, &scoring.logits, vocab, &scoring.targets, &scoring.results, first, top, count);
    }

    /// The logits of `count` rows of the pass from `first` on, with the softcap applied. They are products of `products` rows, as many or
    /// more.
    pub(super) fn logits_of_rows(
        &self,
        rec: &mut Recorder<'a>,
        logits: &Rows,
        first: usize,
        [count, products]: [usize; 2],
    ) {
        let (w, model) = (self.w, self.w.model);
        let x = w.normed.below(first).into();
        let (y, head) = (logits.clone().into(), model.head_matrix());
        linear::frozen(&mut self.over(rec, products, false), &y, &x, head, 1.0);
        if let Some(softcap) = model.config().softcap {
            cross_entropy::cap(rec, logits, model.config().vocab, softcap, count);
        }
    }
}
