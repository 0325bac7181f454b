//! Methods of wgpu for what compute does not need.

/// Methods of a trait that panic: wgpu offers them to nobody who asked for the features that this device has.
macro_rules! absent {
    ($($what:literal: fn $name:ident $(<$life:lifetime>)? ($($args:tt)*) $(-> $result:ty)?;)+) => {
        $(fn $name $(<$life>)? ($($args)*) $(-> $result)? {
            unimplemented!("CUDA's device has no {}", $what)
        })+
    };
}

/// Methods of a trait that do nothing.
macro_rules! ignored {
    ($(fn $name:ident $(<$life:lifetime>)? ($($args:tt)*);)+) => {
        $(fn $name $(<$life>)? ($($args)*) {})+
    };
}

pub(crate) use {absent, ignored};
