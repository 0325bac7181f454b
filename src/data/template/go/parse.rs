//! The tree of a Go template.

use std::collections::BTreeSet;
use std::vec::IntoIter;

use super::GoError;
use super::lex::{Part, Token, parts};
use super::value::Value;

/// Maximum nesting of blocks and parentheses.
const MAX_DEPTH: usize = 64;

/// A node of the tree.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Text(String),
    Action(Pipe),
    Branch { kind: Branch, pipe: Pipe, then: Vec<Node>, otherwise: Vec<Node> },
    Break,
    Continue,
}

/// A block with a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Branch {
    If,
    With,
    Range,
}

/// Commands, each of which gets the result of the one before as its last argument.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    /// Variables that get the result.
    pub variables: Vec<String>,
    /// Whether the variables are new.
    pub declares: bool,
    pub commands: Vec<Vec<Term>>,
}

/// A function, or an argument of one.
#[derive(Clone, Debug)]
pub(super) enum Term {
    Function(String),
    Literal(Value),
    /// A value, and the fields that are read from it.
    Path(Root, Vec<String>),
}

/// The start of a path.
#[derive(Clone, Debug)]
pub(super) enum Root {
    Dot,
    Variable(String),
    Pipe(Box<Pipe>),
}

/// Parses a template.
pub(super) fn parse(source: &str) -> Result<Vec<Node>, GoError> {
    let mut parser = Parser { parts: parts(source)?.into_iter(), depth: 0, ranges: 0 };
    match parser.nodes()? {
        (nodes, None) => Ok(nodes),
        (_, Some(end)) => Err(GoError::syntax(format!("{{{{ {} }}}} without a block", end.word()))),
    }
}

/// The names of all fields and variables of a template, in small letters.
pub(super) fn names(nodes: &[Node]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    nodes.iter().for_each(|node| node.names(&mut names));
    names
}

impl Node {
    fn names(&self, names: &mut BTreeSet<String>) {
        match self {
            Node::Text(_) | Node::Break | Node::Continue => {}
            Node::Action(pipe) => pipe.names(names),
            Node::Branch { pipe, then, otherwise, .. } => {
                pipe.names(names);
                then.iter().chain(otherwise).for_each(|node| node.names(names));
            }
        }
    }
}

impl Pipe {
    fn names(&self, names: &mut BTreeSet<String>) {
        for term in self.commands.iter().flatten() {
            let Term::Path(root, fields) = term else { continue };
            names.extend(fields.iter().map(|field| field.to_lowercase()));
            if let Root::Pipe(pipe) = root {
                pipe.names(names);
            }
        }
    }
}

/// The end of a list of nodes.
enum End {
    End,
    /// The rest of the action: empty, or another condition.
    Else(Vec<Token>),
}

impl End {
    fn word(&self) -> &'static str {
        if matches!(self, End::End) { "end" } else { "else" }
    }
}

struct Parser {
    parts: IntoIter<Part>,
    depth: usize,
    /// Number of loops around the present part.
    ranges: usize,
}

impl Parser {
    /// The nodes up to the end of a block or of the template.
    fn nodes(&mut self) -> Result<(Vec<Node>, Option<End>), GoError> {
        let mut nodes = Vec::new();
        while let Some(part) = self.parts.next() {
            let tokens = match part {
                Part::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Part::Action(tokens) => tokens,
            };
            let first = match tokens.first() {
                Some(Token::Word(word)) => word.as_str(),
                _ => "",
            };
            match first {
                "end" => return Ok((nodes, Some(End::End))),
                "else" => {
                    return Ok((
                        nodes,
                        Some(End::Else(tokens.into_iter().skip(1).skip_while(space).collect())),
                    ));
                }
                "if" => nodes.push(self.branch(Branch::If, tokens)?),
                "with" => nodes.push(self.branch(Branch::With, tokens)?),
                "range" => nodes.push(self.branch(Branch::Range, tokens)?),
                "break" | "continue" if self.ranges == 0 => {
                    return Err(GoError::syntax(format!("{{{{ {first} }}}} outside of a loop")));
                }
                "break" => nodes.push(Node::Break),
                "continue" => nodes.push(Node::Continue),
                "define" | "template" | "block" => {
                    return Err(GoError::unsupported(format!("{{{{ {first} }}}}")));
                }
                _ => nodes.push(Node::Action(pipe(tokens, Branch::If, 0)?)),
            }
        }
        Ok((nodes, None))
    }

