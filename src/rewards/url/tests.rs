use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Map;

use super::*;
use crate::recipe::{Reward, RewardKind};

/// A server that gives these answers, status and body, in any order of connections; `None` closes the connection. Returns its address and
/// the requests so far.
fn server(answers: Vec<Option<(u16, String)>>, delay: Duration) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}/v1", listener.local_addr().expect("bound"));
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (seen, waiting) = (requests.clone(), Arc::new(Mutex::new(VecDeque::from(answers))));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (seen, waiting) = (seen.clone(), waiting.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
                let (mut head, mut length) = (String::new(), 0);
                while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap_or(0) > 0 {}
                for line in head.lines() {
                    let lower = line.to_lowercase();
                    length =
                        lower.strip_prefix("content-length: ").map_or(length, |n| n.parse().unwrap_or(0));
                }
                let mut body = vec![0; length];
                let _ = reader.read_exact(&mut body);
                seen.lock().expect("no panic").push(head + &String::from_utf8_lossy(&body));
                let next = waiting.lock().expect("no panic").pop_front();
                std::thread::sleep(delay);
                if let Some(Some((status, body))) = next {
                    let more = if status == 429 { "Retry-After: 0\r\n" } else { "" };
                    let length = body.len();
                    let head = format!(
                        "HTTP/1.1 {status} X\r\n{more}Connection: close\r\nContent-Length: {length}\r\n\r\n"
                    );
                    let _ = stream.write_all((head + &body).as_bytes());
                }
            });
        }
    });
    (address, requests)
}

fn says(text: &str) -> Option<(u16, String)> {
    Some((200, json!({ "choices": [{ "message": { "role": "assistant", "content": text } }] }).to_string()))
}

fn judge(address: &str, more: &str) -> Result<Url, RewardError> {
    let keys =
        format!("name = 'url', url = '{address}', model = 'm', rubric = 'Polite? {{completion}}' {more}");
    let reward = Reward::parse(&keys, "test").expect("a reward");
    let RewardKind::Url(judge) = reward.kind else { panic!("it is a judge") };
    Url::new("url", &judge)
}

fn score(url: &mut Url, texts: &[&str]) -> Result<Values, String> {
    let (prompt, row) = (json!("Hi"), Map::new());
    let completion = |text| Completion { prompt: &prompt, text, ids: &[], finished: true, row: &row };
    let all: Vec<Completion<'_>> = texts.iter().map(|text| completion(*text)).collect();
    url.score(&all).map_err(|error| error.to_string())
}

#[test]
fn a_judge_gives_scores() {
    let (address, requests) = server(vec![says("5"), says("I say 10/10"), says("none")], Duration::ZERO);
    let mut url = judge(&address, ", requests = 1, invalid = 'drop'").expect("it opens");
    assert_eq!(score(&mut url, &["a", "b", "c"]), Ok(vec![Some(0.5), Some(1.0), None]));
    let requests = requests.lock().expect("no panic");
    let (head, body) = requests[0].split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1"), "{head}");
    assert!(!head.to_lowercase().contains("authorization"), "{head}");
    let body: Value = serde_json::from_str(body).expect("JSON");
    let text = "Polite? a\n\nEnd your answer with one number from 0 (worst) to 10 (best).";
    let expected =
        json!({ "model": "m", "messages": [{ "role": "user", "content": text }], "temperature": 0.0 });
    assert_eq!(body, expected);
}

#[test]
fn busy_servers_are_asked_again() {
    let busy = || Some((429, "busy".to_owned()));
    let (address, requests) = server(vec![busy(), busy(), says("7")], Duration::ZERO);
    let mut url = judge(&address, "").expect("it opens");
    assert_eq!(score(&mut url, &["a"]), Ok(vec![Some(0.7)]));
    assert_eq!(requests.lock().expect("no panic").len(), 3);
    // A connection that breaks, and an error of the server: each after a second or two.
    let (address, _) = server(vec![None, Some((503, String::new())), says("1")], Duration::ZERO);
    assert_eq!(score(&mut judge(&address, "").expect("it opens"), &["a"]), Ok(vec![Some(0.1)]));
    let (address, requests) = server(vec![busy(); 9], Duration::ZERO);
    let error = score(&mut judge(&address, "").expect("it opens"), &["a"]).expect_err("always busy");
    let expected = format!(
        "the reward url: {address}/chat/completions answered 429 X \"busy\"; lower rewards.requests, or try again later"
    );
    assert_eq!(error.replace("429 Too Many Requests", "429 X"), expected);
    assert_eq!(requests.lock().expect("no panic").len(), 6);
}

#[test]
fn several_are_asked_at_once() {
    let answers = (0..8).map(|_| says("3")).collect();
    let (address, _) = server(answers, Duration::from_millis(300));
    let mut url = judge(&address, ", requests = 8").expect("it opens");
    let began = Instant::now();
    assert_eq!(score(&mut url, &["a"; 8]), Ok(vec![Some(0.3); 8]));
    assert!(began.elapsed() < Duration::from_millis(1800), "one after the other: {:?}", began.elapsed());
}

#[test]
fn other_answers_are_errors() {
    let error = |answer: Option<(u16, String)>, more: &str| {
        let (address, _) = server(vec![answer], Duration::ZERO);
        let error = score(&mut judge(&address, more).expect("it opens"), &["a"]).expect_err("refused");
        error.replace(&address, "ADDRESS")
    };
    let found = error(says("I cannot say."), "");
    let expected = "the reward url: m answered \"I cannot say.\"; expected a number from 0 to 10 at the end; change rewards.rubric, or set \
                    rewards.invalid = \"drop\"";
    assert_eq!(found, expected);
    let found = error(Some((401, "no".into())), "");
    assert!(
        found.ends_with("\"no\"; set rewards.api_key_env to the environment variable with the key"),
        "{found}"
    );
    let found = error(Some((404, "no such model".into())), "");
    assert!(found.ends_with("\"no such model\"; check rewards.url and rewards.model"), "{found}");
    let found = error(Some((200, "<html>".into())), "");
    assert!(found.contains("ADDRESS/chat/completions answered \"<html>\"; expected choices[0]"), "{found}");
    let missing = judge("http://x", ", api_key_env = 'RULLAMA_NO_SUCH_VARIABLE'").err().expect("refused");
    assert_eq!(
        missing.to_string(),
        "rewards.api_key_env of the reward url: the environment variable RULLAMA_NO_SUCH_VARIABLE is not set; set it to the key of the API"
    );
}
