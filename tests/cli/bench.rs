//! `bench`, `bench --fits`, `bench --sweep` and `bench --decode`.

use serde_json::Value as Json;

use super::Place;
use super::talk::ADAPTER;

pub fn bench_numbers(place: Place) {
    for flag in ["--batch", "--sequence", "--rank", "--steps"] {
        place.refused(&["bench", "tiny", flag, "0"], &format!("{flag} must be at least 1"));
    }
    place.refused(
        &["bench", "tiny", "--batch=3", "--objective=dpo"],
        "--objective dpo compares pairs of sequences; give an even --batch",
    );
    place.refused(
        &["bench", "tiny", "--sequence=1025"],
        "--sequence 1025 is longer than the context of tiny, 1024 tokens; lower it",
    );
    place.refused(&["bench", "tiny", "--tier=f32"], "--tier is now called --kernels: use --kernels \"f32\"");
    place.refused(&["bench", "tiny", "--device=RTX"], "--device is now called --gpu: use --gpu \"RTX\"");
    place.refused(
        &["bench", "tiny", "--decode=1000"],
        "--decode 1000: expected 1 to 499 tokens after a prompt of 512",
    );
    place.refused(
        &["bench", "tiny", "--sequence=8", "--loss-share=1"],
        "--loss-share 1 leaves no loss token in a sequence of 8 tokens; raise one of the two",
    );
    let sizes = rullama_train::families::shape_names().join(", ");
    place.refused(
        &["bench", "model.gguf", "--sweep=layers"],
        &format!(
            "--sweep layers needs a published size ({sizes}, or tiny for a quick test), found model.gguf"
        ),
    );
    place.refused(
        &["bench", "tiny", "--sweep=tokens", "--sequence=63"],
        "--sweep tokens needs --sequence 64 or more, found 63",
    );
    place.refused(&["bench", "tiny", "--fits", "--time=0"], "--time must be at least 1");
    place.refused(
        &["bench", "tiny", "--sweep=memory", "--recompute"],
        "--sweep memory varies what is recomputed; leave --recompute out",
    );
}

pub fn bench(place: Place) {
    place.refused_on_device(
        &["bench", "tiny", "--memory-limit=0.001"],
        "--memory-limit is 0.001 GiB, but 1 × 512 tokens need … with every layer recomputed…; lower --sequence or --batch, or raise \
         the limit",
    );
    let text = place.run(&["bench", "tiny", "--sequence=8", "--steps=1", "--rank=2", "--json"]);
    let found: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(found["tokens_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{text}");
    let text = place.run(&["bench", "tiny", "--sequence=8", "--steps=1", "--rank=2"]);
    assert!(text.contains("step       1 × 8 tokens, rank 2: "), "{text}");
    let text = place.run(&["bench", "tiny", "--sequence=520", "--once", "--rank=2", "--json"]);
    let found: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let of = |key: &str| found[key].as_f64().unwrap_or_else(|| panic!("{key}: {text}"));
    assert!((of("tokens_per_second") * of("step_seconds") - 520.0).abs() < 1e-6, "{text}");
    for objective in ["dpo", "kto"] {
        let step =
            ["bench", "tiny", "--sequence=8", "--batch=2", "--steps=1", "--rank=2", "--json", "--objective"];
        let text = place.run(&[&step[..], &[objective]].concat());
        let found: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(found["objective"], objective, "{text}");
        assert!(found["first_loss"].as_f64().is_some_and(f64::is_finite), "{text}");
    }
}

pub fn plan(place: Place) {
    let step = ["bench", "tiny", "--sequence=64", "--steps=1", "--rank=2"];
    let text = place.run(&[&step[..], &["--plan", "--json"]].concat());
    let found: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let bytes = |key: &str| found[key].as_u64().unwrap_or_else(|| panic!("{key}: {text}"));
    let smallest = bytes("smallest_bytes");
    assert!(smallest < bytes("fastest_bytes"), "{text}");
    let limit = |bytes: u64| format!("--memory-limit={}", bytes as f64 / (1u64 << 30) as f64);
    place.run(&[&step[..], &[&limit(smallest)]].concat());
    let text = place.run(&[&step[..], &["--plan"]].concat());
    assert!(text.contains("smallest   ") && text.contains("fastest    "), "{text}");
    place.refused_on_device(
        &[&step[..], &["--offload-layers=0", "--offload-inputs=false", &limit(smallest - 4096)]].concat(),
        "--memory-limit is … GiB, but 1 × 64 tokens need … with every layer recomputed…; lower --sequence or --batch, or raise \
         the limit",
    );
}

pub fn fits(place: Place) {
    let bench = ["bench", "e2b", "--fits"];
    let found: Json = serde_json::from_str(&place.run(&[&bench[..], &["--json"]].concat())).expect("JSON");
    let sizes = found["sizes"].as_array().expect("sizes");
    for (size, next) in sizes.iter().zip(&sizes[1..]) {
        let [tokens, longer] = [size, next].map(|size| size["tokens"].as_u64().unwrap_or(0));
        assert!(tokens <= longer, "{found}");
        let bytes = size["planned_bytes"].as_u64().unwrap_or(0);
        assert!(bytes <= (size["gigabytes"].as_u64().expect("a size") - 1) << 30, "{found}");
    }
    assert!(sizes[0]["tokens"].as_u64() >= Some(1024), "{found}");
    // Whatever memory this machine has left.
    let text = place.run(&["bench", "31b", "--fits", "--host-memory=64"]);
    assert!(text.contains("6 GB       1 024 tokens, with ") && text.contains("24 GB      "), "{text}");
    let text = place.run(&["bench", "qwen3-30b-a3b", "--fits", "--host-memory=64"]);
    assert!(text.contains(" of matrices in host memory"), "{text}");
}

pub fn timed_fits(place: Place) {
    let bench = ["bench", "tiny", "--fits", "--rank=2", "--out=fits.tsv", "--time"];
    let text = place.run(&[&bench[..], &["16"]].concat());
    assert!(
        text.contains("24 GB      1 024 tokens, ") && text.contains(" tokens/s with 16 tokens"),
        "{text}"
    );
    let table = String::from_utf8(place.read("fits.tsv")).expect("UTF-8");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].ends_with("rank 2, 100 % loss tokens, sequences of at most 16 tokens timed"), "{table}");
    let rows: Vec<Vec<&str>> = lines[2..].iter().map(|row| row.split('\t').collect()).collect();
    assert_eq!(rows.iter().map(|row| row[1]).collect::<Vec<_>>(), ["6", "8", "12", "16", "24"], "{table}");
    for row in &rows {
        assert_eq!([row[0], row[2], row[3], row[5]], ["tiny", "1024", "16", "0"], "{table}");
        assert_eq!(row[4], rows[0][4], "plans with the same work have the same speed: {table}");
        assert!(row[4].parse::<u64>().is_ok_and(|speed| speed > 0), "{table}");
    }
    let again = place.run(&[&bench[..], &["16"]].concat());
    assert!(!again.contains("tokens/s"), "a base that the table has is not measured again: {again}");
    assert_eq!(String::from_utf8(place.read("fits.tsv")).expect("UTF-8"), table);
    place.refused_on_device(
        &[&bench[..], &["17"]].concat(),
        "fits.tsv: its rows were measured on \"…\", this run would add rows of \"…\"; remove it or name another --out",
    );
}