    /// A block, from its first action to its end.
    fn branch(&mut self, kind: Branch, tokens: Vec<Token>) -> Result<Node, GoError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(GoError::syntax("its blocks are nested too deeply"));
        }
        let pipe = pipe(tokens.into_iter().skip(1).collect(), kind, 0)?;
        self.ranges += usize::from(kind == Branch::Range);
        let (then, end) = self.nodes()?;
        self.ranges -= usize::from(kind == Branch::Range);
        let otherwise = match end {
            Some(End::End) => Vec::new(),
            Some(End::Else(rest)) if rest.is_empty() => match self.nodes()? {
                (otherwise, Some(End::End)) => otherwise,
                _ => return Err(unended()),
            },
            // `else if` is a block inside of `else` that shares its end.
            Some(End::Else(rest)) => match rest.first() {
                Some(Token::Word(word)) if word == "if" => vec![self.branch(Branch::If, rest)?],
                Some(Token::Word(word)) if word == "with" => vec![self.branch(Branch::With, rest)?],
                _ => return Err(GoError::syntax("{{ else }} has neither if nor with behind it")),
            },
            None => return Err(unended()),
        };
        self.depth -= 1;
        Ok(Node::Branch { kind, pipe, then, otherwise })
    }
}

fn unended() -> GoError {
    GoError::syntax("a block has no {{ end }}")
}

fn space(token: &Token) -> bool {
    *token == Token::Space
}

/// Parses the tokens of an action. Only loops may have two variables.
fn pipe(tokens: Vec<Token>, kind: Branch, depth: usize) -> Result<Pipe, GoError> {
    let mark = tokens.iter().position(|token| matches!(token, Token::Declare | Token::Assign));
    let mut pipe = Pipe { variables: Vec::new(), declares: false, commands: Vec::new() };
    let mut rest = tokens;
    if let Some(mark) = mark {
        let body = rest.split_off(mark + 1);
        pipe.declares = rest.pop() == Some(Token::Declare);
        for token in rest.into_iter().filter(|token| !space(token) && *token != Token::Comma) {
            match token {
                Token::Variable(name) if !name.is_empty() => pipe.variables.push(name),
                _ => return Err(GoError::syntax("only variables can be assigned to")),
            }
        }
        rest = body;
    }
    let most = if kind == Branch::Range { 2 } else { 1 };
    if pipe.variables.len() > most {
        return Err(GoError::syntax("too many variables are assigned to"));
    }
    let mut tokens = rest.into_iter();
    pipe.commands = commands(&mut tokens, depth)?;
    match tokens.next() {
        None => Ok(pipe),
        Some(_) => Err(GoError::syntax("a parenthesis is closed that was not opened")),
    }
}

/// Commands up to a closing parenthesis, which is left, or to the end.
fn commands(tokens: &mut IntoIter<Token>, depth: usize) -> Result<Vec<Vec<Term>>, GoError> {
    if depth > MAX_DEPTH {
        return Err(GoError::syntax("its parentheses are nested too deeply"));
    }
    let mut commands = vec![Vec::new()];
    while let Some(token) = tokens.as_slice().first().cloned() {
        if token == Token::Close {
            break;
        }
        tokens.next();
        let command = commands.last_mut().expect("there is one from the start");
        let root = match token {
            Token::Space => continue,
            Token::Pipe => {
                commands.push(Vec::new());
                continue;
            }
            Token::Text(text) => {
                command.push(Term::Literal(Value::text(text)));
                continue;
            }
            Token::Int(int) => {
                command.push(Term::Literal(Value::Int(int)));
                continue;
            }
            Token::Float(float) => {
                command.push(Term::Literal(Value::Float(float)));
                continue;
            }
            Token::Word(word) => {
                command.push(match word.as_str() {
                    "true" | "false" => Term::Literal(Value::Bool(word == "true")),
                    "nil" => Term::Literal(Value::Nil),
                    _ => Term::Function(word),
                });
                continue;
            }
            Token::Dot => Term::Path(Root::Dot, Vec::new()),
            Token::Field(name) => Term::Path(Root::Dot, vec![name]),
            Token::Variable(name) => Term::Path(Root::Variable(name), Vec::new()),
            Token::Open => {
                let inner = self::commands(tokens, depth + 1)?;
                if tokens.next() != Some(Token::Close) {
                    return Err(GoError::syntax("a parenthesis is not closed"));
                }
                let inner = Pipe { variables: Vec::new(), declares: false, commands: inner };
                Term::Path(Root::Pipe(Box::new(inner)), Vec::new())
            }
            Token::Close | Token::Comma | Token::Declare | Token::Assign => {
                return Err(GoError::syntax("a comma or an assignment is at a wrong place"));
            }
        };
        let Term::Path(root, mut fields) = root else { unreachable!("literals went on above") };
        while let Some(Token::Field(name)) = tokens.as_slice().first() {
            fields.push(name.clone());
            tokens.next();
        }
        command.push(Term::Path(root, fields));
    }
    match commands.iter().any(Vec::is_empty) {
        true => Err(GoError::syntax("an action is empty")),
        false => Ok(commands),
    }
}
