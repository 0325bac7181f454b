//! Epoch plans: each sample occurs once, no row is too long, plans are equal on every machine, little space is wasted, and
//! steps do not depend on how they are split into micro-batches.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rullama_train::data::batch::{BatchError, Batching, IGNORE, Sample, Step, StepPlan, draw, permutation};

const BATCHING: Batching = Batching {
    batch_size: 4,
    gradient_accumulation_steps: 2,
    max_seq_len: 1024,
    packing: true,
    shuffle: true,
    seed: 7,
};

/// Token counts similar to chat data: log-normal with median 200 and σ = 0.9, clamped to 8 and 1024.
fn chat_lengths(n: usize) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut uniform = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut normal = || (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    (0..n).map(|_| (200.0 * (0.9 * normal()).exp()).clamp(8.0, 1024.0) as usize).collect()
}

fn plan(batching: Batching, lengths: &[usize], epoch: u64) -> Vec<StepPlan> {
    batching.plan_epoch(lengths, epoch).expect("the settings and lengths are valid")
}

fn sorted(mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort_unstable();
    indices
}

#[test]
fn every_sample_comes_once_and_every_micro_batch_fits() {
    let lengths = chat_lengths(5000);
    for (packing, shuffle) in [(false, false), (false, true), (true, false), (true, true)] {
        let batching = Batching { packing, shuffle, ..BATCHING };
        let steps = plan(batching, &lengths, 2);
        let seen = sorted(steps.iter().flatten().flatten().copied().collect());
        assert_eq!(seen, (0..5000).collect::<Vec<_>>(), "packing {packing}, shuffle {shuffle}");
        for (number, step) in steps.iter().enumerate() {
            let full = number + 1 < steps.len();
            assert!(!full || step.len() == 2, "step {number} has {} micro-batches", step.len());
            assert!((1..=2).contains(&step.len()) && step.iter().all(|micro_batch| !micro_batch.is_empty()));
            for micro_batch in step {
                let tokens: usize = micro_batch.iter().map(|&i| lengths[i]).sum();
                assert!(tokens <= 4 * 1024, "{tokens} tokens in 4 rows of 1024");
                assert!(packing || !full || micro_batch.len() == 4);
            }
        }
    }
}

#[test]
fn a_row_is_never_overfull() {
    // With one row per micro-batch, micro-batches are rows.
    let lengths = chat_lengths(20_000);
    let rows = plan(Batching { batch_size: 1, ..BATCHING }, &lengths, 0).concat();
    let fullest = rows.iter().map(|row| row.iter().map(|&i| lengths[i]).sum::<usize>()).max();
    assert_eq!(fullest, Some(1024), "so many rows must hold a full one, and none more");
}

#[test]
fn the_order_depends_on_seed_and_epoch_alone() {
    let lengths = chat_lengths(1000);
    for packing in [false, true] {
        let batching = Batching { packing, ..BATCHING };
        let first = plan(batching, &lengths, 0);
        assert_eq!(first, plan(batching, &lengths, 0));
        assert_ne!(first, plan(batching, &lengths, 1), "another epoch, packing {packing}");
        assert_ne!(
            first,
            plan(Batching { seed: 8, ..batching }, &lengths, 0),
            "another seed, packing {packing}"
        );
        let unshuffled = Batching { shuffle: false, ..batching };
        assert_eq!(plan(unshuffled, &lengths, 0), plan(unshuffled, &lengths, 1));
    }
    let in_order = plan(Batching { shuffle: false, packing: false, ..BATCHING }, &lengths, 0);
    assert_eq!(in_order.concat().concat(), (0..1000).collect::<Vec<_>>());
}

#[test]
fn permutations_are_the_same_on_every_machine() {
    // Computed by ChaCha8 written out in Python (key = seed, nonce = stream). Resumed runs rely on these numbers.
    assert_eq!(permutation(10, 0, 0), [9, 2, 3, 4, 6, 7, 0, 1, 5, 8]);
    assert_eq!(permutation(10, 42, 3), [1, 5, 9, 3, 2, 0, 7, 8, 6, 4]);
    assert!(permutation(0, 1, 1).is_empty());
}

