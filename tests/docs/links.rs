//! Links between pages.

use std::path::Path;

use super::{read, root};

/// Relative links of `page` whose file or heading does not exist.
pub fn broken(page: &Path) -> Vec<String> {
    let text = read(page);
    let folder = page.parent().expect("a page lies in a folder");
    let place = page.strip_prefix(root()).expect("a page of the repository").display();
    let is_broken = |link: &&str| {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.to_path_buf() } else { folder.join(file) };
        !target.exists() || !(heading.is_empty() || headings(&read(&target)).any(|found| found == heading))
    };
    links(&text).filter(is_broken).map(|link| format!("{place}: {link}")).collect()
}

/// Targets of `[text](target)` outside code blocks, without those that have a scheme.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    let targets = prose.flat_map(|part| part.split("](").skip(1)).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

/// Anchors of headings, as GitHub forms them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let anchor = |heading: &str| {
        let kept = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .collect::<String>();
        kept.replace(' ', "-")
    };
    text.lines().filter(|line| line.starts_with('#')).map(move |line| anchor(line.trim_start_matches('#')))
}
