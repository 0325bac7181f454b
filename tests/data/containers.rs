//! Containers of samples: lines, arrays, gzip, zstd, Parquet, folders and patterns.

use std::io::Write;
use std::path::Path;

use rullama_train::data::dataset::{Compression, Container, Dataset, Format, files, parse};

use super::shapes::with_tools;
use super::{OPTIONS, PAIR, tokenizer};

fn read(bytes: &[u8], name: &str) -> Result<Dataset, String> {
    parse(bytes, name, &with_tools(), &OPTIONS).map_err(|error| error.to_string())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

fn origins(dataset: &Dataset) -> Vec<&str> {
    dataset.samples.iter().map(|sample| sample.origin.as_str()).collect()
}

#[test]
fn arrays_hold_the_same_samples_as_lines() {
    let lines = format!("{PAIR}\n{{\"input_ids\": [2, 5]}}\n");
    let expected = read(lines.as_bytes(), "x.jsonl").expect("sound");
    for array in [
        format!("[{PAIR}, {{\"input_ids\": [2, 5]}}]"),
        format!("\u{feff} [\n{PAIR}\n,\n {{\"input_ids\": [2, 5]}}]\n"),
    ] {
        let found = read(array.as_bytes(), "x.json").expect("sound");
        assert_eq!(found.found.container, Container::Array);
        assert_eq!(origins(&found), ["x.json item 1", "x.json item 2"]);
        for (found, expected) in found.samples.iter().zip(&expected.samples) {
            assert_eq!((&found.ids, &found.labels), (&expected.ids, &expected.labels));
        }
    }
    let refused =
        |text: &str, expected: &str| assert_eq!(read(text.as_bytes(), "x.json"), Err(expected.to_owned()));
    refused("[]", "x.json: the JSON array contains no item");
    refused(&format!("[{PAIR}, 3]"), "x.json item 2: expected a JSON object, found a number");
    refused(
        &format!("[\n{PAIR}\n{PAIR}]"),
        "x.json: broken JSON at line 3, column 1: expected `,` or `]`; expected an array of objects",
    );
    refused(&format!("[1]\n{PAIR}"), "x.json line 1: expected a JSON object, found a list");
}

#[test]
fn compressed_files_are_recognized_by_their_first_bytes() {
    let lines = format!("{PAIR}\n{{\"input_ids\": [2, 5]}}\n");
    let plain = read(lines.as_bytes(), "x").expect("sound");
    let members = [gzip(PAIR.as_bytes()), gzip(b"\n{\"input_ids\": [2, 5]}")].concat();
    let zstd = zstd::stream::encode_all(lines.as_bytes(), 3).expect("in memory");
    let packed = [
        (gzip(lines.as_bytes()), Compression::Gzip),
        (members, Compression::Gzip),
        (zstd.clone(), Compression::Zstd),
    ];
    for (bytes, compression) in packed {
        let found = read(&bytes, "x").expect("sound");
        assert_eq!(found.found.compression, Some(compression));
        assert_eq!(found.samples, plain.samples);
    }
    let array = read(&gzip(format!("[{PAIR}]").as_bytes()), "x").expect("sound");
    assert_eq!((array.found.container, array.samples.len()), (Container::Array, 1));
    for (mut bytes, name) in [(gzip(lines.as_bytes()), "gzip"), (zstd, "zstd")] {
        bytes.truncate(bytes.len() - 6);
        let error = read(&bytes, "x.gz").expect_err("cut");
        assert!(error.starts_with(&format!("x.gz: cannot be decompressed as {name}: ")), "{error}");
    }
}

#[test]
fn parquet_rows_are_samples() {
    let bytes = include_bytes!("../fixtures/dataset/messages.parquet");
    let found = read(bytes, "m.parquet").expect("sound");
    assert_eq!(found.found.container, Container::Parquet);
    assert_eq!(found.found.shapes, [(Format::Messages, 3)]);
    assert_eq!(origins(&found), ["m.parquet row 1", "m.parquet row 2", "m.parquet row 3"]);
    let notices: Vec<String> = found.notices.iter().map(ToString::to_string).collect();
    // A null counts as a missing key.
    assert_eq!(notices, ["m.parquet: ignored keys: score (2 rows)"]);
    // The records of shapes.json as JSON Lines: "messages" and "tools".
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../fixtures/dataset/shapes.json")).expect("JSON");
    for (name, sample) in [("messages", &found.samples[0]), ("tools", &found.samples[1])] {
        let case = cases.iter().find(|case| case["name"] == name).expect("there");
        assert_eq!(serde_json::to_value(&sample.ids).expect("ids"), case["ids"]);
        assert_eq!(serde_json::to_value(&sample.labels).expect("labels"), case["labels"]);
    }
    let text = read(include_bytes!("../fixtures/dataset/text.parquet"), "t.parquet").expect("sound");
    assert_eq!(text.found.shapes, [(Format::Text, 3)]);
    let error = read(&bytes[..bytes.len() - 20], "m.parquet").expect_err("cut");
    assert!(error.starts_with("m.parquet: cannot be read as Parquet: "), "{error}");
}

/// A Parquet file with one pair of prompt and completion.
fn parquet_file(compression: parquet::basic::Compression) -> Vec<u8> {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    let columns = "message m { REQUIRED BINARY prompt (UTF8); REQUIRED BINARY completion (UTF8); }";
    let schema = parquet::schema::parser::parse_message_type(columns).expect("a schema");
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut out = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut out, schema.into(), properties.into()).expect("in memory");
    let mut group = writer.next_row_group().expect("in memory");
    for text in ["Hi", "Hello!"] {
        let mut column = group.next_column().expect("in memory").expect("two columns");
        let values = [ByteArray::from(text)];
        column.typed::<ByteArrayType>().write_batch(&values, None, None).expect("in memory");
        column.close().expect("in memory");
    }
    group.close().expect("in memory");
    writer.close().expect("in memory");
    out
}

