//! Graphs of runs of kernels, by the kernels of the run.

use std::collections::HashMap;
use std::hash::Hash;

/// Most kernels of all graphs. One takes some 2.6 KB of device memory (H200, driver 580).
const KERNELS: usize = 1 << 14;
/// Most runs that are remembered.
const RUNS: usize = 512;
/// Searches after which a graph that none of them found may make room for another: to make one takes as long as three launches of its kernels.
const IDLE: u64 = 4096;

/// Values of `G`, each for a run of kernels `K`. The whole run is the key.
pub struct Cache<K, G> {
    runs: HashMap<Box<[K]>, Run<G>>,
    /// Searches so far.
    now: u64,
}

struct Run<G> {
    graph: Option<G>,
    /// No graph is made of it.
    is_refused: bool,
    /// The last search for it.
    last: u64,
}

/// The result of a search.
pub enum Found<'c, G> {
    /// The run is launched kernel by kernel.
    Nothing,
    /// The run came before: a graph is worth it.
    Again,
    /// Its graph.
    Graph(&'c mut G),
}

impl<K, G> Default for Cache<K, G> {
    fn default() -> Cache<K, G> {
        Cache { runs: HashMap::new(), now: 0 }
    }
}

impl<K: Clone + Eq + Hash, G> Cache<K, G> {
    /// Looks for a run, and remembers it. A graph that is not `alive` is dropped.
    pub fn find(&mut self, run: &[K], alive: impl Fn(&G) -> bool) -> Found<'_, G> {
        self.now += 1;
        if !self.runs.contains_key(run) {
            self.remember(run);
            return Found::Nothing;
        }
        let now = self.now;
        let found = self.runs.get_mut(run).expect("it is there");
        found.last = now;
        found.graph.take_if(|graph| !alive(graph));
        match &mut found.graph {
            Some(graph) => Found::Graph(graph),
            None if found.is_refused => Found::Nothing,
            None => Found::Again,
        }
    }

    /// Makes room for a graph of `kernels`, where others are idle. Returns whether there is room.
    pub fn make_room(&mut self, kernels: usize) -> bool {
        let idle = |run: &&mut Run<G>, now: u64| run.graph.is_some() && now - run.last > IDLE;
        while self.kernels() + kernels > KERNELS {
            let now = self.now;
            let oldest = self.runs.values_mut().filter(|run| idle(run, now)).min_by_key(|run| run.last);
            let Some(oldest) = oldest else { return false };
            oldest.graph = None;
        }
        true
    }

    /// Keeps the graph of a run that was found; `None` where there can be none.
    pub fn keep(&mut self, run: &[K], graph: Option<G>) {
        if let Some(found) = self.runs.get_mut(run) {
            found.is_refused = graph.is_none();
            found.graph = graph;
        }
    }

    /// Kernels of all graphs.
    fn kernels(&self) -> usize {
        self.runs.iter().filter(|(_, run)| run.graph.is_some()).map(|(kernels, _)| kernels.len()).sum()
    }

    fn remember(&mut self, run: &[K]) {
        if self.runs.len() == RUNS {
            let without = self.runs.iter().filter(|(_, run)| run.graph.is_none());
            let oldest = without.min_by_key(|(_, run)| run.last).map(|(kernels, _)| kernels.clone());
            let Some(oldest) = oldest else { return };
            self.runs.remove(&oldest);
        }
        self.runs.insert(run.into(), Run { graph: None, is_refused: false, last: self.now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches for a run, and makes its graph where one is worth it. Returns the number of the graph that was found, or made.
    fn launch(cache: &mut Cache<u32, usize>, run: &[u32], made: &mut usize) -> Option<usize> {
        match cache.find(run, |_| true) {
            Found::Nothing => return None,
            Found::Graph(graph) => return Some(*graph),
            Found::Again => {}
        }
        cache.make_room(run.len()).then(|| {
            *made += 1;
            cache.keep(run, Some(*made));
            *made
        })
    }

    #[test]
    fn a_run_becomes_a_graph_when_it_comes_again() {
        let (mut cache, mut made) = (Cache::default(), 0);
        let found: Vec<_> = (0..4).map(|_| launch(&mut cache, &[1, 2, 3], &mut made)).collect();
        assert_eq!(found, [None, Some(1), Some(1), Some(1)]);
    }

    #[test]
    fn every_kernel_of_a_run_counts() {
        let (mut cache, mut made) = (Cache::default(), 0);
        launch(&mut cache, &[1, 2, 3], &mut made);
        assert_eq!(launch(&mut cache, &[1, 2, 3], &mut made), Some(1));
        for other in [&[1, 2, 4][..], &[1, 3, 2], &[1, 2], &[1, 2, 3, 3]] {
            assert_eq!(launch(&mut cache, other, &mut made), None, "{other:?} is another run");
        }
        assert_eq!(launch(&mut cache, &[1, 2, 4], &mut made), Some(2), "it has a graph of its own");
        assert_eq!(launch(&mut cache, &[1, 2, 3], &mut made), Some(1), "which replaces no other");
    }

    #[test]
    fn a_refused_run_is_not_tried_again() {
        let mut cache = Cache::<u32, usize>::default();
        cache.find(&[1], |_| true);
        assert!(matches!(cache.find(&[1], |_| true), Found::Again));
        cache.keep(&[1], None);
        assert!(matches!(cache.find(&[1], |_| true), Found::Nothing));
    }

    #[test]
    fn a_graph_whose_kernels_are_gone_is_made_anew() {
        let (mut cache, mut made) = (Cache::default(), 0);
        (0..2).for_each(|_| drop(launch(&mut cache, &[1], &mut made)));
        assert!(matches!(cache.find(&[1], |_| false), Found::Again));
        assert!(matches!(cache.find(&[1], |_| true), Found::Again), "it was dropped");
    }

    #[test]
    fn graphs_are_bounded_and_idle_ones_make_room() {
        let (mut cache, mut made) = (Cache::default(), 0);
        let half = |of: u32| vec![of; KERNELS / 2];
        for of in [1, 2] {
            (0..2).for_each(|_| drop(launch(&mut cache, &half(of), &mut made)));
        }
        assert_eq!(cache.kernels(), KERNELS);
        (0..2).for_each(|_| drop(launch(&mut cache, &half(3), &mut made)));
        assert_eq!(made, 2, "there is no room, and no graph is idle");
        for _ in 0..=IDLE {
            assert_eq!(launch(&mut cache, &half(2), &mut made), Some(2));
        }
        assert_eq!(launch(&mut cache, &half(3), &mut made), Some(3), "the graph of 1 made room");
        assert_eq!(cache.kernels(), KERNELS);
        assert_eq!(launch(&mut cache, &half(1), &mut made), None, "the graph of 2 is not idle");
    }

    #[test]
    fn runs_are_bounded() {
        let (mut cache, mut made) = (Cache::default(), 0);
        (0..2).for_each(|_| drop(launch(&mut cache, &[0], &mut made)));
        (1..3 * RUNS as u32).for_each(|of| drop(launch(&mut cache, &[of], &mut made)));
        assert_eq!(cache.runs.len(), RUNS);
        assert_eq!(launch(&mut cache, &[0], &mut made), Some(1), "a run with a graph is not forgotten");
    }
}
