//! Rewrites the source of a Jinja template so that every operation that makes text or lists is metered.
//!
//! The engine counts instructions, but one instruction can double a text. So the operands of `+`, `~` and `*` and the inputs of
//! filters pass through the filters of [`super::meter`], assigned values are checked by `kept__`, and every pass of a loop or a
//! macro pays for the literal text in its body. A template's meaning and its lines do not change.

/// Largest source in bytes. Published chat templates have at most 60 kB.
const MAX_SOURCE: usize = 256 << 10;
/// Maximum number of words and signs in one tag. The parser recurses once per operator.
const MAX_TOKENS: usize = 1000;
/// Maximum number of `{% elif %}`, for each of which the parser recurses.
const MAX_ELIFS: usize = 250;

/// Tags that need other templates.
const OTHER_TEMPLATES: [&str; 4] = ["extends", "from", "import", "include"];

/// Words that end an operand.
const ENDS_OPERAND: [&str; 8] = ["and", "or", "not", "if", "else", "elif", "in", "recursive"];

/// Returns the metered source, or the limit that it exceeds.
pub(super) fn guard(source: &str) -> Result<String, String> {
    if source.len() > MAX_SOURCE {
        return Err(format!("it has {} bytes, expected at most {MAX_SOURCE}", source.len()));
    }
    let mut guard =
        Guard { source, at: 0, out: String::new(), raw: vec![0], open: vec![0], marks: Vec::new(), elifs: 0 };
    while guard.at < source.len() {
        guard.text();
        guard.tag()?;
    }
    Ok(guard.finish())
}

struct Guard<'a> {
    source: &'a str,
    /// Bytes read.
    at: usize,
    out: String,
    /// Bytes of literal text per body of a loop or a macro; the first is the template itself.
    raw: Vec<usize>,
    /// Indices of the bodies around this place.
    open: Vec<usize>,
    /// Places in `out` at which a body begins, with its index.
    marks: Vec<(usize, usize)>,
    elifs: usize,
}

/// An expression between brackets.
struct Frame {
    /// Start of the current operand in the output.
    start: usize,
    /// The metered operator before the operand.
    before: Option<char>,
    /// Whether the operand has a slice, which copies a text.
    sliced: bool,
    /// The bracket around the frame, if it is a subscript.
    subscript: bool,
    /// Whether the subscript is a slice.
    slice: bool,
}

impl Frame {
    fn new(start: usize) -> Frame {
        Frame { start, before: None, sliced: false, subscript: false, slice: false }
    }

    /// Begins the next operand.
    fn restart(&mut self, start: usize, before: Option<char>) {
        (self.start, self.before, self.sliced) = (start, before, false);
    }
}

impl Frame {
    /// The filters that meter an operand between two operators.
    fn meters(&self, after: Option<char>) -> String {
        let around = [self.before, after, self.sliced.then_some('+')];
        let meter = |(op, filter): (char, &'static str)| around.contains(&Some(op)).then_some(filter);
        [('*', "|factor__"), ('+', "|meter__"), ('~', "|text__")].into_iter().filter_map(meter).collect()
    }
}

impl<'a> Guard<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Copies `len` bytes.
    fn copy(&mut self, len: usize) {
        self.out += &self.rest()[..len];
        self.at += len;
    }

