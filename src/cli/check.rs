//! Everything up to the first step, shown.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use pollster::block_on;
use rullama_train::export::peft;
use rullama_train::files;
use rullama_train::recipe::Recipe;

use super::session::Session;
use super::show;

/// Shows what the recipe resolves to; with `gradients`, writes loss and gradients of the first step there.
pub fn run(recipe: &Recipe, gradients: Option<&Path>) -> Result<()> {
    gradients.map_or(Ok(()), files::check_file)?;
    let (session, initial) = Session::start(recipe)?;
    let gpu = Session::device(recipe)?;
    show::start(recipe, &session, &initial, &gpu);
    let model = session.model(&gpu)?;
    let trainer = session.trainer(recipe, &gpu, &model, &initial)?;
    show::plan(trainer.plan(), true);
    show::line("tried", session.dry_pass(&trainer)?);
    let sample = &session.data.train[0];
    show::text(format_args!("\n{}; what stands between « and » carries loss:\n", sample.origin));
    show::text(show::marked(&session.frozen.tokenizer, sample));

    let Some(path) = gradients else { return Ok(()) };
    let step = session.steps.step(&session.data.train, 0);
    let (loss, pairs) = block_on(trainer.gradients(&step, 1))?;
    let metadata = HashMap::from([
        ("loss".to_string(), format!("{loss:?}")),
        ("loss_tokens".to_string(), step.loss_tokens.to_string()),
    ]);
    let bytes = peft::serialize_pairs(&pairs, initial.rank, peft::Naming::CausalLm, metadata)?;
    files::write_atomic(path, &bytes)?;
    show::text("");
    let tensors = 2 * pairs.len();
    show::line("gradients", format_args!("{tensors} tensors, loss {loss:.6}, in {}", path.display()));
    Ok(())
}
