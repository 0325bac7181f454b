//! `serve` under attack: pages of other origins, clients without the key, floods of connections, headers and bodies, clients that leave.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::Place;
use super::serve::{Server, hello, with};
use super::talk::ADAPTED;

/// The text of a request whose body is `body`.
fn request(line: &str, headers: &[&str], body: &str) -> String {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("{line} HTTP/1.1\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

impl Server {
    /// Sends raw text and returns the whole answer.
    fn raw(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let _ = stream.write_all(text.as_bytes()); // it may be refused before its end
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).to_lowercase()
    }
}

/// Pages of other origins get nothing, also under another name of this machine; nobody without the key does.
pub fn strangers(place: Place) {
    let server =
        Server::with(&place, "tiny", &["--allow-origin=http://app.example:3000", "--api-key=secret"]);
    let own = format!("Host: {}", server.address);
    let key = "Authorization: Bearer secret";
    let json = "Content-Type: application/json";
    let body = with(hello("tiny"), json!({ "max_tokens": 1 })).to_string();
    let post = |headers: &[&str]| server.raw(&request("POST /v1/chat/completions", headers, &body));
    let get = |headers: &[&str]| server.raw(&request("GET /v1/models", headers, ""));
    let expect = |answer: String, start: &str, text: &str| {
        assert!(answer.starts_with(&format!("http/1.1 {start}")) && answer.contains(text), "{answer}");
        assert!(start == "200" || !answer.contains("tiny"), "{answer}");
    };
    expect(get(&[&own, key]), "200", "tiny");
    let localhost = own.replace("127.0.0.1", "LocalHost");
    expect(get(&[&localhost, key]), "200", "tiny");
    expect(post(&[&own, key, json]), "200", "tiny");
    expect(post(&[&own, key, "Content-Type: application/json; charset=utf-8"]), "200", "tiny");
    // DNS rebinding.
    expect(get(&["Host: evil.example", key]), "403", "expected localhost or the address of this server");
    expect(get(&["Host: 10.1.2.3", key]), "403", "--allow-origin http://10.1.2.3");
    expect(get(&[key]), "400", "no host header");
    expect(get(&[&own, "Host: evil.example", key]), "400", "more than one host header");
    expect(get(&["Host: app.example", key]), "200", "tiny");
    // Pages of another origin, with a kind of content that needs no permission.
    expect(
        post(&[&own, key, json, "Origin: https://evil.example"]),
        "403",
        "pages of https://evil.example may not use",
    );
    expect(post(&[&own, key, json, "Origin: null"]), "403", "pages of null may not use");
    expect(get(&[&own, key, "Origin: https://evil.example"]), "403", "may not use this server");
    expect(
        post(&[&own, key, "Content-Type: text/plain"]),
        "415",
        "the content-type is text/plain, expected application/json",
    );
    expect(post(&[&own, key]), "415", "the content-type is nothing");
    let same = format!("Origin: http://{}", server.address);
    expect(post(&[&own, key, json, &same]), "200", "access-control-allow-origin: http://127.0.0.1");
    // A page that may: the browser asks first, without the key.
    let page = "Origin: http://app.example:3000";
    let asks = [
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization, content-type",
    ];
    let preflight =
        |origin| server.raw(&request("OPTIONS /v1/chat/completions", &[&own, origin, asks[0], asks[1]], ""));
    expect(preflight(page), "204", "access-control-allow-headers: authorization, content-type");
    expect(preflight(page), "204", "access-control-allow-origin: http://app.example:3000");
    expect(preflight("Origin: https://evil.example"), "403", "may not use this server");
    expect(post(&[&own, key, json, page]), "200", "access-control-allow-origin: http://app.example:3000");
    // The key.
    expect(get(&[&own]), "401", "the request has no api key");
    expect(get(&[&own, "Authorization: Bearer secre"]), "401", "the api key is wrong");
}

/// Many, large, slow and broken requests are refused or dropped, and another client is answered.
pub fn floods(place: Place) {
    let server = Server::start(&place);
    let host = format!("Host: {}", server.address);
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\n{host}\r\nContent-Type: application/json\r\n");
    let expect = |answer: String, start: &str, text: &str| {
        assert!(answer.starts_with(&format!("http/1.1 {start}")) && answer.contains(text), "{answer}");
    };
    // More idle, half-open and half-sent connections than the server keeps.
    let half = format!("{head}Content-Length: 900000\r\n\r\n{{");
    let starts = ["", "GET /v1/mod", &half[..]];
    let mut open = Vec::new();
    for n in 0..300 {
        let mut stream = TcpStream::connect(&server.address).expect("the server listens");
        let _ = stream.write_all(starts[n % 3].as_bytes());
        open.push(stream);
    }
    assert_eq!(server.ask("GET", "/v1/models", "").0, 200);
    drop(open);
    // Headers.
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    expect(server.raw(&format!("GET /v1/models HTTP/1.1\r\n{host}\r\n{many}\r\n")), "431", "");
    let long = "y".repeat(100_000);
    expect(server.raw(&format!("GET /v1/models HTTP/1.1\r\n{host}\r\nx: {long}\r\n\r\n")), "431", "");
    // Bodies.
    let large = format!("{head}Content-Length: 100000000\r\n\r\n");
    expect(server.raw(&large), "413", "the request is larger than 1.0 mib; shorten it");
    let cut = format!("{head}Transfer-Encoding: chunked\r\n\r\nnonsense\r\n");
    expect(server.raw(&cut), "400", "");
    // Prompts that cannot fit are refused by their start.
    for text in ["<".repeat(1_000_000), "a".repeat(900_000), "word ".repeat(200_000)] {
        let body = json!({ "messages": [{ "role": "user", "content": text }] });
        server.refuses(
            &body.to_string(),
            400,
            json!("messages"),
            "the messages have at least … tokens, but the context holds 1024; shorten them",
        );
    }
    // The model may be left out: the adapters' is the default.
    let (_, answer) = server.post(&json!({ "messages": [{ "role": "user", "content": "Hello!" }] }));
    assert_eq!(
        (&answer["model"], answer["choices"][0]["message"]["content"].as_str()),
        (&json!("tiny+adapter"), Some(ADAPTED))
    );
}

/// A client that sends requests and reads no response is dropped, and another client is answered.
pub fn reads_nothing(place: Place) {
    let mut command = place.command(&["serve", "tiny", "--port=0"]);
    command.env("RULLAMA_WRITE_TIMEOUT", "300"); // milliseconds
    let server = Server::from_command(command);
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    stream.set_write_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let request = format!("GET /v1/models HTTP/1.1\r\nHost: {}\r\n\r\n", server.address).repeat(100);
    // The responses fill the buffers of both sides. Then the server reads no more requests, and these fill theirs.
    let error = loop {
        if let Err(error) = stream.write_all(request.as_bytes()) {
            break error;
        }
    };
    assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "it stays: {error}");
    assert_eq!(server.ask("GET", "/v1/models", "").0, 200);
}

