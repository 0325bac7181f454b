//! The self-test's own cases: each passes on sound kernels, and each planted fault is seen by the case that is there for it.

use std::time::Instant;

use libtest_mimic::Failed;
use pollster::block_on;
use rullama_train::cases;
use rullama_train::cases::case::Case;
use rullama_train::gpu::{Fault, Gpu};
use rullama_train::ops::op::{OPS, Variant};
use rullama_train::selftest::model::Golden;
use rullama_train::selftest::{self, memory};

use super::check::Outcome;
use super::gpu::Test;

/// Ops that run only within other cases, and the one that is measured.
const WITHIN_OTHERS: [&str; 5] = ["pack", "partial_sums", "peak", "row_factors", "update_norm"];

/// A wrong kernel: what goes wrong, the case that must see it, the shader, and the change of its text.
struct Planted {
    what: &'static str,
    seen_by: (&'static str, &'static str),
    fault: Fault,
}

const fn planted(
    what: &'static str,
    seen_by: (&'static str, &'static str),
    shader: &'static str,
    right: &'static str,
    wrong: &'static str,
) -> Planted {
    Planted { what, seen_by, fault: Fault { shader, right, wrong } }
}

const PRODUCTS: (&str, &str) = ("linear", "products");
const ADAPTER: (&str, &str) = ("lora", "gradients");
const ATTENTION: (&str, &str) = ("attention", "forward and backward");
const CAPPED: (&str, &str) = ("attention", "a softcap");
const DECODERS: (&str, &str) = ("embedding", "decoders of every format");
const ADAMW: (&str, &str) = ("adamw", "AdamW, clipping, norms");
const LOSSES: (&str, &str) = ("cross_entropy", "losses, gradients, softcap");
const ROUTER: (&str, &str) = ("experts", "router and groups");
const SHARED: (&str, &str) = ("experts", "the gate of a shared one");
const LATENT: (&str, &str) = ("latent", "heads of latent vectors");
const SCALE: (&str, &str) = ("scale", "in place");

