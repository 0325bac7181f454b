//! TensorBoard's event files: TFRecords of `Event` messages.
//!
//! Must match tensorflow's `core/lib/io/record_writer.cc` (frames, masked CRC-32C), `core/util/event.proto` and
//! `core/framework/summary.proto`.

use crate::run::metrics::{Effects, Evaluation, MetricsEvent, Scores, StepMetrics};

/// Name of the file. TensorBoard recognizes the prefix.
pub const FILE: &str = "events.out.tfevents.rullama-train";

/// The first record of a file. `time`: seconds since 1970.
pub fn header(time: f64) -> Vec<u8> {
    let mut event = Message::default();
    event.double(1, time);
    event.bytes(3, b"brain.Event:2");
    record(&event.0)
}

/// The records of an event. `time`: seconds since 1970.
pub fn records(event: &MetricsEvent, time: f64, tokens_per_second: Option<f64>) -> Vec<u8> {
    match event {
        MetricsEvent::Step(step) => of_step(step, time, tokens_per_second),
        MetricsEvent::Evaluation(evaluation) => of_evaluation(evaluation, time),
        MetricsEvent::Effects(effects) => of_effects(effects, time),
        MetricsEvent::Notice(notice) => {
            summary(notice.step, time, &[("notices".into(), Content::Text(&notice.notice))])
        }
    }
}

fn of_step(step: &StepMetrics, time: f64, tokens_per_second: Option<f64>) -> Vec<u8> {
    let values = [
        ("train/loss", step.loss),
        ("train/accuracy", step.accuracy),
        ("train/grad_norm", step.grad_norm),
        ("train/update_ratio", step.update_ratio),
        ("train/learning_rate", Some(step.learning_rate)),
        ("train/tokens_per_second", tokens_per_second),
    ];
    let content = |(tag, value): (&str, Option<f64>)| Some((tag.to_string(), Content::Number(value?)));
    let mut values: Vec<(String, Content)> = values.into_iter().filter_map(content).collect();
    let compared = step.preference.named().into_iter();
    values.extend(
        compared.filter_map(|(name, value)| Some((format!("train/{name}"), Content::Number(value?)))),
    );
    values
        .extend(step.rewards.iter().map(|(name, value)| (format!("train/{name}"), Content::Number(*value))));
    summary(step.step, time, &values)
}

fn of_effects(effects: &Effects, time: f64) -> Vec<u8> {
    let both = [("data", &effects.data), ("general", &effects.general)];
    let shifts = both.into_iter().filter_map(|(name, shift)| Some((name, shift.as_ref()?)));
    let values = shifts.flat_map(|(name, shift)| {
        let values = [("other_word", shift.other_word), ("loss_change", shift.loss_change), ("kl", shift.kl)];
        values.map(|(value, number)| (format!("effect/{name}/{value}"), Content::Number(number)))
    });
    summary(effects.step, time, &values.collect::<Vec<_>>())
}

fn of_evaluation(evaluation: &Evaluation, time: f64) -> Vec<u8> {
    let mut values = Vec::new();
    let mut scores = |prefix: &str, s: &Scores| {
        for (name, value) in
            [("loss", s.eval_loss), ("perplexity", s.eval_perplexity), ("accuracy", s.eval_accuracy)]
        {
            values.push((format!("{prefix}/{name}"), Content::Number(value)));
        }
    };
    evaluation.scores.iter().for_each(|s| scores("eval", s));
    evaluation.sources.iter().for_each(|s| scores(&format!("eval/{}", s.source), &s.scores));
    let compared = evaluation.preference.iter();
    values
        .extend(compared.map(|(name, value)| (name.replacen("eval_", "eval/", 1), Content::Number(*value))));
    let metrics = evaluation.metrics.iter();
    values
        .extend(metrics.map(|(metric, value)| (format!("eval/{}", metric.name()), Content::Number(*value))));
    let replies: Vec<String> =
        evaluation.replies.iter().map(|r| format!("**{}**\n\n{}", r.prompt, r.reply)).collect();
    values.extend(
        replies.iter().enumerate().map(|(i, text)| (format!("replies/{}", i + 1), Content::Text(text))),
    );
    summary(evaluation.step, time, &values)
}

