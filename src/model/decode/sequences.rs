//! Several sequences over one workspace: each reads its prompt alone, then a step adds one token to each.
//!
//! A row of a step has the same kernels and the same sums whatever the number of rows, so that a sequence does not depend on those beside
//! it: products take the training forward's kernels over [`STEP`] rows, which cost about as much as one row where weights are what is
//! read. On a software renderer, whose sums do not depend on the number of rows, they take a power of two.

use super::step::{STEP, Step};
use super::{Decoder, Place, Workspace};
use crate::adapter::lora::Adapter;
use crate::gpu::{Gpu, GpuError, Recorder, Recording};
use crate::ops::cached_heads::{NO_SEQUENCE, copy};
use crate::ops::categorical::{Draw, Drawn};

/// Sequences with one adapter.
pub struct Sequences<'a> {
    decoder: Decoder<'a>,
    lens: Vec<usize>,
    /// Most tokens that each has held since it was last empty.
    seen: Vec<usize>,
    /// The commands of a step, by the logarithm of its rows.
    recorded: Vec<Option<Recording>>,
}

impl<'a> Sequences<'a> {
    /// Creates the empty sequences of a workspace that is for several. `adapter` is applied unmerged.
    pub fn new(w: &'a Workspace<'a>, adapter: Option<&Adapter>) -> Result<Sequences<'a>, GpuError> {
        let count = w.step().count;
        let decoder = Decoder::of(w, adapter, Some(count))?;
        let recorded = (0..=STEP.ilog2()).map(|_| None).collect();
        Ok(Sequences { decoder, lens: vec![0; count], seen: vec![0; count], recorded })
    }

    /// Compiles the kernels of prompts and steps, so that no sequence waits for them. Returns how many were new.
    pub fn compile(&mut self) -> Result<usize, GpuError> {
        let w = self.decoder.w;
        self.decoder.place = Place::One(0);
        let mut new = self.decoder.compile()?;
        let most = self.count().next_power_of_two();
        for live in (0..=most.ilog2()).map(|log| 1 << log) {
            let mut rec = Recorder::ahead(w.gpu);
            self.decoder.place = Place::Each(live);
            let rows = rows_of(w.gpu, live);
            self.decoder.pass(&mut rec, rows);
            self.draw(&mut rec, [live, rows], w.vocab());
            new += rec.compile()?;
        }
        Ok(new)
    }

    /// Number of sequences.
    pub fn count(&self) -> usize {
        self.lens.len()
    }

    /// Tokens of sequence `of`.
    pub fn len(&self, of: usize) -> usize {
        self.lens[of]
    }

    /// Whether sequence `of` is empty.
    pub fn is_empty(&self, of: usize) -> bool {
        self.lens[of] == 0
    }

    /// Bytes of the adapter, the key-value caches and the states of delta nets and short convolutions.
    pub fn bytes(&self) -> u64 {
        self.decoder.bytes()
    }

    /// Empties sequence `of`.
    pub fn clear(&mut self, of: usize) {
        (self.lens[of], self.seen[of]) = (0, 0);
    }

    /// Rewinds sequence `of` to its first `len` tokens, or to none where [`Decoder::rewind`] does. Returns the number of tokens kept.
    pub fn rewind(&mut self, of: usize, len: usize) -> usize {
        self.enter(of);
        self.lens[of] = self.decoder.rewind(len);
        self.seen[of] = self.decoder.seen;
        self.lens[of]
    }

    /// Appends 1 to `chunk` tokens to sequence `of`.
    pub async fn append(&mut self, of: usize, ids: &[u32]) -> Result<(), GpuError> {
        self.enter(of);
        self.decoder.append(ids).await?;
        self.leave(of);
        Ok(())
    }

    /// Appends 1 to `chunk` tokens to sequence `of`, and reads the logits after the last one, `[V]`, with the softcap applied.
    pub async fn logits(&mut self, of: usize, ids: &[u32]) -> Result<Vec<f32>, GpuError> {
        self.enter(of);
        let logits = self.decoder.logits(ids).await?;
        self.leave(of);
        Ok(logits)
    }

    fn enter(&mut self, of: usize) {
        self.decoder.place = Place::One(of);
        (self.decoder.len, self.decoder.seen) = (self.lens[of], self.seen[of]);
    }

    fn leave(&mut self, of: usize) {
        (self.lens[of], self.seen[of]) = (self.decoder.len, self.decoder.seen);
    }

    /// Makes each of the sequences `to` a copy of sequence `from`.
    pub fn copy(&mut self, from: usize, to: &[usize]) -> Result<(), GpuError> {
        let (w, len) = (self.decoder.w, self.lens[from]);
        let config = w.model.config();
        let mut rec = Recorder::new(w.gpu);
        for &to in to {
            for (layer, cache) in self.decoder.caches.iter().enumerate() {
                let Some(cache) = cache else { continue };
                let bytes = w.lengths.cache_bytes_of_each(config, layer);
                let held = bytes / cache.ring as u64 * len.min(cache.ring) as u64;
                copy::forward(&mut rec, &cache.buffer, [from, to].map(|of| of as u64 * bytes), held);
            }
            for state in self.decoder.states.iter().flatten() {
                let Some((_, [history, values])) = state.of else { continue };
                for (buffer, bytes) in [(&state.history, history), (&state.state, values)] {
                    if bytes > 0 {
                        copy::forward(&mut rec, buffer, [from, to].map(|of| of as u64 * bytes), bytes);
                    }
                }
            }
            (self.lens[to], self.seen[to]) = (len, self.seen[from]);
        }
        rec.submit()
    }

    /// Appends a token to each of some sequences, and draws the token after it from the first `vocab` logits; the results of row `i` are those
    /// of the `i`th.
    pub async fn step(
        &mut self,
        tokens: &[(usize, u32)],
        draws: &[Draw],
        vocab: usize,
    ) -> Result<(), GpuError> {
        let w = self.decoder.w;
        assert_eq!(tokens.len(), draws.len(), "a draw for every token");
        assert!((1..=self.count()).contains(&tokens.len()), "a step has a row for some of the sequences");
        let live = tokens.len().next_power_of_two();
        let mut table = vec![[0, NO_SEQUENCE]; live];
        for (row, &(of, _)) in table.iter_mut().zip(tokens) {
            assert!(self.lens[of] < w.lengths.context, "the sequence stays within its context");
            *row = [self.lens[of] as u32, of as u32];
            self.lens[of] += 1;
            self.seen[of] = self.seen[of].max(self.lens[of]);
        }
        let rows = rows_of(w.gpu, live);
        let mut ids = vec![0; rows];
        ids.iter_mut().zip(tokens).for_each(|(id, (_, token))| *id = *token);
        let Step { table: on_device, categorical, .. } = w.step();
        w.gpu.write(on_device, &table);
        w.gpu.write(&categorical.draws, draws);
        w.write_tokens(0, &ids).await?;
        self.decoder.place = Place::Each(live);
        if w.model.offload.is_some() {
            let mut rec = Recorder::new(w.gpu);
            self.decoder.pass_fetching(&mut rec, rows).await?;
            self.draw(&mut rec, [live, rows], vocab);
            return rec.submit();
        }
        let place = live.ilog2() as usize;
        if self.recorded[place].is_none() {
            let mut rec = Recorder::lasting(w.gpu);
            self.decoder.pass(&mut rec, rows);
            self.draw(&mut rec, [live, rows], vocab);
            self.recorded[place] = Some(rec.keep());
        }
        let recording = self.recorded[place].as_ref().expect("recorded above");
        w.gpu.submit(w.gpu.prepare(&[recording]))
    }

    /// Draws from the first `vocab` logits of the `live` first rows of a step of `rows` rows.
    fn draw(&self, rec: &mut Recorder<'a>, [live, rows]: [usize; 2], vocab: usize) {
        let Step { logits, categorical, .. } = self.decoder.w.step();
        self.decoder.logits_of_rows(rec, logits, 0, [live, rows]);
        categorical.forward(rec, logits, vocab, live);
    }

    /// The tokens drawn after the first `rows` rows of the last step.
    pub async fn drawn(&self, rows: usize) -> Result<Vec<Drawn>, GpuError> {
        let w = self.decoder.w;
        w.gpu.read(&w.step().categorical.results, rows).await
    }

    /// The logits after each of the first `rows` rows of the last step, and the number of values of each row.
    pub async fn all_logits(&self, rows: usize) -> Result<(Vec<f32>, usize), GpuError> {
        let w = self.decoder.w;
        let logits = &w.step().logits;
        Ok((w.gpu.read(&logits.buffer, rows * logits.stride).await?, logits.stride))
    }
}

/// Rows of the products of a step of `live` rows.
fn rows_of(gpu: &Gpu, live: usize) -> usize {
    if gpu.kernels().software_lanes().is_some() { live } else { STEP }
}
