//! The teacher: a second model with the base's vocabulary.

use crate::base::Base;
use crate::base::gguf::value::{Array, Value};
use crate::data::batch::Sample;
use crate::recipe::{Recipe, SELF};
use crate::run::RunError;
use crate::words;

/// An open teacher.
pub struct Teacher {
    /// The model file.
    pub base: Base,
    /// The first tokens of its vocabulary, which are the student's too.
    pub count: usize,
    /// Differences from the student that do not matter.
    pub notices: Vec<String>,
}

impl Teacher {
    /// Opens the teacher that `recipe` names; `None` if it names none. Fails if its vocabulary is another one than that of `student`.
    #[cfg(feature = "native")]
    pub fn open(recipe: &Recipe, student: &Base) -> Result<Option<Teacher>, RunError> {
        let Some(keys) = &recipe.distill else { return Ok(None) };
        let own = keys.teacher == SELF;
        let base = Base::open(if own { &recipe.model.base } else { &keys.teacher })?;
        Teacher::of(base, student).map(Some)
    }

    /// No teacher. Fails if `recipe` names one: a browser cannot hold two models.
    #[cfg(not(feature = "native"))]
    pub fn open(recipe: &Recipe, _student: &Base) -> Result<Option<Teacher>, RunError> {
        match &recipe.distill {
            None => Ok(None),
            Some(_) => Err(unsupported()),
        }
    }

    /// `base` as the teacher of `student`.
    pub fn of(base: Base, student: &Base) -> Result<Teacher, RunError> {
        let (own, of_student) = (tokens(&base), tokens(student));
        let (name, student_name) = (base.name(), student.name());
        let differs = own.iter().zip(of_student).position(|(own, other)| own != other);
        if let Some(id) = differs {
            return Err(RunError::Conflict(format!(
                "distill.teacher: token {id} of {name} is {:?}, but that of {student_name} is {:?}; a teacher needs the base's vocabulary: \
                 choose another model of the base's family",
                own[id], of_student[id]
            )));
        }
        if own.is_empty() != of_student.is_empty() {
            return Err(RunError::Conflict(format!(
                "distill.teacher: {name} has {} tokens and {student_name} {}; choose another model of the base's family",
                own.len(),
                of_student.len()
            )));
        }
        let mut notices = Vec::new();
        let mut more = |one: &str, longer: &[String], other: &str, shorter: usize| {
            if let Some(first) = longer.get(shorter) {
                let count = words::grouped(longer.len() - shorter, ' ');
                notices.push(format!("{one} has {count} tokens behind those of {other}, from {first:?} on: nothing is learnt about them"));
            }
        };
        more(name, own, student_name, of_student.len());
        more(student_name, of_student, name, own.len());
        let rows = [&base, student].map(|base| base.config().vocab);
        if own.len() == of_student.len() && rows[0] != rows[1] {
            let [teacher, student] = rows.map(|rows| words::grouped(rows, ' '));
            notices.push(format!(
                "{name} has {teacher} rows of logits and {student_name} {student}: those behind the tokens of both are unused"
            ));
        }
        let count = rows[0].min(rows[1]);
        Ok(Teacher { base, count, notices })
    }
}

/// Fails if the teacher is the base itself, and nothing that it says can be learnt: it sees no context anywhere.
pub fn check_contexts(recipe: &Recipe, train: &[Sample]) -> Result<(), RunError> {
    let Some(keys) = recipe.distill.as_ref().filter(|keys| keys.teacher == SELF) else { return Ok(()) };
    let starts_as_base = recipe.lora.init_from.is_empty() && keys.sft_weight == 0.0;
    if !starts_as_base || train.is_empty() || train.iter().any(|sample| sample.taught.is_some()) {
        return Ok(());
    }
    Err(RunError::Conflict(
        "distill.teacher is \"self\", but no sample of data.train has a \"context\": the base would learn what it says already; add it \
         beside the messages (docs/data.md), name another teacher, or set distill.sft_weight"
            .into(),
    ))
}

/// The error for a recipe with a teacher where two models cannot be opened.
pub fn unsupported() -> RunError {
    RunError::Conflict(
        "train.objective = \"distill\" needs a second model, which only the command-line program opens; train with it".into(),
    )
}

/// The texts of a vocabulary.
fn tokens(base: &Base) -> &[String] {
    match base.gguf().value("tokenizer.ggml.tokens") {
        Some(Value::Array(Array::String(texts))) => texts,
        _ => &[],
    }
}