#[test]
fn permutations_are_uniform() {
    // Each of the 4! orders is expected 1000 times in 24 000; the standard deviation is √(1000·23/24) = 31.
    let mut counts = std::collections::BTreeMap::new();
    for stream in 0..24_000 {
        *counts.entry(permutation(4, 5, stream)).or_insert(0u32) += 1;
    }
    assert_eq!(counts.len(), 24);
    assert!(counts.values().all(|n| (840..=1160).contains(n)), "{counts:?}");
}

#[test]
fn a_step_does_not_depend_on_the_split() {
    let lengths = chat_lengths(1003);
    for packing in [false, true] {
        let samples_of_steps = |batch_size, gradient_accumulation_steps| -> Vec<Vec<usize>> {
            let batching = Batching { batch_size, gradient_accumulation_steps, packing, ..BATCHING };
            plan(batching, &lengths, 1).into_iter().map(|step| sorted(step.concat())).collect()
        };
        let expected = samples_of_steps(8, 1);
        for (batch_size, accumulation) in [(4, 2), (2, 4), (1, 8)] {
            let found = samples_of_steps(batch_size, accumulation);
            assert_eq!(found, expected, "{batch_size} × {accumulation}, packing {packing}");
        }
    }
}

#[test]
fn packing_wastes_under_two_percent() {
    let lengths = chat_lengths(100_000);
    let tokens: usize = lengths.iter().sum();
    for max_seq_len in [1024, 2048, 4096] {
        let batching = Batching { batch_size: 1, max_seq_len, ..BATCHING };
        let start = std::time::Instant::now();
        let rows = plan(batching, &lengths, 0).concat();
        let seconds = start.elapsed().as_secs_f64();
        let waste = 1.0 - tokens as f64 / (rows.len() * max_seq_len) as f64;
        println!(
            "max_seq_len {max_seq_len}: {} rows, {:.2} % waste, {seconds:.3} s",
            rows.len(),
            100.0 * waste
        );
        assert!(waste < 0.02, "{waste}");
    }
}

#[test]
fn packed_steps_mix_lengths() {
    // The mean length of a step's samples must not drift through the epoch, and a step must hold short and long ones.
    let lengths = chat_lengths(50_000);
    let steps = plan(Batching { batch_size: 8, ..BATCHING }, &lengths, 0);
    let mean = |part: &[StepPlan]| {
        let samples = part.concat().concat();
        samples.iter().map(|&i| lengths[i]).sum::<usize>() as f64 / samples.len() as f64
    };
    let all = mean(&steps);
    for (number, part) in steps.chunks(steps.len().div_ceil(8)).enumerate() {
        let part = mean(part);
        assert!((part / all - 1.0).abs() < 0.1, "eighth {number}: mean length {part:.0}, of all {all:.0}");
    }
    for (number, step) in steps[..steps.len() - 1].iter().enumerate() {
        let sizes = || step.iter().flatten().map(|&i| lengths[i]);
        let (short, long) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        assert!(short < 200 && long > 400, "step {number} holds samples of {short} to {long} tokens only");
    }
}

#[test]
fn hard_cases() {
    let one = |lengths: &[usize]| plan(BATCHING, lengths, 0);
    assert!(one(&[]).is_empty());
    assert_eq!(one(&[1024]), [[[0]]]);
    assert_eq!(one(&[1024; 3]).concat().concat().len(), 3);
    assert_eq!(one(&[1; 3000]).len(), 1, "3000 samples of one token fit into 3 rows");
    let error = |batching: Batching, lengths: &[usize]| batching.plan_epoch(lengths, 0).unwrap_err();
    let too_long = BatchError::TooLong { index: 1, length: 1025, max_seq_len: 1024 };
    assert_eq!(error(BATCHING, &[3, 1025]), too_long);
    assert_eq!(error(Batching { packing: false, ..BATCHING }, &[3, 1025]), too_long);
    assert_eq!(error(Batching { batch_size: 0, ..BATCHING }, &[1]), BatchError::Zero("batch_size"));
    let no_steps = Batching { gradient_accumulation_steps: 0, ..BATCHING };
    assert_eq!(error(no_steps, &[1]), BatchError::Zero("gradient_accumulation_steps"));
    let huge = Batching { batch_size: usize::MAX, max_seq_len: usize::MAX, ..BATCHING };
    assert_eq!(plan(huge, &[5, 6], u64::MAX).concat().concat().len(), 2);
}

