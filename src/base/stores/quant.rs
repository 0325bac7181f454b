//! Names of GGUF files: whether one is a model, and which quantization it has.

/// Whether a file of this name is a model, or its first part: neither a tower, an importance matrix nor a further part.
pub fn is_model_file(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let Some(stem) = lower.strip_suffix(".gguf") else { return false };
    let helper = ["mmproj", "imatrix"].iter().any(|word| stem.contains(word));
    !helper && part(stem).is_none_or(|(number, _)| number == 1)
}

/// Number and count of a part, from the end of its name without `.gguf`: `-00002-of-00005`.
pub fn part(stem: &str) -> Option<(u32, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| (text.len() == 5).then(|| text.parse().ok())?;
    Some((digits(number)?, digits(count)?))
}

/// The path of a file without `.gguf` and without the number of its part.
fn stem(path: &str) -> &str {
    let stem =
        path.get(..path.len().wrapping_sub(5)).filter(|_| path.to_ascii_lowercase().ends_with(".gguf"));
    let stem = stem.unwrap_or(path);
    if part(stem).is_some() { &stem[..stem.len() - "-00001-of-00001".len()] } else { stem }
}

/// The quantization in a file's name, such as `Q4_K_M` or `UD-Q4_K_XL`: the last word of its name that is one, or else of its folder.
pub fn of_file(path: &str) -> Option<String> {
    stem(path).rsplit('/').find_map(of_name)
}

fn of_name(name: &str) -> Option<String> {
    let words: Vec<&str> = name.split(['-', '.']).collect();
    let at = words.iter().rposition(|word| is_quantization(word))?;
    let dynamic = at > 0 && words[at - 1].eq_ignore_ascii_case("UD");
    let word = words[at].to_ascii_uppercase();
    Some(if dynamic { format!("UD-{word}") } else { word })
}

/// Whether a word is the name of a type of weights, as `llama-quantize` has them.
fn is_quantization(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    if ["F16", "BF16", "F32", "MXFP4", "MXFP4_MOE", "NVFP4"].contains(&&*word) {
        return true;
    }
    let rest = ["IQ", "TQ", "Q"].iter().find_map(|start| word.strip_prefix(start));
    let Some(rest) = rest else { return false };
    let (bits, more) = rest.split_at(rest.len().min(1));
    bits.chars().all(|c| ('1'..='8').contains(&c)) && !bits.is_empty() && more.starts_with('_')
}

/// Quantizations that are taken where none is named, best first.
const USUAL: [&str; 4] = ["Q4_K_M", "UD-Q4_K_XL", "Q4_0", "Q8_0"];

/// The one of `paths` that `choice` names: a quantization, in upper or lower case, or without a choice the usual one. Fails with the
/// rest of a sentence about the choice.
pub fn choose<'a>(paths: &[&'a str], choice: Option<&str>) -> Result<&'a str, String> {
    let models: Vec<&str> = paths.iter().copied().filter(|path| is_model_file(path)).collect();
    let all = || models.join(", ");
    match (&models[..], choice) {
        ([], _) => return Err("has no GGUF model; choose a repository whose name ends in -GGUF".into()),
        ([only], None) => return Ok(only),
        _ => {}
    }
    let named = |wanted: &str| -> Vec<&'a str> {
        let is = |path: &&&str| of_file(path).is_some_and(|found| found.eq_ignore_ascii_case(wanted));
        models.iter().filter(is).copied().collect()
    };
    let found = match choice {
        Some(wanted) => named(wanted),
        None => USUAL.iter().map(|usual| named(usual)).find(|found| !found.is_empty()).unwrap_or_default(),
    };
    match (&found[..], choice) {
        ([only], _) => Ok(only),
        ([], Some(wanted)) => Err(format!("has no model of type {wanted}; it has {}", all())),
        ([], None) => {
            Err(format!("has several models; name one as hf:ORG/REPO:TYPE or hf:ORG/REPO/FILE: {}", all()))
        }
        (several, _) => Err(format!(
            "has several models of that type: {}; name one as hf:ORG/REPO/FILE",
            several.join(", ")
        )),
    }
}

/// All parts of the model of which `path` is one, in order.
pub fn parts(path: &str) -> Vec<String> {
    let ending = path.len() - ".gguf".len();
    let named = part(&path[..ending]).filter(|(number, count)| (1..=*count).contains(number));
    let Some((_, count)) = named else { return vec![path.into()] };
    let start = &path[..ending - "00001-of-00001".len()];
    (1..=count).map(|number| format!("{start}{number:05}-of-{count:05}{}", &path[ending..])).collect()
}

/// The name of the first part of the model of which `name` is a part; with or without `.gguf`.
pub fn first_part(name: &str) -> String {
    let stem = if name.to_ascii_lowercase().ends_with(".gguf") { &name[..name.len() - 5] } else { name };
    match part(stem) {
        Some((2.., count)) => {
            let start = &stem[..stem.len() - "00001-of-00001".len()];
            format!("{start}00001-of-{count:05}{}", &name[stem.len()..])
        }
        _ => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_from_names() {
        for (path, expected) in [
            ("Qwen3-4B-Q4_K_M.gguf", Some("Q4_K_M")),
            ("Qwen3.5-4B-UD-Q4_K_XL.gguf", Some("UD-Q4_K_XL")),
            ("model.q8_0.gguf", Some("Q8_0")),
            ("BF16/model-00001-of-00002.gguf", Some("BF16")),
            ("gpt-oss-20b-mxfp4.gguf", Some("MXFP4")),
            ("Qwen3-4B.gguf", None),
            ("Quill-3.gguf", None),
        ] {
            assert_eq!(of_file(path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn towers_and_further_parts_are_no_models() {
        assert!(is_model_file("a-00001-of-00002.GGUF") && is_model_file("a.gguf"));
        for name in ["a-00002-of-00002.gguf", "mmproj-F16.gguf", "a.imatrix.gguf", "a.bin", "gguf"] {
            assert!(!is_model_file(name), "{name}");
        }
        for path in ["x/a-00001-of-00002.gguf", "x/a-00002-of-00002.gguf"] {
            assert_eq!(parts(path), ["x/a-00001-of-00002.gguf", "x/a-00002-of-00002.gguf"]);
            assert_eq!(first_part(path), "x/a-00001-of-00002.gguf");
        }
        assert_eq!(parts("a-00003-of-00002.gguf"), ["a-00003-of-00002.gguf"]);
        assert_eq!(first_part("lmstudio:x/a-00002-of-00002"), "lmstudio:x/a-00001-of-00002");
        assert_eq!([first_part("a.gguf"), first_part("é")], ["a.gguf", "é"]);
    }

    #[test]
    fn one_file_is_chosen_or_the_choices_are_listed() {
        let all = ["a-Q8_0.gguf", "a-Q4_K_M.gguf", "a-UD-Q4_K_XL.gguf", "mmproj-F16.gguf"];
        assert_eq!(choose(&all, None), Ok("a-Q4_K_M.gguf"));
        assert_eq!(choose(&all, Some("q8_0")), Ok("a-Q8_0.gguf"));
        assert_eq!(choose(&["a.gguf"], None), Ok("a.gguf"));
        let error = choose(&all, Some("Q2_K")).expect_err("it has none");
        assert!(error.contains("no model of type Q2_K; it has a-Q8_0.gguf, a-Q4_K_M.gguf"), "{error}");
        assert!(choose(&["a-Q5_0.gguf", "a-Q6_K.gguf"], None).expect_err("two").contains("hf:ORG/REPO:TYPE"));
        assert!(choose(&["README.md"], None).is_err());
    }
}