/// Faults of drivers and kernels, planted in the kernels that every device runs.
const FAULTS: [Planted; 60] = [
    planted(
        "signs of eight values are read without the one that seven give",
        DECODERS,
        "embedding/plain",
        "((countOneBits(seven) & 1u) << 7u)",
        "0u",
    ),
    planted(
        "every table of a grid begins a word late",
        DECODERS,
        "embedding/plain",
        "let at = i / 2u;\n    return (weight",
        "let at = i / 2u + 1u;\n    return (weight",
    ),
    planted(
        "every token has the first one's per-layer embedding",
        ("per_layer", "inputs of layers"),
        "per_layer/layer",
        "ids[params.ids_offset + row]",
        "ids[params.ids_offset]",
    ),
    planted(
        "every shared expert's output has the first token's gate",
        SHARED,
        "experts/shared",
        "+ open(row)",
        "+ open(0u)",
    ),
    planted(
        "every shared expert's gradient has the first token's gate",
        SHARED,
        "experts/shared",
        "= open(row)",
        "= open(0u)",
    ),
    planted(
        "forgets the slope of a shared expert's gate",
        SHARED,
        "experts/shared",
        "sigmoid(score) * sigmoid(-score)",
        "sigmoid(score)",
    ),
    planted(
        "copies the first columns in the place of others",
        ("columns", "to others and back"),
        "columns/plain",
        "params.from_stride + params.from_first + column",
        "params.from_stride + column",
    ),
    planted("writes nothing", SCALE, "scale/plain", "i < params.count4", "i + 1000000u < params.count4"),
    planted("a product writes nothing", PRODUCTS, "linear/tiled", "result[at] = sum_a;", ""),
    planted(
        "drops the last row",
        PRODUCTS,
        "linear/tiled",
        "at, row < params.rows",
        "at, row + 1u < params.rows",
    ),
    planted(
        "drops the last columns",
        PRODUCTS,
        "linear/tiled",
        "let right = col4 + 1u < cols4",
        "let right = col4 + 3u < cols4",
    ),
    planted(
        "writes behind the last row",
        PRODUCTS,
        "linear/tiled",
        "at, row < params.rows",
        "at, row < params.rows + 1u",
    ),
    planted(
        "a stale offset",
        PRODUCTS,
        "linear/tiled",
        "params.y_stride4 + params.y_offset4",
        "params.y_stride4",
    ),
    planted(
        "adds where it should write",
        PRODUCTS,
        "linear/tiled",
        "params.accumulate == 1u && left",
        "left",
    ),
    planted(
        "a step of the sum is missing",
        PRODUCTS,
        "linear/tiled",
        "step < STEPS; step++",
        "step < STEPS - 1u; step++",
    ),
    planted(
        "a barrier is missing: reads what the last round left",
        PRODUCTS,
        "linear/tiled",
        "tile_q[step * PITCH + q_at + 1u]",
        "tile_q[(step + 1u) % STEPS * PITCH + q_at + 1u]",
    ),
    planted("the adapter's scale is forgotten", PRODUCTS, "linear/tiled", "params.lora_scale * lora", "lora"),
    planted(
        "scale and minimum of Q4_K swapped",
        DECODERS,
        "embedding/plain",
        "16.0 * factors.x * sixteenths(q) - (16.0 * factors.x + factors.y)",
        "16.0 * factors.y * sixteenths(q) - (16.0 * factors.y + factors.x)",
    ),
    planted(
        "subnormal numbers become zero",
        DECODERS,
        "embedding/plain",
        "unpack2x16float(weight[i / 2u][at])",
        "(unpack2x16float(weight[i / 2u][at]) * vec2<f32>(abs(unpack2x16float(weight[i / 2u][at])) >= vec2<f32>(6.1035e-5)))",
    ),
    planted("adds twice", ADAPTER, "lora/tiled", "sum_a += result[at];", "sum_a += 2.0 * result[at];"),
    planted("the last token is missing", ADAPTER, "lora/tiled", "t >= params.rows", "t + 1u >= params.rows"),
    planted(
        "the sum of a row is one thread's",
        ("rms_norm", "forward and backward"),
        "rms_norm/plain",
        "sum += reduce_values[i];",
        "sum = reduce_values[i];",
    ),
    planted(
        "turns the wrong way",
        ("rope", "forward and backward"),
        "rope/plain",
        "a * turn.x - sign",
        "a * turn.x + sign",
    ),
    planted(
        "positions of the first sample",
        ("rope", "forward and backward"),
        "rope/plain",
        "positions[row / params.heads]",
        "(min(positions[row / params.heads], 0u) + row / params.heads)",
    ),
    planted("a constant of GELU", ("gated", "forward and backward"), "gated/plain", "0.044715", "0.045715"),
    planted(
        "not a number in one lane",
        SCALE,
        "scale/plain",
        "y[i] = params.scale * y[i];",
        "y[i] = params.scale * y[i]; if i == 70u { y[i].x = bitcast<f32>(0x7fc00000u + i); }",
    ),
    planted(
        "a softcap that is too high",
        LOSSES,
        "cross_entropy/plain",
        "return params.softcap * tanh",
        "return 1.01 * params.softcap * tanh",
    ),
    planted(
        "exp overflows",
        LOSSES,
        "cross_entropy/plain",
        "exp((logits[at + i] - largest) * params.coldness)",
        "exp((logits[at + i] + 40.0 - largest) * params.coldness)",
    ),
    planted(
        "gradients without the temperature",
        LOSSES,
        "cross_entropy/plain",
        "let coefficient = params.coldness * coefficients",
        "let coefficient = coefficients",
    ),
    planted(
        "no slope of the softcap",
        LOSSES,
        "cross_entropy/plain",
        "(1.0 - slope_root * slope_root)",
        "1.0",
    ),
    planted(
        "AdamW without bias correction",
        ADAMW,
        "adamw/plain",
        "params.learning_rate / params.bias_correction1 * m",
        "params.learning_rate * m",
    ),
    planted(
        "weight decay is forgotten",
        ADAMW,
        "adamw/plain",
        "(1.0 - params.learning_rate * params.weight_decay)",
        "1.0",
    ),
    planted(
        "clipping is forgotten",
        ADAMW,
        "adamw/plain",
        "let g = clip[1] * gradients[i];",
        "let g = gradients[i];",
    ),
    planted(
        "the norm misses a part",
        ADAMW,
        "adamw/grad_norm",
        "(group.x + 1u) * STRIPE",
        "(group.x + 1u) * STRIPE - 64u",
    ),
    planted("the second moment is first", ADAMW, "adamw/plain", "second[i] = v;", "second[i] = m;"),
    planted(
        "gradient descent climbs",
        ("adamw", "gradient descent"),
        "adamw/plain",
        "parameters[i] -= ",
        "parameters[i] += ",
    ),
    planted(
        "a lost row is not reported",
        ("row_status", "right, wrong, lost"),
        "row_status/plain",
        "lost || any(there & not_finite4(z))",
        "lost",
    ),
    planted(
        "weights of experts are not divided by their sum",
        ROUTER,
        "experts/router",
        "weights[row * params.used + k] /= sum",
        "weights[row * params.used + k] *= 1.0",
    ),
    planted(
        "a short convolution reaches into the sample before",
        ("short_conv", "forward and backward"),
        "short_conv/plain",
        "if t < bounds[t].x + n {",
        "if t < 0u * bounds[t].x + n {",
    ),
    planted(
        "the gradient of a short convolution reaches into the sample behind",
        ("short_conv", "forward and backward"),
        "short_conv/plain",
        "t + n >= bounds[t].y",
        "t + n >= params.tokens",
    ),
    planted(
        "a short convolution forgets the tokens before a pass",
        ("short_conv", "tokens that continue others"),
        "short_conv/plain",
        "if past[0] + t >= n {",
        "if past[0] + t >= n + 1000u {",
    ),
    planted(
        "all sequences have the last inputs of the first",
        ("short_conv", "tokens that continue others"),
        "short_conv/plain",
        "return sequence * (",
        "return 0u * sequence * (",
    ),
    planted(
        "keys of a latent vector lack the part of all heads",
        LATENT,
        "latent/plain",
        "value = shared_part[",
        "value = 0.0 * shared_part[",
    ),
    planted(
        "all heads have the first one's part of the gradient",
        LATENT,
        "latent/plain",
        "heads[place(row, head, params.shared4 + i)]",
        "heads[place(row, 0u * head, params.shared4 + i)]",
    ),
    planted(
        "the gradient of the part of all heads is that of the last",
        LATENT,
        "latent/plain",
        "total += heads",
        "total = heads",
    ),
    planted(
        "the bias of a choice weighs",
        ROUTER,
        "experts/router",
        "let weight = sigmoid(scores[row * params.stride + expert]);",
        "let weight = score;",
    ),
    planted(
        "forgets the slope of a router's sigmoid",
        ROUTER,
        "experts/router",
        "dscore *= sigmoid(",
        "dscore *= 1.0 + 0.0 * sigmoid(",
    ),
    planted(
        "experts that are not chosen have no gradient",
        ROUTER,
        "experts/router",
        "dscore = -mean * weights",
        "dscore = -0.0 * mean * weights",
    ),
    planted("rows in another order", ROUTER, "experts/groups", "places[i] = row;", "places[i] = row + 1u;"),
    planted(
        "every expert has the scale of the first",
        ("gated", "experts, and back to tokens"),
        "experts/combine",
        "weights[k] * scales[chosen[k]]",
        "weights[k] * scales[chosen[k] * 0u]",
    ),
    planted(
        "a token of the teacher counts among the rest",
        ("distill", "divergences from a teacher"),
        "distill/plain",
        "unlisted[listed % 4u] = false;",
        "unlisted[listed % 4u] = true;",
    ),
    planted(
        "the rest has one gradient",
        ("distill", "divergences from a teacher"),
        "distill/plain",
        "found.of_rest * exp(warm - found.rest)",
        "found.of_rest * exp(warm - warm)",
    ),
    planted(
        "the last of equal values first",
        ("argmax", "the likeliest tokens of rows"),
        "argmax/top",
        "found_indices[n] < i",
        "found_indices[n] > i",
    ),
    planted(
        "the segment before is drawn from",
        ("categorical", "drawn tokens"),
        "categorical/plain",
        "chosen = here;",
        "chosen = here - min(here, 1u);",
    ),
    planted(
        "the likeliest in place of a draw",
        ("categorical", "drawn tokens"),
        "categorical/plain",
        "draw.point >= 0.0",
        "draw.point >= 9.0",
    ),
    planted(
        "the last of equal values",
        ("argmax", "the likeliest token"),
        "argmax/plain",
        "b.index < a.index",
        "b.index > a.index",
    ),
    planted(
        "the cache's first row for every token",
        ("cached_heads", "into the cache"),
        "cached_heads/plain",
        "position % params.ring",
        "0u * position",
    ),
    planted(
        "an old token is seen",
        ("cached_attention", "over a cache"),
        "cached_attention/plain",
        "position + 1u - params.window",
        "position - params.window",
    ),
    planted(
        "a mask of another key",
        ("dropout", "masks"),
        "dropout/plain",
        "pcg(pcg(params.key) +",
        "pcg(pcg(params.key + 1u) +",
    ),
    planted(
        "the stream is not scaled",
        ("block_end", "stream and next norm"),
        "block_end/plain",
        "params.scale * (before0",
        "(before0",
    ),
];