#[test]
fn a_step_counts_its_loss() {
    let sample = |ids: &[u32], labels: &[i32]| Sample {
        ids: ids.to_vec(),
        labels: labels.to_vec(),
        origin: String::new(),
        ..Sample::default()
    };
    let samples = [
        sample(&[5, 6, 7], &[5, IGNORE, 7]), // the first label is ignored
        sample(&[8, 9], &[IGNORE, 9]),
        sample(&[1, 2, 3], &[IGNORE, 2, 3]),
    ];
    let step = Step::new(&samples, &[vec![2, 0], vec![1]]);
    assert_eq!(step.loss_tokens, 2 + 1 + 1);
    let [first, second] = &step.micro_batches[..] else { panic!("two micro-batches: {step:?}") };
    assert_eq!(first.tokens, [1, 2, 3, 5, 6, 7]);
    assert_eq!(first.starts, [0, 0, 0, 3, 3, 3]);
    assert_eq!((&first.loss_rows[..], &first.targets[..]), (&[0, 1, 4][..], &[2, 3, 7][..]));
    assert_eq!((&second.loss_rows[..], &second.targets[..]), (&[0][..], &[9][..]));
}

#[test]
fn packing_wastes_little_where_lengths_are_alike() {
    // If all samples have nearly the same length, best fit leaves a gap in every row. The pirate's conversations have 22 to 52
    // tokens, 360 of them in rows of 256.
    let lengths: Vec<usize> =
        permutation(360, 9, 0).into_iter().map(|i| 22 + (i * i / 97) % 17 + (i / 7) % 14).collect();
    let tokens: usize = lengths.iter().sum();
    for max_seq_len in [128, 256, 512] {
        for epoch in 0..3 {
            let batching =
                Batching { batch_size: 1, gradient_accumulation_steps: 1, max_seq_len, ..BATCHING };
            let rows = plan(batching, &lengths, epoch).concat();
            assert_eq!(sorted(rows.concat()), (0..360).collect::<Vec<_>>());
            assert!(rows.iter().all(|row| row.iter().map(|&i| lengths[i]).sum::<usize>() <= max_seq_len));
            let waste = 1.0 - tokens as f64 / (rows.len() * max_seq_len) as f64;
            let least = 1.0 - tokens as f64 / (tokens.div_ceil(max_seq_len) * max_seq_len) as f64;
            println!("rows of {max_seq_len}: {} rows, {:.2} % waste", rows.len(), 100.0 * waste);
            assert!(waste < least + 0.02, "rows of {max_seq_len}: {waste}, at least {least}");
        }
    }
}

#[test]
fn mixtures_show_every_sample_as_often_as_its_weight_says() {
    assert_eq!(draw(&[1.0; 5], 3, 7), [0, 1, 2, 3, 4]);
    assert_eq!(draw(&[2.0, 1.0, 3.0], 3, 0), [0, 0, 1, 2, 2, 2]);
    // A third of 10 samples: three epochs show each of them once, as far as whole numbers allow.
    let weights = [vec![1.0 / 3.0; 10], vec![1.5; 4]].concat();
    let epochs: Vec<Vec<usize>> = (0..30).map(|epoch| draw(&weights, 42, epoch)).collect();
    assert_eq!(epochs, (0..30).map(|epoch| draw(&weights, 42, epoch)).collect::<Vec<_>>());
    assert_ne!(epochs, (0..30).map(|epoch| draw(&weights, 43, epoch)).collect::<Vec<_>>());
    assert!(epochs.iter().all(|drawn| drawn.is_sorted()));
    for (number, drawn) in epochs.iter().enumerate() {
        let small = drawn.iter().filter(|i| **i < 10).count();
        assert!((3..=4).contains(&small) && drawn.len() - small == 6, "epoch {number}: {drawn:?}");
    }
    let times = |i: usize| epochs.iter().flatten().filter(|j| **j == i).count();
    assert!((0..10).all(|i| times(i) == 10), "each of the ten in 30 epochs");
    assert!((10..14).all(|i| times(i) == 45), "each of the four in 30 epochs");
    let first: Vec<usize> = epochs[..3].concat().into_iter().filter(|i| *i < 10).collect();
    assert_eq!(sorted(first), (0..10).collect::<Vec<_>>(), "no sample twice before all came once");
}