#[test]
fn every_compression_of_parquet_is_read() {
    use parquet::basic::Compression::{BROTLI, GZIP, LZ4, LZ4_RAW, SNAPPY, UNCOMPRESSED, ZSTD};
    let expected = super::one(PAIR).ids;
    let all = [
        UNCOMPRESSED,
        SNAPPY,
        GZIP(Default::default()),
        LZ4,
        LZ4_RAW,
        BROTLI(Default::default()),
        ZSTD(Default::default()),
    ];
    for compression in all {
        let found = read(&parquet_file(compression), "a.parquet");
        assert_eq!(found.expect("sound").samples[0].ids, expected, "{compression:?}");
    }
}

#[test]
fn folders_and_patterns_expand_to_files_sorted_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let write = |name: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, PAIR).expect("written");
    };
    ["b.jsonl", "a.json", "sub/c.jsonl.gz", "sub/d.PARQUET", "README.md", ".hidden.jsonl", "sub/x.txt"]
        .into_iter()
        .for_each(write);
    let names = |path: &Path| {
        let (files, notice) = files::expand(path).expect("sound");
        let name = |p: &std::path::PathBuf| {
            p.strip_prefix(root).expect("inside").to_string_lossy().replace('\\', "/")
        };
        (files.iter().map(name).collect::<Vec<_>>(), notice.map(|n| n.to_string()))
    };
    let (found, notice) = names(root);
    assert_eq!(found, ["a.json", "b.jsonl", "sub/c.jsonl.gz", "sub/d.PARQUET"]);
    assert_eq!(notice, Some(format!("{}: skipped files without samples: README.md, x.txt", root.display())));
    assert_eq!(names(&root.join("*.json*")).0, ["a.json", "b.jsonl"]);
    assert_eq!(names(&root.join("**/*.gz")).0, ["sub/c.jsonl.gz"]);
    assert_eq!(names(&root.join("b.jsonl")).0, ["b.jsonl"]);
    // An existing file whose name looks like a pattern is read as a file.
    write("[1].jsonl");
    assert_eq!(names(&root.join("[1].jsonl")).0, ["[1].jsonl"]);
    let refused = |path: &Path| files::expand(path).expect_err("nothing there").to_string();
    let none = root.join("*.csv");
    assert_eq!(refused(&none), format!("{}: no file matches this pattern", none.display()));
    let empty = root.join("empty");
    std::fs::create_dir(&empty).expect("made");
    assert_eq!(
        refused(&empty),
        format!(
            "{}: the folder contains no samples; expected files that end in .jsonl, .ndjson, .json, .csv, .tsv, .tab, \
             .parquet, .pq, .txt, .md, .markdown, .text, optionally with .gz or .zst",
            empty.display()
        )
    );
}

#[test]
fn the_first_error_in_the_file_is_reported_whatever_is_parsed_first() {
    // More records than are parsed at a time, with errors in both batches.
    let mut lines = vec![r#"{"input_ids": [2, 5]}"#.to_owned(); 9000];
    lines[8900] = "{}".into();
    lines[7000] = "[]".into();
    lines[7500] = "{}".into();
    let error =
        parse(lines.join("\n").as_bytes(), "x", &tokenizer(), &OPTIONS).expect_err("broken").to_string();
    assert_eq!(error, "x line 7001: expected a JSON object, found a list");
}