/// Faults of attention, which a software device compiles in 15 s each: planted with RULLAMA_PLANTED_FAULTS=1.
const SLOW_FAULTS: [Planted; 3] = [
    planted(
        "a window that is one too wide",
        ATTENTION,
        "attention/tiled",
        "query + 1u - min(params.window, query + 1u)",
        "query - min(params.window, query)",
    ),
    planted("samples see each other", ATTENTION, "attention/tiled", "max(start, select(", "max(0u, select("),
    planted(
        "heads read the first head's keys",
        ATTENTION,
        "attention/tiled",
        "head / (params.heads / params.kv_heads)",
        "0u * head",
    ),
];

/// Faults of software renderers' kernels, whose subgroups are SIMD registers.
const SOFTWARE_FAULTS: [Planted; 3] = [
    planted(
        "a subgroup of another size",
        PRODUCTS,
        "linear/software",
        "subgroupBroadcast(w, 1u * 4u",
        "subgroupBroadcast(w, 0u * 4u",
    ),
    planted(
        "a lane reads its own value",
        ATTENTION,
        "attention/software",
        "subgroupBroadcast(w, 0u * 4u + 1u)",
        "w",
    ),
    planted("forgets the slope of the softcap", CAPPED, "attention/software", "t0_0_0 *= slope0_0_0;", ""),
];

