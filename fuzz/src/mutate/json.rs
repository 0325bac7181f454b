//! Changes of JSON values.

use serde_json::{Value, json};

use super::bytes::{INTEGERS, integer};
use super::text;
use crate::rng::Rng;

/// A changed copy.
pub fn mutate(rng: &mut Rng, input: Vec<u8>) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(&input) else { return text::mutate(rng, input) };
    if rng.once_in(3) {
        return text::mutate(rng, input);
    }
    let mut left = rng.below(count(&value));
    change(rng, &mut value, &mut left);
    let mut text = value.to_string();
    if rng.once_in(8) {
        // A name that appears twice.
        if let Some((first, rest)) = text.split_once(',') {
            text = format!("{first},{},{rest}", first.trim_start_matches('{'));
        }
    }
    text.into_bytes()
}

/// Number of values, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// Changes the value at the `left`-th place, counted from 0. Returns whether it was found; `left` is what is left to count.
fn change(rng: &mut Rng, value: &mut Value, left: &mut usize) -> bool {
    if *left == 0 {
        replace(rng, value);
        return true;
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(rng, item, left)),
        Value::Object(fields) => fields.values_mut().any(|item| change(rng, item, left)),
        _ => false,
    }
}

fn replace(rng: &mut Rng, value: &mut Value) {
    match (rng.below(8), &mut *value) {
        (0..=3, Value::Number(number)) => {
            let old = number.as_u64().unwrap_or(7);
            *value = match rng.below(4) {
                0 => json!(*rng.pick(&[0.5, -1.0, 1e39, 1e300, 1e308, -0.0, 5e-324])),
                1 => json!(-(integer(rng, old, 100) as i64 >> 1)),
                _ => json!(integer(rng, old, 100)),
            };
        }
        (0..=2, Value::String(text)) => {
            let changed = text::mutate(rng, text.clone().into_bytes());
            *text = String::from_utf8_lossy(&changed).into_owned();
        }
        (3, Value::String(text)) => {
            *text = rng.pick(&["F64", "I32", "BF16", "F8_E4M3", "", ".*", "(a|a)*b", "\\pL{60}N"]).to_string()
        }
        (0..=2, Value::Array(items)) if !items.is_empty() => {
            let (a, b) = (rng.below(items.len()), rng.below(items.len()));
            match rng.below(3) {
                0 => drop(items.remove(a)),
                1 => items.push(items[a].clone()),
                _ => items.swap(a, b),
            }
        }
        (0..=3, Value::Object(fields)) if !fields.is_empty() => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let (a, b) = (rng.pick(&keys).clone(), rng.pick(&keys).clone());
            match rng.below(3) {
                0 => drop(fields.remove(&a)),
                1 => drop(fields.insert(format!("{a}x"), fields[&b].clone())),
                _ => drop(fields.insert(a, fields[&b].clone())),
            }
        }
        _ => {
            let huge = *rng.pick(&INTEGERS);
            *value = rng
                .pick(&[
                    json!(null),
                    json!([]),
                    json!({}),
                    json!(""),
                    json!(true),
                    json!(huge),
                    json!([huge, huge, huge]),
                    json!({"a": {"b": 1}}),
                ])
                .clone();
        }
    }
}
