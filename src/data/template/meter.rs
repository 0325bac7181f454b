//! Filters and functions that keep a rendering within [`super::limits`]. [`super::instrument`] puts them into every template.

use minijinja::value::{DynObject, Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use minijinja_contrib::pycompat;

use super::limits::{charge, check_depth, exceed, left};
use super::python;

/// Bytes that looking at an item of an assigned list costs.
const PER_ITEM: usize = 8;
/// Cost of each time that an operation repeats its operands.
const PER_REPEAT: usize = 64;
/// Largest width of a formatted value.
const MAX_WIDTH: usize = 9999;

/// Bytes of a text, or the number of items of a list.
fn len(value: &Value) -> usize {
    value.as_str().map_or_else(|| value.len().unwrap_or(1), str::len)
}

/// Adds the metering filters and functions, and replaces those whose output can be far larger than their input.
pub(super) fn install(env: &mut Environment) {
    env.add_filter("meter__", |value: Value| charge(len(&value)).map(|()| value));
    env.add_filter("text__", |value: Value| python::display(&value));
    env.add_filter("factor__", factor);
    env.add_filter("kept__", |value: Value| kept(&value, 0, true).map(|()| value));
    env.add_function("pass__", |bytes: usize| charge(bytes).map(|()| false));
    env.add_filter("pprint", |value: Value| python::display(&value));
    checked(env, "join", Value::from_function(filters::join), |args| {
        let joiner = args.get(1).and_then(Value::as_str).unwrap_or_default().len();
        join(args.first_mut(), joiner)
    });
    checked(env, "replace", Value::from_function(filters::replace), |args| match &args[..] {
        [text, from, to] => replace(text, from, to),
        _ => Ok(()),
    });
    checked(env, "indent", Value::from_function(python::indent), |args| {
        let lines = args.first().and_then(Value::as_str).map_or(0, |text| text.matches('\n').count() + 1);
        repeat(args, lines)
    });
    checked(env, "format", Value::from_function(filters::format), |args| format(args));
    checked(env, "batch", Value::from_function(filters::batch), |args| repeat(args, 1));
    checked(env, "slice", Value::from_function(filters::slice), |args| repeat(args, 1));
    env.set_unknown_method_callback(method);
}

/// Adds a filter of the engine behind a check of its arguments.
fn checked(
    env: &mut Environment,
    name: &'static str,
    filter: Value,
    check: impl Fn(&mut Vec<Value>) -> Result<(), Error> + Send + Sync + 'static,
) {
    env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let mut args = args.into_values();
        check(&mut args)?;
        filter.call(state, &args)
    });
}

/// Charges for an operand of `*`.
fn factor(value: Value) -> Result<Value, Error> {
    if value.downcast_object_ref::<Tuple>().is_some() {
        return Err(Error::new(ErrorKind::InvalidOperation, "cannot repeat a tuple"));
    }
    let count = value.as_i64().map_or_else(|| len(&value), |n| usize::try_from(n).unwrap_or_default());
    charge(count.saturating_mul(PER_REPEAT)).map(|()| value)
}

/// Checks a value that is assigned to a variable: its depth and its size. A namespace inside another value could contain itself.
fn kept(value: &Value, depth: usize, top: bool) -> Result<(), Error> {
    check_depth(depth)?;
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    let namespace = value.as_object().is_some_and(|o| DynObject::type_name(o).ends_with("::Namespace"));
    if namespace && !top {
        return Err(exceed("a namespace is inside another value"));
    }
    charge(value.len().unwrap_or_default().saturating_mul(PER_ITEM))?;
    let Ok(items) = value.try_iter() else { return Ok(()) };
    for item in items {
        charge(1)?;
        match value.kind() {
            ValueKind::Map => kept(&value.get_item(&item)?, depth + 1, false)?,
            _ => kept(&item, depth + 1, false)?,
        }
    }
    Ok(())
}

/// Charges for every number in `args`, which repeats something `times` times.
fn repeat(args: &[Value], times: usize) -> Result<(), Error> {
    let counts = |arg: &Value| match Kwargs::try_from(arg.clone()) {
        Ok(kwargs) => kwargs.args().filter_map(|name| kwargs.peek::<usize>(name).ok()).max(),
        Err(_) => arg.as_usize(),
    };
    let count = args.iter().filter_map(counts).max().unwrap_or_default();
    charge(count.saturating_mul(times))
}

/// Charges for joining a list. Replaces a lazy list by its items, so that they are made once.
fn join(list: Option<&mut Value>, joiner: usize) -> Result<(), Error> {
    let Some(list) = list.filter(|list| list.as_str().is_none()) else { return Ok(()) };
    let Ok(items) = list.try_iter() else { return Ok(()) };
    let mut kept = Vec::new();
    for item in items {
        match item.as_str() {
            Some(text) => charge(text.len() + joiner + 1)?,
            None => drop(python::display(&item)?),
        }
        kept.push(item);
    }
    *list = kept.into();
    Ok(())
}

/// Charges for replacing `from` by `to` in `text`.
fn replace(text: &Value, from: &Value, to: &Value) -> Result<(), Error> {
    let [Some(text), Some(from), Some(to)] = [text, from, to].map(Value::as_str) else { return Ok(()) };
    charge(text.len())?;
    charge(text.matches(from).count().saturating_mul(to.len()))
}

/// Checks the arguments of a format string, the first of `args`, and its widths.
fn format(args: &[Value]) -> Result<(), Error> {
    let text = args.first().and_then(Value::as_str).unwrap_or_default();
    let widths = text.split(|c: char| !c.is_ascii_digit());
    let wide =
        |digits: &str| !digits.is_empty() && digits.parse().map_or(true, |width: usize| width > MAX_WIDTH);
    // A width may also be an argument.
    let dynamic =
        text.contains('*') || text.matches('{').count() > text.matches('}').count() || text.contains(":{");
    if widths.into_iter().any(wide) || dynamic && args.iter().any(|arg| arg.as_usize() > Some(MAX_WIDTH)) {
        return Err(exceed("it formats a value with a huge width"));
    }
    let places = 1 + text.matches(['{', '%']).count();
    for arg in args {
        let before = left();
        python::display(arg)?;
        charge((before - left()).saturating_mul(places - 1))?;
    }
    charge(places * MAX_WIDTH / 64)
}

/// Calls a method of Python's types after charging for its arguments.
fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    charge(len(value))?;
    let mut all = [std::slice::from_ref(value), args].concat();
    match (method, &mut all[..]) {
        ("replace", [text, from, to, ..]) => replace(text, from, to)?,
        ("join", [joiner, list, ..]) => join(Some(list), len(joiner))?,
        ("format", all) => format(all)?,
        _ => {}
    }
    // Without an argument, they strip what Python takes for spaces.
    if let (Some(text), [_]) = (value.as_str(), &all[..]) {
        match method {
            "strip" => return Ok(python::strip(text).into()),
            "lstrip" => return Ok(text.trim_start_matches(python::is_space).into()),
            "rstrip" => return Ok(text.trim_end_matches(python::is_space).into()),
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, method, &all[1..])
}