/// Faults of kernels that write f16 tiles, for devices with f16.
const PACKED_FAULTS: [Planted; 6] = [
    planted(
        "a norm of all heads sums up one of them",
        ("heads", "forward and backward"),
        "heads/coop16",
        "of_heads += sums[lane - own + h]",
        "of_heads = sums[lane]",
    ),
    planted(
        "forgets the weights behind the rotary embedding",
        ("heads", "forward and backward"),
        "heads/coop16",
        "vec4<f16>(w_two * (",
        "vec4<f16>((",
    ),
    planted(
        "values overflow f16",
        ("gated", "tiles, forward and backward"),
        "gated/coop16",
        "return bitcast<f32>((253u - e) << 23u);",
        "return 1.0;",
    ),
    planted(
        "reads the factors of the first block for all",
        ("gated", "tiles, forward and backward"),
        "gated/tiles",
        "let block = part.column / 16u * params.stride + token;",
        "let block = token;",
    ),
    planted(
        "reads the factors of a norm's first block for all",
        ("norm_add", "norms and sums as tiles"),
        "norm_add/coop16",
        "x_factors[c / 64u * params.x_blocks + row]",
        "x_factors[row]",
    ),
    planted(
        "forgets the scale of an added gradient",
        ("norm_add", "norms and sums as tiles"),
        "rms_norm/coop16",
        "= params.scale * (old0",
        "= (old0",
    ),
];

/// Faults of kernels on cooperative matrices of 8×8.
const COOP8_FAULTS: [Planted; 1] =
    [planted("forgets the slope of the softcap", CAPPED, "attention/coop8", " * slope_of_one(s)", "")];

