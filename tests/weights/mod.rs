//! Reading base models: intact files completely; damaged and foreign ones give an error that names the cause.

mod base;
mod fingerprint;
mod gguf;
mod ollama;
mod quant;
mod streamed;

/// Asserts that an error contains each of `parts`.
fn assert_says<T>(what: &str, result: Result<T, rullama_train::base::Error>, parts: &[&str]) {
    let Err(error) = result else { panic!("{what}: expected an error that says {parts:?}, found success") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{what}: expected {part:?} in the error, found: {text}");
    }
}
