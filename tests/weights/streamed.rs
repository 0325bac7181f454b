//! A file that is read in ranges: the model is the same, little of it is in memory, and errors name the file.

use pollster::block_on;
use rullama_train::base::Base;

use super::assert_says;
use crate::gguf_writer::GgufWriter;
use crate::pieces::Pieces;

fn tiny() -> Vec<u8> {
    std::fs::read("models/tiny-gemma4/tiny-gemma4-Q4_K_M.gguf").expect("part of the repository")
}

#[test]
fn streaming_reads_the_same_model() {
    let (whole, pieces) = (Base::tiny().expect("sound"), Pieces::of(tiny()));
    let streamed = block_on(Base::stream(Box::new(pieces.clone()), "tiny")).expect("sound");
    let (read, largest) = pieces.take_read();
    assert!(largest <= 1 << 20 && read < tiny().len() as u64, "{read} bytes, at most {largest} at once");
    assert_eq!(streamed.config(), whole.config());
    assert_eq!(streamed.fingerprint(), whole.fingerprint());
    for matrix in whole.matrices() {
        let tensor = streamed.tensor(matrix.name).expect("the same names");
        assert_eq!((tensor.ty, tensor.rows, tensor.cols), (matrix.ty, matrix.rows, matrix.cols));
        assert_eq!(*block_on(streamed.read(&tensor)).expect("sound"), *matrix.data, "{}", matrix.name);
        if matrix.rows == 1 {
            assert_eq!(streamed.vector(matrix.name), whole.vector(matrix.name), "vectors are in memory");
        }
    }
    let table = streamed.tensor("per_layer_token_embd").expect("it has one");
    pieces.take_read();
    let rows = block_on(streamed.read_rows(&table, &[7, 2047, 7])).expect("sound");
    assert_eq!(pieces.take_read(), (3 * table.row_bytes() as u64, table.row_bytes() as u64));
    let row = |id: usize| whole.matrix(table.name).expect("the same").rows(id..id + 1).data;
    assert_eq!(rows, [row(7), row(2047), row(7)].concat());
}

/// Works wherever the header ends relative to the first read, and fails wherever the file is cut.
#[test]
fn headers_of_any_length_are_read() {
    let mut writer = GgufWriter::gemma4();
    writer.set("general.description", rullama_train::base::gguf::value::Value::String("x".repeat(3 << 20)));
    let bytes = writer.bytes();
    let streamed = block_on(Base::stream(Box::new(Pieces::of(bytes.clone())), "long")).expect("sound");
    assert_eq!(streamed.gguf().file_size(), bytes.len() as u64);
    for length in [0, 3, 20, 1 << 20, (1 << 20) + 1, 2 << 20, bytes.len() - 1] {
        let cut = Pieces::of(bytes[..length].to_vec());
        let error = block_on(Base::stream(Box::new(cut), "cut.gguf")).expect_err("cut").to_string();
        let whole = rullama_train::base::Gguf::from_bytes(bytes[..length].to_vec(), "cut.gguf");
        assert_eq!(error, whole.expect_err("cut").to_string(), "{length} bytes");
    }
}

#[test]
fn a_failed_read_names_the_file() {
    let pieces = Pieces::of(tiny());
    let base = block_on(Base::stream(Box::new(pieces.clone()), "mine.gguf")).expect("sound");
    let tensor = base.tensor("blk.1.ffn_up").expect("there");
    pieces.break_bytes(tensor.range.start + 5..tensor.range.start + 6);
    assert_says("a matrix", block_on(base.read(&tensor)), &["mine.gguf: the cable was pulled"]);
    assert_says("rows", block_on(base.read_rows(&tensor, &[0])), &["mine.gguf: the cable was pulled"]);
    pieces.break_bytes(10..11);
    assert_says(
        "the header",
        block_on(Base::stream(Box::new(pieces), "mine.gguf")),
        &["mine.gguf: the cable was pulled"],
    );
}
