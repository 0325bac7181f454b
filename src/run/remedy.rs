//! Settings that change what a device refused. Errors of `gpu` know neither recipes nor options.

use super::DriveError;
use super::finetune::FinetuneError;
use crate::gpu::GpuError;
use crate::talk::generate::GenerateError;
use crate::train::TrainError;
use crate::verify;

/// The device's error within an error of this library.
pub fn device_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a GpuError> {
    if let Some(GenerateError::Gpu(found)) = error.downcast_ref() {
        return Some(found);
    }
    if let Some(TrainError::Gpu(found)) = error.downcast_ref() {
        return Some(found);
    }
    if let Some(verify::Error::Gpu(found)) = error.downcast_ref() {
        return Some(found);
    }
    match error.downcast_ref() {
        Some(DriveError::Train(within)) => return device_error(within),
        Some(DriveError::Generate(within)) => return device_error(within),
        Some(DriveError::Verify(within)) => return device_error(within),
        _ => {}
    }
    match error.downcast_ref() {
        Some(FinetuneError::Drive(within)) => device_error(within),
        _ => error.downcast_ref(),
    }
}

/// Advice that follows the error after a semicolon, if a setting helps. `name` returns what the reader calls a key of a recipe, such as
/// the key with its option.
pub fn remedy(error: &GpuError, name: impl Fn(&str) -> String) -> Option<String> {
    let auto = |key: &str| format!("set {} to \"auto\", or omit it", name(key));
    Some(match error {
        GpuError::NoCuda { .. } => auto("device.backend"),
        GpuError::NotNamed { .. } => format!("name one of these in {}", name("device.gpu")),
        GpuError::Refused { .. } => {
            format!("update its driver, or name another interface in {}", name("device.backend"))
        }
        GpuError::NoConversion { .. } => {
            format!("update its driver, or choose another GPU by {}", name("device.gpu"))
        }
        GpuError::NoTier { .. } | GpuError::FailedSelfTest { .. } => auto("device.kernels"),
        GpuError::TooLarge { .. } => {
            format!("lower {} or {}", name("data.max_seq_len"), name("train.batch_size"))
        }
        GpuError::AdapterTooLarge { module, .. } => {
            format!("lower {}, or leave {module} out of {}", name("lora.rank"), name("lora.target_modules"))
        }
        GpuError::NoHostBuffers { .. } => format!("remove {}", name("train.offload_inputs")),
        GpuError::HostMemory { .. } => format!(
            "close other programs, or leave more on the device by {}, {} or {}",
            name("train.memory_limit"),
            name("train.offload_experts"),
            name("train.offload_layers")
        ),
        GpuError::OutOfMemory => format!(
            "set {} = true, lower {}, {} or {}, for replies {}, or close what else uses the GPU",
            name("train.gradient_checkpointing"),
            name("data.max_seq_len"),
            name("train.batch_size"),
            name("lora.rank"),
            name("the context")
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{device_error, remedy};
    use crate::gpu::GpuError;
    use crate::run::DriveError;
    use crate::train::TrainError;

    #[test]
    fn a_device_error_is_found_within_others_and_names_its_keys() {
        let error = DriveError::Train(TrainError::Gpu(GpuError::OutOfMemory));
        let found = device_error(&error).expect("it is one");
        assert!(matches!(found, GpuError::OutOfMemory));
        assert_eq!(error.to_string(), "the GPU reported an error: out of memory");
        assert_eq!(
            remedy(found, |key| format!("<{key}>")).expect("settings help"),
            "set <train.gradient_checkpointing> = true, lower <data.max_seq_len>, <train.batch_size> or <lora.rank>, for replies \
             <the context>, or close what else uses the GPU"
        );
        let lost = GpuError::Lost("unplugged".into());
        assert!(device_error(&lost).is_some() && remedy(&lost, str::to_owned).is_none());
        assert!(device_error(&TrainError::Unmoved).is_none());
    }

    /// Errors of `gpu` name no key and no option.
    #[test]
    fn errors_of_the_device_name_no_setting() {
        let source = include_str!("../gpu/error.rs");
        for word in ["device.", "train.", "lora.", "data.", "--"] {
            let named = source.lines().find(|line| line.contains(word) && line.contains('"'));
            assert_eq!(named, None, "{word}");
        }
    }
}
