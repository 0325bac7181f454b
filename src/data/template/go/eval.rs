//! Runs the tree of a Go template.

use super::GoError;
use super::functions::call;
use super::parse::{Branch, Node, Pipe, Root, Term};
use super::value::Value;
use crate::data::template::Date;

/// Number of nodes and terms that a rendering may evaluate.
const STEPS: usize = 1_000_000;
/// Bytes that a rendering may write.
const TEXT: usize = 16 << 20;

/// The text that a template writes for `root`, its `.` and `$`, on the day `today`.
pub(super) fn run(nodes: &[Node], root: Value, today: Date) -> Result<String, GoError> {
    let variables = vec![(String::new(), root.clone())];
    let mut run = Run { out: String::new(), steps: 0, variables, today };
    run.nodes(nodes, &root)?;
    Ok(run.out)
}

struct Run {
    out: String,
    steps: usize,
    /// Variables, innermost last. The first, without a name, is the root.
    variables: Vec<(String, Value)>,
    today: Date,
}

/// The reason for which a list of nodes ended.
#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl Run {
    fn step(&mut self) -> Result<(), GoError> {
        self.steps += 1;
        if self.steps > STEPS { Err(GoError::limit("it does not come to an end")) } else { Ok(()) }
    }

    fn write(&mut self, text: &str) -> Result<(), GoError> {
        if self.out.len() + text.len() > TEXT {
            return Err(GoError::limit("it makes too much text"));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn nodes(&mut self, nodes: &[Node], dot: &Value) -> Result<Flow, GoError> {
        for node in nodes {
            self.step()?;
            match node {
                Node::Text(text) => self.write(text)?,
                Node::Action(pipe) => {
                    let value = self.pipe(pipe, dot)?;
                    if pipe.variables.is_empty() {
                        self.write(&value.display())?;
                    } else {
                        self.assign(pipe, &[value])?;
                    }
                }
                Node::Branch { kind, pipe, then, otherwise } => {
                    let outside = self.variables.len();
                    let flow = self.branch(*kind, pipe, then, otherwise, dot)?;
                    self.variables.truncate(outside);
                    if flow != Flow::On {
                        return Ok(flow);
                    }
                }
                Node::Break => return Ok(Flow::Break),
                Node::Continue => return Ok(Flow::Continue),
            }
        }
        Ok(Flow::On)
    }

    fn branch(
        &mut self,
        kind: Branch,
        pipe: &Pipe,
        then: &[Node],
        otherwise: &[Node],
        dot: &Value,
    ) -> Result<Flow, GoError> {
        let value = self.pipe(pipe, dot)?;
        if kind == Branch::Range {
            return self.range(pipe, &value, then, otherwise, dot);
        }
        if !pipe.variables.is_empty() {
            self.assign(pipe, std::slice::from_ref(&value))?;
        }
        match (value.is_true(), kind) {
            (true, Branch::With) => self.nodes(then, &value),
            (true, _) => self.nodes(then, dot),
            (false, _) => self.nodes(otherwise, dot),
        }
    }

    fn range(
        &mut self,
        pipe: &Pipe,
        value: &Value,
        body: &[Node],
        otherwise: &[Node],
        dot: &Value,
    ) -> Result<Flow, GoError> {
        let items = match value {
            Value::List(items, range) => &items[range.clone()],
            Value::Nil => &[],
            _ => return Err(GoError::unsupported("a loop over something other than a list")),
        };
        if items.is_empty() {
            return self.nodes(otherwise, dot);
        }
        let outside = self.variables.len();
        for (at, item) in items.iter().enumerate() {
            let found = [Value::Int(at as i64), item.clone()];
            // One variable is the item, two are index and item.
            self.assign(pipe, &found[2 - pipe.variables.len()..])?;
            let flow = self.nodes(body, item)?;
            self.variables.truncate(outside);
            if flow == Flow::Break {
                break;
            }
        }
        Ok(Flow::On)
    }

    fn assign(&mut self, pipe: &Pipe, values: &[Value]) -> Result<(), GoError> {
        for (name, value) in pipe.variables.iter().zip(values) {
            if pipe.declares {
                self.variables.push((name.clone(), value.clone()));
            } else {
                let found = self.variables.iter_mut().rev().find(|(other, _)| other == name);
                found.ok_or_else(|| undefined(name))?.1 = value.clone();
            }
        }
        Ok(())
    }

    fn pipe(&mut self, pipe: &Pipe, dot: &Value) -> Result<Value, GoError> {
        let mut last = None;
        for command in &pipe.commands {
            last = Some(self.command(command, last, dot)?);
        }
        Ok(last.unwrap_or(Value::Nil))
    }

    fn command(&mut self, command: &[Term], last: Option<Value>, dot: &Value) -> Result<Value, GoError> {
        self.step()?;
        let (first, arguments) = command.split_first().expect("the parser refuses empty commands");
        match first {
            Term::Function(name) if name == "and" || name == "or" => {
                // Evaluates up to the first argument that decides.
                let mut found = None;
                for argument in arguments {
                    let value = self.term(argument, dot)?;
                    if value.is_true() == (name == "or") {
                        return Ok(value);
                    }
                    found = Some(value);
                }
                last.or(found).ok_or_else(|| GoError::wrong(format!("{name} without arguments")))
            }
            // Ollama ignores the format that it takes.
            Term::Function(name) if name == "currentDate" => Ok(Value::text(self.today.iso())),
            Term::Function(name) => {
                let mut values = Vec::with_capacity(arguments.len() + 1);
                for argument in arguments {
                    values.push(self.term(argument, dot)?);
                }
                values.extend(last);
                call(name, &values)
            }
            _ if !arguments.is_empty() || last.is_some() => {
                Err(GoError::wrong("a value is called like a function"))
            }
            _ => self.term(first, dot),
        }
    }

    fn term(&mut self, term: &Term, dot: &Value) -> Result<Value, GoError> {
        self.step()?;
        match term {
            Term::Function(_) => self.command(std::slice::from_ref(term), None, dot),
            Term::Literal(value) => Ok(value.clone()),
            Term::Path(root, fields) => {
                let mut value = match root {
                    Root::Dot => dot.clone(),
                    Root::Variable(name) => {
                        let found = self.variables.iter().rev().find(|(other, _)| other == name);
                        found.ok_or_else(|| undefined(name))?.1.clone()
                    }
                    Root::Pipe(pipe) => self.pipe(pipe, dot)?,
                };
                for name in fields {
                    value = field(&value, name)?;
                }
                Ok(value)
            }
        }
    }
}

fn field(value: &Value, name: &str) -> Result<Value, GoError> {
    match value {
        Value::Map(fields) => Ok(fields.get(name).cloned().unwrap_or(Value::Nil)),
        Value::Fields(fields) => match fields.get(name) {
            Some(value) => Ok(value.clone()),
            None => Err(GoError::unsupported(format!("the field .{name} of a message"))),
        },
        _ => Err(GoError::wrong(format!("the field .{name} of {}", value.display()))),
    }
}

fn undefined(name: &str) -> GoError {
    GoError::wrong(format!("the variable ${name}, which is not defined"))
}
