//! Sequences that are decoded together have the same bytes as alone, in any company and order, and the logits of one decoder.

use std::ops::ControlFlow;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::gpu::{Gpu, Tier};
use rullama_train::model::Model;
use rullama_train::model::decode::{Decoder, Lengths, Sequences, Workspace};
use rullama_train::model::plan::OnHost;
use rullama_train::ops::categorical::Draw;
use rullama_train::recipe::Template;
use rullama_train::run::OpenBase;
use rullama_train::talk::generate::{Finish, Generator, Options};
use rullama_train::talk::rollouts::{Batch, Completion, Event, Request};
use rullama_train::talk::sampling::Sampling;

use super::decode::{Case, cases, golden_case, random_adapter};
use super::{check, check_that, golden, gpu};

/// As in decode.rs.
const LOGITS: f64 = 1e-5;
const HALF: f64 = 1e-2;
const HALF_MIXTURE: f64 = 1e-1;

/// Tokens of the prompts: less than a pass, as many, and several passes.
const PROMPTS: [usize; 8] = [3, 16, 1, 21, 9, 2, 17, 12];
const LENGTHS: Lengths = Lengths { context: 26, chunk: 16 };
/// Steps after the prompts. Not all sequences take all of them.
const STEPS: usize = 4;

/// Token `i` of sequence `of`.
fn token(case: &Case, of: usize, i: usize) -> u32 {
    case.ids[(of * 5 + i * (of + 1)) % case.ids.len()]
}

/// The logits after each of the tokens behind the prompt of each of the sequences `of`, decoded together. The first one leaves early.
fn together(
    case: &Case,
    sequences: &mut Sequences,
    vocab: usize,
    of: &[usize],
) -> Result<Vec<Vec<f32>>, Failed> {
    let mut found = vec![Vec::new(); of.len()];
    for (place, &of) in of.iter().enumerate() {
        sequences.clear(place);
        let prompt: Vec<u32> = (0..PROMPTS[of]).map(|i| token(case, of, i)).collect();
        let chunks: Vec<&[u32]> = prompt.chunks(LENGTHS.chunk).collect();
        for chunk in &chunks[..chunks.len() - 1] {
            block_on(sequences.append(place, chunk))?;
        }
        found[place].extend(block_on(sequences.logits(place, chunks[chunks.len() - 1]))?);
    }
    for step in 0..STEPS {
        // In an order that changes from step to step.
        let mut rows: Vec<usize> = (0..of.len()).filter(|&i| of[i] > 0 || step < 2).collect();
        let by = step % rows.len().max(1);
        rows.rotate_left(by);
        if rows.is_empty() {
            break;
        }
        let next = |&place: &usize| (place, token(case, of[place], PROMPTS[of[place]] + step));
        let next: Vec<(usize, u32)> = rows.iter().map(next).collect();
        block_on(sequences.step(&next, &vec![Draw::LIKELIEST; next.len()], vocab))?;
        let (logits, stride) = block_on(sequences.all_logits(rows.len()))?;
        for (row, place) in logits.chunks(stride).zip(rows) {
            found[place].extend(&row[..vocab]);
        }
    }
    Ok(found)
}

/// The logits of sequence `of` by a decoder of its own.
fn alone(case: &Case, decoder: &mut Decoder, of: usize) -> Result<Vec<f64>, Failed> {
    decoder.rewind(0);
    let prompt: Vec<u32> = (0..PROMPTS[of]).map(|i| token(case, of, i)).collect();
    let chunks: Vec<&[u32]> = prompt.chunks(LENGTHS.chunk).collect();
    for chunk in &chunks[..chunks.len() - 1] {
        block_on(decoder.append(chunk))?;
    }
    let mut found = block_on(decoder.logits(chunks[chunks.len() - 1]))?;
    for step in 0..if of == 0 { 2 } else { STEPS } {
        found.extend(block_on(decoder.logits(&[token(case, of, PROMPTS[of] + step)]))?);
    }
    Ok(found.into_iter().map(f64::from).collect())
}

fn compare(gpu: &Gpu, case: &Case, model: &Model) -> Result<(), Failed> {
    let vocab = model.config().vocab;
    let workspace = block_on(Workspace::for_sequences(gpu, model, LENGTHS, case.adapter.rank, 8))?;
    let mut sequences = Sequences::new(&workspace, Some(&case.adapter))?;
    let mut decoder = Decoder::new(&workspace, Some(&case.adapter))?;
    let all = together(case, &mut sequences, vocab, &[0, 1, 2, 3, 4, 5, 6, 7])?;
    for of in [&[6][..], &[7, 0, 3], &[5, 4, 3, 2, 1, 0, 7, 6]] {
        for (found, of) in together(case, &mut sequences, vocab, of)?.iter().zip(of) {
            check_that(&format!("{}: sequence {of} has the same bytes", case.name), found == &all[*of])?;
        }
    }
    let mixture = model.config().layers.iter().any(|l| l.experts.is_some());
    for of in [0, 1, 3, 6] {
        let found: Vec<f64> = all[of].iter().map(|&l| f64::from(l)).collect();
        let worst = gpu::relative(&found, &alone(case, &mut decoder, of)?);
        let most = match (gpu.kernels().tier(), mixture) {
            (Tier::F32, _) => LOGITS,
            (_, true) => HALF_MIXTURE,
            _ => HALF,
        };
        check(&format!("{}: sequence {of} against a decoder of its own", case.name), worst, most)?;
    }
    // A copy goes on like the one that it was made of.
    let prompt: Vec<u32> = (0..PROMPTS[3]).map(|i| token(case, 3, i)).collect();
    sequences.clear(1);
    for chunk in prompt.chunks(LENGTHS.chunk) {
        block_on(sequences.append(1, chunk))?;
    }
    sequences.copy(1, &[0, 6])?;
    let next = token(case, 3, PROMPTS[3]);
    block_on(sequences.step(&[(6, next), (1, next), (0, next)], &[Draw::LIKELIEST; 3], vocab))?;
    let (logits, stride) = block_on(sequences.all_logits(3))?;
    let same = logits.chunks(stride).all(|row| row[..vocab] == all[3][vocab..2 * vocab]);
    check_that(&format!("{}: copies have the same bytes", case.name), same)
}

