//! The processes that train together: each has a device and the whole base, and computes its shares of every step.

pub mod link;
#[cfg(all(feature = "native", unix))]
pub mod mpi;
mod reduce;
mod slots;
mod sum;
#[cfg(feature = "native")]
pub mod threads;
mod window;

use std::ops::Range;

use crate::gpu::Place;
use link::{Link, LinkError};
pub(super) use reduce::Reduction;
pub(super) use slots::Slots;
pub use sum::{micro_batches, shares_of};

/// This process among those of a run.
pub struct Ranks {
    /// `None` for a run of one process.
    world: Option<Box<dyn Link>>,
    /// The ranks of each host, in the order of their lowest ranks.
    hosts: Vec<Vec<usize>>,
    /// The name of each rank's host.
    names: Vec<String>,
}

impl Ranks {
    /// A run of one process.
    pub fn alone() -> Ranks {
        Ranks { world: None, hosts: vec![vec![0]], names: vec![String::new()] }
    }

    /// The members of `world`. `name`: that of this host.
    pub fn new(world: Box<dyn Link>, name: &str) -> Result<Ranks, LinkError> {
        let mut ranks = Ranks { hosts: vec![vec![0]], names: vec![name.into()], world: None };
        let host = world.on_this_host()?;
        let mut first = world.rank().to_le_bytes();
        host.broadcast(&mut first)?;
        ranks.world = Some(world);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        ranks.names = ranks.gather(name.as_bytes())?.into_iter().map(text).collect();
        let firsts = ranks.gather(&first)?;
        ranks.hosts = Vec::new();
        for (rank, first) in firsts.iter().enumerate() {
            let known = ranks.hosts.iter().position(|members| firsts[members[0]] == *first);
            match known {
                Some(host) => ranks.hosts[host].push(rank),
                None => ranks.hosts.push(vec![rank]),
            }
        }
        Ok(ranks)
    }

    /// The own rank.
    pub fn rank(&self) -> usize {
        self.world.as_ref().map_or(0, |world| world.rank())
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.world.as_ref().map_or(1, |world| world.size())
    }

    /// Whether this is the process that prints and writes.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// The place of this process on its host.
    pub fn local(&self) -> Place {
        let own = self.rank();
        let found = self.hosts.iter().find_map(|members| {
            let rank = members.iter().position(|rank| *rank == own)?;
            Some(Place { rank, size: members.len() })
        });
        found.unwrap_or(Place::ALONE)
    }

    /// A rank with its host, for messages.
    pub fn name(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.names[rank])
    }

    /// The name of a rank's host.
    pub fn host(&self, rank: usize) -> &str {
        &self.names[rank]
    }

    /// The bytes of every rank, in order. They may have different lengths.
    pub fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, LinkError> {
        let Some(world) = &self.world else { return Ok(vec![own.to_vec()]) };
        let mut lengths = vec![0u8; 8 * world.size()];
        world.all_gather(&(own.len() as u64).to_le_bytes(), &mut lengths)?;
        let (lengths, _) = lengths.as_chunks::<8>();
        let lengths: Vec<usize> = lengths.iter().map(|bytes| u64::from_le_bytes(*bytes) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            return Ok(vec![Vec::new(); lengths.len()]);
        }
        let mut padded = own.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0; longest * world.size()];
        world.all_gather(&padded, &mut all)?;
        Ok(all.chunks(longest).zip(lengths).map(|(bytes, length)| bytes[..length].to_vec()).collect())
    }

    /// The bytes of rank 0.
    pub fn broadcast(&self, own: Vec<u8>) -> Result<Vec<u8>, LinkError> {
        let Some(world) = &self.world else { return Ok(own) };
        let mut length = (own.len() as u64).to_le_bytes();
        world.broadcast(&mut length)?;
        let mut bytes = own;
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        // An MPI library counts bytes in 31 bits.
        bytes.chunks_mut(1 << 30).try_for_each(|part| world.broadcast(part))?;
        Ok(bytes)
    }

    /// The largest of the numbers that the ranks pass.
    pub fn largest(&self, own: u8) -> Result<u8, LinkError> {
        let Some(world) = &self.world else { return Ok(own) };
        let mut all = vec![0; world.size()];
        world.all_gather(&[own], &mut all)?;
        Ok(all.into_iter().max().unwrap_or(own))
    }

    /// Fails if a rank passes other bytes than most do, and names it. `what`: the subject of the message.
    pub fn check_same(&self, what: &str, own: &[u8]) -> Result<(), LinkError> {
        if self.world.is_none() {
            return Ok(());
        }
        let all = self.gather(own)?;
        let votes = |bytes: &[u8]| all.iter().filter(|other| *other == bytes).count();
        let most = all.iter().map(|bytes| votes(bytes)).max().unwrap_or(0);
        // The first of the most frequent ones: with two ranks, that of rank 0.
        let Some(usual) = all.iter().position(|bytes| votes(bytes) == most) else { return Ok(()) };
        match all.iter().position(|bytes| *bytes != all[usual]) {
            Some(other) => {
                let (other, usual) = (self.name(other), self.name(usual));
                Err(LinkError(format!("{what} of {other} differs from that of {usual}")))
            }
            None => Ok(()),
        }
    }

    /// Waits for all ranks and leaves them for good.
    pub fn leave(&self) -> Result<(), LinkError> {
        let Some(world) = &self.world else { return Ok(()) };
        world.barrier()?;
        world.leave();
        Ok(())
    }

    /// Ends all processes at once.
    pub fn abort(&self) {
        if let Some(world) = &self.world {
            world.abort();
        }
    }

    /// The shares of this rank.
    pub(super) fn own_shares(&self, shares: usize) -> Range<usize> {
        shares_of(self.rank(), self.size(), shares)
    }
}