enum Content<'a> {
    Number(f64),
    /// Markdown.
    Text(&'a str),
}

/// `Event { wall_time, step, summary { value { tag, … } } }`. Empty without values.
fn summary(step: usize, time: f64, values: &[(String, Content)]) -> Vec<u8> {
    if values.is_empty() {
        return Vec::new();
    }
    let mut summary = Message::default();
    for (tag, content) in values {
        let mut value = Message::default();
        value.bytes(1, tag.as_bytes());
        match content {
            Content::Number(number) => value.float(2, *number as f32),
            Content::Text(text) => {
                value.message(8, |tensor| {
                    tensor.varint(1, 7); // DT_STRING
                    tensor.message(2, |shape| shape.message(2, |dim| dim.varint(1, 1)));
                    tensor.bytes(8, text.as_bytes());
                });
                value.message(9, |metadata| metadata.message(1, |plugin| plugin.bytes(1, b"text")));
            }
        }
        summary.bytes(1, &value.0);
    }
    let mut event = Message::default();
    event.double(1, time);
    event.varint(2, step as u64);
    event.bytes(5, &summary.0);
    record(&event.0)
}

/// A record: the length, its checksum, the data, and its checksum.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C, with the reflected polynomial.
fn crc32c(data: &[u8]) -> u32 {
    let bit = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !data.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| bit(crc)))
}

/// A protocol buffer under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn key(&mut self, field: u64, wire_type: u64) {
        self.raw_varint(field << 3 | wire_type);
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.raw_varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, 2);
        self.raw_varint(value.len() as u64);
        self.0.extend(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    fn message(&mut self, field: u64, fill: impl FnOnce(&mut Message)) {
        let mut message = Message::default();
        fill(&mut message);
        self.bytes(field, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::metrics::{RunNotice, SampleReply};

    #[test]
    fn checksums_match_the_standard() {
        // RFC 3720, appendix B.4: 32 bytes of zeros, and the usual check value.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    /// Written by tensorboard 2.21's `RecordWriter` from
    /// `Event(wall_time=1.5, step=300, summary=Summary(value=[Summary.Value(tag="train/loss", simple_value=0.25)]))`.
    const GOLDEN_SCALAR: [u8; 49] = [
        0x21, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x7b, 0xec, 0xf6, 0x09, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0xf8, 0x3f, 0x10, 0xac, 0x02, 0x2a, 0x13, 0x0a, 0x11, 0x0a, 0x0a, 0x74, 0x72, 0x61, 0x69,
        0x6e, 0x2f, 0x6c, 0x6f, 0x73, 0x73, 0x15, 0x00, 0x00, 0x80, 0x3e, 0x65, 0x57, 0x98, 0x1f,
    ];

    #[test]
    fn a_scalar_has_tensorboards_bytes() {
        let found = summary(300, 1.5, &[("train/loss".into(), Content::Number(0.25))]);
        assert_eq!(found, GOLDEN_SCALAR);
    }

    #[test]
    fn unknown_values_are_omitted() {
        let none = Evaluation { step: 3, ..Evaluation::default() };
        assert!(records(&MetricsEvent::Evaluation(none.clone()), 0.0, None).is_empty());
        let reply = SampleReply { prompt: "Hi?".into(), reply: "Ahoy!".into(), ending: None };
        let one = records(&MetricsEvent::Evaluation(Evaluation { replies: vec![reply], ..none }), 0.0, None);
        assert!(one.windows(16).any(|w| w == b"**Hi?**\n\nAhoy!J\x08"), "{one:?}");
        let skipped = MetricsEvent::Step(StepMetrics::skipped(2, f64::NAN, f64::NAN, 1e-4, 7));
        let text = String::from_utf8_lossy(&records(&skipped, 0.0, Some(9.0))).into_owned();
        assert!(
            !text.contains("loss") && text.contains("learning_rate") && text.contains("tokens_per_second")
        );
        let notice = MetricsEvent::Notice(RunNotice { step: 1, notice: "look".into() });
        assert!(String::from_utf8_lossy(&records(&notice, 0.0, None)).contains("look"));
    }
}