/// A request for a very long reply.
fn endless() -> Json {
    let more =
        json!({ "stream": true, "temperature": 50, "top_k": 0, "top_p": 1, "max_tokens": 1000, "seed": 1 });
    with(hello("tiny"), more)
}

pub fn goes_away(place: Place) {
    let mut server = Server::start(&place);
    let mut answer = server.send("POST", "/v1/chat/completions", &endless().to_string());
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        answer.read_line(&mut line).expect("UTF-8");
    }
    drop(answer);
    let line = server.next_line();
    assert!(line.starts_with("request ") && line.ends_with(", cancelled\n"), "{line}");
    // A client that disconnects from a reply without streaming also stops generation.
    let answer =
        server.send("POST", "/v1/chat/completions", &with(endless(), json!({ "stream": false })).to_string());
    std::thread::sleep(Duration::from_millis(500));
    drop(answer);
    let line = server.next_line();
    assert!(line.ends_with(", cancelled\n"), "{line}");
    assert_eq!(server.post(&hello("tiny")).0, 200);

    // Ctrl-C during a reply ends it with an error event; the exit status is 0.
    if cfg!(unix) {
        let mut answer = server.send("POST", "/v1/chat/completions", &endless().to_string());
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            answer.read_line(&mut line).expect("UTF-8");
        }
        let id = server.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &id]).status().expect("kill").success());
        let mut rest = String::new();
        answer.read_to_string(&mut rest).expect("UTF-8");
        assert!(rest.contains("the server is stopping") && !rest.contains("[DONE]"), "{rest}");
        assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
        let mut output = String::new();
        server.output.read_to_string(&mut output).expect("UTF-8");
        assert!(output.ends_with("stopped    all requests are finished\n"), "{output}");
    }
}