/// Faults of kernels on cooperative matrices of 16×16.
const COOP16_FAULTS: [Planted; 5] = [
    planted(
        "scores without their softcap",
        CAPPED,
        "attention/coop16",
        "= capped(params.scale * scores[row * SCORE_PITCH + c]) - most",
        "= params.scale * scores[row * SCORE_PITCH + c] - most",
    ),
    planted(
        "weights of backward without the softcap",
        CAPPED,
        "attention/coop16_scores",
        "let s = capped(params.scale * scores);",
        "let s = params.scale * scores;",
    ),
    planted(
        "forgets the slope of the softcap",
        CAPPED,
        "attention/coop16_scores",
        "vec4<f16>(p * slope_at(s))",
        "vec4<f16>(p)",
    ),
    planted(
        "a subgroup's share of a sum is missing",
        ("lora", "products and gradients"),
        "lora/coop16_project",
        "var s = 0u; s < 8u; s++",
        "var s = 1u; s < 8u; s++",
    ),
    planted(
        "the scaling of a wide operand's rows is not undone",
        ("lora", "products and gradients"),
        "lora/coop16_project",
        "params.scale * factors_0[t] * sum",
        "params.scale * sign(factors_0[t]) * sum",
    ),
];

pub fn tests() -> Vec<Test> {
    for op in OPS.iter().filter(|op| !WITHIN_OTHERS.contains(&op.name)) {
        assert!(of_selftest().any(|case| case.op == op.name), "the self-test has no case of {}", op.name);
    }
    let mut tests = Vec::new();
    for case in of_selftest() {
        let run = |gpu: &Gpu| sound(gpu, case);
        let name = format!("self-test/{}: {}", case.op, case.name);
        // The kernels of GPUs compile for a minute on a software renderer, and other tests run them there.
        let slow = |variant| match case.name {
            "products in every format" => variant != Variant::F32,
            "a softcap" => [Variant::Plain, Variant::F16].contains(&variant),
            _ => false,
        };
        let test = |variant: &Variant| Test::new(name.clone(), *variant, run).slow(slow(*variant));
        tests.extend(case.variants.iter().map(test));
    }
    tests.push(Test::new("self-test/a copy of memory", Variant::F32, copies));
    for variant in [Variant::F32, Variant::F16, Variant::Coop8, Variant::Coop16] {
        tests.push(Test::new("self-test/two small models", variant, models));
    }
    tests.extend(planted_tests());
    tests
}

/// Faults of kernels, and the kernels that are turned off for them.
fn planted_tests() -> Vec<Test> {
    let mut tests = Vec::new();
    tests.push(Test::new("self-test/planted faults", Variant::Plain, |gpu| faults(gpu, &FAULTS)));
    if std::env::var_os("RULLAMA_PLANTED_FAULTS").is_some() {
        tests.push(Test::new("self-test/planted faults of attention", Variant::Plain, |gpu| {
            faults(gpu, &SLOW_FAULTS)
        }));
    }
    tests.push(Test::new("self-test/planted faults of software kernels", Variant::F32, |gpu| {
        if gpu.kernels().software_lanes().is_none_or(|lanes| lanes < 8) {
            return Ok(());
        }
        faults(gpu, &SOFTWARE_FAULTS)
    }));
    tests.push(Test::new("self-test/planted faults of tiles", Variant::Packed, |gpu| {
        faults(gpu, &PACKED_FAULTS)
    }));
    tests.push(Test::new("self-test/planted faults on matrices of 8×8", Variant::Coop8, |gpu| {
        faults(gpu, &COOP8_FAULTS)
    }));
    tests.push(Test::new("self-test/planted faults on matrices of 16×16", Variant::Coop16, |gpu| {
        faults(gpu, &COOP16_FAULTS)
    }));
    tests.push(Test::new("self-test/the fallback", Variant::F32, fallback));
    tests.push(Test::new("self-test/planted faults in a model", Variant::Plain, faults_in_a_model));
    tests
}

/// The cases of the self-test, on any kernels.
fn of_selftest() -> impl Iterator<Item = &'static Case> {
    cases::all().filter(|case| case.shapes.counts()[0] > 0)
}

fn sound(gpu: &Gpu, case: &Case) -> Outcome {
    let worst = block_on(selftest::run(gpu, case))?;
    println!("{}: {}: worst {:.0} % of what is allowed", case.op, case.name, 100.0 * worst);
    Ok(())
}