    /// Copies literal text up to the next tag.
    fn text(&mut self) {
        let starts =
            |(at, _): &(usize, &str)| matches!(self.rest().as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
        let len = self.rest().match_indices('{').find(starts).map_or(self.rest().len(), |(at, _)| at);
        self.literal(len);
    }

    fn literal(&mut self, len: usize) {
        let body = *self.open.last().expect("the template itself is never closed");
        self.raw[body] += len;
        self.copy(len);
    }

    /// Copies a comment, a raw block, or a tag with its meters.
    fn tag(&mut self) -> Result<(), String> {
        let rest = self.rest();
        if let Some(comment) = rest.strip_prefix("{#") {
            self.copy(comment.find("#}").map_or(rest.len(), |end| end + 4));
        } else if let Some(len) = raw_block(rest) {
            self.literal(len);
        } else if rest.starts_with("{{") || rest.starts_with("{%") {
            let block = rest.starts_with("{%");
            self.copy(if matches!(rest.as_bytes().get(2), Some(b'-' | b'+')) { 3 } else { 2 });
            self.expression(block)?;
        }
        Ok(())
    }

    /// Copies the inside of a tag and its end.
    fn expression(&mut self, block: bool) -> Result<(), String> {
        let begin = self.at;
        let mut frames = vec![Frame::new(self.out.len())];
        let (mut word, mut previous, mut value) = ("", "", None);
        for token in 0.. {
            let space =
                self.rest().len() - self.rest().trim_start_matches(|c: char| c.is_ascii_whitespace()).len();
            self.copy(space);
            let closes = frames.len() == 1 && end_marker(self.rest(), block).is_some();
            if closes || self.rest().is_empty() {
                break;
            }
            if token == MAX_TOKENS {
                let line = self.source[..begin].matches('\n').count() + 1;
                return Err(format!("the tag in line {line} has more than {MAX_TOKENS} words and signs"));
            }
            let next = &self.rest()[..token_len(self.rest())];
            if token == 0 && block {
                word = next;
                if OTHER_TEMPLATES.contains(&word) {
                    return Err(format!("it has the tag {word}, but there is no other template"));
                }
                self.elifs += usize::from(word == "elif");
            }
            let ends = ENDS_OPERAND.contains(&next) && previous != "is";
            if ends || (token == 0 && block) {
                self.separator(&mut frames, next);
            } else if word == "set" && next == "=" && frames.len() == 1 && value.is_none() {
                self.separator(&mut frames, next);
                value = Some(self.out.len());
            } else {
                self.sign(&mut frames, next);
            }
            previous = next;
        }
        if self.elifs > MAX_ELIFS {
            return Err(format!("it has more than {MAX_ELIFS} elif"));
        }
        while let Some(frame) = frames.pop() {
            self.meter(&frame, None);
        }
        if let Some(value) = value {
            self.out.insert(value, '(');
            self.out += ")|kept__ ";
        }
        self.body(word);
        self.copy(end_marker(self.rest(), block).unwrap_or(self.rest().len()));
        Ok(())
    }

    /// Copies a token that is not a separating word.
    fn sign(&mut self, frames: &mut Vec<Frame>, token: &str) {
        let operand = |guard: &Guard, frames: &[Frame]| {
            frames.last().is_some_and(|frame| !guard.out[frame.start..].trim().is_empty())
        };
        match token {
            "(" | "[" | "{" => {
                let subscript = token == "[" && operand(self, frames);
                self.copy(1);
                frames.push(Frame { subscript, ..Frame::new(self.out.len()) });
            }
            ")" | "]" | "}" => {
                if frames.len() > 1
                    && let Some(frame) = frames.pop()
                {
                    self.meter(&frame, None);
                    let outer = frames.last_mut().expect("the outermost frame stays");
                    outer.sliced |= frame.slice;
                }
                self.copy(1);
            }
            "+" | "~" | "*" if operand(self, frames) => {
                let op = token.chars().next();
                let frame = frames.last_mut().expect("an operand is in a frame");
                self.meter(frame, op);
                self.copy(1);
                frame.restart(self.out.len(), op);
            }
            "-" if !operand(self, frames) => self.copy(1),
            "-" | "/" | "//" | "%" | "**" | "," | ":" | "=" | "==" | "!=" | "<" | ">" | "<=" | ">=" => {
                self.separator(frames, token);
            }
            "|" => {
                self.copy(1);
                self.out += "meter__|";
            }
            _ => self.copy(token.len()),
        }
    }

    /// Copies a token that ends an operand without a metered operator.
    fn separator(&mut self, frames: &mut [Frame], token: &str) {
        let frame = frames.last_mut().expect("the outermost frame stays");
        self.meter(frame, None);
        self.copy(token.len());
        frame.restart(self.out.len(), None);
        frame.slice |= frame.subscript && token == ":";
    }

    /// Meters the operand that ends here.
    fn meter(&mut self, frame: &Frame, after: Option<char>) {
        let meters = frame.meters(after);
        if !meters.is_empty() {
            self.out.insert(frame.start, '(');
            self.out.push(')');
            self.out += &meters;
            self.out.push(' '); // a word may follow
        }
    }

    /// Opens or closes a body of literal text. The call that pays for it comes before the end of the opening tag, which keeps the
    /// tag's whitespace control.
    fn body(&mut self, word: &str) {
        match word {
            "for" | "macro" | "call" | "block" => {
                self.marks.push((self.out.len(), self.raw.len()));
                self.open.push(self.raw.len());
                self.raw.push(0);
            }
            "endfor" | "endmacro" | "endcall" | "endblock" if self.open.len() > 1 => drop(self.open.pop()),
            _ => {}
        }
    }

    /// The output with the calls that pay for literal text.
    fn finish(self) -> String {
        let mut all = String::with_capacity(self.out.len());
        let mut done = 0;
        for (at, body) in self.marks {
            all += &self.out[done..at];
            if self.raw[body] > 0 {
                all += &format!(" %}}{{% if pass__({}) %}}{{% endif ", self.raw[body]);
            }
            done = at;
        }
        all + &self.out[done..]
    }
}

/// The length of the end of a tag at the start of `text`.
fn end_marker(text: &str, block: bool) -> Option<usize> {
    let marker = if block { "%}" } else { "}}" };
    let sign = usize::from(text.starts_with(['-', '+']));
    text[sign..].starts_with(marker).then_some(sign + 2)
}

/// The length of the token at the start of `text`, which is not empty.
fn token_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let quote = bytes[0];
    if matches!(quote, b'"' | b'\'') {
        let mut at = 1;
        while at < bytes.len() && bytes[at] != quote {
            at += if bytes[at] == b'\\' { 2 } else { 1 };
        }
        // The byte after a backslash may be the first of several.
        return (at + 1..=text.len()).find(|end| text.is_char_boundary(*end)).unwrap_or(text.len());
    }
    if quote.is_ascii_digit() {
        let mut end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let mantissa =
            text[..end].strip_suffix(['e', 'E']).is_some_and(|m| m.bytes().all(|b| b.is_ascii_digit()));
        if mantissa && text[end..].starts_with(['-', '+']) {
            let digits = text[end + 1..].bytes().take_while(u8::is_ascii_digit).count();
            end += if digits > 0 { 1 + digits } else { 0 };
        }
        return end;
    }
    match text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len()) {
        0 if ["//", "**", "==", "!=", ">=", "<="].iter().any(|op| text.starts_with(op)) => 2,
        0 => text.chars().next().map_or(0, char::len_utf8),
        word => word,
    }
}

/// The length of a `{% raw %}` block at the start of `text`. One without an end, which the engine refuses, takes all the rest.
fn raw_block(text: &str) -> Option<usize> {
    let (tag, _) = text.strip_prefix("{%")?.split_once("%}")?;
    let is = |tag: &str, word| {
        tag.trim_matches(['-', '+']).trim_matches(['-', '+', ' ', '\t', '\n', '\r']) == word
    };
    if !is(tag, "raw") {
        return None;
    }
    let mut at = tag.len() + 4;
    while let Some(start) = text[at..].find("{%") {
        at += start + 2;
        let Some(end) = text[at..].find("%}") else { break };
        if is(&text[at..at + end], "endraw") {
            return Some(at + end + 2);
        }
    }
    Some(text.len())
}