pub fn sweep(place: Place) {
    let each = ["--steps=1", "--rank=2", "--out=page.html"];
    for (varied, sequence, first, last, points) in
        [("tokens", "64", 2, 64, 6), ("layers", "8", 4, 8, 3), ("width", "8", 256, 768, 3)]
    {
        let sweep = ["bench", "tiny", "--json", "--sweep", varied, "--sequence", sequence];
        let text = place.run(&[&sweep[..], &each].concat());
        let found: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let at = |i: usize| found["points"][i][varied].as_u64();
        assert_eq!((at(0), at(points - 1), at(points)), (Some(first), Some(last), None), "{text}");
        let positive = |key: &str| found["points"][1][key].as_f64().is_some_and(|x| x > 0.0);
        assert!(
            positive("step_seconds")
                && positive("tokens_per_second")
                && positive("planned_bytes")
                && positive("time_of_straight_line"),
            "{text}"
        );
        let page = String::from_utf8(place.read("page.html")).expect("UTF-8");
        assert!(page.contains("<svg") && page.contains(&format!("Cost against {varied}")), "{page}");
        assert!(!page.contains("http"), "the page loads nothing from the network");
    }
    let sweep = ["bench", "tiny", "--json", "--sweep=memory", "--batch=2", "--sequence=64"];
    let found: Json = serde_json::from_str(&place.run(&[&sweep[..], &each].concat())).expect("JSON");
    let points = found["points"].as_array().expect("points");
    let limits: Vec<u64> = points.iter().filter_map(|point| point["memory"].as_u64()).collect();
    assert!(limits.len() == 6 && limits.is_sorted_by(|a, b| a < b), "{found}");
    let within =
        |point: &Json| point["planned_bytes"].as_u64() <= point["memory"].as_u64().map(|mib| mib << 20);
    assert!(points.iter().all(within), "{found}");
    let page = String::from_utf8(place.read("page.html")).expect("UTF-8");
    assert!(page.contains("Speed against the memory limit"), "{page}");
    let text = place.run(&["bench", "tiny", "--sweep=tokens", "--sequence=64", "--steps=1", "--rank=2"]);
    assert!(text.contains("tokens     64: ") && text.contains("written    tiny-by-tokens.html"), "{text}");
}

pub fn bench_decode(place: Place) {
    let bench = ["bench", "tiny", "--sequence=20", "--decode=3", "--rank=4"];
    let found: Json = serde_json::from_str(&place.run(&[&bench[..], &["--json"]].concat())).expect("JSON");
    let (base, adapted) = (&found["without_adapter"], &found["with_adapter"]);
    for speed in [base, adapted] {
        assert!(speed["tokens_per_second"].as_f64().is_some_and(|s| s > 0.0), "{found}");
    }
    // The adapter's products are fused: a token takes as many dispatches with it as without.
    assert_eq!(base["dispatches_per_token"], adapted["dispatches_per_token"]);
    assert!(base["dispatches_per_token"].as_u64().is_some_and(|n| n <= 13 * 4 + 7), "{found}");
    let several: Json =
        serde_json::from_str(&place.run(&[&bench[..], &["--parallel=3", "--json"]].concat())).expect("JSON");
    for speed in ["without_adapter", "with_adapter"] {
        assert!(several[speed]["tokens_per_second"].as_f64().is_some_and(|s| s > 0.0), "{several}");
    }
    assert_eq!(several["parallel"], 3);
    let text = place.run(&[&bench[..4], &["--adapter", ADAPTER]].concat());
    assert!(text.contains("without    prompt of 20 tokens ") && text.contains(", rank 8\n"), "{text}");
}
