//! Go templates, with which Ollama renders conversations: the part of `text/template` that its models use, and the variables that
//! Ollama sets (`template/template.go`).
//!
//! Functions are not declared to a template: Ollama and transformers order their keys differently. A template that uses something
//! else than what is read here is an error, never a guess.

mod compare;
mod eval;
mod functions;
mod lex;
mod parse;
mod value;

use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

use super::{Conversation, Date, Message, Role};
use crate::data::digits;
use parse::{Node, Pipe, Root, Term};
use value::Value;

pub use compare::{Comparison, Difference};

/// Largest template, in bytes.
const MAX_SOURCE: usize = 1 << 20;

/// Why a Go template cannot be rendered here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoError(String);

impl GoError {
    fn syntax(problem: impl fmt::Display) -> GoError {
        GoError(format!("it is no Go template: {problem}"))
    }

    fn unsupported(part: impl fmt::Display) -> GoError {
        GoError(format!("it uses {part}, which is not supported here"))
    }

    fn wrong(problem: impl fmt::Display) -> GoError {
        GoError(format!("it fails: {problem}"))
    }

    fn limit(problem: &str) -> GoError {
        GoError(problem.into())
    }
}

impl fmt::Display for GoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GoError {}

/// A Go template as Ollama runs it.
pub struct GoTemplate {
    nodes: Vec<Node>,
    /// Whether it loops over the messages itself. Others render one question and its answer at a time.
    of_messages: bool,
    thinks: bool,
}

impl GoTemplate {
    /// Parses a template.
    pub fn new(source: &str) -> Result<GoTemplate, GoError> {
        if source.len() > MAX_SOURCE {
            return Err(GoError::limit("it is larger than 1 MiB"));
        }
        let mut nodes = parse::parse(source)?;
        let names = parse::names(&nodes);
        let of_messages = names.contains("messages");
        if !of_messages && !names.contains("response") {
            nodes.push(Node::Action(response()));
        }
        Ok(GoTemplate { nodes, of_messages, thinks: names.contains("think") })
    }

    /// Whether it has a variable for thinking, so that Ollama's users can turn it on and off.
    pub fn thinks(&self) -> bool {
        self.thinks
    }

    /// The prompt for the answer to a conversation, which ends in a message of a user or a function, on the day `today`.
    pub fn prompt(&self, conversation: &Conversation, today: Date) -> Result<String, GoError> {
        let system: Vec<&str> = of(conversation, Role::System).map(|m| &*m.content).collect();
        let messages = collated(&conversation.messages);
        let thinking =
            [("Think", Value::Bool(conversation.thinks())), ("IsThinkSet", Value::Bool(self.thinks))];
        if self.of_messages {
            let messages = Value::list(messages.iter().map(message).collect());
            let [think, set] = thinking;
            let variables = [
                ("System", Value::text(system.join("\n\n"))),
                ("Messages", messages),
                ("Tools", Value::list(Vec::new())),
                ("Response", Value::text("")),
                think,
                set,
            ];
            return eval::run(&self.nodes, Value::Map(Arc::new(variables.into())), today);
        }
        self.by_rounds(&messages, &thinking, today)
    }

    /// Renders one question with its answer at a time. The last one ends in front of its answer.
    fn by_rounds(
        &self,
        messages: &[Message],
        thinking: &[(&'static str, Value)],
        today: Date,
    ) -> Result<String, GoError> {
        let mut out = String::new();
        let mut round: [&str; 3] = [""; 3];
        let render = |nodes: &[Node], round: [&str; 3]| {
            let names = ["System", "Prompt", "Response"].into_iter().zip(round.map(Value::text));
            eval::run(nodes, Value::Map(Arc::new(names.chain(thinking.iter().cloned()).collect())), today)
        };
        for message in messages {
            let [_, question, answer] = round;
            let ends = match message.role {
                Role::System => !question.is_empty() || !answer.is_empty(),
                Role::User => !answer.is_empty(),
                Role::Assistant | Role::Tool => false,
            };
            if ends {
                out += &render(&self.nodes, round)?;
                round = [""; 3];
            }
            match message.role {
                Role::System => round[0] = &message.content,
                Role::User => round[1] = &message.content,
                Role::Assistant => round[2] = &message.content,
                Role::Tool => {}
            }
        }
        let (nodes, _) = up_to_response(&self.nodes);
        Ok(out + &render(&nodes, round)?)
    }
}

fn of(conversation: &Conversation, role: Role) -> impl Iterator<Item = &Message> {
    conversation.messages.iter().filter(move |message| message.role == role)
}

/// The messages, with the texts of neighbours of the same role joined, except for results of functions.
fn collated(messages: &[Message]) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::new();
    for message in messages {
        match out.last_mut() {
            Some(last) if last.role == message.role && message.role != Role::Tool => {
                last.content += "\n\n";
                last.content += &message.content;
            }
            _ => out.push(message.clone()),
        }
    }
    out
}

/// A message with the fields that Ollama gives it.
fn message(message: &Message) -> Value {
    let call = |call: &super::ToolCall| {
        let function = Value::fields([
            ("Name", Value::text(&*call.name)),
            ("Arguments", Value::Json(Arc::new(digits::rounded(&Json::Object(call.arguments.clone()))))),
            ("Index", Value::Int(0)),
        ]);
        Value::fields([("ID", Value::text(&*call.id)), ("Function", function)])
    };
    let content = message.result.as_ref().map_or_else(|| message.content.clone(), digits::to_json);
    Value::fields([
        ("Role", Value::text(message.role.name())),
        ("Content", Value::text(content)),
        ("Thinking", Value::text(&*message.thinking)),
        ("Images", Value::list(Vec::new())),
        ("ToolCalls", Value::list(message.tool_calls.iter().map(call).collect())),
        ("ToolName", Value::text(&*message.name)),
        ("ToolCallID", Value::text(&*message.tool_call_id)),
    ])
}

/// `{{ .Response }}`, which Ollama appends to templates without it.
fn response() -> Pipe {
    let commands = vec![vec![Term::Path(Root::Dot, vec!["Response".into()])]];
    Pipe { variables: Vec::new(), declares: false, commands }
}

/// The nodes up to the first action that writes the response, and whether there is one.
fn up_to_response(nodes: &[Node]) -> (Vec<Node>, bool) {
    let mut kept = Vec::new();
    for node in nodes {
        let (node, found) = match node {
            Node::Action(pipe) => (node.clone(), writes_response(pipe)),
            Node::Branch { kind, pipe, then, otherwise } => {
                let (then, found) = up_to_response(then);
                let (otherwise, later) = if found { (Vec::new(), false) } else { up_to_response(otherwise) };
                (Node::Branch { kind: *kind, pipe: pipe.clone(), then, otherwise }, found || later)
            }
            Node::Text(_) | Node::Break | Node::Continue => (node.clone(), false),
        };
        kept.push(node);
        if found {
            return (kept, true);
        }
    }
    (kept, false)
}

fn writes_response(pipe: &Pipe) -> bool {
    let is_response =
        |term: &Term| matches!(term, Term::Path(_, fields) if fields.iter().any(|f| f == "Response"));
    pipe.commands.iter().flatten().any(is_response)
}
