//! Threads in place of processes: for tests, which need neither a launcher nor an MPI library.
//!
//! The threads may use one device: only one of them runs at a time. It hands over wherever it waits for the others.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::link::{Link, LinkError};

/// Time that a thread sleeps before it looks whether another one has failed.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The state that all threads share.
struct World {
    state: Mutex<State>,
    changed: Condvar,
    hosts: Vec<usize>,
}

#[derive(Default)]
struct State {
    /// Whether a thread runs.
    busy: bool,
    /// Whether a thread has ended with an error.
    failed: bool,
    /// Meetings by their names.
    meetings: BTreeMap<Name, Meeting>,
}

/// The splits that led to a group, as pairs of a number and a colour.
type Name = Vec<(usize, usize)>;

/// An exchange of bytes among the members of a group.
#[derive(Default)]
struct Meeting {
    arrived: BTreeMap<usize, Vec<u8>>,
    all: Arc<Vec<Vec<u8>>>,
    leaving: usize,
}

/// A thread as a member of a group.
pub struct Threads {
    world: Arc<World>,
    name: Name,
    /// The ranks of the members in the whole.
    members: Vec<usize>,
    rank: usize,
    splits: Cell<usize>,
}

/// Runs `work` on one thread for each of `hosts`, the number of its host, and returns the results in rank order. Where one fails,
/// the others fail at their next exchange.
pub fn run<T: Send, E: Send>(
    hosts: &[usize],
    work: impl Fn(Box<dyn Link>) -> Result<T, E> + Sync,
) -> Vec<Result<T, E>> {
    let state = Mutex::new(State::default());
    let world = Arc::new(World { state, changed: Condvar::new(), hosts: hosts.to_vec() });
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            let (world, work) = (world.clone(), &work);
            scope.spawn(move || {
                let _turn = Turn::take(&world);
                let members = (0..world.hosts.len()).collect();
                let link =
                    Threads { world: world.clone(), name: Vec::new(), members, rank, splits: Cell::new(0) };
                let result = work(Box::new(link));
                if result.is_err() {
                    world.lock().failed = true;
                }
                result
            })
        };
        let threads: Vec<_> = (0..hosts.len()).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has left the state whole.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Sleeps until `ready`, or until a thread has failed.
    fn wait<'w>(
        &self,
        mut state: MutexGuard<'w, State>,
        ready: impl Fn(&mut State) -> bool,
    ) -> MutexGuard<'w, State> {
        while !ready(&mut state) && !state.failed {
            let woken = self.changed.wait_timeout(state, LOOK_AGAIN);
            state = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        state
    }
}

/// The right to run. It ends with the thread, also by a panic, which the others then see as a failure.
struct Turn<'w>(&'w World);

impl<'w> Turn<'w> {
    fn take(world: &'w World) -> Turn<'w> {
        let mut state = world.lock();
        while state.busy {
            let woken = world.changed.wait_timeout(state, LOOK_AGAIN);
            state = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        state.busy = true;
        Turn(world)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy = false;
        state.failed |= std::thread::panicking();
        self.0.changed.notify_all();
    }
}

impl Threads {
    /// Hands `own` over, lets the others run until all have done so, and returns the bytes of all.
    fn meet(&self, own: Vec<u8>) -> Result<Arc<Vec<Vec<u8>>>, LinkError> {
        let (world, size, name) = (&self.world, self.members.len(), &self.name);
        let mut state = world.lock();
        state.busy = false;
        world.changed.notify_all();
        let meeting = |state: &mut State| state.meetings.entry(name.clone()).or_default().leaving;
        state = world.wait(state, |state| meeting(state) == 0);
        let here = state.meetings.entry(name.clone()).or_default();
        here.arrived.insert(self.rank, own);
        if here.arrived.len() == size {
            here.all = Arc::new(std::mem::take(&mut here.arrived).into_values().collect());
            here.leaving = size;
        }
        world.changed.notify_all();
        state = world.wait(state, |state| meeting(state) > 0);
        let here = state.meetings.entry(name.clone()).or_default();
        let all = here.all.clone();
        here.leaving = here.leaving.saturating_sub(1);
        world.changed.notify_all();
        state = world.wait(state, |state| !state.busy);
        if state.failed {
            return Err(LinkError("another rank failed".into()));
        }
        state.busy = true;
        Ok(all)
    }

    fn subgroup(&self, number: usize, of: impl Fn(usize) -> usize) -> Threads {
        let own = of(self.rank);
        let ranks: Vec<usize> = (0..self.members.len()).filter(|&rank| of(rank) == own).collect();
        let mut name = self.name.clone();
        name.push((number, own));
        Threads {
            world: self.world.clone(),
            name,
            members: ranks.iter().map(|&rank| self.members[rank]).collect(),
            rank: ranks.iter().position(|&rank| rank == self.rank).expect("a member of its own group"),
            splits: Cell::new(0),
        }
    }
}

impl Link for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn barrier(&self) -> Result<(), LinkError> {
        self.meet(Vec::new()).map(drop)
    }

    fn all_gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), LinkError> {
        let found = self.meet(own.to_vec())?;
        all.copy_from_slice(&found.concat());
        Ok(())
    }

    fn all_to_all(&self, from: &[u8], to: &mut [u8]) -> Result<(), LinkError> {
        let part = from.len() / self.size();
        let found = self.meet(from.to_vec())?;
        for (to, from) in to.chunks_mut(part.max(1)).zip(found.iter()) {
            to.copy_from_slice(&from[self.rank * part..][..part]);
        }
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), LinkError> {
        let found = self.meet(if self.rank == 0 { bytes.to_vec() } else { Vec::new() })?;
        bytes.copy_from_slice(&found[0]);
        Ok(())
    }

    fn split(&self, group: usize) -> Result<Box<dyn Link>, LinkError> {
        let groups = self.meet(group.to_le_bytes().to_vec())?;
        self.splits.set(self.splits.get() + 1);
        Ok(Box::new(self.subgroup(self.splits.get(), |rank| {
            groups[rank].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
        })))
    }

    fn on_this_host(&self) -> Result<Box<dyn Link>, LinkError> {
        self.splits.set(self.splits.get() + 1);
        let host = |rank: usize| self.world.hosts[self.members[rank]];
        Ok(Box::new(self.subgroup(self.splits.get(), host)))
    }

    fn abort(&self) -> ! {
        panic!("rank {} aborts", self.rank)
    }
}
