//! Adapters of latent vectors, which other programs take in part.

use rullama_train::adapter::Format;
use rullama_train::adapter::lora::slots;
use rullama_train::base::{Base, Module};

use super::golden;

#[test]
fn exports_that_a_program_makes_no_use_of_are_told() {
    let told = |model: &str, module: Module| {
        let base = Base::open(golden(model).to_str().expect("UTF-8")).expect("the golden model opens");
        let slots = slots(base.config(), &[module]);
        let formats = [Format::Peft, Format::GgufLora, Format::GgufLoraF16, Format::Mlx];
        formats.map(|format| format.unapplied(base.config(), &slots).is_some())
    };
    let (lite, flash) = ("deepseek2/model.gguf", "glm4moelite/model.gguf");
    assert_eq!(told(lite, Module::AttnKvB), [false, true, true, false]);
    assert_eq!(told(lite, Module::AttnQ), [false, true, true, false]);
    assert_eq!(told(flash, Module::AttnKvB), [false, true, true, true]);
    assert_eq!(told(lite, Module::FfnGateInp), [false, false, false, true]);
    assert_eq!(told(flash, Module::AttnOutput), [false; 4]);
    assert_eq!(told("qwen35moe/model.gguf", Module::AttnQ), [false; 4]);
    let base = Base::open(golden(flash).to_str().expect("UTF-8")).expect("the golden model opens");
    let slots = slots(base.config(), &[Module::AttnKvB]);
    let formats = [Format::GgufLora, Format::Mlx, Format::GgufLoraF16];
    let reasons = Format::all_unapplied(&formats, base.config(), &slots);
    assert!(reasons.len() == 2 && reasons[0].starts_with("llama.cpp"), "each reason once: {reasons:?}");
}
