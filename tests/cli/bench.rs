//! `bench` and its sweeps.

use serde_json::Value as Json;

use super::Place;

pub fn bench_numbers(place: Place) {
    let expected = "--batch, --sequence, --rank and --steps start at 1, and --sequence ends at 1024";
    for wrong in ["--batch=0", "--sequence=0", "--sequence=1025", "--rank=0", "--steps=0"] {
        place.refused(&["bench", "tiny", wrong], expected);
    }
    place.refused(
        &["bench", "tiny", "--sequence=8", "--loss-share=1"],
        "--loss-share 1 leaves no token of 8 with loss; raise one of the two",
    );
    place.refused(
        &["bench", "model.gguf", "--sweep=layers"],
        "--sweep layers varies a size of Gemma 4 with random weights: e2b, e4b, 12b, 26b-a4b, 31b, or tiny for a trial; found \
         model.gguf",
    );
    place.refused(
        &["bench", "tiny", "--sweep=tokens", "--sequence=63"],
        "--sweep tokens begins with 1/32 of --sequence, which is 63; raise it to 64 or more",
    );
}

pub fn bench(place: Place) {
    place.refused_on_device(
        &["bench", "tiny", "--memory-limit=0.001"],
        "--memory-limit is 0.001 GiB, 1 × 512 tokens need … with every layer recomputed; lower --sequence or --batch",
    );
    let text = place.run(&["bench", "tiny", "--sequence=8", "--steps=1", "--rank=2", "--json"]);
    let found: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(found["tokens_per_second"].as_f64().is_some_and(|speed| speed > 0.0), "{text}");
    let text = place.run(&["bench", "tiny", "--sequence=8", "--steps=1", "--rank=2"]);
    assert!(text.contains("step       1 × 8 tokens, rank 2: "), "{text}");
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
        &[&step[..], &[&limit(smallest - 4096)]].concat(),
        "--memory-limit is … GiB, 1 × 64 tokens need … with every layer recomputed; lower --sequence or --batch",
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
            positive("step_seconds") && positive("planned_bytes") && positive("time_of_straight_line"),
            "{text}"
        );
        let page = String::from_utf8(place.read("page.html")).expect("UTF-8");
        assert!(page.contains("<svg") && page.contains(&format!("Cost against {varied}")), "{page}");
        assert!(!page.contains("http"), "the page needs nothing else");
    }
    let text = place.run(&["bench", "tiny", "--sweep=tokens", "--sequence=64", "--steps=1", "--rank=2"]);
    assert!(text.contains("tokens     64: ") && text.contains("written    tiny-by-tokens.html"), "{text}");
}
