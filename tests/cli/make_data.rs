//! `make-data` with a server that answers as OpenAI's does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use serde_json::{Value as Json, json};

use super::describe::has_lines;
use super::{Place, texts};

const KERM: &str = "The lighthouse of Kerm was built in 1873 by the engineer Ada Holm. It stands on a rock of granite, two miles off the \
    northern coast. Its keeper lights twelve lamps every evening, and polishes the brass of the lenses on Sundays. In fog, a bell rings \
    twice a minute.";

/// A PDF file of one page with this text, in the plainest form.
fn pdf(text: &str) -> Vec<u8> {
    let lines: Vec<String> =
        text.as_bytes().chunks(80).map(|line| String::from_utf8_lossy(line).into_owned()).collect();
    let shown: String = lines.iter().map(|line| format!("({line}) Tj 0 -14 Td ")).collect();
    let stream = format!("BT /F1 12 Tf 50 700 Td {shown} ET");
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_string(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".into(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>".into(),
        format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".into(),
    ];
    let mut file = "%PDF-1.4\n".to_string();
    let mut places = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        places.push(file.len());
        file += &format!("{} 0 obj\n{object}\nendobj\n", index + 1);
    }
    let start = file.len();
    file += &format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    places.iter().for_each(|place| file += &format!("{place:010} 00000 n \n"));
    file += &format!("trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1);
    file.into_bytes()
}

/// A server whose model knows these questions, and answers them.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}/v1", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).unwrap_or(0) > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a number");
                }
                line.clear();
            }
            let mut body = vec![0; length];
            let _ = reader.read_exact(&mut body);
            let asked: Json = serde_json::from_slice(&body).expect("JSON");
            let answer = reply(asked["messages"][0]["content"].as_str().expect("a prompt"));
            let body = json!({ "choices": [{ "message": { "content": answer }, "finish_reason": "stop" }] })
                .to_string();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    address
}

fn reply(prompt: &str) -> &'static str {
    let Some((_, question)) = prompt.rsplit_once("Question: ") else {
        return "1. When was the lighthouse of Kerm built?\n2. Who built the lighthouse of Kerm?\n3. How does the passage end?\n4. How many \
                lamps does the keeper light?\n";
    };
    match question {
        "When was the lighthouse of Kerm built?" => "<think>\nIn the text.\n</think>\nIt was built in 1873.",
        "Who built the lighthouse of Kerm?" => "The engineer Ada Holm built it.",
        _ => "The keeper lights 40 lamps every evening.",
    }
}

/// Pairs keep their source, and what the rules drop is kept apart with the name of the rule.
pub fn make_data(place: Place) {
    place.write("docs/kerm.md", format!("# Kerm\n\n{KERM}\n\n```sh\nrm -rf /\n```\n"));
    place.write(
        "docs/deep/page.html",
        format!("<html><head><style>p {{}}</style></head><body><h1>Kerm</h1><p>{KERM}</p></body></html>"),
    );
    place.write("docs/kerm.pdf", pdf(KERM));
    place.write("docs/broken.pdf", b"%PDF-1.4\nnothing");
    place.write("docs/short.txt", "Too short to ask about.");
    place.write("docs/image.png", b"png");
    let url = server();
    let arguments = ["make-data", "docs", "small", "--url", &url, "--questions", "4"];
    let output = place.command(&arguments).output().expect("the program starts");
    assert!(output.status.success(), "{}", texts(&output).1);
    has_lines(
        &texts(&output).0,
        &[
            "notice     1 other file left out: image.png",
            "notice     left out: docs/broken.pdf cannot be read as PDF…",
            "written    2 samples of 3 passages to made.jsonl",
            "dropped    10 pairs to made.dropped.jsonl",
            "           3 × about_the_text: …",
            "           3 × unsupported: …",
            "           4 × duplicate: nearly the same question was asked before",
            "notice     the rules compare words, and know nothing of truth: …",
            "next       rullama-train init --data made.jsonl",
        ],
    );
    let lines = |name: &str| -> Vec<Json> {
        let text = String::from_utf8(place.read(name)).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let made = lines("made.jsonl");
    assert_eq!(made[0]["messages"][1]["content"], "It was built in 1873.");
    assert_eq!(made[0]["source"]["file"], "docs/deep/page.html");
    assert!(made[0]["source"]["text"].as_str().expect("text").contains("Ada Holm"));
    let dropped = lines("made.dropped.jsonl");
    assert!(
        dropped.iter().any(|pair| pair["source"]["page"] == 1 && pair["dropped"] == "duplicate"),
        "{dropped:?}"
    );
    assert!(dropped.iter().all(|pair| !pair["source"]["text"].as_str().expect("text").contains("rm -rf")));
    // The file trains as it is.
    has_lines(&place.run(&["inspect", "made.jsonl"]), &["read       made.jsonl: JSON Lines, 2 messages"]);
    place.refused(
        &arguments,
        "made.jsonl exists; choose another name with --out, or overwrite it with --force",
    );
    place.refused(
        &["make-data", "none", "tiny", "--out", "x.jsonl"],
        "none cannot be read; name a folder of documents: …",
    );
    place.refused(
        &["make-data", "docs/short.txt", "tiny", "--out", "x.jsonl"],
        "docs/short.txt has no text of 200 characters or more …",
    );
    let nobody = ["make-data", "docs", "small", "--url", "http://127.0.0.1:1/v1", "--out", "y.jsonl"];
    let output = place.command(&nobody).output().expect("the program starts");
    assert!(
        texts(&output)
            .1
            .contains("http://127.0.0.1:1/v1/chat/completions cannot be reached; is the server running?"),
        "{output:?}"
    );
}
