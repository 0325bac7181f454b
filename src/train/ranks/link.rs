//! The connection between the processes of a run.

/// Why a connection failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LinkError(pub String);

/// A group of processes, or of threads that stand for them. Each has a rank in it, from 0 on.
///
/// All members must call the same functions in the same order, with the same lengths.
pub trait Link {
    /// The own rank.
    fn rank(&self) -> usize;

    /// Members of the group.
    fn size(&self) -> usize;

    /// Waits for all members. What they wrote to shared memory before is visible afterwards.
    fn barrier(&self) -> Result<(), LinkError>;

    /// Fills `all` with the bytes of every member, in rank order.
    fn all_gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), LinkError>;

    /// Sends the n-th of `size` equal parts of `from` to rank n, and fills `to` with the parts from every member, in rank order.
    fn all_to_all(&self, from: &[u8], to: &mut [u8]) -> Result<(), LinkError>;

    /// Overwrites `bytes` with those of rank 0.
    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), LinkError>;

    /// The members that pass the same `group`, in the same order.
    fn split(&self, group: usize) -> Result<Box<dyn Link>, LinkError>;

    /// The members on this host, in the same order.
    fn on_this_host(&self) -> Result<Box<dyn Link>, LinkError>;

    /// Leaves the group for good: the last call of a run that has come to its end.
    fn leave(&self) {}

    /// Ends every process of the group at once.
    fn abort(&self) -> !;
}
