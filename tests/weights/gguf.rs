//! The GGUF container: values of every type, and files with false contents.

use super::assert_says;
use crate::gguf_writer::GgufWriter;
use rullama_train::base::gguf::value::{Array, Value};
use rullama_train::base::{Error, GgmlType, Gguf};

fn read(writer: &GgufWriter) -> Result<Gguf, Error> {
    Gguf::from_bytes(writer.bytes(), "test.gguf")
}

/// A file with two tensors of 32 bytes each.
fn two_tensors() -> GgufWriter {
    let mut w = GgufWriter::default();
    w.set("key", Value::String("value".into()));
    w.random("a", &[8], GgmlType::F32);
    w.random("b", &[4, 2], GgmlType::F32);
    w
}

#[test]
fn every_type_of_value_reads_as_gguf_py_wrote_it() {
    // The literals are those of tests/golden/make_blocks.py.
    let gguf = Gguf::from_static(include_bytes!("../golden/blocks.gguf"), "blocks.gguf").expect("sound");
    let expected = [
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-100)),
        ("u16", Value::U16(60000)),
        ("i16", Value::I16(-30000)),
        ("u32", Value::U32(4000000000)),
        ("i32", Value::I32(-2000000000)),
        ("u64", Value::U64(18000000000000000000)),
        ("i64", Value::I64(-9000000000000000000)),
        ("f32", Value::F32(0.1)),
        ("f64", Value::F64(0.1)),
        ("bool", Value::Bool(true)),
        ("string", Value::String("Grüße ▁".into())),
        ("u8s", Value::Array(Array::U8(vec![0, 200]))),
        ("i8s", Value::Array(Array::I8(vec![-100, 100]))),
        ("u16s", Value::Array(Array::U16(vec![0, 60000]))),
        ("i16s", Value::Array(Array::I16(vec![-30000, 1]))),
        ("u32s", Value::Array(Array::U32(vec![0, 4000000000]))),
        ("i32s", Value::Array(Array::I32(vec![-2000000000, 1]))),
        ("u64s", Value::Array(Array::U64(vec![0, 18000000000000000000]))),
        ("i64s", Value::Array(Array::I64(vec![-9000000000000000000, 1]))),
        ("f32s", Value::Array(Array::F32(vec![0.5, -1.0]))),
        ("f64s", Value::Array(Array::F64(vec![0.1, -1.0]))),
        ("bools", Value::Array(Array::Bool(vec![true, false]))),
        ("strings", Value::Array(Array::String(vec!["".into(), "▁a".into(), "\n".into()]))),
    ];
    for (name, value) in &expected {
        assert_eq!(gguf.value(&format!("test.{name}")), Some(value), "{name}");
    }
    let tests = gguf.metadata().iter().filter(|(key, _)| key.starts_with("test.")).count();
    assert_eq!(tests, expected.len(), "values in the file that this test does not check");
    assert_eq!((gguf.version(), gguf.alignment()), (3, 32));
}

#[test]
fn getters_convert_integers_of_any_width_and_refuse_the_rest() {
    let gguf = Gguf::from_static(include_bytes!("../golden/blocks.gguf"), "blocks.gguf").expect("sound");
    assert_eq!(gguf.require::<u32>("test.u8").expect("fits"), 200);
    assert_eq!(gguf.require::<i32>("test.i16").expect("fits"), -30000);
    assert_eq!(gguf.require::<u64>("test.u64").expect("fits"), 18000000000000000000);
    assert_eq!(gguf.require::<Vec<u32>>("test.u16s").expect("fits"), [0, 60000]);
    assert_eq!(gguf.require::<Vec<i32>>("test.i8s").expect("fits"), [-100, 100]);
    assert_eq!(gguf.require::<f32>("test.f64").expect("fits"), 0.1);
    assert_eq!(gguf.require::<Vec<f32>>("test.i8s").expect("fits"), [-100.0, 100.0]);
    assert!(gguf.require::<bool>("test.bool").expect("fits"));
    assert_eq!(gguf.require::<&str>("test.string").expect("fits"), "Grüße ▁");
    assert_eq!(gguf.require::<&[String]>("test.strings").expect("fits").len(), 3);
    assert_eq!(gguf.get::<u32>("test.absent").expect("absent is no error"), None);
    assert_eq!(gguf.scalar_or_array("test.u8", 3).expect("one for all"), [200, 200, 200]);
    assert_eq!(gguf.scalar_or_array("test.u16s", 2).expect("one each"), [0, 60000]);

    assert_says(
        "negative",
        gguf.require::<u32>("test.i8"),
        &["blocks.gguf", "test.i8", "-100", "0 to 4294967295"],
    );
    assert_says("too wide", gguf.require::<i32>("test.u32"), &["test.u32", "4000000000", "32 bits"]);
    assert_says("text", gguf.require::<u32>("test.string"), &["test.string", "Grüße", "an integer"]);
    assert_says("missing", gguf.require::<f32>("test.absent"), &["test.absent", "missing", "a float"]);
    assert_says("length", gguf.scalar_or_array("test.u16s", 3), &["test.u16s", "array of 2", "array of 3"]);
}

