//! A base that JavaScript reads in ranges, from a file that the user picked or from a server.

use std::io;
use std::ops::Range;

use js_sys::{Array, Uint8Array};
use rullama_train::base::gguf::source::{Reading, Source};
use send_wrapper::SendWrapper;
use wasm_bindgen::prelude::*;

#[wasm_bindgen(typescript_custom_section)]
const INTERFACE: &str = "
/** A file that is read in ranges of bytes. */
export interface ByteSource {
  /** Identifies the file. */
  readonly key: string;
  /** Name for messages. */
  readonly name: string;
  readonly size: number;
  /** The bytes of every range from `starts[i]` to `ends[i]` (exclusive), complete. */
  read(starts: Float64Array, ends: Float64Array): Promise<Uint8Array[]>;
}
";

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(typescript_type = "ByteSource")]
    pub type ByteSource;

    #[wasm_bindgen(method, getter)]
    pub fn key(this: &ByteSource) -> String;

    #[wasm_bindgen(method, getter)]
    pub fn name(this: &ByteSource) -> String;

    #[wasm_bindgen(method, getter)]
    fn size(this: &ByteSource) -> f64;

    #[wasm_bindgen(method, catch)]
    async fn read(this: &ByteSource, starts: Vec<f64>, ends: Vec<f64>) -> Result<JsValue, JsValue>;
}

/// Adapts a [`ByteSource`] to the library's [`Source`].
pub struct Ranges(SendWrapper<ByteSource>);

impl Ranges {
    /// Wraps a source.
    pub fn new(source: ByteSource) -> Ranges {
        Ranges(SendWrapper::new(source))
    }
}

impl Source for Ranges {
    fn bytes(&self) -> u64 {
        self.0.size() as u64
    }

    fn read<'a>(&'a self, ranges: &[Range<u64>]) -> Reading<'a> {
        let starts = ranges.iter().map(|range| range.start as f64).collect();
        let ends = ranges.iter().map(|range| range.end as f64).collect();
        let lengths: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
        Box::pin(async move {
            let read = self.0.read(starts, ends).await.map_err(|error| io::Error::other(text(&error)))?;
            let read: Vec<Vec<u8>> =
                Array::from(&read).iter().map(|bytes| Uint8Array::new(&bytes).to_vec()).collect();
            match read.iter().map(|bytes| bytes.len() as u64).eq(lengths) {
                true => Ok(read),
                false => {
                    Err(io::Error::other("the file is shorter than before; it was changed while it was read"))
                }
            }
        })
    }
}

/// The message of a JavaScript exception.
pub fn text(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => error.message().into(),
        None => error.as_string().unwrap_or_else(|| format!("{error:?}")),
    }
}