/// Every fault makes its case red. One whose text is in no kernel changes nothing, and is missed.
fn faults(gpu: &Gpu, faults: &[Planted]) -> Outcome {
    let mut missed = Vec::new();
    for Planted { what, seen_by, fault } in faults {
        let own = |case: &&Case| (case.op, case.name) == *seen_by;
        // Kernels beside products on tiles run without those, too.
        let case = cases::of_selftest(gpu).find(own).or_else(|| of_selftest().find(own));
        let case = case.ok_or(format!("there is no case {seen_by:?}"))?;
        let started = Instant::now();
        gpu.plant(Some(*fault));
        let found = block_on(selftest::run(gpu, case));
        gpu.plant(None);
        let reported = gpu.take_reported();
        gpu.check()?;
        match found {
            // A kernel that the device refuses shows nothing.
            _ if reported.is_some() => missed.push(format!("{what}: {reported:?}")),
            Err(reason) => println!("{:4.1} s {what}: {reason}", started.elapsed().as_secs_f64()),
            Ok(worst) => missed.push(format!("{what}: not seen by {seen_by:?}, {worst}")),
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("\n").into()) }
}

/// All bytes arrive, and a copy that leaves some out is seen.
fn copies(gpu: &Gpu) -> Outcome {
    block_on(memory::copy(gpu, 1 << 20))?;
    let (shader, right, wrong) = ("peak/plain", "i < params.count", "i + 3u < params.count");
    gpu.plant(Some(Fault { shader, right, wrong }));
    let found = block_on(memory::copy(gpu, 1 << 20));
    gpu.plant(None);
    match found {
        Err(reason) if reason.contains("as before the copy") => Ok(()),
        other => Err(format!("a partial copy: {other:?}").into()),
    }
}

fn models(gpu: &Gpu) -> Outcome {
    for (name, golden) in [("dense", Golden::dense()), ("mixture", Golden::mixture())] {
        block_on(golden.check(gpu, 2)).map_err(|reason| format!("{name}: {reason}"))?;
    }
    Ok(())
}

/// A fault turns off the fastest kernels and leaves the plain ones; one that all kernels have leaves none.
fn fallback(gpu: &Gpu) -> Outcome {
    let all = gpu.all_kernels();
    let sound = block_on(selftest::usable(gpu))?;
    if (sound.kernels, sound.failed.len()) != (Some(all[0]), 0) {
        return Err(format!("{:?} without a fault", sound.failed).into());
    }
    let (shader, right, wrong) = ("adamw/plain", "params.learning_rate / params.bias_correction1 * m", "m");
    gpu.plant(Some(Fault { shader, right, wrong }));
    let found = block_on(selftest::usable(gpu));
    gpu.plant(None);
    let found = found?;
    if found.kernels.is_some() || found.failed.len() != all.len() {
        return Err(format!("the optimizer: {:?} failed", found.failed).into());
    }
    if gpu.kernels().software_lanes().is_none() {
        return Ok(());
    }
    gpu.plant(Some(SOFTWARE_FAULTS[0].fault));
    let found = block_on(selftest::usable(gpu));
    gpu.plant(None);
    let found = found?;
    match (found.kernels == Some(all[1]), &found.failed[..]) {
        (true, [one]) if one.kernels == all[0] => Ok(()),
        _ => Err(format!("{:?} failed", found.failed).into()),
    }
}

/// The dense model sees faults that change what it computes.
fn faults_in_a_model(gpu: &Gpu) -> Result<(), Failed> {
    let golden = Golden::small();
    for what in ["writes nothing", "turns the wrong way", "AdamW without bias correction"] {
        let planted = FAULTS.iter().find(|planted| planted.what == what).ok_or("a planted fault")?;
        gpu.plant(Some(planted.fault));
        let found = block_on(golden.check(gpu, 2));
        gpu.plant(None);
        if let Some(reported) = gpu.take_reported() {
            return Err(format!("{what}: {reported}").into());
        }
        match found {
            Err(reason) => println!("{what}: {reason}"),
            Ok(()) => return Err(format!("{what}: the model does not see it").into()),
        }
    }
    Ok(())
}
