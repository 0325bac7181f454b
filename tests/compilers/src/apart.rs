//! A process of its own for the driver, which may crash or hang: the table says so, and the next pipeline goes on.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::driver::Driver;
use crate::pipelines;

/// Prints lines of the table from pipeline `from` on. A line before each has its number, so that the parent knows which one crashed.
pub fn child(filter: &str, from: usize) {
    let driver = Driver::open(from == 0);
    let mut out = std::io::stdout();
    for (i, p) in pipelines::all().iter().enumerate().skip(from) {
        let edge = [8, 16].into_iter().find(|edge| p.of.text.contains(&format!("coop_mat{edge}x{edge}")));
        // Kernels that store f16 run only beside matrices of 16×16.
        let is_packed = p.tier == "packed" && !driver.edges.contains(&16);
        if !p.name.contains(filter)
            || is_packed
            || !p.is_for(driver.few_registers)
            || edge.is_some_and(|edge| !driver.edges.contains(&edge))
        {
            continue;
        }
        writeln!(out, "@ {i}").and_then(|()| out.flush()).expect("the parent reads");
        let ready = p.ready();
        let start = Instant::now();
        let result = pipelines::spirv(p, &ready).and_then(|words| driver.compile(p, &ready, &words));
        let seconds = start.elapsed().as_secs_f64();
        let (verdict, found) = match result {
            Ok(found) => ("ok".to_string(), found.iter().map(|(n, v)| format!("\t{n}={v}")).collect()),
            Err(error) => (format!("FAILED {error}"), String::new()),
        };
        let counts = ready.counts();
        writeln!(out, "{}\t{}\t{verdict}\tseconds={seconds:.3}\t{counts}{found}", p.name, p.tier)
            .expect("the parent reads");
    }
}

/// Prints the whole table. Exits with 1 if a pipeline failed, and with 2 if the driver does not start.
pub fn parent(filter: &str) {
    let seconds = env::var("SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(120);
    let names: Vec<(String, &str)> = pipelines::all().into_iter().map(|p| (p.name, p.tier)).collect();
    let (mut from, mut failed) = (0, 0);
    loop {
        let program = env::current_exe().expect("a program has a path");
        let mut child = Command::new(program)
            .args(["child", filter, &from.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (send, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        thread::spawn(move || out.lines().map_while(Result::ok).for_each(|line| drop(send.send(line))));
        let mut now = None;
        let why = loop {
            match lines.recv_timeout(Duration::from_secs(seconds)) {
                Ok(line) => match line.strip_prefix("@ ") {
                    Some(number) => now = Some(number.parse::<usize>().expect("a number")),
                    None => {
                        failed += usize::from(line.contains("\tFAILED"));
                        now = now.filter(|_| line.starts_with('#'));
                        println!("{line}");
                    }
                },
                Err(RecvTimeoutError::Timeout) => {
                    child.kill().expect("the child is this program's");
                    break "HANGS";
                }
                Err(RecvTimeoutError::Disconnected) => break "CRASHES",
            }
        };
        let status = child.wait().expect("the child is this program's");
        match now {
            Some(i) => {
                println!("{}\t{}\tFAILED {why} {status}", names[i].0, names[i].1);
                failed += 1;
                from = i + 1;
            }
            None if status.success() => break,
            None => {
                println!("# the driver does not start: {status}");
                std::process::exit(2);
            }
        }
    }
    std::process::exit(i32::from(failed > 0));
}