#[test]
fn tensors_lie_where_the_file_says() {
    for version in [2, 3] {
        let mut w = two_tensors();
        w.version = version;
        w.alignment = 64;
        w.set("general.alignment", Value::U32(64));
        let gguf = read(&w).expect("sound");
        for t in &w.tensors {
            let found = gguf.tensor(&t.name).expect("written");
            assert_eq!(gguf.data(found), t.data, "{} in version {version}", t.name);
        }
        assert_eq!(gguf.tensor("b").expect("written").shape, [4, 2]);
        let (a, b) = (&gguf.tensors()[0].range, &gguf.tensors()[1].range);
        assert_eq!((a.start % 64, b.start - a.start), (0, 64), "alignment 64");
    }
}

#[test]
fn every_prefix_is_an_error() {
    let whole = GgufWriter::gemma4().bytes();
    Gguf::from_bytes(whole.clone(), "whole").expect("sound");
    for length in 0..whole.len() {
        let cut = Gguf::from_bytes(whole[..length].to_vec(), "cut");
        assert!(cut.is_err(), "the first {length} of {} bytes were accepted", whole.len());
    }
    assert_says(
        "no data",
        Gguf::from_bytes(whole[..whole.len() - 1].to_vec(), "cut"),
        &["cut short", "blk.3.", "again"],
    );
    assert_says("no header", Gguf::from_bytes(whole[..40].to_vec(), "cut"), &["cut: ", "again"]);
}

#[test]
fn no_changed_byte_panics() {
    use rullama_train::base::Base;
    let whole = GgufWriter::gemma4().bytes();
    let header = Gguf::from_bytes(whole.clone(), "whole").expect("sound").tensors()[0].range.start as usize;
    for at in 0..header {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            // Whether the file is valid or not, parsing must return.
            let _ = Gguf::from_bytes(bytes, "changed").and_then(|gguf| Base::from_gguf(gguf, "changed"));
        }
    }
}