/// Families that together cover most parts: per-layer embeddings, windows, experts, delta nets.
const PARTS: [&str; 2] = ["dense", "qwen35moe"];

/// Those families.
pub fn parts(gpu: &Gpu) -> Result<(), Failed> {
    PARTS.into_iter().map(golden_case).try_for_each(|case| of_case(gpu, &case))
}

/// All other families.
pub fn others(gpu: &Gpu) -> Result<(), Failed> {
    let kin = golden::KIN.into_iter().map(golden_case);
    let others = cases().into_iter().chain(kin).filter(|case| !PARTS.contains(&&*case.name));
    others.into_iter().try_for_each(|case| of_case(gpu, &case))
}

fn of_case(gpu: &Gpu, case: &Case) -> Result<(), Failed> {
    compare(gpu, case, &Model::load(gpu, &case.base, 64)?)
}

/// Experts in host memory.
pub fn offloaded(gpu: &Gpu) -> Result<(), Failed> {
    let case = golden_case("moe");
    let layers = case.base.config().layers.iter().enumerate();
    let experts = layers.filter(|(_, l)| l.experts.is_some()).map(|(layer, _)| layer).collect();
    let on_host = OnHost { experts, ..OnHost::default() };
    let model = block_on(Model::offloading(gpu, &case.base, 64, &on_host, |_| ()))?;
    compare(gpu, &case, &model)
}

fn request(prompt: &[u32], temperature: f64, seed: u64, max_new_tokens: usize) -> Request {
    let sampling = Sampling { temperature, seed, ..Sampling::GREEDY };
    Request { prompt: prompt.to_vec(), sampling, max_new_tokens }
}

/// Completions are the same for any number of sequences and any order, and those of one conversation after the other.
pub fn completions(gpu: &Gpu) -> Result<(), Failed> {
    let frozen = OpenBase::named("tiny", &Template::Auto)?;
    let model = Model::load(gpu, &frozen.base, 128)?;
    let adapter = random_adapter(&frozen.base, 4, 3);
    let prompts: Vec<Vec<u32>> = ["Hello!", "What is 7 plus 8?", "Spell the word river."]
        .into_iter()
        .map(|message| frozen.prompt(message))
        .collect::<Result<_, _>>()?;
    let requests: Vec<Request> = (0..11)
        .map(|i| request(&prompts[i % 3], [0.0, 1.0, 0.7][i / 3 % 3], i as u64, 1 + 4 * (i % 4)))
        .collect();
    let lengths = Lengths { context: 64, chunk: 64 };
    let complete = |count: usize, requests: &[Request]| -> Result<Vec<Completion>, Failed> {
        let workspace = block_on(Workspace::for_sequences(gpu, &model, lengths, adapter.rank, count))?;
        let mut batch = Batch::new(&workspace, &frozen.tokenizer, Some(&adapter))?;
        let mut heard = vec![Vec::new(); requests.len()];
        let mut done = 0;
        let found = block_on(batch.complete(requests, |event| {
            match event {
                Event::Token { of, id } => heard[of].push(id),
                Event::Done(_) => done += 1,
            }
            ControlFlow::Continue(())
        }))?;
        let same = found.iter().zip(&heard).all(|(completion, heard)| &completion.ids == heard);
        check_that("every token and every end is heard of", same && done == requests.len())?;
        let stopped = block_on(batch.complete(requests, |_| ControlFlow::Break(())))?;
        let tokens: usize = stopped.iter().map(|completion| completion.ids.len()).sum();
        check_that("the first break cancels what is left", tokens == 1)?;
        Ok(found)
    };
    let expected = complete(8, &requests)?;
    for count in [1, 3] {
        check_that(&format!("the same among {count}"), complete(count, &requests)? == expected)?;
    }
    let reversed: Vec<Request> = requests.iter().rev().cloned().collect();
    let mut found = complete(3, &reversed)?;
    found.reverse();
    check_that("the same in reverse", found == expected)?;

    let workspace = Workspace::new(gpu, &model, lengths, adapter.rank)?;
    let mut generator = Generator::new(&workspace, &frozen.tokenizer, Some(&adapter))?;
    for (request, completion) in requests.iter().zip(&expected) {
        let Request { prompt, sampling, max_new_tokens } = request.clone();
        let options = Options { sampling, max_new_tokens, stop: Vec::new(), logprobs: Some(0) };
        generator.reset();
        let reply = block_on(generator.reply(&prompt, &options, |_| ControlFlow::Continue(())))?;
        let end = reply.end.iter().map(|score| score.id);
        let ids: Vec<u32> = reply.ids.iter().copied().chain(end).collect();
        check_that("a conversation alone says the same", ids == completion.ids)?;
        check_that("it ends for the same reason", reply.finish == completion.finish)?;
        let ends = completion.finish == Finish::Stop;
        check_that("the end token is part", ends == reply.end.is_some())?;
        if request.sampling.temperature != 0.7 {
            let scores = reply.scores.iter().chain(&reply.end).map(|score| score.logprob);
            let worst = scores.zip(&completion.logprobs).map(|(a, &b)| (a - f64::from(b)).abs());
            check("log-probabilities", worst.fold(0.0, f64::max), 1e-4)?;
        }
    }
    Ok(())
}