#[test]
fn false_contents_are_reported() {
    let lie = |what: &str, change: fn(&mut GgufWriter), parts: &[&str]| {
        let mut w = two_tensors();
        change(&mut w);
        assert_says(what, read(&w), &[&["test.gguf"], parts].concat());
    };
    lie("version", |w| w.version = 1, &["version 1", "2 or 3"]);
    lie("endianness", |w| w.version = 3u32.swap_bytes(), &["big-endian"]);
    lie(
        "tensor count",
        |w| w.tensor_count = Some(u64::MAX),
        &["18446744073709551615 tensors", "bytes follow"],
    );
    lie("key count", |w| w.key_count = Some(1 << 60), &["1152921504606846976 metadata keys", "bytes follow"]);
    lie("one tensor more", |w| w.tensor_count = Some(3), &["test.gguf"]);
    lie("same key", |w| w.metadata.push(("key".into(), Value::U8(0))), &["`key` appears twice"]);
    lie("same tensor", |w| w.tensor("b").name = "a".into(), &["tensor a appears twice"]);
    lie(
        "alignment",
        |w| w.set("general.alignment", Value::U32(48)),
        &["general.alignment", "48", "power of two"],
    );
    lie(
        "no alignment",
        |w| w.set("general.alignment", Value::U32(0)),
        &["general.alignment", "0", "power of two"],
    );
    lie(
        "type of alignment",
        |w| w.set("general.alignment", Value::String("32".into())),
        &["general.alignment"],
    );
    lie("type", |w| w.tensor("b").ty = 99, &["tensor b", "type 99", "Q4_K"]);
    lie("removed type", |w| w.tensor("b").ty = 4, &["tensor b", "type 4"]);
    lie("dimensions", |w| w.tensor("b").shape = vec![1; 5], &["tensor b", "5 dimensions"]);
    lie("block", |w| w.tensor("b").ty = GgmlType::Q8_0 as u32, &["tensor b", "rows of 4", "Q8_0", "32"]);
    lie("size", |w| w.tensor("b").shape = vec![1 << 40, 1 << 40], &["tensor b", "addressed"]);
    lie("end", |w| w.tensor("b").shape = vec![1 << 60], &["tensor b"]);
    lie("too long", |w| w.tensor("b").shape = vec![4, 3], &["cut short", "tensor b", "bytes"]);
    lie("offset", |w| w.tensor("b").offset = Some(u64::MAX - 31), &["tensor b"]);
    lie("unaligned", |w| w.tensor("b").offset = Some(33), &["tensor b", "33", "multiple of 32"]);
    lie("overlap", |w| w.tensor("b").offset = Some(0), &["a", "b", "overlap"]);
}

#[test]
fn false_metadata_are_reported() {
    // One key whose value is written by hand.
    let with = |value: &[u8]| {
        let mut bytes = GgufWriter { key_count: Some(1), ..GgufWriter::default() }.bytes()[..24].to_vec();
        bytes.extend(3u64.to_le_bytes());
        bytes.extend(b"key");
        bytes.extend(value);
        Gguf::from_bytes(bytes, "test.gguf")
    };
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    assert_says("type", with(&words(&[13, 0])), &["`key`", "type 13"]);
    assert_says("nested", with(&words(&[9, 9, 0, 0])), &["`key`", "array of arrays"]);
    assert_says("element type", with(&words(&[9, 13, 0, 0])), &["`key`", "type 13"]);
    assert_says("length", with(&words(&[9, 4, 3, 0, 1, 2])), &["3 elements", "`key`", "8 bytes follow"]);
    assert_says("huge", with(&words(&[9, 8, 0, 1 << 31])), &["elements", "`key`", "0 bytes follow"]);
    assert_says("string", with(&words(&[8, u32::MAX, u32::MAX, 0])), &["`key`", "4 bytes follow"]);
    // As in llama.cpp: any byte but 0 is true, and texts may have any bytes. In names, those that are not UTF-8 are damage.
    for (byte, expected) in [(0, false), (2, true), (255, true)] {
        let read = with(&[7, 0, 0, 0, byte]).expect("read").require::<bool>("key").expect("a bool");
        assert_eq!(read, expected, "{byte}");
    }
    let text = with(&[8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, b'a', 0xff]).expect("read");
    assert_eq!(text.require::<&str>("key").expect("a text"), "a\u{FFFD}");
    assert!(with(&[7, 0, 0, 0, 1]).expect("sound").require::<bool>("key").expect("a bool"));
}

#[test]
fn files_that_are_not_gguf() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_says("missing", Gguf::open(&folder.path().join("no.gguf")), &["no.gguf", "check the path"]);
    assert_says("folder", Gguf::open(folder.path()), &["folder"]);
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, "").expect("written");
    assert_says("empty", Gguf::open(&empty), &["empty.gguf", "expected \"GGUF\""]);
    assert_says(
        "text",
        Gguf::from_bytes(b"{\"a\": 1}".to_vec(), "x"),
        &["starts with \"{\\\"a\\\"\"", "GGUF"],
    );
    let sound = folder.path().join("sound.gguf");
    std::fs::write(&sound, two_tensors().bytes()).expect("written");
    assert_eq!(Gguf::open(&sound).expect("sound").tensors().len(), 2);
}
